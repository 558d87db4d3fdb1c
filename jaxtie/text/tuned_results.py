"""What arms at their own learning rates came to: rates that were tried, all arms together, tables, figure. Imports no jax."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from jaxtie.experiment import UserError
from jaxtie.results.plots import Picture
from jaxtie.results.tables import Table
from jaxtie.text.figures import HEADS_CAPTION, draw_heads
from jaxtie.text.heads import compares_heads, head_tables, head_verdict_table
from jaxtie.text.tables import BASELINES, MEASURES, validation_table
from jaxtie.text.tuned import Tuning

TUNED_FILES = ("tuned.nc", "tuned-rates.csv")
TRIED_RATES = ("arm", "rate", "loss")  # columns of what was tried; the loss of what diverged is NaN
OF_ARMS = ("loss", "accuracy", *MEASURES, "diverged_at", "parameters", "estimated_initial_loss")


def read_tried(path: Path, tuning: Tuning, arms: Sequence[str]) -> pd.DataFrame:
    """What another part came to when it tried the rates, from its `tuned-rates.csv`; see `TRIED_RATES`.

    Raises:
      UserError: where it cannot be read, or is not of these arms at these rates.
    """
    try:
        tried = pd.read_csv(path)
        found = {*zip(tried["arm"], tried["rate"], strict=True)} if {*TRIED_RATES} == {*tried.columns} else set()
        tried["loss"] = pd.to_numeric(tried.get("loss"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from error
    if found != {(arm, rate) for arm in arms for rate in tuning.rates} or len(found) != len(tried):
        rates = ", ".join(f"{rate:g}" for rate in tuning.rates)
        raise UserError(f"{path}: expected a loss of each arm ({', '.join(arms)}) at each rate ({rates})")
    return none_lost(tried, path)


def none_lost(tried: pd.DataFrame, place: Path) -> pd.DataFrame:
    """The same; UserError where an arm diverged at every rate."""
    if lost := sorted({*tried["arm"]} - {*tried.dropna()["arm"]}):
        raise UserError(f"{place}: {', '.join(lost)} diverged at every learning rate; declare lower ones")
    return tried


def best_rates(tried: pd.DataFrame) -> dict[str, float]:
    """The rate of each arm: of the lowest loss, the lower one of two; what diverged is never it.

    Args:
      tried: see `TRIED_RATES`.
    """
    best = tried.assign(loss=tried["loss"].fillna(np.inf)).sort_values(["loss", "rate"]).groupby("arm").first()
    return {str(arm): float(rate) for arm, rate in best["rate"].items()}


def shown_rate(tried: pd.DataFrame) -> str:
    """An arm's own rate and how much more the next best one lost, nats; a star at either end of what was tried."""
    (rate,), losses = best_rates(tried).values(), np.sort(tried["loss"].fillna(np.inf))
    star = "*" * (rate in (tried["rate"].min(), tried["rate"].max()))
    return f"{rate:g}{star}" + (f", {losses[1] - losses[0]:+.3f}" if len(losses) > 1 and np.isfinite(losses[1]) else "")


def tried_table(tried: pd.DataFrame) -> Table:
    """What each arm lost at every rate, and which rate is its own."""
    rates = sorted({*tried["rate"]})
    rows = []
    for arm, own in tried.groupby("arm", sort=False):
        at = own.set_index("rate")["loss"]
        rows.append(
            (str(arm), *(f"{at[rate]:.3f}" if np.isfinite(at[rate]) else "diverged" for rate in rates), shown_rate(own))
        )
    note = (
        "Validation loss, nat, of one seed that no verdict sees, on the half of the validation text "
        "that no verdict sees. Behind an arm's own rate: how much more the next best one lost. A star: an end of what was "
        "tried."
    )
    header = ("", *(f"at {rate:g}" for rate in rates), "its own")
    return Table("Learning rates", header, rows, note)


def together(parts: Sequence[xr.Dataset], arms: Sequence[str], name: str) -> xr.Dataset:
    """The arms of several runs, each at a rate of its own, as results of one; without distances.

    Args:
      arms: all of them, in their order.
      name: of the experiment.
    """
    own = [part[[*OF_ARMS]].assign(learning_rate=part["scheduled_learning_rate"].isel(step=0, drop=True)) for part in parts]
    shared = parts[0][["token", *BASELINES]]
    merged = xr.merge([xr.concat(own, "arm").sel(arm=list(arms)), shared])
    kept = {key: value for key, value in parts[0].attrs.items() if key != "command"}
    return merged.drop_encoding().assign_attrs(kept, experiment=name)  # else arms' names are cut to the length in one part


def read_tuned(folder: Path) -> tuple[xr.Dataset, pd.DataFrame]:
    """What a folder holds of all arms together: results, and what was tried."""
    results, tried = (folder / name for name in TUNED_FILES)
    return xr.load_dataset(results, engine="h5netcdf"), pd.read_csv(tried)


def tuned_tables(results: xr.Dataset, tried: pd.DataFrame) -> dict[str, Table]:
    """All that is told: rates, then verdicts and heads where some are compared, else what every arm came to."""
    rates = {"rates": tried_table(tried)}
    if not compares_heads(results):
        return rates | {"end": validation_table(results)}
    (losses, paces), judged = head_tables(results), head_verdict_table(results)
    return rates | ({"verdicts": judged} if judged.rows else {}) | {"losses": losses, "paces": paces}


def tuned_pictures(results: xr.Dataset) -> dict[str, Picture]:
    """File name -> figure."""
    return {"heads": Picture(HEADS_CAPTION, partial(draw_heads, results))} if compares_heads(results) else {}
