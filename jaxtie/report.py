"""Run `python -m jaxtie.report`."""

import sys

from jaxtie.run.command import main_report

if __name__ == "__main__":
    sys.exit(main_report())
