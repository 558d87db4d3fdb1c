"""Load a trained model of text from its run folder and compute its losses.

Shapes: N batches, B rows, L tokens per row, V vocabulary.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from equivalence.halves import HalfExperiment, choose_duplicates
from jaxtie.config import Decoder, Optimizer, Transformer, UserError, Variant
from jaxtie.models.language_model import TextModel
from jaxtie.results.folder import RunFolder, Say
from jaxtie.text.config import Corpus, TextExperiment
from jaxtie.text.corpus import PreparedCorpus, make_batches, token_counts
from jaxtie.text.data.batches import Rows
from jaxtie.text.masking import Targets
from jaxtie.text.pairs import Duplicates
from jaxtie.text.task import TextTask, loss_metrics, make_targets
from jaxtie.training.checkpoints import opened
from jaxtie.training.distributed import Processes
from jaxtie.training.row_engine import carry_shapes, load_carry

# Nats: a model whose loss is nearer to the unigram loss knows frequencies only.
SMALLEST_GAIN = 0.3
LOSS = jax.jit(loss_metrics, static_argnums=0)  # compiled once for equal models


class Trained(NamedTuple):
    """A trained model."""

    folder: Path  # of its run
    experiment: TextExperiment
    corpus: PreparedCorpus
    model: TextModel
    params: dict


def load_trained(path: Path, say: Say, arm_name: str | None = None, seed: int = 0) -> Trained:
    """Load a member of a run: of an arm, or of the first untied one, else of the first.

    `seed` counts the run's seeds from 0.

    Raises:
      UserError: there is no run, it is not a model of text, it is unfinished, or its text has
        changed.
    """
    folder = RunFolder(path)
    if not (config := folder.config()):
        raise UserError(f"{path}: holds no run; give the folder of one")
    experiment = read_experiment(path, config["experiment"])
    arms = [arm for arm in experiment.arms if arm_name in (None, arm.name)]
    arm = min(arms, key=lambda arm: arm.untied_from is None)
    has_checkpoints = folder.checkpoints.is_dir()
    with opened(folder.checkpoints, to_read=True) as checkpoints:
        members = (checkpoints.load(say) if has_checkpoints else {}).get(arm.name)
    step = -1 if members is None else int(members.steps[seed])
    if step < experiment.steps:
        raise UserError(
            f"{path}: is untrained, {max(step, 0):,} of {experiment.steps:,} steps; the command"
            " that began it resumes it"
        )
    experiment = experiment.prepare(folder, config, Processes(), say)
    variant = Variant(arm.untied_from is None, arm.head)
    shapes = carry_shapes(experiment, variant)
    params = load_carry(shapes, jax.tree.map(lambda x: x[seed : seed + 1], members)).state.params
    task = TextTask(experiment, variant, jax.default_backend())
    return Trained(path, experiment, experiment.prepared, task.model, task.effective(params))


def read_experiment(path: Path, config: Mapping[str, Any]) -> TextExperiment:
    """Rebuild the experiment of a run from its `config.json`.

    Raises:
      UserError: it is another task, or another version wrote it.
    """
    if config.get("task") != TextExperiment.task:
        raise UserError(
            f"{path}: is a run of task {config.get('task')}; expected one of a model of text"
        )

    def tuples(values: Mapping[str, Any]) -> dict[str, Any]:
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return {**values, **lists}

    fields = tuples(config)
    try:
        sizes = Decoder if "gated" in fields["model"] else Transformer
        for name, make in (("corpus", Corpus), ("model", sizes), ("optimizer", Optimizer)):
            fields[name] = make(**tuples(fields[name]))
        del fields["task"]
        return (HalfExperiment if "half" in fields else TextExperiment)(**fields)
    except (TypeError, KeyError) as error:
        raise UserError(
            f"{path}: another version wrote its config.json ({error}); run it again with"
            " --overwrite"
        ) from None


def planted_of(trained: Trained) -> Duplicates:
    """Return the duplicates in the text itself."""
    return getattr(trained.corpus, "planted", choose_duplicates(trained.corpus.text, 0))


def batches_of(trained: Trained, rows: Rows, number: int, seed: int) -> list[Targets]:
    """Draw up to `number` batches of rows with the targets that the model is trained on."""
    experiment = trained.experiment
    batches = make_batches(experiment, trained.corpus, rows, seed)
    add_targets, key = jax.jit(functools.partial(make_targets, experiment)), jax.random.key(seed)
    return [
        add_targets(jax.random.fold_in(key, k), batches[k].tokens_BxL)
        for k in range(min(batches.count, number))
    ]


def mean_loss(trained: Trained, batches: list[Targets]) -> float:
    """Return the mean loss over all targets of the batches, nats."""
    found = [jax.device_get(LOSS(trained.model, trained.params, batch)) for batch in batches]
    losses, weights = ([each[name] for each in found] for name in ("loss", "weight"))
    return float(np.average(np.array(losses, np.float64), weights=weights))


def unigram_loss(trained: Trained, rows: Rows) -> float:
    """Return the loss on rows if only token frequencies of the training rows are known, nats.

    Causal models also predict [SEP].
    """
    corpus = trained.corpus
    known_V, predicted_V = (token_counts(corpus, some) for some in (corpus.text.train, rows))
    if trained.experiment.objective == "masked":
        known_V[corpus.text.special.sep] = predicted_V[corpus.text.special.sep] = 0
    q_V = (known_V + 1) / np.sum(known_V + 1)
    return float(-predicted_V @ np.log(q_V) / predicted_V.sum())


def check_gain(trained: Trained, loss: float, sample: int) -> None:
    """Raise UserError unless a validation loss is `SMALLEST_GAIN` below the unigram loss.

    The loss on `sample` batches of the training text says whether the model overfits.
    """
    unigram = unigram_loss(trained, trained.corpus.text.valid)
    if loss < unigram - SMALLEST_GAIN:
        return
    batches = batches_of(trained, trained.corpus.text.train, sample, seed=3)
    on_training = mean_loss(trained, batches)
    if on_training < unigram - SMALLEST_GAIN:
        raise UserError(
            f"{trained.folder}: overfits: its loss is {on_training:.3f} on the training text,"
            f" {loss:.3f} on other text, where token frequencies alone give {unigram:.3f}; take"
            " fewer --steps or more text"
        )
    raise UserError(
        f"{trained.folder}: measures frequency only: its loss {loss:.3f} is not {SMALLEST_GAIN}"
        f" nat below that of token frequencies alone, {unigram:.3f}, nor is that on the training"
        f" text, {on_training:.3f}; train it longer"
    )
