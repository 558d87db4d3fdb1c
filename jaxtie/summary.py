"""Results -> tables: for the terminal and for `summary.md`. Imports no jax."""

import itertools
import math

import numpy as np
import pandas as pd
import xarray as xr

from jaxtie import text_summary
from jaxtie.comparison import correlation_table, sweep_table, untying_table
from jaxtie.results import is_text
from jaxtie.tables import Table, distance_rows, interval, last_step, live_pairs, number, quantiles, swept, tables, targets

SOLVED = 0.05  # nat above the best reachable loss


def final_table(results: xr.Dataset) -> Table:
    """Per arm mean and 95 % interval at the last evaluation, what is best reachable, and paired differences."""
    step = last_step(results)
    end = results.sel(eval_step=step, step=step)
    rows = []

    def add(label: str, best: str, values: xr.DataArray) -> None:
        first = values.isel(arm=0)
        paired = [interval((values.isel(arm=i) - first).values) for i in range(1, values.sizes["arm"])]
        rows.append((label, best, *[interval(values.sel(arm=arm).values) for arm in results["arm"]], *paired))

    for split in ("train", "valid"):
        for name in ("accuracy", "loss"):
            best = float(results[f"best_{name}"].sel(split=split))
            add(f"{split} {name}" + (", nat" if name == "loss" else ""), number(best), end[f"{split}_{name}"])
    for label, values in distance_rows(results).items():
        add(label, "", values.sel(step=step))
    for pair in live_pairs(results):
        first, second = pair.split("-")
        odds = end["log_odds"].sel(pair=pair)
        add(f"ln p({second})/p({first}), nat", number(float(results["theory_log_odds"].sel(pair=pair))), odds)
        add("its deviation over contexts", number(0.0), end["log_odds_deviation"].sel(pair=pair))
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
        (str(arm), f"{time:,}", *[quantiles(column.sel(arm=arm, step=time).values) for column in columns.values()])
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
            *[number(divergence[i]) for divergence in divergences.values()],
            *[interval(distance[:, i]) for distance in distances.values()],
        )
        for i, (first, second) in enumerate(pairs)
    ]
    divergences["log ratio, nat"] = np.nan_to_num(divergences["log ratio, nat"], nan=np.inf)  # never in one context
    for name, divergence in divergences.items():
        agreement = [interval(rank_agreement(divergence, distance)) for distance in distances.values()]
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
            header.append(f"{arm}: ln p({second})/p({first}) − {number(theory)}")
            columns.append(end["log_odds"].sel(arm=arm, pair=pair).values - theory)
    rows = [(str(seed), *[number(column[i]) for column in columns]) for i, seed in enumerate(results["seed"].values)]
    return Table(f"Per seed at step {step:,}", tuple(header), rows)


def shown_tables(results: xr.Dataset) -> list[Table]:
    """What a run shows at its end."""
    if is_text(results):
        return text_summary.every_table(results)[:-1]
    if swept(results):
        return [table for table in (sweep_table(results), correlation_table(results)) if table.rows]
    untying = [table for table in [untying_table(results)] if table.rows]
    return [final_table(results), course_table(results), *untying, equivalence_table(results)]


def every_table(results: xr.Dataset) -> list[Table]:
    """All tables of a run."""
    if is_text(results):
        return text_summary.every_table(results)
    return shown_tables(results) + ([] if swept(results) else [seed_table(results)])


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
            number(row.measured) + (f" ± {number(1.96 * row.standard_error)}" if row.standard_error >= 0 else ""),
            number(row.simple),
            number(row.corrected),
        )
        for row in found[(found["width"] == width) & (found["vocabulary"] == vocabulary)].itertuples()
    ]
    title = f"D {width}, n {vocabulary:,} (log n = {math.log(vocabulary):.3f}), mean over seeds and tokens ± 95 %"
    return [whole, Table(title, ("σ", "Dσ²", "variant", "measured, nat", *estimates), rows)]
