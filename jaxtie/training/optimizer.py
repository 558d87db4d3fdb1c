"""AdamW under a periodic cosine, as PyTorch has them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtie.config import Arm, Head, Optimizer
from jaxtie.tying.head import Tree


def periodic_cosine(
    learning_rate: jax.Array | float, eta_min: jax.Array | float, half_period: int
) -> Callable[[jax.typing.ArrayLike], jax.Array]:
    """PyTorch's `CosineAnnealingLR(T_max=half_period)` stepped every update: down, up, and so on.

    lr(t) = eta_min + (learning_rate - eta_min)·(1 + cos(πt / half_period)) / 2. Optax's cosine
    stays down instead.
    """

    def schedule(step: jax.typing.ArrayLike) -> jax.Array:
        # as an integer: in float32 cos(πt) loses digits as t grows
        phase = jnp.asarray(step) % (2 * half_period)
        return eta_min + (learning_rate - eta_min) / 2 * (1 + jnp.cos(jnp.pi * phase / half_period))

    return schedule


def make_optimizer(
    optimizer: Optimizer,
    head: Head = Head(),  # noqa: B008, it is frozen
    hparams: Mapping[str, Any] | None = None,
) -> optax.GradientTransformation:
    """Return `torch.optim.AdamW` under the periodic cosine; decay is times the current rate.

    Args:
      optimizer: the declared values.
      head: its factors of the learning rate, and its options of weight decay.
      hparams: traced values by name; they replace the declared ones.
    """
    own = {
        field.name: (hparams or {}).get(field.name, getattr(optimizer, field.name))
        for field in dataclasses.fields(optimizer)
    }
    schedule = periodic_cosine(own.pop("learning_rate"), own.pop("eta_min"), own.pop("half_period"))
    rates = {
        ("input",): head.input_rate * head.table_rate,
        ("output", "output_rows"): head.output_rate * head.table_rate,
    }
    left_out = () if head.decayed_bias else ("bias",)
    if head.table_decay == 1 and set(rates.values()) == {1}:
        mask = partial(_in_embedding, left_out, inside=False) if left_out else None
        return optax.adamw(schedule, mask=mask, **own)
    weight_decay, tables = own.pop("weight_decay"), ("input", "output", "output_rows")
    rest = partial(_in_embedding, (*tables, *left_out), inside=False)
    return optax.chain(
        optax.scale_by_adam(**own),
        optax.add_decayed_weights(weight_decay, rest),
        optax.add_decayed_weights(weight_decay * head.table_decay, partial(_in_embedding, tables)),
        *(
            optax.masked(optax.scale(rate), partial(_in_embedding, names))
            for names, rate in rates.items()
        ),
        optax.scale_by_learning_rate(schedule),
    )


def _in_embedding(names: Sequence[str], params: Tree, *, inside: bool = True) -> Tree:
    """Boolean mask: whether a parameter is one of these of the embedding, or is not."""

    def matches(path: tuple[jax.tree_util.DictKey, ...], _: jax.Array) -> bool:
        *above, name = (key.key for key in path)
        return (above[-1:] == ["embedding"] and name in names) == inside

    mask = jax.tree_util.tree_map_with_path(matches, params)
    if "input" in names and not any(leaf == inside for leaf in jax.tree.leaves(mask)):
        raise ValueError("no params['embedding']['input']: the head sets its rate or decay")
    return mask


def decay_table(optimizer: Optimizer, steps: Sequence[int], arms: Sequence[Arm] = ()) -> np.ndarray:
    """Return what weight decay leaves of any difference of parameters by each step, f64[steps].

    AdamW multiplies every parameter by 1 - weight_decay·lr(t) at update t, whatever the gradient;
    so differences of rows too. NaN where an arm sets the rate or the decay of its tables.
    """
    rates = schedule_table(optimizer, range(max(steps))).astype(np.float64)
    table = np.append(1.0, np.cumprod(1 - optimizer.weight_decay * rates))[np.array(steps)]
    plain = all(
        arm.head.table_rate == arm.head.input_rate == arm.head.output_rate == 1
        and arm.head.table_decay == 1
        for arm in arms
    )
    return table if plain else np.full_like(table, np.nan)


def schedule_table(optimizer: Optimizer, steps: Sequence[int]) -> np.ndarray:
    """Return the learning rate of the update that follows each step, f32[steps]."""
    schedule = periodic_cosine(optimizer.learning_rate, optimizer.eta_min, optimizer.half_period)
    return np.asarray(schedule(np.array(steps)))
