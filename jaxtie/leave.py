"""How a command that may train ends its process: by status, at any moment, whatever is under way."""

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

INTERRUPTED_EARLY = 130


def leave(find_main: Callable[[], Callable[[], int]]) -> NoReturn:
    """Run a command and end the process with its status; a SIGTERM is an interrupt from the first import on.

    Args:
      find_main: imports what the command takes and returns it.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    status = 1
    try:
        status = find_main()()
    except KeyboardInterrupt:
        status = INTERRUPTED_EARLY
    finally:
        loop = sys.modules.get("jaxtie.training.loop")
        if loop and loop.is_something_abandoned():  # a compiler at work in a process that tidies up would crash it
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    sys.exit(status)
