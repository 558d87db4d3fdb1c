"""A causal model of text that a run has left in its folder: its text, what it computes, its parameters.

Shapes: B rows, L tokens a row, V vocabulary.
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxtie.experiment import Arm, Optimiser, UserError
from jaxtie.models.sizes import Transformer
from jaxtie.models.text_model import TextModel
from jaxtie.results.folder import RunFolder, Say
from jaxtie.text import kind, masking
from jaxtie.text.baselines import follows_in_rows, loss_of_frequencies
from jaxtie.text.corpus.batches import CausalBatches, Rows
from jaxtie.text.declaration import Corpus, TextExperiment
from jaxtie.text.engine import load_carry
from jaxtie.text.material import Material
from jaxtie.text.member import metrics
from jaxtie.text.programs import build_text_model, carry_shapes
from jaxtie.training.checkpoints import opened
from jaxtie.training.processes import Processes

SMALLEST_GAIN = 0.3  # nats below the unigram loss: a model that has not come so far knows frequencies only


class Trained(NamedTuple):
    """A trained causal model.

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

    @property
    def is_tied(self) -> bool:
        return "output" not in self.params["embedding"]


def load_trained(path: Path, say: Say, *, allow_tied: bool = False) -> Trained:
    """The first untied arm of a run, its first seed; where tied ones are allowed and there is no other, a tied one.

    Raises:
      UserError: where there is no run, it is not of a causal model of text, has not been trained, or its text has changed.
    """
    folder = RunFolder(path)
    if not (config := folder.config()):
        raise UserError(f"{path}: holds no run; give the folder of one")
    experiment = declared_again(path, config["experiment"])
    if experiment.task != "causal":
        raise UserError(f"{path}: is of a {experiment.task} model; expected a causal one, such as experiments/text_clm.py")
    untied = [arm for arm in experiment.arms if arm.untied_from is not None]
    if not untied and not allow_tied:
        raise UserError(f"{path}: is a tied run, which has no price to be asked for; --no-price gives S, C and m of it")
    arm = (untied or list(experiment.arms))[0]
    folder_is_there = folder.checkpoints.is_dir()
    with opened(folder.checkpoints) as kept:
        standing = kept.load(say) if folder_is_there else {}
    members = standing.get(arm.name)
    at = -1 if members is None else int(members.steps[0])
    if at < experiment.steps:
        raise UserError(
            f"{path}: is untrained, {max(at, 0):,} of {experiment.steps:,} steps; the command that began it goes on"
        )
    material = kind.prepare(experiment, folder, config, Processes(), say)
    tied = arm.untied_from is None
    first = jax.tree.map(lambda x: x[:1], members)
    params = load_carry(carry_shapes(experiment, material, tied=tied, head=arm.head), first).state.params
    model = build_text_model(experiment, material, jax.default_backend(), tied=tied, head=arm.head)
    return Trained(path, experiment, material, arm, model, params)


def declared_again(path: Path, config: Mapping[str, Any]) -> TextExperiment:
    """The declaration of a run from what its `config.json` says.

    Raises:
      UserError: where it is of another kind, or another version wrote it.
    """
    if config.get("kind") != TextExperiment.kind:
        raise UserError(f"{path}: is a run of kind {config.get('kind')}; expected one of a causal model of text")
    config = TextExperiment.brought_up_to_date(config)
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in config.items() if name != "kind"}
    corpus = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.pop("corpus").items()}
    try:
        model, optimiser = Transformer(**fields.pop("model")), Optimiser(**fields.pop("optimiser"))
        return TextExperiment(corpus=Corpus(**corpus), model=model, optimiser=optimiser, **fields)
    except (TypeError, KeyError) as error:
        raise UserError(f"{path}: another version wrote its config.json ({error}); run it again with --overwrite") from None


class Losses(NamedTuple):
    """Of batches of some rows: mean loss of each, nats, and how many positions were asked."""

    loss_N: np.ndarray
    asked_N: np.ndarray

    @property
    def mean(self) -> float:
        return float(np.average(self.loss_N, weights=self.asked_N))


def batches_of(trained: Trained, rows: Rows, number: int, seed: int | None = None) -> list[np.ndarray]:
    """So many batches of tokens Bx(L+1) of rows, or all there are; `seed`: of a choice, None: the first ones."""
    own, special = trained.experiment, trained.material.text.special
    batches = CausalBatches(rows, special, own.batch, own.length, seed)
    return [batches[step].tokens_BxL for step in range(min(batches.count, number))]


def losses(trained: Trained, batches: list[np.ndarray], params: dict | None = None, model: TextModel | None = None) -> Losses:
    """What the model, or other parameters in its place, makes of batches."""
    params, loss_of = trained.params if params is None else params, _loss_program(model or trained.model)
    found = np.array([jax.device_get(loss_of(params, tokens_BxL)) for tokens_BxL in batches], np.float64)
    return Losses(*found.T)


@functools.cache
def _loss_program(model: TextModel) -> Callable[[dict, jax.Array], tuple[jax.Array, jax.Array]]:
    """Loss of a batch and positions asked; of models that are alike, one program."""

    @jax.jit
    def loss_of(params: dict, tokens_BxL: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = metrics(model, params, masking.next_tokens(tokens_BxL, padding=model.embedding.padding))
        return found.loss, found.asked

    return loss_of


def unigram_loss(trained: Trained, rows: Rows) -> float:
    """Loss on rows of the best model that knows the frequencies of tokens in its training rows alone, nats; with [SEP]."""
    vocabulary, sep = len(trained.material.vocabulary), trained.material.text.special.sep
    known, asked = (follows_in_rows(some, sep, sep).token_N for some in (trained.material.text.train, rows))
    return loss_of_frequencies(*(np.bincount(token_N, minlength=vocabulary) for token_N in (known, asked)))


def check_knows_more_than_frequencies(trained: Trained, loss: float) -> None:
    """UserError where a loss on the validation rows is within `SMALLEST_GAIN` of the unigram loss."""
    unigram = unigram_loss(trained, trained.material.text.valid)
    if not loss < unigram - SMALLEST_GAIN:
        raise UserError(
            f"{trained.folder}: measures frequency only: its loss {loss:.3f} is within {SMALLEST_GAIN} nat of the unigram "
            f"loss {unigram:.3f}; train it longer"
        )
