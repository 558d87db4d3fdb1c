"""Run `python -m jaxtie.audit`, the same as `jaxtie audit`."""

import sys

from jaxtie.__main__ import main

if __name__ == "__main__":
    main(["audit", *sys.argv[1:]])
