"""The kinds of experiments: what each of them answers, and the one place where the kind of anything
is asked.

A kind is a room of the house, a package whose module `kind` has what `Kind` lists. Rooms are
imported by name when they are
asked for, and do not know each other: without `text`, and its line here, all else works. Imports no
jax.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from jaxtie.config import TaskConfig, UserError

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import xarray as xr

    from jaxtie.results.folder import RunFolder, Say
    from jaxtie.results.netcdf import Schema
    from jaxtie.results.plots import Picture
    from jaxtie.results.tables import Table
    from jaxtie.training.distributed import Processes
    from jaxtie.training.task import Engine

ROOMS = {
    "exor": "jaxtie.exor.kind",
    "text": "jaxtie.text.kind",
}


class Kind(Protocol):
    """What a room answers for. `material`: what `prepare` returned.

    Attributes:
      name: also `TaskConfig.kind`, and `attrs["task"]` of results.
      accepted: options of the command line that change its experiments.
      refusal: why it has no others: "experiment NAME, which ...".
      many_seeds: whether the seeds that `--all` asks for are meant for it too, though it declares
        fewer.
      required: variables without which results are another version's.
    """

    name: str
    accepted: frozenset[str]
    refusal: str
    many_seeds: bool
    required: frozenset[str]

    def options(self) -> type[Any]:
        """A dataclass: the options of the command line that are its own. Each has a default, which
        changes nothing.
        """

    def changes(self, experiment: TaskConfig, options: Any) -> dict[str, Any]:
        """Fields of the experiment that its own options ask for; UserError where they cannot be
        meant.
        """

    def schema(self, experiment: TaskConfig) -> Schema:
        """What its results hold of members."""

    def check_unchanged(self, experiment: TaskConfig, folder: RunFolder, earlier: dict) -> None:
        """UserError where the finished run in a folder was made from something that has changed
        since.
        """

    def prepare(
        self,
        experiment: TaskConfig,
        folder: RunFolder,
        earlier: dict | None,
        processes: Processes,
        say: Say,
    ) -> Any:
        """What training needs beside the declaration; `earlier`: configuration of the folder's run.
        Writes nothing there.
        """

    def keep(self, experiment: TaskConfig, material: Any, folder: RunFolder) -> dict[str, Any]:
        """Write into a new run's folder what could not be made again; returns what `config.json`
        says of the material.
        """

    def engine(self, experiment: TaskConfig, material: Any, processes: Processes) -> Engine:
        """What trains its members."""

    def attributes(self, experiment: TaskConfig, material: Any) -> dict[str, str | int]:
        """Attributes of its results, for a reader."""

    def constants(self, experiment: TaskConfig, material: Any) -> dict[str, xr.DataArray]:
        """Variables of its results that no member owns."""

    def tables(self, results: xr.Dataset) -> list[Table]:
        """All that `summary.md` shows; on the terminal those that are not long."""

    def pictures(self, results: xr.Dataset) -> dict[str, Picture]:
        """File name -> figure."""

    def frames(self, results: xr.Dataset) -> dict[str, pd.DataFrame]:
        """File name -> tidy table, for `--csv`."""

    def animate(self, results: xr.Dataset, folder: Path) -> Path:
        """Write an animation into a folder; UserError where there is none."""

    def condensed(self, results: xr.Dataset, run: Path) -> xr.Dataset:
        """Select the part of a run's results that is committed."""

    def exact_divergences(self, experiment: TaskConfig) -> xr.Dataset:
        """How far what it draws from is from equivalent, pair by pair; UserError where no law is at
        hand.

        By `pair`: `semantic`, `conditional`, `bias`, `overlap`, see `jaxtie/advise/README.md`.
        """


def of(experiment: TaskConfig) -> Kind:
    """The kind of an experiment."""
    return named(experiment.task)


def of_results(results: xr.Dataset) -> Kind:
    """The kind of an experiment by its results."""
    return named(results.attrs.get("task", "unknown"))


def named(name: str) -> Kind:
    """The kind of this name.

    Raises:
      UserError: if this version has none.
    """
    if name not in ROOMS:
        raise UserError(
            f"kind {name!r}: expected one of {', '.join(ROOMS)}; did another version write this?"
        )
    return importlib.import_module(ROOMS[name])


def every() -> list[Kind]:
    """All of them."""
    return [named(name) for name in ROOMS]


def is_experiment(value: object) -> TypeGuard[TaskConfig]:
    """Whether a value is a declaration of some kind."""
    return isinstance(value, TaskConfig) and value.task in ROOMS
