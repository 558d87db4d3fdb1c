"""What a grid over widths measured -> prices, verdicts, what to do at which width, and the figure. Imports no jax.

Measured are, at each point, the loss of each arm and seed at its own learning rate (`GRID_LOSSES`) and what was tried
(`GRID_RATES`). The price of an arm is its loss less that of two tables, each seed with itself.

Shapes: S seeds.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from jaxtie.results.plots import Picture, coloured, subplots
from jaxtie.results.statistics import mean_interval
from jaxtie.results.tables import Table, number
from jaxtie.results.verdicts import Judgement, compare, judge
from jaxtie.text.declaration import Corpus, TextExperiment
from jaxtie.text.tuned import TunedRun
from jaxtie.text.tuned_results import TRIED_RATES, best_rates, shown_rate
from jaxtie.text.width_grid import (
    ALL_ARMS,
    ONE,
    ONE_BIASED,
    TWO,
    TWO_LATER,
    WIDER,
    GridPoint,
    PriceClaim,
    WidthGrid,
)

GRID_FILES = ("grid-losses.csv", "grid-rates.csv")
GRID_LOSSES = ("vocabulary", "width", "arm", "seed", "rate", "parameters", "steps", "loss", "unigram_loss", "bigram_loss")
GRID_RATES = ("vocabulary", "width", *TRIED_RATES)
TIE, TIE_BIASED, TIE_THEN_UNTIE, TWO_TABLES, UNDECIDED = (
    "tie", "tie, with an output bias", "tie, then untie", "two tables", "undecided"
)  # fmt: skip
PRICES_CAPTION = (
    "What one table costs beside two, over the width of the model, a panel for each vocabulary: without an output bias, with "
    "one, untied halfway, and of a wider model with as many parameters, for as many tokens or operations. Mean over seeds "
    "with its 95 % interval; the margin is grey"
)


class GridPrices:
    """All that was measured, and what was declared."""

    def __init__(self, grid: WidthGrid, losses: pd.DataFrame, rates: pd.DataFrame):
        self.grid, self.losses, self.rates = grid, losses, rates

    @cached_property
    def _rows(self) -> Mapping[tuple, pd.DataFrame]:
        by_arm = self.losses.sort_values("seed").groupby(["vocabulary", "width", "arm"])
        return {key: own for key, own in by_arm}

    @property
    def points(self) -> list[GridPoint]:
        """Those that are measured, in the order of the declaration."""
        return [point for point in self.grid.points if (*point, TWO) in self._rows]

    @property
    def undeclared(self) -> list[str]:
        """Names of points that are measured and not declared."""
        points = (
            GridPoint(*point) for point in self.losses[["vocabulary", "width"]].drop_duplicates().itertuples(index=False)
        )
        return [point.name for point in points if point not in self.grid.points]

    def of(self, point: GridPoint, arm: str, column: str = "loss") -> np.ndarray:
        """A column of an arm's seeds, in their order; S."""
        return self._rows[(*point, arm)][column].to_numpy()

    def less(self, point: GridPoint, arm: str, other: str = TWO) -> np.ndarray:
        """By how much an arm loses more than another, each seed with itself, nats; S."""
        return self.less_by_seed(point, arm, other).to_numpy()

    def less_by_seed(self, point: GridPoint, arm: str, other: str = TWO) -> pd.Series:
        """The same, seed -> nats; of the seeds that both have."""
        return _paired(*(self._rows[(*point, each)].set_index("seed")["loss"] for each in (arm, other)))

    def rate(self, point: GridPoint, arm: str) -> float:
        """That an arm was trained at."""
        return float(self.of(point, arm, "rate")[0])


def _paired(one: pd.Series, other: pd.Series) -> pd.Series:
    """Their difference, of the seeds that both have; NaN where one diverged."""
    both = one.index.intersection(other.index)
    return one[both] - other[both]


def chosen_rates(rates: pd.DataFrame, point: GridPoint) -> dict[str, float]:
    """The rate of each arm that was tried at a point."""
    return best_rates(_tried_at(rates, point))


def _tried_at(rates: pd.DataFrame, point: GridPoint) -> pd.DataFrame:
    return rates[(rates["vocabulary"] == point.vocabulary) & (rates["width"] == point.width)]


def measured_runs(prices: GridPrices, declared: TextExperiment) -> Iterator[tuple[str, TunedRun]]:
    """Every run at the points that are measured, by the point's name; of no text, which is the reader's."""
    for point in prices.points:
        chosen = chosen_rates(prices.rates, point)
        for run in (
            *prices.grid.trials(declared, point, Corpus()),
            *prices.grid.finals(declared, point, Corpus(), chosen),
        ):
            yield point.name, run


class LookedAt(NamedTuple):
    """Where a claim is looked at: which vocabulary, or difference of two, and which width, or difference of two."""

    vocabulary: str
    width: str


def _differences(prices: GridPrices, claim: PriceClaim) -> Iterator[tuple[LookedAt, np.ndarray, int]]:
    """Where a claim is looked at, its values over seeds, and at how many places it is looked at when all is measured."""
    grid, measured = prices.grid, set(prices.points)
    if claim.at == "every point":
        pairs = {LookedAt(f"{point.vocabulary:,}", str(point.width)): (point,) for point in grid.points}
    elif claim.at == "narrowest less widest":
        ends = grid.widths[0], grid.widths[-1]
        pairs = {LookedAt(f"{v:,}", _of_two(ends)): tuple(GridPoint(v, width) for width in ends) for v in grid.vocabularies}
    else:
        ends = grid.vocabularies[-1], grid.vocabularies[0]
        pairs = {LookedAt(_of_two(ends), str(width)): tuple(GridPoint(v, width) for v in ends) for width in grid.widths}
    for place, points in pairs.items():
        if set(points) <= measured:
            first, *rest = (prices.less_by_seed(point, claim.arm, claim.other) for point in points)
            yield place, (_paired(first, rest[0]) if rest else first).to_numpy(), len(pairs)


def _of_two(ends: tuple[int, int]) -> str:
    return f"{ends[0]:,} − {ends[1]:,}"


def judge_price_claims(prices: GridPrices) -> dict[PriceClaim, dict[LookedAt, Judgement]]:
    """Claim -> where it is looked at -> what became of it, as far as there is something measured.

    The intervals of one claim, at all the places where it is looked at, are right together with 95 %, whether all of these
    are measured yet or not.
    """
    found: dict[PriceClaim, dict[LookedAt, Judgement]] = {}
    for claim in prices.grid.claims:
        for place, values_S, count in _differences(prices, claim):
            found.setdefault(claim, {})[place] = judge([compare("", values_S, count)], claim.low, claim.high)
    return found


def advice_at(prices: GridPrices, point: GridPoint) -> str:
    """What to do at a point, by intervals that are right together at all points with 95 %.

    One table if its price is below the margin; else with an output bias if that one's is; if both are above, untied halfway
    if that costs less than the margin, else two tables from the start. Undecided where the margin lies within an interval.
    """
    margin, count = prices.grid.margin, len(prices.grid.points)
    plain, biased, later = (compare("", prices.less(point, arm), count) for arm in (ONE, ONE_BIASED, TWO_LATER))
    if plain.high < margin:
        return TIE
    if biased.high < margin:
        return TIE_BIASED
    if not (plain.low > margin and biased.low > margin):
        return UNDECIDED
    return TIE_THEN_UNTIE if later.high < margin else TWO_TABLES


def grid_prices_table(prices: GridPrices) -> Table:
    """Every point: what two tables lose, what everything else costs beside them, and what to do."""
    rows = []
    for point in prices.points:
        counts = [int(prices.of(point, arm, "parameters")[0]) for arm in (ONE, TWO)]
        below = float(prices.of(point, TWO, "bigram_loss")[0]) - prices.of(point, TWO).mean()
        shown = [_signed(prices.less(point, arm)) for arm in ALL_ARMS if arm != TWO]
        saved = f"{counts[1]:,}, {1 - counts[0] / counts[1]:.0%}"
        own = (f"{point.vocabulary:,}", str(point.width), saved, number(prices.of(point, TWO).mean()), f"{below:+.3f}")
        rows.append((*own, *shown, advice_at(prices, point)))
    header = ("vocabulary", "width", "parameters of two tables, saved by one", f"loss, {TWO}", "below bigrams")
    arms = tuple(f"{arm} − {TWO}" for arm in ALL_ARMS if arm != TWO)
    seeds = int(prices.losses.groupby(["vocabulary", "width", "arm"]).size().max())
    note = (
        f"Nats; mean over {seeds} seeds ± 95 % (Student's t), each seed with itself. What to do follows from intervals that "
        f"are right at all {len(prices.grid.points)} points together; a price below {prices.grid.margin:g} nat is none."
    )
    title = f"What one table costs, {len(rows)} of {len(prices.grid.points)} points"
    return Table(title, (*header, *arms, "what to do"), rows, note)


def _signed(values_S: np.ndarray) -> str:
    mean, half = mean_interval(values_S)
    if not np.isfinite(mean):
        return "–"
    return (
        f"{mean:+.4f}" + (f" ± {half:.4f}" if np.isfinite(half) else "") + " (some diverged)" * bool(np.isnan(values_S).any())
    )


def price_verdict_table(prices: GridPrices) -> Table:
    """The claims, and what became of them: a row for each vocabulary, a column for each width."""
    grid, rows = prices.grid, []
    columns = [*map(str, grid.widths), _of_two((grid.widths[0], grid.widths[-1]))]
    for claim, at in judge_price_claims(prices).items():
        bound = f"< {claim.high:g}" if math.isfinite(claim.high) else f"> {claim.low:g}"
        for vocabulary in dict.fromkeys(place.vocabulary for place in at):
            own = [at.get(LookedAt(vocabulary, column)) for column in columns]
            cells = [f"**{each.verdict}**{each.decisive}" if each else "" for each in own]
            rows.append((claim.statement, f"{claim.arm} − {claim.other} {bound}", vocabulary, *cells))
    header = ("claim", "holds if", "vocabulary", *(f"width {column}" for column in columns))
    note = (
        "At each place a claim holds if the interval of the mean seed (Student's t) lies wholly within the bound, fails if "
        "wholly beyond, else is undecided. All intervals of one claim are right together with 95 % (Bonferroni). Nats."
    )
    return Table("What was claimed of one table, and what became of it", header, rows, note)


def grid_rates_table(prices: GridPrices) -> Table:
    """Each arm's own learning rate, and by how much the next best one lost more; a star at either end of what was tried."""
    rates, rows = prices.rates, []
    tried = [arm for arm in ALL_ARMS if arm in set(rates["arm"])]
    for point in prices.points:
        at_point = _tried_at(rates, point)
        cells = [shown_rate(at_point[at_point["arm"] == arm]) for arm in tried]
        rows.append((f"{point.vocabulary:,}", str(point.width), *cells))
    shown = "; ".join(f"{width}: {', '.join(f'{rate:g}' for rate in own)}" for width, own in prices.grid.rates.items())
    note = (
        f"Tried, by width: {shown}; on seed {prices.grid.trial_seed} and the half of the validation text "
        f"that no verdict sees. Behind the rate: how much more the next best one lost, nats. A star: an end of "
        f"what was tried. {WIDER.capitalize()}: rates lower by as many times as it is wider."
    )
    return Table("Learning rates", ("vocabulary", "width", *tried), rows, note)


def draw_grid_prices(prices: GridPrices) -> Figure:
    """Prices over widths, a panel for each vocabulary."""
    vocabularies = prices.grid.vocabularies
    figure, (panels,) = subplots(1, len(vocabularies), (5.4 * len(vocabularies), 4.2), sharey=True)
    for axes, vocabulary in zip(panels, vocabularies):
        _draw_vocabulary(axes, prices, vocabulary)
    panels[0].set_ylabel(f"loss − loss of {TWO}, nat")
    shown = max((axes.get_legend_handles_labels() for axes in panels), key=lambda found: len(found[1]))
    figure.legend(*shown, loc="outside lower center", ncols=len(ALL_ARMS), fontsize=8)
    figure.suptitle("What one table costs, at each arm's own learning rate: mean over seeds and 95 % interval", fontsize=11)
    return figure


def _draw_vocabulary(axes: Axes, prices: GridPrices, vocabulary: int) -> None:
    widths = prices.grid.widths
    points = [point for point in prices.points if point.vocabulary == vocabulary]
    margin = prices.grid.margin
    axes.axhspan(-margin, margin, color="grey", alpha=0.3, linewidth=0, label=f"less than {margin:g} nat")
    axes.axhline(0, color="black", linewidth=0.8)
    arms = [arm for arm in ALL_ARMS if arm != TWO]
    for number_of, (colour, arm) in enumerate(coloured(arms)):
        if not points:
            continue
        found = [mean_interval(prices.less(point, arm)) for point in points]
        beside = 2 ** (0.08 * (number_of - (len(arms) - 1) / 2))  # so that intervals do not hide each other
        x = [point.width * beside for point in points]
        means, halves = ([pair[i] for pair in found] for i in (0, 1))
        line = "--" if arm == ONE_BIASED else "-"  # it runs along the one without
        axes.errorbar(x, means, halves, color=colour, label=arm, linestyle=line, marker="o", markersize=3.5, capsize=2.5)
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(title=f"vocabulary {vocabulary:,}", xlabel="width", xlim=(widths[0] / 1.25, widths[-1] * 1.25))


def grid_pictures(prices: GridPrices) -> dict[str, Picture]:
    """File name -> figure."""
    return {"prices": Picture(PRICES_CAPTION, lambda: draw_grid_prices(prices))}


def joined_grids(kept: GridPrices, further: GridPrices) -> GridPrices:
    """What was measured at some points, or of some seeds, with what was measured at others; of both, the latter.

    A point tries all of its rates anew, so those that were tried there before do not stay.

    Raises:
      ValueError: where they are of different texts, as far as one vocabulary tells, or an arm has another learning rate,
        other steps or other parameters in each.
    """
    point = ["vocabulary", "width"]

    def joined(one: pd.DataFrame, other: pd.DataFrame, *columns: str) -> pd.DataFrame:
        both = pd.concat([one, other]).drop_duplicates([*point, *columns], keep="last")
        return both.sort_values(point, kind="stable", ignore_index=True)

    losses = joined(kept.losses, further.losses, "arm", "seed")
    for what, column, groups in (
        ("loss of frequencies alone, so in text", "unigram_loss", ["vocabulary"]),
        ("learning rate", "rate", [*point, "arm"]),
        ("number of steps", "steps", [*point, "arm"]),
        ("number of parameters", "parameters", [*point, "arm"]),
    ):
        counts = losses.groupby(groups)[column].nunique()
        if (counts > 1).any():
            raise ValueError(f"they differ in {what}, at {', '.join(map(str, counts[counts > 1].index))}")
    anew = pd.MultiIndex.from_frame(kept.rates[point]).isin(pd.MultiIndex.from_frame(further.rates[point]))
    return GridPrices(kept.grid, losses, joined(kept.rates[~anew], further.rates, "arm", "rate"))


def read_grid(grid: WidthGrid, *files: Path) -> GridPrices:
    """What was measured, from `GRID_FILES`."""
    return GridPrices(grid, *(pd.read_csv(file) for file in files))


GRID_TABLES: dict[str, Callable[[GridPrices], Table]] = {
    "prices": grid_prices_table,
    "verdicts": price_verdict_table,
    "rates": grid_rates_table,
}
