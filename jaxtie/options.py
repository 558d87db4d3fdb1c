"""Read the options of the command lines: a function for each sort of value. Imports no jax.

The options of a command are the fields of a dataclass, each declared by `option`, `argument` or
`flag`. Its `HELP` says what they mean, in the words that the user sees.
"""

import argparse
import contextlib
import dataclasses
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from jaxtie.arms import Arm
from jaxtie.checks import UserError, check_path, natural, real, suggest
from jaxtie.config import MOST_SEEDS
from jaxtie.shutdown import INTERRUPTED

Options = TypeVar("Options")


def run_command(command: Callable[[], int]) -> int:
    """Run a command; return its exit status, or 2 after an error that is the user's."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not have every character
    try:
        return command()
    except BrokenPipeError:  # there is no reader
        raise
    except (UserError, OSError) as error:
        reason = str(error)
        if isinstance(error, OSError):
            reason = f"{error.filename or 'output'}: {error.strerror or error}"
        print_error(escape(reason))
        return 2
    except KeyboardInterrupt as stop:
        if stop.args:
            print_error(str(stop))
        return INTERRUPTED


def print_error(line: str) -> None:
    """Print an error as every command does."""
    print(f"jaxtie: {line}", file=sys.stderr)


def escape(text: str) -> str:
    """Return a text without line breaks and other characters that do not print."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read `64` (seeds 0...63), `42-46` (a range), `17-17` (one seed) or `0-63,128,130` (a list).

    A single large number is refused: it is a seed that was meant to be `N-N`.
    """
    parts = [[natural(end) for end in part.split("-")] for part in text.split(",")]
    if "," not in text and "-" not in text:
        parts = [[0, natural(text) - 1]]
    if not all(
        len(part) <= 2 and 0 <= part[0] <= part[-1] < part[0] + MOST_SEEDS for part in parts
    ):
        raise ValueError(
            f"{text!r}: expected a number of seeds (64), a range (42-46) or a list (1,5,9)"
        )
    return tuple(seed for part in parts for seed in range(part[0], part[-1] + 1))


def parse_positive(text: str) -> int:
    """Read an integer above 0."""
    if (number := natural(text)) < 1:
        raise ValueError(f"{text!r}: expected a positive integer")
    return number


def parse_from_0(text: str) -> int:
    """Read an integer of at least 0."""
    if (number := natural(text)) < 0:
        raise ValueError(f"{text!r}: expected an integer of at least 0")
    return number


def parse_above_0(expected: str) -> Callable[[str], float]:
    """Return a function that reads a number above 0; `expected`: what its error asks for."""

    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            if (number := real(text)) > 0:
                return number
        raise ValueError(f"{text!r}: expected {expected}")

    return parse


def parse_one_of(*known: str) -> Callable[[str], str]:
    """Return a function that reads one of some words."""

    def parse(text: str) -> str:
        if text not in known:
            raise ValueError(f"{text!r}: expected one of {', '.join(known)}")
        return text

    return parse


def parse_arms(text: str) -> tuple[Arm, ...]:
    """Read arms, separated by commas."""
    return tuple(map(Arm.parse, text.split(",")))


def parse_path(text: str) -> Path:
    """Read a file or a folder, which need not exist."""
    if not text:
        raise ValueError("'': expected a file or a folder")
    if (path := Path(text)).exists():
        check_path(path)
    return path


def parse_address(text: str) -> str:
    """Read HOST:PORT."""
    host, _, port = text.rpartition(":")
    if host and 0 < natural(port) < 2**16:
        return text
    raise ValueError(f"{text!r}: expected HOST:PORT, such as 10.0.0.1:4000")


def option(parse: Callable[[str], Any] = str, default: Any = None) -> Any:
    """Declare an option with a value, as a field of a dataclass.

    Args:
      parse: reads the value; raises ValueError with what was expected.
      default: of the field; (): the option may be repeated, and the field is a tuple.
    """
    how = {"type": _reader(parse), "action": "append" if default == () else "store"}
    return dataclasses.field(default=default, metadata={"argparse": how, "named": True})


def argument(parse: Callable[[str], Any] = str, default: Any = None) -> Any:
    """Declare a value that has no name; `default` (): any number of them, and a tuple."""
    how = {"type": _reader(parse), "nargs": "*" if default == () else "?"}
    return dataclasses.field(default=default, metadata={"argparse": how})


def flag() -> Any:
    """Declare an option without a value, a bool."""
    how = {"action": "store_true"}
    return dataclasses.field(default=False, metadata={"argparse": how, "named": True})


def _reader(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(word: str) -> Any:
        try:
            return parse(word)
        except ValueError as error:  # of any other error argparse would not show the text
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise the error in one line instead of printing it below the usage."""
        reason = message.removeprefix("argument ").replace("unrecognized arguments", "unexpected")
        reason = reason.replace("ignored explicit argument", "expected without a value, got")
        raise UserError(f"{reason} (see {self.prog} --help)")


def parse_command(own: type[Options], prog: str, words: Sequence[str]) -> Options:
    """Read a command line by argparse.

    Args:
      own: dataclass of the options; its `HELP` is printed by `--help`.
      prog: name of the command, such as "jaxtie run".
      words: of the command line.

    Raises:
      UserError: in one line that names the option, its value and what was expected.
      SystemExit: after `--help`.
    """
    parser, known = _Parser(prog, add_help=False, allow_abbrev=False), {"--help", "--"}
    fields = {each.name: each for each in dataclasses.fields(own)}  # type: ignore[arg-type]
    for name, each in fields.items():
        if "named" not in each.metadata:
            parser.add_argument(name, **each.metadata["argparse"])
            continue
        known.add(shown := f"--{name.replace('_', '-')}")
        parser.add_argument(shown, dest=name, default=None, **each.metadata["argparse"])
    for word in words:
        if word in ("-h", "--help"):
            print(own.HELP.strip())  # type: ignore[attr-defined]
            raise SystemExit(0)
        if (name := word.partition("=")[0]).startswith("--") and name not in known:
            parser.error(f"{name}: no such option{suggest(name, known)}")
    given = vars(parser.parse_intermixed_args(words)).items()
    found = {name: tuple(each) if isinstance(each, list) else each for name, each in given}
    return own(**{name: value for name, value in found.items() if value not in (None, ())})
