"""Count the parameters, bytes and FLOPs of a transformer, tied or untied. Imports no jax."""

from numbers import Integral
from typing import Literal, NamedTuple

import ml_dtypes  # noqa: F401  # registers "bfloat16"
import numpy as np
from numpy.typing import DTypeLike


class Budget(NamedTuple):
    """Parameters, bytes and floating-point operations of a decoder-only transformer.

    Attributes:
      parameters: all of them; a tied table counts once.
      embedding_parameters: those of the input and the output table.
      weight_bytes, gradient_bytes, moment_bytes: of all parameters.
      forward_flops: per token, a multiplication and an addition counted as two.
      training_flops: per token, forward and backward: three times `forward_flops`.
      head_flops: the output table's part of `forward_flops`, 2·V·D whether tied or not; looking a
        token up takes none.
    """

    parameters: int
    embedding_parameters: int
    weight_bytes: int
    gradient_bytes: int
    moment_bytes: int
    forward_flops: int
    training_flops: int
    head_flops: int


def budget(
    vocabulary: int,
    width: int,
    layers: int,
    *,
    tied: bool,
    feedforward: int | None = None,
    gated: bool = False,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_width: int | None = None,
    positions: int = 0,
    bias: bool | Literal["qkv"] = False,
    context: int = 0,
    weight_dtype: DTypeLike = "float32",
    moment_dtype: DTypeLike = "float32",
) -> Budget:
    """Return what a decoder-only transformer of these sizes costs.

    FLOPs are those of matrix products with parameters, the head's included, and, for each layer,
    4·context·heads·head_width of attention to all positions (Chowdhery et al. 2022, appendix B).
    A block has two norms, and one is at the end; those of queries and keys are not counted.

    Args:
      vocabulary: rows of a table, padding included.
      width: of the residual stream.
      layers: number of blocks of attention and feed-forward layer.
      tied: whether the output table is the input table.
      feedforward: hidden width; 4·width by default.
      gated: three matrices in the feed-forward layer, as in SwiGLU, instead of two.
      heads: number of query heads; needed for the two options below.
      kv_heads: heads of keys and values, as many as `heads` by default.
      head_width: of a head; width/heads by default.
      positions: rows of a learned position table.
      bias: biases in all layers and norms, or in "qkv" only. The head has none.
      context: number of positions that attention sees.
      weight_dtype: of parameters and gradients.
      moment_dtype: of the two moments that Adam keeps of each parameter.

    Raises:
      ValueError: if a size is not a whole number, or too small; if heads do not divide.
    """
    sizes = {"vocabulary": vocabulary, "width": width, "layers": layers, "feedforward": feedforward}
    sizes |= {"heads": heads, "kv_heads": kv_heads, "head_width": head_width}
    counts = {"positions": positions, "context": context}
    for name, size in {**sizes, **counts}.items():
        least = 0 if name in counts else 1
        if size is not None and (not isinstance(size, Integral) or size < least):
            raise ValueError(f"{name} = {size}; expected {least} or more, a whole number")
    if bias not in (True, False, "qkv"):
        raise ValueError(f"bias = {bias!r}; expected True, False or 'qkv'")
    if heads is None and (kv_heads is not None or head_width is not None):
        raise ValueError("kv_heads and head_width need heads; say how many")
    feedforward = 4 * width if feedforward is None else feedforward
    queries, keys = _attention_widths(width, heads, kv_heads, head_width)
    block = width * (2 * queries + 2 * keys) + (3 if gated else 2) * width * feedforward
    biases = (queries + 2 * keys) * bool(bias)
    if bias is True:
        biases += width + (2 if gated else 1) * feedforward + width
    of_norm = (2 if bias is True else 1) * width
    tables = (1 if tied else 2) * vocabulary * width
    body = layers * (block + biases + 2 * of_norm) + of_norm + positions * width
    head = 2 * vocabulary * width
    forward = layers * (2 * block + 4 * context * queries) + head
    parameters = tables + body
    weights = parameters * np.dtype(weight_dtype).itemsize
    return Budget(
        parameters=parameters,
        embedding_parameters=tables,
        weight_bytes=weights,
        gradient_bytes=weights,
        moment_bytes=2 * parameters * np.dtype(moment_dtype).itemsize,
        forward_flops=forward,
        training_flops=3 * forward,
        head_flops=head,
    )


def _attention_widths(
    width: int, heads: int | None, kv_heads: int | None, head_width: int | None
) -> tuple[int, int]:
    """Return the widths of all queries and of all keys."""
    if heads is None:
        return width, width
    if head_width is None and width % heads:
        raise ValueError(f"heads = {heads} do not divide width = {width}; expected head_width=...")
    kv_heads = heads if kv_heads is None else kv_heads
    if heads % kv_heads:
        raise ValueError(f"kv_heads = {kv_heads}; expected a divisor of heads = {heads}")
    head_width = width // heads if head_width is None else head_width
    return heads * head_width, kv_heads * head_width
