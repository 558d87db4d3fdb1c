"""Run `python -m jaxtie.audit`."""

import os
import sys

# More threads of BLAS than one wait for each other on a busy machine. Set before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from jaxtie.audit.command import main_audit

if __name__ == "__main__":
    sys.exit(main_audit())
