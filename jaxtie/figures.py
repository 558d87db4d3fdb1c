"""Name the command that replaced `python -m jaxtie.figures`."""

import sys

if __name__ == "__main__":
    sys.exit("jaxtie.figures was replaced: use jaxtie report DIR")
