"""Declare, train or load the two models that are compared.

The two models that a text is asked with: small, untied, causal or masked, each on its own half
of the text. No jax.

A model of text that a run has left in its folder: its text, what it computes, its parameters;
what it makes of text.

Shapes: B rows, L tokens a row, V vocabulary.
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxtie.config import Arm, Optimizer, Transformer, UserError, Variant, check
from jaxtie.models.language_model import TextModel
from jaxtie.results.folder import RunFolder, Say
from jaxtie.text import masking
from jaxtie.text.config import HALVES, Corpus, TextExperiment
from jaxtie.text.corpus import Material, loss_of_frequencies
from jaxtie.text.data.batches import CausalBatches, MaskedBatches, Rows
from jaxtie.text.options import TextOptions
from jaxtie.text.task import ask, build_text_model, loss_metrics
from jaxtie.training.checkpoints import opened
from jaxtie.training.distributed import Processes
from jaxtie.training.row_engine import carry_shapes, load_carry

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
OBJECTIVES_OF_TWO: dict[str, dict[str, Any]] = {
    "causal": {"init_std": 0.02, "learning_rate": 2e-3, "batch": 16, "length": 64},
    "masked": {
        "init_std": 0.3,
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
      planted: words with a duplicate, see `jaxtie.text.pairs`.
      task: of `OBJECTIVES_OF_TWO`.
    """
    own = dict(OBJECTIVES_OF_TWO[task])
    optimizer = Optimizer(
        learning_rate=own.pop("learning_rate"), weight_decay=0.01, half_period=steps
    )
    return tuple(
        TextExperiment(
            name=f"hypothesis-{name}",
            claim=f"Model {name} of two, on the {half} half of the text.",
            objective=task,
            corpus=corpus,
            model=SIZES[size],
            optimizer=optimizer,
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


SMALLEST_GAIN = (
    0.3  # nats below the unigram loss: a model that has not come so far knows frequencies only
)


class Trained(NamedTuple):
    """A trained model.

    Attributes:
      folder: of its run.
      experiment, material: what was declared, and its text.
      arm: which of the run's.
      model, params: what it computes.
    """

    folder: Path
    experiment: TextExperiment
    material: Material
    arm: Arm
    model: TextModel
    params: dict


def load_trained(path: Path, say: Say) -> Trained:
    """The first untied arm of a run, its first seed; where there is none, the first tied one.

    Raises:
      UserError: where there is no run, it is not of a model of text, has not been trained, or its
        text has changed.
    """
    folder = RunFolder(path)
    if not (config := folder.config()):
        raise UserError(f"{path}: holds no run; give the folder of one")
    experiment = declared_again(path, config["experiment"])
    untied = [arm for arm in experiment.arms if arm.untied_from is not None]
    arm = (untied or list(experiment.arms))[0]
    folder_is_there = folder.checkpoints.is_dir()
    with opened(folder.checkpoints, to_read=True) as kept:
        standing = kept.load(say) if folder_is_there else {}
    members = standing.get(arm.name)
    at = -1 if members is None else int(members.steps[0])
    if at < experiment.steps:
        raise UserError(
            f"{path}: is untrained, {max(at, 0):,} of {experiment.steps:,} steps; the command that"
            " began it goes on"
        )
    experiment = experiment.prepare(folder, config, Processes(), say)
    variant = Variant(arm.untied_from is None, arm.head)
    first = jax.tree.map(lambda x: x[:1], members)
    params = load_carry(carry_shapes(experiment, variant), first).state.params
    model = build_text_model(experiment, variant, jax.default_backend())
    return Trained(path, experiment, experiment.prepared, arm, model, params)


def declared_again(path: Path, config: Mapping[str, Any]) -> TextExperiment:
    """The declaration of a run from what its `config.json` says.

    Raises:
      UserError: where it is of another kind, or another version wrote it.
    """
    if config.get("task") != TextExperiment.task:
        raise UserError(
            f"{path}: is a run of kind {config.get('task')}; expected one of a model of text"
        )
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in config.items()
        if name != "task"
    }
    corpus: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in fields.pop("corpus").items()
    }
    try:
        model, optimizer = Transformer(**fields.pop("model")), Optimizer(**fields.pop("optimizer"))
        return TextExperiment(corpus=Corpus(**corpus), model=model, optimizer=optimizer, **fields)
    except (TypeError, KeyError) as error:
        raise UserError(
            f"{path}: another version wrote its config.json ({error}); run it again with"
            " --overwrite"
        ) from None


class Losses(NamedTuple):
    """Of batches of some rows: mean loss of each, nats, and how many positions were asked."""

    loss_N: np.ndarray
    asked_N: np.ndarray

    @property
    def mean(self) -> float:
        return float(np.average(self.loss_N, weights=self.asked_N))


def batches_of(
    trained: Trained, rows: Rows, number: int, seed: int | None = None
) -> list[masking.Asked]:
    """So many batches of rows, or all there are, as the model is asked: of masks, or of every next
    token.

    Args:
      seed: of a choice of batches, and of masks; None: the first ones.
    """
    own, special = trained.experiment, trained.material.text.special
    batches: CausalBatches | MaskedBatches
    if own.objective == "causal":
        batches = CausalBatches(rows, special, own.batch, own.length, seed)
    else:
        batches = MaskedBatches(rows, special, own.batch, own.length, seed, own.buckets)
    asked, key = jax.jit(functools.partial(ask, own)), jax.random.key(0 if seed is None else seed)
    return [
        asked(jax.random.fold_in(key, k), batches[k].tokens_BxL)
        for k in range(min(batches.count, number))
    ]


def losses(trained: Trained, batches: list[masking.Asked]) -> Losses:
    """What the model makes of batches."""
    loss_of = _loss_program(trained.model)
    found = np.array(
        [jax.device_get(loss_of(trained.params, asked)) for asked in batches], np.float64
    )
    return Losses(*found.T)


@functools.cache
def _loss_program(model: TextModel) -> Callable[[dict, masking.Asked], tuple[jax.Array, jax.Array]]:
    """Loss of a batch and positions asked; of models that are alike, one program."""

    @jax.jit
    def loss_of(params: dict, asked: masking.Asked) -> tuple[jax.Array, jax.Array]:
        found = loss_metrics(model, params, asked)
        return found["loss"], found["weight"]

    return loss_of


def unigram_loss(trained: Trained, rows: Rows) -> float:
    """Loss on rows of the best model that knows the frequencies of tokens in its training rows
    alone, nats.

    A causal model is asked of [SEP], too.
    """
    vocabulary, sep = len(trained.material.vocabulary), trained.material.text.special.sep
    drawn = trained.material.drawn

    def counts(some: Rows) -> np.ndarray:
        count_V = np.bincount(some.tokens_N, minlength=vocabulary).astype(np.float64)
        count_V[sep] += some.count * (trained.experiment.objective == "causal")
        count_V[drawn.duplicates_K] = count_V[drawn.words_K] * drawn.probability_K
        count_V[drawn.words_K] -= count_V[drawn.duplicates_K]
        return count_V

    return loss_of_frequencies(counts(trained.material.text.train), counts(rows))


def check_knows_more_than_frequencies(trained: Trained, loss: float) -> None:
    """UserError where a loss on the validation rows is within `SMALLEST_GAIN` of the unigram
    loss.
    """
    unigram = unigram_loss(trained, trained.material.text.valid)
    if not loss < unigram - SMALLEST_GAIN:
        raise UserError(
            f"{trained.folder}: measures frequency only: its loss {loss:.3f} is within"
            f" {SMALLEST_GAIN} nat of the unigram loss {unigram:.3f}; train it longer"
        )
