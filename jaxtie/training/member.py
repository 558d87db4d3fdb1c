"""What every member does, whatever it is trained on: it starts, it is updated, it is frozen where
it diverges. All pure.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

Looked = TypeVar("Looked")


class State(NamedTuple):
    """A member.

    Attributes:
      params: its parameters.
      opt_state: of its optimiser.
      diverged_at: the record at which it had diverged (step; -1: it has not).
      role_moments: of a tied member whose roles are looked at, Adam's first moment of the table by
        role, see
        `jaxtie.training.roles`; else nothing.
    """

    params: dict
    opt_state: optax.OptState
    diverged_at: jax.Array
    role_moments: tuple = ()


def initial_state(
    model: nn.Module, optimiser: optax.GradientTransformation, key: jax.Array, length: int
) -> State:
    """A fresh member. Tied and untied models of one key share the initial values of all they
    share.
    """
    params = model.init(key, jnp.zeros(length, jnp.int32), jnp.zeros(1, jnp.int32))["params"]
    return State(params, optimiser.init(params), jnp.int32(-1))


def update(
    loss_of: Callable[[dict], tuple[jax.Array, Looked]],
    optimiser: optax.GradientTransformation,
    state: State,
) -> tuple[State, tuple[jax.Array, Looked]]:
    """One update along the gradient of a loss that comes with something else; the new state, and
    both before it.
    """
    looked_at, gradient = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    updates, opt_state = optimiser.update(gradient, state.opt_state, state.params)
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
