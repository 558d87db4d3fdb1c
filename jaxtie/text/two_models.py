"""The two models that a text is asked with: small, untied, causal or masked, each on its own half
of the text. No jax.
"""

from typing import Any

from jaxtie.experiment import Optimiser, check
from jaxtie.models.sizes import Transformer
from jaxtie.text.declaration import HALVES, Corpus, TextExperiment
from jaxtie.text.options import TextOptions

SIZES = {
    "small": Transformer(layers=2, heads=4, width=64, feedforward=256),
    "medium": Transformer(layers=3, heads=4, width=128, feedforward=512),
    "large": Transformer(layers=4, heads=8, width=256, feedforward=1024),
}
RECORD = 100  # steps between two records
STEPS = 4_000
PLANTED = 40  # words with a duplicate
ENTRIES = 4_096  # entries, where a vocabulary is trained: that a small model sees each often
NAMES = ("A", "B")


# By what they are asked: the next token, or masks. A masked batch asks 15 % of its tokens; its
# encoder is post-norm.
TASKS_OF_TWO: dict[str, dict[str, Any]] = {
    "causal": {"deviation": 0.02, "learning_rate": 2e-3, "batch": 16, "length": 64},
    "masked": {
        "deviation": 0.3,
        "learning_rate": 1e-3,
        "batch": 64,
        "length": 64,
        "buckets": (32, 64),
    },
}


def two_models(
    corpus: Corpus,
    size: str = "small",
    steps: int = STEPS,
    planted: int = PLANTED,
    task: str = "causal",
) -> tuple[TextExperiment, ...]:
    """The declarations of A and of B: of other halves, other initial values, another order of the
    rows; all else alike.

    Args:
      size: of `SIZES`.
      steps: updates of each, a multiple of `RECORD`; the learning rate falls over all of them.
      planted: words with a duplicate, see `jaxtie.text.planting`.
      task: of `TASKS_OF_TWO`.
    """
    own = dict(TASKS_OF_TWO[task])
    optimiser = Optimiser(
        learning_rate=own.pop("learning_rate"), weight_decay=0.01, half_period=steps
    )
    return tuple(
        TextExperiment(
            name=f"hypothesis-{name}",
            claim=f"Model {name} of two, on the {half} half of the text.",
            task=task,
            corpus=corpus,
            model=SIZES[size],
            optimiser=optimiser,
            arms=("untied",),
            steps=steps,
            seeds=(seed,),
            record_every=RECORD,
            eval_every=5 * RECORD,
            words=8,
            duplicates=False,
            half=half,
            planted=planted,
            **own,
        )
        for seed, (name, half) in enumerate(zip(NAMES, HALVES))
    )


def corpus_of(options: TextOptions, vocab_size: int) -> Corpus:
    """The corpus that the command line names; of so many entries, where it says nothing of a
    vocabulary.

    Raises:
      UserError: where it names the field of no data set.
    """
    check(
        options.tfds is not None or not options.tfds_field,
        "--tfds-field: expected with --tfds only",
    )
    return Corpus(
        paths=tuple(map(str, options.text)),
        tfds=options.tfds,
        field=options.tfds_field or Corpus.field,
        vocab=str(options.vocab) if options.vocab else None,
        vocab_size=options.vocab_size or vocab_size,
    )
