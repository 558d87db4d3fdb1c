"""How much distances fluctuate towards the end of training. Imports no jax."""

import numpy as np
import xarray as xr

from jaxtie.exor.pairs import live_pairs
from jaxtie.results.tables import last_step

TABLES = ("input", "output")


def fluctuations(results: xr.Dataset) -> xr.DataArray:
    """Fluctuation of every distance of every seed of a run without a sweep.

    Returns:
      (table, pair, arm, seed): standard deviation, over the last quarter of training, of the
      relative change of a distance from one record to the next; NaN for a seed that diverged and
      where there are fewer than two changes.
    """
    pairs = live_pairs(results)
    coords = {"table": list(TABLES), "pair": pairs, "arm": results["arm"], "seed": results["seed"]}
    values = [[_fluctuation(results, pair, table) for pair in pairs] for table in TABLES]
    shape = [len(values) for values in coords.values()]
    return xr.DataArray(np.array(values).reshape(shape), coords, tuple(coords), name="fluctuation")


def _fluctuation(results: xr.Dataset, pair: str, table: str) -> np.ndarray:
    """Fluctuation of one distance; (arms, seeds)."""
    first, second = pair.split("-")
    last = last_step(results)
    late = results[f"{table}_distance"].sel(
        symbol=first, symbol2=second, step=slice(0.75 * last, last)
    )
    distance_AxSxT = late.transpose("arm", "seed", "step").values.astype(np.float64)
    if distance_AxSxT.shape[-1] < 3:
        return np.full(distance_AxSxT.shape[:-1], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):  # two equal rows
        change_AxSxT = distance_AxSxT[..., 1:] / distance_AxSxT[..., :-1] - 1
        return change_AxSxT.std(axis=-1, ddof=1)
