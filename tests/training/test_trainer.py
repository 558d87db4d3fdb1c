"""The trainer, over an engine that only counts: a record is written once, wherever a run stops."""

import copy
import dataclasses
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from jaxtie.config import Arm, TaskConfig, UserError, names_of
from jaxtie.results.folder import RunFolder
from jaxtie.results.netcdf import Schema, Variable, steps_of
from jaxtie.training.distributed import Processes
from jaxtie.training.task import (
    Chunk,
    Control,
    Members,
    Phase,
    phases_of,
    programs_of,
    steps_reached,
    steps_recorded,
)
from jaxtie.training.trainer import (
    Trainer,
    has_abandoned_threads,
    in_background,
    stop_signals,
    unless_stopped,
)


@dataclass(frozen=True)
class Toy(TaskConfig):
    """An experiment of no task."""

    task: ClassVar[str] = "toy"
    name: str = "toy"
    claim: str = "none"
    arms: tuple[Arm | str, ...] = ("untied@4", "tied")
    steps: int = 8
    record_every: int = 2
    eval_every: int = 4
    seeds: tuple[int, ...] = (3, 5, 8)

    def __post_init__(self):
        self.check_names_and_members()
        self.check_steps()


TOY = Toy()
VARIABLES = {
    "loss": Variable(("step",), "1", "a member's value"),
    "made": Variable(("step",), "1", "updates made"),
}


def advance(value: int, step: int) -> int:
    """Update a value; only all updates, each once and in order, lead to the same end."""
    return (3 * value + step) % 10_007


def value_at(number: int, steps: int) -> int:
    """Return the value of a member after so many updates."""
    value = number
    for step in range(steps):
        value = advance(value, step)
    return value


class KilledError(Exception):
    """Simulates the end of the process."""


class Counting:
    """An engine without devices: two members at a time, a chunk of each two in turns.

    Attributes:
      compiled, untied: names of phases.
      ending: "never", "stopped" as by a signal, or "killed".
      left: chunks that it hands out before its ending.
      stride: a chunk comes at its multiples of steps.
      spares: whether chunks have their members only where these are wanted or the last.
    """

    facts: ClassVar[dict[str, Any]] = {}
    best_losses = (0.5,)

    def __init__(
        self,
        config: Toy,
        ending: str = "never",
        left: int = 0,
        *,
        stride: int = 1,
        spares: bool = False,
    ):
        self.config, self.ending, self.left = config, ending, left
        self.stride, self.spares = stride, spares
        self.compiled: list[str] = []
        self.untied: list[str] = []

    def compile(self, phase: Phase) -> str:
        self.compiled.append(phase.name)
        return phase.name

    def parameters(self, program: str) -> int:
        return 7

    def untie(self, phase: Phase, members: Members) -> Members:
        self.untied.append(phase.name)
        assert set(members.steps.tolist()) == {phase.arm.untie_at}
        assert set(members.states) == {"value"}
        return members._replace(states=members.states | {"second": members.states["value"]})

    def run(
        self,
        program: str,
        numbers: Sequence[int],
        known: Members | None,
        until: int,
        control: Control,
    ) -> Iterator[Chunk]:
        # -1: nothing is recorded yet
        states = {number: (-1, {"value": number}) for number in numbers}
        for place, number in enumerate([] if known is None else known.numbers.tolist()):
            own = {name: leaf[place] for name, leaf in known.states.items()}
            states[number] = int(known.steps[place]), own
        steps = sorted({states[number][0] for number in numbers})
        alike = [[number for number in numbers if states[number][0] == step] for step in steps]
        going = [
            self._train_two(each[i : i + 2], states, until, control)
            for each in alike
            for i in range(0, len(each), 2)
        ]
        while going:
            for two in list(going):
                if chunk := next(two, None):
                    yield chunk
                    if control.stopped:
                        return
                else:
                    going.remove(two)

    def _train_two(
        self, numbers: list[int], states: dict[int, Any], until: int, control: Control
    ) -> Iterator[Chunk]:
        step, own = states[numbers[0]][0], [states[number][1] for number in numbers]
        leaves = {name: np.array([each[name] for each in own]) for name in own[0]}
        before, rows = step, {}
        while step < until:
            if step >= 0:
                leaves["value"] = np.array([advance(int(value), step) for value in leaves["value"]])
            step += 1
            if step % self.config.record_every == 0:
                rows[step] = leaves["value"]
            if step % self.stride == 0 or step == until:
                wanted = self._count_down(control) or not self.spares or step == until
                size = len(numbers)
                streams = np.zeros((size, 2), np.uint32)
                members = Members(np.array(numbers), np.full(size, step), streams, dict(leaves))
                yield self._chunk(members, rows, size * (step - max(before, 0)), wanted=wanted)
                before, rows = step, {}

    def _count_down(self, control: Control) -> bool:
        """Count a chunk; return whether a checkpoint or the end wants its members."""
        self.left -= 1
        if self.ending == "killed" and self.left < 0:
            raise KilledError
        if self.ending == "stopped" and self.left < 0:
            control.stopped.append(signal.SIGINT)
        return bool(control.stopped) or control.wanted()

    def _chunk(self, members: Members, rows: dict, updates: int, *, wanted: bool) -> Chunk:
        records = None
        if rows:
            made = np.repeat(np.array([*rows])[:, None], len(members.numbers), axis=1)
            loss = np.stack([*rows.values()])
            records = {"loss": loss, "made": made, "diverged_at": 0 * made - 1}
        first = min(rows, default=0) // self.config.record_every
        own = members if wanted else None
        return Chunk(members.numbers, first, records, own, updates, tokens=5 * updates)


class InMemory:
    """Checkpoints in memory."""

    def __init__(self):
        self.arms: dict[str, Members] = {}
        self.count = 0

    def load(self, report: Any) -> dict[str, Members]:
        return copy.deepcopy(self.arms)

    def save(self, arms: dict[str, Members]) -> None:
        self.arms, self.count = copy.deepcopy(arms), self.count + 1


@dataclass
class Run:
    """A run in one folder, of several sessions."""

    folder: RunFolder
    checkpoints: Any
    run_config: dict[str, Any] = dataclasses.field(default_factory=lambda: {"arms": {}})
    untied: list[str] = dataclasses.field(default_factory=list)
    progress: dict[str, Members] = dataclasses.field(default_factory=dict)

    @classmethod
    def begin(cls, path: Path, checkpoints: Any = None) -> "Run":
        path.mkdir()
        folder = RunFolder(path)
        folder.create({"experiment": TOY.as_dict(), "finished": False})
        return cls(folder, checkpoints or InMemory())

    def train(self, engine: Counting, checkpoint_every: float = 1e9, **options: Any) -> bool:
        """Train for a session; return whether the run is finished."""
        processes = options.pop("processes", Processes())
        own = engine, engine.config, self.folder, self.checkpoints, processes, self.run_config
        report = options.pop("report", pytest.fail)
        how = {"checkpoint_every": checkpoint_every, "quiet": True} | options
        trainer = Trainer(*own, **how)
        try:
            return trainer.train([], report)
        finally:
            self.untied += engine.untied
            self.progress = trainer.progress

    def updates(self, config: Toy) -> list[int]:
        return [self.run_config["arms"][arm]["seed_steps"] for arm in names_of(config.arms)]

    def assert_whole(self, config: Toy) -> None:
        """Check that each record is there once, in its place, and each member at the end."""
        schema, found = Schema(VARIABLES, steps_of(config)), []
        for path in (self.folder.path / "records").glob("*.npz"):
            arm = path.name.rpartition(".n")[0].rsplit(".", 3)[0]
            with np.load(path) as file:
                found += [
                    (arm, int(number), int(step))
                    for row in file["made"].astype(int)
                    for step, number in zip(row, file["member"], strict=True)
                ]
        names, steps = names_of(config.arms), config.record_steps
        expected = [(arm, seed, step) for arm in names for seed in config.seeds for step in steps]
        assert sorted(found) == sorted(expected)
        self.folder.assemble(config, schema, {}, {})
        results = self.folder.load()
        assert (results["made"] == results["step"]).all()
        values = [[value_at(seed, step) for step in steps] for seed in config.seeds]
        for arm in config.arms:
            np.testing.assert_array_equal(results["loss"].sel(arm=arm.name), values)
            members = self.progress[arm.name]
            assert members.numbers.tolist() == sorted(config.seeds)
            assert set(members.steps) == {config.steps}
            ends = [value_at(seed, config.steps) for seed in sorted(config.seeds)]
            assert members.states["value"].tolist() == ends
            assert ("second" in members.states) == (arm.untie_at is not None)
        assert set(self.progress) == set(names)


def test_in_one_go(tmp_path, capsys):
    run, engine = Run.begin(tmp_path / "run"), Counting(TOY)
    assert run.train(engine, quiet=False)
    run.assert_whole(TOY)
    assert sorted(engine.compiled) == ["untied@4", "untied@4, tied"]  # each variant once
    assert engine.untied == ["untied@4"] and run.checkpoints.count == 1  # at the end
    for arm in ("untied@4", "tied"):
        times = run.run_config["arms"][arm]
        assert (times["seed_steps"], times["tokens"], times["parameters"]) == (8 * 3, 5 * 8 * 3, 7)
    shown = capsys.readouterr().err
    assert shown.count("untied@4: compiling") == 2 and shown.count("\ntied: compiling") == 1
    assert "tied: 8/8 steps" in shown and "(best 0.500)" in shown


CHUNKS = 2 * 9 * 2 + 1  # of both arms, and one more than there are: two members, then one


@pytest.mark.parametrize("spares", [False, True])
@pytest.mark.parametrize("left", range(0, CHUNKS, 3))
def test_a_run_stopped_after_any_chunk_goes_on(tmp_path, left, spares):
    run = Run.begin(tmp_path / "run")
    finished = run.train(Counting(TOY, "stopped", left, spares=spares))
    assert finished == (left >= CHUNKS - 1) and run.checkpoints.count == 1
    assert run.train(Counting(TOY, spares=spares, stride=4))
    run.assert_whole(TOY)
    assert run.untied == ["untied@4"]
    if not spares:  # else members whose chunks had none are trained again from their checkpoint
        assert run.updates(TOY) == [24, 24]


# the last shares nothing
SHARED = Toy(arms=("tied", "untied", "untied@4", "untied@6", "tied+bias"))
OWN_UPDATES = [8 * 3, 8 * 3, 4 * 3, 2 * 3, 8 * 3]


def test_arms_that_untie_begin_with_the_tied_arm(tmp_path):
    """Up to the step at which they untie; their records up to there are the tied arm's."""
    run, engine = Run.begin(tmp_path / "run"), Counting(SHARED)
    assert run.train(engine)
    run.assert_whole(SHARED)
    assert run.updates(SHARED) == OWN_UPDATES and engine.untied == ["untied@4", "untied@6"]
    assert not {"untied@4, tied", "untied@6, tied"} & {*engine.compiled}


@pytest.mark.parametrize("left", range(0, 40, 3))
@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_shared_training_survives_the_end_of_a_session(tmp_path, left, ending):
    run = Run.begin(tmp_path / "run")
    if ending == "killed":
        with pytest.raises(KilledError):
            run.train(Counting(SHARED, ending, left), -1)
    else:
        assert not run.train(Counting(SHARED, ending, left))
    assert run.train(Counting(SHARED, stride=4))
    run.assert_whole(SHARED)
    if ending == "stopped":
        assert run.updates(SHARED) == OWN_UPDATES


def test_further_seeds_of_a_finished_run_train_their_own(tmp_path):
    """An arm that has begun takes nothing from another one."""
    few = dataclasses.replace(SHARED, seeds=(5,))
    run = Run.begin(tmp_path / "run")
    assert run.train(Counting(few)) and run.train(Counting(SHARED))
    run.assert_whole(SHARED)


@pytest.mark.parametrize("spares", [False, True])
@pytest.mark.parametrize("left", range(1, CHUNKS, 3))
@pytest.mark.parametrize("checkpoint_every", [-1, 1e9])
def test_a_run_killed_after_any_chunk_goes_on_from_the_last_checkpoint(
    tmp_path, left, spares, checkpoint_every
):
    run = Run.begin(tmp_path / "run")
    with pytest.raises(KilledError):
        run.train(Counting(TOY, "killed", left, spares=spares), checkpoint_every)
    assert run.checkpoints.count == (left if checkpoint_every < 0 else 0)
    assert run.train(Counting(TOY, spares=spares, stride=4), checkpoint_every)
    run.assert_whole(TOY)


DAMAGES = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "flipped": lambda path: path.write_bytes(path.read_bytes().replace(b"NUMPY", b"NUMPX", 1)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("place", [0, 3, -1])
@pytest.mark.parametrize("arm", ["untied@4", "tied"])
def test_an_arm_that_lacks_records_of_its_checkpoint_is_trained_again(tmp_path, arm, place, damage):
    """The other arm goes on."""
    run, lines, engine = Run.begin(tmp_path / "run"), [], Counting(TOY)
    assert not run.train(Counting(TOY, "stopped", CHUNKS - 5))
    own = sorted(run.folder.path.glob(f"records/{arm}.*.npz"))
    DAMAGES[damage](own[place])
    assert run.train(engine, report=lines.append)
    run.assert_whole(TOY)
    assert len(lines) == 1 and "from the start" in lines[0]
    assert ("untied@4" in engine.compiled) == (arm == "untied@4")


@pytest.mark.parametrize("killed", [False, True])
def test_without_any_records_all_arms_are_trained_again(tmp_path, killed):
    """Even if that is killed too, before the next checkpoint."""
    run, lines = Run.begin(tmp_path / "run"), []
    assert run.train(Counting(SHARED))
    shutil.rmtree(run.folder.path / "records")
    if killed:
        with pytest.raises(KilledError):
            run.train(Counting(SHARED, "killed", 25), report=lines.append)
    assert run.train(Counting(SHARED), report=lines.append)
    run.assert_whole(SHARED)
    assert len(lines) >= len(SHARED.arms)


def test_damaged_records_that_the_checkpoint_does_not_need_are_dropped(tmp_path):
    run = Run.begin(tmp_path / "run")
    with pytest.raises(KilledError):
        run.train(Counting(TOY, "killed", 20), 1e9)
    for path in run.folder.path.glob("records/*.npz"):
        path.write_bytes(b"")
    assert run.train(Counting(TOY))
    run.assert_whole(TOY)


@pytest.mark.parametrize(("diverged_at", "recorded"), [(-1, 8), (0, 0), (6, 6)])
def test_a_member_on_rows_that_diverged_has_no_later_records(diverged_at, recorded):
    states = {".state.diverged_at": np.array([diverged_at])}
    arm, nothing = Arm.parse("tied"), np.zeros((1, 2), np.uint32)
    members = Members(np.array([3]), np.array([8]), nothing, states)
    assert steps_recorded({"tied": members}, arm, 8) == {3: recorded}


def test_a_checkpoint_has_all_members_under_way(tmp_path, monkeypatch):
    """Once it is due the engine copies the state of all of them, so none falls back."""
    due, saved = [], []
    monkeypatch.setattr(Trainer, "_checkpoint_is_due", lambda trainer: bool(due))
    run, engine = Run.begin(tmp_path / "run"), Counting(TOY, spares=True)
    count_down, save = engine._count_down, run.checkpoints.save

    def count(control: Control) -> bool:
        # while both blocks of the first phase are on their way
        due.extend(["due"] * (engine.left == -4))
        return count_down(control)

    def keep(arms: dict[str, Members]) -> None:
        due.clear()
        saved.append({name: (m.numbers.tolist(), m.steps.tolist()) for name, m in arms.items()})
        save(arms)

    monkeypatch.setattr(engine, "_count_down", count)
    monkeypatch.setattr(run.checkpoints, "save", keep)
    assert run.train(engine)
    assert saved[0] == {"untied@4, tied": ([3, 5, 8], [2, 2, 2])}
    run.assert_whole(TOY)


def test_a_lack_of_memory_is_one_line(tmp_path, monkeypatch):
    def fail(*_: Any) -> None:
        raise jax.errors.JaxRuntimeError(f"{reason}: 3 GiB,\n none left")

    engine = Counting(TOY)
    monkeypatch.setattr(engine, "compile", fail)
    reason = "RESOURCE_EXHAUSTED"
    with pytest.raises(UserError, match=r"train fewer members .*EXHAUSTED: 3 GiB, none left\)$"):
        Run.begin(tmp_path / "run").train(engine)
    reason = "INTERNAL"
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        Run.begin(tmp_path / "other").train(engine)


def test_a_run_is_extended_by_seeds_and_by_steps(tmp_path):
    """New members are tied while the old ones are untied already, and untie by themselves."""
    run = Run.begin(tmp_path / "run")
    assert run.train(Counting(TOY))
    more = dataclasses.replace(TOY, seeds=(9, 3, 4, 5, 8, 0))
    engine = Counting(more)
    assert run.train(engine)
    run.assert_whole(more)
    assert sorted(engine.compiled) == ["untied@4", "untied@4, tied"]  # each variant once
    assert run.untied == ["untied@4"] * 2
    longer = dataclasses.replace(more, steps=12)
    engine = Counting(longer)
    assert run.train(engine)
    run.assert_whole(longer)
    assert engine.compiled == ["untied@4", "tied"] and not engine.untied
    again = Counting(longer)
    assert run.train(again) and not again.compiled


class Second(Processes):
    """The second of two processes, where the first one has this progress."""

    def __init__(self, progress: dict[str, Members]):
        super().__init__(1, 2)
        self.progress = progress

    def gather(self, tree: dict) -> list[dict]:
        first = {arm: each._asdict() for arm, each in self.progress.items()}
        return [{"stopped": False} if "stopped" in tree else first, tree]


def test_a_process_that_does_not_lead_writes_nothing_and_goes_on_from_the_first(tmp_path):
    first, second = Run.begin(tmp_path / "first"), Run.begin(tmp_path / "second")
    assert not first.train(Counting(TOY, "stopped", 20))
    before = sorted(second.folder.path.rglob("*"))
    engine = Counting(TOY)
    assert second.train(engine, -1, processes=Second(first.progress))
    assert sorted(second.folder.path.rglob("*")) == before and not second.checkpoints.count
    assert engine.compiled == ["tied"] and set(second.progress) == {"untied@4", "tied"}


def test_phases_and_programs():
    tied, midway, bias = (Arm.parse(name) for name in ("tied", "untied@4", "untied+bias@4"))
    assert phases_of(tied, 8) == [Phase(tied, "tied", True, 8)]
    first, second = phases_of(midway, 8)
    assert first == Phase(midway, "untied@4, tied", True, 4)
    assert second == Phase(midway, "untied@4", False, 8, first.name)
    names = "untied@4 tied untied untied+bias@4 untied+bias@6 tied+half-swap".split()
    variants = [phase.variant for phase in programs_of(Toy(arms=tuple(names)))]
    swapped = Arm.parse("tied+half-swap").head
    plain = [(True, tied.head), (False, tied.head), (True, bias.head), (False, bias.head)]
    assert variants == [*plain, (True, swapped)]
    nothing = np.zeros((2, 2), np.uint32)
    progress = {first.name: Members(np.array([3, 5]), np.array([2, 4]), nothing, {})}
    progress["untied@4"] = Members(np.array([8, 9]), np.array([6, 8]), nothing, {})
    assert steps_reached(progress, midway, 8) == {3: 2, 5: 4, 8: 6, 9: 8}
    assert not steps_reached(progress, tied, 8)


def test_a_first_signal_is_collected_and_a_second_one_raises():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stop_signals() as stopped:
        signal.raise_signal(signal.SIGTERM)
        assert stopped == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.usefixtures("hangups_count")
@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGTERM])
def test_a_second_hangup_does_not_end_the_saving(first):
    """A shell and the kernel both send one when a terminal closes."""
    with stop_signals() as stopped:
        signal.raise_signal(first)
        signal.raise_signal(signal.SIGHUP)
        assert stopped == [first]


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_hangup_that_nohup_ignores_stays_ignored(handler):
    before = signal.signal(signal.SIGHUP, handler)
    try:
        with stop_signals():
            assert (signal.getsignal(signal.SIGHUP) == handler) == (handler == signal.SIG_IGN)
        assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_signals_are_left_alone():
    found = []

    def look() -> None:
        with stop_signals() as stopped:
            found.append((stopped, signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [([], before)]


def test_work_is_awaited_unless_a_signal_comes():
    assert unless_stopped(in_background(lambda: 3), []) == 3
    for error in (ValueError, TimeoutError):

        def fail(error=error) -> None:
            raise error("in the other thread")

        with pytest.raises(error, match="other thread"):
            unless_stopped(in_background(fail), [])
    let_go, stopped = threading.Event(), []
    threading.Timer(0.3, stopped.append, [signal.SIGTERM]).start()
    assert unless_stopped(in_background(let_go.wait), stopped) is None
    assert has_abandoned_threads()
    let_go.set()
