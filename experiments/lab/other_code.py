"""Runs on EXor compared with those of other code: the published one, and a PyTorch loop."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr

from jaxtie.exor.analysis import LOSS_DECIMALS, distance
from jaxtie.results.tables import Table, format_number


def format_quantiles(values: np.ndarray) -> str:
    """Format the median and the range from 5 to 95 %."""
    values = np.asarray(values, np.float64)[np.isfinite(values)]
    if not len(values):
        return "–"
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def published_table(results: xr.Dataset, published: pd.DataFrame) -> Table:
    """Compare distances with those of the paper's published code.

    Args:
      results: of the same experiment.
      published: a row for every arm, seed, step, table and pair, with its distance.
    """
    from scipy.stats import mannwhitneyu

    rows, p_values = [], []
    groups = published.groupby(["arm", "table", "pair", "step"], sort=False)["distance"]
    for (arm, table, pair, step), theirs_S in groups:
        ours_S = distance(results, table, pair).sel(arm=arm, step=step).values
        p_values.append(float(mannwhitneyu(ours_S, theirs_S, method="exact").pvalue))
        label = arm if arm == "tied" else f"{arm} {table}"
        theirs = ", ".join(f"{value:.3g}" for value in theirs_S)
        rows.append(
            (
                label,
                pair,
                f"{step:,}",
                format_quantiles(ours_S),
                theirs,
                format_number(p_values[-1]),
            )
        )
    ours = f"ours: median of {results.sizes['seed']:,} seeds [5 %, 95 %]"
    header = ("embedding", "pair", "step", ours, "published code", "p")
    note = f"p: exact two-sided Mann–Whitney test. {_least(p_values)}"
    return Table("Distances compared with those of the published code", header, rows, note)


def pytorch_table(results: xr.Dataset, theirs: pd.DataFrame) -> Table:
    """Compare losses and distances with those of a PyTorch loop.

    Args:
      results: of the same experiment.
      theirs: of `benchmarks/pytorch_seeds.py`: a row for every arm, seed, step and quantity
        ("loss", or a table and a pair).
    """
    from scipy.stats import ks_2samp

    rows, p_values, decimals = [], [], LOSS_DECIMALS
    for (arm, quantity, step), group in theirs.groupby(["arm", "quantity", "step"], sort=False):
        theirs_S = group["value"].to_numpy()
        if quantity == "loss":  # committed losses are rounded
            recorded = results["train_loss"].sel(arm=arm, eval_step=step)
            recorded_S = recorded.values.astype(np.float64)
            ours_S, theirs_S = (np.round(each, decimals) for each in (recorded_S, theirs_S))
        else:
            ours_S = distance(results, *quantity.split()).sel(arm=arm, step=step).values
        found = ks_2samp(ours_S, theirs_S)
        p_values.append(float(found.pvalue))
        cells = (
            format_quantiles(ours_S),
            format_quantiles(theirs_S),
            format_number(found.statistic),
        )
        rows.append((arm, quantity, f"{step:,}", *cells, format_number(found.pvalue)))
    sides = {"ours": results.sizes["seed"], "PyTorch": theirs["seed"].nunique()}
    columns = [f"{side}: median of {seeds} seeds [5 %, 95 %]" for side, seeds in sides.items()]
    header = ("arm", "quantity", "step", *columns, "largest gap", "p")
    note = (
        f"Loss: exact, of the training split, nat, to {decimals} decimals. Everything else:"
        " distances. Largest gap: between the two distributions over seeds, with p of the"
        f" Kolmogorov–Smirnov test. {_least(p_values)}"
    )
    return Table("Seeds of this project compared with seeds of a PyTorch loop", header, rows, note)


def _least(p_values: Sequence[float]) -> str:
    """State the smallest p-value with its Bonferroni correction."""
    corrected = format_number(min(1.0, min(p_values) * len(p_values)))
    return f"Smallest of {len(p_values)} p-values, Bonferroni-corrected: {corrected}."
