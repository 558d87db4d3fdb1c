"""The run folder: configuration, records as they come, the labelled dataset. Imports no jax.

While a run goes on its records are appended as small files below `records/`, each written under another name and then
renamed; at its end, or when it is interrupted, they become one NetCDF-4 file, `results.nc`.
"""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5netcdf
import numpy as np
import xarray as xr

from jaxtie.config import Experiment, UserError

# name -> (dimensions after arm and seed, units, what it is)
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


class RunFolder:
    """One run's files. Creating the object touches nothing."""

    def __init__(self, path: Path):
        self.path = path
        self.results = path / "results.nc"
        self.figures = path / "figures"
        self.summary = path / "summary.md"
        self._config = path / "config.json"
        self._records = path / "records"

    def config(self) -> dict | None:
        """What `config.json` says, or None where there is no run."""
        try:
            config = json.loads(self._config.read_text())
            config["experiment"]["name"]
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            raise UserError(f"{self.path}: not a folder; choose another --out") from error
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise UserError(f"{self._config}: cannot be read as a run's configuration ({error}); remove it") from error
        return config

    def differences(self, experiment: Experiment, config: dict) -> list[str]:
        """Names of the fields in which the folder's run differs from `experiment`; its claim does not matter."""
        new, old = json.loads(json.dumps(experiment.as_dict())), config["experiment"]
        return differing_fields(new | {"claim": ""}, old | {"claim": ""})

    def create(self, config: dict) -> None:
        """Make the folder and write its configuration; what an earlier run left there is removed first."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not self._config.exists() and any(self.path.iterdir()):
                raise UserError(f"--out {self.path}: holds other files than a run's; choose an empty or a new folder")
            for leftover in (self._records, self.figures):
                if leftover.exists():
                    shutil.rmtree(leftover)
            for leftover in (self.results, self.summary):
                leftover.unlink(missing_ok=True)
            self.write_config(config)
            self._records.mkdir()
        except OSError as error:
            raise UserError(f"--out {self.path}: cannot be written ({error.strerror}); choose another folder") from error

    def write_config(self, config: dict) -> None:
        with _replacing(self._config) as path:
            path.write_text(json.dumps(config, indent=1) + "\n")

    def append(self, arm: str, first_record: int, first_seed: int, records: dict[str, np.ndarray]) -> None:
        """Keep some members' records, arrays (records, seeds, ...)."""
        target = self._records / f"{arm}.{first_record:09d}.{first_seed:09d}.npz"
        with _replacing(target) as path, path.open("wb") as file:
            np.savez(file, **records)

    def assemble(self, experiment: Experiment, attributes: dict, constants: dict[str, xr.DataArray]) -> None:
        """Make `results.nc` of what was recorded, a round of members at a time; what was not reached is NaN.

        Args:
          attributes: strings and numbers about the whole run.
          constants: variables that no member owns, such as the best reachable loss.
        """
        with _replacing(self.results) as path:
            _skeleton(experiment, attributes, constants).to_netcdf(path, engine="h5netcdf")
            with h5netcdf.File(path, "a") as file:
                _create_variables(file)
                for (arm, first_seed), pieces in self._pieces().items():
                    records = [dict(np.load(piece, allow_pickle=False)) for piece in pieces]
                    records = {name: np.concatenate([part[name] for part in records]) for name in records[0]}
                    first_record = int(pieces[0].name.split(".")[1])
                    _fill(file, experiment, arm, first_record, first_seed, records)

    def _pieces(self) -> dict[tuple[str, int], list[Path]]:
        """Files of records of the same members, in the order of their steps."""
        pieces = {}
        for path in sorted(self._records.glob("[!.]*.npz")):
            arm, _, first_seed, _ = path.name.split(".")
            pieces.setdefault((arm, int(first_seed)), []).append(path)
        return pieces

    def discard_records(self) -> None:
        """Drop the pieces, once `results.nc` has them."""
        shutil.rmtree(self._records)

    def load(self) -> xr.Dataset:
        """The labelled results.

        Raises:
          UserError: where there are none, or they cannot be read.
        """
        try:
            return xr.load_dataset(self.results, engine="h5netcdf")
        except FileNotFoundError as error:
            raise UserError(f"{self.path}: holds no results.nc; give the folder of a run") from error
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{self.results}: cannot be read ({error}); run again with --overwrite") from error


def _skeleton(experiment: Experiment, attributes: dict, constants: dict[str, xr.DataArray]) -> xr.Dataset:
    symbols = list(experiment.process.symbols)
    coordinates = {
        "arm": list(experiment.arms),
        "seed": np.array(experiment.seeds, np.int64),
        "step": np.array(experiment.record_steps, np.int64),
        "eval_step": np.array(experiment.eval_steps, np.int64),
        "table_step": np.array(experiment.eval_steps, np.int64),
        "symbol": symbols,
        "symbol2": symbols,
        "pair": list(experiment.process.pairs),
        "dim": np.arange(experiment.model.width),
    }
    dataset = xr.Dataset(constants, coordinates, attributes)
    dataset["diverged_at"] = xr.DataArray(
        np.full((len(experiment.arms), len(experiment.seeds)), -1, np.int32),
        dims=("arm", "seed"),
        attrs={"units": "step", "long_name": "step at which the member stopped being finite; -1: never"},
    )
    for name in ("step", "eval_step", "table_step"):
        dataset[name].attrs = {"units": "1", "long_name": "number of updates made"}
    return dataset


def _create_variables(file: h5netcdf.File) -> None:
    for name, (dimensions, units, long_name) in VARIABLES.items():
        dimensions = ("arm", "seed", *dimensions)
        sizes = [len(file.dimensions[dimension]) for dimension in dimensions]
        chunks = (1, min(sizes[1], 16), *sizes[2:])
        variable = file.create_variable(
            name, dimensions, np.float32, chunks=chunks, fillvalue=np.float32(math.nan), compression="gzip",
            compression_opts=1, shuffle=True,
        )  # fmt: skip
        variable.attrs.update({"units": units, "long_name": long_name})


def _fill(file: h5netcdf.File, experiment: Experiment, arm: str, first_record: int, first_seed: int, records: dict) -> None:
    count, seeds = records["loss"].shape
    steps = (first_record + np.arange(count)) * experiment.record_every
    evaluations = np.searchsorted(experiment.eval_steps, steps)
    evaluated = np.take(experiment.eval_steps, evaluations) == steps
    arm_index, members = experiment.arms.index(arm), slice(first_seed, first_seed + seeds)
    file["diverged_at"][arm_index, members] = records["diverged_at"][-1]
    for name, (dimensions, _, _) in VARIABLES.items():
        values = np.moveaxis(records[name], 0, 1)  # (seeds, records, ...)
        if dimensions[0] == "step":
            file[name][arm_index, members, first_record : first_record + count] = values
        elif evaluated.any():
            first = evaluations[evaluated][0]
            file[name][arm_index, members, first : first + evaluated.sum()] = values[:, evaluated]


def size_in_bytes(experiment: Experiment) -> int:
    """Of all records of a run, before compression."""
    lengths = {
        "step": len(experiment.record_steps),
        "eval_step": len(experiment.eval_steps),
        "table_step": len(experiment.eval_steps),
        "symbol": len(experiment.process.symbols),
        "symbol2": len(experiment.process.symbols),
        "pair": len(experiment.process.pairs),
        "dim": experiment.model.width,
    }
    values = sum(math.prod(lengths[name] for name in dimensions) for dimensions, _, _ in VARIABLES.values())
    return 4 * values * len(experiment.seeds) * len(experiment.arms)
