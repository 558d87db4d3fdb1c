"""`python -m jaxtie.run`: see `jaxtie.cli`. Nobody imports this: `jaxtie.run` is a function, of `jaxtie.runs`."""

import sys

from jaxtie.cli import main

if __name__ == "__main__":
    sys.exit(main())
