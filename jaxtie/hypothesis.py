"""Name the command that replaced `python -m jaxtie.hypothesis`."""

import sys

if __name__ == "__main__":
    sys.exit("jaxtie.hypothesis was replaced: use jaxtie advise")
