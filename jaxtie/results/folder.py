"""The run folder: configuration, records as they come, the labelled dataset. Imports no jax.

While a run goes on, its records are appended as small files below `records/`, each written under
another name and then renamed; at its end, or when it is interrupted, they become one NetCDF-4 file,
`results.nc`. A run that goes on cuts them back to its checkpoint; a run that extends a finished one
makes such files of its `results.nc`.
"""

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np
import xarray as xr

from jaxtie.config import TaskConfig, UserError, differing_fields, number_of
from jaxtie.results.netcdf import Schema, Stretch, joined, write_netcdf
from jaxtie.results.tables import swept

LOCK = ".lock"
UNPACKED = 32  # seeds in a file of records that is made of results

Say = Callable[[str], None]  # what a user is told, a line at a time


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and vanishes
    otherwise.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class _Part(NamedTuple):
    """A file of records of some members, as its name tells: from which record on, how many, of
    which first member.
    """

    path: Path
    arm: str
    first_record: int
    record_count: int
    first_number: int

    @classmethod
    def parse(cls, path: Path) -> "_Part":
        arm, *numbers, _ = path.name.rsplit(".", 4)  # an arm's name may hold dots
        return cls(path, arm, *map(int, numbers))

    def read(self) -> Stretch:
        with np.load(self.path, allow_pickle=False) as file:
            records = dict(file)
        return Stretch(records.pop("member"), self.first_record, records)


class RunFolder:
    """One run's files. Creating the object touches nothing."""

    def __init__(self, path: Path):
        self.path = path
        self.results = path / "results.nc"
        self.figures = path / "figures"
        self.summary = path / "summary.md"
        self.checkpoints = path / "checkpoints"
        self.vocabulary = path / "vocab.txt"  # that was trained for the run
        self._config = path / "config.json"
        self._records = path / "records"

    def config(self) -> dict[str, Any] | None:
        """What `config.json` says, or None where there is no run.

        Raises:
          UserError: where it cannot be read.
        """
        try:
            config = json.loads(self._config.read_text(encoding="utf-8"))
            config["experiment"]["name"]
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            raise UserError(f"{self.path}: not a folder; choose another --out") from error
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise UserError(
                f"{self._config}: cannot be read as a run's configuration ({error}); remove it"
            ) from error
        return config

    def differences(self, experiment: TaskConfig, config: dict[str, Any]) -> list[str]:
        """Names of the fields in which the folder's run differs from `experiment`; its claim does
        not matter.
        """
        return differing_fields(
            _plain(experiment) | {"claim": ""}, config["experiment"] | {"claim": ""}
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep other runs from writing to it; the lock dies with the process.

        Raises:
          UserError: where another run writes, the folder holds other files than a run's, or cannot
            be written.
        """
        try:
            if (
                self.path.is_dir()
                and not self._config.exists()
                and set(os.listdir(self.path)) - {LOCK}
            ):
                raise UserError(
                    f"--out {self.path}: holds other files than a run's; choose an empty or a new"
                    " folder"
                )
            self.path.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.path / LOCK, timeout=0)
            lock.acquire()
        except filelock.Timeout as error:
            raise UserError(
                f"--out {self.path}: another run is writing there; wait for it or choose another"
                " folder"
            ) from error
        except (OSError, NotImplementedError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(
                f"--out {self.path}: cannot be written ({reason}); choose another folder"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def check_space(self, needed: int) -> None:
        """Ask for room before the start.

        Raises:
          UserError: if the disk has less than `needed` bytes left.
        """
        free = shutil.disk_usage(self.path).free
        if free < needed:
            raise UserError(
                f"--out {self.path}: the run takes up to {needed / 2**20:,.0f} MiB, the disk has"
                f" {free / 2**20:,.0f} MiB left; make room, choose another folder, or record less"
                " often"
            )

    def create(self, config: dict[str, Any]) -> None:
        """Write the configuration, and remove what an earlier run left.

        Its checkpoints go first: killed at any moment, the folder is the earlier run's or one that
        starts from step 0.
        """
        shutil.rmtree(self.checkpoints, ignore_errors=not self.checkpoints.exists())
        self.write_config(config)
        for leftover in (self._records, self.figures):
            shutil.rmtree(leftover, ignore_errors=not leftover.exists())
        for leftover in (self.results, self.summary, self.vocabulary):
            leftover.unlink(missing_ok=True)

    def write_config(self, config: dict[str, Any]) -> None:
        """Put `config.json` in the place of what it was."""
        with _replacing(self._config) as path:
            path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")

    def write_vocabulary(self, content: bytes) -> None:
        """Keep the vocabulary that was trained for the run: another version might train another."""
        with _replacing(self.vocabulary) as path:
            path.write_bytes(content)

    def append(
        self, arm: str, first_record: int, numbers: np.ndarray, records: Mapping[str, np.ndarray]
    ) -> None:
        """Keep records of some members of the arm of this name, arrays (records, members, ...)."""
        count = len(next(iter(records.values())))
        target = self._records / f"{arm}.{first_record:09d}.{count:09d}.{int(numbers[0]):010d}.npz"
        with _replacing(target) as path, path.open("wb") as file:
            arrays: dict[str, Any] = {"member": numbers, **records}
            np.savez(file, **arrays)

    def copy_records(self, arm: str, other: str, last: int) -> None:
        """Give another arm an arm's records up to the one of number `last`."""
        for part in self._parts():
            if part.arm == arm and part.first_record <= last:
                whole, kept = part.read(), last + 1 - part.first_record
                records = {name: values[:kept] for name, values in whole.records.items()}
                self.append(other, part.first_record, whole.numbers, records)

    def start_records(self, reached: Mapping[str, Mapping[int, int]], every: int) -> None:
        """Make the place for records, and drop those past what a run goes on from.

        Args:
          reached: an arm's name -> a member's number -> the step that it stands at; it has no
            records if it is not there.
          every: steps from one record to the next.
        """
        self._records.mkdir(exist_ok=True)
        for leftover in self._records.glob(".*"):
            leftover.unlink()
        for part in self._parts():
            keep = (
                reached.get(part.arm, {}).get(part.first_number, -1) // every
                + 1
                - part.first_record
            )
            if 0 < keep < part.record_count:
                whole = part.read()
                kept = {name: values[:keep] for name, values in whole.records.items()}
                self.append(part.arm, part.first_record, whole.numbers, kept)
            if keep < part.record_count:
                part.path.unlink()

    def unpack(self, schema: Schema) -> None:
        """Make records of the finished `results.nc` again, so that they can be extended."""
        results = self.load()
        self._records.mkdir(exist_ok=True)
        names = swept(results)
        for arm, start in itertools.product(
            results["arm"].values, range(0, results.sizes["seed"], UNPACKED)
        ):
            for setting, place in enumerate(np.ndindex(*(results.sizes[name] for name in names))):
                at = dict(zip(names, place, strict=True)) | {"seed": slice(start, start + UNPACKED)}
                members = results.sel(arm=arm).isel(at)
                self.append(
                    str(arm),
                    0,
                    number_of(setting, members["seed"].values),
                    _records_of(members, schema),
                )

    def assemble(
        self,
        experiment: TaskConfig,
        schema: Schema,
        attributes: Mapping[str, str | int | float],
        constants: Mapping[str, xr.DataArray],
    ) -> None:
        """Make `results.nc` of what was recorded, some members at a time; what was not reached is
        NaN.

        Args:
          attributes: about the whole run.
          constants: variables that no member owns, such as the best reachable loss.
        """
        with _replacing(self.results) as path:
            write_netcdf(path, experiment, schema, attributes, constants, self._stretches())

    def _parts(self) -> list[_Part]:
        """Files of records; those of one member one after the other, in the order of their
        steps.
        """
        parts = map(_Part.parse, self._records.glob("[!.]*.npz"))
        return sorted(parts, key=lambda part: (part.arm, part.first_number, part.first_record))

    def _stretches(self) -> Iterator[tuple[str, Stretch]]:
        """All records with their arms' names; in memory are those of the members of a file at a
        time.
        """
        for (arm, _), parts in itertools.groupby(
            self._parts(), lambda part: (part.arm, part.first_number)
        ):
            for stretch in joined([part.read() for part in parts]):
                yield arm, stretch

    def discard_records(self) -> None:
        """Drop the records' files, once `results.nc` has them."""
        shutil.rmtree(self._records)

    def load(self) -> xr.Dataset:
        """The labelled results, whatever variables there are.

        Raises:
          UserError: where there are none, or they cannot be read.
        """
        try:
            return xr.load_dataset(self.results, engine="h5netcdf")
        except FileNotFoundError as error:
            raise UserError(
                f"{self.path}: holds no results.nc; give the folder of a run"
            ) from error
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"{self.results}: cannot be read ({reason}); run again with --overwrite"
            ) from error


def _plain(experiment: TaskConfig) -> dict[str, Any]:
    """The configuration as JSON gives it back."""
    return json.loads(json.dumps(experiment.as_dict()))


def _records_of(members: xr.Dataset, schema: Schema) -> dict[str, np.ndarray]:
    """The records that results of some members of one arm and setting were made of; 0 where nothing
    was due.
    """
    shape = members.sizes["step"], members.sizes["seed"]
    records = {"diverged_at": np.broadcast_to(members["diverged_at"].values, shape)}
    for name, variable in schema.variables.items():
        along = variable.dimensions[0]
        values = np.moveaxis(members[name].values, 1, 0)
        if along != "step":
            due, values = values, np.zeros((shape[0], *values.shape[1:]), values.dtype)
            values[np.searchsorted(members["step"].values, members[along].values)] = due
        records[name] = values
    return records
