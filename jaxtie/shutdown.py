"""Exit cleanly on SIGINT and SIGTERM, even during compilation.

How a command that may train ends its process: by status, at any moment, whatever is under
way.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

INTERRUPTED = 130  # exit status


def leave(find_main: Callable[[], Callable[[], int]]) -> NoReturn:
    """Run a command and end the process with its status.

    A SIGTERM ends it at once with 130, from the first import on; while something is trained, the
    loop has a handler of its own, which saves. An exception would not do: raised in a finaliser or
    a callback it is lost, and the process goes on.

    Args:
      find_main: imports what the command takes and returns it.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(INTERRUPTED))
    status = 1
    try:
        status = find_main()()
    except KeyboardInterrupt:
        status = INTERRUPTED
    finally:
        background = sys.modules.get("jaxtie.training.trainer")
        # a process that tidies up would crash it
        if background and background.is_something_abandoned():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    sys.exit(status)
