"""Declare the two models that are compared and the one that chooses pairs. Imports no jax."""

from typing import Any

from equivalence.halves import HALVES, HalfExperiment
from jaxtie.config import Optimizer, Transformer, check
from jaxtie.run.command import TextOptions
from jaxtie.text.config import Corpus

SIZES = {
    "small": Transformer(layers=2, heads=4, width=64, feedforward=256),
    "medium": Transformer(layers=3, heads=4, width=128, feedforward=512),
    "large": Transformer(layers=4, heads=8, width=256, feedforward=1024),
}
RECORD = 100  # steps between two records
STEPS = 4_000  # at most, unless a user says so
EPOCHS = 5  # likewise: on a small text more would be learned by heart
DUPLICATES = 40  # synthetic duplicates
VOCAB_SIZE = 4_096  # of trained vocabularies: small enough that small models see each entry often
NAMES = ("A", "B", "C")

OBJECTIVES: dict[str, dict[str, Any]] = {
    "causal": dict(init_std=0.02, learning_rate=2e-3, batch=16, length=64),
    # Larger batches, because only 15 % of the tokens are masked; a post-norm encoder.
    "masked": dict(init_std=0.3, learning_rate=1e-3, batch=64, length=64, buckets=(32, 64)),
}


def declare_models(
    corpus: Corpus,
    size: str = "small",
    steps: int = STEPS,
    duplicates: int = DUPLICATES,
    objective: str = "causal",
) -> tuple[HalfExperiment, ...]:
    """Declare models A and B, on either half of the text, and C, which chooses pairs, on the first.

    All have seeds of their own: pairs that A or B had chosen would be those that it errs about.

    The learning rate decays over all steps, a multiple of `RECORD`. Of `duplicates` words there are
    synthetic duplicates in the text, see `halves`.
    """
    own = dict(OBJECTIVES[objective])
    optimizer = Optimizer(
        learning_rate=own.pop("learning_rate"), weight_decay=0.01, half_period=steps
    )
    return tuple(
        HalfExperiment(
            name=f"hypothesis-{name}",
            claim=f"Model {name}, on the {half} half of the text.",
            objective=objective,
            corpus=corpus,
            model=SIZES[size],
            optimizer=optimizer,
            arms=("untied",),
            steps=steps,
            seeds=(seed,),
            record_every=RECORD,
            eval_every=5 * RECORD,
            words=8,
            half=half,
            planted=duplicates,
            **own,
        )
        for seed, (name, half) in enumerate(zip(NAMES, (*HALVES, HALVES[0])))
    )


def default_steps(rows: int, tokens: int, objective: str) -> int:
    """Return the steps of `EPOCHS` epochs, at most `STEPS` and to the nearest `RECORD`.

    Args:
      rows: sentences of the training split, of which each model sees half.
      tokens: tokens of it.
      objective: "causal" or "masked".
    """
    own = OBJECTIVES[objective]
    causal = objective == "causal"
    epoch = (tokens / own["length"] if causal else rows) / 2 / own["batch"]
    return min(STEPS, max(1, round(EPOCHS * epoch / RECORD)) * RECORD)


def corpus_of(options: TextOptions) -> Corpus:
    """Return the corpus that the command line names."""
    return Corpus(
        paths=tuple(map(str, options.text)),
        tfds=options.tfds,
        field=options.text_field or Corpus.field,
        document=options.document,
        vocab=str(options.vocab) if options.vocab else None,
        vocab_size=options.vocab_size or VOCAB_SIZE,
        form="sentences",
    )


def check_tokens(tokens: int, vocabulary: int) -> None:
    """Raise UserError if more tokens are to be evaluated than there are."""
    check(
        tokens <= vocabulary,
        f"--words {tokens}: expected at most the vocabulary's {vocabulary:,} entries",
    )
