"""`python -m jaxtie.report`: see `jaxtie.run.command`. Nobody imports this."""

import sys

from jaxtie.run.command import main_report

if __name__ == "__main__":
    sys.exit(main_report())
