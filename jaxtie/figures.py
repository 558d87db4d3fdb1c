"""Run `python -m jaxtie.figures`."""

import sys

from jaxtie.run.command import main_figures

if __name__ == "__main__":
    sys.exit(main_figures())
