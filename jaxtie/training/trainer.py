"""Loop over phases: chunks, records, checkpoints, progress, signals.

Compiling beside other work, in a thread that nobody need wait for.

The one loop: over phases, records, checkpoints and progress, for every engine; and signals that
ask it to stop.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from jaxtie.config import TaskConfig
from jaxtie.results.folder import RunFolder, Say
from jaxtie.training.checkpoints import Checkpoints, exchange
from jaxtie.training.distributed import Processes
from jaxtie.training.progress import Progress, add_times
from jaxtie.training.task import (
    Control,
    Engine,
    Members,
    Phase,
    merge,
    phases_of,
    shared_tied_parts,
    steps_reached,
)

NAME = "jaxtie: compiles"  # of such a thread
Worked = TypeVar("Worked")


def in_background(work: Callable[[], Worked]) -> Future[Worked]:
    """What `work` will return. JAX's contexts (`jax.enable_x64`, ...) are of a thread: the caller's
    do not reach it.
    """
    result: Future[Worked] = Future()

    def do() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=do, name=NAME, daemon=True).start()
    return result


def is_something_abandoned() -> bool:
    """Whether such a thread is still at work, so that this process should not tidy up."""
    return any(thread.name == NAME for thread in threading.enumerate())


LOOK = 0.1  # seconds between two looks at whether a signal came


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM fill the list instead of raising, so that no device state is lost; a
    second one raises.

    Only the main thread of a program can be asked so; in another the list stays empty.
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


def unless_stopped(work: Callable[[], Worked], stopped: Sequence[int]) -> Worked | None:
    """What `work` returns; None as soon as a signal is there, though it may take minutes and know
    nothing of signals.

    It is another thread that works, and then it is left to itself.
    """
    result = in_background(work)
    while not stopped:
        if wait((result,), LOOK).done:
            return result.result()
    return None


class Loop:
    """Trains the members of an experiment into a folder, from the last checkpoint on.

    Attributes:
      standing: name of a phase -> where its members stand.
      config: of the run, brought up to date.
    """

    def __init__(
        self,
        engine: Engine,
        experiment: TaskConfig,
        folder: RunFolder,
        checkpoints: Checkpoints,
        processes: Processes,
        config: dict[str, Any],
        *,
        checkpoint_every: float,
        quiet: bool,
    ):
        self.engine, self.experiment, self.folder, self.checkpoints = (
            engine,
            experiment,
            folder,
            checkpoints,
        )
        self.processes, self.config = processes, config
        self.checkpoint_every, self.quiet = checkpoint_every, quiet or not processes.leads
        self.standing: dict[str, Members] = {}
        self._saved = time.monotonic()

    def train(self, stopped: list[int], report: Say) -> bool:
        """Train every arm; returns whether all came to the end.

        Args:
          stopped: signals received; see `stop_signals`.
          report: is told of checkpoints that cannot be used.
        """
        arms, steps = self.experiment.arms, self.experiment.steps
        loaded = self.checkpoints.load(report) if self.processes.leads else {}
        self.standing = exchange(self.processes, loaded)
        if self.processes.leads:
            reached = {arm.name: steps_reached(self.standing, arm, steps) for arm in arms}
            self.folder.start_records(reached, self.experiment.record_every)
        for phase in [phase for arm in arms for phase in phases_of(arm, steps)]:
            if self.processes.agree(stopped):
                break
            if phase.follows:
                self._untie(phase)
            new = [arm for arm in arms if not steps_reached(self.standing, arm, steps)]
            shared = shared_tied_parts(new, phase.arm)
            for until in sorted({*shared, phase.until}):
                at = steps_reached(self.standing, phase.arm, steps)
                todo = tuple(
                    member for member in self.experiment.members if at.get(member, -1) < until
                )
                if todo:
                    self._train_phase(
                        phase._replace(until=until),
                        todo,
                        sum(at.values()) if steps else len(at),
                        stopped,
                    )
                if self.processes.agree(stopped):
                    break
                self._share(phase, shared.get(until, []))
        if self.processes.leads and self.standing:  # else it was interrupted at once
            self.checkpoints.save(self.standing, self.config)
        return not stopped

    def _share(self, phase: Phase, parts: Sequence[Phase]) -> None:
        """Have these tied parts of other arms begin where the members of a phase stand, with their
        records so far.

        They are the same program on the same samples, so they come to the same bits.
        """
        for part in parts:
            members = self.standing.get(phase.name)
            if members is None or not (members.steps == part.until).all():
                continue  # of a run that was extended
            self.standing[part.name] = members._replace(
                states={name: leaf.copy() for name, leaf in members.states.items()}
            )
            if self.processes.leads:
                self.folder.copy_records(
                    phase.arm.name, part.arm.name, part.until // self.experiment.record_every
                )

    def _untie(self, phase: Phase) -> None:
        self.standing = exchange(self.processes, self.standing)
        if phase.follows in self.standing:
            untied = self.engine.untie(phase, self.standing.pop(phase.follows))
            self.standing[phase.name] = merge(self.standing.get(phase.name), untied)

    def _train_phase(
        self, phase: Phase, todo: tuple[int, ...], before: int, stopped: list[int]
    ) -> None:
        members, began = len(self.experiment.members), time.monotonic()
        arm, steps, best = phase.arm.name, self.experiment.steps, self.engine.best_losses
        with Progress(arm, steps, members, before, best, quiet=self.quiet) as progress:
            progress.say("compiling")
            compile_it = partial(self.engine.compile, phase)
            alone = self.processes.count == 1  # several stop together, or would wait for each other
            program = unless_stopped(compile_it, stopped) if alone else compile_it()
            if program is None:
                return
            compiled, latest = time.monotonic(), {}
            # under way, and did not say since the last checkpoint where they stand
            waited_for: set[int] = set()
            control = Control(stopped, self._checkpoint_is_due)
            for piece in self.engine.run(
                program, todo, self.standing.get(phase.name), phase.until, control
            ):
                if piece.records is not None and self.processes.leads:
                    self.folder.append(arm, piece.first_record, piece.numbers, piece.records)
                if piece.members is None:
                    waited_for.update(piece.numbers.tolist())
                else:
                    waited_for.difference_update(piece.numbers.tolist())
                    latest[int(piece.numbers[0])] = piece.members
                loss = (piece.records or {}).get("loss")
                progress.add(
                    len(piece.numbers),
                    piece.updates,
                    None if loss is None else loss[-1],
                    piece.tokens,
                    piece.evaluating,
                )
                if piece.members is not None and not waited_for and self._checkpoint_is_due():
                    now = merge(self.standing.get(phase.name), *latest.values())
                    self.checkpoints.save(self.standing | {phase.name: now}, self.config)
                    self._saved = time.monotonic()
        if latest:
            self.standing[phase.name] = merge(self.standing.get(phase.name), *latest.values())
        times = self.config["arms"].setdefault(arm, {})
        training = time.monotonic() - compiled - progress.done.evaluating
        add_times(times, members, compiled - began, training, progress.done)
        times["parameters"] = self.engine.parameters(program)

    def _checkpoint_is_due(self) -> bool:
        return self.processes.leads and time.monotonic() - self._saved > self.checkpoint_every
