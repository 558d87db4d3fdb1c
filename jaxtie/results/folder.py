"""The run folder: configuration, records, results. Imports no jax.

A run appends its records as small files below `records/`, each written under another name and then
renamed. At its end, or when it is interrupted, they become one NetCDF-4 file, `results.nc`. A run
that resumes cuts them back to its checkpoint; a run that extends a finished one makes such files
from its `results.nc`.

Any changed bit is found: `results.nc` and the files of records end with the SHA-256 of the bytes
before it, `config.json` has its own, and a folder of several files, such as a checkpoint, a list.
"""

import contextlib
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np
import xarray as xr

from jaxtie.config import TaskConfig, UserError, check, check_path, differing_fields, member_number
from jaxtie.results.netcdf import Records, Schema, make_netcdf
from jaxtie.results.tables import swept

RUN_FORMAT = 2  # of run folders; another number where the code of one cannot read the other
LOCK = ".lock"
SEEDS_PER_FILE = 32  # seeds in a file of records that is made from results
RANDOM_SUFFIX = "????????"  # pattern of the end of a temporary name
DIGEST = hashlib.sha256().digest_size  # bytes
SUMS = "sha256.json"
TRAIN_AGAIN = "the same command trains its arm again from the start"

Say = Callable[[str], None]  # report one line to the user


def atomic_write(path: Path, *parts: bytes) -> None:
    """Replace a file by these parts, once they are on the disk: it is never half-written."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with open(handle, "wb") as file:
            file.writelines(parts)
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_sealed(path: Path, content: bytes) -> None:
    """Replace a file by content and its SHA-256, which readers of NetCDF-4 and of zip ignore."""
    atomic_write(path, content, hashlib.sha256(content).digest())


def read_sealed(path: Path, remedy: str) -> io.BytesIO:
    """Return the content of a file of `write_sealed`.

    Raises:
      UserError: if it cannot be read or has changed; the message ends with `remedy`.
    """
    try:
        whole = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}){remedy}") from error
    content = whole[:-DIGEST]
    check(
        hashlib.sha256(content).digest() == whole[-DIGEST:],
        f"{path}: is damaged, or no run wrote it{remedy}",
    )
    return io.BytesIO(content)


def _sums(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith((SUMS, f".{SUMS}")):
            with path.open("rb") as file:
                yield str(path.relative_to(folder)), hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(folder: Path) -> None:
    """Write the SHA-256 of each file of a folder, last: without it the folder is unfinished."""
    atomic_write(folder / SUMS, json.dumps(dict(_sums(folder)), indent=1).encode())


def find_damage(folder: Path) -> str | None:
    """Return how a folder is damaged; None if all files have the sums that were written."""
    try:
        written = json.loads((folder / SUMS).read_text())
        found = dict(_sums(folder))
    except FileNotFoundError:  # another process may be removing the folder
        return f"it has no {SUMS}: it was not finished"
    except (ValueError, RecursionError):
        written = None
    if not isinstance(written, dict) or not written:
        return f"its {SUMS} cannot be read"
    visible = {name for name in found if not Path(name).name.startswith(".")}  # not .DS_Store
    wrong = [
        name for name in sorted(written.keys() | visible) if found.get(name) != written.get(name)
    ]
    return f"damaged: {', '.join(wrong)}" if wrong else None


class _Part(NamedTuple):
    """A file of records of some members, as its name describes it."""

    path: Path
    arm: str
    first_record: int
    record_count: int
    first_number: int

    @classmethod
    def parse(cls, path: Path) -> "_Part | None":
        """Read a file's name, where an arm's name may hold dots; None: it is no file of records."""
        pattern = r"(.+)\.([0-9]{9,})\.([0-9]{9,})\.([0-9]{10,})\.npz"
        if not (match := re.fullmatch(pattern, path.name)) or not path.is_file():
            return None
        arm, *numbers = match.groups()
        return cls(path, arm, *map(int, numbers))

    def read(self) -> Records:
        """Return the records.

        Raises:
          UserError: if the file is damaged, or another one was given its name.
        """
        with np.load(read_sealed(self.path, f"; {TRAIN_AGAIN}"), allow_pickle=False) as file:
            values = dict(file)
        numbers = values.pop("member")
        shapes = {each.shape[:2] for each in values.values()}
        check(
            shapes == {(self.record_count, len(numbers))} and numbers[0] == self.first_number,
            f"{self.path}: its records are not those that its name says; {TRAIN_AGAIN}",
        )
        return Records(numbers, self.first_record, values)


class RunFolder:
    """The files of a run. Creating the object changes nothing."""

    def __init__(self, path: Path):
        """Name the files in the folder `path`."""
        self.path = path
        self.results = path / "results.nc"
        self.figures = path / "figures"
        self.summary = path / "summary.md"
        self.claims = path / "claims.md"
        self.page = path / "report.html"
        self.checkpoints = path / "checkpoints"
        self.points = path / "points"  # folders of a sweep's runs
        self._config = path / "config.json"
        self._records = path / "records"

    @property
    def vocabulary(self) -> Path:
        """The vocabulary that was trained for the run, if there is one."""
        found = self.path / "tokenizer.json"
        return found if found.exists() else self.path / "vocab.txt"

    def config(self) -> dict[str, Any] | None:
        """Return `config.json`, or None where there is no run.

        Raises:
          UserError: if it cannot be read, has changed, or another version of jaxtie wrote it.
        """
        if self._config.exists():
            check_path(self._config)
        try:
            config = json.loads(self._config.read_text(encoding="utf-8"))
            number, written = config.get("format"), config.pop("sha256", None)
            if number == RUN_FORMAT and written != _hash(config):
                raise ValueError("it has changed since a run wrote it")
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            raise UserError(f"{self.path}: not a folder; choose another --out") from error
        except (ValueError, AttributeError, RecursionError, OSError) as error:
            raise UserError(
                f"{self._config}: cannot be read as a run's configuration ({error}); restore it, or"
                " run again with --overwrite"
            ) from error
        if number != RUN_FORMAT:
            raise UserError(
                f"{self._config}: format = {number!r}: expected {RUN_FORMAT}; another version of"
                " jaxtie wrote this run: read it with that version, or run again with --overwrite"
            )
        return config

    def differences(self, experiment: TaskConfig, config: dict[str, Any]) -> list[str]:
        """Return the names of the fields other than the claim in which `experiment` differs."""
        as_json = json.loads(json.dumps(experiment.as_dict()))
        return differing_fields(as_json | {"claim": ""}, config["experiment"] | {"claim": ""})

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep other runs from writing to it while this process lives.

        Raises:
          UserError: where another run writes, the folder holds other files than a run's, or cannot
            be written.
        """
        try:
            others = set(os.listdir(self.path)) if self.path.is_dir() else set()
            others -= {LOCK, *(path.name for path in self._leftovers())}
            if others and not self._config.exists():
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
            for leftover in self._leftovers():
                leftover.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    def _leftovers(self) -> list[Path]:
        """Return the temporary files of killed runs, or of the one that has the lock."""
        replaced = (self._config, self.results, self.vocabulary, self.claims, self.page)
        patterns = [f".{path.name}.{RANDOM_SUFFIX}" for path in replaced]
        found = [self.path.glob(pattern) for pattern in patterns]
        return list(itertools.chain(*found, self._records.glob(f".*.npz.{RANDOM_SUFFIX}")))

    def check_space(self, needed: int) -> None:
        """Check the disk before the start.

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
        """Remove the files of an earlier run, then write the configuration.

        So a folder killed at any moment is the earlier run's, perhaps with files missing, or starts
        from step 0.
        """
        for each in (self.checkpoints, self.points, self._records, self.figures):
            shutil.rmtree(each, ignore_errors=not each.exists())
        for each in (self.summary, self.claims, self.page, self.vocabulary, self.results):
            each.unlink(missing_ok=True)
        self.write_config(config)

    def write_config(self, config: dict[str, Any]) -> None:
        """Replace `config.json`."""
        config = {"format": RUN_FORMAT} | config
        text = json.dumps(config | {"sha256": _hash(config)}, indent=1)
        atomic_write(self._config, f"{text}\n".encode())

    def write_vocabulary(self, content: bytes) -> None:
        """Save the vocabulary that was trained for the run; other versions may train another."""
        name = "tokenizer.json" if content.startswith(b"{") else "vocab.txt"
        atomic_write(self.path / name, content)

    def append(
        self, arm: str, first_record: int, numbers: np.ndarray, records: Mapping[str, np.ndarray]
    ) -> None:
        """Save records of some members of an arm: arrays (records, members, ...)."""
        count = len(next(iter(records.values())))
        target = self._records / f"{arm}.{first_record:09d}.{count:09d}.{int(numbers[0]):010d}.npz"
        content = io.BytesIO()
        arrays: dict[str, Any] = {"member": numbers, **records}
        np.savez(content, **arrays)
        write_sealed(target, content.getvalue())

    def copy_records(self, arm: str, other: str, last: int) -> None:
        """Copy an arm's records, up to number `last`, to another arm."""
        for part in self._parts():
            if part.arm == arm and part.first_record <= last:
                self._copy(part, other, last + 1 - part.first_record)

    def _copy(self, part: _Part, arm: str, count: int) -> None:
        """Save the first records of a file for an arm."""
        whole = part.read()
        records = {name: values[:count] for name, values in whole.values.items()}
        self.append(arm, part.first_record, whole.numbers, records)

    def start_records(self, reached: Mapping[str, Mapping[int, int]], every: int) -> None:
        """Prepare for records, and drop those past the steps from which a run resumes.

        Args:
          reached: an arm's name -> a member's number -> its step; a member that is missing keeps no
            records.
          every: steps from one record to the next.
        """
        self._records.mkdir(exist_ok=True)
        for part in self._parts():
            step = reached.get(part.arm, {}).get(part.first_number, -1)
            keep = step // every + 1 - part.first_record
            if 0 < keep < part.record_count:
                self._copy(part, part.arm, keep)
            if keep < part.record_count:
                part.path.unlink()

    def check_records(self, arm: str, reached: Mapping[int, int], every: int) -> None:
        """Check that an arm has all records up to the steps from which it resumes.

        Args:
          arm: its name.
          reached: a member's number -> its step; not empty.
          every: steps from one record to the next.

        Raises:
          UserError: if a record is missing or its file is damaged.
        """
        numbers = np.array(sorted(reached))
        due = np.array([reached[number] // every + 1 for number in numbers.tolist()])
        counts, variables = np.zeros_like(due), set()
        for part in sorted(self._parts(), key=lambda part: part.first_record):
            if part.arm != arm or part.first_record > reached.get(part.first_number, -1) // every:
                continue
            records = part.read()
            variables.add(frozenset(records.values))
            places = np.searchsorted(numbers, records.numbers).clip(max=len(numbers) - 1)
            places = places[numbers[places] == records.numbers]
            places = places[counts[places] >= part.first_record]  # without a gap
            counts[places] = np.maximum(counts[places], part.first_record + part.record_count)
        if (counts < due).any() or len(variables) > 1:
            raise UserError(
                f"{self._records}: lacks records of arm {arm} up to its checkpoint; {TRAIN_AGAIN}"
            )

    def unpack(self, schema: Schema) -> None:
        """Make records from the finished `results.nc`, so that they can be extended."""
        results = self.load()
        self._records.mkdir(exist_ok=True)
        names = swept(results)
        starts = range(0, results.sizes["seed"], SEEDS_PER_FILE)
        for arm, start in itertools.product(results["arm"].values, starts):
            for point, place in enumerate(np.ndindex(*(results.sizes[name] for name in names))):
                at = dict(zip(names, place, strict=True)) | {
                    "seed": slice(start, start + SEEDS_PER_FILE)
                }
                members = results.sel(arm=arm).isel(at)
                numbers = member_number(point, members["seed"].values)
                self.append(str(arm), 0, numbers, _records_of(members, schema))

    def assemble(
        self,
        experiment: TaskConfig,
        schema: Schema,
        attributes: Mapping[str, str | int | float],
        constants: Mapping[str, xr.DataArray],
    ) -> None:
        """Make `results.nc` from the records; see `make_netcdf`."""
        parts = ((part.arm, part.read()) for part in self._parts())
        write_sealed(self.results, make_netcdf(experiment, schema, attributes, constants, parts))

    def _parts(self) -> list[_Part]:
        """Return the files of records, by members and then by steps."""
        found = map(_Part.parse, self._records.glob("[!.]*.npz"))
        parts = [part for part in found if part]
        return sorted(parts, key=lambda part: (part.arm, part.first_number, part.first_record))

    def discard_records(self) -> None:
        """Remove the files of records, once `results.nc` has them, and their folder if empty."""
        for part in self._parts():
            part.path.unlink()
        with contextlib.suppress(OSError):
            self._records.rmdir()

    def load(self) -> xr.Dataset:
        """Return the results.

        Raises:
          UserError: where there are none, they have changed, or another version wrote them.
        """
        remedy = ""
        if (config := self.config()) is not None:
            overwrite = "; run again with --overwrite"
            remedy = overwrite if config.get("finished") else "; the same command goes on"
        if not self.results.is_file():
            inside = sorted(path.parent.name for path in self.path.glob("*/results.nc"))
            wanted = f"one of its folders, such as {inside[0]}" if inside else "the folder of a run"
            raise UserError(f"{self.path}: holds no results.nc{remedy or f'; give {wanted}'}")
        return xr.load_dataset(read_sealed(self.results, remedy), engine="h5netcdf")


def _hash(config: dict[str, Any]) -> str:
    """Return the SHA-256 of a configuration, the same before it was written and after."""
    return hashlib.sha256(json.dumps(config).encode()).hexdigest()


def _records_of(members: xr.Dataset, schema: Schema) -> dict[str, np.ndarray]:
    """Return the records of some members of an arm; 0 where nothing was evaluated."""
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
