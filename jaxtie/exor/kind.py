"""EXor as a kind of experiment: see `jaxtie.run.kinds.Kind`. Imports no jax until something is
trained.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from jaxtie.config import Transformer, UserError
from jaxtie.exor.analysis import CONSTANTS, VARIABLES, exor_attributes, exor_constants, exor_schema
from jaxtie.exor.config import Experiment

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import xarray as xr

    from jaxtie.exor.engine import ExorEngine
    from jaxtie.exor.options import ExorOptions
    from jaxtie.results.folder import RunFolder, Say
    from jaxtie.results.netcdf import Schema
    from jaxtie.results.plots import Picture
    from jaxtie.results.tables import Table
    from jaxtie.training.distributed import Processes

name = "exor"
accepted = frozenset(
    "seeds steps scale arms record_every eval_every data_seed data zeros ones sweep all_strings"
    " independent_layers".split()
)
refusal = "reads no text"
many_seeds = True
required = frozenset({*VARIABLES, *CONSTANTS, "diverged_at"})


def options() -> type[ExorOptions]:
    """Its own options of the command line."""
    from jaxtie.exor.options import ExorOptions

    return ExorOptions


def changes(experiment: Experiment, options: Any) -> dict[str, Any]:
    """Fields that its own options ask for."""
    if options.independent_layers and not isinstance(experiment.model, Transformer):
        raise UserError(
            "--independent-layers: expected a transformer; the layers of this"
            f" {type(experiment.model).__name__} are independent already"
        )
    for swept, given in (("p_X", options.zeros and "--zeros"), ("p_A", options.ones and "--ones")):
        if given and swept in dict(options.sweep or experiment.sweep):
            raise UserError(f"{given}: {swept} is swept; give one of the two")
    process = {"data_seed": options.data_seed, "zeros": options.zeros, "ones": options.ones}
    process["all_strings"] = options.all_strings or None
    model = {"independent_layers": options.independent_layers or None}
    own = {"data": options.data, "sweep": options.sweep or None}
    return _given(own) | {
        "process": dataclasses.replace(experiment.process, **_given(process)),
        "model": dataclasses.replace(experiment.model, **_given(model)),
    }


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in fields.items() if value is not None}


def schema(experiment: Experiment) -> Schema:
    """What its results hold of members."""
    return exor_schema(experiment)


def check_unchanged(experiment: Experiment, folder: RunFolder, earlier: dict) -> None:
    """Nothing: all of EXor is in its declaration."""


def prepare(
    experiment: Experiment, folder: RunFolder, earlier: dict | None, processes: Processes, say: Say
) -> None:
    """Nothing: all of EXor is in its declaration."""


def keep(experiment: Experiment, material: None, folder: RunFolder) -> dict[str, Any]:
    """Nothing."""
    return {}


def engine(experiment: Experiment, material: None, processes: Processes) -> ExorEngine:
    """What trains its members."""
    from jaxtie.exor.engine import ExorEngine

    return ExorEngine(experiment, processes)


def attributes(experiment: Experiment, material: None) -> dict[str, str | int]:
    """Attributes of its results."""
    return exor_attributes(experiment)


def constants(experiment: Experiment, material: None) -> dict[str, xr.DataArray]:
    """What no member owns."""
    return exor_constants(experiment)


def tables(results: xr.Dataset) -> list[Table]:
    """All that is told of its results."""
    from jaxtie.exor.tables import exor_tables

    return exor_tables(results)


def pictures(results: xr.Dataset) -> dict[str, Picture]:
    """All that is drawn of its results."""
    from jaxtie.exor.plots import exor_pictures

    return exor_pictures(results)


def frames(results: xr.Dataset) -> dict[str, pd.DataFrame]:
    """Its results as tidy tables."""
    from jaxtie.exor.plots import exor_frames

    return exor_frames(results)


def animate(results: xr.Dataset, folder: Path) -> Path:
    """The embeddings over training, `portrait.gif`."""
    from jaxtie.exor.plots import animate_portrait

    return animate_portrait(results, folder)


def condensed(results: xr.Dataset, run: Path) -> xr.Dataset:
    """What is committed of a run."""
    from jaxtie.exor.analysis import condense

    return condense(results)


def exact_divergences(experiment: Experiment) -> xr.Dataset:
    """Of all pairs of symbols that can be masked, by enumeration; of what is swept, as declared
    beside the sweep.
    """
    from jaxtie.exor.analysis import pair_divergences

    return pair_divergences(experiment.process)
