"""How steady training is: jumps of the loss, and how much distances fluctuate towards the end. Imports no jax."""

from collections.abc import Callable
from itertools import product

import numpy as np
import xarray as xr

from jaxtie.exor.escape import LEFT, escape_times
from jaxtie.exor.pairs import live_pairs
from jaxtie.experiment import names_of
from jaxtie.results.survival import Times
from jaxtie.results.tables import Table, arms_of, interval, last_step, median

JUMP = 0.05  # nat
TABLES = ("input", "output")


def steadiness(results: xr.Dataset) -> xr.Dataset:
    """Of every seed of a run without a sweep: how often its loss jumps, how much distances fluctuate.

    Returns:
      `jumps` (arm, seed): how often the recorded training loss rises by more than JUMP from one record to the next, after the
      seed left the first plateau; `steps_off` (arm, seed): in how many steps, NaN for a seed that has not left; `fluctuation`
      (table, pair, arm, seed): standard deviation over the last quarter of the training of a distance's relative change from
      one record to the next, NaN for a seed that diverged and where there are fewer than two changes.
    """
    pairs = live_pairs(results)
    counted = [_jumps(results, arm, times) for arm, times in escape_times(results, LEFT).items()]
    moves = [[_fluctuation(results, pair, table) for pair in pairs] for table in TABLES]
    jumps_AxS, steps_AxS = (np.stack(values) for values in zip(*counted, strict=True))
    return xr.Dataset(
        {
            "jumps": (("arm", "seed"), jumps_AxS),
            "steps_off": (("arm", "seed"), steps_AxS),
            "fluctuation": (
                ("table", "pair", "arm", "seed"),
                np.array(moves).reshape(len(TABLES), len(pairs), *jumps_AxS.shape),
            ),
        },
        {"arm": results["arm"], "seed": results["seed"], "pair": pairs, "table": list(TABLES)},
    )


def stability_table(steady: xr.Dataset) -> Table:
    """What `steadiness` returns, arm by arm and beside the first one."""
    arms, rates = names_of(arms_of(steady)), 1000 * steady["jumps"] / steady["steps_off"]
    counts = {
        "seeds off the first plateau": np.isfinite(rates).sum("seed"),
        f"jumps of the loss by more than {JUMP} nat there": steady["jumps"].sum("seed"),
    }
    rows = [
        (label, *[str(int(count.sel(arm=arm))) for arm in arms], *[""] * (len(arms) - 1)) for label, count in counts.items()
    ]

    def add(label: str, cell: Callable[[np.ndarray], str], values: xr.DataArray) -> None:
        each = [values.sel(arm=arm).values for arm in arms]
        rows.append((label, *map(cell, each), *[cell(own - each[0]) for own in each[1:]]))

    add("jumps in 1,000 steps there, mean", interval, rates)
    add("jumps in 1,000 steps there, median", median, rates)
    for pair, table in product(steady["pair"].values, TABLES):
        add(f"fluctuation of {pair}, {table}, %, median", median, 100 * steady["fluctuation"].sel(pair=pair, table=table))
    header = ("", *arms, *[f"{arm} − {arms[0]}, paired" for arm in arms[1:]])
    note = (
        "Jumps are of the recorded training loss, up, from one record to the next, and rates are each seed's over the steps "
        "since it left the plateau: over the seeds that left, in pairs over those that left in both arms. Fluctuation: "
        "standard deviation over the last quarter of the training of a distance's relative change from one record to the "
        "next. Means ± 95 % interval (Student's t), medians [95 % interval by ranks]."
    )
    return Table("Stability", header, rows, note)


def _jumps(results: xr.Dataset, arm: str, times: Times) -> tuple[np.ndarray, np.ndarray]:
    """`jumps` and `steps_off` of an arm; (S,) each."""
    recorded = results["loss"].sel(arm=arm, step=slice(0, last_step(results))).transpose("seed", "step")
    steps_T, rise_SxR = recorded["step"].values, np.diff(recorded.values.astype(np.float64), axis=1)
    is_off_SxR = ~times.censored_S[:, None] & (steps_T[:-1] >= times.step_S[:, None]) & np.isfinite(rise_SxR)
    steps_S = (is_off_SxR * np.diff(steps_T)).sum(axis=1).astype(np.float64)
    return (is_off_SxR & (rise_SxR > JUMP)).sum(axis=1), np.where(steps_S > 0, steps_S, np.nan)


def _fluctuation(results: xr.Dataset, pair: str, table: str) -> np.ndarray:
    """`fluctuation` of a distance; (arms, seeds)."""
    first, second = pair.split("-")
    last = last_step(results)
    late = results[f"{table}_distance"].sel(symbol=first, symbol2=second, step=slice(0.75 * last, last))
    distance_AxSxT = late.transpose("arm", "seed", "step").values.astype(np.float64)
    if distance_AxSxT.shape[-1] < 3:
        return np.full(distance_AxSxT.shape[:-1], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):  # two rows that are one
        change_AxSxT = distance_AxSxT[..., 1:] / distance_AxSxT[..., :-1] - 1
        return change_AxSxT.std(axis=-1, ddof=1)
