"""`python -m jaxtie.audit`: see `jaxtie.audit.command`. Nobody imports this."""

import sys

from jaxtie.audit.command import main_audit

if __name__ == "__main__":
    sys.exit(main_audit())
