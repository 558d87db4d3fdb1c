"""Check values: an invalid one raises `UserError`. Imports no jax."""

import dataclasses
import difflib
import math
import re
import sys
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

SEEDS = 2**32  # number of valid seeds
Size = float | str  # a number, or one of FORMULAS
# of n words and width D
FORMULAS: dict[str, Callable[[int, int], float]] = {
    "sqrt(D)": lambda n, D: D**0.5,
    "1/sqrt(D)": lambda n, D: D**-0.5,
    "log(n)/D": lambda n, D: math.log(n) / D,
}


class UserError(ValueError):
    """An error of a user, in one line: the value, the expected ones and what to do."""


def check(holds: bool, message: str) -> None:
    """Raise UserError with the message unless the condition holds."""
    if not holds:
        raise UserError(message)


def suggest(name: str, known: Iterable[str], most: int = 1) -> str:
    """Return "; did you mean ...?" with the known names that resemble a misspelt one, or ""."""
    found = difflib.get_close_matches(name, [*known], most)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def check_path(path: Path) -> None:
    """Raise UserError unless it is a regular file or a folder: others may be read for ever."""
    check(path.exists(), f"{path}: no such file or folder")
    check(
        path.is_file() or path.is_dir(),
        f"{path}: is a pipe, a device or a socket; expected a file or a folder",
    )


def plain(value: Any) -> Any:
    """Return numbers and arrays of NumPy, also within tuples and lists, as Python's."""
    if getattr(value, "ndim", None) == 0:
        return value.item()
    if hasattr(value, "tolist"):
        return tuple(map(plain, value))
    return type(value)(map(plain, value)) if type(value) in (tuple, list) else value


def nested(config: Any) -> dict[str, Any]:
    """Return the configurations that are fields of another one, by name."""
    own = {each.name: getattr(config, each.name) for each in dataclasses.fields(config)}
    return {
        name: value for name, value in own.items() if hasattr(type(value), "__dataclass_fields__")
    }


def make_plain(config: Any) -> None:
    """Make the values of a configuration `plain`, also of those nested in it."""
    for each in dataclasses.fields(config):
        if each.compare:
            object.__setattr__(config, each.name, plain(getattr(config, each.name)))
    for value in nested(config).values():
        make_plain(value)


def is_number(value: object) -> typing.TypeGuard[float]:
    """Whether it is a finite number; a bool is none."""
    most = sys.float_info.max
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= most


def is_integer(value: object) -> typing.TypeGuard[int]:
    """Whether it is an integer; a bool is none."""
    return is_number(value) and isinstance(value, int)


def number_label(value: float) -> str:
    """Return the shortest text of a number that other numbers do not have."""
    short = f"{value:g}"
    return short if float(short) == value else str(value)


def check_positive_integers(owner: object, *names: str) -> None:
    """Raise UserError unless these attributes are integers above 0."""
    for name in names:
        value = getattr(owner, name)
        check(is_integer(value) and value > 0, f"{name} = {value!r}: expected a positive integer")


def check_range(
    owner: object, name: str, low: float, high: float = math.inf, *, include_low: bool = True
) -> None:
    """Raise UserError unless an attribute is a number from `low` to below `high`."""
    value = getattr(owner, name)
    inside = is_number(value) and low <= value < high
    expected = f"at least {low}" if include_low else f"above {low}"
    expected += "" if high == math.inf else f" and below {high}"
    check(
        inside and (include_low or value > low), f"{name} = {value!r}: expected a number {expected}"
    )


def check_seed(seed: int, name: str | None = None) -> None:
    """Raise UserError unless it can seed a random stream; `name`: of the field, for the message."""
    shown = f"seed {seed!r}" if name is None else f"{name} = {seed!r}"
    check(
        is_integer(seed) and 0 <= seed < SEEDS, f"{shown}: expected an integer in 0...{SEEDS - 1}"
    )


def check_size(name: str, value: Size) -> None:
    """Raise UserError unless it is a number above 0 or a formula."""
    check(
        value > 0 if is_number(value) else value in FORMULAS,
        f"{name} = {value!r}: expected a number above 0 or one of {', '.join(FORMULAS)}",
    )


def size(value: Size, vocabulary: int, width: int) -> float:
    """Return a number as it is, and the value of a formula for a vocabulary and a width.

    Raises:
      ValueError: if there is no such formula.
    """
    if not isinstance(value, str):
        return value
    if value not in FORMULAS:
        raise ValueError(f"a size is {value!r}; expected a number or one of {', '.join(FORMULAS)}")
    return FORMULAS[value](vocabulary, width)


def natural(text: str) -> int:
    """Read an integer below 10^10 in ASCII digits, or as 2e9 or 1.5e3; -1 for any other text."""
    if re.fullmatch(r"\d{1,10}", text, re.ASCII):
        return int(text)
    if re.fullmatch(r"\d{1,10}(\.\d{1,10})?e\+?\d", text, re.ASCII | re.IGNORECASE):
        number = float(text)
        return int(number) if number.is_integer() and number < 1e10 else -1
    return -1


def real(text: str) -> float:
    """Read a finite number in ASCII digits; ValueError for any other text."""
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text, re.ASCII | re.IGNORECASE):
        raise ValueError(f"{text!r}: expected a number")
    if math.isinf(number := float(text)):
        raise ValueError(f"{text!r}: expected a smaller number")
    return number
