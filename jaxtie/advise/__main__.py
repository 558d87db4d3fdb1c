"""Run `python -m jaxtie.advise`, the same as `jaxtie advise`."""

import sys

from jaxtie.__main__ import main

if __name__ == "__main__":
    main(["advise", *sys.argv[1:]])
