"""The one loop, over an engine that only counts: each record is kept once and in its order,
wherever a run stops.
"""

import copy
import dataclasses
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from jaxtie.config import Arm, TaskConfig, names_of
from jaxtie.results.folder import RunFolder
from jaxtie.results.netcdf import Schema, Variable, steps_of
from jaxtie.training.checkpoints import opened
from jaxtie.training.distributed import Processes
from jaxtie.training.task import (
    Control,
    Members,
    Phase,
    Piece,
    phases_of,
    programs_of,
    steps_reached,
)
from jaxtie.training.trainer import Loop, is_something_abandoned, stop_signals, unless_stopped


@dataclass(frozen=True)
class Toy(TaskConfig):
    """An experiment of no kind."""

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
    """What an update makes of a member's value: only all updates, each once and in order, come to
    the same end.
    """
    return (3 * value + step) % 10_007


def value_at(number: int, steps: int) -> int:
    """Of a member after so many updates."""
    value = number
    for step in range(steps):
        value = advance(value, step)
    return value


class KilledError(Exception):
    """Stands for the end of the process."""


class Counting:
    """An engine without devices: two members at a time, a piece of each two in turns.

    Attributes:
      compiled, untied: names of phases.
      left: pieces that it hands out before it is stopped, as by a signal, or killed.
      stride: a piece comes at its multiples of steps.
      spares: whether pieces have their members only where these are wanted or the last.
    """

    facts: ClassVar[dict[str, Any]] = {}
    best_losses = (0.5,)

    def __init__(
        self,
        experiment: Toy,
        ending: str = "never",
        left: int = 0,
        *,
        stride: int = 1,
        spares: bool = False,
    ):
        self.experiment, self.ending, self.left, self.stride, self.spares = (
            experiment,
            ending,
            left,
            stride,
            spares,
        )
        self.compiled: list[str] = []
        self.untied: list[str] = []

    def compile(self, phase: Phase) -> str:
        self.compiled.append(phase.name)
        return phase.name

    def parameters(self, program: str) -> int:
        return 7

    def untie(self, phase: Phase, members: Members) -> Members:
        self.untied.append(phase.name)
        assert set(members.steps.tolist()) == {phase.arm.untie_at} and set(members.states) == {
            "value"
        }
        return members._replace(states=members.states | {"second": members.states["value"]})

    def run(
        self,
        program: str,
        numbers: Sequence[int],
        standing: Members | None,
        until: int,
        control: Control,
    ) -> Iterator[Piece]:
        # -1: nothing is recorded yet
        states = {number: (-1, {"value": number}) for number in numbers}
        for place, number in enumerate([] if standing is None else standing.numbers.tolist()):
            states[number] = (
                int(standing.steps[place]),
                {name: leaf[place] for name, leaf in standing.states.items()},
            )
        steps = sorted({states[number][0] for number in numbers})
        alike = [[number for number in numbers if states[number][0] == step] for step in steps]
        going = [
            self._of_two(each[i : i + 2], states, until, control)
            for each in alike
            for i in range(0, len(each), 2)
        ]
        while going:
            for two in list(going):
                if piece := next(two, None):
                    yield piece
                    if control.stopped:
                        return
                else:
                    going.remove(two)

    def _of_two(
        self, numbers: list[int], states: dict[int, Any], until: int, control: Control
    ) -> Iterator[Piece]:
        step, own = states[numbers[0]][0], [states[number][1] for number in numbers]
        leaves = {name: np.array([each[name] for each in own]) for name in own[0]}
        before, rows = step, {}
        while step < until:
            if step >= 0:
                leaves["value"] = np.array([advance(int(value), step) for value in leaves["value"]])
            step += 1
            if step % self.experiment.record_every == 0:
                rows[step] = leaves["value"]
            if step % self.stride == 0 or step == until:
                updates = len(numbers) * (step - max(before, 0))
                yield self._piece(
                    np.array(numbers),
                    step,
                    rows,
                    updates,
                    dict(leaves),
                    control,
                    ends=step == until,
                )
                before, rows = step, {}

    def _piece(
        self,
        numbers: np.ndarray,
        step: int,
        rows: dict[int, Any],
        updates: int,
        leaves: dict,
        control: Control,
        *,
        ends: bool,
    ) -> Piece:
        self.left -= 1
        if self.ending == "killed" and self.left < 0:
            raise KilledError
        if self.ending == "stopped" and self.left < 0:
            control.stopped.append(signal.SIGINT)
        size, records = len(numbers), None
        if rows:
            made = np.repeat(np.array([*rows])[:, None], size, axis=1)
            records = {
                "loss": np.stack([*rows.values()]),
                "made": made,
                "diverged_at": 0 * made - 1,
            }
        has_members = not self.spares or ends or control.stopped or control.wanted()
        members = (
            Members(numbers, np.full(size, step), np.zeros((size, 2), np.uint32), leaves)
            if has_members
            else None
        )
        first_record = min(rows, default=0) // self.experiment.record_every
        return Piece(numbers, first_record, records, members, updates, tokens=5 * updates)


class Kept:
    """Checkpoints in memory."""

    def __init__(self):
        self.arms: dict[str, Members] = {}
        self.count = 0

    def load(self, report: Any) -> dict[str, Members]:
        return copy.deepcopy(self.arms)

    def save(self, arms: dict[str, Members], config: dict) -> None:
        self.arms, self.count = copy.deepcopy(arms), self.count + 1


@dataclass
class Run:
    """A run of sittings in one folder."""

    folder: RunFolder
    kept: Any
    config: dict[str, Any] = dataclasses.field(default_factory=lambda: {"arms": {}})
    untied: list[str] = dataclasses.field(default_factory=list)
    standing: dict[str, Members] = dataclasses.field(default_factory=dict)

    @classmethod
    def begin(cls, path: Path, kept: Any = None) -> "Run":
        path.mkdir()
        folder = RunFolder(path)
        folder.create({"experiment": TOY.as_dict(), "finished": False})
        return cls(folder, kept or Kept())

    def sit(self, engine: Counting, checkpoint_every: float = 1e9, **options: Any) -> bool:
        """One sitting; whether it came to the end."""
        how = {
            "checkpoint_every": checkpoint_every,
            "quiet": True,
            "processes": Processes(),
        } | options
        loop = Loop(engine, engine.experiment, self.folder, self.kept, config=self.config, **how)
        try:
            return loop.train([], pytest.fail)
        finally:
            self.untied += engine.untied
            self.standing = loop.standing

    def assert_whole(self, experiment: Toy) -> None:
        """All records are there, each once and in its place, and every member stands at the end."""
        schema, found = Schema(VARIABLES, steps_of(experiment)), []
        for path in (self.folder.path / "records").glob("*.npz"):
            with np.load(path) as file:
                found += [
                    (path.name.rpartition(".n")[0].rsplit(".", 3)[0], number, step)
                    for step, number in _places(file)
                ]
        names, steps = names_of(experiment.arms), experiment.record_steps
        assert sorted(found) == sorted(
            (arm, seed, step) for arm in names for seed in experiment.seeds for step in steps
        )
        self.folder.assemble(experiment, schema, {}, {})
        results = self.folder.load()
        assert (results["made"] == results["step"]).all()
        expected = [[value_at(seed, step) for step in steps] for seed in experiment.seeds]
        for arm in experiment.arms:
            np.testing.assert_array_equal(results["loss"].sel(arm=arm.name), expected)
            stands = self.standing[arm.name]
            assert stands.numbers.tolist() == sorted(experiment.seeds) and set(stands.steps) == {
                experiment.steps
            }
            ends = {number: value_at(number, experiment.steps) for number in experiment.seeds}
            assert (
                dict(zip(stands.numbers.tolist(), stands.states["value"].tolist(), strict=True))
                == ends
            )
            assert ("second" in stands.states) == (arm.untie_at is not None)
        assert set(self.standing) == set(names)


def _places(file: Any) -> list[tuple[int, int]]:
    """Step and member of each record in a file of them."""
    made = file["made"].astype(int)
    return [
        (int(step), int(number))
        for row in made
        for step, number in zip(row, file["member"], strict=True)
    ]


def test_in_one_go(tmp_path, capsys):
    run, engine = Run.begin(tmp_path / "run"), Counting(TOY)
    assert run.sit(engine, quiet=False)
    run.assert_whole(TOY)
    assert engine.compiled == ["untied@4, tied", "untied@4", "tied"] and engine.untied == [
        "untied@4"
    ]
    assert run.kept.count == 1  # at the end
    for arm in ("untied@4", "tied"):
        times = run.config["arms"][arm]
        assert (times["seed_steps"], times["tokens"], times["parameters"]) == (8 * 3, 5 * 8 * 3, 7)
    told = capsys.readouterr().err
    assert told.count("untied@4: compiling") == 2 and told.count("\ntied: compiling") == 1
    assert "tied: 8/8 steps" in told and "(best 0.500)" in told


PIECES = 2 * 9 * 2 + 1  # of both arms, and one more than there are: two members, then one


@pytest.mark.parametrize("spares", [False, True])
@pytest.mark.parametrize("left", range(0, PIECES, 3))
def test_stopped_after_any_piece_it_goes_on(tmp_path, left, spares):
    run = Run.begin(tmp_path / "run")
    finished = run.sit(Counting(TOY, "stopped", left, spares=spares))
    assert finished == (left >= PIECES - 1) and run.kept.count == 1
    assert run.sit(Counting(TOY, spares=spares, stride=4))
    run.assert_whole(TOY)
    assert run.untied == ["untied@4"]
    if not spares:  # else members whose pieces had none are trained again from where they stood
        assert [run.config["arms"][arm]["seed_steps"] for arm in ("untied@4", "tied")] == [24, 24]


# the last shares nothing
SHARED = Toy(arms=("tied", "untied", "untied@4", "untied@6", "tied+bias"))


def updates_of(run: Run) -> list[int]:
    return [run.config["arms"][arm]["seed_steps"] for arm in names_of(SHARED.arms)]


def test_what_arms_share_with_the_tied_one_is_trained_once(tmp_path):
    """Up to the step at which they are untied; their records are the tied arm's up to there."""
    run, engine = Run.begin(tmp_path / "run"), Counting(SHARED)
    assert run.sit(engine)
    run.assert_whole(SHARED)
    assert updates_of(run) == [8 * 3, 8 * 3, 4 * 3, 2 * 3, 8 * 3] and engine.untied == [
        "untied@4",
        "untied@6",
    ]
    assert not {"untied@4, tied", "untied@6, tied"} & {*engine.compiled}


@pytest.mark.parametrize("left", range(0, 40, 3))
@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_what_is_shared_survives_the_end_of_a_sitting(tmp_path, left, ending):
    run = Run.begin(tmp_path / "run")
    if ending == "killed":
        with pytest.raises(KilledError):
            run.sit(Counting(SHARED, ending, left), -1)
    else:
        assert not run.sit(Counting(SHARED, ending, left))
    assert run.sit(Counting(SHARED, stride=4))
    run.assert_whole(SHARED)
    if ending == "stopped":
        assert updates_of(run) == [8 * 3, 8 * 3, 4 * 3, 2 * 3, 8 * 3]


def test_more_seeds_of_a_finished_run_train_their_own(tmp_path):
    """Of an arm that has begun nothing is taken from another one."""
    few = dataclasses.replace(SHARED, seeds=(5,))
    run = Run.begin(tmp_path / "run")
    assert run.sit(Counting(few)) and run.sit(Counting(SHARED))
    run.assert_whole(SHARED)


@pytest.mark.parametrize("spares", [False, True])
@pytest.mark.parametrize("left", range(1, PIECES, 3))
@pytest.mark.parametrize("checkpoint_every", [-1, 1e9])
def test_killed_after_any_piece_it_goes_on_from_the_last_checkpoint(
    tmp_path, left, spares, checkpoint_every
):
    run = Run.begin(tmp_path / "run")
    with pytest.raises(KilledError):
        run.sit(Counting(TOY, "killed", left, spares=spares), checkpoint_every)
    assert run.kept.count == (left if checkpoint_every < 0 else 0)
    assert run.sit(Counting(TOY, spares=spares, stride=4), checkpoint_every)
    run.assert_whole(TOY)


def test_a_checkpoint_has_all_that_are_under_way(tmp_path, monkeypatch):
    """Where members stand is asked of all of them once it is due, so none of those that train side
    by side falls back.
    """
    due, saved = [], []
    monkeypatch.setattr(Loop, "_checkpoint_is_due", lambda loop: bool(due))
    run, engine = Run.begin(tmp_path / "run"), Counting(TOY, spares=True)
    hand_out, save = engine._piece, run.kept.save

    def piece(*arguments: Any, **options: Any) -> Piece:
        # while both blocks of the first phase are on their way
        due.extend(["due"] * (engine.left == -4))
        return hand_out(*arguments, **options)

    def keep(arms: dict[str, Members], config: dict) -> None:
        due.clear()
        saved.append(
            {
                name: (members.numbers.tolist(), members.steps.tolist())
                for name, members in arms.items()
            }
        )
        save(arms, config)

    monkeypatch.setattr(engine, "_piece", piece)
    monkeypatch.setattr(run.kept, "save", keep)
    assert run.sit(engine)
    assert saved[0] == {"untied@4, tied": ([3, 5, 8], [2, 2, 2])}
    run.assert_whole(TOY)


def test_killed_again_and_again_it_comes_to_the_end(tmp_path):
    run, kills = Run.begin(tmp_path / "run"), PIECES // 2 - 1
    for _ in range(kills):
        with pytest.raises(KilledError):
            run.sit(Counting(TOY, "killed", 2, spares=True), -1)
    assert run.sit(Counting(TOY, "killed", 2, spares=True), -1)
    run.assert_whole(TOY)
    assert set(run.untied) == {"untied@4"}


def test_more_seeds_and_more_steps_go_on_with_what_is_there(tmp_path):
    """New members are tied while the old ones are untied already, and are untied by themselves."""
    run = Run.begin(tmp_path / "run")
    assert run.sit(Counting(TOY))
    more = dataclasses.replace(TOY, seeds=(9, 3, 4, 5, 8, 0))
    engine = Counting(more)
    assert run.sit(engine)
    run.assert_whole(more)
    assert (
        engine.compiled == ["untied@4, tied", "untied@4", "tied"] and run.untied == ["untied@4"] * 2
    )
    longer = dataclasses.replace(more, steps=12)
    engine = Counting(longer)
    assert run.sit(engine)
    run.assert_whole(longer)
    assert engine.compiled == ["untied@4", "tied"] and not engine.untied
    again = Counting(longer)
    assert run.sit(again) and not again.compiled


def test_by_checkpoints_on_the_disk(tmp_path):
    for left, ending in enumerate(("killed", "stopped", "never"), 8):
        with opened(tmp_path / "run" / "checkpoints") as kept:
            if not left - 8:
                run = Run.begin(tmp_path / "run")
            run.kept = kept
            try:
                assert run.sit(Counting(TOY, ending, left), -1) == (ending == "never")
            except KilledError:
                assert ending == "killed"
    run.assert_whole(TOY)
    assert run.untied == ["untied@4"]
    with opened(tmp_path / "run" / "checkpoints") as kept:
        assert set(kept.load(pytest.fail)) == {"untied@4", "tied"}


class Second(Processes):
    """The second of two, where the first one has this to say."""

    def __init__(self, standing: dict[str, Members]):
        super().__init__(1, 2)
        self.standing = standing

    def gather(self, tree: dict) -> list[dict]:
        said = (
            {"stopped": False}
            if "stopped" in tree
            else {arm: each._asdict() for arm, each in self.standing.items()}
        )
        return [said, tree]


def test_a_process_that_does_not_lead_writes_nothing_and_goes_on_from_what_the_first_has(tmp_path):
    first, second = Run.begin(tmp_path / "first"), Run.begin(tmp_path / "second")
    assert not first.sit(Counting(TOY, "stopped", 20))
    before = sorted(second.folder.path.rglob("*"))
    engine = Counting(TOY)
    assert second.sit(engine, -1, processes=Second(first.standing))
    assert sorted(second.folder.path.rglob("*")) == before and not second.kept.count
    assert engine.compiled == ["tied"] and set(second.standing) == {"untied@4", "tied"}


def test_phases_and_programs():
    tied, midway, bias = (Arm.parse(name) for name in ("tied", "untied@4", "untied+bias@4"))
    assert phases_of(tied, 8) == [Phase(tied, "tied", True, 8)]
    first, second = phases_of(midway, 8)
    assert first == Phase(midway, "untied@4, tied", True, 4) and second == Phase(
        midway, "untied@4", False, 8, first.name
    )
    found = programs_of(
        Toy(arms=("untied@4", "tied", "untied", "untied+bias@4", "untied+bias@6", "tied+half-swap"))
    )
    assert [(each.tied, each.arm.head) for each in found] == [
        (True, tied.head),
        (False, tied.head),
        (True, bias.head),
        (False, bias.head),
        (True, Arm.parse("tied+half-swap").head),
    ]
    nothing = np.zeros((2, 2), np.uint32)
    standing = {first.name: Members(np.array([3, 5]), np.array([2, 4]), nothing, {})}
    standing["untied@4"] = Members(np.array([8, 9]), np.array([6, 8]), nothing, {})
    assert steps_reached(standing, midway, 8) == {3: 2, 5: 4, 8: 6, 9: 8} and not steps_reached(
        standing, tied, 8
    )


def test_a_signal_asks_and_a_second_one_ends():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stop_signals() as stopped:
        signal.raise_signal(signal.SIGTERM)
        assert stopped == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_work_is_waited_for_unless_a_signal_comes():
    assert unless_stopped(lambda: 3, []) == 3
    for error in (ValueError, TimeoutError):

        def fail(error=error) -> None:
            raise error("in the other thread")

        with pytest.raises(error, match="other thread"):
            unless_stopped(fail, [])
    let_go, stopped = threading.Event(), []
    threading.Timer(0.3, stopped.append, [signal.SIGTERM]).start()
    assert unless_stopped(let_go.wait, stopped) is None and is_something_abandoned()
    let_go.set()


def test_in_another_thread_no_signal_is_waited_for():
    found = []

    def wait() -> None:
        with stop_signals() as stopped:
            found.append((stopped, signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert found == [([], before)]
