"""What trains an experiment: engines, phases, chunks and members.

Where members stand: all that one needs to go on with them, on the host, by their numbers.

What trains members, for the loop that is one for all kinds; and the phases of an arm.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import numpy as np

from jaxtie.config import Arm, TaskConfig, UserError

Records = dict[str, np.ndarray]
States = TypeVar("States")  # of arrays


class Members(NamedTuple):
    """Where some members of an arm stand. Host arrays (members, ...)."""

    numbers: np.ndarray  # see `jaxtie.config.number_of`
    steps: np.ndarray  # updates made; -1: not even recorded at step 0
    streams: np.ndarray  # key data of each one's stream of samples
    states: dict[str, np.ndarray]  # the leaves of its state by their paths


class Piece(NamedTuple):
    """What an engine hands out: some members have come some way.

    Attributes:
      numbers: of these members.
      first_record: number of the first of the records.
      records: arrays (records, members, ...); None where no record was due.
      members: where they stand after the last of them. None, if that costs and nobody has asked
        (`Control.wanted`) and more pieces of them will come.
      updates: made since the piece before, summed over these members.
      tokens: real ones of text that these updates were made on.
      evaluating: seconds that were no training.
    """

    numbers: np.ndarray
    first_record: int
    records: Records | None
    members: Members | None
    updates: int
    tokens: int = 0
    evaluating: float = 0.0


class Control(NamedTuple):
    """What an engine looks at while it runs.

    Attributes:
      stopped: signals received; when there is one, it ends soon, every piece handed out with its
        members.
      wanted: whether a checkpoint is due, so a piece shall have its members.
    """

    stopped: list[int]
    wanted: Callable[[], bool] = lambda: False


def merge(*parts: Members | None) -> Members:
    """All members of the parts, in the order of their numbers; of one that several have, the
    last.
    """
    joined = jax.tree.map(
        lambda *arrays: np.concatenate(arrays), *[part for part in parts if part is not None]
    )
    _, last = np.unique(joined.numbers[::-1], return_index=True)
    return jax.tree.map(lambda x: x[len(joined.numbers) - 1 - last], joined)


def flatten(states: States) -> dict[str, np.ndarray]:
    """The leaves of a tree by their paths."""
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(states)
    }


def unflatten(like: States, leaves: dict[str, np.ndarray]) -> States:
    """The tree whose leaves have these paths, of members stacked as in `like`, however many.

    Raises:
      UserError: if they are not the leaves of `like`.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(like)
    expected = {jax.tree_util.keystr(path): (leaf.shape[1:], leaf.dtype) for path, leaf in paths}
    if expected != {name: (leaf.shape[1:], leaf.dtype) for name, leaf in leaves.items()}:
        raise UserError(
            "the checkpoint holds a model of other parts or sizes than this version builds;"
            " --overwrite the run"
        )
    return jax.tree.unflatten(tree, [leaves[name] for name in expected])


class Phase(NamedTuple):
    """A part of an arm's training, which one program does; where its members stand is kept under
    `name`.
    """

    arm: Arm
    name: str
    tied: bool
    until: int
    follows: str | None = None  # the phase whose members are untied for this one


def phases_of(arm: Arm, steps: int) -> list[Phase]:
    """One after the other; at its end an arm's members stand under the arm's name."""
    if not arm.tied or arm.untie_at is None:
        return [Phase(arm, arm.name, arm.tied, steps)]
    before = f"{arm.name}, tied"
    return [
        Phase(arm, before, True, arm.untie_at),
        Phase(arm, arm.name, False, steps, follows=before),
    ]


def shared_tied_parts(arms: Sequence[Arm], arm: Arm) -> dict[int, list[Phase]]:
    """Step -> the phases that are the training of a tied arm up to there, of others that are untied
    then.
    """
    found: dict[int, list[Phase]] = {}
    for other in arms:
        if (
            arm.tied
            and arm.untie_at is None
            and other.untie_at is not None
            and other.head == arm.head
        ):
            found.setdefault(other.untie_at, []).append(phases_of(other, other.untie_at)[0])
    return found


def steps_reached(standing: Mapping[str, Members], arm: Arm, steps: int) -> dict[int, int]:
    """Where each member of an arm stands, by its number, of all phases' members."""
    parts = [standing[phase.name] for phase in phases_of(arm, steps) if phase.name in standing]
    return {
        number: step
        for part in parts
        for number, step in zip(part.numbers.tolist(), part.steps.tolist(), strict=True)
    }


class Estimate(NamedTuple):
    """What a program would take, by measurement.

    Attributes:
      seconds: for all members of an arm, all steps and evaluations.
      device_bytes: memory on the devices.
      speed: in words, "" where seconds say it all.
    """

    seconds: float
    device_bytes: int
    speed: str = ""


CompiledProgram = TypeVar("CompiledProgram")  # whatever an engine compiles


class Engine(Protocol[CompiledProgram]):
    """What trains members of an experiment.

    Attributes:
      facts: what `config.json` says of the devices: device, workers, processes, ...
      best_losses: reachable ones, if known, nats; progress shows them.
    """

    facts: dict[str, Any]
    best_losses: Sequence[float]

    def compile(self, phase: Phase) -> CompiledProgram:
        """The program of a phase; the same one for phases that differ in nothing static."""

    def parameters(self, program: CompiledProgram) -> int:
        """How many a member has."""

    def run(
        self,
        program: CompiledProgram,
        numbers: Sequence[int],
        standing: Members | None,
        until: int,
        control: Control,
    ) -> Iterator[Piece]:
        """Train members up to a step, each from where it stands, else from the start. The last
        piece of each has `members`.

        Where there are several processes, all of them call this alike; the first gets every piece.
        """

    def untie(self, phase: Phase, members: Members) -> Members:
        """Tied members, untied where they stand, for the phase that follows theirs."""

    def estimate(self, program: CompiledProgram) -> Estimate:
        """What an arm would take; trains a little to see."""


def programs_of(experiment: TaskConfig) -> list[Phase]:
    """One phase for each program that an experiment needs."""
    found = {
        (phase.tied, phase.arm.head): phase
        for arm in experiment.arms
        for phase in phases_of(arm, experiment.steps)
    }
    return list(found.values())
