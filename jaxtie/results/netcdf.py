"""Schema of the variables; write records to NetCDF.

What the results of an experiment hold, as its kind declares it. Imports no jax.

Records of members -> one labelled NetCDF-4 file. Imports no jax.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5netcdf
import numpy as np
import xarray as xr

from jaxtie.config import TaskConfig, names_of, setting_and_seed


class Variable(NamedTuple):
    """One variable of members.

    Attributes:
      dimensions: after arm, swept settings and seed; the first is "step", or another that ends in
        "step" for what is there at evaluations only.
      units, meaning: for a reader.
    """

    dimensions: tuple[str, ...]
    units: str
    meaning: str


class Schema(NamedTuple):
    """Every variable that members have, beside `diverged_at`, and the labels along their
    dimensions.
    """

    variables: Mapping[str, Variable]
    labels: Mapping[str, Sequence[Any]]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one record of a member."""
        return tuple(
            len(self.labels[dimension]) for dimension in self.variables[name].dimensions[1:]
        )

    def size_in_bytes(self, experiment: TaskConfig) -> int:
        """Bytes of all records of an experiment, before compression."""
        lengths = {name: len(labels) for name, labels in self.labels.items()}
        values = sum(
            math.prod(lengths[each] for each in variable.dimensions)
            for variable in self.variables.values()
        )
        return 4 * values * len(experiment.members) * len(experiment.arms)


def steps_of(experiment: TaskConfig) -> dict[str, Sequence[int]]:
    """Labels of the dimensions along which experiments of every kind are recorded."""
    return {"step": experiment.record_steps, "eval_step": experiment.eval_steps}


class Stretch(NamedTuple):
    """Records of some members of an arm, one after the other without a gap.

    Attributes:
      numbers: of the members, see `jaxtie.config.number_of`.
      first_record: number of the first of the records.
      records: arrays (records, members, ...).
    """

    numbers: np.ndarray
    first_record: int
    records: dict[str, np.ndarray]

    @property
    def record_count(self) -> int:
        """How many records there are of each member."""
        return len(next(iter(self.records.values())))


def joined(stretches: Iterable[Stretch]) -> Iterator[Stretch]:
    """Stretches, in the order of their records, without the seams between those that have the same
    members and no gap.
    """
    runs: list[list[Stretch]] = []
    for each in stretches:
        if runs:
            last = runs[-1][-1]
            if each.first_record == last.first_record + last.record_count and np.array_equal(
                each.numbers, last.numbers
            ):
                runs[-1].append(each)
                continue
        runs.append([each])
    for run in runs:
        names = run[0].records
        yield run[0]._replace(
            records={name: np.concatenate([each.records[name] for each in run]) for name in names}
        )


def write_netcdf(
    path: Path,
    experiment: TaskConfig,
    schema: Schema,
    attributes: Mapping[str, str | int | float],
    constants: Mapping[str, xr.DataArray],
    stretches: Iterable[tuple[str, Stretch]],
) -> None:
    """Write what was recorded of an experiment; what is not there is NaN.

    Args:
      attributes: about the whole run.
      constants: variables that no member owns, such as the best reachable loss.
      stretches: an arm's name and records of some of its members, as many at a time as there is
        memory for.
    """
    _skeleton(experiment, schema, attributes, constants).to_netcdf(path, engine="h5netcdf")
    arms, lengths = names_of(experiment.arms), [len(values) for values in experiment.swept.values()]
    with h5netcdf.File(path, "a") as file:
        _create_variables(file, experiment, schema)
        for arm, stretch in stretches:
            settings, seeds = setting_and_seed(stretch.numbers)
            for setting in np.unique(settings):
                own = np.flatnonzero(settings == setting)
                records = {name: values[:, own] for name, values in stretch.records.items()}
                start = (arms.index(arm), *np.unravel_index(setting, lengths))
                _fill(
                    file,
                    experiment,
                    schema,
                    start,
                    Stretch(seeds[own], stretch.first_record, records),
                )


def _skeleton(
    experiment: TaskConfig,
    schema: Schema,
    attributes: Mapping[str, str | int | float],
    constants: Mapping[str, xr.DataArray],
) -> xr.Dataset:
    """All but the variables of members."""
    coordinates = {
        "arm": names_of(experiment.arms),
        **{name: np.array(values, np.float64) for name, values in experiment.swept.items()},
        "seed": np.array(experiment.seeds, np.int64),
        **{
            name: np.array(labels, np.int64) if name.endswith("step") else labels
            for name, labels in schema.labels.items()
        },
    }
    dataset = xr.Dataset(constants, coordinates, attributes)
    dimensions = _member_dimensions(experiment)
    dataset["diverged_at"] = xr.DataArray(
        np.full([len(coordinates[name]) for name in dimensions], -1, np.int32),
        dims=dimensions,
        attrs={
            "units": "step",
            "long_name": "step at which the member stopped being finite; -1: never",
        },
    )
    for name in [name for name in coordinates if name.endswith("step")]:
        dataset[name].attrs = {"units": "1", "long_name": "number of updates made"}
    return dataset


def _member_dimensions(experiment: TaskConfig) -> tuple[str, ...]:
    return ("arm", *experiment.swept, "seed")


def _create_variables(file: h5netcdf.File, experiment: TaskConfig, schema: Schema) -> None:
    """Make the variables of members, every value missing."""
    of_members = _member_dimensions(experiment)
    for name, each in schema.variables.items():
        dimensions = (*of_members, *each.dimensions)
        sizes = [len(file.dimensions[dimension]) for dimension in dimensions]
        chunks = (
            *[1] * (len(of_members) - 1),
            min(len(experiment.seeds), 16),
            *sizes[len(of_members) :],
        )
        variable = file.create_variable(
            name,
            dimensions,
            np.float32,
            chunks=chunks,
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
    of_setting: Stretch,
) -> None:
    """Put records where they belong, of members of one setting, which are told by their seeds.

    Args:
      start: place of their arm, then that of their setting along every swept one.
    """
    steps = (of_setting.first_record + np.arange(of_setting.record_count)) * experiment.record_every
    place = {seed: i for i, seed in enumerate(experiment.seeds)}
    places = np.array([place[int(seed)] for seed in of_setting.numbers])
    order = np.argsort(places)  # HDF5 wants them so
    members: Any = places[order]
    if len(members) == members[-1] - members[0] + 1:  # a slice is much faster
        members = slice(members[0], members[-1] + 1)
    # -1, until it is set for good; an older stretch may be filled after a newer one
    at = (
        *start,
        members,
    )
    file["diverged_at"][at] = np.maximum(
        file["diverged_at"][at], of_setting.records["diverged_at"][-1][order]
    )
    for name, variable in schema.variables.items():
        values = np.moveaxis(of_setting.records[name], 0, 1)[order]  # (seeds, records, ...)
        due = np.isin(steps, schema.labels[variable.dimensions[0]])
        if due.any():
            first = np.searchsorted(schema.labels[variable.dimensions[0]], steps[due][0])
            file[name][(*start, members, slice(first, first + due.sum()))] = values[:, due]
