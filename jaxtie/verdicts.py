"""Claims and what measurements make of them: one rule. Imports no jax.

A claim says where some quantities lie: it holds if every interval is wholly there, fails if one is wholly elsewhere, else it
is undecided. All intervals of a claim are right together with 95 % (Bonferroni): of many, one would be elsewhere by chance.
"""

import math
from typing import NamedTuple

import numpy as np

from jaxtie.tables import Table, mean_interval

RULE = (
    "A claim holds if every interval lies wholly where it says, fails if one lies wholly elsewhere, else is undecided; all "
    "intervals of a claim are right together with 95 % (Bonferroni, Student's t over {over})."
)


class Comparison(NamedTuple):
    """Of two models, or of one and a number: what, and the interval's ends and middle; of a factor, their logarithms."""

    label: str
    low: float
    middle: float
    high: float
    is_factor: bool = False

    def __str__(self) -> str:
        shown = (lambda value: f"{math.exp(value):.2f}") if self.is_factor else (lambda value: f"{value:+.3f}")
        low, middle, high = ("–" if math.isnan(value) else shown(value) for value in self[1:4])
        return f"{self.label} {middle} [{low}, {high}]"


def compare(label: str, values: np.ndarray, count: int = 1) -> Comparison:
    """Mean of independent values with the interval of one of `count` comparisons.

    Its ends are NaN, so nothing follows from it, where there is a single value or one is missing: a seed that diverged.
    """
    mean, half = mean_interval(np.asarray(values, np.float64), error=0.05 / count)
    half = half if np.isfinite(values).all() else math.nan
    return Comparison(label, float(mean - half), float(mean), float(mean + half))


class Judgement(NamedTuple):
    """`verdict`: "holds", "fails" or "undecided"; `decisive`: the comparison that did it, or that came nearest to undo it."""

    verdict: str
    decisive: Comparison


def judge(compared: list[Comparison], low: float, high: float) -> Judgement:
    """The rule: do all the intervals lie within (low, high)?"""
    outside = [each for each in compared if each.high <= low or each.low >= high]
    above = lambda each: math.inf if low == -math.inf else each.low - low  # where all is allowed, intervals may be open
    below = lambda each: math.inf if high == math.inf else high - each.high
    room = lambda each: np.nan_to_num(np.minimum(above(each), below(each)), nan=-math.inf, posinf=math.inf)
    inside = [each for each in compared if room(each) > 0]
    verdict = "fails" if outside else "holds" if len(inside) == len(compared) else "undecided"
    return Judgement(verdict, min(outside or compared, key=room))


def table(judgements: dict[str, dict[str, Judgement]], over: str) -> Table:
    """Claim -> where it is looked at ("" if in one place) -> judgement, as a table; `over`: what the intervals are over."""
    shown = lambda at: "; ".join(f"{place}{': ' * bool(place)}{each.decisive}" for place, each in at.items())
    rows = [(claim, _verdict(at), shown(at)) for claim, at in judgements.items()]
    header = ("claim", "verdict", "decisive or closest")
    return Table("Verdicts", header, rows, RULE.format(over=over))


def _verdict(at: dict[str, Judgement]) -> str:
    """One word, or what is said where: "holds at 50%; fails at 90%"."""
    places: dict[str, list[str]] = {}
    for place, judgement in at.items():
        places.setdefault(judgement.verdict, []).append(place)
    if len(places) == 1:
        return next(iter(places))
    return "; ".join(f"{verdict} at {', '.join(where)}" for verdict, where in places.items())
