"""`python -m jaxtie.report`: see `jaxtie.cli`. Nobody imports this."""

import sys

from jaxtie.cli import main_report

if __name__ == "__main__":
    sys.exit(main_report())
