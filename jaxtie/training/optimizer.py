"""AdamW and the periodic cosine, as PyTorch has them: the one place where they are put together."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtie.config import Head, Optimizer
from jaxtie.tying.head import Tree


def periodic_cosine(
    learning_rate: jax.Array | float, eta_min: jax.Array | float, half_period: int
) -> Callable[[jax.typing.ArrayLike], jax.Array]:
    """PyTorch's `CosineAnnealingLR(T_max=half_period)` stepped every update: down, then back up,
    and so on.

    lr(t) = eta_min + (learning_rate - eta_min)·(1 + cos(πt / half_period)) / 2. Optax's cosine
    stays down instead.
    """

    def schedule(step: jax.typing.ArrayLike) -> jax.Array:
        # as an integer: in float32 cos(πt) loses digits as t grows
        phase = jnp.asarray(step) % (2 * half_period)
        return eta_min + (learning_rate - eta_min) / 2 * (1 + jnp.cos(jnp.pi * phase / half_period))

    return schedule


def adamw(
    schedule: optax.Schedule,
    *,
    weight_decay: jax.typing.ArrayLike,
    b1: float,
    b2: float,
    eps: jax.typing.ArrayLike,
    head: Head = Head(),  # noqa: B008, it is frozen
) -> optax.GradientTransformation:
    """`torch.optim.AdamW` on every parameter; the decay is multiplied by the current learning rate.

    A head whose bias is not decayed has that one parameter left out of the decay.
    """
    mask = None if head.decayed_bias else _all_but_the_output_bias
    return optax.adamw(schedule, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay, mask=mask)


def _all_but_the_output_bias(params: Tree) -> Tree:
    """Which parameters are decayed: a tree of truths."""

    def decayed(path: tuple[jax.tree_util.DictKey, ...], _: jax.Array) -> bool:
        return [key.key for key in path[-2:]] != ["embedding", "bias"]

    return jax.tree_util.tree_map_with_path(decayed, params)


def make_adamw(
    *,
    learning_rate: jax.Array | float,
    eta_min: jax.Array | float,
    half_period: int,
    weight_decay: jax.typing.ArrayLike,
    b1: float,
    b2: float,
    eps: jax.typing.ArrayLike,
    head: Head = Head(),  # noqa: B008, it is frozen
) -> optax.GradientTransformation:
    """AdamW under the periodic cosine; what may be an array can be a member's own, and traced."""
    schedule = periodic_cosine(learning_rate, eta_min, half_period)
    return adamw(schedule, weight_decay=weight_decay, b1=b1, b2=b2, eps=eps, head=head)


def adamw_of(optimizer: Optimizer, head: Head = Head()) -> optax.GradientTransformation:  # noqa: B008, it is frozen
    """The same, as declared."""
    return make_adamw(**dataclasses.asdict(optimizer), head=head)


def decay_table(optimizer: Optimizer, steps: Sequence[int]) -> np.ndarray:
    """What weight decay alone leaves of any difference of parameters after so many updates,
    float64[steps].

    AdamW multiplies every parameter by 1 - weight_decay·lr(t) at update t, whatever the gradient;
    so differences of rows too.
    """
    rates = schedule_table(optimizer, range(max(steps))).astype(np.float64)
    return np.append(1.0, np.cumprod(1 - optimizer.weight_decay * rates))[np.array(steps)]


def schedule_table(optimizer: Optimizer, steps: Sequence[int]) -> np.ndarray:
    """The learning rate of the update that follows each of so many updates, float32[steps]."""
    schedule = periodic_cosine(optimizer.learning_rate, optimizer.eta_min, optimizer.half_period)
    return np.asarray(schedule(np.array(steps)))
