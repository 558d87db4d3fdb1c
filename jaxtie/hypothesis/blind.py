"""The blind test of the instrument: sources of known truth that nobody looked at before, and how often it is right of them.

It is declared before it is run: which sources, and what is counted. The instrument is as it is. What is planted in a source
at the strongest strength must be told; what is not planted must not. Pandas and NumPy; imports no jax.

What is measured comes in two tables: `KINDS`, a row for each source and kind of pairs, and `ANSWERS`, a row for each source.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxtie.hypothesis.judgement import Share
from jaxtie.hypothesis.sources import CLASSES, Plan
from jaxtie.results.statistics import mean_interval
from jaxtie.results.tables import Table

COUNTED = ("kinds.csv", "answers.csv")  # what a blind test leaves
OTHER = "none of them"  # what a pair is told to be that is taken for none of `CLASSES`
NEIGHBOURING = "neighbours in a table"  # pairs that are near in a table of A's and were not planted
KINDS_LOOKED_AT = (*CLASSES, "near neighbours", "homograph", NEIGHBOURING)
TOLD = (*CLASSES, OTHER)
DIVERGENCES = {"semantic": "S²", "conditional": "C²"}
# Of a source and a kind: how many pairs, how many of these are seen too rarely, how many are told to be what; areas under the
# curve against neighbours; how many intervals cover the exact value, as they were made when the test was declared and by the
# rule that came of it ("recovered"); medians, measured and exact.
KINDS = (
    *("source", "kind", "pairs", "too_rare", *TOLD),
    *("auc_semantic", "auc_conditional", "auc_larger", "auc_variance"),
    *(f"{sense}_{what}" for sense in DIVERGENCES for what in ("covered", "recovered", "asked", "median", "exact")),
    *("bias_median", "bias_exact", "relative_semantic", "relative_conditional"),
)
SHARE_COLUMNS = [f"{what}_{sense}" for sense in "SC" for what in ("low", "share", "high", "pairs")]
ANSWERS = (
    *("source", "verdict", *SHARE_COLUMNS, "verdict_now", *(f"{name}_now" for name in SHARE_COLUMNS)),
    *("loss_a", "loss_b", "best_loss", "processor_seconds"),
)


class BlindSource(NamedTuple):
    """A source, and what it is there for: sources of one `group` are counted together."""

    name: str
    group: str
    plan: Plan


@dataclass(frozen=True)
class BlindTest:
    """What is asked, and what is said of it before.

    Attributes:
      sources: in the order in which they are done.
      strongest: the group that is judged.
      size, steps: of the two models that are trained on each.
      sentences, length: sampled of each source, and words of each.
      recall, false: what share of each class must be told, and of neighbours at most taken for a class.
      area: under the curve, of either kind of duplicates against neighbours, at least.
      coverage: between which shares intervals of 95 % must cover 0, of equivalent pairs.
    """

    sources: tuple[BlindSource, ...]
    strongest: str
    steps: int
    sentences: int
    length: int
    size: str = "small"
    recall: float = 0.9
    false: float = 0.05
    area: float = 0.95
    coverage: tuple[float, float] = (0.9, 0.98)

    def told(self, source: BlindSource) -> str:
        """All that what is measured of a source follows from, as JSON."""
        own = {"sentences": self.sentences, "length": self.length, "size": self.size, "steps": self.steps}
        return json.dumps(source.plan._asdict() | own)


class Counted(NamedTuple):
    """What was declared, and what is measured so far: `kinds` and `answers`, see above, both with a column `group`."""

    test: BlindTest
    kinds: pd.DataFrame
    answers: pd.DataFrame


def counted(test: BlindTest, kinds: pd.DataFrame, answers: pd.DataFrame) -> Counted:
    """Measurements beside the declaration; sources that are not declared (any more) are left out."""
    group = {each.name: each.group for each in test.sources}
    of_group = [frame.assign(group=frame["source"].map(group)).dropna(subset="group") for frame in (kinds, answers)]
    return Counted(test, *of_group)


class Ratio(NamedTuple):
    """A share of pairs in several sources, with a 95 % interval that errs on the wide side.

    It is the wider one, at each end, of two: of all pairs as if they were independent (Clopper and Pearson), and of the
    sources' own shares (Student's t), as pairs of one source have the same two models.
    """

    low: float
    share: float
    high: float
    number: int

    def __str__(self) -> str:
        return f"{self.share:.1%} [{self.low:.0%}, {self.high:.0%}] of {self.number}" if self.number else "–"

    def within(self, low: float, high: float) -> str:
        """The verdict: holds if the interval is wholly between the bounds, fails if wholly beyond one, else undecided."""
        if self.high < low or self.low > high:
            return "fails"
        return "holds" if low <= self.low and self.high <= high else "undecided"


def ratio_of(success_N: Iterable[float], number_N: Iterable[float]) -> Ratio:
    """Of each source: how many did, out of how many."""
    from scipy.stats import binomtest  # heavy

    success_N, number_N = (np.nan_to_num(np.array(list(values), np.float64)) for values in (success_N, number_N))
    success_N, number_N = success_N[number_N > 0], number_N[number_N > 0]
    if not len(number_N):
        return Ratio(np.nan, np.nan, np.nan, 0)
    share, number = success_N.sum() / number_N.sum(), int(number_N.sum())
    exact = binomtest(int(success_N.sum()), number).proportion_ci(0.95, method="exact")
    _, half = mean_interval(success_N / number_N)
    half = float(np.nan_to_num(half))
    low, high = min(exact.low, max(0.0, share - half)), max(exact.high, min(1.0, share + half))
    return Ratio(float(low), float(share), float(high), number)


def _of(found: Counted, kind: str, group: str | None = None) -> pd.DataFrame:
    kinds = found.kinds[found.kinds["kind"] == kind]
    return kinds if group is None else kinds[kinds["group"] == group]


def told_table(found: Counted) -> Table:
    """What was planted by what it was told to be, all sources of a group together."""
    rows = []
    for group in dict.fromkeys(each.group for each in found.test.sources):
        for kind in KINDS_LOOKED_AT:
            own = _of(found, kind, group)
            if not (number := int(own["pairs"].sum())):
                continue
            areas = [f"{own[name].mean():.2f}" if own[name].notna().any() else "" for name in ("auc_larger", "auc_variance")]
            counts = [str(int(own[each].sum())) for each in TOLD]
            rows.append((f"{group} ({len(own)})", kind, str(number), *counts, *areas))
    header = ("sources", "planted", "pairs", *TOLD, "AUC of the larger", "AUC of the variance")
    note = (
        "Told by lines that were fixed before. Sources: how many of a group. AUC of the larger of S and C: equivalent pairs "
        "against neighbours in the tables (near neighbours among them); of the variance of S: the homograph against these "
        "and all that is planted; means over sources."
    )
    return Table("Told blindly", header, rows, note)


def growth_table(found: Counted) -> Table:
    """Measured S² and C² beside the exact ones, by group: how they grow with strength."""
    rows = []
    for kind in (*CLASSES, "near neighbours", "homograph"):
        for group in dict.fromkeys(each.group for each in found.test.sources):
            own = _of(found, kind, group)
            if not own["pairs"].sum():
                continue
            cells = []
            for sense in DIVERGENCES:
                cells.append(f"{own[f'{sense}_median'].mean():.3f} ({own[f'{sense}_exact'].mean():.3f})")
                cells += [_covered(own, sense, rule) for rule in ("covered", "recovered")]
            cells.append(f"{own['bias_median'].mean():.2f} ({own['bias_exact'].mean():.2f})")
            cells += [f"{own[f'relative_{sense}'].mean():.2f}" for sense in DIVERGENCES]
            rows.append((kind, group, *cells))
    header = ("planted", "sources", *(f"{name}{what}" for name in ("S²", "C²") for what in ("", " covered", " now")))
    header += ("|m|", "S", "C")
    note = (
        "Medians over pairs, means of these over sources; exact in brackets. Covered: share of the 95 % intervals that have "
        "the exact value, as they were made when the test was declared; now: as they are made since. S, C: beside unrelated "
        "pairs; near is below 0.1."
    )
    return Table("Measured, and exact in brackets, by strength", header, rows, note)


def _covered(own: pd.DataFrame, sense: str, rule: str) -> str:
    asked = int(own[f"{sense}_asked"].sum())
    return f"{int(own[f'{sense}_{rule}'].sum())} of {asked}" if asked else "–"


def answers_table(found: Counted) -> Table:
    """What is said of the hypothesis for each source."""
    rows = []
    for _, own in found.answers.iterrows():
        shares = []
        for when in ("", "_now"):
            low, share, high, pairs = (
                [own[f"{what}_{sense}{when}"] for sense in "SC"] for what in ("low", "share", "high", "pairs")
            )
            shares += [own[f"verdict{when}"], *(str(Share(*each[:3], int(each[3]))) for each in zip(low, share, high, pairs))]
        losses = f"{(own['loss_a'] + own['loss_b']) / 2 - own['best_loss']:.3f}"
        rows.append((own["group"], own["source"], *shares, losses, f"{own['processor_seconds']:.0f}"))
    ways = ("S → C", "C → S")
    header = ("sources", "source", "as declared", *ways, "by the lines since", *ways, "loss", "seconds")
    note = (
        "Shares of the pairs near in one sense that are so in the other: as declared, below 0.1 in both, C² as it is; since, "
        "below 0.2, C² bounded. Loss: of the two models above that of a model without error, of a text without ends of "
        "sentences, nats. Seconds of processor time for all that is asked of two trained models."
    )
    return Table("What is said of the hypothesis", header, rows, note)


def verdicts_of(found: Counted) -> list[tuple[str, str, str, str]]:
    """Rows: what must be shown, bounds, what was found, what became of it."""
    test, rows = found.test, []

    def judged(claim: str, bounds: str, ratio: Ratio, low: float, high: float) -> None:
        rows.append((claim, bounds, str(ratio), ratio.within(low, high) if ratio.number else "–"))

    for kind in CLASSES:
        own = _of(found, kind, test.strongest)
        judged(f"{kind}: told, {test.strongest}", f"≥ {test.recall:.0%}", ratio_of(own[kind], own["pairs"]), test.recall, 1)
    for group in dict.fromkeys(each.group for each in test.sources):
        own = _of(found, NEIGHBOURING, group)
        taken = ratio_of(own["pairs"] - own[OTHER], own["pairs"])
        judged(f"neighbours taken for a class, {group}", f"≤ {test.false:.0%}", taken, 0, test.false)
    for kind in CLASSES[:2]:
        areas = _of(found, kind, test.strongest)["auc_larger"].to_numpy(np.float64)
        mean, half = mean_interval(areas)
        found_is = f"{mean:.3f} ± {half:.3f} over {len(areas)} sources"
        word = "holds" if mean - half >= test.area else "fails" if mean + half < test.area else "undecided"
        rows.append((f"{kind}: AUC against neighbours, {test.strongest}", f"≥ {test.area:g}", found_is, word))
    for kind in CLASSES[:2]:
        for sense, name in DIVERGENCES.items():
            own, bounds = _of(found, kind), f"{test.coverage[0]:.0%} to {test.coverage[1]:.0%}"
            for rule, when in (("covered", "as declared"), ("recovered", "by the rule since")):
                covered = ratio_of(own[f"{sense}_{rule}"], own[f"{sense}_asked"])
                judged(f"{kind}: intervals of {name} that cover 0, {when}", bounds, covered, *test.coverage)
    return rows


def verdict_rows_table(found: Counted) -> Table:
    """What was said before, and what became of it."""
    note = (
        "Holds: the interval lies wholly within the bounds; fails: wholly beyond one; else undecided. Intervals: 95 %, the "
        "wider of Clopper and Pearson's over pairs and Student's t over sources; each by itself."
    )
    return Table("What was said before", ("what", "bounds", "found", "verdict"), verdicts_of(found), note)


BLIND_TABLES: dict[str, Callable[[Counted], Table]] = {
    "told": told_table,
    "growth": growth_table,
    "answers": answers_table,
    "verdicts": verdict_rows_table,
}
