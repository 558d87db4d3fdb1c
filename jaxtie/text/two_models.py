"""The two models that a text is asked with: small, causal, untied, each on its own half of the text. Imports no jax."""

from jaxtie.experiment import Optimiser
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


def two_models(corpus: Corpus, size: str = "small", steps: int = STEPS, planted: int = PLANTED) -> tuple[TextExperiment, ...]:
    """The declarations of A and of B: of other halves, other initial values, another order of the rows; all else alike.

    Args:
      size: of `SIZES`.
      steps: updates of each, a multiple of `RECORD`; the learning rate falls over all of them.
      planted: words with a duplicate, see `jaxtie.text.planting`.
    """
    return tuple(
        TextExperiment(
            name=f"hypothesis-{name}",
            claim=f"Model {name} of two, on the {half} half of the text.",
            task="causal",
            corpus=corpus,
            model=SIZES[size],
            deviation=0.02,
            optimiser=Optimiser(learning_rate=2e-3, weight_decay=0.01, half_period=steps),
            arms=("untied",),
            steps=steps,
            seeds=(seed,),
            record_every=RECORD,
            eval_every=5 * RECORD,
            batch=16,
            length=64,
            words=8,
            duplicates=False,
            half=half,
            planted=planted,
        )
        for seed, (name, half) in enumerate(zip(NAMES, HALVES))
    )


def corpus_of(options: TextOptions, vocab_size: int) -> Corpus:
    """The corpus that the command line names; of so many entries, where it says nothing of a vocabulary."""
    return Corpus(
        paths=tuple(map(str, options.text)),
        tfds=options.tfds,
        field=options.tfds_field or Corpus.field,
        vocab=options.vocab and str(options.vocab),
        vocab_size=options.vocab_size or vocab_size,
    )
