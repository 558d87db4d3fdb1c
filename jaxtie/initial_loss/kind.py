"""The initial loss as a kind of experiment: see `jaxtie.kinds.Kind`. Imports no jax until something is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxtie.experiment import UserError
from jaxtie.initial_loss.declaration import InitialLoss
from jaxtie.initial_loss.results import ESTIMATES, INITIAL, initial_loss_constants, initial_loss_schema

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pandas as pd
    import xarray as xr

    from jaxtie.initial_loss.engine import InitialLossEngine
    from jaxtie.initial_loss.options import InitialLossOptions
    from jaxtie.results.folder import RunFolder, Say
    from jaxtie.results.plots import Picture
    from jaxtie.results.schema import Schema
    from jaxtie.results.tables import Table
    from jaxtie.training.processes import Processes

name = InitialLoss.kind
accepted = frozenset({"seeds", "arms"})
refusal = "trains nothing"
many_seeds = False
required = frozenset({*INITIAL, *ESTIMATES, "spread", "diverged_at"})


def options() -> type[InitialLossOptions]:
    """None of its own."""
    from jaxtie.initial_loss.options import InitialLossOptions

    return InitialLossOptions


def changes(experiment: InitialLoss, options: InitialLossOptions) -> dict[str, Any]:
    """Nothing."""
    return {}


def schema(experiment: InitialLoss) -> Schema:
    """What its results hold of members."""
    return initial_loss_schema(experiment)


def check_unchanged(experiment: InitialLoss, folder: RunFolder, earlier: dict) -> None:
    """UserError where a version that left a CSV alone has measured."""
    if earlier.get("finished") and not folder.results.exists():
        raise UserError(f"{folder.path}: another version measured here, without results.nc; run again with --overwrite")


def prepare(experiment: InitialLoss, folder: RunFolder, earlier: dict | None, processes: Processes, say: Say) -> None:
    """Nothing: the declaration says all."""


def keep(experiment: InitialLoss, material: None, folder: RunFolder) -> dict[str, Any]:
    """Nothing."""
    return {}


def engine(
    experiment: InitialLoss, material: None, processes: Processes, coming: Sequence[InitialLoss] | None = None
) -> InitialLossEngine:
    """What measures its members."""
    from jaxtie.initial_loss.engine import InitialLossEngine

    return InitialLossEngine(experiment, processes, quick=coming is not None)


def attributes(experiment: InitialLoss, material: None) -> dict[str, str | int]:
    """Attributes of its results."""
    return {"tokens": experiment.tokens}


def constants(experiment: InitialLoss, material: None) -> dict[str, xr.DataArray]:
    """The estimates."""
    return initial_loss_constants(experiment)


def tables(results: xr.Dataset) -> list[Table]:
    """All that is told of its results."""
    from jaxtie.initial_loss.tables import initial_loss_tables

    return initial_loss_tables(results)


def pictures(results: xr.Dataset) -> dict[str, Picture]:
    """All that is drawn of its results."""
    from jaxtie.initial_loss.figures import initial_loss_pictures

    return initial_loss_pictures(results)


def frames(results: xr.Dataset) -> dict[str, pd.DataFrame]:
    """Its results as a tidy table: every loss beside both estimates."""
    from jaxtie.initial_loss.tables import initial_loss_frame

    return {"initial_loss": initial_loss_frame(results)}


def animate(results: xr.Dataset, folder: Path) -> Path:
    """There is nothing that moves."""
    raise UserError(f"{results.attrs['experiment']}: there is no animation of initial losses, for nothing is trained")


def condensed(results: xr.Dataset, run: Path, experiment: InitialLoss) -> xr.Dataset:
    """All that was measured, and both estimates."""
    return results[sorted(required)]


def exact_divergences(experiment: InitialLoss) -> xr.Dataset:
    """Refused: it draws from no law."""
    raise UserError(f"{experiment.name}: is of initial losses, which know no text; expected an experiment on EXor")
