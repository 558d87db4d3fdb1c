"""`python -m jaxtie.hypothesis`: see `jaxtie.instrument.command`. Nobody imports this."""

from collections.abc import Callable

from jaxtie.leave import leave


def _find_command() -> Callable[[], int]:
    from jaxtie.instrument.command import main_hypothesis

    return main_hypothesis


if __name__ == "__main__":
    leave(_find_command)
