"""Every arm at its own learning rate: what is declared, and which runs follow from it. Imports no jax.

An arm is tried at some rates: one seed that no verdict sees, judged on one half of the validation text.
The rate of the lowest loss there is the arm's own; with it all seeds are trained, and judged on the other half. Whatever its
rate, an arm begins with the numbers and sees the batches of the others.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxtie.experiment import check, names_of
from jaxtie.text.declaration import HALVES, TextExperiment

CHOSEN_ON, JUDGED_ON = HALVES  # of the validation text


class TunedRun(NamedTuple):
    """A run at one rate: below which folder, what is trained, what its arms are called, in their order."""

    folder: str
    experiment: TextExperiment
    labels: tuple[str, ...]


def at_rate(experiment: TextExperiment, rate: float) -> TextExperiment:
    """The rate falls over all of the steps, and comes down as far beside its start whatever that is."""
    least = experiment.optimiser.eta_min * rate / experiment.optimiser.learning_rate
    optimiser = dataclasses.replace(experiment.optimiser, learning_rate=rate, eta_min=least, half_period=experiment.steps)
    return dataclasses.replace(experiment, optimiser=optimiser)


def trial(declared: TextExperiment, rate: float, seed: int, labels: Sequence[str]) -> TunedRun:
    """All arms at one rate. For all of the steps: in fewer, higher rates are the best ones."""
    own = dataclasses.replace(declared, seeds=(seed,), valid_half=CHOSEN_ON)
    return TunedRun(f"trials/{rate:g}", at_rate(own, rate), tuple(labels))


def finals(declared: TextExperiment, chosen: Mapping[str, float], labels: Sequence[str]) -> Iterator[TunedRun]:
    """The runs that are judged: arms of one rate together, so that one can take over what another has trained.

    Args:
      chosen: label -> rate.
    """
    for rate in sorted({chosen[label] for label in labels}):
        arms = {label: arm for label, arm in zip(labels, declared.arms, strict=True) if chosen[label] == rate}
        own = dataclasses.replace(declared, arms=tuple(arms.values()), valid_half=JUDGED_ON)
        yield TunedRun(f"arms/{rate:g}", at_rate(own, rate), tuple(arms))


@dataclass(frozen=True)
class Tuning:
    """An experiment whose arms each have their own learning rate.

    Attributes:
      rates: that are tried, ascending.
      trial_seed: that they are tried with.
    """

    rates: tuple[float, ...]
    trial_seed: int

    def __post_init__(self):
        check(
            bool(self.rates) and list(self.rates) == sorted({*self.rates}), f"rates = {self.rates}: expected them to ascend"
        )

    def check_experiment(self, declared: TextExperiment) -> None:
        """UserError where the seed of the trials is one that verdicts see."""
        check(self.trial_seed not in declared.seeds, f"trial_seed = {self.trial_seed}: expected none of the seeds judged by")

    def trials(self, declared: TextExperiment) -> list[TunedRun]:
        """The runs that rates are chosen by."""
        return [trial(declared, rate, self.trial_seed, names_of(declared.arms)) for rate in self.rates]

    def finals(self, declared: TextExperiment, chosen: Mapping[str, float]) -> list[TunedRun]:
        """The runs that are judged."""
        return list(finals(declared, chosen, names_of(declared.arms)))
