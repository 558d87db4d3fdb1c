"""What one member does: its initial values, a step, what is recorded of it, its exact evaluation. All pure.

A member is one seed of one arm. Functions here take one member; `jaxtie.sweep` batches them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtie.data.exor import Batch, Contexts
from jaxtie.models.embedding import tables

AT_ONCE = 64  # contexts that an ordered model is evaluated on at once: there are 56,448, and a cache holds that many well


class State(NamedTuple):
    """A member: parameters, optimiser state, and the record at which it had diverged (step; -1: it has not)."""

    params: dict
    opt_state: optax.OptState
    diverged_at: jax.Array


def initial_state(model: nn.Module, optimiser: optax.GradientTransformation, key: jax.Array, length: int) -> State:
    """A fresh member. Tied and untied models of one key share the initial values of all they share."""
    params = model.init(key, jnp.zeros(length, jnp.int32), jnp.zeros(1, jnp.int32))["params"]
    return State(params, optimiser.init(params), jnp.int32(-1))


def loss_and_accuracy(model: nn.Module, params: dict, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy at the masked positions, nats, and share of likeliest symbols that are right; batch means."""
    logits_BxPxV = jax.vmap(lambda tokens, at: model.apply({"params": params}, tokens, at))(batch.tokens_BxL, batch.at_BxP)
    # One-hot, not an indexed load: on every backend the cheaper of the two for a small vocabulary.
    target_BxPxV = jax.nn.one_hot(batch.target_BxP, logits_BxPxV.shape[-1], dtype=logits_BxPxV.dtype)
    top_BxP = jnp.max(logits_BxPxV, axis=-1)
    shifted_BxPxV = logits_BxPxV - jax.lax.stop_gradient(top_BxP)[..., None]
    chosen_BxP = jnp.sum(shifted_BxPxV * target_BxPxV, axis=-1)
    loss_BxP = jnp.log(jnp.sum(jnp.exp(shifted_BxPxV), axis=-1)) - chosen_BxP
    return jnp.mean(loss_BxP), jnp.mean(chosen_BxP >= 0, dtype=loss_BxP.dtype)


def step(
    model: nn.Module, optimiser: optax.GradientTransformation, state: State, batch: Batch
) -> tuple[State, tuple[jax.Array, jax.Array]]:
    """One update; returns the new state and the batch's loss and accuracy before it."""
    return update(lambda params: loss_and_accuracy(model, params, batch), optimiser, state)


def update(
    loss_of: Callable[[dict], tuple[jax.Array, Any]], optimiser: optax.GradientTransformation, state: State
) -> tuple[State, tuple[jax.Array, Any]]:
    """One update along the gradient of a loss that comes with something else; the new state, and both before it."""
    looked_at, gradient = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    updates, opt_state = optimiser.update(gradient, state.opt_state, state.params)
    return state._replace(params=optax.apply_updates(state.params, updates), opt_state=opt_state), looked_at


def keep_finite(new: State, old: State, loss: jax.Array, at: jax.Array) -> State:
    """The new state, or for ever the old one of a member whose `loss` or parameters are not finite `at` this step.

    It is enough to ask once a record: what has become infinite or NaN once does not become finite again.
    """
    finite = jnp.isfinite(loss + sum(jnp.sum(leaf) for leaf in jax.tree.leaves(new.params)))
    trains = new.diverged_at < 0
    state = jax.tree.map(lambda new, old: jnp.where(trains & finite, new, old), new, old)
    return state._replace(diverged_at=jnp.where(trains & ~finite, at, new.diverged_at))


def distances(table_VxD: jax.Array) -> jax.Array:
    """Euclidean distance between every two rows, VxV."""
    return jnp.sqrt(jnp.sum((table_VxD[:, None] - table_VxD[None]) ** 2, axis=-1))


def record(state: State) -> dict[str, jax.Array]:
    """What is looked at every record: distances in both tables, and whether the member still trains."""
    input_VxD, output_VxD = tables(state.params["embedding"])
    return {
        "input_distance": distances(input_VxD),
        "output_distance": distances(output_VxD),
        "diverged_at": state.diverged_at,
    }


def evaluate(
    model: nn.Module, params: dict, splits: Sequence[Contexts], pairs: tuple[tuple[int, int], ...]
) -> list[dict[str, jax.Array]]:
    """Exact expectations over each split and every draw.

    Args:
      pairs: token ids (first, second) of symbols that spell the same bit.

    Returns:
      For each split `loss` in nats, `accuracy`; and one entry per pair, over the contexts where either can stand, of
      ln p(second) - ln p(first): `log_odds`, its expectation, and `log_odds_deviation`, its standard deviation. The
      process has one value in all of them (`jaxtie.theory.log_odds`), so a perfect model has deviation 0.
    """
    contexts = tuple(np.concatenate(arrays) for arrays in zip(*(split[:2] for split in splits), strict=True))
    logits_of = lambda context: model.apply({"params": params}, *context)[0]
    ordered = model.body.ordered
    logits_CxV = jax.lax.map(logits_of, contexts, batch_size=AT_ONCE) if ordered else jax.vmap(logits_of)(contexts)
    ends = np.cumsum([len(split.tokens_CxL) for split in splits])[:-1]
    parts = zip(jnp.split(logits_CxV, ends), splits, strict=True)
    return [_expectations(logits, split.joint_CxV, *np.array(pairs).T) for logits, split in parts]


def _expectations(
    logits_CxV: jax.Array, joint_CxV: np.ndarray, first_K: np.ndarray, second_K: np.ndarray
) -> dict[str, jax.Array]:
    joint_CxV = jnp.asarray(joint_CxV, logits_CxV.dtype)
    likeliest_CxV = jax.nn.one_hot(jnp.argmax(logits_CxV, axis=-1), logits_CxV.shape[-1], dtype=logits_CxV.dtype)
    weight_CxK = joint_CxV[:, first_K] + joint_CxV[:, second_K]
    weight_CxK /= jnp.sum(weight_CxK, axis=0, keepdims=True)
    odds_CxK = logits_CxV[:, second_K] - logits_CxV[:, first_K]
    odds_K = jnp.sum(weight_CxK * odds_CxK, axis=0)
    return {
        "loss": -jnp.sum(joint_CxV * jax.nn.log_softmax(logits_CxV)),
        "accuracy": jnp.sum(joint_CxV * likeliest_CxV),
        "log_odds": odds_K,
        "log_odds_deviation": jnp.sqrt(jnp.sum(weight_CxK * (odds_CxK - odds_K[None]) ** 2, axis=0)),
    }
