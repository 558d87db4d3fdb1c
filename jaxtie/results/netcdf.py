"""Variables of results, and how records are written to NetCDF. Imports no jax."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from jaxtie.config import TaskConfig, names_of, point_and_seed


class Variable(NamedTuple):
    """A variable that every member has.

    Attributes:
      dimensions: after arm, swept names and seed; the first is "step", or another name that ends in
        "step" for variables of evaluations.
      units, meaning: for a reader.
    """

    dimensions: tuple[str, ...]
    units: str
    meaning: str


class Schema(NamedTuple):
    """The variables of members except `diverged_at`, and labels of their dimensions."""

    variables: Mapping[str, Variable]
    labels: Mapping[str, Sequence[Any]]

    def size_in_bytes(self, experiment: TaskConfig) -> int:
        """Return the size of all records of an experiment, before compression."""
        values = sum(
            math.prod(len(self.labels[each]) for each in variable.dimensions)
            for variable in self.variables.values()
        )
        return 4 * values * len(experiment.members) * len(experiment.arms)


def steps_of(experiment: TaskConfig) -> dict[str, Sequence[int]]:
    """Return the labels of the steps that every task records."""
    return {"step": experiment.record_steps, "eval_step": experiment.eval_steps}


class Records(NamedTuple):
    """Consecutive records of some members of an arm.

    Attributes:
      numbers: of the members, see `jaxtie.config.member_number`.
      first_record: number of the first record.
      values: arrays (records, members, ...) by variables.
    """

    numbers: np.ndarray
    first_record: int
    values: dict[str, np.ndarray]

    @property
    def record_count(self) -> int:
        """Number of records of each member."""
        return len(next(iter(self.values.values())))


def make_netcdf(
    experiment: TaskConfig,
    schema: Schema,
    attributes: Mapping[str, str | int | float],
    constants: Mapping[str, xr.DataArray],
    parts: Iterable[tuple[str, Records]],
) -> bytes:
    """Return the NetCDF-4 file of an experiment's results; values that are missing are NaN.

    So is every value of a member from the record on at which it was found to have diverged.
    `attributes` are those of the run, `constants` variables without members, such as the best
    reachable loss, and `parts` names of arms with records of some of their members.
    """
    results = _empty_results(experiment, schema, attributes, constants)
    arms, place = names_of(experiment.arms), {seed: i for i, seed in enumerate(experiment.seeds)}
    shape = results["diverged_at"].shape
    points_per_arm = math.prod(shape[1:-1])
    for arm, part in parts:
        points, seeds = point_and_seed(part.numbers)
        places = np.array([place[seed] for seed in seeds.tolist()])
        numbers = (arms.index(arm) * points_per_arm + points) * len(place) + places
        members = np.unravel_index(numbers, shape)
        _fill(results, experiment, schema, members, part)
    outer = len(shape)
    encoding = {
        name: {
            "chunksizes": (*[1] * (outer - 1), min(len(place), 16), *results[name].shape[outer:]),
            "compression": "gzip",
            "compression_opts": 1,
            "shuffle": True,
        }
        for name in schema.variables
    }
    # In memory, because HDF5 may crash the process when it cannot close a file on a full disk.
    return bytes(results.to_netcdf(engine="h5netcdf", encoding=encoding))


def _empty_results(
    experiment: TaskConfig,
    schema: Schema,
    attributes: Mapping[str, str | int | float],
    constants: Mapping[str, xr.DataArray],
) -> xr.Dataset:
    """Return the results with every value of a member missing."""
    members: dict[str, Any] = {
        "arm": names_of(experiment.arms),
        **{name: np.array(values, np.float64) for name, values in experiment.swept.items()},
        "seed": np.array(experiment.seeds, np.int64),
    }
    steps = {
        name: np.array(labels, np.int64)
        for name, labels in schema.labels.items()
        if name.endswith("step")
    }
    dataset = xr.Dataset(constants, {**members, **schema.labels, **steps}, attributes)
    shape = [len(labels) for labels in members.values()]
    meaning = "step at which the member stopped being finite; -1: never"
    never = np.full(shape, -1, np.int32)
    dataset["diverged_at"] = tuple(members), never, {"units": "step", "long_name": meaning}
    for name, each in schema.variables.items():
        sizes = [len(schema.labels[dimension]) for dimension in each.dimensions]
        missing = np.full([*shape, *sizes], np.nan, np.float32)
        described = {"units": each.units, "long_name": each.meaning}
        dataset[name] = (*members, *each.dimensions), missing, described
    for name in steps:
        dataset[name].attrs = {"units": "1", "long_name": "number of updates made"}
    return dataset


def _fill(
    results: xr.Dataset,
    experiment: TaskConfig,
    schema: Schema,
    members: tuple[np.ndarray, ...],
    part: Records,
) -> None:
    """Write records of some members of an arm; `members` are their indices."""
    steps = (part.first_record + np.arange(part.record_count)) * experiment.record_every
    found = part.values["diverged_at"].T  # (members, records)
    # -1 until it is set for good; older records may be written after newer ones
    diverged_at = results["diverged_at"].values
    diverged_at[members] = np.maximum(diverged_at[members], found[:, -1])
    lost = (found >= 0) & (steps >= found)
    for name, variable in schema.variables.items():
        values = np.moveaxis(part.values[name], 0, 1)  # (members, records, ...)
        values = np.where(lost.reshape(*lost.shape, *[1] * (values.ndim - 2)), np.nan, values)
        recorded = schema.labels[variable.dimensions[0]]
        due = np.isin(steps, recorded)
        if due.any():
            first = np.searchsorted(recorded, steps[due][0])
            at: Any = (*members, slice(first, first + due.sum()))
            results[name].values[at] = values[:, due]
