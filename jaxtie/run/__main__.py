"""Run `python -m jaxtie.run`."""

from collections.abc import Callable

from jaxtie.shutdown import leave


def _find_main() -> Callable[[], int]:
    from jaxtie.run.command import main

    return main


if __name__ == "__main__":
    leave(_find_main)
