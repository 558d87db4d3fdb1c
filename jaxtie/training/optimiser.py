"""AdamW and the periodic cosine, as PyTorch has them: the one place where they are put together."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtie.experiment import Optimiser


def periodic_cosine(learning_rate: jax.typing.ArrayLike, eta_min: jax.typing.ArrayLike, half_period: int) -> optax.Schedule:
    """PyTorch's `CosineAnnealingLR(T_max=half_period)` stepped every update: down, then back up, and so on.

    lr(t) = eta_min + (learning_rate - eta_min)·(1 + cos(πt / half_period)) / 2. Optax's cosine stays down instead.
    """

    def schedule(step: jax.typing.ArrayLike) -> jax.Array:
        phase = jnp.asarray(step) % (2 * half_period)  # as an integer: in float32 cos(πt) loses digits as t grows
        return eta_min + (learning_rate - eta_min) / 2 * (1 + jnp.cos(jnp.pi * phase / half_period))

    return schedule


def adamw(
    schedule: optax.Schedule,
    *,
    weight_decay: jax.typing.ArrayLike,
    b1: float,
    b2: float,
    eps: jax.typing.ArrayLike,
) -> optax.GradientTransformation:
    """`torch.optim.AdamW` on every parameter; the decay is multiplied by the current learning rate."""
    return optax.adamw(schedule, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)


def make_adamw(
    *,
    learning_rate: jax.typing.ArrayLike,
    eta_min: jax.typing.ArrayLike,
    half_period: int,
    weight_decay: jax.typing.ArrayLike,
    b1: float,
    b2: float,
    eps: jax.typing.ArrayLike,
) -> optax.GradientTransformation:
    """AdamW under the periodic cosine; what may be an array can be a member's own, and traced."""
    schedule = periodic_cosine(learning_rate, eta_min, half_period)
    return adamw(schedule, weight_decay=weight_decay, b1=b1, b2=b2, eps=eps)


def adamw_of(optimiser: Optimiser) -> optax.GradientTransformation:
    """The same, as declared."""
    return make_adamw(**dataclasses.asdict(optimiser))


def schedule_table(optimiser: Optimiser, steps: Sequence[int]) -> np.ndarray:
    """The learning rate of the update that follows each of so many updates, float32[steps]."""
    schedule = periodic_cosine(optimiser.learning_rate, optimiser.eta_min, optimiser.half_period)
    return np.asarray(schedule(np.array(steps)))
