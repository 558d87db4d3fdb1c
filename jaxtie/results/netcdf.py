"""Variables of results, and how records are written to NetCDF. Imports no jax."""

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import h5netcdf
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


def join_records(parts: Iterable[Records]) -> Iterator[Records]:
    """Join consecutive records of the same members."""
    runs: list[list[Records]] = []
    for each in parts:
        last = runs[-1][-1] if runs else None
        if (
            last is not None
            and each.first_record == last.first_record + last.record_count
            and np.array_equal(each.numbers, last.numbers)
        ):
            runs[-1].append(each)
        else:
            runs.append([each])
    for run in runs:
        values = {
            name: np.concatenate([each.values[name] for each in run]) for name in run[0].values
        }
        yield run[0]._replace(values=values)


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
    reachable loss, and `parts` names of arms with records of some of their members, as many at a
    time as fit into memory.
    """
    skeleton = _skeleton(experiment, schema, attributes, constants)
    # In memory, because HDF5 may crash the process when it cannot close a file on a full disk.
    content = io.BytesIO(skeleton.to_netcdf(engine="h5netcdf"))
    arms, lengths = names_of(experiment.arms), [len(values) for values in experiment.swept.values()]
    with h5netcdf.File(content, "a") as file:
        _create_variables(file, experiment, schema)
        for arm, part in parts:
            points, seeds = point_and_seed(part.numbers)
            for point in np.unique(points):
                own = np.flatnonzero(points == point)
                here = {name: values[:, own] for name, values in part.values.items()}
                start = (arms.index(arm), *np.unravel_index(point, lengths))
                own_part = Records(seeds[own], part.first_record, here)
                _fill(file, experiment, schema, start, own_part)
    return content.getvalue()


def _skeleton(
    experiment: TaskConfig,
    schema: Schema,
    attributes: Mapping[str, str | int | float],
    constants: Mapping[str, xr.DataArray],
) -> xr.Dataset:
    """Return the results without the variables of members."""
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
    meaning = "step at which the member stopped being finite; -1: never"
    never = np.full([len(labels) for labels in members.values()], -1, np.int32)
    dataset["diverged_at"] = tuple(members), never, {"units": "step", "long_name": meaning}
    for name in steps:
        dataset[name].attrs = {"units": "1", "long_name": "number of updates made"}
    return dataset


def _create_variables(file: h5netcdf.File, experiment: TaskConfig, schema: Schema) -> None:
    """Create the variables of members, with every value missing."""
    outer = ("arm", *experiment.swept)
    for name, each in schema.variables.items():
        sizes = [len(schema.labels[dimension]) for dimension in each.dimensions]
        variable = file.create_variable(
            name,
            (*outer, "seed", *each.dimensions),
            np.float32,
            chunks=(*[1] * len(outer), min(len(experiment.seeds), 16), *sizes),
            fillvalue=np.float32(math.nan),
            compression="gzip",
            compression_opts=1,
            shuffle=True,
        )
        variable.attrs.update({"units": each.units, "long_name": each.meaning})


def _fill(
    file: h5netcdf.File,
    experiment: TaskConfig,
    schema: Schema,
    start: tuple[int, ...],
    part: Records,
) -> None:
    """Write records of some seeds at one sweep point; `start` are indices of arm and point."""
    steps = (part.first_record + np.arange(part.record_count)) * experiment.record_every
    place = {seed: i for i, seed in enumerate(experiment.seeds)}
    places = np.array([place[int(seed)] for seed in part.numbers])
    order = np.argsort(places)  # as HDF5 requires
    members: Any = places[order]
    if len(members) == members[-1] - members[0] + 1:  # a slice is much faster
        members = slice(members[0], members[-1] + 1)
    at = (*start, members)
    # -1 until it is set for good; older records may be written after newer ones
    diverged_at = part.values["diverged_at"][-1][order]
    file["diverged_at"][at] = np.maximum(file["diverged_at"][at], diverged_at)
    found = part.values["diverged_at"].T[order]  # (seeds, records)
    lost = (found >= 0) & (steps >= found)
    for name, variable in schema.variables.items():
        values = np.moveaxis(part.values[name], 0, 1)[order]  # (seeds, records, ...)
        values = np.where(lost.reshape(*lost.shape, *[1] * (values.ndim - 2)), np.nan, values)
        recorded = schema.labels[variable.dimensions[0]]
        due = np.isin(steps, recorded)
        if due.any():
            first = np.searchsorted(recorded, steps[due][0])
            file[name][(*at, slice(first, first + due.sum()))] = values[:, due]
