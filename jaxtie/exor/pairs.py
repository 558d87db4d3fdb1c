"""What results of EXor are about: pairs of exchangeable symbols, what can be a target, distances.
Imports no jax.
"""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from jaxtie.results.tables import arms_of


def live_pairs(results: xr.Dataset) -> list[str]:
    """The pairs of which both symbols occur, in any setting."""
    log_odds = results["theory_log_odds"]
    return [
        str(pair) for pair in results["pair"].values if np.isfinite(log_odds.sel(pair=pair)).any()
    ]


def equally_likely(results: xr.Dataset, pair: str) -> bool:
    """Whether the two symbols of a pair are equally likely in every context, as the hypothesis has
    it of equivalent ones.
    """
    odds = (
        results[name].sel(pair=pair) for name in ("theory_log_odds", "theory_log_odds_deviation")
    )
    return all(float(abs(each)) < 1e-12 for each in odds)


def targets(results: xr.Dataset) -> list[str]:
    """The symbols that can be a target, so have a place in both tables."""
    return [
        str(symbol)
        for symbol in results["symbol"].values[
            np.isfinite(np.diag(results["conditional_divergence"]))
        ]
    ]


def label_geometry(results: xr.Dataset, steps: Sequence[int]) -> xr.Dataset:
    """Distance and cosine of the rows of E and D at some evaluations, (table, arm, seed,
    eval_step).

    Of an arm with one table throughout, "input" is that, and there is nothing at "output".
    """
    tables = [results[f"{table}_table"].astype(np.float64) for table in ("input", "output")]
    both = xr.concat(tables, xr.DataArray(["input", "output"], dims="table", name="table"))
    known = np.intersect1d(steps, results["table_step"])
    both = both.sel(table_step=known).rename(table_step="eval_step")
    even, odd = (both.sel(symbol=label, drop=True) for label in ("E", "D"))

    def norm(rows: xr.DataArray) -> xr.DataArray:
        return xr.apply_ufunc(np.sqrt, (rows**2).sum("dim", skipna=False))

    cosine = (even * odd).sum("dim", skipna=False) / (norm(even) * norm(odd))
    tied = [arm.name for arm in arms_of(results) if arm.untied_from is None]
    own = ~(results["arm"].isin(tied) & (both["table"] == "output"))
    return xr.Dataset({"label_distance": norm(even - odd), "label_cosine": cosine}).where(own)


def distance_rows(results: xr.Dataset) -> dict[str, xr.DataArray]:
    """Label -> distance (arm, ..., seed, step), for the pairs that differ in nothing but how often
    they are drawn.
    """
    rows = {}
    for table in ("input", "output"):
        for pair in live_pairs(results):
            first, second = pair.split("-")
            rows[f"distance {pair}, {table}"] = results[f"{table}_distance"].sel(
                symbol=first, symbol2=second
            )
    return rows
