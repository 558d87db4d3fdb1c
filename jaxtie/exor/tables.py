"""Tables of EXor results: of one run, and of a sweep. Imports no jax."""

import itertools

import numpy as np
import xarray as xr

from jaxtie.config import Arm, number_label
from jaxtie.exor import analysis
from jaxtie.exor.analysis import distance, distance_rows, live_pairs
from jaxtie.exor.claims import measured
from jaxtie.results import statistics
from jaxtie.results.tables import (
    Table,
    arm_cells,
    arm_header,
    arms_of,
    at_end,
    embeddings_of,
    format_estimate,
    format_median,
    format_number,
    last_step,
    sweep_points,
    swept,
)

ADJUSTED = "decay-adjusted distance"
ADJUSTED_NOTE = (
    "Decay-adjusted: final divided by initial distance and by the decay factor, so 1 if only weight"
    " decay changed it."
)


def exor_tables(results: xr.Dataset) -> list[Table]:
    """Return the tables of a run or a sweep, beyond the one of its conclusion."""
    if swept(results):
        return [distances_table(results)]
    return [losses_table(results), distances_table(results)]


def _header(results: xr.Dataset) -> str:
    """Return how the title of a table of one run begins."""
    return f"{results.attrs['experiment']}: step {last_step(results):,}"


# ----- Tables of one run.


def losses_table(results: xr.Dataset) -> Table:
    """Compare the arms at the last evaluation with the best reachable values and with each other.

    Losses and accuracies have means, everything else has medians: one outlying seed can dominate
    the mean of a distance.
    """
    end, rows = results.sel(eval_step=last_step(results)), []
    for split, name in itertools.product(("train", "valid"), ("accuracy", "loss")):
        best = format_number(float(results[f"best_{name}"].sel(split=split)))
        label = f"{split} {name}{', nat' * (name == 'loss')}"
        rows.append((label, best, *arm_cells(end[f"{split}_{name}"])))
    for label, values in distance_rows(results).items():
        rows.append((label, "", *arm_cells(at_end(values, results), format_median)))
    for pair in live_pairs(results):
        labels = {odds_label(pair) + ", nat": "log_odds"}
        labels["its standard deviation over contexts"] = "log_odds_deviation"
        for label, name in labels.items():
            exact = format_number(float(results[f"theory_{name}"].sel(pair=pair)))
            rows.append((label, exact, *arm_cells(end[name].sel(pair=pair), format_median)))
    seeds, blanks = results.sizes["seed"], ("",) * (results.sizes["arm"] - 1)
    diverged = (results["diverged_at"] >= 0).sum("seed").values
    reached = analysis.has_reached_best(results).sum("seed").values
    counts = [f"{n} of {seeds - out:,}" for n, out in zip(reached, diverged)]
    rows.append((f"seeds within {analysis.SOLVED} nat of the best", "", *counts, *blanks))
    if diverged.any():
        rows.append(("seeds that diverged", "0", *map(str, diverged), *blanks))
    return Table(
        f"{_header(results)}, {seeds:,} seeds",
        ("", "best reachable", *arm_header(results)),
        rows,
        "Losses and accuracies: mean ± 95 % (Student's t). Other rows: median [95 %, by ranks; from"
        " 6 seeds on]."
        " Differences: paired by seed.",
    )


def odds_label(pair: str) -> str:
    """Name the log-odds of a pair ("X-Y")."""
    first, second = pair.split("-")
    return f"ln p({second})/p({first})"


# ----- Distances and weight decay.


def log_ratios(results: xr.Dataset, quantity: str, arm: str, pair: str, table: str) -> np.ndarray:
    """Return the logarithms of a ratio that claims are about, (seeds,)."""
    return measured(results, quantity, pair, table).sel(arm=arm).values


def factor_text(logarithms: np.ndarray) -> str:
    """Format the median of ratios and its rank interval, from their logarithms."""
    return format_estimate(*np.exp(statistics.median_interval(logarithms)))


def distances_table(results: xr.Dataset) -> Table:
    """Show final distances relative to decay and to X-A, and the effect of swaps."""
    names, biased = swept(results), any(arm.head.bias for arm in arms_of(results))
    embeddings, pairs = embeddings_of(results), live_pairs(results)
    rows, cosines = [], None
    for at, here in sweep_points(results, names):
        swap, bias = (at_end(here[name], here) for name in ("swap_divergence", "bias_odds"))
        cosines = _final_cosines(here)
        for (arm, label, table), pair in itertools.product(embeddings, pairs):
            own = {"arm": arm, "pair": pair}
            swap_S = swap.sel(own).values
            largest = np.nanquantile(swap_S, 0.95) if np.isfinite(swap_S).any() else np.nan
            cells = [
                format_median(at_end(distance(here, table, pair), here).sel(arm=arm).values),
                factor_text(log_ratios(here, "decay ratio", arm, pair, table)),
                factor_text(log_ratios(here, "reference ratio", arm, pair, table)),
                format_estimate(*statistics.median_interval(swap_S), shown="{:.1e}".format),
                f"{largest:.1e}",
            ]
            if cosines is not None:
                cells.insert(1, format_median(cosines.sel(own | {"table": table}).values))
            if biased:
                cells.append(
                    format_median(bias.sel(own).values) if Arm.parse(arm).head.bias else ""
                )
            rows.append((*map(number_label, at.values()), label, pair, *cells))
    cosine = ["cosine"] * (cosines is not None)
    header = (*names, "embedding", "pair", "distance", *cosine, ADJUSTED, "ratio to X–A")
    header = (*header, "swap divergence", "its 95th percentile", *["bias, nat"] * biased)
    title = f"{_header(results)}, median over {results.sizes['seed']:,} seeds [95 %, ranks]"
    if not names:
        title += f"; decay factor {float(at_end(results['decay_factor'], results)):.3g}"
    return Table(title, header, rows, ADJUSTED_NOTE)


def _final_cosines(results: xr.Dataset) -> xr.DataArray | None:
    """Return the cosine of the rows of each pair at the end, where it is known."""
    if "pair_cosine" in results:
        return at_end(results["pair_cosine"], results)
    if "input_table" not in results:
        return None
    last = last_step(results)
    if last not in results["table_step"]:
        return None
    return analysis.pair_cosines(results, [last]).isel(eval_step=0, drop=True)
