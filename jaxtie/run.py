"""`python -m jaxtie.run`: see `jaxtie.cli`. Nobody imports this: `jaxtie.run` is a function, of
`jaxtie.runs`.
"""

from collections.abc import Callable

from jaxtie.leave import leave


def _find_main() -> Callable[[], int]:
    from jaxtie.cli import main

    return main


if __name__ == "__main__":
    leave(_find_main)
