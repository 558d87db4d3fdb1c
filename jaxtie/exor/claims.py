"""Claims about runs, as data: what is measured, and between which bounds it is said to lie. Imports
no jax.

Of runs on EXor; those about roles and tables also of runs on text that record roles.

The rule. A claim is about one number of each seed: a quantity of an arm, or a sum of it over arms
with weights, so that each seed is compared with itself. A claim holds if the interval of the
typical seed lies wholly within the claim's bounds, fails if it lies wholly outside, and is
inconclusive else. Losses are judged by their mean (Student's t), for what tying costs is a mean; so
are similarities of tables, which are bounded, and shares of what is written over many steps.
Everything else is judged by its median (ranks), for one seed of many can rule a mean of distances.
All intervals of the claims that an experiment makes are right together with 95 % (Bonferroni).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import xarray as xr

from jaxtie.config import UserError
from jaxtie.exor.analysis import is_stuck
from jaxtie.results.claims import Comparison, Judgement, compare, compare_median, judge
from jaxtie.results.gradient_by_role import early_share
from jaxtie.results.tables import last_step

Role = Literal["input", "output"]  # of a table
Quantity = Literal[
    "loss",
    "stuck share",
    "decay ratio",
    "reference ratio",
    "swap divergence",
    "fluctuation",
    "nearness by CKA",
    "nearness by order of distances",
    "nearness by linear map",
    "nearness by neighbours",
    "output share, early",
    "output share, early less later",
    "input push",
    "output push",
]
REFERENCE = ("X", "A")  # symbols that nothing makes equivalent
PAPER, AUTHOR = "the paper", "its author"  # who says so; of the author: outside the paper
# a distance so many times what decay alone leaves of it is held apart; its inverse: drawn together
FORCE = 1.25
NEARNESS = (  # beginning of a quantity; a measure of `jaxtie.results.similarity` follows
    "nearness by "
)
# beginnings of quantities that are judged by their mean
MEANS = (
    NEARNESS,
    "loss",
    "stuck share",
    "output share",
)
# judged by their logarithms; bounds are factors
RATIOS = (
    "decay ratio",
    "reference ratio",
    "fluctuation",
)


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
      statement: a sentence that is true if the claim holds.
      quantity: what is measured. At the last step `loss`, exact on the training split, nats; `stuck
        share`, of the seeds that know nothing of the parity, see `jaxtie.exor.analysis.is_stuck`;
        `decay ratio`, the distance of a pair in a table divided by what weight decay alone leaves
        of its start (1: nothing but decay, below: drawn together,
        above: held apart); `reference ratio`, the distance of a pair divided by that of X and A;
        `swap divergence`, total variation; `nearness by` a measure, by how much the tied table is
        more similar to the untied output table of its seed than to the untied input table. Of the
        last quarter `fluctuation` of a distance, see `jaxtie.exor.analysis.fluctuations`. Of roles
        `output share`, of Adam's steps on the tied table over the first fifteenth of the training,
        or by how much it is larger there than over all the rest; over the whole training `input
        push` and `output push`, what that role adds to the logarithm of a pair's distance, see
        `jaxtie.training.gradient_by_role`.
      arms: weight of each arm in the sum; of a single arm its name. An arm of another experiment is
        named "EXPERIMENT: ARM"; then seeds that all have count, and the verdict says how many.
      low, high: bounds, in the quantity's unit; of ratios, factors.
      pair, table: of distances.
      setting: where a sweep is looked at.
      against: name of another experiment, whose same sum is subtracted, seed by seed.
      source: who says so, if not we ourselves.
    """

    statement: str
    quantity: Quantity
    arms: Mapping[str, float] | str
    low: float = -math.inf
    high: float = math.inf
    pair: str = "X-Y"
    table: Role = "input"
    setting: Mapping[str, float] = field(default_factory=dict)
    against: str | None = None
    source: str = ""

    @property
    def weights(self) -> Mapping[str, float]:
        """Weight of each arm."""
        return {self.arms: 1.0} if isinstance(self.arms, str) else self.arms

    @property
    def others(self) -> set[str]:
        """Names of the other experiments that it takes."""
        named = {arm.partition(": ")[0] for arm in self.weights if ": " in arm}
        return named if self.against is None else {*named, self.against}

    @property
    def is_ratio(self) -> bool:
        """Whether logarithms are summed, and bounds are factors."""
        return self.quantity in RATIOS

    @property
    def is_judged_by_mean(self) -> bool:
        """Whether the typical seed is the mean one, not the median. Such a quantity is of no
        pair.
        """
        return self.quantity.startswith(MEANS)

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of the sum; of ratios, logarithms."""
        if not self.is_ratio:
            return self.low, self.high
        return math.log(self.low) if self.low > 0 else -math.inf, math.log(self.high)

    @property
    def expression(self) -> str:
        """What is measured, as a reader would write it."""
        shown = {
            arm: "" if abs(weight) == 1 else f"{abs(weight):g} "
            for arm, weight in self.weights.items()
        }
        terms = [
            ("+" if weight > 0 else "−") + f" {shown[arm]}{arm}"
            for arm, weight in self.weights.items()
        ]
        where = "" if self.is_judged_by_mean else f" {self.pair}"
        where += f", {self.table}" if self.is_ratio else ""
        at = "".join(f", {name} {value:g}" for name, value in self.setting.items())
        return f"{self.quantity}{where}{at}: {' '.join(terms).removeprefix('+ ')}" + (
            f", against {self.against}" if self.against else ""
        )


def drawn_together(arm: str, pair: str, table: Role = "input", source: str = "") -> Claim:
    """That less than 1 / FORCE of what decay alone leaves is left of the distance of a pair."""
    statement = _of_force(arm, pair, "drawn together", table)
    return Claim(
        statement, "decay ratio", arm, high=1 / FORCE, pair=pair, table=table, source=source
    )


def held_apart(arm: str, pair: str, table: Role = "input", source: str = "") -> Claim:
    """That more than FORCE times what decay alone leaves is left of the distance of a pair."""
    statement = _of_force(arm, pair, "held apart", table)
    return Claim(statement, "decay ratio", arm, low=FORCE, pair=pair, table=table, source=source)


def _of_force(arm: str, pair: str, seen: str, table: str) -> str:
    tied = arm.partition("+")[0] == "tied"
    return (
        f"{arm.capitalize()}, {pair.replace('-', ' and ')} are"
        f" {seen}{'' if tied else f' in the {table} table'}."
    )


PAPERS_PICTURE = (  # of a process whose zeros are not equally likely, and whose ones are
    drawn_together("untied", "X-Y", source=PAPER),
    drawn_together("untied", "A-B", source=PAPER),
    held_apart("untied", "X-Y", "output", PAPER),
    drawn_together("untied", "A-B", "output", PAPER),
    held_apart("tied", "X-Y", source=PAPER),
    drawn_together("tied", "A-B", source=PAPER),
)


def measured(results: xr.Dataset, quantity: Quantity, pair: str, table: str) -> xr.DataArray:
    """A quantity of what is kept of a run: (arm, swept settings, seed); of ratios the logarithm."""
    if quantity == "loss":
        return at_end(results["train_loss"], results)
    if quantity == "stuck share":
        return is_stuck(results)
    if quantity == "fluctuation":
        own = results["fluctuation"].sel(pair=pair, table=table, drop=True)
        return xr.apply_ufunc(np.log, own)
    if quantity == "swap divergence":
        return at_end(results["swap_divergence"], results).sel(pair=pair, drop=True)
    step = last_step(results)
    if quantity.startswith(NEARNESS):
        similarity = at_end(results["similarity"], results).sel(
            measure=quantity.removeprefix(NEARNESS), drop=True
        )
        return similarity.sel(table="output", drop=True) - similarity.sel(table="input", drop=True)
    if quantity.startswith("output share"):
        early, later = early_share(results, step)
        return early if quantity == "output share, early" else early - later
    if quantity.endswith("push"):
        pushed = results[quantity.replace(" ", "_")].sel(pair=pair, step=slice(1, step), drop=True)
        return pushed.sum("step", skipna=False)

    def distance(symbols: Sequence[str], at: int) -> xr.DataArray:
        first, second = symbols
        return (
            results[f"{table}_distance"]
            .sel(symbol=first, symbol2=second, step=at, drop=True)
            .astype(np.float64)
        )

    own = distance(pair.split("-"), step)
    if quantity == "reference ratio":
        return xr.apply_ufunc(np.log, own / distance(REFERENCE, step))
    decayed = results["decay_factor"].sel(step=step, drop=True)
    return xr.apply_ufunc(np.log, own / (distance(pair.split("-"), 0) * decayed))


def at_end(values: xr.DataArray, results: xr.Dataset) -> xr.DataArray:
    """A variable of the results, or of what was kept of them, at the last step."""
    steps = next(name for name in values.dims if str(name).endswith("step"))
    return values.sel({steps: last_step(results)}, drop=True)


def claimed(
    results: xr.Dataset, claim: Claim, others: Mapping[str, xr.Dataset] = MappingProxyType({})
) -> xr.DataArray:
    """What a claim is about, of each seed that all its experiments have.

    Raises:
      UserError: where the results lack an arm of it.
    """

    def of_arm(name: str) -> xr.DataArray:
        experiment, _, arm = name.rpartition(": ")
        own = others[experiment] if experiment else results
        if arm not in own["arm"].values:
            whose = own.attrs.get("experiment")
            raise UserError(f"{whose}: no arm {arm}, of which is claimed: {claim.statement}")
        values = measured(own, claim.quantity, claim.pair, claim.table)
        return values.sel(claim.setting).sel(arm=arm, drop=True)

    total: Any = sum(weight * of_arm(arm) for arm, weight in claim.weights.items())
    return total


def judge_claim(
    claim: Claim, results: xr.Dataset, others: Mapping[str, xr.Dataset], count: int
) -> tuple[Comparison, Judgement]:
    """What becomes of a claim, one of `count` that are made together; `others`: results by name of
    experiment.
    """
    values = claimed(results, claim, others)
    if claim.against is not None:
        # xarray: of the seeds that both have
        values = values - claimed(others[claim.against], claim)
    make = compare if claim.is_judged_by_mean else compare_median
    compared = make(claim.expression, values.values, count)._replace(is_factor=claim.is_ratio)
    if any(": " in arm for arm in claim.weights):
        compared = compared._replace(seeds=values.sizes["seed"])
    return compared, judge([compared], *claim.bounds)


def judge_claims(
    claims: Sequence[Claim], results: xr.Dataset, others: Mapping[str, xr.Dataset]
) -> list[tuple[Claim, Comparison, Judgement]]:
    """What becomes of all claims of an experiment; those that take another experiment wait until it
    is there.
    """
    ready = [claim for claim in claims if claim.others <= others.keys()]
    return [(claim, *judge_claim(claim, results, others, len(claims))) for claim in ready]
