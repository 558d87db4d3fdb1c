"""Run `python -m jaxtie.compare`, the same as `jaxtie compare`."""

import sys

from jaxtie.__main__ import main

if __name__ == "__main__":
    main(["compare", *sys.argv[1:]])
