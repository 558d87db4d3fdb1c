"""What tables and figures of results share: numbers as text, means with intervals, what is in a dataset. Imports no jax."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from jaxtie.results import is_text

PLACES = 3


@dataclass(frozen=True)
class Table:
    """A titled table of strings; the first column names the row. A note below tells how to read it."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""

    def markdown(self) -> str:
        lines = [f"| {' | '.join(row)} |" for row in (self.header, ("---",) * len(self.header), *self.rows)]
        return "\n".join([f"**{self.title}**", "", *lines, "", *([self.note, ""] if self.note else [])])


def mean_interval(values: np.ndarray, axis: int = 0, error: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds and half the width of its 95 % confidence interval (Student's t); NaN values are left out.

    `error`: the probability that the interval misses the mean.
    """
    from scipy.stats import t  # heavy

    count = np.sum(np.isfinite(values), axis=axis)
    total = np.nansum(values, axis=axis)
    mean = np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)
    spread = np.nansum((values - np.expand_dims(mean, axis)) ** 2, axis=axis)
    variance = np.divide(spread, count - 1, out=np.full(np.shape(total), np.nan), where=count > 1)
    return mean, t.ppf(1 - error / 2, np.maximum(count - 1, 1)) * np.sqrt(variance / np.maximum(count, 1))


def number(value: float) -> str:
    """A number in a table; a dash where there is none."""
    return "–" if not np.isfinite(value) else f"{value:.{PLACES}f}"


def interval(values: np.ndarray) -> str:
    """Mean and half its 95 % confidence interval, of values over seeds."""
    mean, half = mean_interval(np.asarray(values, np.float64))
    return number(mean) + (f" ± {number(half)}" if np.isfinite(half) else "")


def quantiles(values: np.ndarray) -> str:
    """Median and 5 to 95 % range."""
    values = values[np.isfinite(values)]
    if not len(values):
        return "–"
    low, middle, high = np.quantile(np.asarray(values, np.float64), [0.05, 0.5, 0.95])
    return f"{number(middle)} [{number(low)}, {number(high)}]"


def last_step(results: xr.Dataset) -> int:
    """The last step that every member has reached with an exact evaluation."""
    losses = results["valid_loss" if is_text(results) else "train_loss"]
    if is_text(results):  # a frozen member has none; one of EXor's stays finite
        losses = losses.where(results["diverged_at"] < 0, 0)
    reached = np.isfinite(losses).all([name for name in losses.dims if name != "eval_step"])
    return int(results["eval_step"][reached].max()) if reached.any() else 0


def swept(results: xr.Dataset) -> tuple[str, ...]:
    """Names of the settings that were swept: the results' dimensions between arm and seed."""
    return tuple(map(str, results["diverged_at"].dims[1:-1]))


def settings(results: xr.Dataset, names: Sequence[str]) -> Iterator[tuple[dict[str, float], xr.Dataset]]:
    """The results at every combination of the values of some swept settings."""
    for values in itertools.product(*(results[name].values.tolist() for name in names)):
        at = dict(zip(names, values))
        yield at, results.sel(at)


def distance_rows(results: xr.Dataset) -> dict[str, xr.DataArray]:
    """Label -> distance (arm, ..., seed, step), for the pairs that differ in nothing but how often they are drawn."""
    rows = {}
    for table in ("input", "output"):
        for pair in live_pairs(results):
            first, second = pair.split("-")
            rows[f"distance {pair}, {table}"] = results[f"{table}_distance"].sel(symbol=first, symbol2=second)
    return rows


def live_pairs(results: xr.Dataset) -> list[str]:
    """The pairs of which both symbols occur, in any setting."""
    log_odds = results["theory_log_odds"]
    return [str(pair) for pair in results["pair"].values if np.isfinite(log_odds.sel(pair=pair)).any()]


def targets(results: xr.Dataset) -> list[str]:
    """The symbols that can be a target, so have a place in both tables."""
    return [str(symbol) for symbol in results["symbol"].values[np.isfinite(np.diag(results["conditional_divergence"]))]]


def tables(results: xr.Dataset, arm: str) -> dict[str, str]:
    """Label -> "input" or "output": an arm's tables, one if its output embedding is its input embedding throughout."""
    values, what = results.sel(arm=arm), "distance" if is_text(results) else "table"
    if np.array_equal(values[f"input_{what}"], values[f"output_{what}"], equal_nan=True):
        return {arm: "input"}
    return {f"{arm} input": "input", f"{arm} output": "output"}
