"""Find, load and list experiment files. Imports no jax."""

import ast
import importlib.util
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import jaxtie
from jaxtie.arms import names_of
from jaxtie.checks import UserError, check, suggest
from jaxtie.config import TaskConfig
from jaxtie.results.claims import PAPER, Verdict

PACKAGE = Path(jaxtie.__file__).parent
INSTALLED = (PACKAGE / "experiments", PACKAGE.parent / "experiments")  # the latter of a checkout


def experiment_folder() -> Path:
    """Return ./experiments if it has experiment files, else the folder that comes with jaxtie."""
    own = Path("experiments")
    return own if any(own.glob("*.py")) else next(filter(Path.is_dir, INSTALLED), own)


def find_experiment(name: str) -> Path:
    """Return the file of an experiment: a path, or the name of one in `experiment_folder`.

    Raises:
      UserError: if there is no such experiment; it names similar ones.
    """
    path = Path(name)
    if path.suffix == ".py" or len(path.parts) > 1 or path.is_file():
        near = [str(each) for each in path.parent.glob("*.py")]
        check(path.is_file(), f"{name}: no such file{suggest(name, near, 3)}")
        return path
    folder, stem = experiment_folder(), name.replace("-", "_")
    meant = suggest(stem, [each.stem for each in folder.glob("*.py")], 3)
    found = folder / f"{stem}.py"
    check(found.exists(), f"{name}: no such experiment{meant or '; --list shows the known ones'}")
    return found


def load_experiment(path: Path) -> TaskConfig:
    """Return the `experiment` of a file; see `load_experiment_and_claims`."""
    return load_experiment_and_claims(path)[0]


def load_experiment_and_claims(path: Path) -> tuple[TaskConfig, tuple[Any, ...]]:
    """Execute an experiment file and return its `experiment` and its `claims`, if any.

    Raises:
      UserError: if the file fails, or defines no experiment.
    """
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
    """Yield the known experiments in groups, then files that fail.

    Of each, the verdicts on its claims by the committed results, and what it asks.
    """
    groups: dict[str, list[str]] = {
        "reproduce: tied and untied on EXor, as in the paper": [],
        "explain: why, and when, tying costs something on EXor": [],
        "text: language models; most need --text PATH or --tfds NAME": [],
    }
    failed, (reproduce, explain, text) = [], groups.values()
    for path in sorted(experiment_folder().glob("*.py")):
        try:
            experiment, claims = load_experiment_and_claims(path)
        except UserError as error:
            failed.append(str(error))
            continue
        own = experiment.sweep or any(claim.source != PAPER for claim in claims)
        reproduces = names_of(experiment.arms) == ["tied", "untied"] and not own
        group = text if experiment.task == "text" else reproduce if reproduces else explain
        group += f"  {path.stem}{_found(path, experiment)}", f"      {_question(path, experiment)}"
    for title, lines in groups.items():
        if lines:
            yield from (title, *lines, "")
    yield from failed


def _question(path: Path, experiment: TaskConfig) -> str:
    """Return the first paragraph of an experiment file, or of one without any the claim."""
    described = ast.get_docstring(ast.parse(path.read_bytes()))
    text = " ".join((described or f"Is it so? {experiment.claim}").split("\n\n")[0].split())
    return re.sub(r"`(\w+)\.py`", r"\1", text)


def _found(path: Path, experiment: TaskConfig) -> str:
    """Count the verdicts on an experiment's page of committed results; "" without a page."""
    page = path.parent / "results" / f"{experiment.name}.md"
    if not page.is_file():
        return ""
    content = page.read_text(encoding="utf-8")
    counts = {verdict: content.count(f"**{verdict}**") for verdict in get_args(Verdict)}
    found = ", ".join(
        f"{count} {verdict if count == 1 else verdict.removesuffix('s')}"
        for verdict, count in counts.items()
        if count
    )
    return f"{found and ': '}{found} (results/{page.name})"
