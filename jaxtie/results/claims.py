"""Claims and what measurements make of them: one rule. Imports no jax.

A claim says where some quantities lie: it holds if every interval is wholly there, fails if one is
wholly elsewhere, else it is inconclusive. All intervals of a claim are right together with 95 %
(Bonferroni): of many, one would be elsewhere by chance.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np

from jaxtie.results.statistics import mean_interval, median_interval
from jaxtie.results.tables import Table

RULE = (
    "A claim holds if every interval lies wholly where it says, fails if one lies wholly elsewhere,"
    " else is inconclusive; all intervals of a claim are right together with 95 % (Bonferroni,"
    " Student's t over {over})."
)


SMALL = 0.001  # below, three places would show nothing


class Comparison(NamedTuple):
    """Two models, or one and a number: what is compared, the interval's ends and middle;
    logarithms, if it is a factor.
    """

    label: str
    low: float
    middle: float
    high: float
    is_factor: bool = False
    seeds: int | None = None  # where it has to be said how many there are

    def __str__(self) -> str:
        low, middle, high = map(self._shown, (self.low, self.middle, self.high))
        seeds = "" if self.seeds is None else f", {self.seeds:,} seeds"
        return f"{self.label} {middle} [{low}, {high}]{seeds}"

    def _shown(self, value: float) -> str:
        if math.isnan(value):
            return "–"
        if self.is_factor:
            return f"{math.exp(value):.2f}"
        return f"{value:+.3f}" if value == 0 or abs(value) >= SMALL else f"{value:+.1e}"


def compare(label: str, values: np.ndarray, count: int = 1) -> Comparison:
    """Mean of independent values with the interval of one of `count` comparisons.

    Its ends are NaN, so nothing follows from it, where there is a single value or one is missing: a
    seed that diverged.
    """
    mean, half = map(float, mean_interval(np.asarray(values, np.float64), error=0.05 / count))
    half = half if np.isfinite(values).all() else math.nan
    return Comparison(label, mean - half, mean, mean + half)


def compare_median(label: str, values: np.ndarray, count: int = 1) -> Comparison:
    """Median of independent values with its rank interval, as `compare`; a missing value leaves no
    ends either.
    """
    values = np.asarray(values, np.float64)
    low, middle, high = median_interval(values, error=0.05 / count)
    if not np.isfinite(values).all():
        low = high = math.nan
    return Comparison(label, low, middle, high)


Verdict = Literal["holds", "fails", "inconclusive", "no data yet"]


class Judgement(NamedTuple):
    """What becomes of a claim, and the comparison that did it, or that came nearest to undo it."""

    verdict: Verdict
    decisive: Comparison


def judge(compared: Sequence[Comparison], low: float, high: float) -> Judgement:
    """The rule: do all the intervals lie within (low, high)?"""

    def room(each: Comparison) -> float:
        """How far an interval is from the nearer bound; below 0: how far it is beyond; -infinity
        where it has no ends.
        """
        # where all is allowed, intervals may be open
        above = math.inf if low == -math.inf else each.low - low
        below = math.inf if high == math.inf else high - each.high
        return float(np.nan_to_num(np.minimum(above, below), nan=-math.inf, posinf=math.inf))

    outside = [each for each in compared if each.high <= low or each.low >= high]
    inside = [each for each in compared if room(each) > 0]
    verdict: Verdict = (
        "fails" if outside else "holds" if len(inside) == len(compared) else "inconclusive"
    )
    return Judgement(verdict, min(outside or compared, key=room))


class Stated(Protocol):
    """A claim as an experiment file states it."""

    @property
    def statement(self) -> str: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def source(self) -> str: ...
    @property
    def expression(self) -> str:
        """What is measured, as a reader would write it."""
        ...


def claims_table(title: str, found: Iterable[tuple[str, Stated, Comparison, Judgement]]) -> Table:
    """Claims of experiments, by name, and what became of each; those of others than ourselves
    first.
    """
    rows = []
    for name, claim, compared, judgement in found:
        measured = str(compared).removeprefix(f"{claim.expression} ")
        verdict = f"**{judgement.verdict}**"
        rows.append(
            (
                claim.source,
                name,
                claim.statement,
                claim.expression,
                _bounds(claim),
                measured,
                verdict,
            )
        )
    rows.sort(key=lambda row: not row[0])
    header = (
        "who says so",
        "experiment",
        "claim",
        "what is measured",
        "holds if",
        "found",
        "verdict",
    )
    return Table(title, header, rows)


def _bounds(claim: Stated) -> str:
    if not math.isfinite(claim.high):
        return f"> {claim.low:g}"
    if not math.isfinite(claim.low):
        return f"< {claim.high:g}"
    return f"{claim.low:g} to {claim.high:g}"


def verdict_table(judgements: Mapping[str, Mapping[str, Judgement]], over: str) -> Table:
    """Claim -> where it is looked at ("" if in one place) -> judgement, as a table; `over`: what
    the intervals are over.
    """
    rows = [(claim, _verdict(at), _decisive(at)) for claim, at in judgements.items()]
    header = ("claim", "verdict", "decisive or closest")
    return Table("Verdicts", header, rows, RULE.format(over=over))


def _verdict(at: Mapping[str, Judgement]) -> str:
    """One word, or what is said where: "holds at 50%; fails at 90%"."""
    places: dict[str, list[str]] = {}
    for place, judgement in at.items():
        places.setdefault(judgement.verdict, []).append(place)
    if len(places) == 1:
        return next(iter(places))
    return "; ".join(f"{verdict} at {', '.join(where)}" for verdict, where in places.items())


def _decisive(at: Mapping[str, Judgement]) -> str:
    """The comparisons that decided, each after its place."""
    return "; ".join(f"{place}{': ' * bool(place)}{each.decisive}" for place, each in at.items())
