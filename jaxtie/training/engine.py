"""What trains members, for the loop that is one for all kinds; and the phases of an arm."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from jaxtie.experiment import Arm, Declaration
from jaxtie.training.members import Control, Members, Piece


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


def programs_of(experiment: Declaration) -> list[Phase]:
    """One phase for each program that an experiment needs."""
    found = {
        (phase.tied, phase.arm.head): phase
        for arm in experiment.arms
        for phase in phases_of(arm, experiment.steps)
    }
    return list(found.values())
