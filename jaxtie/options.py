"""How options of the command lines are read: a function for each sort of value. Imports no jax."""

import contextlib
import io
import itertools
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxtie.config import Arm, UserError

AS_DECLARED = "as in the experiment"
MOST_SEEDS = 2**24
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]  # --name alone, no --no-name


def parse_seeds(text: str) -> tuple[int, ...]:
    """`64`: seeds 0...63; `42-46`: a range; `17-17`: one seed; `1,5,9` or `0-63,128-511`: a
    list.
    """
    expected = ValueError(
        f"{text!r}: expected a number of seeds (64), a range (42-46) or a list (1,5,9)"
    )
    try:
        if "," in text or "-" in text:
            parts = [[*map(_natural, part.split("-"))] for part in text.split(",")]
            if any(len(part) > 2 for part in parts):
                raise ValueError
            found = [_seeds_between(part[0], part[-1] + 1) for part in parts]
            seeds = tuple(itertools.chain.from_iterable(found)) if all(found) else ()
        else:
            seeds = _seeds_between(0, _natural(text))
    except ValueError:
        raise expected from None
    if not seeds:
        raise expected
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{text!r}: expected each seed once")
    return seeds


def _seeds_between(first: int, end: int) -> tuple[int, ...]:
    if end - first > MOST_SEEDS:  # a seed was meant
        raise ValueError
    return tuple(range(first, end))


def _natural(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise ValueError
    return int(text)


def parse_positive(text: str) -> int:
    """An integer above 0."""
    try:
        if (number := _natural(text)) > 0:
            return number
    except ValueError:
        pass
    raise ValueError(f"{text!r}: expected a positive integer")


def parse_from_0(text: str) -> int:
    """An integer of at least 0."""
    try:
        return _natural(text)
    except ValueError:
        raise ValueError(f"{text!r}: expected an integer of at least 0") from None


def parse_above_0(text: str, expected: str) -> float:
    """A number above 0."""
    try:
        if math.isfinite(number := float(text)) and number > 0:
            return number
    except ValueError:
        pass
    raise ValueError(f"{text!r}: expected {expected}")


def parse_arms(text: str) -> tuple[Arm, ...]:
    """Arms, separated by commas."""
    return tuple(map(Arm.parse, text.split(",")))


def parse_path(text: str) -> Path:
    """A file or a folder."""
    if not text:
        raise ValueError("'': expected a file or a folder")
    return Path(text)


def parse_address(text: str) -> str:
    """HOST:PORT."""
    host, _, port = text.rpartition(":")
    if host and port.isascii() and port.isdigit() and 0 < int(port) < 2**16:
        return text
    raise ValueError(f"{text!r}: expected HOST:PORT, such as 10.0.0.1:4000")


def option(metavar: str, parse: Callable[[str], Any], default: str = AS_DECLARED) -> Any:
    """How tyro reads one option: `default` is what the help shows for an option that was not
    given.
    """

    def shown(value: Any) -> list[str]:
        return default.split() if value is None else [str(value)]

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda texts: parse(texts[0]),
        is_instance=lambda value: True,
        str_from_instance=shown,
    )


def parse_seconds(text: str) -> float:
    """A number of seconds."""
    return parse_above_0(text, "a number of seconds above 0")


def parse_factor(text: str) -> float:
    """What steps are multiplied by."""
    return parse_above_0(text, "a number above 0, such as 0.1")


def parse_command(options: type, prog: str, arguments: Sequence[str]) -> Any:
    """What options a command line gives, by tyro.

    Args:
      options: a dataclass of them.
      prog: the command's name after `python -m`.

    Raises:
      UserError: with one line: of the box that tyro draws around an error, the reason.
      SystemExit: after `--help`.
    """
    message = io.StringIO()
    # standard output is no terminal meanwhile, and wide: else there are colours, other boxes and
    # ends of lines
    try:
        with (
            _columns(10_000),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(message),
        ):
            return tyro.cli(options, prog=f"python -m {prog}", args=list(arguments))
    except SystemExit as stop:
        if not stop.code:
            # shows the help, as the terminal likes it, and exits
            tyro.cli(options, prog=f"python -m {prog}", args=list(arguments))
    title, *parts = re.split(r"\n *-+ *\n", message.getvalue())  # rules stand around the reason
    reason = " ".join((parts[0] if parts else title).split()).removeprefix("Error parsing ")
    raise UserError(f"{reason} (see python -m {prog} --help)")


@contextlib.contextmanager
def _columns(count: int) -> Iterator[None]:
    """A terminal of so many columns, for what asks about its width."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(count)
    try:
        yield
    finally:
        os.environ.pop("COLUMNS")
        os.environ |= {} if before is None else {"COLUMNS": before}
