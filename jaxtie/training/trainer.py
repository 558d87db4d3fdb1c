"""The loop of every engine, over phases, records and checkpoints; signals that ask it to stop."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np

from jaxtie.config import TaskConfig, check
from jaxtie.results.folder import RunFolder, Say
from jaxtie.results.netcdf import Schema, Variable, steps_of
from jaxtie.training.block_engine import BlockEngine
from jaxtie.training.checkpoints import Checkpoints, exchange
from jaxtie.training.distributed import Processes
from jaxtie.training.member import make_member
from jaxtie.training.progress import Progress, add_times
from jaxtie.training.row_engine import RowEngine
from jaxtie.training.task import (
    Control,
    Engine,
    Members,
    Phase,
    merge,
    phases_of,
    programs_of,
    shared_tied_parts,
    steps_reached,
)

COMPILING = "jaxtie: compiles"  # name of the threads of `in_background`
POLL_SECONDS = 0.1  # seconds between two checks for a signal
Result = TypeVar("Result")


def in_background(work: Callable[[], Result]) -> Future[Result]:
    """Return what `work` will return, from a thread that nobody needs to wait for.

    JAX's contexts (`jax.enable_x64`, ...) belong to a thread: the caller's do not reach it.
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
    """Whether such a thread still works; a process that tidies up then would crash it."""
    return any(thread.name == COMPILING for thread in threading.enumerate())


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of raising, so no device state is lost; a second raises.

    Only the main thread receives signals; in another one the list stays empty.
    """
    received: list[int] = []

    def note(number: int, _: object) -> None:
        received.append(number)
        for each in previous:
            signal.signal(each, signal.default_int_handler)

    here = threading.current_thread() is threading.main_thread()
    previous = (
        {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        if here
        else {}
    )
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def unless_stopped(work: Callable[[], Result], stopped: Sequence[int]) -> Result | None:
    """Return what `work` returns, or None as soon as there is a signal.

    `work` may take minutes and know nothing of signals: another thread does it, and is abandoned.
    """
    result = in_background(work)
    while not stopped:
        if wait((result,), POLL_SECONDS).done:
            return result.result()
    return None


def make_engine(config: TaskConfig, processes: Processes) -> Engine:
    """Return the engine of a configuration's task.

    Raises:
      UserError: if the task cannot be what the configuration asks for.
    """
    platform = jax.local_devices()[0].platform
    tasks = [config.build(phase.variant, platform) for phase in programs_of(config)]
    check(
        not config.roles or all(task.roles for task in tasks),
        f"roles: task {config.task!r} does not say what to record of them",
    )
    if tasks[0].rows is None:
        return BlockEngine(config, processes)
    return RowEngine(config, processes)


def schema_of(config: TaskConfig) -> Schema:
    """Return the variables of the results: the configuration's own, or all that the task records.

    A task with rows from the host has its own.
    """
    if own := config.report("schema"):
        return own(config)
    task = config.build(config.arms[0].variant, jax.local_devices()[0].platform)
    check(
        task.rows is None,
        f"task {config.task!r}: has rows from the host, so its configuration must have a schema",
    )
    member = make_member(task)
    state, _, record = jax.eval_shape(member.start, np.uint32(0), task.hparams())
    evaluated = jax.eval_shape(member.evaluate, state, task.hparams())
    measured = jax.eval_shape(task.measure, state.params)
    labels: dict[str, Sequence[Any]] = dict(steps_of(config))
    variables = {}
    for name, shape in {**record, **measured}.items():
        axes = [f"{name}_{axis}" for axis in range(len(shape.shape))]
        labels |= {axis: range(size) for axis, size in zip(axes, shape.shape, strict=True)}
        along = "eval_step" if name in evaluated else "step"
        variables[name] = Variable((along, *axes), "1", name.replace("_", " "))
    return Schema(variables, labels)


class Trainer:
    """Train the members of an experiment into a run folder, from the last checkpoint on.

    Attributes:
      progress: name of a phase -> the members of that phase.
      run_config: what `config.json` says; brought up to date.
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
        self._saved = time.monotonic()

    def train(self, stopped: list[int], report: Say) -> bool:
        """Train every arm; return whether all reached the end.

        Args:
          stopped: signals received; see `stop_signals`.
          report: receives a line for each checkpoint that cannot be used.
        """
        arms, steps = self.config.arms, self.config.steps
        loaded = self.checkpoints.load(report) if self.processes.leads else {}
        self.progress = exchange(self.processes, loaded)
        if self.processes.leads:
            reached = {arm.name: steps_reached(self.progress, arm, steps) for arm in arms}
            self.folder.start_records(reached, self.config.record_every)
        for phase in [phase for arm in arms for phase in phases_of(arm, steps)]:
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
                    before = sum(at.values()) if steps else len(at)
                    self._train_phase(phase._replace(until=until), todo, before, stopped)
                if self.processes.agree(stopped):
                    break
                self._share(phase, shared.get(until, []))
        if self.processes.leads and self.progress:  # else it was interrupted at once
            self.checkpoints.save(self.progress, self.run_config)
        return not stopped

    def _share(self, phase: Phase, parts: Sequence[Phase]) -> None:
        """Copy members and records of a tied phase to tied parts of other arms that equal it.

        They are the same program on the same samples, so they reach the same bits.
        """
        for part in parts:
            members = self.progress.get(phase.name)
            if members is None or not (members.steps == part.until).all():
                continue  # of a run that was extended
            self.progress[part.name] = members._replace(
                states={name: leaf.copy() for name, leaf in members.states.items()}
            )
            if self.processes.leads:
                records = part.until // self.config.record_every
                self.folder.copy_records(phase.arm.name, part.arm.name, records)

    def _untie(self, phase: Phase) -> None:
        self.progress = exchange(self.processes, self.progress)
        if phase.follows in self.progress:
            untied = self.engine.untie(phase, self.progress.pop(phase.follows))
            self.progress[phase.name] = merge(self.progress.get(phase.name), untied)

    def _train_phase(
        self, phase: Phase, todo: tuple[int, ...], before: int, stopped: list[int]
    ) -> None:
        members, began = len(self.config.members), time.monotonic()
        arm, steps, best = phase.arm.name, self.config.steps, self.engine.best_losses
        with Progress(arm, steps, members, before, best, quiet=self.quiet) as shown:
            shown.say("compiling")
            compile_it = partial(self.engine.compile, phase)
            alone = self.processes.count == 1  # several stop together, or would wait for each other
            program = unless_stopped(compile_it, stopped) if alone else compile_it()
            if program is None:
                return
            compiled, latest = time.monotonic(), {}
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
                loss = (chunk.records or {}).get("loss")
                shown.add(
                    len(chunk.numbers),
                    chunk.updates,
                    None if loss is None else loss[-1],
                    chunk.tokens,
                    chunk.evaluating,
                )
                if chunk.members is not None and not without_state and self._checkpoint_is_due():
                    now = merge(known, *latest.values())
                    self.checkpoints.save(self.progress | {phase.name: now}, self.run_config)
                    self._saved = time.monotonic()
        if latest:
            self.progress[phase.name] = merge(known, *latest.values())
        times = self.run_config["arms"].setdefault(arm, {})
        training = time.monotonic() - compiled - shown.done.evaluating
        add_times(times, members, compiled - began, training, shown.done)
        times["parameters"] = self.engine.parameters(program)

    def _checkpoint_is_due(self) -> bool:
        return self.processes.leads and time.monotonic() - self._saved > self.checkpoint_every
