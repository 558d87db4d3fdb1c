"""Run `jaxtie COMMAND`; the help and the version need no other module."""

import os
import pkgutil
import sys
from collections.abc import Callable
from functools import partial

import jaxtie
from jaxtie.shutdown import leave

COMMANDS = {
    "run": "jaxtie.run.command:main",
    "compare": "jaxtie.compare.command:main_compare",
    "advise": "jaxtie.advise.command:main_advise",
    "audit": "jaxtie.audit.command:main_audit",
    "report": "jaxtie.run.report:main",
}
HELP = """usage: jaxtie COMMAND [OPTIONS]

Should a language model share one embedding table between its input and its output?

  run      train tied and untied models, many seeds at once, and compare them
  compare  compare two sets of training runs that you have, by their losses
  advise   say what tying saves at a size, what others measured there, and how to test it
  audit    check whether a checkpoint is tied and whether its flags agree, and repair it
  report   draw the figures and the report of a run again

  jaxtie COMMAND --help    options of a command
  jaxtie --version

In Python: import jaxtie; help(jaxtie).
"""


def _find_main(arguments: list[str]) -> Callable[[], int]:
    """Return the function that runs a command line and returns its exit status."""
    command, *rest = arguments or ["--help"]
    if command in ("-h", "--help", "--version"):
        if rest:
            print(f"jaxtie: {rest[0]!r}: expected nothing after {command}", file=sys.stderr)
            return lambda: 2
        print(f"jaxtie {jaxtie.__version__}" if command == "--version" else HELP, end="\n")
        return lambda: 0
    if command not in COMMANDS:
        print(f"jaxtie: {command!r}: expected one of {', '.join(COMMANDS)}", file=sys.stderr)
        return lambda: 2
    if command == "audit":
        # More BLAS threads than one would wait for each other. Set before NumPy is imported.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return partial(pkgutil.resolve_name(COMMANDS[command]), rest)


def main(arguments: list[str] | None = None) -> None:
    """Run a command line and exit with its status."""
    leave(partial(_find_main, sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    main()
