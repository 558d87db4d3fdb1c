"""Compute cross-entropy over a vocabulary and its gradient, a block of positions at a time.

The logits of P positions and V words would be the largest array of a small text model; here only
the logits of one block exist at a time. The gradient is computed along with the loss: three matrix
products instead of four, and nothing of a block is kept.

Shapes: P positions, K positions of a block, D width, V vocabulary.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.sharding import PartitionSpec

from jaxtie.tying import head
from jaxtie.tying.head import EmbeddingSpec, Tree

# Positions. On a CPU, 420 take about as long; 64 take a fifth longer with 8,292 words.
BLOCK_SIZE = 128
# Logits of a block on an accelerator, which waits for the host after each block; 256 MiB.
BLOCK_LOGITS = 2**26
LogitsOf = Callable[[Tree, jax.Array], jax.Array]
Reduction = Literal["mean", "sum"]


def block_size(platform: str, vocabulary: int) -> int:
    """Return the positions of a block that suit a platform."""
    if platform == "cpu":
        return BLOCK_SIZE
    return max(BLOCK_SIZE, 2 ** ((BLOCK_LOGITS // vocabulary).bit_length() - 1))


def cross_entropy(
    h_PxD: jax.Array,
    table: jax.Array,
    target_P: jax.Array,
    weight_P: jax.Array | None = None,
    *,
    transposed: bool = False,
    bias_V: jax.Array | None = None,
    allowed_V: jax.Array | None = None,
    logit_softcap: float | None = None,
    **options: Any,
) -> tuple[jax.Array, jax.Array]:
    """Return loss and accuracy of hidden states and an output table, tied or not.

        logits = cap(h·Eᵀ + b)    cap(x) = logit_softcap·tanh(x / logit_softcap)

    Differentiable in hidden states, table and bias. Products of bfloat16 are accumulated in
    float32; so is the table's gradient over the blocks. For an `Embedding`, call its method
    `cross_entropy`, which knows the options of its head. For the other arguments see
    `reduce_losses`.

    Args:
      h_PxD: hidden states; P can be any leading axes.
      table: the output table, V×D.
      target_P: token ids.
      weight_P: 1 by default. Not differentiated.
      transposed: the table is D×V.
      bias_V: added to the logits.
      allowed_V: which tokens can be predicted, for instance no padding of the table; the loss of a
        target that cannot be predicted is infinite.
      logit_softcap: a Python number, not differentiated.
      **options: `reduction`, `ignore_index`, `z_loss`, `block`.

    Raises:
      ValueError: if shapes do not fit, or if `reduction` is unknown.
    """
    width, axis = h_PxD.shape[-1], 0 if transposed else 1
    if table.ndim != 2 or table.shape[axis] != width:
        raise ValueError(
            f"the table is {table.shape}; hidden states of width {width} need"
            f" {(width, 'V') if transposed else ('V', width)}"
            f"{'' if transposed else '; say transposed=True if it is D×V'}"
        )
    dtype = jnp.promote_types(h_PxD.dtype, jnp.float32)
    params = {"table": table}
    if bias_V is not None:
        params["bias"] = bias_V
    if allowed_V is not None:
        params["excluded"] = jnp.where(allowed_V, 0.0, -jnp.inf).astype(dtype)

    def logits_of(params: Tree, h_KxD: jax.Array) -> jax.Array:
        table_DxV = params["table"] if transposed else params["table"].T
        logits_KxV = jnp.matmul(h_KxD, table_DxV, preferred_element_type=dtype)
        if "bias" in params:
            logits_KxV = logits_KxV + params["bias"].astype(dtype)[None]
        if logit_softcap is not None:
            logits_KxV = logit_softcap * jnp.tanh(logits_KxV / logit_softcap)
        return logits_KxV + params["excluded"][None] if "excluded" in params else logits_KxV

    return reduce_losses(logits_of, params, h_PxD, target_P, weight_P, **options)


def embedding_cross_entropy(
    spec: EmbeddingSpec,
    params: Mapping,
    h_PxD: jax.Array,
    target_P: jax.Array,
    weight_P: jax.Array | None = None,
    **options: Any,
) -> tuple[jax.Array, jax.Array]:
    """Return loss and accuracy of `compute_logits`, a block of positions at a time.

    The loss is computed in at least float32. For arguments see `cross_entropy` and `reduce_losses`.
    """
    dtype = jnp.promote_types(h_PxD.dtype, jnp.float32)
    h_PxD = head.transform_hidden(spec, params, h_PxD)

    def logits_of(params: Tree, h_KxD: jax.Array) -> jax.Array:
        return head.output_logits(spec, params, h_KxD, dtype)

    end = head.output_params(params, spec.untied_rows)
    return reduce_losses(logits_of, end, h_PxD, target_P, weight_P, **options)


def reduce_losses(
    logits_of: LogitsOf,
    params: Tree,
    h_PxD: jax.Array,
    target_P: jax.Array,
    weight_P: jax.Array | None = None,
    *,
    reduction: Reduction = "mean",
    ignore_index: int | None = None,
    z_loss: float | jax.Array = 0.0,
    block: int = BLOCK_SIZE,
) -> tuple[jax.Array, jax.Array]:
    """Return loss, in nats, and accuracy, both reduced.

    The loss is differentiable in `params` and `h_PxD`, a second time forward only. Time grows with
    the number of blocks up to the last weight that is not 0, so put weights of 0 at the end. Logits
    may have any dtype; the loss is computed in at least float32. An id outside 0...V-1 or of
    `excluded_rows` that counts makes loss and gradients NaN; without a weight that counts, the loss
    is 0. Under `jax.shard_map` means are those of a device; mesh axes may be of type Explicit.

    Args:
      logits_of: a pure function from `params` and hidden states KxD to logits KxV that treats each
        position separately.
      params: its first argument.
      h_PxD: hidden states; P can be any leading axes.
      target_P: token ids.
      weight_P: 1 by default; may be negative, as advantages are.
      reduction: weighted mean, Σ weight·loss / Σ |weight|, or weighted sum. The accuracy is
        weighted by |weight|.
      ignore_index: targets that are this id do not count, as if their weight were 0.
      z_loss: z_loss·(ln Σ exp(logits))² is added to each loss (Chowdhery et al., 2022: 1e-4); a
        number or an array, not differentiated.
      block: number of positions whose logits are in memory at a time.

    Raises:
      ValueError: if leading axes differ, if `reduction` is unknown, or if `block` is below 1.
    """
    if h_PxD.shape[:-1] != target_P.shape:
        raise ValueError(
            f"hidden states {h_PxD.shape}, targets {target_P.shape}: expected the same leading axes"
        )
    if reduction not in (choices := get_args(Reduction)):
        raise ValueError(f"reduction is {reduction!r}; expected one of {', '.join(choices)}")
    dtype = jnp.promote_types(h_PxD.dtype, jnp.float32)
    weight_P = jnp.ones((), dtype) if weight_P is None else weight_P
    is_off = not isinstance(z_loss, jax.Array) and z_loss == 0
    factor = None if is_off else jnp.asarray(z_loss, dtype)

    def reduce(params, h_PxD, target_P, weight_P, factor):
        weight_P = jnp.broadcast_to(weight_P, target_P.shape)
        if ignore_index is not None:
            weight_P = jnp.where(target_P == ignore_index, 0, weight_P)
        flat = h_PxD.reshape(-1, h_PxD.shape[-1]), target_P.ravel(), weight_P.ravel()
        return _blockwise(logits_of, block, reduction, *_vary_alike(params, *flat), factor)

    arrays: Any = params, h_PxD, target_P, weight_P, factor
    return head.on_auto_axes(reduce, (PartitionSpec(),) * 2, *arrays)(*arrays)


def _vary_alike(*trees):
    """Let all arrays vary along the mesh axes of a `shard_map` that any of them varies along.

    Gradients of those that did not are then summed over devices once, after the last block.
    """
    axes = frozenset().union(*(jax.typeof(x).mat.varying for x in jax.tree.leaves(trees)))

    def vary(x: jax.Array) -> jax.Array:
        missing = tuple(sorted(axes - jax.typeof(x).mat.varying))
        return jax.lax.pcast(x, missing, to="varying")

    return jax.tree.map(vary, trees)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _blockwise(*arguments):
    return _sum_blocks(*arguments, gradient=False)[0]


@partial(_blockwise.defjvp, symbolic_zeros=True)
def _(logits_of, block, reduction, primals, tangents):
    """Compute the gradient along with the loss; what is linear in the tangents is transposed."""
    means, gradients = _sum_blocks(logits_of, block, reduction, *primals, gradient=True)
    slope = jnp.zeros_like(means[0])
    for d, t in zip(*map(jax.tree.leaves, (gradients, tangents[:2])), strict=True):
        if not isinstance(t, SymbolicZero):
            slope = slope + jnp.sum(d.astype(slope.dtype) * t.astype(slope.dtype))
    return means, (slope, jnp.zeros_like(means[1]))


def _cut(block: int, *arrays: jax.Array) -> tuple[int, int, list[jax.Array]]:
    """Return the size of a block, the number of blocks, and arrays padded to whole blocks."""
    if block < 1:
        raise ValueError(f"block = {block}; expected 1 position or more")
    positions = len(arrays[0])
    block = min(block, max(positions, 1))
    blocks = max(-(-positions // block), 1)
    missing = (0, blocks * block - positions)
    return block, blocks, [jnp.pad(x, [missing] + [(0, 0)] * (x.ndim - 1)) for x in arrays]


class _Losses(NamedTuple):
    """Losses of a block and what its gradient needs; `is_wrong`: counts, but is not to predict."""

    loss_K: jax.Array
    correct_K: jax.Array
    log_sum_K: jax.Array
    mass_KxV: jax.Array
    sum_K: jax.Array
    is_wrong_K: jax.Array


def _evaluate_block(logits_KxV, target_K, share_K, z_loss, dtype) -> _Losses:
    vocabulary, lowest = logits_KxV.shape[1], jnp.finfo(logits_KxV.dtype).min / 4
    chosen_K = jnp.take_along_axis(logits_KxV, target_K[:, None], axis=1)[:, 0].astype(dtype)
    top_K = jax.lax.stop_gradient(jnp.max(logits_KxV, axis=1).astype(dtype))
    mass_KxV = jnp.exp(logits_KxV.astype(dtype) - top_K[:, None])
    sum_K = jnp.sum(mass_KxV, axis=1)
    log_sum_K = top_K + jnp.log(sum_K)
    loss_K = log_sum_K - chosen_K
    if z_loss is not None:
        loss_K = loss_K + z_loss * log_sum_K**2
    counts_K = share_K != 0  # the loss of positions that do not count may be infinite
    is_excluded_K = (chosen_K < lowest) & (chosen_K > -jnp.inf)
    is_wrong_K = counts_K & ((target_K < 0) | (target_K >= vocabulary) | is_excluded_K)
    loss_K = jnp.where(counts_K, loss_K * jnp.where(is_wrong_K, jnp.nan, 1), 0)
    correct_K = counts_K & (chosen_K >= top_K)
    return _Losses(loss_K, correct_K, log_sum_K, mass_KxV, sum_K, is_wrong_K)


def _sum_blocks(logits_of, block, reduction, *arrays, gradient):
    """Return loss and accuracy, and with `gradient` those in `params` and `h_PxD`, else None."""
    params, h_PxD, target_P, weight_P, z_loss = arrays
    positions, dtype = len(target_P), jnp.promote_types(h_PxD.dtype, jnp.float32)
    share_P = weight_P.astype(dtype)
    if reduction == "mean":
        total = jnp.sum(jnp.abs(share_P))
        share_P = share_P / jnp.where(total > 0, total, 1)
    block, blocks, padded = _cut(block, h_PxD, target_P, share_P)

    def evaluate(i):
        """Return loss, correctness and d_h of a block's positions, and its part of d_params."""
        h_KxD, target_K, share_K = (
            jax.lax.dynamic_slice_in_dim(x, i * block, block) for x in padded
        )
        logits_KxV, back = (
            jax.vjp(logits_of, params, h_KxD) if gradient else (logits_of(params, h_KxD), None)
        )
        losses = _evaluate_block(logits_KxV, target_K, share_K, z_loss, dtype)
        found = losses.loss_K, losses.correct_K
        if not gradient:
            return (*found, None), None
        is_target_KxV = jnp.arange(logits_KxV.shape[1])[None] == target_K[:, None]
        scale_K = share_K / losses.sum_K
        if z_loss is not None:
            scale_K = scale_K * (1 + 2 * z_loss * losses.log_sum_K)
        scale_K = jnp.where(losses.is_wrong_K, jnp.nan, scale_K)
        d_logits_KxV = losses.mass_KxV * scale_K[:, None]
        d_logits_KxV = d_logits_KxV - jnp.where(is_target_KxV, share_K[:, None], 0)
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

    def over_blocks() -> tuple[Tree, Tree]:
        found, of_block = jax.eval_shape(evaluate, 0)
        of_positions = jax.tree.map(
            lambda x: jnp.zeros((blocks * block, *x.shape[1:]), x.dtype), found
        )
        of_block = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), of_block)
        end = jnp.max(jnp.where(weight_P != 0, jnp.arange(1, positions + 1), 0))
        zeros = _vary_alike(of_positions, of_block, h_PxD)[:2]
        return jax.lax.fori_loop(0, -(-end // block), add, zeros)

    # one block needs neither sums nor a table of zeros to start from
    (loss_P, correct_P, d_h_PxD), d_params = evaluate(0) if blocks == 1 else over_blocks()
    means = jnp.sum(loss_P * padded[2]), jnp.sum(correct_P * jnp.abs(padded[2]))
    if not gradient:
        return means, None
    d_params = jax.tree.map(lambda d, x: d.astype(x.dtype), d_params, params)
    return means, (d_params, d_h_PxD[:positions])
