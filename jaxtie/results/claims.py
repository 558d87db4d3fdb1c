"""Claims about results, the rule that judges them, and their table. Imports no jax.

A claim says between which bounds a quantity lies: of one arm, or a weighted sum over arms in which
each seed is compared with itself. It holds if the confidence interval over seeds lies wholly within
the bounds, fails if it lies wholly outside, and is inconclusive otherwise. The intervals of all
claims that are judged together are simultaneous at 95 % (Bonferroni).

The interval is that of the mean (Student's t). Quantities of a pair of symbols are judged by their
median (ranks), because one seed can dominate a mean of distances.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import sub
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import xarray as xr

from jaxtie.config import UserError, check
from jaxtie.results.gradient_by_role import early_and_later_share
from jaxtie.results.statistics import mean_interval, median_interval
from jaxtie.results.tables import Table, at_end, last_step, swept

SMALLEST_SHOWN = 0.001  # smaller values would show no digit at three decimals
# Measures of similarity that committed results may have; see `experiments/lab/similarity.py`.
SIMILARITIES = ("CKA", "order of distances", "linear map", "neighbours")
PAPER, AUTHOR = "the paper", "its author"  # sources; of the author: outside the paper
Verdict = Literal["holds", "fails", "inconclusive", "no data yet"]


class Estimate(NamedTuple):
    """An estimate between the ends of its confidence interval.

    Attributes:
      is_factor: whether these are logarithms of factors.
      seeds: number of seeds, where the text should state it.
    """

    label: str
    low: float
    middle: float
    high: float
    is_factor: bool = False
    seeds: int | None = None

    def __str__(self) -> str:
        """Return the label and the numbers."""
        return f"{self.label} {self.found}"

    @property
    def found(self) -> str:
        """The numbers without the label."""
        low, middle, high = map(self._shown, (self.low, self.middle, self.high))
        seeds = "" if self.seeds is None else f", {self.seeds:,} seed{'s' * (self.seeds != 1)}"
        ends = "(no interval)" if low == high == "–" else f"[{low}, {high}]"
        return f"{middle} {ends}{seeds}"

    def _shown(self, value: float) -> str:
        if math.isnan(value):
            return "–"
        if self.is_factor:
            return f"{math.exp(value):.2f}"
        return f"{value:+.3f}" if value == 0 or abs(value) >= SMALLEST_SHOWN else f"{value:+.1e}"


def estimate_of(
    label: str, values: np.ndarray, count: int = 1, *, by_median: bool = False
) -> Estimate:
    """Estimate the mean, or the median, of independent values, with one of `count` intervals.

    The ends are NaN, so nothing follows from them, where a value is missing (a seed that diverged)
    or there are too few.
    """
    values = np.asarray(values, np.float64)
    if by_median:
        low, middle, high = median_interval(values, error=0.05 / count)
    else:
        middle, half = map(float, mean_interval(values, error=0.05 / count))
        low, high = middle - half, middle + half
    if not np.isfinite(values).all():
        low = high = math.nan
    return Estimate(label, low, middle, high)


def judge(compared: Estimate, low: float, high: float) -> Verdict:
    """Decide whether an interval lies within (low, high); an unbounded side allows any end."""
    if compared.high <= low or compared.low >= high:
        return "fails"
    within = (low == -math.inf or compared.low > low) and (high == math.inf or compared.high < high)
    return "holds" if within else "inconclusive"


class Quantity(NamedTuple):
    """How to compute the values that a claim is about.

    Attributes:
      measure: (results, pair or group of pairs, "input" or "output") -> values with dimensions arm,
        swept names, seed; of ratios the logarithms.
      is_ratio: whether logarithms are summed, and the bounds are factors.
      of_pair: whether it is of the claim's pair of symbols; then it is judged by its median.
    """

    measure: Callable[[xr.Dataset, str, str], xr.DataArray]
    is_ratio: bool = False
    of_pair: bool = False


def _push(results: xr.Dataset, pair: str, _: str, *, role: str) -> xr.DataArray:
    updates = slice(1, last_step(results))
    pushed = results[f"{role}_push"].sel(pair=pair, step=updates, drop=True)
    return pushed.sum("step", skipna=False)


def _nearness(results: xr.Dataset, *_: str, measure: str) -> xr.DataArray:
    similarity = at_end(results["similarity"], results).sel(measure=measure, drop=True)
    return similarity.sel(table="output", drop=True) - similarity.sel(table="input", drop=True)


@dataclass(frozen=True)
class Claim:
    """One claim. A task's subclass adds `quantities`.

    Attributes:
      statement: a sentence that is true if the claim holds.
      quantity: a name in `quantities`. Of all tasks: `nearness by` a measure, how much more similar
        the tied table is to the untied output table of its seed than to the untied input table;
        `output share`, of Adam's steps on the tied table over the first fifteenth of training, or
        by how much it is larger there than afterwards; `input push` and `output push`, what that
        role adds to the logarithm of a pair's distance, see `jaxtie.training.gradient_by_role`.
      arms: weight of each term of the sum; of a single term its text. A term is the name of an arm,
        "untied", or more fully "EXPERIMENT: ARM TABLE, PAIRS". Terms of other experiments are
        compared over the seeds that all have, and the verdict states how many.
      low, high: bounds in the quantity's unit; of ratios factors.
      pair, table: of terms that name none.
      sweep_point: value of each swept name.
      against: another experiment, whose same sum is subtracted seed by seed.
      source: whose idea it is, if not ours.
      opposite: whether our hypothesis is that the claim is false.
    """

    statement: str
    quantity: str
    arms: Mapping[str, float] | str
    low: float = -math.inf
    high: float = math.inf
    pair: str = "X-Y"
    table: Literal["input", "output"] = "input"
    sweep_point: Mapping[str, float] = field(default_factory=dict)
    against: str | None = None
    source: str = ""
    opposite: bool = False

    quantities: ClassVar[Mapping[str, Quantity]] = {
        **{
            f"nearness by {name}": Quantity(partial(_nearness, measure=name))
            for name in SIMILARITIES
        },
        "output share, early": Quantity(lambda results, *_: early_and_later_share(results)[0]),
        "output share, early less later": Quantity(
            lambda results, *_: sub(*early_and_later_share(results))
        ),
        "input push": Quantity(partial(_push, role="input"), of_pair=True),
        "output push": Quantity(partial(_push, role="output"), of_pair=True),
    }

    def __post_init__(self):
        known = ", ".join(self.quantities)
        check(self.quantity in self.quantities, f"{self.quantity!r}: expected one of {known}")

    @property
    def sentence(self) -> str:
        """The statement, and whether we expect it to be false."""
        return self.statement + " (Our hypothesis is the opposite.)" * self.opposite

    @property
    def weights(self) -> Mapping[str, float]:
        """Weight of each term."""
        return {self.arms: 1.0} if isinstance(self.arms, str) else self.arms

    @property
    def others(self) -> set[str]:
        """Names of the other experiments that it needs."""
        named = {term.partition(": ")[0] for term in self.weights if ": " in term}
        return named if self.against is None else {*named, self.against}

    @property
    def expression(self) -> str:
        """The weighted sum, as a reader would write it."""
        _, is_ratio, of_pair = self.quantities[self.quantity]
        plus, minus = ("·", "÷") if is_ratio and not of_pair else ("+", "−")
        terms = []
        for term, weight in self.weights.items():
            times = "" if abs(weight) == 1 else f"{abs(weight):g} "
            terms.append(f"{plus if weight > 0 else minus} {times}{term}")
        total = " ".join(terms).removeprefix(f"{plus} ")
        of = f"{self.quantity} {self.pair}" if of_pair else self.quantity
        of += f", {self.table}" if of_pair and is_ratio else ""
        at = "".join(f", {name} {value:g}" for name, value in self.sweep_point.items())
        against = f", against {self.against}" if self.against else ""
        return f"{of}{at}: {total}{against}"

    @property
    def bounds(self) -> str:
        """The bounds as text."""
        if math.isfinite(self.low) and math.isfinite(self.high):
            return f"{self.low:g} to {self.high:g}"
        return f"> {self.low:g}" if math.isfinite(self.low) else f"< {self.high:g}"


def claim_values(
    results: xr.Dataset, claim: Claim, others: Mapping[str, xr.Dataset] = MappingProxyType({})
) -> xr.DataArray:
    """Compute the values that a claim is about, of each seed that all its experiments have.

    Raises:
      UserError: where the results lack an arm or pairs of it, or are of a sweep at a point of which
        nothing is claimed.
    """

    def of_term(term: str) -> xr.DataArray:
        experiment, _, rest = term.rpartition(": ")
        where, _, pairs = rest.partition(", ")
        arm, _, table = where.partition(" ")
        own = others[experiment] if experiment else results
        if arm not in own["arm"].values:
            whose = own.attrs.get("experiment")
            raise UserError(f"{whose}: no arm {arm}, which a claim is about: {claim.statement}")
        own = own.sel(claim.sweep_point)
        if names := ", ".join(swept(own)):
            raise UserError(f"sweep of {names}: at no value of it is claimed: {claim.statement}")
        measure = claim.quantities[claim.quantity].measure
        values = measure(own, pairs or claim.pair, table or claim.table)
        return values.sel(arm=arm, drop=True)

    total: Any = sum(weight * of_term(term) for term, weight in claim.weights.items())
    if claim.against is not None:
        total = total - claim_values(others[claim.against], replace(claim, against=None))
    return total


def judge_claims(
    claims: Sequence[Claim],
    results: xr.Dataset,
    others: Mapping[str, xr.Dataset],
    *,
    lenient: bool = False,
) -> list[tuple[Verdict, Estimate]]:
    """Judge all claims of an experiment together; "no data yet" of those not in `others`.

    `lenient`: also of claims about arms, pairs or variables that the results lack.
    """
    found: list[tuple[Verdict, Estimate]] = []
    for claim in claims:
        _, is_ratio, of_pair = claim.quantities[claim.quantity]
        values = None
        if claim.others <= others.keys():
            try:
                values = claim_values(results, claim, others)
            except (KeyError, UserError):
                if not lenient:
                    raise
        if values is None:
            nothing = Estimate(claim.expression, math.nan, math.nan, math.nan)
            found.append(("no data yet", nothing))
            continue
        compared = estimate_of(claim.expression, values.values, len(claims), by_median=of_pair)
        compared = compared._replace(is_factor=is_ratio)
        if claim.others:
            compared = compared._replace(seeds=values.sizes["seed"])
        low, high = claim.low, claim.high
        if is_ratio:
            low, high = math.log(low) if low > 0 else -math.inf, math.log(high)
        found.append((judge(compared, low, high), compared))
    return found


def claims_table(
    title: str,
    runs: Mapping[str, xr.Dataset],
    claims: Mapping[str, Sequence[Claim]],
    chosen: Mapping[str, Collection[int]] | None = None,
    *,
    lenient: bool = False,
) -> Table:
    """Make the table of the claims of some experiments, those of other people first.

    Args:
      title: of the table.
      runs: results by experiment.
      claims: all claims of each experiment, which are judged together.
      chosen: numbers of the claims to show, from 1; None: all.
      lenient: see `judge_claims`.

    Raises:
      KeyError: if there are no results of an experiment, unless all its claims are about others.
    """
    rows = []
    for name, own in claims.items():
        needed = any(": " not in term for claim in own for term in claim.weights)
        results = runs[name] if needed else runs.get(name, xr.Dataset())
        judged = judge_claims(own, results, runs, lenient=lenient)
        for number, (claim, (verdict, compared)) in enumerate(zip(own, judged), 1):
            if chosen is None or number in chosen[name]:
                cells = (name, claim.sentence, claim.expression, claim.bounds, compared.found)
                rows.append((claim.source or "ours", *cells, verdict))
    rows.sort(key=lambda row: row[0] == "ours")
    header = ("whose idea", "experiment", "claim", "quantity", "holds if", "found", "verdict")
    note = (
        "All bounds are ours. The intervals of all claims of an experiment hold together at 95 %"
        " (Bonferroni)."
    )
    return Table(title, header, rows, note)
