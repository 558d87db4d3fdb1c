"""Cross-entropy over a vocabulary, a block of positions at a time.

Logits of P positions and V words are the largest thing that a small model of text would ever have
in memory; here there are never more than a block's. The gradient is computed along with the loss
(three products instead of four and no second look), so nothing of a block outlives it.

Shapes: P positions, K positions of a block, D width, V vocabulary.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from jaxtie.tying.head import Tree

# of a block; positions; on a CPU 420 at once take about as long, 64 of 8,292 words a fifth more
POSITIONS = 128


def cross_entropy(
    h_PxD: jax.Array,
    table_VxD: jax.Array,
    target_P: jax.Array,
    weight_P: jax.Array | None = None,
    *,
    bias_V: jax.Array | None = None,
    allowed_V: jax.Array | None = None,
    logit_scale: float = 1.0,
    logit_softcap: float | None = None,
    z_loss: float = 0.0,
    block: int = POSITIONS,
) -> tuple[jax.Array, jax.Array]:
    """Loss of hidden states against an output table, tied or not; see `blockwise_cross_entropy` for
    what it is and does.

        logits = cap(logit_scale·h·Eᵀ + b)    cap(x) = logit_softcap·tanh(x / logit_softcap)

    Differentiable in hidden states, table and bias. Products of bfloat16 are accumulated in
    float32; so is the table's gradient over the blocks.

    Args:
      h_PxD, target_P, weight_P: with any leading axes in the place of P, the same ones; weights are
        1 if not given.
      allowed_V: which tokens can be predicted at all, for instance no padding of the table; a
        target that cannot has an infinite loss.
      logit_scale, logit_softcap, z_loss: Python numbers, which are not differentiated; z_loss times
        the mean square of ln Σ exp(logits) is added (Chowdhery et al., 2022: 1e-4).

    Raises:
      ValueError: where leading axes differ.
    """
    if h_PxD.shape[:-1] != target_P.shape:
        raise ValueError(
            f"hidden states {h_PxD.shape}, targets {target_P.shape}: expected the same leading axes"
        )
    dtype = jnp.promote_types(h_PxD.dtype, jnp.float32)
    params = {"table": table_VxD}
    if bias_V is not None:
        params["bias"] = bias_V
    if allowed_V is not None:
        params["shut"] = jnp.where(allowed_V, 0.0, -jnp.inf).astype(dtype)
    weight_P = jnp.broadcast_to(
        jnp.ones((), dtype) if weight_P is None else weight_P, target_P.shape
    )
    flat = h_PxD.reshape(-1, h_PxD.shape[-1]), target_P.ravel(), weight_P.ravel()
    logits_of = partial(_logits_of, logit_scale=logit_scale, logit_softcap=logit_softcap)
    return blockwise_cross_entropy(logits_of, params, *flat, block, z_loss)


def _logits_of(
    params: Tree, h_KxD: jax.Array, *, logit_scale: float, logit_softcap: float | None
) -> jax.Array:
    dtype = jnp.promote_types(h_KxD.dtype, jnp.float32)
    logits_KxV = jnp.matmul(h_KxD, params["table"].T, preferred_element_type=dtype)
    if logit_scale != 1:
        logits_KxV = logits_KxV * logit_scale
    if "bias" in params:
        logits_KxV = logits_KxV + params["bias"].astype(dtype)[None]
    if logit_softcap is not None:
        logits_KxV = logit_softcap * jnp.tanh(logits_KxV / logit_softcap)
    return logits_KxV + params["shut"][None] if "shut" in params else logits_KxV


@partial(jax.custom_vjp, nondiff_argnums=(0, 5, 6))
def blockwise_cross_entropy(
    logits_of: Callable[[Tree, jax.Array], jax.Array],
    params: Tree,
    h_PxD: jax.Array,
    target_P: jax.Array,
    weight_P: jax.Array,
    block: int = POSITIONS,
    z_loss: float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """Weighted mean of cross-entropies, nats, and weighted share of positions where the target has
    the largest logit.

    Differentiable, once, in `params` and `h_PxD`; the share has no gradient. Time goes with the
    blocks up to the last weight that is not 0, so weights of 0 belong at the end. Logits may have
    any dtype; from there on it is at least float32.

    Args:
      logits_of: a pure function, from `params` and hidden states KxD to logits KxV, that treats
        each position by itself.
      target_P: token ids.
      weight_P: 0 or more; all 0 gives 0.
      block: K, positions whose logits are in memory at a time. The result does not depend on it,
        but for rounding.
      z_loss: see `cross_entropy`.
    """
    return _add_blocks(logits_of, params, h_PxD, target_P, weight_P, block, z_loss, gradient=False)[
        0
    ]


def _add_blocks(logits_of, params, h_PxD, target_P, weight_P, block, z_loss, *, gradient):
    positions, dtype = len(target_P), jnp.promote_types(h_PxD.dtype, jnp.float32)
    block = min(block, positions)
    total = jnp.sum(weight_P.astype(dtype))
    share_P = weight_P.astype(dtype) / jnp.where(total > 0, total, 1)
    blocks = -(-positions // block)
    rest = (0, blocks * block - positions)
    whole = [jnp.pad(x, [rest] + [(0, 0)] * (x.ndim - 1)) for x in (h_PxD, target_P, share_P)]
    end = jnp.max(jnp.where(weight_P > 0, jnp.arange(1, positions + 1), 0))

    def look(i):
        """Loss and right answers at the positions of a block, and the gradients of its share of the
        mean.
        """
        h_KxD, target_K, share_K = (
            jax.lax.dynamic_slice_in_dim(x, i * block, block) for x in whole
        )
        logits_KxV, back = (
            jax.vjp(logits_of, params, h_KxD) if gradient else (logits_of(params, h_KxD), None)
        )
        chosen_K = jnp.take_along_axis(logits_KxV, target_K[:, None], axis=1)[:, 0].astype(dtype)
        top_K = jnp.max(logits_KxV, axis=1).astype(dtype)
        mass_KxV = jnp.exp(logits_KxV.astype(dtype) - top_K[:, None])
        sum_K = jnp.sum(mass_KxV, axis=1)
        loss_K = top_K + jnp.log(sum_K) - chosen_K
        if z_loss:
            log_sum_K = top_K + jnp.log(sum_K)
            loss_K = loss_K + z_loss * log_sum_K**2
        counts_K = share_K > 0  # what does not count may have no finite loss
        found = jnp.where(counts_K, loss_K, 0), counts_K & (chosen_K >= top_K)
        if not gradient:
            return (*found, None), None
        is_target_KxV = jnp.arange(logits_KxV.shape[1])[None] == target_K[:, None]
        pulled_K = share_K / sum_K
        if z_loss:
            pulled_K = pulled_K * (1 + 2 * z_loss * log_sum_K)
        d_logits_KxV = mass_KxV * pulled_K[:, None] - jnp.where(is_target_KxV, share_K[:, None], 0)
        d_params, d_h_KxD = back(d_logits_KxV.astype(logits_KxV.dtype))
        # Of many blocks, so in bfloat16 next to nothing would be added to what is there.
        wide = jax.tree.map(lambda d: d.astype(jnp.promote_types(d.dtype, jnp.float32)), d_params)
        return (*found, d_h_KxD), wide

    def add(i, sums):
        def put(of_all: jax.Array, of_block: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_slice_in_dim(of_all, of_block, i * block, 0)

        of_positions, d_params = sums
        found, of_block = look(i)
        return jax.tree.map(put, of_positions, found), jax.tree.map(jnp.add, d_params, of_block)

    def nothing() -> tuple[Tree, Tree]:
        found, of_block = jax.eval_shape(look, 0)
        of_positions = jax.tree.map(
            lambda x: jnp.zeros((blocks * block, *x.shape[1:]), x.dtype), found
        )
        return of_positions, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), of_block)

    # Of one block there is nothing to add up, and no table of zeros to begin with.
    sums = look(0) if blocks == 1 else jax.lax.fori_loop(0, -(-end // block), add, nothing())
    (loss_P, right_P, d_h_PxD), d_params = sums
    looked_at = jnp.sum(loss_P * whole[2]), jnp.sum(right_P * whole[2])
    if not gradient:
        return looked_at, None
    d_params = jax.tree.map(lambda d, x: d.astype(x.dtype), d_params, params)
    return looked_at, (d_params, d_h_PxD[:positions])


def _forward(logits_of, params, h_PxD, target_P, weight_P, block, z_loss):
    return _add_blocks(logits_of, params, h_PxD, target_P, weight_P, block, z_loss, gradient=True)


def _backward(logits_of, block, z_loss, gradients, cotangents):
    return *jax.tree.map(lambda d: (d * cotangents[0]).astype(d.dtype), gradients), None, None


blockwise_cross_entropy.defvjp(_forward, _backward)
