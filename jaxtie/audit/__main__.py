"""`python -m jaxtie.audit`: see `jaxtie.audit.command`. Nobody imports this."""

import os
import sys

# One is enough, and where a machine is busy two wait for each other much longer than they work.
# Before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from jaxtie.audit.command import main_audit

if __name__ == "__main__":
    sys.exit(main_audit())
