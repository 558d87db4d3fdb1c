"""Sizes that follow from the vocabulary and the width, such as the deviation of fresh tables.
Imports no jax.
"""

import math
from typing import Literal

Formula = Literal["sqrt(D)", "1/sqrt(D)", "log(n)/D"]
Size = float | Formula
FORMULAS: tuple[Formula, ...] = ("sqrt(D)", "1/sqrt(D)", "log(n)/D")


def size(value: Size, vocabulary: int, width: int) -> float:
    """A number, or what a formula gives for n words and width D.

    Raises:
      ValueError: if there is no such formula.
    """
    if not isinstance(value, str):
        return value
    values = dict(
        zip(FORMULAS, (width**0.5, width**-0.5, math.log(vocabulary) / width), strict=True)
    )
    if value not in values:
        raise ValueError(f"a size is {value!r}; expected a number or one of {', '.join(FORMULAS)}")
    return values[value]
