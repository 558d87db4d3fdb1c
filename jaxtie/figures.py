"""`python -m jaxtie.figures`: see `jaxtie.cli`. Nobody imports this."""

import sys

from jaxtie.cli import main_figures

if __name__ == "__main__":
    sys.exit(main_figures())
