"""Run `python -m jaxtie.run`, the same as `jaxtie run`."""

import sys

from jaxtie.__main__ import main

if __name__ == "__main__":
    main(["run", *sys.argv[1:]])
