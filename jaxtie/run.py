"""`python -m jaxtie.run`: see `jaxtie.cli`. Nobody imports this: `jaxtie.run` is a function, of `jaxtie.runs`."""

import os
import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an interrupt like the other, from the first import on
    try:
        from jaxtie.cli import main

        status = main()
    except KeyboardInterrupt:
        status = 130
    loop = sys.modules.get("jaxtie.training.loop")
    if loop and loop.is_something_abandoned():  # a compiler at work in a process that tidies up would crash it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
