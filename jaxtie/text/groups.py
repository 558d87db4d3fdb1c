"""Groups of pairs of words that are looked at together: of one kind, and of duplicates of one
probability. Imports no jax.

What is said of a group is a mean over its pairs, and then over seeds.
"""

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr

from jaxtie.results.statistics import mean_interval
from jaxtie.results.tables import Table, arms_of, interval, last_step, number, tables_of
from jaxtie.text.pairs import PREDICTED

AS_LIKELY = 0.5  # duplicates of this probability are as likely as their words
CALLED = {
    "duplicate": "word–duplicate",
    "matched": "as frequent as word–duplicate",
    "random": "random pairs",
}


class Group(NamedTuple):
    """Pairs of one kind.

    Attributes:
      kind: as results name it.
      probability: of the duplicates that they are or are matched to; NaN of random pairs.
      label: what it is called.
      pairs: numbers of its pairs.
    """

    kind: str
    probability: float
    label: str
    pairs: np.ndarray

    @property
    def true_odds(self) -> float:
        """ln p(word) - ln p(duplicate) in every context, nats; NaN of other pairs."""
        return (
            math.log((1 - self.probability) / self.probability)
            if self.kind == "duplicate"
            else math.nan
        )

    @property
    def hypothesis(self) -> str:
        """What the distributional hypothesis says of them; nothing of pairs that are equivalent in
        no sense.
        """
        if self.kind != "duplicate":
            return ""
        return " (DH holds)" if self.probability == AS_LIKELY else " (DH fails)"

    def of(self, values: xr.DataArray) -> xr.DataArray:
        """A variable of pairs, of its own pairs alone."""
        return values.sel(kind=self.kind, drop=True).isel(pair=self.pairs)


def groups_of(results: xr.Dataset) -> list[Group]:
    """The groups of a run's pairs."""
    pairs = np.arange(results.sizes["pair"])
    known = (
        results["duplicate_probability"].values
        if "duplicate_probability" in results
        else np.full(len(pairs), AS_LIKELY)
    )
    probabilities, found = np.unique(known)[::-1], []
    for kind in map(str, results["kind"].values):
        if kind == "random":
            found.append(Group(kind, math.nan, CALLED[kind], pairs))
            continue
        for probability in probabilities.tolist():
            at = f" at {probability:g}" if len(probabilities) > 1 else ""
            label = CALLED[kind] + at
            found.append(Group(kind, probability, label, pairs[known == probability]))
    return found


def log_decay_ratio(
    results: xr.Dataset, group: Group, arm: str, table: Literal["input", "output"]
) -> xr.DataArray:
    """ln of how much is left of distances of what decay alone leaves of their start, mean over
    pairs, at the end; (seed,).
    """
    step = last_step(results)
    distance = group.of(results[f"{table}_distance"].sel(arm=arm)).astype(np.float64)
    left: Any = distance.sel(eval_step=step, drop=True) / distance.sel(eval_step=0, drop=True)
    with np.errstate(divide="ignore", invalid="ignore"):  # of members that diverged
        return np.log(left).mean("pair", skipna=False) - float(
            np.log(results["decay_factor"].sel(step=step))
        )


def at_last(results: xr.Dataset, name: str, group: Group, arm: str) -> xr.DataArray:
    """A variable of predictions, mean over the pairs that the text has places for, at the end;
    (seed,).
    """
    return (
        group.of(results[name].sel(arm=arm, eval_step=last_step(results), drop=True))
        .astype(np.float64)
        .mean("pair")
    )


def word_pairs_table(results: xr.Dataset) -> Table:
    """Every group in every table: distance, ratio to decay alone; and what predictions say of it,
    beside what is true.
    """
    rows = []
    for arm in arms_of(results):
        for label, table in tables_of(arm).items():
            for group in groups_of(results):
                distance = group.of(
                    results[f"{table}_distance"].sel(arm=arm.name, eval_step=last_step(results))
                )
                cells = [
                    interval(distance.mean("pair").values),
                    _geometric(log_decay_ratio(results, group, arm.name, table)),
                ]
                odds, deviation, swap = (
                    at_last(results, name, group, arm.name).values for name in PREDICTED
                )
                cells += [
                    interval(odds),
                    number(group.true_odds),
                    interval(deviation),
                    _in_ten_thousandths(swap),
                ]
                rows.append((label, group.label, *cells))
    seeds, step = results.sizes["seed"], last_step(results)
    over = f"mean over {seeds} seeds ± 95 %" if seeds > 1 else "one seed"
    decayed = float(results["decay_factor"].sel(step=step))
    title = (
        f"{results.attrs['experiment']}: step {step:,}, {over}; decay alone leaves"
        f" {number(decayed)} of every distance"
    )
    header = (
        "table",
        "pairs",
        "distance",
        "ratio to decay alone",
        "ln of odds, nat",
        "true",
        "its deviation",
        "swap divergence",
    )
    note = (
        "Of each seed the mean over pairs, of ratios the geometric one. Odds: how likely a model"
        " takes the first token of a pair beside the second where one of them stands; their"
        " deviation is over contexts. Swap divergence: total variation of predictions when the"
        " second token takes the place of the first."
    )
    return Table(title, header, rows, note)


def _geometric(logarithms_S: xr.DataArray) -> str:
    mean, half = mean_interval(logarithms_S.values)
    ends = (
        f" [{number(math.exp(mean - half))}, {number(math.exp(mean + half))}]"
        if np.isfinite(half)
        else ""
    )
    return number(math.exp(mean)) + ends


def _in_ten_thousandths(values_S: np.ndarray) -> str:
    mean, half = mean_interval(values_S)
    return f"{mean:.4f}" + (f" ± {half:.4f}" if np.isfinite(half) else "")
