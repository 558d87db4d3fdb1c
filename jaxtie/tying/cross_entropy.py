"""Compute cross-entropy over a vocabulary and its gradient, a block of positions at a time.

The logits of P positions and V words would be the largest array of a small text model; here only
the logits of one block exist at a time. The gradient is computed along with the loss: three matrix
products instead of four, and nothing of a block is kept.

Shapes: P positions, K positions of a block, D width, V vocabulary.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from jaxtie.tying.head import Tree

# Positions. On a CPU, 420 take about as long; 64 take a fifth longer with 8,292 words.
BLOCK_SIZE = 128


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
    block: int = BLOCK_SIZE,
) -> tuple[jax.Array, jax.Array]:
    """Return loss and accuracy of hidden states and an output table, tied or not.

        logits = cap(logit_scale·h·Eᵀ + b)    cap(x) = logit_softcap·tanh(x / logit_softcap)

    Differentiable in hidden states, table and bias. Products of bfloat16 are accumulated in
    float32; so is the table's gradient over the blocks. See `blockwise_cross_entropy`.

    Args:
      h_PxD: hidden states; P can be any leading axes.
      table_VxD: the output table.
      target_P: token ids.
      weight_P: 0 or more; 1 by default.
      bias_V: added to the logits.
      allowed_V: which tokens can be predicted, for instance no padding of the table; the loss of a
        target that cannot be predicted is infinite.
      logit_scale: a Python number, not differentiated.
      logit_softcap: likewise.
      z_loss: likewise; z_loss times the mean square of ln Σ exp(logits) is added to the loss
        (Chowdhery et al., 2022: 1e-4).
      block: number of positions whose logits are in memory at a time.

    Raises:
      ValueError: if leading axes differ.
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
        params["excluded"] = jnp.where(allowed_V, 0.0, -jnp.inf).astype(dtype)
    weight_P = jnp.broadcast_to(
        jnp.ones((), dtype) if weight_P is None else weight_P, target_P.shape
    )

    def logits_of(params: Tree, h_KxD: jax.Array) -> jax.Array:
        logits_KxV = jnp.matmul(h_KxD, params["table"].T, preferred_element_type=dtype)
        if logit_scale != 1:
            logits_KxV = logits_KxV * logit_scale
        if "bias" in params:
            logits_KxV = logits_KxV + params["bias"].astype(dtype)[None]
        if logit_softcap is not None:
            logits_KxV = logit_softcap * jnp.tanh(logits_KxV / logit_softcap)
        return logits_KxV + params["excluded"][None] if "excluded" in params else logits_KxV

    flat = h_PxD.reshape(-1, h_PxD.shape[-1]), target_P.ravel(), weight_P.ravel()
    return blockwise_cross_entropy(logits_of, params, *flat, block, z_loss)


@partial(jax.custom_vjp, nondiff_argnums=(0, 5, 6))
def blockwise_cross_entropy(
    logits_of: Callable[[Tree, jax.Array], jax.Array],
    params: Tree,
    h_PxD: jax.Array,
    target_P: jax.Array,
    weight_P: jax.Array,
    block: int = BLOCK_SIZE,
    z_loss: float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """Return the weighted mean of cross-entropies, in nats, and the weighted accuracy.

    The loss is differentiable, once, in `params` and `h_PxD`. Time grows with the number of blocks
    up to the last weight that is not 0, so put weights of 0 at the end. Logits may have any dtype;
    the loss is computed in at least float32.

    Args:
      logits_of: a pure function from `params` and hidden states KxD to logits KxV that treats each
        position separately.
      params: its first argument.
      h_PxD: hidden states.
      target_P: token ids.
      weight_P: 0 or more; if all are 0, the loss is 0.
      block: K. The result does not depend on it, except for rounding.
      z_loss: see `cross_entropy`.
    """
    return _sum_blocks(logits_of, params, h_PxD, target_P, weight_P, block, z_loss, gradient=False)[
        0
    ]


def _sum_blocks(logits_of, params, h_PxD, target_P, weight_P, block, z_loss, *, gradient):
    positions, dtype = len(target_P), jnp.promote_types(h_PxD.dtype, jnp.float32)
    block = min(block, positions)
    total = jnp.sum(weight_P.astype(dtype))
    share_P = weight_P.astype(dtype) / jnp.where(total > 0, total, 1)
    blocks = -(-positions // block)
    missing = (0, blocks * block - positions)
    padded = [jnp.pad(x, [missing] + [(0, 0)] * (x.ndim - 1)) for x in (h_PxD, target_P, share_P)]
    end = jnp.max(jnp.where(weight_P > 0, jnp.arange(1, positions + 1), 0))

    def evaluate(i):
        """Return loss, correctness and d_h of a block's positions, and its part of d_params."""
        h_KxD, target_K, share_K = (
            jax.lax.dynamic_slice_in_dim(x, i * block, block) for x in padded
        )
        logits_KxV, back = (
            jax.vjp(logits_of, params, h_KxD) if gradient else (logits_of(params, h_KxD), None)
        )
        chosen_K = jnp.take_along_axis(logits_KxV, target_K[:, None], axis=1)[:, 0].astype(dtype)
        top_K = jnp.max(logits_KxV, axis=1).astype(dtype)
        mass_KxV = jnp.exp(logits_KxV.astype(dtype) - top_K[:, None])
        sum_K = jnp.sum(mass_KxV, axis=1)
        log_sum_K = top_K + jnp.log(sum_K)
        loss_K = log_sum_K - chosen_K
        if z_loss:
            loss_K = loss_K + z_loss * log_sum_K**2
        counts_K = share_K > 0  # the loss of positions that do not count may be infinite
        found = jnp.where(counts_K, loss_K, 0), counts_K & (chosen_K >= top_K)
        if not gradient:
            return (*found, None), None
        is_target_KxV = jnp.arange(logits_KxV.shape[1])[None] == target_K[:, None]
        scale_K = share_K / sum_K
        if z_loss:
            scale_K = scale_K * (1 + 2 * z_loss * log_sum_K)
        d_logits_KxV = mass_KxV * scale_K[:, None] - jnp.where(is_target_KxV, share_K[:, None], 0)
        d_params, d_h_KxD = back(d_logits_KxV.astype(logits_KxV.dtype))
        # in bfloat16 the sum over many blocks would lose most of each block's part
        wide = jax.tree.map(lambda d: d.astype(jnp.promote_types(d.dtype, jnp.float32)), d_params)
        return (*found, d_h_KxD), wide

    def add(i, sums):
        def write(whole: jax.Array, part: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_slice_in_dim(whole, part, i * block, 0)

        of_positions, d_params = sums
        found, of_block = evaluate(i)
        return jax.tree.map(write, of_positions, found), jax.tree.map(jnp.add, d_params, of_block)

    def zeros() -> tuple[Tree, Tree]:
        found, of_block = jax.eval_shape(evaluate, 0)
        of_positions = jax.tree.map(
            lambda x: jnp.zeros((blocks * block, *x.shape[1:]), x.dtype), found
        )
        return of_positions, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), of_block)

    # one block needs neither sums nor a table of zeros to start from
    sums = evaluate(0) if blocks == 1 else jax.lax.fori_loop(0, -(-end // block), add, zeros())
    (loss_P, correct_P, d_h_PxD), d_params = sums
    means = jnp.sum(loss_P * padded[2]), jnp.sum(correct_P * padded[2])
    if not gradient:
        return means, None
    d_params = jax.tree.map(lambda d, x: d.astype(x.dtype), d_params, params)
    return means, (d_params, d_h_PxD[:positions])


def _forward(logits_of, params, h_PxD, target_P, weight_P, block, z_loss):
    return _sum_blocks(logits_of, params, h_PxD, target_P, weight_P, block, z_loss, gradient=True)


def _backward(logits_of, block, z_loss, gradients, cotangents):
    return *jax.tree.map(lambda d: (d * cotangents[0]).astype(d.dtype), gradients), None, None


blockwise_cross_entropy.defvjp(_forward, _backward)
