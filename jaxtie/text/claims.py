"""Claims about runs on text, as data: what is measured, and between which bounds it is said to lie.
Imports no jax.

The rule. A claim is about one number of each seed: a quantity of an arm and a group of pairs, or a
sum of it with weights, so that each seed is compared with itself. A claim holds if the interval of
the mean seed (Student's t) lies wholly within the claim's bounds, fails if it lies wholly outside,
and is inconclusive else. All intervals of the claims that an experiment makes are right together
with 95 % (Bonferroni). Ratios are judged by their logarithms; bounds are factors then.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import xarray as xr

from jaxtie.config import UserError
from jaxtie.results.claims import Comparison, Judgement, claims_table, compare, judge
from jaxtie.results.tables import Table, last_step
from jaxtie.text.analysis import Group, at_last, groups_of, log_decay_ratio

MeasuredOnText = Literal["validation loss", "decay ratio", "error of log-odds", "swap divergence"]
OF_PAIRS = ("decay ratio", "error of log-odds", "swap divergence")
AS_RATIOS = ("decay ratio", "swap divergence")
FARTHER = 1.25  # a distance so many times another is farther; its inverse: nearer
KNOWN = 0.2  # nat; log-odds that are off by less are known


class Cell(NamedTuple):
    """An arm, pairs of it by their `kind`, "duplicate", "matched" or "random", and their
    probability, and a table.
    """

    arm: str
    probability: float = math.nan
    kind: str = "duplicate"
    table: Literal["input", "output"] = "input"


@dataclass(frozen=True)
class TextClaim:
    """One claim.

    Attributes:
      statement: a sentence that is true if the claim holds.
      quantity: at the last step `validation loss`, nats; `decay ratio`, the distance of a group's
        pairs divided by what weight decay alone leaves of its start, geometric mean over pairs;
        `error of log-odds`, mean over duplicates of by how much ln p(word) / p(duplicate) is above
        the true one, nats; `swap divergence`, mean over pairs of the total variation of predictions
        when one is put for the other in a context.
      of: weight of each cell in the sum.
      low, high: bounds, in the quantity's unit; of ratios, factors.
      source: who says so, if not we ourselves.
    """

    statement: str
    quantity: MeasuredOnText
    of: Mapping[Cell, float]
    low: float = -math.inf
    high: float = math.inf
    source: str = ""

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of the sum; of ratios, logarithms."""
        if self.quantity not in AS_RATIOS:
            return self.low, self.high
        return math.log(self.low) if self.low > 0 else -math.inf, math.log(self.high)

    @property
    def expression(self) -> str:
        """What is measured, as a reader would write it."""
        over, under = (
            [self._shown(cell) for cell, weight in self.of.items() if sign * weight > 0]
            for sign in (1, -1)
        )
        minus = " ÷ " if self.quantity in AS_RATIOS else " − "
        return f"{self.quantity}: {minus.join([' · '.join(over), *under])}"

    def _shown(self, cell: Cell) -> str:
        if self.quantity not in OF_PAIRS:
            return cell.arm
        where = (
            f" {cell.table}"
            if self.quantity == "decay ratio" and not cell.arm.startswith("tied")
            else ""
        )
        kind = {"duplicate": "duplicates at", "matched": "as frequent as at"}.get(cell.kind)
        return f"{cell.arm}{where}, " + (f"{kind} {cell.probability:g}" if kind else "random pairs")


def of_cell(results: xr.Dataset, quantity: MeasuredOnText, cell: Cell) -> np.ndarray:
    """A quantity of what is kept of a run, of each seed; of ratios the logarithm.

    Raises:
      UserError: where the run has no such arm or pairs.
    """
    if cell.arm not in results["arm"].values:
        raise UserError(
            f"{results.attrs.get('experiment')}: no arm {cell.arm}, of which is claimed"
        )
    if quantity == "validation loss":
        return (
            results["valid_loss"]
            .sel(arm=cell.arm, eval_step=last_step(results))
            .values.astype(np.float64)
        )
    group = _group(results, cell)
    if quantity == "decay ratio":
        return log_decay_ratio(results, group, cell.arm, cell.table).values
    if quantity == "error of log-odds":
        return at_last(results, "log_odds", group, cell.arm).values - group.true_odds
    return np.log(at_last(results, "swap_divergence", group, cell.arm).values)


def _group(results: xr.Dataset, cell: Cell) -> Group:
    for group in groups_of(results):
        if group.kind == cell.kind and (
            group.probability == cell.probability or math.isnan(group.probability)
        ):
            return group
    raise UserError(
        f"{results.attrs.get('experiment')}: no pairs of kind {cell.kind} at {cell.probability:g}"
    )


def judge_text_claims(
    claims: Sequence[TextClaim], results: xr.Dataset
) -> list[tuple[TextClaim, Comparison, Judgement]]:
    """What becomes of all claims of an experiment."""
    found = []
    for claim in claims:
        values_S = sum(
            (weight * of_cell(results, claim.quantity, cell) for cell, weight in claim.of.items()),
            np.zeros(()),
        )
        compared = compare(claim.expression, values_S, len(claims))._replace(
            is_factor=claim.quantity in AS_RATIOS
        )
        found.append((claim, compared, judge([compared], *claim.bounds)))
    return found


def text_claims_table(
    runs: Mapping[str, xr.Dataset], claims: Mapping[str, Sequence[TextClaim]]
) -> Table:
    """Every claim of these experiments, those of others first. KeyError where there are no data of
    one.
    """
    found = [
        (name, *judged)
        for name, own in claims.items()
        for judged in judge_text_claims(own, runs[name])
    ]
    return claims_table("Claims about text, and what became of them", found)


def claims_of_duplicates(even: float, rare: float, midway: str) -> tuple[TextClaim, ...]:
    """What is said of words with duplicates that are as likely as they, and with others that are
    rarer.

    Args:
      even, rare: probabilities of the two; `even` is ½.
      midway: name of the arm that is untied midway.
    """
    odds = round((1 - rare) / rare)

    def nearer(
        arm: str, probability: float, table: Literal["input", "output"], source: str = ""
    ) -> TextClaim:
        where = f" in the {table} table" if arm == "untied" else ""
        statement = (
            f"{arm.capitalize()}, a word and its duplicate at {probability:g} end nearer{where}"
            " than tokens as frequent."
        )
        cells = {
            Cell(arm, probability, table=table): 1.0,
            Cell(arm, probability, "matched", table): -1.0,
        }
        return TextClaim(statement, "decay ratio", cells, high=1 / FARTHER, source=source)

    def apart(arm: str, table: Literal["input", "output"]) -> TextClaim:
        where = f" in the {table} table" if arm == "untied" else ""
        statement = (
            f"{arm.capitalize()}, duplicates that are {odds} times rarer stay farther{where} than"
            " those as likely."
        )
        cells = {Cell(arm, rare, table=table): 1.0, Cell(arm, even, table=table): -1.0}
        return TextClaim(statement, "decay ratio", cells, low=FARTHER)

    biased = {
        Cell("tied+bias", rare): 1.0,
        Cell("tied+bias", even): -1.0,
        Cell("tied", rare): -1.0,
        Cell("tied", even): 1.0,
    }
    swaps = {
        Cell("tied", rare): 1.0,
        Cell("tied", even): -1.0,
        Cell("untied", rare): -1.0,
        Cell("untied", even): 1.0,
    }
    return (
        nearer("tied", even, "input", "the paper"),
        nearer("untied", even, "input", "the paper"),
        nearer("untied", even, "output", "the paper"),
        apart("tied", "input"),
        apart("untied", "output"),
        nearer("untied", rare, "input"),
        TextClaim(
            "A bias takes over what holds rarer duplicates apart, tied.",
            "decay ratio",
            biased,
            high=1 / FARTHER,
        ),
        TextClaim(
            "Untied midway, rarer duplicates end nearer in the input table than in the tied one.",
            "decay ratio",
            {Cell(midway, rare): 1.0, Cell("tied", rare): -1.0},
            high=1 / FARTHER,
        ),
        *(
            TextClaim(
                f"{arm.capitalize()}, the odds of a word and its rarer duplicate are known to"
                f" within {KNOWN:g} nat.",
                "error of log-odds",
                {Cell(arm, rare): 1.0},
                -KNOWN,
                KNOWN,
            )
            for arm in ("tied", "untied")
        ),
        TextClaim(
            "Tied, a rarer duplicate moves predictions less than half as much as a token as"
            " frequent.",
            "swap divergence",
            {Cell("tied", rare): 1.0, Cell("tied", rare, "matched"): -1.0},
            high=0.5,
        ),
        TextClaim(
            "Tied, rarer duplicates are farther from one meaning than untied.",
            "swap divergence",
            swaps,
            low=1.0,
        ),
        TextClaim(
            "A bias lowers the tied loss.",
            "validation loss",
            {Cell("tied+bias"): 1.0, Cell("tied"): -1.0},
            high=0,
        ),
    )
