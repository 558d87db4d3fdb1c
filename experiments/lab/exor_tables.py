"""Tables of committed runs on EXor: equivalences, correlations over a sweep, the mask itself."""

import dataclasses
import itertools
import math

import numpy as np
import xarray as xr

from jaxtie.config import names_of
from jaxtie.exor import analysis
from jaxtie.exor.analysis import EXCESS, distance, live_pairs
from jaxtie.results.tables import (
    Column,
    Table,
    arms_of,
    at_end,
    embeddings_of,
    format_mean,
    format_median,
    format_number,
    last_step,
    reference_arm,
    swept,
)

MASK_STEPS = (0, 100, 500, 1_000, 2_000, 10_000)


def mask_table(results: xr.Dataset) -> Table:
    """Show how likely the mask itself is predicted at the masked position, over training."""
    p, arms = results["mask_probability"], names_of(arms_of(results))
    columns = [Column("arm", arms)]
    for step in MASK_STEPS:
        if step in results["eval_step"]:
            values = [p.sel(arm=arm, eval_step=step).values for arm in arms]
            columns.append(Column(f"step {step:,}", values, format_median))
    note = "Expected probability on the training split: median over seeds [95 %, by ranks]."
    return Table.of("Probability of the mask itself", columns, note)


def targets(results: xr.Dataset) -> list[str]:
    """Return the symbols that can be a target."""
    occurs = np.isfinite(np.diag(results["conditional_divergence"]))
    return list(map(str, results["symbol"].values[occurs]))


def equivalence_table(results: xr.Dataset) -> Table:
    """Compare how far pairs are from equivalent with their final distances; add rank agreements.

    The labels E and D, if their rows were recorded, have a row but no part in the agreements: they
    are never a target, so their conditional divergence is 0. In the rank of the log ratio, symbols
    that never share a context come last.
    """
    couples = list(itertools.combinations(targets(results), 2))
    count = len(couples)
    if {"E", "D"} <= {*results["symbol"].values}:
        couples.append(("E", "D"))
    firsts, seconds = (xr.DataArray(list(each), dims="couple") for each in zip(*couples))
    at = {"symbol": firsts, "symbol2": seconds}
    names = {
        "semantic divergence": "semantic_divergence",
        "conditional divergence": "conditional_divergence",
        "log ratio, nat": "conditional_log_ratio",
    }
    divergences = {label: results[name].sel(at).values for label, name in names.items()}
    divergences["conditional divergence"] = np.nan_to_num(divergences["conditional divergence"])
    end = results.sel(step=last_step(results))
    distances = {
        label: end[f"{table}_distance"].sel(at | {"arm": arm}).transpose("couple", "seed").values
        for arm, label, table in embeddings_of(results)
    }
    columns = [
        Column("pair", map("-".join, couples)),
        *(Column(label, each_P, format_number) for label, each_P in divergences.items()),
        *(Column(label, each_PxS, format_median) for label, each_PxS in distances.items()),
    ]
    note = "Distances: median over seeds [95 %, by ranks]. Agreement: mean ± 95 % (Student's t)."
    title = f"Equivalences of the process, and distances at step {last_step(results):,}"
    table, rows = Table.of(title, columns, note), []
    for label, each_P in divergences.items():
        ranked_P = np.nan_to_num(each_P[:count], nan=np.inf)
        agreement = [
            format_mean(somers_d(ranked_P, each_PxS[:count].T)) for each_PxS in distances.values()
        ]
        name = f"rank agreement with {label.removesuffix(', nat')}"
        rows.append((name, *[""] * len(divergences), *agreement))
    return dataclasses.replace(table, rows=[*table.rows, *rows])


def abscissa(results: xr.Dataset, name: str) -> tuple[str, np.ndarray]:
    """Return label and values of the horizontal axis for a swept hyperparameter.

    A probability is shown as the log-odds of its pair, NaN where these are infinite.
    """
    values = results[name].values
    if not name.startswith("p_"):
        return name.replace("_", " "), values
    first, second = {"p_X": ("X", "Y"), "p_A": ("A", "B")}[name]
    with np.errstate(divide="ignore"):
        log_odds = np.log1p(-values) - np.log(values)
    return f"ln p({second})/p({first})", np.where(np.isfinite(log_odds), log_odds, np.nan)


def correlation_table(results: xr.Dataset) -> Table:
    """Correlate excess losses, their differences between arms, and distances with the swept value.

    The results must have one swept hyperparameter.
    """
    arms, excess = names_of(arms_of(results)), analysis.excess_loss(results)
    cases = {f"{EXCESS.removesuffix(', nat')}, {arm}": excess.sel(arm=arm) for arm in arms}
    reference = reference_arm(results)
    for arm in arms:
        if arm != reference:
            difference = excess.sel(arm=arm) - excess.sel(arm=reference)
            cases[f"loss, {arm} − {reference}, paired"] = difference
    for (arm, label, table), pair in itertools.product(embeddings_of(results), live_pairs(results)):
        cases[f"distance {pair}, {label}"] = at_end(distance(results, table, pair), results).sel(
            arm=arm
        )
    (name,) = swept(results)
    label, x_K = abscissa(results, name)
    rows, error = [], 0.05 / (2 * len(cases))
    for case, values in cases.items() if np.isfinite(x_K).sum() >= 3 else ():
        values_KxS = values.transpose(name, "seed").values
        cells = []
        for ranks in (False, True):
            r, low, high = correlation(x_K, values_KxS, ranks=ranks, error=error)
            cells.append(f"{format_number(r)} [{format_number(low)}, {format_number(high)}]")
        rows.append((label, case, *cells))
    title = (
        f"Correlation over members [bootstrap over {results.sizes['seed']:,} seeds; simultaneous"
        " 95 % intervals]"
    )
    return Table(title, ("hyperparameter", "correlated with", "Pearson", "Spearman"), rows)


def somers_d(divergence_P: np.ndarray, distance_SxP: np.ndarray) -> np.ndarray:
    """Return Somers' D of distances given divergences, in [-1, 1], for each seed: (S,).

    Over all couples of pairs that differ in divergence: the share in that order less the share in
    the reverse order, so 1 can be reached. NaN where no couple differs.
    """
    from scipy.stats import somersd  # heavy

    divergence_P = np.round(divergence_P, 9)  # rounding errors are not an order
    if len(np.unique(divergence_P)) < 2:
        return np.full(len(distance_SxP), np.nan)
    return np.array(
        [
            np.nan if np.isnan(own_P).any() else somersd(divergence_P, own_P).statistic
            for own_P in distance_SxP
        ]
    )


def correlation(
    x_K: np.ndarray, values_KxS: np.ndarray, *, ranks: bool, error: float = 0.05
) -> tuple[float, float, float]:
    """Correlate K values of a swept hyperparameter with an outcome of all its members.

    Pearson's, or Spearman's of ranks. Infinite values of x, and seeds that lack an outcome at any
    of the others, are omitted.

    Returns:
      The correlation and the ends of its interval, which misses with probability `error`:
      percentiles of a bootstrap over seeds, whose members are not independent. NaN for fewer than
      two seeds.
    """
    from scipy.stats import bootstrap, pearsonr, rankdata  # heavy

    usable_K, usable_S = np.isfinite(x_K), np.isfinite(values_KxS).all(axis=0)
    y_KxS = values_KxS[usable_K][:, usable_S].astype(np.float64)
    count = y_KxS.shape[1]
    if count < 2:
        return math.nan, math.nan, math.nan
    x_N = np.repeat(x_K[usable_K], count)
    x_N = rankdata(x_N) if ranks else x_N

    def of_seeds(seeds_RxS: np.ndarray, axis: int = -1) -> np.ndarray:
        y_RxN = np.moveaxis(y_KxS[:, seeds_RxS], 0, -2).reshape(*seeds_RxS.shape[:-1], -1)
        y_RxN = rankdata(y_RxN, axis=-1) if ranks else y_RxN
        return pearsonr(np.broadcast_to(x_N, y_RxN.shape), y_RxN, axis=-1).statistic

    seeds_S = np.arange(count)
    found = bootstrap(
        (seeds_S,),
        of_seeds,
        n_resamples=max(2_000, math.ceil(10 / error)),  # some beyond either end
        confidence_level=1 - error,
        method="percentile",
        batch=2_000,
        rng=0,
    )
    low, high = map(float, found.confidence_interval)
    return float(of_seeds(seeds_S)), low, high
