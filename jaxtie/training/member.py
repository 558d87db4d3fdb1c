"""Train one member: random streams, steps and records.

Streams of random numbers: one for each seed, shared by its arms; what is drawn is a function of
stream and step.

What every member does, whatever it is trained on: it starts, it is updated, it is frozen where
it diverges. All pure.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtie.config import SEEDS

KEY_IMPLEMENTATION = "threefry2x32"


def stream(data_seed: int, seed: jax.typing.ArrayLike | None) -> jax.Array:
    """The key of a seed's own stream of samples, or with `seed` None of the stream that all share;
    uint32[2].
    """
    key = jax.random.key(data_seed, impl=KEY_IMPLEMENTATION)
    return jax.random.key_data(key if seed is None else jax.random.fold_in(key, seed))


def key_at(stream: jax.Array, step: jax.typing.ArrayLike) -> jax.Array:
    """The key of a stream's step."""
    return jax.random.fold_in(jax.random.wrap_key_data(stream, impl=KEY_IMPLEMENTATION), step)


def evaluation_stream(data_seed: int) -> np.ndarray:
    """The stream that evaluations draw from: of a seed and a step that training does not have;
    uint32[2].
    """
    key = jax.random.key(data_seed, impl=KEY_IMPLEMENTATION)
    for _ in range(2):
        key = jax.random.fold_in(key, np.uint32(SEEDS - 1))
    return np.asarray(jax.random.key_data(key))


Looked = TypeVar("Looked")


class State(NamedTuple):
    """A member.

    Attributes:
      params: its parameters.
      opt_state: of its optimizer.
      diverged_at: the record at which it had diverged (step; -1: it has not).
      role_moments: of a tied member whose roles are looked at, Adam's first moment of the table by
        role, see
        `jaxtie.training.gradient_by_role`; else nothing.
    """

    params: dict
    opt_state: optax.OptState
    diverged_at: jax.Array
    role_moments: tuple = ()


def initial_state(
    model: nn.Module, optimizer: optax.GradientTransformation, key: jax.Array, length: int
) -> State:
    """A fresh member. Tied and untied models of one key share the initial values of all they
    share.
    """
    params = model.init(key, jnp.zeros(length, jnp.int32), jnp.zeros(1, jnp.int32))["params"]
    return State(params, optimizer.init(params), jnp.int32(-1))


def update(
    loss_of: Callable[[dict], tuple[jax.Array, Looked]],
    optimizer: optax.GradientTransformation,
    state: State,
) -> tuple[State, tuple[jax.Array, Looked]]:
    """One update along the gradient of a loss that comes with something else; the new state, and
    both before it.
    """
    looked_at, gradient = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
    return state._replace(
        params=optax.apply_updates(state.params, updates), opt_state=opt_state
    ), looked_at


def keep_finite(new: State, old: State, loss: jax.Array, at: jax.Array) -> State:
    """The new state, or for ever the old one of a member whose `loss` or parameters are not finite
    `at` this step.

    It is enough to ask once a record: what has become infinite or NaN once does not become finite
    again.
    """
    finite = jnp.isfinite(loss + sum(jnp.sum(leaf) for leaf in jax.tree.leaves(new.params)))
    trains = new.diverged_at < 0
    state = jax.tree.map(lambda new, old: jnp.where(trains & finite, new, old), new, old)
    return state._replace(diverged_at=jnp.where(trains & ~finite, at, new.diverged_at))
