"""Declare small models of one recipe, tied and untied, by size and budget. Imports no jax.

The recipe is that of language models now: `jaxtie.Decoder`, embeddings N(0, 0.02²), AdamW with
β₂ = 0.99 and decay 0.1, a tenth of the steps to warm up, then a cosine to 0 at the last step. A
batch has only 4 x 64 tokens, since in few large ones a small model learns little.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtie.config import Decoder, Optimizer
from jaxtie.text.config import Corpus, TextExperiment

BATCH, LENGTH = 4, 64
HEAD_WIDTH = 32
RECORDS = 10  # of a run; its steps are a multiple
EVALUATED = 1_000  # batches of the validation split, at most


@dataclass(frozen=True)
class Pilot:
    """Size and budget of a model.

    Attributes:
      width, layers: of the decoder.
      steps: updates, each of `BATCH` times `LENGTH` tokens.
      branch_scale: see `jaxtie.Decoder`.
    """

    width: int
    layers: int
    steps: int
    branch_scale: float | None = None

    @property
    def tokens(self) -> int:
        """Training tokens of the run, repetitions included."""
        return self.steps * BATCH * LENGTH

    def experiment(
        self, corpus: Corpus, arms: Sequence[str], learning_rate: float, seeds: Sequence[int]
    ) -> TextExperiment:
        """Return the experiment that trains these arms and seeds."""
        model = Decoder(
            layers=self.layers,
            heads=max(1, self.width // HEAD_WIDTH),
            width=self.width,
            branch_scale=self.branch_scale,
        )
        optimizer = Optimizer(
            learning_rate=learning_rate,
            eta_min=0.0,
            half_period=self.steps,
            warmup=max(1, self.steps // 10),
            weight_decay=0.1,
            b2=0.99,
            eps=1e-8,
        )
        return TextExperiment(
            name="pilot",
            objective="causal",
            corpus=corpus,
            model=model,
            init_std=0.02,
            optimizer=optimizer,
            arms=tuple(arms),
            seeds=tuple(seeds),
            steps=self.steps,
            record_every=self.steps // RECORDS,
            eval_every=self.steps,
            eval_batches=EVALUATED,
            batch=BATCH,
            length=LENGTH,
            words=8,
            duplicates=False,
        )


def steps_for(tokens: float) -> int:
    """Return the steps that take about so many tokens, a multiple of `RECORDS`."""
    return RECORDS * max(1, round(tokens / (BATCH * LENGTH * RECORDS)))
