"""Run `jaxtie COMMAND`; the help and the version need no other module."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

import jaxtie
from jaxtie.checks import suggest
from jaxtie.shutdown import leave

COMMANDS = {  # the modules and their functions
    "run": ("jaxtie.run.command", "main"),
    "compare": ("jaxtie.compare.command", "main_compare"),
    "advise": ("jaxtie.advise.command", "main_advise"),
    "audit": ("jaxtie.audit.command", "main_audit"),
    "report": ("jaxtie.run.command", "main_report"),
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


def _main_of(command: str) -> Callable[[Sequence[str]], int]:
    """Import the function that runs a command with its options; it returns the exit status."""
    if command == "audit":
        # More BLAS threads than one would wait for each other. Set before NumPy is imported.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    module, name = COMMANDS[command]
    return getattr(importlib.import_module(module), name)


def _find_main(arguments: list[str]) -> Callable[[], int]:
    """Return the function that runs a command line and returns its exit status."""
    command, *rest = arguments or ["--help"]
    if command in COMMANDS:
        return partial(_main_of(command), rest)
    wrong = f"expected one of {', '.join(COMMANDS)}{suggest(command, COMMANDS)}"
    if command in ("-h", "--help", "--version"):
        wrong = f"expected nothing after {command}"
        if not rest:
            print(f"jaxtie {jaxtie.__version__}" if command == "--version" else HELP)
            return lambda: 0
        command = rest[0]
    print(f"jaxtie: {command!r}: {wrong}", file=sys.stderr)
    return lambda: 2


def main(arguments: list[str] | None = None) -> None:
    """Run a command line and exit with its status."""
    leave(partial(_find_main, sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    main()
