"""Cross-entropy over a vocabulary, a block of positions at a time.

Logits of P positions and V words are the largest thing that a small model of text would ever have in memory; here there are
never more than a block's. The gradient is computed along with the loss (three products instead of four and no second look),
so nothing of a block outlives it.

Shapes: P positions, K positions of a block, D width, V vocabulary.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from jaxtie.models.layers import Tree

POSITIONS = 128  # of a block; positions; on a CPU 420 at once take about as long, 64 of 8,292 words a fifth more


@partial(jax.custom_vjp, nondiff_argnums=(0, 5))
def cross_entropy(
    logits_of: Callable[[Tree, jax.Array], jax.Array],
    params: Tree,
    h_PxD: jax.Array,
    target_P: jax.Array,
    weight_P: jax.Array,
    block: int = POSITIONS,
) -> tuple[jax.Array, jax.Array]:
    """Weighted mean of cross-entropies, nats, and weighted share of positions where the target has the largest logit.

    Differentiable, once, in `params` and `h_PxD`; the share has no gradient. Time goes with the blocks up to the last weight
    that is not 0, so weights of 0 belong at the end. Logits may have any dtype; from there on it is at least float32.

    Args:
      logits_of: a pure function, from `params` and hidden states KxD to logits KxV, that treats each position by itself.
      target_P: token ids.
      weight_P: 0 or more; all 0 gives 0.
      block: K, positions whose logits are in memory at a time. The result does not depend on it, but for rounding.
    """
    return _add_blocks(logits_of, params, h_PxD, target_P, weight_P, block, gradient=False)[0]


def _add_blocks(logits_of, params, h_PxD, target_P, weight_P, block, *, gradient):
    positions, dtype = len(target_P), jnp.promote_types(h_PxD.dtype, jnp.float32)
    block = min(block, positions)
    total = jnp.sum(weight_P.astype(dtype))
    share_P = weight_P.astype(dtype) / jnp.where(total > 0, total, 1)
    blocks = -(-positions // block)
    rest = (0, blocks * block - positions)
    whole = [jnp.pad(x, [rest] + [(0, 0)] * (x.ndim - 1)) for x in (h_PxD, target_P, share_P)]
    end = jnp.max(jnp.where(weight_P > 0, jnp.arange(1, positions + 1), 0))

    def add(i, sums):
        loss_P, right_P, d_params, d_h_PxD = sums
        h_KxD, target_K, share_K = (jax.lax.dynamic_slice_in_dim(x, i * block, block) for x in whole)

        def put(of_all: jax.Array, of_block: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_slice_in_dim(of_all, of_block, i * block, 0)

        logits_KxV, back = jax.vjp(logits_of, params, h_KxD) if gradient else (logits_of(params, h_KxD), None)
        chosen_K = jnp.take_along_axis(logits_KxV, target_K[:, None], axis=1)[:, 0].astype(dtype)
        top_K = jnp.max(logits_KxV, axis=1).astype(dtype)
        mass_KxV = jnp.exp(logits_KxV.astype(dtype) - top_K[:, None])
        sum_K = jnp.sum(mass_KxV, axis=1)
        loss_P = put(loss_P, top_K + jnp.log(sum_K) - chosen_K)
        right_P = put(right_P, chosen_K >= top_K)
        if gradient:
            is_target_KxV = jnp.arange(logits_KxV.shape[1])[None] == target_K[:, None]
            d_logits_KxV = mass_KxV * (share_K / sum_K)[:, None] - jnp.where(is_target_KxV, share_K[:, None], 0)
            of_block, d_h_KxD = back(d_logits_KxV.astype(logits_KxV.dtype))
            d_params, d_h_PxD = jax.tree.map(jnp.add, d_params, of_block), put(d_h_PxD, d_h_KxD)
        return loss_P, right_P, d_params, d_h_PxD

    zeros = jnp.zeros(blocks * block, dtype)
    no_gradient = jax.tree.map(jnp.zeros_like, (params, whole[0])) if gradient else (None, None)
    start = zeros, zeros > 0, *no_gradient
    loss_P, right_P, d_params, d_h_PxD = jax.lax.fori_loop(0, -(-end // block), add, start)
    looked_at = jnp.sum(loss_P * whole[2]), jnp.sum(right_P * whole[2])
    return looked_at, (d_params, d_h_PxD[:positions]) if gradient else None


def _forward(logits_of, params, h_PxD, target_P, weight_P, block):
    return _add_blocks(logits_of, params, h_PxD, target_P, weight_P, block, gradient=True)


def _backward(logits_of, block, gradients, cotangents):
    return *jax.tree.map(lambda d: (d * cotangents[0]).astype(d.dtype), gradients), None, None


cross_entropy.defvjp(_forward, _backward)
