"""Results on the initial loss -> tables and a tidy frame. Imports no jax."""

import math

import numpy as np
import pandas as pd
import xarray as xr

from jaxtie.initial_loss.results import ESTIMATES
from jaxtie.results.tables import Table, interval, number


def initial_loss_tables(results: xr.Dataset) -> list[Table]:
    """How far each estimate of an initial loss is off, and every arm at one width and vocabulary."""
    return [initial_errors_table(results), initial_losses_table(results)]


def initial_loss_frame(results: xr.Dataset) -> pd.DataFrame:
    """The whole grid: a row for every width, vocabulary, deviation (as declared) and arm.

    Columns: `spread` (Dσ²), and in nats `measured` (mean over seeds), `standard_error` (of that mean), `simple` and
    `corrected` (estimates).
    """
    losses = results["initial_loss"].isel(step=0, drop=True).astype(np.float64)
    count, mean = losses.count("seed"), losses.mean("seed")
    variance = ((losses - mean) ** 2).sum("seed") / (count - 1).where(count > 1)  # of one nothing is known
    columns = {"measured": mean, "standard_error": np.sqrt(variance / count.where(count > 0))}
    frame = xr.Dataset({"spread": results["spread"], **columns, **{name: results[name] for name in ESTIMATES}})
    sizes = {name: results[name].astype(np.int64) for name in ("width", "vocabulary")}
    return frame.assign_coords(sizes).to_dataframe(["width", "vocabulary", "deviation", "arm"])


def initial_errors_table(results: xr.Dataset) -> Table:
    """How far each estimate is off over the grid, where logits spread little and where they spread much."""
    frame = initial_loss_frame(results)
    off = pd.DataFrame({name: 100 * (frame[name] / frame["measured"] - 1) for name in ESTIMATES})
    small = frame["spread"] <= 1 + 1e-9
    rows = []
    for arm in frame.index.unique("arm"):
        cells = [off.loc[(frame.index.get_level_values("arm") == arm) & part] for part in (small, ~small)]
        rows.append((arm, *[_range(cell[name]) for cell in cells for name in ESTIMATES]))
    header = ("", *[f"{spread}: {name}" for spread in ("Dσ² ≤ 1", "Dσ² > 1") for name in ESTIMATES])
    return Table("Estimate / measured initial loss − 1, %, lowest and highest over the grid", header, rows)


def _range(values: pd.Series) -> str:
    low, high = values.min(), values.max()
    return f"{low:+.1f} … {high:+.1f}" if np.isfinite([low, high]).all() else "–"


def initial_losses_table(results: xr.Dataset) -> Table:
    """Every arm with every deviation beside both estimates, at one width and vocabulary: large ones of the grid."""
    widths, vocabularies = (sorted(results[name].values.astype(int).tolist()) for name in ("width", "vocabulary"))
    width, vocabulary = widths[(2 * len(widths) - 1) // 3], vocabularies[len(vocabularies) // 2]
    here = results.sel(width=width, vocabulary=vocabulary).isel(step=0)
    rows = []
    for deviation in here["deviation"].values:
        for arm in here["arm"].values:
            of_arm = here.sel(deviation=deviation, arm=arm)
            estimates = [number(float(of_arm[name])) for name in ESTIMATES]
            rows.append(
                (str(deviation), f"{float(of_arm['spread']):.3g}", str(arm), interval(of_arm["initial_loss"]), *estimates)
            )
    title = f"D {width}, n {vocabulary:,} (log n = {math.log(vocabulary):.3f}), mean over seeds and tokens ± 95 %"
    return Table(title, ("σ", "Dσ²", "arm", "measured, nat", *ESTIMATES), rows)
