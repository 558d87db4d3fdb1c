"""Exit cleanly on SIGINT, SIGTERM and SIGHUP, and when the output has no reader."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

INTERRUPTED = 130  # exit status
BROKEN_PIPE = 141  # likewise, as of a shell's tools
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def stop_numbers() -> list[int]:
    """Return the signals that ask to stop; SIGHUP, of a closed terminal, but not under `nohup`."""
    hangup = getattr(signal, "SIGHUP", None)  # not on Windows
    if hangup is None or signal.getsignal(hangup) == signal.SIG_IGN:
        return [*INTERRUPTS]
    return [*INTERRUPTS, hangup]


def leave_closed(terminals: Sequence[int]) -> None:
    """Write to nowhere instead of terminals that were closed, where every write would raise.

    Args:
      terminals: file descriptors that were terminals.
    """
    write_to_nowhere(each for each in terminals if not os.isatty(each))


def write_to_nowhere(descriptors: Iterable[int]) -> None:
    """Discard all later output to these file descriptors."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for each in descriptors:
        os.dup2(nowhere, each)
    os.close(nowhere)


def leave(find_main: Callable[[], Callable[[], int]]) -> NoReturn:
    """Run a command and end the process with its exit status.

    SIGTERM and SIGHUP end the process at once, from the first import on; during training the
    trainer has its own handler, which saves. An exception would not do: raised in a finalizer or a
    callback it is lost, and the process goes on.

    Args:
      find_main: imports the command's modules and returns its main function.
    """
    for number in stop_numbers():
        if number != signal.SIGINT:
            signal.signal(number, lambda *_: os._exit(INTERRUPTED))
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
        status = BROKEN_PIPE
        write_to_nowhere([sys.stdout.fileno(), sys.stderr.fileno()])
    except Exception:
        traceback.print_exc()  # here, since the process may end below
    finally:
        trainer = sys.modules.get("jaxtie.training.trainer")
        # An abandoned compilation would crash a process that tidies up.
        if trainer and trainer.has_abandoned_threads():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    sys.exit(status)
