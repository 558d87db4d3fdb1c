"""What results of EXor are about: pairs of exchangeable symbols, what can be a target, distances. Imports no jax."""

import numpy as np
import xarray as xr


def live_pairs(results: xr.Dataset) -> list[str]:
    """The pairs of which both symbols occur, in any setting."""
    log_odds = results["theory_log_odds"]
    return [str(pair) for pair in results["pair"].values if np.isfinite(log_odds.sel(pair=pair)).any()]


def equally_likely(results: xr.Dataset, pair: str) -> bool:
    """Whether the two symbols of a pair are equally likely in every context, as the hypothesis has it of equivalent ones."""
    odds = (results[name].sel(pair=pair) for name in ("theory_log_odds", "theory_log_odds_deviation"))
    return all(float(abs(each)) < 1e-12 for each in odds)


def targets(results: xr.Dataset) -> list[str]:
    """The symbols that can be a target, so have a place in both tables."""
    return [str(symbol) for symbol in results["symbol"].values[np.isfinite(np.diag(results["conditional_divergence"]))]]


def distance_rows(results: xr.Dataset) -> dict[str, xr.DataArray]:
    """Label -> distance (arm, ..., seed, step), for the pairs that differ in nothing but how often they are drawn."""
    rows = {}
    for table in ("input", "output"):
        for pair in live_pairs(results):
            first, second = pair.split("-")
            rows[f"distance {pair}, {table}"] = results[f"{table}_distance"].sel(symbol=first, symbol2=second)
    return rows
