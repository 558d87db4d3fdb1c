"""Measures initial losses, for the loop that trains all else; see `jaxtie.training.engine.Engine`."""

import itertools
import time
from collections.abc import Iterator, Sequence
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from jaxtie.experiment import Arm, setting_and_seed
from jaxtie.formulas import size
from jaxtie.initial_loss.declaration import InitialLoss
from jaxtie.initial_loss.measurement import STATIC, WORDS_AT_ONCE, Drawn, draw_projections, measure
from jaxtie.training.devices import cores, describe_device, quick_options
from jaxtie.training.engine import Estimate, Phase
from jaxtie.training.members import Control, Members, Piece
from jaxtie.training.processes import Processes

TRIAL_WIDTH, TRIAL_VOCABULARY = 512, 2000  # that an estimate of time measures, at most


class InitialLossEngine:
    """A program is an arm: compiled programs are JAX's own, one for each setting.

    A seed's tables at a setting are drawn once for all arms: the first arm that asks has all measured, and the others take
    theirs from memory. Only a run that goes on after an interrupt draws them anew, with the same bits.

    Args:
      quick: programs are compiled quickly; each runs for a fraction of a second.
    """

    def __init__(self, experiment: InitialLoss, processes: Processes, *, quick: bool = False):
        device = jax.local_devices()[0]
        self.experiment, self.processes = experiment, processes
        self.own = frozenset(processes.share(experiment.members, 1))
        self.best_losses: tuple[float, ...] = ()
        self.facts = {
            "device": describe_device(device),
            "workers": cores() if device.platform == "cpu" else 1,
            "processes": processes.count,
        }
        options = quick_options() if quick and device.platform == "cpu" else None
        own = measure.__wrapped__  # options are for the outermost `jax.jit` only
        self._program = jax.jit(own, static_argnames=STATIC, compiler_options=options) if options else measure
        self._settings = list(itertools.product(experiment.widths, experiment.vocabularies))
        self._losses: dict[int, np.ndarray] = {}  # number of a member -> SxA, of all arms
        self._drawn: dict[int, Drawn] = {}  # by seed, of one width
        self._drawn_width = 0

    def compile(self, phase: Phase) -> Arm:
        """Nothing."""
        return phase.arm

    def parameters(self, program: Arm) -> int:
        """None is trained, and no table is ever there as a whole."""
        return 0

    def run(
        self, program: Arm, numbers: Sequence[int], standing: Members | None, until: int, control: Control
    ) -> Iterator[Piece]:
        """Measure what was not measured before; a piece is a member, or all of a setting that are known already."""
        done = set() if standing is None else set(standing.numbers[standing.steps >= until].tolist())
        todo = [number for number in numbers if number in self.own and number not in done]
        return self.processes.together(self._pieces(program, todo), control.stopped)

    def untie(self, phase: Phase, members: Members) -> Members:
        """Never asked for: the declaration refuses such arms."""
        raise ValueError(f"arm {phase.arm}: fresh models cannot be untied at a step")

    def estimate(self, program: Arm) -> Estimate:
        """An arm's share of the time that all arms take together."""
        experiment = self.experiment
        arms, width = len(experiment.arms), max(experiment.widths)
        words = min(WORDS_AT_ONCE, max(experiment.vocabularies))
        logits = 2 * arms * experiment.tokens * words  # and their exponentials
        rows = (arms * experiment.tokens + words) * width
        projections = jax.eval_shape(lambda: draw_projections(experiment.arms, 0, width))
        drawn = len(experiment.seeds) * sum(leaf.size for leaf in jax.tree.leaves(projections))
        speed = f"by a model of time, from measurements up to D {TRIAL_WIDTH} and n {TRIAL_VOCABULARY:,}"
        return Estimate(self._seconds / arms, 4 * (logits + rows + drawn), speed)

    @cached_property
    def _seconds(self) -> float:
        """For all arms, by a model: a word costs a + bD, a projection cD³."""
        experiment, seed = self.experiment, self.experiment.seeds[0]
        vocabulary = min(max(experiment.vocabularies), TRIAL_VOCABULARY)
        narrow, wide = min(experiment.widths), min(max(experiment.widths), TRIAL_WIDTH)
        per_word = []
        for width in (narrow, wide):
            self._measure(width, vocabulary, seed)  # compiles, and draws the projections
            began = time.monotonic()
            self._measure(width, vocabulary, seed)
            per_word.append((time.monotonic() - began) / vocabulary)
        slope = max(0.0, (per_word[1] - per_word[0]) / max(1, wide - narrow))
        words = sum((per_word[0] + slope * (width - narrow)) * n for width, n in self._settings)
        began = time.monotonic()
        jax.block_until_ready(draw_projections(experiment.arms, seed, wide))
        projections = (time.monotonic() - began) * sum((width / wide) ** 3 for width in experiment.widths)
        return (words + projections) * len(experiment.seeds) / self.processes.count

    def _pieces(self, arm: Arm, todo: Sequence[int]) -> Iterator[Piece]:
        for _, group in itertools.groupby(todo, key=lambda number: setting_and_seed(number)[0]):
            numbers = list(group)
            known = all(number in self._losses for number in numbers)
            for own in [numbers] if known else [[number] for number in numbers]:
                yield self._piece(arm, own)

    def _piece(self, arm: Arm, numbers: Sequence[int]) -> Piece:
        count, place = len(numbers), self.experiment.arms.index(arm)
        losses_MxS = np.stack([self._losses_of(number)[:, place] for number in numbers])
        finite = np.isfinite(losses_MxS).all(axis=1)
        records = {"initial_loss": losses_MxS[None], "diverged_at": np.where(finite, -1, 0).astype(np.int32)[None]}
        members = Members(
            np.array(numbers, np.int64),
            np.zeros(count, np.int64),
            np.zeros((count, 2), np.uint32),  # no samples are drawn
            {"initial_loss": losses_MxS},  # nothing is needed to go on, but a checkpoint keeps no empty dictionary
        )
        return Piece(members.numbers, 0, records, members, updates=0)

    def _losses_of(self, number: int) -> np.ndarray:
        if number not in self._losses:
            setting, seed = setting_and_seed(number)
            self._losses[number] = self._measure(*self._settings[setting], seed)
        return self._losses[number]

    def _measure(self, width: int, vocabulary: int, seed: int) -> np.ndarray:
        experiment, drawn = self.experiment, self._projections(width, seed)
        deviations = [size(deviation, vocabulary, width) for deviation in experiment.deviations]
        key = jax.random.fold_in(jax.random.key(jnp.uint32(seed)), 1)
        sizes = {"vocabulary": vocabulary, "width": width, "tokens": experiment.tokens}
        with jax.default_matmul_precision("highest"):  # accelerators would round the operands of float32 products otherwise
            return np.asarray(self._program(key, jnp.array(deviations), drawn, arms=experiment.arms, **sizes))

    def _projections(self, width: int, seed: int) -> Drawn:
        """Kept for all vocabularies: they cost more than all else where the vocabulary is small."""
        if width != self._drawn_width:
            self._drawn_width, self._drawn = width, {}
        if seed not in self._drawn:
            self._drawn[seed] = draw_projections(self.experiment.arms, seed, width)
        return self._drawn[seed]
