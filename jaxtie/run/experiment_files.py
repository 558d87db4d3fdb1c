"""Find, load and list experiment files. Imports no jax."""

import importlib.util
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtie
from jaxtie.checks import UserError, suggest
from jaxtie.config import TaskConfig

PACKAGE = Path(jaxtie.__file__).parent
INSTALLED = (PACKAGE / "experiments", PACKAGE.parent / "experiments")  # the latter of a checkout


def experiment_folder() -> Path:
    """Return ./experiments if it has experiment files, else the folder that comes with jaxtie."""
    own = Path("experiments")
    return own if any(own.glob("*.py")) else next(filter(Path.is_dir, INSTALLED), own)


def find_experiment(name: str) -> Path:
    """Return the file of an experiment: a path, or the name of one in `experiment_folder`."""
    path = Path(name)
    if path.suffix == ".py" or len(path.parts) > 1 or path.exists():
        return path
    return experiment_folder() / f"{name.replace('-', '_')}.py"


def load_experiment(path: Path) -> TaskConfig:
    """Return the `experiment` of a file; see `load_experiment_and_claims`."""
    return load_experiment_and_claims(path)[0]


def load_claims(path: Path) -> tuple[Any, ...]:
    """Return the `claims` of an experiment file; see `load_experiment_and_claims`."""
    return load_experiment_and_claims(path)[1]


def load_experiment_and_claims(path: Path) -> tuple[TaskConfig, tuple[Any, ...]]:
    """Execute an experiment file and return its `experiment` and its `claims`, if any.

    Raises:
      UserError: if the file is missing, fails, or defines no experiment.
    """
    if not path.is_file():
        known = [each.stem for each in experiment_folder().glob("*.py")]
        meant = suggest(path.stem, known) or "; --list shows the known ones"
        raise UserError(f"{path}: no such experiment file{meant}")
    spec = importlib.util.spec_from_file_location("experiment_file", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path}: expected a Python file, NAME.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f":{frame.lineno}" for frame in frames if frame.filename == spec.origin]
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        reason = " ".join(str(error).split())
        raise UserError(f"{path}{lines[-1] if lines else ''}: {kind}{reason}") from None
    experiment = getattr(module, "experiment", None)
    if not isinstance(experiment, TaskConfig):
        raise UserError(f"{path}: expected it to define experiment = jaxtie.Experiment(...)")
    return experiment, tuple(getattr(module, "claims", ()))


def list_experiments() -> Iterator[str]:
    """Yield a line for each known experiment: its name and claim, or its error."""
    for path in sorted(experiment_folder().glob("*.py")):
        try:
            yield f"{path.stem}  {load_experiment(path).claim}"
        except UserError as error:
            yield str(error)
