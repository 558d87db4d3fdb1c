"""`python -m jaxtie.figures`: see `jaxtie.run.command`. Nobody imports this."""

import sys

from jaxtie.run.command import main_figures

if __name__ == "__main__":
    sys.exit(main_figures())
