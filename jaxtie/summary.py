"""Results -> tables: for the terminal and for `summary.md`. Imports no jax."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

PLACES = 3
SOLVED = 0.05  # nat above the best reachable loss


@dataclass(frozen=True)
class Table:
    """A titled table of strings; the first column names the row."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def markdown(self) -> str:
        lines = [f"| {' | '.join(row)} |" for row in (self.header, ("---",) * len(self.header), *self.rows)]
        return "\n".join([f"**{self.title}**", "", *lines, ""])


def mean_interval(values: np.ndarray, axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds and half the width of its 95 % confidence interval (Student's t); NaN values are left out."""
    from scipy.stats import t  # heavy

    count = np.sum(np.isfinite(values), axis=axis)
    total = np.nansum(values, axis=axis)
    mean = np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)
    spread = np.nansum((values - np.expand_dims(mean, axis)) ** 2, axis=axis)
    variance = np.divide(spread, count - 1, out=np.full(np.shape(total), np.nan), where=count > 1)
    return mean, t.ppf(0.975, np.maximum(count - 1, 1)) * np.sqrt(variance / np.maximum(count, 1))


def _number(value: float) -> str:
    return "–" if not np.isfinite(value) else f"{value:.{PLACES}f}"


def _interval(values: np.ndarray) -> str:
    mean, half = mean_interval(np.asarray(values, np.float64))
    return _number(mean) + (f" ± {_number(half)}" if np.isfinite(half) else "")


def _quantiles(values: np.ndarray) -> str:
    values = values[np.isfinite(values)]
    if not len(values):
        return "–"
    low, middle, high = np.quantile(np.asarray(values, np.float64), [0.05, 0.5, 0.95])
    return f"{_number(middle)} [{_number(low)}, {_number(high)}]"


def last_step(results: xr.Dataset) -> int:
    """The last step that every member has reached with an exact evaluation."""
    reached = np.isfinite(results["train_loss"]).all(("arm", "seed"))  # a frozen member's loss stays finite
    return int(results["eval_step"][reached].max()) if reached.any() else 0


def distance_rows(results: xr.Dataset) -> dict[str, xr.DataArray]:
    """Label -> distance (arm, seed, step), for the pairs that differ in nothing but how often they are drawn."""
    rows = {}
    for table in ("input", "output"):
        for pair in live_pairs(results):
            first, second = pair.split("-")
            rows[f"distance {pair}, {table}"] = results[f"{table}_distance"].sel(symbol=first, symbol2=second)
    return rows


def live_pairs(results: xr.Dataset) -> list[str]:
    """The pairs of which both symbols occur."""
    return [str(pair) for pair in results["pair"].values if np.isfinite(results["theory_log_odds"].sel(pair=pair))]


def targets(results: xr.Dataset) -> list[str]:
    """The symbols that can be a target, so have a place in both tables."""
    return [str(symbol) for symbol in results["symbol"].values[np.isfinite(np.diag(results["conditional_divergence"]))]]


def tables(results: xr.Dataset, arm: str) -> dict[str, str]:
    """Label -> "input" or "output": an arm's tables, one if its output embedding is its input embedding throughout."""
    values = results.sel(arm=arm)
    if np.array_equal(values["input_table"], values["output_table"], equal_nan=True):
        return {arm: "input"}
    return {f"{arm} input": "input", f"{arm} output": "output"}


def final_table(results: xr.Dataset) -> Table:
    """Per arm mean and 95 % interval at the last evaluation, what is best reachable, and paired differences."""
    step = last_step(results)
    end = results.sel(eval_step=step, step=step)
    rows = []

    def add(label: str, best: str, values: xr.DataArray) -> None:
        first = values.isel(arm=0)
        paired = [_interval((values.isel(arm=i) - first).values) for i in range(1, values.sizes["arm"])]
        rows.append((label, best, *[_interval(values.sel(arm=arm).values) for arm in results["arm"]], *paired))

    for split in ("train", "valid"):
        for name in ("accuracy", "loss"):
            best = float(results[f"best_{name}"].sel(split=split))
            add(f"{split} {name}" + (", nat" if name == "loss" else ""), _number(best), end[f"{split}_{name}"])
    for label, values in distance_rows(results).items():
        add(label, "", values.sel(step=step))
    for pair in live_pairs(results):
        first, second = pair.split("-")
        odds = end["log_odds"].sel(pair=pair)
        add(f"ln p({second})/p({first}), nat", _number(float(results["theory_log_odds"].sel(pair=pair))), odds)
        add("its deviation over contexts", _number(0.0), end["log_odds_deviation"].sel(pair=pair))
    solved = end["train_loss"] <= float(results["best_loss"].sel(split="train")) + SOLVED
    blanks = ("",) * (results.sizes["arm"] - 1)
    counts = [f"{int(solved.sel(arm=arm).sum())} of {results.sizes['seed']}" for arm in results["arm"]]
    rows.append((f"seeds within {SOLVED} nat of the best", "", *counts, *blanks))
    diverged = [str(int((results["diverged_at"].sel(arm=arm) >= 0).sum())) for arm in results["arm"]]
    if any(count != "0" for count in diverged):
        rows.append(("seeds that diverged", "0", *diverged, *blanks))
    arms = [str(arm) for arm in results["arm"].values]
    return Table(
        f"{results.attrs['experiment']}: step {step:,}, mean over {results.sizes['seed']} seeds ± 95 % confidence interval",
        ("", "reachable", *arms, *[f"{arm} − {arms[0]}, paired" for arm in arms[1:]]),
        rows,
    )


def course_table(results: xr.Dataset) -> Table:
    """Median and 5-95 % range over seeds at four times of the training."""
    total = last_step(results)
    steps = results["step"].values
    times = sorted({int(steps[np.abs(steps - total * part).argmin()]) for part in (1 / 15, 1 / 3, 2 / 3, 1)})
    columns = {"training loss, nat": results["loss"], **distance_rows(results)}
    rows = [
        (str(arm), f"{time:,}", *[_quantiles(column.sel(arm=arm, step=time).values) for column in columns.values()])
        for arm in results["arm"].values
        for time in times
    ]
    return Table("Over training: median over seeds [5 %, 95 %]", ("arm", "step", *columns), rows)


def rank_agreement(divergence_P: np.ndarray, distance_SxP: np.ndarray) -> np.ndarray:
    """Somers' D of distances given divergences, in [-1, 1], a seed each.

    Over all couples of pairs that the theory puts in an order: share in that order less share in the other. It is
    Kendall's tau but for couples of equal divergence, of which the theory says nothing: so 1 can be reached.
    """
    divergence_P = np.round(divergence_P, 9)  # rounding is not an order
    expected_PxP = (divergence_P[:, None] > divergence_P).astype(int) - (divergence_P[:, None] < divergence_P)
    found_SxPxP = np.sign(distance_SxP[:, :, None] - distance_SxP[:, None, :])
    couples = np.abs(expected_PxP).sum()
    return (expected_PxP * found_SxPxP).sum(axis=(1, 2)) / couples if couples else np.full(len(distance_SxP), np.nan)


def equivalence_table(results: xr.Dataset) -> Table:
    """How far each pair is from being equivalent, beside its distance in every table at the end; then their agreement.

    For the rank of the log ratio, two symbols that never share a context are further apart than any two that do.
    """
    measures = {
        "semantic divergence": results["semantic_divergence"],
        "conditional divergence": results["conditional_divergence"],
        "log ratio, nat": results["conditional_log_ratio"],
    }
    pairs = list(itertools.combinations(targets(results), 2))
    firsts, seconds = (xr.DataArray(list(each), dims="couple") for each in zip(*pairs))
    at_pairs = lambda matrix: matrix.sel(symbol=firsts, symbol2=seconds)
    end = results.sel(step=last_step(results))
    distances = {
        label: at_pairs(end[f"{table}_distance"].sel(arm=arm)).transpose("seed", "couple").values.astype(np.float64)
        for arm in map(str, results["arm"].values)
        for label, table in tables(results, arm).items()
    }
    divergences = {name: at_pairs(matrix).values for name, matrix in measures.items()}
    rows = [
        (
            f"{first}-{second}",
            *[_number(divergence[i]) for divergence in divergences.values()],
            *[_interval(distance[:, i]) for distance in distances.values()],
        )
        for i, (first, second) in enumerate(pairs)
    ]
    divergences["log ratio, nat"] = np.nan_to_num(divergences["log ratio, nat"], nan=np.inf)  # never in one context
    for name, divergence in divergences.items():
        agreement = [_interval(rank_agreement(divergence, distance)) for distance in distances.values()]
        rows.append((f"rank agreement with {name.removesuffix(', nat')}", "", "", "", *agreement))
    return Table(
        f"Equivalences of the process, and distances at step {last_step(results):,}", ("pair", *measures, *distances), rows
    )


def seed_table(results: xr.Dataset) -> Table:
    """Every seed: final exact training loss, and how far its log-odds are from the process's."""
    step = last_step(results)
    end = results.sel(eval_step=step)
    header, columns = ["seed"], []
    for arm in results["arm"].values:
        header.append(f"{arm}: training loss, nat")
        columns.append(end["train_loss"].sel(arm=arm).values)
        for pair in live_pairs(results):
            first, second = pair.split("-")
            theory = float(results["theory_log_odds"].sel(pair=pair))
            header.append(f"{arm}: ln p({second})/p({first}) − {_number(theory)}")
            columns.append(end["log_odds"].sel(arm=arm, pair=pair).values - theory)
    rows = [(str(seed), *[_number(column[i]) for column in columns]) for i, seed in enumerate(results["seed"].values)]
    return Table(f"Per seed at step {step:,}", tuple(header), rows)


def every_table(results: xr.Dataset) -> list[Table]:
    """All tables of a run."""
    return [final_table(results), course_table(results), equivalence_table(results), seed_table(results)]


def markdown(results: xr.Dataset) -> str:
    """The text of `summary.md`."""
    return "\n".join(
        [
            f"# {results.attrs['experiment']}",
            "",
            results.attrs["claim"],
            "",
            f"`{results.attrs['command']}`",
            "",
            *[table.markdown() for table in every_table(results)],
        ]
    )


def initial_loss_tables(found: pd.DataFrame) -> list[Table]:
    """How far each estimate of an initial loss is off, and every variant at one width and vocabulary.

    Args:
      found: a row for each measurement, as `jaxtie.initial_loss.run` gives them.
    """
    estimates = ("simple", "corrected")
    off = pd.DataFrame({name: 100 * (found[name] / found["measured"] - 1) for name in estimates})
    small = found["spread"] <= 1 + 1e-9
    rows = []
    for variant in found["variant"].unique():
        cells = [off.loc[(found["variant"] == variant) & part] for part in (small, ~small)]
        rows.append((variant, *[f"{cell[name].min():+.1f} … {cell[name].max():+.1f}" for cell in cells for name in off]))
    header = ("", *[f"{spread}: {name}" for spread in ("Dσ² ≤ 1", "Dσ² > 1") for name in estimates])
    whole = Table("Estimate / measured initial loss − 1, %, lowest and highest over the grid", header, rows)
    width, vocabulary = (sorted(found[name].unique()) for name in ("width", "vocabulary"))
    width, vocabulary = width[(2 * len(width) - 1) // 3], vocabulary[len(vocabulary) // 2]
    rows = [
        (
            str(row.deviation),
            f"{row.spread:.3g}",
            row.variant,
            _number(row.measured) + (f" ± {_number(1.96 * row.standard_error)}" if row.standard_error >= 0 else ""),
            _number(row.simple),
            _number(row.corrected),
        )
        for row in found[(found["width"] == width) & (found["vocabulary"] == vocabulary)].itertuples()
    ]
    title = f"D {width}, n {vocabulary:,} (log n = {math.log(vocabulary):.3f}), mean over seeds and tokens ± 95 %"
    return [whole, Table(title, ("σ", "Dσ²", "variant", "measured, nat", *estimates), rows)]
