"""Start, resume, extend, skip or plan a run. Imports no jax until something is trained.

import jaxtie
results = jaxtie.run(jaxtie.Experiment(steps=2000, seeds=range(4)))
"""

import contextlib
import dataclasses
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

import jaxtie
import jaxtie.exor.config
import jaxtie.text.config  # these two enter the tasks whose results can be read
from jaxtie.arms import names_of
from jaxtie.checks import UserError, check, is_integer, number_label
from jaxtie.config import TaskConfig
from jaxtie.results import analysis
from jaxtie.results.analysis import join_points
from jaxtie.results.folder import RunFolder, Say, write_sealed
from jaxtie.results.tables import summary_markdown
from jaxtie.run.experiment_files import find_experiment, load_experiment
from jaxtie.run.page import write_report

if TYPE_CHECKING:
    from jaxtie.training.distributed import Processes

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "xarray")


@dataclasses.dataclass(frozen=True)
class Session:
    """How an experiment is run, as far as it changes no number except by rounding.

    Attributes:
      command: to be typed to go on.
      quiet: print no progress.
      overwrite: remove an earlier run.
      checkpoint_every: seconds of training between two checkpoints.
      draws: make figures and a summary.
      processes: all processes of a distributed run; None: there is no other.
    """

    command: str
    quiet: bool = False
    overwrite: bool = False
    checkpoint_every: float = 60.0
    draws: bool = True
    processes: "Processes | None" = None

    def say(self, line: str) -> None:
        """Print a line on standard error."""
        if not self.quiet:
            print("jaxtie: " + line.replace("\n", "\njaxtie: "), file=sys.stderr, flush=True)


def run(
    experiment: TaskConfig | str | Path,
    out: str | Path | None = None,
    *,
    quiet: bool = False,
    overwrite: bool = False,
    checkpoint_every: float = 60.0,
    **changes: Any,
) -> xr.Dataset:
    """Train an experiment's arms, as `jaxtie run` does, and return the results.

    Args:
      experiment: `Experiment` or `TextExperiment`, a file that declares one as `experiment`, or
        the name of one that `jaxtie run --list` shows.
      out: folder for results, figures, summary and checkpoints. A run that was stopped there goes
        on, a finished one is read again or extended. None: keep nothing.
      quiet: print no progress on standard error.
      overwrite: remove an earlier run from `out` and start anew.
      checkpoint_every: seconds of training between two checkpoints.
      changes: fields of the experiment, and numbers such as `learning_rate` or `width`, that are to
        differ from the declaration; `seeds=8` are seeds 0 to 7.

    Returns:
      The labelled results, in memory.

    Raises:
      UserError: in one line, if a value is invalid or the folder holds something else.
      KeyboardInterrupt: after an interrupt; the records are in `out`, and the same call goes on.
    """
    if isinstance(experiment, str | Path):
        experiment = load_experiment(find_experiment(str(experiment)))
    if not isinstance(experiment, TaskConfig):
        raise UserError(f"{experiment!r}: expected an experiment, such as jaxtie.Experiment()")
    if is_integer(seeds := changes.get("seeds")):
        changes["seeds"] = range(seeds)
    experiment = experiment.changed(**changes)
    session = Session(
        f"jaxtie.run({experiment.name})", quiet, overwrite, checkpoint_every, out is not None
    )
    with contextlib.ExitStack() as stack:
        if out is None:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxtie-"))) / "run"
            kept = "without out=FOLDER nothing is kept"
        else:
            path = Path(out)
            kept = f"the same call{' without overwrite=True' * overwrite} goes on from {out}"
        results = run_in_folder(experiment, RunFolder(path), session)
        if results is None:
            raise KeyboardInterrupt(f"{experiment.name}: interrupted; {kept}")
        return results


def load(path: str | Path) -> xr.Dataset:
    """Return the labelled results of a run, in memory.

    Raises:
      UserError: if there are none, they have changed, or no run or another version of the format
        wrote them.
    """
    folder = RunFolder(Path(path))
    results = folder.load()
    check("task" in results.attrs, f"{folder.results}: is of token_pairs.py; see summary.md")
    return results


def plan_lines(
    experiment: TaskConfig, folder: RunFolder, earlier: dict | None, say: Say
) -> Iterator[str]:
    """Estimate a run by compiling and timing a program; yield lines on members, time and space."""
    from jaxtie.training.devices import check_devices, start_jax

    if experiment.is_static_sweep:
        for _, point, each in static_runs(experiment, folder):
            yield f"{each.path.name}:"
            yield from plan_lines(point, each, earlier and each.config(), say)
        return
    start_jax()
    check_devices()
    from jaxtie.training.distributed import Processes
    from jaxtie.training.task import programs_of
    from jaxtie.training.trainer import estimate, make_engine, schema_of

    alone = Processes()
    experiment = experiment.prepare(folder, earlier, alone, say)
    points = "".join(f"{len(values)} x {name}, " for name, values in experiment.swept.items())
    arms = ", ".join(names_of(experiment.arms))
    yield (
        f"members   {len(experiment.members) * len(experiment.arms):,}:"
        f" {points}{len(experiment.seeds):,} seeds x {arms}, {experiment.steps:,} steps"
    )
    engine, programs = make_engine(experiment, alone), programs_of(experiment)
    began = time.monotonic()
    program = engine.compile(programs[-1])
    compiling = time.monotonic() - began
    found = estimate(engine, program)
    minutes = (len(programs) * compiling + len(experiment.arms) * found.seconds) / 60
    speed = f", {found.speed}" if found.speed else ""
    yield (
        f"time      {minutes:,.1f} min on {engine.facts['workers']} x {engine.facts['device']}, as"
        f" measured just now{speed}; {len(programs)} programs are compiled"
    )
    yield f"memory    {found.device_bytes / 2**20:,.1f} MiB on the devices"
    disk = 2 * schema_of(experiment).size_in_bytes(experiment)
    yield (
        f"disk      {disk / 2**20:,.1f} MiB of records at most, half of it until the end only, and"
        " three checkpoints"
    )


def inspect_folder(
    experiment: TaskConfig, folder: RunFolder, overwrite: bool
) -> tuple[dict | None, bool]:
    """Return the configuration of the folder's run, if any, and whether training is needed.

    Raises:
      UserError: if that run is another one.
    """
    earlier = None if overwrite else folder.config()
    if not earlier:
        return None, True
    finished, differences = bool(earlier.get("finished")), folder.differences(experiment, earlier)
    before = earlier["experiment"]
    extends = (  # only adds steps or seeds
        set(differences) <= {"steps", "seeds"}
        and experiment.steps >= before.get("steps", experiment.steps)
        and set(experiment.seeds) >= set(before.get("seeds", [None]))
    )
    if differences and not (finished and extends):
        raise UserError(
            f"--out {folder.path}: holds a run that differs in {', '.join(differences)}; "
            "choose another --out, or --overwrite it"
        )
    return earlier, bool(differences) or not finished


def run_in_folder(experiment: TaskConfig, folder: RunFolder, session: Session) -> xr.Dataset | None:
    """Start, resume, extend or skip a run, as the only process or the first of several.

    Returns:
      The results; None if it was interrupted.
    """
    if experiment.is_static_sweep:
        return _run_points(experiment, folder, session)
    earlier, trains = inspect_folder(experiment, folder, session.overwrite)
    if session.processes:
        session.processes.broadcast({"trains": trains})
    if earlier and not trains:
        experiment.check_unchanged(folder, earlier)
        return folder.load()
    if earlier and earlier.get("finished"):
        seeds, steps = (earlier["experiment"][name] for name in ("seeds", "steps"))
        before = f"{len(seeds):,} seeds and {steps:,} steps"
        session.say(f"{experiment.name}: {folder.path} has {before}, extending it")
    return _Run(experiment, folder, session, earlier).lead()


def static_runs(
    experiment: TaskConfig, folder: RunFolder
) -> Iterator[tuple[dict[str, float], TaskConfig, RunFolder]]:
    """Yield the values, the experiment and the folder of each run of a sweep over static fields."""
    for values, point in experiment.static_points:
        name = ",".join(f"{name}={number_label(value)}" for name, value in values.items())
        yield values, point, RunFolder(folder.points / name)


def _run_points(experiment: TaskConfig, folder: RunFolder, session: Session) -> xr.Dataset | None:
    """Run an experiment at each value of its static fields, and join the results."""
    earlier, trains = inspect_folder(experiment, folder, session.overwrite)
    if earlier and not trains:
        for _, point, each in static_runs(experiment, folder):
            if session.processes:
                session.processes.broadcast({"trains": False})
            point.check_unchanged(each, each.config() or {})
        return folder.load()
    if not experiment.reports.schema:
        from jaxtie.training.devices import start_jax

        start_jax()
        from jaxtie.training.trainer import schema_of

        schema_of(experiment)  # refuses a field that has the name of a metric
    config = {"experiment": experiment.as_dict(), "command": session.command, "finished": False}
    with folder.locked():
        if not earlier:
            folder.create(config)
        folder.write_config(config)
        found = []
        for values, point, each in static_runs(experiment, folder):
            session.say(f"{experiment.name}: {each.path.name}")
            if (own := run_in_folder(point, each, session)) is None:
                return None
            found.append((values, own))
        joined = join_points(found).assign_attrs(command=session.command)
        write_sealed(folder.results, bytes(joined.to_netcdf(engine="h5netcdf")))
        results = folder.load()
        if session.draws:
            _show(folder, results)
        folder.write_config(config | {"finished": True})
    return results


def follow(experiment: TaskConfig, folder: RunFolder, session: Session) -> bool:
    """Run as one of the other processes, as the first one says; return False if interrupted."""
    if experiment.is_static_sweep:
        points = static_runs(experiment, folder)
        return all(follow(point, each, session) for _, point, each in points)
    if session.processes and not session.processes.broadcast({})["trains"]:
        return True
    return _Run(experiment, folder, session, None).train()


def resume_hint(session: Session) -> str:
    """Say how an interrupted command goes on; with --overwrite it would start anew."""
    return (
        f"interrupted; run the same command {'without --overwrite ' * session.overwrite}to resume"
    )


class _Run:
    """A run in progress: its task, its prepared data, its configuration."""

    def __init__(
        self, experiment: TaskConfig, folder: RunFolder, session: Session, earlier: dict | None
    ):
        from jaxtie.training.devices import check_devices, start_jax

        start_jax()
        check_devices()
        from jaxtie.training.distributed import Processes

        self.folder, self.session, self.earlier = folder, session, earlier
        self.processes = session.processes or Processes()
        before = earlier or {}
        self.config: dict[str, Any] = {
            "experiment": experiment.as_dict(),
            "command": session.command,
            "versions": {
                "python": platform.python_version(),
                "jaxtie": jaxtie.__version__,
                **{name: version(name) for name in LIBRARIES},
            },
            "arms": before.get("arms", {}),
            "wall_seconds": before.get("wall_seconds", 0.0),
            "finished": False,
        }
        say = session.say if self.processes.leads else lambda line: None
        self.experiment = experiment.prepare(folder, earlier, self.processes, say)
        self.began = time.monotonic() - self.config["wall_seconds"]

    def lead(self) -> xr.Dataset | None:
        """Train, write everything into the folder and return the results; None if interrupted.

        Raises:
          UserError: if another process has written there since the folder was read: a run that is
            finished has no records to go on from.
        """
        from jaxtie.training.trainer import schema_of

        folder, experiment, schema = self.folder, self.experiment, schema_of(self.experiment)
        reports = experiment.reports
        with folder.locked():
            check(
                self.session.overwrite or folder.config() == self.earlier,
                f"--out {folder.path}: another run has just written there; run the same"
                " command again",
            )
            folder.check_space(2 * schema.size_in_bytes(experiment))
            if not self.earlier:
                folder.create(self.config)
            elif self.earlier.get("finished"):
                # Unpack before the folder says "unfinished": if killed here, it is extended again.
                folder.unpack(schema)
            self.config |= experiment.save_inputs(folder)
            folder.write_config(self.config)
            finished = self.train()
            attributes = {
                "task": experiment.task,
                "experiment": experiment.name,
                "claim": experiment.claim,
                "command": self.config["command"],
                **{f"version_{name}": each for name, each in self.config["versions"].items()},
                **(reports.attributes(experiment) if reports.attributes else {}),
            }
            constants = reports.constants(experiment) if reports.constants else {}
            folder.assemble(experiment, schema, attributes, constants)
            self._write_config()
            if not finished:
                return None
            results = folder.load()
            if self.session.draws:
                _show(folder, results)
            self._write_config(finished=True)
            folder.discard_records()
        return results

    def train(self) -> bool:
        """Train every arm from the newest checkpoint on; return False if interrupted."""
        from jaxtie.training import checkpoints
        from jaxtie.training.trainer import Trainer, make_engine, stop_signals

        def report(text: str) -> None:
            print(f"jaxtie: {text}", file=sys.stderr)

        engine = make_engine(self.experiment, self.processes)
        self.config |= engine.facts
        with stop_signals() as stopped, checkpoints.opened(self.folder.checkpoints) as kept:
            trainer = Trainer(
                engine,
                self.experiment,
                self.folder,
                kept,
                self.processes,
                self.config,
                checkpoint_every=self.session.checkpoint_every,
                quiet=self.session.quiet,
            )
            return trainer.train(stopped, report)

    def _write_config(self, *, finished: bool = False) -> None:
        self.config["wall_seconds"] = round(time.monotonic() - self.began, 2)
        self.folder.write_config(self.config | {"finished": finished})


def _show(folder: RunFolder, results: xr.Dataset) -> None:
    """Draw the figures of a run and write its summary."""
    draw(folder, results)
    conclusion = analysis.conclude(results)
    tables = [conclusion.table, *analysis.tables(results)]
    summary = summary_markdown(results, conclusion.lines(), tables)
    folder.summary.write_text(summary, encoding="utf-8")
    write_report(folder, results)


def draw(folder: RunFolder, results: xr.Dataset, *, pdf: bool = False) -> list[Path]:
    """Draw the figures of a run from its results alone, see `draw_all`; return the PNG files."""
    from jaxtie.results.plots import draw_all

    return draw_all(analysis.plots(results), folder.figures, pdf=pdf)
