"""Run `python -m jaxtie.advise`."""

from collections.abc import Callable

from jaxtie.shutdown import leave


def _find_main() -> Callable[[], int]:
    from jaxtie.advise.command import main_advise

    return main_advise


if __name__ == "__main__":
    leave(_find_main)
