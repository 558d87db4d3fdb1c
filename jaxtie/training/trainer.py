"""Train every arm of an experiment: phases, records, checkpoints, signals."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from jaxtie.config import TaskConfig, UserError, Variant, check, combinations
from jaxtie.results.folder import RunFolder, Say
from jaxtie.results.netcdf import Schema, Variable, steps_of
from jaxtie.shutdown import INTERRUPTS, leave_closed, stop_numbers
from jaxtie.training.block_engine import BlockEngine
from jaxtie.training.checkpoints import Checkpoints, exchange
from jaxtie.training.distributed import Processes
from jaxtie.training.member import make_member
from jaxtie.training.progress import Progress
from jaxtie.training.row_engine import RowEngine
from jaxtie.training.task import (
    Chunk,
    Control,
    Members,
    Phase,
    Task,
    merge,
    phases_of,
    programs_of,
    shared_tied_parts,
    steps_reached,
    steps_recorded,
)

COMPILING = "jaxtie: compiles"  # name of the threads of `in_background`
POLL_SECONDS = 0.1  # seconds between two checks for a signal
Result = TypeVar("Result")
Engine = BlockEngine | RowEngine


def in_background(work: Callable[[], Result]) -> Future[Result]:
    """Start `work` in a thread that may be abandoned; return its future result.

    JAX's contexts (`jax.enable_x64`, ...) belong to a thread, so the caller's do not apply.
    """
    result: Future[Result] = Future()

    def do() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=do, name=COMPILING, daemon=True).start()
    return result


def has_abandoned_threads() -> bool:
    """Whether such a thread still works; a normal exit of the process would crash it."""
    return any(thread.name == COMPILING for thread in threading.enumerate())


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP, so that training can save; a second signal raises.

    SIGHUP never raises, since a shell and the kernel both send it when a terminal closes. In
    another thread than the main one the list stays empty.
    """
    received: list[int] = []
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def note(number: int, _: object) -> None:
        received.append(number)
        for each in previous:
            second = signal.default_int_handler if each in INTERRUPTS else signal.SIG_IGN
            signal.signal(each, second)
        leave_closed(terminals)

    here = threading.current_thread() is threading.main_thread()
    previous = {number: signal.signal(number, note) for number in stop_numbers()} if here else {}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def enough_memory() -> Iterator[None]:
    """Raise UserError where the devices lack memory."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        check(
            "RESOURCE_EXHAUSTED" not in str(error),
            "the devices lack memory; train fewer members a run (--seeds, --out), or use devices"
            f" with more ({' '.join(str(error).split())[:200]})",
        )
        raise


def unless_stopped(result: Future[Result], stopped: Sequence[int]) -> Result | None:
    """Wait for a result; return None, and abandon it, as soon as there is a signal."""
    while not stopped:
        if wait((result,), POLL_SECONDS).done:
            return result.result()
    return None


def make_engine(config: TaskConfig, processes: Processes) -> Engine:
    """Return the engine of a configuration's task.

    Raises:
      UserError: if the task cannot record what the configuration asks for.
    """
    tasks = _tasks_of(config)
    check(
        not config.roles or all(task.roles for task in tasks),
        f"roles: task {config.task!r} has no `roles`, the rows to record",
    )
    if tasks[0].rows is None:
        return BlockEngine(config, processes)
    return RowEngine(config, processes)


class RunCost(NamedTuple):
    """Measured cost of a program."""

    seconds: float  # for all members of an arm, all steps and evaluations
    device_bytes: int
    speed: str  # in words, may be ""


def estimate(engine: Engine, program: Any) -> RunCost:
    """Train a little and estimate the cost of an arm."""
    chunks, together, needed = engine.trial(program)
    first: list[Chunk] = []
    trained: set[int] = set()
    while len(trained) < together:  # an evaluation of each, and first updates, which are slow
        first.append(next(chunks))
        trained.update(first[-1].numbers.tolist() if first[-1].updates else ())
    began, rest = time.monotonic(), list(chunks)
    training = time.monotonic() - began - sum(chunk.evaluating for chunk in rest)
    of_step = training / sum(chunk.updates for chunk in rest)
    evaluating = sum(chunk.evaluating for chunk in first if not chunk.updates) / together
    of_member = of_step * engine.config.steps + evaluating * len(engine.config.eval_steps)
    members = -(-len(engine.config.members) // together) * together
    tokens = sum(chunk.tokens for chunk in rest) / training
    return RunCost(of_member * members, needed, f"{tokens:,.0f} tokens/s" if tokens else "")


def _tasks_of(config: TaskConfig) -> list[Task]:
    platform = jax.local_devices()[0].platform
    return [config.build(phase.variant, platform) for phase in programs_of(config)]


def schema_of(config: TaskConfig) -> Schema:
    """Return the variables of the results: the task's own schema, or all that it records.

    Raises:
      UserError: if the task has rows from the host and no schema, its variants record different
        metrics, or a metric or a swept field has the name of a dimension.
    """
    if own := config.reports.schema:
        return own(config)
    tasks = _tasks_of(config)
    check(tasks[0].rows is None, f"task {config.task!r}: rows from the host need a 'schema' report")
    first, *others = [_recorded_shapes(task) for task in tasks]
    for other in others:
        check(
            other == first,
            f"task {config.task!r}: expected the same metrics of all arms, found {first} and"
            f" {other}",
        )
    labels: dict[str, Sequence[Any]] = dict(steps_of(config))
    variables = {}
    for name, (along, shape) in first.items():
        axes = [f"{name}_{axis}" for axis in range(len(shape))]
        labels |= {axis: range(size) for axis, size in zip(axes, shape, strict=True)}
        variables[name] = Variable((along, *axes), "1", name.replace("_", " "))
    names = ["arm", "seed", *labels, *dict(config.sweep), *variables]
    taken = {name for name in names if names.count(name) > 1}
    check(
        not taken, f"task {config.task!r}: {taken}: dimensions of the results; rename what has it"
    )
    return Schema(variables, labels)


def _recorded_shapes(task: Task) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the step axis and the shape of every metric that a task records."""
    member = make_member(task)
    state, _, record = jax.eval_shape(member.start, np.uint32(0), task.hparams())
    evaluated = jax.eval_shape(member.evaluate, state, task.hparams())
    measured = jax.eval_shape(task.measure, state.params)
    return {
        name: ("eval_step" if name in evaluated else "step", found.shape)
        for name, found in {**record, **measured}.items()
    }


class Trainer:
    """Train the members of an experiment into a run folder, from the last checkpoint on.

    Attributes:
      progress: name of a phase -> its members.
      run_config: becomes `config.json` after training.
    """

    def __init__(
        self,
        engine: Engine,
        config: TaskConfig,
        folder: RunFolder,
        checkpoints: Checkpoints,
        processes: Processes,
        run_config: dict[str, Any],
        *,
        checkpoint_every: float,
        quiet: bool,
    ):
        self.engine, self.config, self.folder = engine, config, folder
        self.checkpoints, self.processes, self.run_config = checkpoints, processes, run_config
        self.checkpoint_every, self.quiet = checkpoint_every, quiet or not processes.leads
        self.progress: dict[str, Members] = {}
        self._programs: dict[Variant, Future] = {}  # that are compiled, with their seconds
        self._saved = time.monotonic()

    def train(self, stopped: list[int], report: Say) -> bool:
        """Train every arm; return whether all reached the end.

        Args:
          stopped: signals received; see `stop_signals`.
          report: receives a line where training resumes, and for each checkpoint, and each arm's
            records, that cannot be used.
        """
        arms, steps = self.config.arms, self.config.steps
        loaded = self._load(report) if self.processes.leads else {}
        if loaded and not self.quiet:
            whole = len(self.config.members) * steps
            shares = [sum(steps_reached(loaded, arm, steps).values()) / whole for arm in arms]
            parts = [f"{arm.name} {share:.0%}" for arm, share in zip(arms, shares)]
            report(f"resuming, of all steps done: {', '.join(parts)}")
        self.progress = exchange(self.processes, loaded)
        phases = [phase for arm in arms for phase in phases_of(arm, steps)]
        for place, phase in enumerate(phases):
            if self.processes.agree(stopped):
                break
            if phase.follows:
                self._untie(phase)
            new = [arm for arm in arms if not steps_reached(self.progress, arm, steps)]
            shared = shared_tied_parts(new, phase.arm)
            for until in sorted({*shared, phase.until}):
                at = steps_reached(self.progress, phase.arm, steps)
                todo = tuple(number for number in self.config.members if at.get(number, -1) < until)
                if todo:
                    own = phase._replace(until=until)
                    ahead = phases[place + 1 : place + 2]
                    with enough_memory():
                        self._train_phase(own, ahead, todo, sum(at.values()), stopped)
                if self.processes.agree(stopped):
                    break
                self._share(phase, shared.get(until, []))
        if self.processes.leads and self.progress:
            self.checkpoints.save(self.progress)
        return not stopped

    def _load(self, report: Say) -> dict[str, Members]:
        """Return the newest state of the arms whose records are all there; drop other records."""
        progress, recorded = self.checkpoints.load(report), {}
        for arm in self.config.arms:
            own = steps_recorded(progress, arm, self.config.steps)
            try:
                if own:
                    self.folder.check_records(arm.name, own, self.config.record_every)
                    recorded[arm.name] = own
            except UserError as error:
                report(str(error))
                for phase in phases_of(arm, self.config.steps):
                    progress.pop(phase.name, None)
        self.folder.start_records(recorded, self.config.record_every)
        return progress

    def _share(self, phase: Phase, parts: Sequence[Phase]) -> None:
        """Copy members and records of a tied phase to the equal parts of `untied@STEP` arms."""
        for part in parts:
            members = self.progress.get(phase.name)
            if members is None or not (members.steps == part.until).all():
                continue  # a run that was extended
            self.progress[part.name] = members
            if self.processes.leads:
                records = part.until // self.config.record_every
                self.folder.copy_records(phase.arm.name, part.arm.name, records)

    def _untie(self, phase: Phase) -> None:
        self.progress = exchange(self.processes, self.progress)
        if phase.follows in self.progress:
            untied = self.engine.untie(phase, self.progress.pop(phase.follows))
            self.progress[phase.name] = merge(self.progress.get(phase.name), untied)

    def _compile(self, phase: Phase) -> tuple[Any, float]:
        """Compile the program of a phase; return it and the seconds that it took."""
        began = time.monotonic()
        return self.engine.compile(phase), time.monotonic() - began

    def _compiled(
        self, phase: Phase, ahead: Sequence[Phase], stopped: list[int]
    ) -> tuple[Any, float] | None:
        """Return the program of a phase, and go on compiling those ahead; None after a signal."""
        if self.processes.count > 1:  # several must stop together
            return self._compile(phase)
        for each in (phase, *ahead):
            if each.variant not in self._programs:
                self._programs[each.variant] = in_background(partial(self._compile, each))
        return unless_stopped(self._programs[phase.variant], stopped)

    def _train_phase(
        self,
        phase: Phase,
        ahead: Sequence[Phase],
        todo: tuple[int, ...],
        before: int,
        stopped: list[int],
    ) -> None:
        members = len(self.config.members)
        arm, steps, best = phase.arm.name, self.config.steps, self.engine.best_losses
        points = [
            " ".join(f"{name} {value:g}" for name, value in at.items())
            for at in combinations(self.config.swept)
        ]
        with Progress(arm, steps, members, before, best, points, quiet=self.quiet) as shown:
            shown.say("compiling")
            compiled = self._compiled(phase, ahead, stopped)
            if compiled is None:
                return
            (program, compiling), began, latest = compiled, time.monotonic(), {}
            # numbers of members whose latest chunk since the checkpoint came without their state
            without_state: set[int] = set()
            known = self.progress.get(phase.name)
            control = Control(stopped, self._checkpoint_is_due)
            for chunk in self.engine.run(program, todo, known, phase.until, control):
                if chunk.records is not None and self.processes.leads:
                    self.folder.append(arm, chunk.first_record, chunk.numbers, chunk.records)
                if chunk.members is None:
                    without_state.update(chunk.numbers.tolist())
                else:
                    without_state.difference_update(chunk.numbers.tolist())
                    latest[int(chunk.numbers[0])] = chunk.members
                shown.add(chunk)
                if chunk.members is not None and not without_state and self._checkpoint_is_due():
                    now = merge(known, *latest.values())
                    self.checkpoints.save(self.progress | {phase.name: now})
                    self._saved = time.monotonic()
        if latest:
            self.progress[phase.name] = merge(known, *latest.values())
        times = self.run_config["arms"].setdefault(arm, {})
        shown.add_times(times, compiling, time.monotonic() - began)
        times["parameters"] = self.engine.parameters(program)

    def _checkpoint_is_due(self) -> bool:
        return self.processes.leads and time.monotonic() - self._saved > self.checkpoint_every
