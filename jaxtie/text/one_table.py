"""What becomes of a trained untied model when one table stands for its two: at once, and after a few hundred steps.

Shapes: V vocabulary, D width, P positions.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtie.experiment import Head, UserError
from jaxtie.models.text_model import TextModel, output_end
from jaxtie.text.masking import Asked
from jaxtie.text.member import metrics
from jaxtie.text.programs import build_text_model
from jaxtie.text.trained import Losses, Trained, losses

ADAPTING = 300  # steps of P, Q and the bias, by Adam
RATES = (1e-3, 1e-4)  # of learning, falling to 0; whichever does better on training batches, or none
BIAS_RATE = 0.1  # of that rate, of the bias: a rare token is seen in hardly any step, and all others push it down
FITS = 6  # rounds of fitting a bias


class Moments(NamedTuple):
    """Of the hidden states in some training batches."""

    mean_D: np.ndarray
    second_DxD: np.ndarray

    @property
    def covariance_DxD(self) -> np.ndarray:
        return self.second_DxD - np.outer(self.mean_D, self.mean_D)


def check_has_a_price(trained: Trained) -> None:
    """UserError where the model's vocabulary end is more than two tables and a bias."""
    head = trained.arm.head
    if head != Head(bias=head.bias, decayed_bias=head.decayed_bias):
        raise UserError(f"{trained.folder}: arm {trained.arm} has a head of its own; --no-price gives S, C and m of it")


def hidden_moments(trained: Trained, batches: Sequence[Asked]) -> Moments:
    """Mean and second moment of the hidden states that predict the tokens of batches."""
    sums = _moment_program(trained.model)
    found = [jax.device_get(sums(trained.params, asked)) for asked in batches]
    number, *rest = (np.sum(np.array(each, np.float64), axis=0) for each in zip(*found))
    return Moments(*(each / number for each in rest))


@functools.cache  # as all programs here: models that are alike share one
def _moment_program(model: TextModel) -> Callable[[dict, Asked], tuple[jax.Array, jax.Array, jax.Array]]:
    @jax.jit
    def sums(params: dict, asked: Asked) -> tuple[jax.Array, jax.Array, jax.Array]:
        h_PxD = model.apply({"params": params}, asked.tokens_BxL, asked.at_P, method="hidden").astype(jnp.float32)
        weighed_PxD = h_PxD * asked.weight_P[:, None]
        return jnp.sum(asked.weight_P), jnp.sum(weighed_PxD, axis=0), weighed_PxD.T @ h_PxD

    return sums


class OneTable(NamedTuple):
    """What stands for two tables: T fixed; P, Q and, where there is one, the bias, which can be trained."""

    table_VxD: jax.Array
    rest: dict[str, jax.Array]

    def params(self, trained: Trained) -> dict:
        """The model's parameters with T·P and T·Q in the place of its tables."""
        return _with_tables(trained.params, self.table_VxD, self.rest)


def _with_tables(params: dict, table_VxD: jax.Array, rest: dict[str, jax.Array]) -> dict:
    ends = {"input": table_VxD @ rest["to_input_DxD"], "output": table_VxD @ rest["to_output_DxD"]}
    ends |= {"bias": rest["bias_V"]} if "bias_V" in rest else {}
    return {**params, "embedding": ends}


def model_with(trained: Trained, *, bias: bool) -> TextModel:
    """The same model with an output bias, or without."""
    return build_text_model(trained.experiment, trained.material, jax.default_backend(), tied=False, head=Head(bias=bias))


def with_fitted_bias(trained: Trained, one: OneTable, batches: Sequence[Asked], rounds: int = FITS) -> OneTable:
    """The same with the bias under which every token is predicted as often, over batches, as with two tables.

    By iterative scaling. Not as often as it occurs: most tokens occur a few times in some batches.
    """
    predicted = _prediction_program(model_with(trained, bias=True))

    def over_all(params: dict) -> jax.Array:
        return sum(predicted(params, asked) for asked in batches)

    ends = trained.params["embedding"]
    two = {**trained.params, "embedding": {"bias": jnp.zeros_like(one.rest["bias_V"]), **ends}}
    wanted_V = over_all(two)
    for _ in range(rounds):
        moved_V = jnp.log(wanted_V / over_all(one.params(trained)))
        one = one._replace(rest=one.rest | {"bias_V": one.rest["bias_V"] + moved_V})
    return one


@functools.cache
def _prediction_program(model: TextModel) -> Callable[[dict, Asked], jax.Array]:
    @jax.jit
    def predicted(params: dict, asked: Asked) -> jax.Array:
        h_PxD = model.apply({"params": params}, asked.tokens_BxL, asked.at_P, method="hidden")
        logits_PxV = model.embedding.apply({"params": output_end(params["embedding"])}, h_PxD, method="logits")
        return jnp.sum(jax.nn.softmax(logits_PxV) * asked.weight_P[:, None], axis=0)

    return predicted


def adapted(trained: Trained, one: OneTable, batches: Sequence[Asked], judged: list[Asked]) -> OneTable:
    """The same after a step of P, Q and the bias on each of so many training batches; T and the body stay.

    Args:
      judged: training batches that tell which rate of learning did best; where none helps, all stays as it was.
    """
    found = [one]
    for rate in RATES:
        adam, step = _adaptation_program(model_with(trained, bias="bias_V" in one.rest), len(batches), rate)
        rest, state = one.rest, adam.init(one.rest)
        for asked in batches:
            rest, state = step(rest, state, trained.params, one.table_VxD, asked)
        found.append(one._replace(rest=rest))
    return min(found, key=lambda each: losses_with(trained, each, judged).mean)


@functools.cache
def _adaptation_program(model: TextModel, steps: int, rate: float) -> tuple[optax.GradientTransformation, Callable]:
    adam = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def loss_of(rest: dict, params: dict, table_VxD: jax.Array, asked: Asked) -> jax.Array:
        return metrics(model, _with_tables(params, table_VxD, rest), asked).loss

    @jax.jit
    def step(
        rest: dict, state: optax.OptState, params: dict, table_VxD: jax.Array, asked: Asked
    ) -> tuple[dict, optax.OptState]:
        updates, state = adam.update(jax.grad(loss_of)(rest, params, table_VxD, asked), state, rest)
        updates = {name: move * (BIAS_RATE if name == "bias_V" else 1.0) for name, move in updates.items()}
        return optax.apply_updates(rest, updates), state

    return adam, step


def losses_with(trained: Trained, one: OneTable, batches: list[Asked]) -> Losses:
    """What the model makes of batches with one table for two."""
    return losses(trained, batches, one.params(trained), model_with(trained, bias="bias_V" in one.rest))


def best_of(tables: Sequence[OneTable], trained: Trained, batches: list[Asked]) -> OneTable:
    """The one with the lowest loss on training batches."""
    return min(tables, key=lambda one: losses_with(trained, one, batches).mean)
