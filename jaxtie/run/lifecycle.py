"""Start, resume, extend, skip or plan a run.

`--dry-run`: what a run would take, by compiling a program of it and training that a little.

The life of a run, the same for every kind: it is new, goes on, is extended, or was done before.
Python's way in.

    import jaxtie
    results = jaxtie.run(jaxtie.Experiment(steps=2000, seeds=range(4)))

Imports no jax until something is trained.
"""

import contextlib
import dataclasses
import enum
import importlib.util
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

import jaxtie
from jaxtie.config import TaskConfig, UserError, check, names_of
from jaxtie.results import analysis
from jaxtie.results.folder import RunFolder, Say
from jaxtie.results.tables import summary_markdown

if TYPE_CHECKING:
    from jaxtie.training.distributed import Processes


def plan(
    experiment: TaskConfig, folder: RunFolder, earlier: dict | None, say: Say
) -> Iterator[str]:
    """Members, time, memory and disk, a line each; what the experiment needs is prepared, as any
    run would.
    """
    from jaxtie.training.devices import start_jax

    start_jax()
    from jaxtie.training.distributed import Processes
    from jaxtie.training.task import programs_of
    from jaxtie.training.trainer import make_engine, schema_of

    alone = Processes()
    experiment = experiment.prepare(folder, earlier, alone, say)
    settings = "".join(f"{len(values)} x {name}, " for name, values in experiment.swept.items())
    count, arms = (
        len(experiment.members) * len(experiment.arms),
        ", ".join(names_of(experiment.arms)),
    )
    yield (
        f"members   {count:,}: {settings}{len(experiment.seeds):,} seeds x {arms},"
        f" {experiment.steps:,} steps"
    )
    engine, programs, began = (
        make_engine(experiment, alone),
        programs_of(experiment),
        time.monotonic(),
    )
    program = engine.compile(programs[-1])
    compiling = time.monotonic() - began
    found = engine.estimate(program)
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


class Outcome(enum.StrEnum):
    """What became of one experiment."""

    DONE = "done"
    BEFORE = "finished before"
    PLANNED = "planned"
    INTERRUPTED = "interrupted"


@dataclasses.dataclass(frozen=True)
class Session:
    """How something is run, as far as that changes no number but by rounding.

    Attributes:
      command: what was typed, to be typed again.
      quiet: no progress.
      overwrite: remove what an earlier run left.
      checkpoint_every: seconds of training between two checkpoints.
      draws: whether figures and summary are wanted.
      processes: of which this is one; None: it is alone.
    """

    command: str
    quiet: bool = False
    overwrite: bool = False
    checkpoint_every: float = 60.0
    draws: bool = True
    processes: "Processes | None" = None

    def say(self, line: str) -> None:
        """A line on standard error."""
        if not self.quiet:
            print("jaxtie: " + line.replace("\n", "\njaxtie: "), file=sys.stderr, flush=True)


def run(
    experiment: TaskConfig,
    out: str | Path | None = None,
    *,
    quiet: bool = False,
    overwrite: bool = False,
    checkpoint_every: float = 60.0,
) -> xr.Dataset:
    """Train an experiment's arms, as `python -m jaxtie.run` does, and return what came out.

    Args:
      experiment: `Experiment` or `TextExperiment`; `dataclasses.replace` makes variants.
      out: folder that the run is left in: results, figures, summary, checkpoints. A run that is
        there and was stopped goes on, one that is finished is read again or extended. None: nothing
        is left behind.
      quiet: no progress on standard error.
      overwrite: remove what a run left in `out` and start anew.
      checkpoint_every: seconds of training between two checkpoints.

    Returns:
      The labelled results, in memory; variables and attributes tell what they are.

    Raises:
      UserError: in one line, what cannot be meant, or a folder that holds something else.
      KeyboardInterrupt: after an interrupt; what was recorded is in `out`, and the same call goes
        on.
    """
    if not isinstance(experiment, TaskConfig):
        raise UserError(f"{experiment!r}: expected an experiment, such as jaxtie.Experiment()")
    session = Session(
        f"jaxtie.run({experiment.name})", quiet, overwrite, checkpoint_every, out is not None
    )
    with contextlib.ExitStack() as stack:
        if out is None:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxtie-"))) / "run"
        else:
            path = Path(out)
        if carry_out(experiment, RunFolder(path), session) is Outcome.INTERRUPTED:
            call = "the same call without overwrite=True" if overwrite else "the same call"
            kept = (
                "without out=FOLDER nothing is kept"
                if out is None
                else f"{call} goes on from {out}"
            )
            raise KeyboardInterrupt(f"{experiment.name}: interrupted; {kept}")
        return load(path)


def load(path: str | Path) -> xr.Dataset:
    """The labelled results of a run, in memory.

    Raises:
      UserError: where there are none, they cannot be read, or an older version wrote less.
    """
    folder = RunFolder(Path(path))
    results = folder.load()
    analysis.task_class(results)  # it refuses results of no task
    return results


def load_experiment(path: Path) -> TaskConfig:
    """Execute an experiment file and take its `experiment`.

    Raises:
      UserError: where it is missing, fails, or declares none.
    """
    experiment = _execute(path).get("experiment")
    if not isinstance(experiment, TaskConfig):
        raise UserError(f"{path}: expected it to define experiment = jaxtie.Experiment(...)")
    return experiment


def load_claims(path: Path) -> tuple[Any, ...]:
    """Execute an experiment file and take its `claims`, `jaxtie.exor.claims.Claim` or, of pairs of
    words,
    `jaxtie.text.claims.TextClaim`; none where it makes none.

    Raises:
      UserError: where it is missing or fails.
    """
    return tuple(_execute(path).get("claims", ()))


def _execute(path: Path) -> dict[str, Any]:
    """The names that an experiment file defines."""
    if not path.is_file():
        raise UserError(f"{path}: no such experiment file; --list shows those of ./experiments")
    spec = importlib.util.spec_from_file_location("experiment_file", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path}: expected a Python file, NAME.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == spec.origin
        ]
        where = f"{path}:{lines[-1]}" if lines else f"{path}"
        text = " ".join(str(error).split())
        raise UserError(
            f"{where}:"
            f" {text if isinstance(error, UserError) else f'{type(error).__name__}: {text}'}"
        ) from None
    return vars(module)


def versions() -> dict[str, str]:
    """Versions of all that the numbers may depend on."""
    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "xarray")
    return {"python": platform.python_version(), "jaxtie": jaxtie.__version__} | {
        name: version(name) for name in names
    }


def found_in(
    experiment: TaskConfig, folder: RunFolder, overwrite: bool
) -> tuple[dict | None, bool]:
    """The configuration of the run that a folder holds, if any, and whether there is something to
    train.

    Raises:
      UserError: where that run is another one.
    """
    earlier = None if overwrite else folder.config()
    if not earlier:
        return None, True
    finished, differences = bool(earlier.get("finished")), folder.differences(experiment, earlier)
    if differences and not (finished and _extends(experiment, earlier["experiment"], differences)):
        raise UserError(
            f"--out {folder.path}: holds a run that differs in {', '.join(differences)}; "
            "choose another --out, or --overwrite it"
        )
    return earlier, bool(differences) or not finished


def _extends(experiment: TaskConfig, earlier: dict, differences: Sequence[str]) -> bool:
    """Whether an experiment asks for no less than a finished one, and differs in steps and seeds
    alone.
    """
    return (
        set(differences) <= {"steps", "seeds"}
        and experiment.steps >= earlier.get("steps", experiment.steps)
        and set(experiment.seeds) >= set(earlier["seeds"])
    )


def carry_out(experiment: TaskConfig, folder: RunFolder, session: Session) -> Outcome:
    """Do what the folder's state asks for: as the first of several processes, or as the only
    one.
    """
    seen = None if session.overwrite else folder.config()
    earlier, trains = found_in(experiment, folder, session.overwrite)
    if session.processes:
        session.processes.broadcast({"trains": trains})
    if earlier and not trains:
        experiment.check_unchanged(folder, earlier)
        return Outcome.BEFORE
    return (
        Outcome.DONE
        if _Run(experiment, folder, session, earlier).lead(seen)
        else Outcome.INTERRUPTED
    )


def follow(experiment: TaskConfig, folder: RunFolder, session: Session) -> bool:
    """Do as a process that is not the first what the first one asks for, which sees the folder;
    False if interrupted.
    """
    if session.processes and not session.processes.broadcast({})["trains"]:
        return True
    return _Run(experiment, folder, session, None).train()


def goes_on(session: Session) -> str:
    """What an interrupted command says: with --overwrite it would begin anew."""
    return f"interrupted; the same command {'without --overwrite ' * session.overwrite}goes on"


class _Run:
    """One sitting: what is prepared for it, and the configuration that is brought up to date."""

    def __init__(
        self, experiment: TaskConfig, folder: RunFolder, session: Session, earlier: dict | None
    ):
        from jaxtie.training.devices import start_jax

        start_jax()
        from jaxtie.training.distributed import Processes

        self.folder, self.session, self.earlier = folder, session, earlier
        self.processes = session.processes or Processes()
        before = earlier or {}
        self.config: dict[str, Any] = {
            "experiment": experiment.as_dict(),
            "command": session.command,
            "versions": versions(),
            "arms": before.get("arms", {}),
            "wall_seconds": before.get("wall_seconds", 0.0),
            "finished": False,
        }
        say = session.say if self.processes.leads else _silent
        self.experiment = experiment.prepare(folder, earlier, self.processes, say)
        self.began = time.monotonic() - self.config["wall_seconds"]

    def lead(self, seen: dict | None) -> bool:
        """Train into the folder and leave there what a run leaves; returns whether it came to the
        end.

        Args:
          seen: the configuration by which it was decided that there is something to train.

        Raises:
          UserError: where another run has come to its end there meanwhile, whose records are no
            longer there to go on from.
        """
        from jaxtie.training.trainer import schema_of

        folder, experiment, schema = self.folder, self.experiment, schema_of(self.experiment)
        with folder.locked():
            same = self.session.overwrite or folder.config() == seen
            check(
                same,
                f"--out {folder.path}: another run has written there meanwhile; run the same"
                " command again",
            )
            folder.check_space(2 * schema.size_in_bytes(experiment))
            if not self.earlier:
                folder.create(self.config)
            elif self.earlier.get("finished"):
                # Before the folder says that it is unfinished: killed here, it is extended again.
                folder.unpack(schema)
            self.config |= experiment.save_inputs(folder)
            folder.write_config(self.config)
            finished = self.train()
            constants = experiment.constants()
            folder.assemble(experiment, schema, self._attributes(), constants)
            self._write_config()
            if not finished:
                return False
            if self.session.draws:
                self._draw()
            self._write_config(finished=True)
            folder.discard_records()
        return True

    def train(self) -> bool:
        """Train every arm, from the folder's checkpoint on; returns whether it came to the end."""
        from jaxtie.training import checkpoints
        from jaxtie.training.trainer import Trainer, make_engine, stop_signals

        def report(text: str) -> None:
            print(f"jaxtie: {text}; going on without it", file=sys.stderr)

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

    def _attributes(self) -> dict[str, str | int]:
        common = {
            "task": self.experiment.task,
            "experiment": self.experiment.name,
            "claim": self.experiment.claim,
        }
        common |= {"command": self.config["command"]}
        common |= {f"version_{name}": number for name, number in self.config["versions"].items()}
        return common | self.experiment.attributes()

    def _draw(self) -> None:
        results = self.folder.load()
        draw(self.folder, results)
        summary = summary_markdown(results, analysis.tables(results))
        self.folder.summary.write_text(summary, encoding="utf-8")

    def _write_config(self, *, finished: bool = False) -> None:
        self.config["wall_seconds"] = round(time.monotonic() - self.began, 2)
        self.folder.write_config(self.config | {"finished": finished})


def draw(folder: RunFolder, results: xr.Dataset) -> list[Path]:
    """Draw every figure of a run from its results alone; return the PNG files."""
    from jaxtie.results.plots import draw_all

    return draw_all(analysis.plots(results), folder.figures)


def _silent(line: str) -> None:
    """Say nothing."""
