"""Read the options of the command lines: a function for each sort of value. Imports no jax."""

import argparse
import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxtie.config import MOST_SEEDS, Arm, UserError, check_path, natural, real
from jaxtie.shutdown import INTERRUPTED

AS_DECLARED = "as in the experiment"
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]  # --name alone, no --no-name


def run_command(command: Callable[[], int]) -> int:
    """Run a command; return its exit status, or 2 after an error that is the user's."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not have every character
    try:
        return command()
    except (UserError, OSError) as error:
        print_error(one_line(error))
        return 2
    except KeyboardInterrupt as stop:
        if stop.args:
            print_error(str(stop))
        return INTERRUPTED


def print_error(line: str) -> None:
    """Print an error as every command does."""
    print(f"jaxtie: {line}", file=sys.stderr)


def one_line(error: UserError | OSError) -> str:
    """Return the message of an error; raise a broken pipe again, since there is no reader."""
    if isinstance(error, BrokenPipeError):
        raise error
    if isinstance(error, OSError):
        return escape(f"{error.filename or 'output'}: {error.strerror or error}")
    return escape(str(error))


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
    seeds = tuple(seed for part in parts for seed in range(part[0], part[-1] + 1))
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{text!r}: expected each seed once")
    return seeds


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


def option(metavar: str, parse: Callable[[str], Any], default: str = AS_DECLARED) -> Any:
    """Tell tyro how to read an option; `default`: shown by the help for an option not given."""

    def shown(value: Any) -> list[str]:
        return default.split() if value is None else [str(value)]

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda texts: parse(texts[0]),
        is_instance=lambda value: True,
        str_from_instance=shown,
    )


def parse_command(
    options: type, prog: str, arguments: Sequence[str], description: str | None = None
) -> Any:
    """Read a command line by tyro.

    Args:
      options: dataclass of the options.
      prog: name of the command, such as "jaxtie.run".
      arguments: of the command line.
      description: shown by the help; None: the docstring of `options`.

    Returns:
      An instance of the dataclass.

    Raises:
      UserError: in one line, the reason from the box that tyro draws around an error.
      SystemExit: after `--help`.
    """
    name = prog.replace(".", " ")

    def parse() -> Any:
        return tyro.cli(options, prog=name, args=list(arguments), description=description)

    message = io.StringIO()
    try:
        # On a terminal, or a narrow one, tyro adds colours, other boxes and line breaks.
        with (
            _columns(10_000),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(message),
        ):
            return parse()
    except SystemExit as stop:
        if not stop.code:
            parse()  # shows the help, fitted to the terminal, and exits
    title, *parts = re.split(r"\n *-+ *\n", message.getvalue())  # rules stand around the reason
    reason = " ".join((parts[0] if parts else title).split()).removeprefix("Error parsing ")
    raise UserError(f"{reason} (see {name} --help)")


def parse_groups(
    groups: type, prog: str, arguments: Sequence[str], description: str
) -> argparse.Namespace:
    """Read a command line by `parse_command`; return the options of all groups together."""
    options = argparse.Namespace()
    for group in vars(parse_command(groups, prog, arguments, description)).values():
        vars(options).update(vars(group))
    return options


@contextlib.contextmanager
def _columns(count: int) -> Iterator[None]:
    """Pretend that the terminal has so many columns."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(count)
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
