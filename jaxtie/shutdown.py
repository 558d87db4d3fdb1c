"""Exit cleanly on SIGINT and SIGTERM, even during compilation, and where nobody reads."""

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

INTERRUPTED = 130  # exit status
BROKEN_PIPE = 141  # likewise, as of a shell's tools


def leave(find_main: Callable[[], Callable[[], int]]) -> NoReturn:
    """Run a command and end the process with its exit status.

    SIGTERM ends the process at once, from the first import on; during training the trainer has its
    own handler, which saves. An exception would not do: raised in a finalizer or a callback it is
    lost, and the process goes on.

    Args:
      find_main: imports the command's modules and returns its main function.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(INTERRUPTED))
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, as long as the process
    status = 1
    try:
        status = find_main()()
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:  # such as `| head` has read enough; Python flushes again at the end
        status, nowhere = BROKEN_PIPE, os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.dup2(nowhere, sys.stderr.fileno())
    finally:
        trainer = sys.modules.get("jaxtie.training.trainer")
        # An abandoned compilation would crash a process that tidies up.
        if trainer and trainer.has_abandoned_threads():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    sys.exit(status)
