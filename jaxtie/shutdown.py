"""Exit cleanly on SIGINT and SIGTERM, even during compilation."""

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

INTERRUPTED = 130  # exit status


def leave(find_main: Callable[[], Callable[[], int]]) -> NoReturn:
    """Run a command and end the process with its exit status.

    SIGTERM ends the process at once, from the first import on; during training the trainer has its
    own handler, which saves. An exception would not do: raised in a finalizer or a callback it is
    lost, and the process goes on.

    Args:
      find_main: imports the command's modules and returns its main function.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(INTERRUPTED))
    status = 1
    try:
        status = find_main()()
    except KeyboardInterrupt:
        status = INTERRUPTED
    finally:
        trainer = sys.modules.get("jaxtie.training.trainer")
        # An abandoned compilation would crash a process that tidies up.
        if trainer and trainer.has_abandoned_threads():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    sys.exit(status)
