"""Commands that run jaxtie with a part replaced beforehand, such as a slow one."""

import sys

from quickly import QUICK

WITHOUT_FIGURES = "from jaxtie.run import lifecycle; lifecycle.draw = lambda *_: []"
COMPILED_QUICKLY = (
    "from jaxtie.training import devices; devices.FAST = devices.REPEATABLE = devices.ONCE ="
    f" {{'cpu': {QUICK}}}"
)
SAVED_SLOWLY = """import time
from jaxtie.training.checkpoints import Checkpoints
save = Checkpoints.save
Checkpoints.save = lambda *arguments: (time.sleep(0.05), save(*arguments))"""
RUN = (
    "import sys; from jaxtie.run.command import main;"
    " sys.exit(main(sys.argv[sys.argv.index('jaxtie.run') + 1 :]))"
)


def after(*statements: str) -> list[str]:
    """Return the `prefix` of a command that executes these statements first."""
    return [sys.executable, "-c", "\n".join([*statements, RUN])]
