"""AdamW under a periodic cosine, as PyTorch has them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtie.config import Arm, Head, Optimizer
from jaxtie.tying.head import Tree

KeyPath = tuple[jax.tree_util.DictKey, ...]
TABLES = ("input", "output", "output_rows", "own_input")  # and rows of their own

SCHEDULE = ("learning_rate", "eta_min", "half_period", "warmup")  # fields of `periodic_cosine`


def periodic_cosine(
    step: Any,
    learning_rate: jax.Array | float,
    eta_min: jax.Array | float,
    half_period: int,
    warmup: int = 0,
    *,
    xp: Any = jnp,
) -> Any:
    """PyTorch's `CosineAnnealingLR(T_max=half_period)` stepped every update: down, up, and so on.

    lr(t) = eta_min + (learning_rate - eta_min)·(1 + cos(πt / half_period)) / 2, times
    (t + 1) / warmup while that is below 1. Optax's cosine stays down instead. `xp`: jax.numpy, or
    NumPy for a table of steps, since compiling takes longer.
    """
    # as an integer: in float32 cos(πt) loses digits as t grows
    phase = xp.asarray(step) % (2 * half_period)
    rate = eta_min + (learning_rate - eta_min) / 2 * (1 + xp.cos(xp.pi * phase / half_period))
    return rate * xp.minimum(1, (step + 1) / warmup) if warmup else rate


def make_optimizer(
    optimizer: Optimizer,
    head: Head = Head(),  # noqa: B008, it is frozen
    hparams: Mapping[str, Any] | None = None,
) -> optax.GradientTransformation:
    """Return `torch.optim.AdamW` under the periodic cosine; decay is times the current rate.

    Args:
      optimizer: the declared values.
      head: its factors of the learning rate, and its options of weight decay.
      hparams: traced values by name; they replace the declared ones. `table_decay` is a further
        factor of the weight decay of the embeddings.
    """
    hparams = hparams or {}
    own = vars(optimizer) | dict(hparams)
    schedule = partial(periodic_cosine, **{name: own[name] for name in SCHEDULE})
    rates = {
        ("input", "own_input"): head.input_rate * head.table_rate,
        ("output", "output_rows"): head.output_rate * head.table_rate,
    }
    held = head.interventions
    decays = {"bias": float(head.decayed_bias)}
    if head.table_decay != 1 or "table_decay" in hparams:
        decays |= dict.fromkeys(TABLES, head.table_decay * hparams.get("table_decay", 1))
    return optax.chain(
        optax.scale_by_adam(b1=own["b1"], b2=own["b2"], eps=own["eps"]),
        _add_decay(own["weight_decay"], decays, 0.0 if held.frozen_direction else held.input_decay),
        *(
            optax.masked(optax.scale(rate), partial(_in_embedding, names))
            for names, rate in rates.items()
            if rate != 1
        ),
        optax.scale_by_learning_rate(schedule),
    )


def _add_decay(
    weight_decay: jax.Array | float, factors: Mapping[str, jax.Array | float], own: float | None
) -> optax.GradientTransformation:
    """Add the weight decay of every parameter, of an embedding's times a factor by its name.

    Rows of their own have the decay `own` instead, unless it is None.
    """

    def add(updates: Tree, params: Tree) -> Tree:
        if "input" in factors:
            _in_embedding(TABLES, params)  # raises where there is none

        def one(path: KeyPath, update: jax.Array, value: jax.Array) -> jax.Array:
            if own is not None and path[-1].key == "own_input":
                return update + own * value
            factor = factors.get(path[-1].key, 1) if _of_embedding(path) else 1
            return update + weight_decay * factor * value

        return jax.tree_util.tree_map_with_path(one, updates, params)

    return optax.stateless(add)


def _of_embedding(path: KeyPath) -> bool:
    return len(path) > 1 and path[-2].key == "embedding"


def _in_embedding(names: Sequence[str], params: Tree) -> Tree:
    """Boolean mask: whether a parameter is one of these of the embedding."""
    mask = jax.tree_util.tree_map_with_path(
        lambda path, _: _of_embedding(path) and path[-1].key in names, params
    )
    if "input" in names and not any(jax.tree.leaves(mask)):
        raise ValueError("no params['embedding']['input']: the head sets its rate or decay")
    return mask


def decay_factors(
    optimizer: Optimizer, steps: Sequence[int], arms: Sequence[Arm] = ()
) -> np.ndarray:
    """Return what weight decay leaves of any difference of parameters by each step, f64[steps].

    AdamW multiplies every parameter by 1 - weight_decay·lr(t) at update t, whatever the gradient;
    so differences of rows too. NaN where an arm sets the rate or the decay of its tables, or a gain
    of all rows.
    """
    rates = schedule_table(optimizer, range(max(steps))).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # rates at which everything diverges
        table = np.append(1.0, np.cumprod(1 - optimizer.weight_decay * rates))[np.array(steps)]
    plain = all(
        arm.head.table_rate == arm.head.input_rate == arm.head.output_rate == 1
        and arm.head.table_decay == 1
        and "all" not in arm.head.row_sets
        for arm in arms
    )
    return table if plain else np.full_like(table, np.nan)


def schedule_table(optimizer: Optimizer, steps: Sequence[int]) -> np.ndarray:
    """Return the learning rate at these steps, f32."""
    own = {name: getattr(optimizer, name) for name in SCHEDULE}
    return periodic_cosine(np.array(steps), **own, xp=np).astype(np.float32)
