"""AdamW and the periodic cosine, as PyTorch has them."""

import jax
import jax.numpy as jnp
import optax


def periodic_cosine(learning_rate: float, eta_min: float, half_period: int) -> optax.Schedule:
    """PyTorch's `CosineAnnealingLR(T_max=half_period)` stepped every update: down, then back up, and so on.

    lr(t) = eta_min + (learning_rate - eta_min)·(1 + cos(πt / half_period)) / 2. Optax's cosine stays down instead.
    """

    def schedule(step: jax.typing.ArrayLike) -> jax.Array:
        phase = jnp.asarray(step) % (2 * half_period)  # as an integer: in float32 cos(πt) loses digits as t grows
        return eta_min + (learning_rate - eta_min) / 2 * (1 + jnp.cos(jnp.pi * phase / half_period))

    return schedule


def adamw(schedule: optax.Schedule, *, weight_decay: float, b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """`torch.optim.AdamW` on every parameter; the decay is multiplied by the current learning rate."""
    return optax.adamw(schedule, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)
