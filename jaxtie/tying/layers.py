"""What models share.

Shapes: R rows, P rows asked for, D and F widths.
"""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

Tree = Any  # a pytree: parameters, or the state of an optimizer


def uniform(bound: float) -> nn.initializers.Initializer:
    """U(-bound, bound); PyTorch's linear maps have bound 1/√fan_in, weights and biases alike."""
    return lambda key, shape, dtype=float: jax.random.uniform(key, shape, dtype, -bound, bound)


def gelu(x: jax.Array) -> jax.Array:
    """Exact GELU by erf, as PyTorch has it; `jax.nn.gelu` goes by erfc, which costs twice as
    much.
    """
    return x * 0.5 * (1 + jax.lax.erf(x * 0.5**0.5))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x_RxD: jax.Array, weight_FxD: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """x·weightᵀ of operands rounded to `dtype`, and so on the way back; sums and results keep the
    dtype of x.

    It takes all rows at once: mapped over rows but not over weights, each row would make its own
    gradient of the weights.
    """
    return jnp.matmul(
        x_RxD.astype(dtype), weight_FxD.T.astype(dtype), preferred_element_type=x_RxD.dtype
    )


def _matmul_forward(x, weight, dtype):
    return matmul(x, weight, dtype), (
        x.astype(dtype),
        weight.astype(dtype),
        jnp.zeros((), weight.dtype),
    )


def _matmul_backward(dtype, kept, d_out):
    (x, weight, like), d = kept, d_out.astype(dtype)
    product = partial(jnp.matmul, preferred_element_type=d_out.dtype)
    return product(d, weight), product(d.T, x).astype(like.dtype)


matmul.defvjp(_matmul_forward, _matmul_backward)


def linear(
    x_RxD: jax.Array,
    weight_FxD: jax.Array,
    bias_F: jax.Array,
    dtype: jax.typing.DTypeLike | None = None,
) -> jax.Array:
    """`torch.nn.functional.linear`, rank promotion spelled out; with a `dtype`, see `matmul`."""
    product_RxF = x_RxD @ weight_FxD.T if dtype is None else matmul(x_RxD, weight_FxD, dtype)
    return product_RxF + bias_F[None]


def layer_norm(
    x_RxD: jax.Array, weight_D: jax.Array, bias_D: jax.Array, eps: float = 1e-5
) -> jax.Array:
    """`torch.nn.functional.layer_norm` of each row."""
    centred = x_RxD - jnp.mean(x_RxD, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + eps) * weight_D[None] + bias_D[None]


def pick(rows_RxD: jax.Array, at_P: jax.Array) -> jax.Array:
    """rows_RxD[at_P] for few rows: products with a one-hot matrix; every backend and
    `jaxtie.training.lanes` do them well.
    """
    return jax.nn.one_hot(at_P, rows_RxD.shape[0], dtype=rows_RxD.dtype) @ rows_RxD


def count_tokens(tokens_L: jax.Array, vocabulary: int, dtype: jax.typing.DTypeLike) -> jax.Array:
    """How often each entry of a small vocabulary occurs, V; the numbers lie side by side in one
    integer where they fit.
    """
    bits = 32 // vocabulary
    if len(tokens_L) >= 2**bits:
        return jax.lax.optimization_barrier(
            sum(jax.nn.one_hot(token, vocabulary, dtype=dtype) for token in tokens_L)
        )
    packed = jax.lax.optimization_barrier(
        sum(jnp.uint32(1) << (bits * token).astype(jnp.uint32) for token in tokens_L)
    )
    shift_V = bits * jnp.arange(vocabulary, dtype=jnp.uint32)
    return ((packed >> shift_V) & jnp.uint32(2**bits - 1)).astype(dtype)
