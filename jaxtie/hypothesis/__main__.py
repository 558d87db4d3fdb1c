"""`python -m jaxtie.hypothesis`: see `jaxtie.instrument.command`. Nobody imports this."""

import sys

from jaxtie.instrument.command import main_hypothesis

if __name__ == "__main__":
    sys.exit(main_hypothesis())
