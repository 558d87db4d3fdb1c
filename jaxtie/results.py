"""The run folder: configuration, records as they come, the labelled dataset. Imports no jax.

While a run goes on its records are appended as small files below `records/`, each written under another name and then
renamed; at its end, or when it is interrupted, they become one NetCDF-4 file, `results.nc`. A run that goes on cuts them
back to its checkpoint, and makes such files of the `results.nc` of a finished one that it extends.
"""

import itertools
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import filelock
import h5netcdf
import numpy as np
import xarray as xr

from jaxtie.config import SEEDS, Experiment, Study, TextExperiment, UserError

LOCK = ".lock"

# name -> (dimensions after arm, swept settings and seed, units, what it is)
VARIABLES = {
    "loss": (("step",), "nat", "training loss: mean over the batches of the updates since the record before"),
    "accuracy": (("step",), "1", "training accuracy: mean over the batches of the updates since the record before"),
    "train_loss": (("eval_step",), "nat", "exact expected loss on the training split"),
    "train_accuracy": (("eval_step",), "1", "exact expected accuracy on the training split"),
    "valid_loss": (("eval_step",), "nat", "exact expected loss on the validation split"),
    "valid_accuracy": (("eval_step",), "1", "exact expected accuracy on the validation split"),
    "log_odds": (
        ("eval_step", "pair"),
        "nat",
        "expected ln p(second) - ln p(first) where the pair can stand, training",
    ),
    "log_odds_deviation": (("eval_step", "pair"), "nat", "its standard deviation over these contexts"),
    "input_distance": (("step", "symbol", "symbol2"), "1", "Euclidean distance between rows of the input embedding"),
    "output_distance": (("step", "symbol", "symbol2"), "1", "Euclidean distance between rows of the output embedding"),
    "input_table": (("table_step", "symbol", "dim"), "1", "input embedding"),
    "output_table": (("table_step", "symbol", "dim"), "1", "output embedding (tied: the input embedding)"),
}
# What no member owns: computed from the process and the configuration.
CONSTANTS = (
    "best_accuracy",
    "best_loss",
    "theory_log_odds",
    "scheduled_learning_rate",
    "semantic_divergence",
    "conditional_divergence",
    "conditional_log_ratio",
)
# Of a comparison of heads: by head, seed and step; the last two by head alone.
HEAD_VARIABLES = ("loss", "valid_loss", "estimate", "seconds")


TRAINED = {name: VARIABLES[name] for name in ("loss", "accuracy")}
PAIRS = ("eval_step", "kind", "pair")
PROBES, NEIGHBOURS = 8, 5  # words whose nearest neighbours are looked up, and how many of these
NEAREST = ("eval_step", "probe", "rank")
TEXT_VARIABLES = TRAINED | {
    "valid_loss": (("eval_step",), "nat", "loss on the validation split, the same rows and masks each time"),
    "valid_accuracy": (("eval_step",), "1", "accuracy on the validation split"),
    "perplexity": (("eval_step",), "1", "exp(valid_loss)"),
    "input_distance": (PAIRS, "1", "Euclidean distance between the rows of a pair of words in the input embedding"),
    "output_distance": (PAIRS, "1", "Euclidean distance between the rows of a pair of words in the output embedding"),
    "input_neighbour": (NEAREST, "1", "number of the token whose row in the input embedding is nearest, then next, ..."),
    "output_neighbour": (NEAREST, "1", "number of the token whose row in the output embedding is nearest, then next, ..."),
}
TEXT_CONSTANTS = ("first_word", "second_word", "probe_word", "token", "scheduled_learning_rate")


class Schema(NamedTuple):
    """What the results of a kind of experiment hold, beside `diverged_at`.

    Attributes:
      variables: each member's own: name -> (dimensions after arm, swept settings and seed; units; what it is).
      constants: names of what no member owns.
    """

    variables: dict[str, tuple[tuple[str, ...], str, str]]
    constants: tuple[str, ...]

    @classmethod
    def of(cls, experiment: Experiment | TextExperiment) -> "Schema":
        return TEXT if isinstance(experiment, TextExperiment) else EXOR


EXOR, TEXT = Schema(VARIABLES, CONSTANTS), Schema(TEXT_VARIABLES, TEXT_CONSTANTS)


def is_text(results: xr.Dataset) -> bool:
    """Whether the results are of a language model of text, and not of EXor."""
    return "task" in results.attrs


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and vanishes otherwise."""
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


def differing_fields(new: dict, old: dict, prefix: str = "") -> list[str]:
    """Dotted names of the fields in which two nested configurations differ."""
    names = []
    for name in sorted(new.keys() | old.keys()):
        a, b = new.get(name), old.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            names += differing_fields(a, b, f"{prefix}{name}.")
        elif a != b:
            names.append(prefix + name)
    return names


class _Part(NamedTuple):
    """A file of records of some members, as its name tells: from which record on, how many, of which first member."""

    path: Path
    arm: str
    first_record: int
    count: int
    first_member: int

    @classmethod
    def read(cls, path: Path) -> "_Part":
        arm, *numbers, _ = path.name.split(".")
        return cls(path, arm, *map(int, numbers))


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

    def config(self) -> dict | None:
        """What `config.json` says, or None where there is no run."""
        try:
            config = json.loads(self._config.read_text(encoding="utf-8"))
            config["experiment"]["name"]
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            raise UserError(f"{self.path}: not a folder; choose another --out") from error
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise UserError(f"{self._config}: cannot be read as a run's configuration ({error}); remove it") from error
        return config

    def differences(self, experiment: Experiment | TextExperiment | Study, config: dict) -> list[str]:
        """Names of the fields in which the folder's run differs from `experiment`; its claim does not matter."""
        plain = lambda each: json.loads(json.dumps(each.as_dict()))
        new, old = plain(experiment), plain(type(experiment)()) | config["experiment"]  # which may not know every field yet
        return differing_fields(new | {"claim": ""}, old | {"claim": ""})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep other runs from writing to it; the lock dies with the process.

        Raises:
          UserError: where another run writes, the folder holds other files than a run's, or cannot be written.
        """
        try:
            if self.path.is_dir() and not self._config.exists() and set(os.listdir(self.path)) - {LOCK}:
                raise UserError(f"--out {self.path}: holds other files than a run's; choose an empty or a new folder")
            self.path.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.path / LOCK, timeout=0)
            lock.acquire()
        except filelock.Timeout as error:
            raise UserError(
                f"--out {self.path}: another run is writing there; wait for it or choose another folder"
            ) from error
        except (OSError, NotImplementedError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"--out {self.path}: cannot be written ({reason}); choose another folder") from error
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
                f"--out {self.path}: the run takes up to {needed / 2**20:,.0f} MiB, the disk has {free / 2**20:,.0f} MiB "
                "left; make room, choose another folder, or record less often"
            )

    def create(self, config: dict) -> None:
        """Write the configuration, and remove what an earlier run left.

        Its checkpoints go first: killed at any moment, the folder is the earlier run's or one that starts from step 0.
        """
        shutil.rmtree(self.checkpoints, ignore_errors=not self.checkpoints.exists())
        self.write_config(config)
        for leftover in (self._records, self.figures):
            shutil.rmtree(leftover, ignore_errors=not leftover.exists())
        for leftover in (self.results, self.summary, self.vocabulary):
            leftover.unlink(missing_ok=True)

    def write_config(self, config: dict) -> None:
        with _replacing(self._config) as path:
            path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")

    def write_vocabulary(self, content: bytes) -> None:
        """Keep the vocabulary that was trained for the run, which cannot be made again."""
        with _replacing(self.vocabulary) as path:
            path.write_bytes(content)

    def append(self, arm: str, first_record: int, members: np.ndarray, records: dict[str, np.ndarray]) -> None:
        """Keep the records of some members (`Experiment.members`), arrays (records, members, ...)."""
        count = len(records["loss"])
        target = self._records / f"{arm}.{first_record:09d}.{count:09d}.{int(members[0]):010d}.npz"
        with _replacing(target) as path, path.open("wb") as file:
            np.savez(file, member=members, **records)

    def start_records(self, reached: Mapping[str, Mapping[int, int]], every: int) -> None:
        """Make the place for records, and drop those past what a run goes on from.

        Args:
          reached: arm -> member -> the step that it stands at; it has no records if it is not there.
          every: steps from one record to the next.
        """
        self._records.mkdir(exist_ok=True)
        for leftover in self._records.glob(".*"):
            leftover.unlink()
        for part in self._parts():
            keep = reached.get(part.arm, {}).get(part.first_member, -1) // every + 1 - part.first_record
            if 0 < keep < part.count:
                records = _read(part.path)
                self.append(part.arm, part.first_record, records.pop("member"), {k: v[:keep] for k, v in records.items()})
            if keep < part.count:
                part.path.unlink()

    def unpack(self) -> None:
        """Make records of the finished `results.nc` again, so that they can be extended."""
        results = self.load()
        self._records.mkdir(exist_ok=True)
        evaluated = np.searchsorted(results["step"].values, results["eval_step"].values)
        swept = results["diverged_at"].dims[1:-1]
        for arm, start in itertools.product(results["arm"].values, range(0, results.sizes["seed"], 32)):
            for setting, place in enumerate(np.ndindex(*(results.sizes[name] for name in swept))):
                members = results.sel(arm=arm).isel(dict(zip(swept, place)) | {"seed": slice(start, start + 32)})
                shape = results.sizes["step"], members.sizes["seed"]
                records = {"diverged_at": np.broadcast_to(members["diverged_at"].values, shape)}
                for name, (dimensions, _, _) in (TEXT if is_text(results) else EXOR).variables.items():
                    values = np.moveaxis(members[name].values, 1, 0)
                    if dimensions[0] != "step":
                        at_evaluations, values = values, np.zeros((shape[0], *values.shape[1:]), values.dtype)
                        values[evaluated] = at_evaluations
                    records[name] = values
                self.append(str(arm), 0, setting * SEEDS + members["seed"].values, records)

    def assemble(self, experiment: Experiment | TextExperiment, attributes: dict, constants: dict[str, xr.DataArray]) -> None:
        """Make `results.nc` of what was recorded, some members at a time; what was not reached is NaN.

        Args:
          attributes: strings and numbers about the whole run.
          constants: variables that no member owns, such as the best reachable loss.
        """
        with _replacing(self.results) as path:
            _skeleton(experiment, attributes, constants).to_netcdf(path, engine="h5netcdf")
            with h5netcdf.File(path, "a") as file:
                _create_variables(file, experiment)
                for (arm, _), parts in itertools.groupby(self._parts(), lambda part: (part.arm, part.first_member)):
                    for members, first_record, records in _joined([(part, _read(part.path)) for part in parts]):
                        for setting in np.unique(members // SEEDS):
                            own = np.flatnonzero(members // SEEDS == setting)
                            place = np.unravel_index(setting, [len(values) for _, values in experiment.sweep])
                            of_setting = {name: values[:, own] for name, values in records.items()}
                            _fill(file, experiment, arm, place, first_record, members[own] % SEEDS, of_setting)

    def write_results(self, results: xr.Dataset) -> None:
        """Put a whole dataset in the place of `results.nc`."""
        with _replacing(self.results) as path:
            results.to_netcdf(path, engine="h5netcdf")

    def _parts(self) -> list[_Part]:
        """Files of records; those of one member one after the other, in the order of their steps."""
        parts = map(_Part.read, self._records.glob("[!.]*.npz"))
        return sorted(parts, key=lambda part: (part.arm, part.first_member, part.first_record))

    def discard_records(self) -> None:
        """Drop the records' files, once `results.nc` has them."""
        shutil.rmtree(self._records)

    def load(self) -> xr.Dataset:
        """The labelled results.

        Raises:
          UserError: where there are none, they cannot be read, or an older version wrote less.
        """
        try:
            results = xr.load_dataset(self.results, engine="h5netcdf")
        except FileNotFoundError as error:
            raise UserError(f"{self.path}: holds no results.nc; give the folder of a run") from error
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{self.results}: cannot be read ({error}); run again with --overwrite") from error
        variables, constants = TEXT if is_text(results) else EXOR
        expected = HEAD_VARIABLES if "head" in results.dims else (*variables, *constants, "diverged_at")
        if missing := [name for name in expected if name not in results]:
            raise UserError(
                f"{self.results}: lacks {', '.join(missing)}, so another version wrote it; run again with --overwrite"
            )
        return results


def labels_of(experiment: Experiment | TextExperiment) -> dict:
    """Name -> labels of every dimension that a member's variables have."""
    steps = {"step": experiment.record_steps, "eval_step": experiment.eval_steps}
    if isinstance(experiment, TextExperiment):
        probes = np.arange(min(PROBES, experiment.words))
        return steps | {
            "kind": list(experiment.kinds),
            "pair": np.arange(experiment.words),
            "probe": probes * (experiment.words // len(probes)),
            "rank": np.arange(NEIGHBOURS),
        }
    symbols = list(experiment.process.symbols)
    return steps | {
        "table_step": experiment.eval_steps,
        "symbol": symbols,
        "symbol2": symbols,
        "pair": list(experiment.process.pairs),
        "dim": np.arange(experiment.model.width),
    }


def _skeleton(experiment: Experiment | TextExperiment, attributes: dict, constants: dict[str, xr.DataArray]) -> xr.Dataset:
    coordinates = {
        "arm": list(experiment.arms),
        **{name: np.array(values, np.float64) for name, values in experiment.sweep},
        "seed": np.array(experiment.seeds, np.int64),
        **{
            name: np.array(labels, np.int64) if name.endswith("step") else labels
            for name, labels in labels_of(experiment).items()
        },
    }
    dataset = xr.Dataset(constants, coordinates, attributes)
    dimensions = _member_dimensions(experiment)
    dataset["diverged_at"] = xr.DataArray(
        np.full([len(coordinates[name]) for name in dimensions], -1, np.int32),
        dims=dimensions,
        attrs={"units": "step", "long_name": "step at which the member stopped being finite; -1: never"},
    )
    for name in [name for name in coordinates if name.endswith("step")]:
        dataset[name].attrs = {"units": "1", "long_name": "number of updates made"}
    return dataset


def _member_dimensions(experiment: Experiment | TextExperiment) -> tuple[str, ...]:
    return ("arm", *(name for name, _ in experiment.sweep), "seed")


def _create_variables(file: h5netcdf.File, experiment: Experiment | TextExperiment) -> None:
    of_members = _member_dimensions(experiment)
    for name, (dimensions, units, long_name) in Schema.of(experiment).variables.items():
        dimensions = (*of_members, *dimensions)
        sizes = [len(file.dimensions[dimension]) for dimension in dimensions]
        chunks = (*[1] * (len(of_members) - 1), min(len(experiment.seeds), 16), *sizes[len(of_members) :])
        variable = file.create_variable(
            name, dimensions, np.float32, chunks=chunks, fillvalue=np.float32(math.nan), compression="gzip",
            compression_opts=1, shuffle=True,
        )  # fmt: skip
        variable.attrs.update({"units": units, "long_name": long_name})


def _read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def _joined(parts: list[tuple[_Part, dict]]) -> Iterator[tuple[np.ndarray, int, dict]]:
    """Members, first record and records of runs of parts that have the same members, and no gap between them."""
    runs: list[list[tuple[_Part, dict]]] = []
    for part, records in parts:
        if runs:
            last, before = runs[-1][-1]
            if part.first_record == last.first_record + last.count and np.array_equal(before["member"], records["member"]):
                runs[-1].append((part, records))
                continue
        runs.append([(part, records)])
    for run in runs:
        names = run[0][1].keys() - {"member"}
        records = {name: np.concatenate([records[name] for _, records in run]) for name in names}
        yield run[0][1]["member"], run[0][0].first_record, records


def _fill(
    file: h5netcdf.File,
    experiment: Experiment | TextExperiment,
    arm: str,
    setting: tuple[int, ...],
    first_record: int,
    seeds: np.ndarray,
    records: dict,
) -> None:
    """Put records of members of one setting, of which this is the place in the sweep's grid, where they belong."""
    steps = (first_record + np.arange(len(records["loss"]))) * experiment.record_every
    evaluations = np.searchsorted(experiment.eval_steps, steps)
    evaluated = np.take(experiment.eval_steps, evaluations) == steps
    start, place = (experiment.arms.index(arm), *setting), {seed: i for i, seed in enumerate(experiment.seeds)}
    places = np.array([place[int(seed)] for seed in seeds])
    order = np.argsort(places)  # HDF5 wants them so
    members = places[order]
    if len(members) == members[-1] - members[0] + 1:  # a slice is much faster
        members = slice(members[0], members[-1] + 1)
    file["diverged_at"][(*start, members)] = records["diverged_at"][-1][order]
    for name, (dimensions, _, _) in Schema.of(experiment).variables.items():
        values = np.moveaxis(records[name], 0, 1)[order]  # (seeds, records, ...)
        if dimensions[0] == "step":
            file[name][(*start, members, slice(first_record, first_record + len(steps)))] = values
        elif evaluated.any():
            first = evaluations[evaluated][0]
            file[name][(*start, members, slice(first, first + evaluated.sum()))] = values[:, evaluated]


def size_in_bytes(experiment: Experiment | TextExperiment) -> int:
    """Of all records of a run, before compression."""
    lengths = {name: len(labels) for name, labels in labels_of(experiment).items()}
    of_member = Schema.of(experiment).variables.values()
    values = sum(math.prod(lengths[name] for name in dimensions) for dimensions, _, _ in of_member)
    return 4 * values * len(experiment.members) * len(experiment.arms)
