"""Linear map, layer norm and row selection as PyTorch defines them.

Shapes: R rows, P selected rows, L tokens, D and F widths, V vocabulary.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxtie.tying.head import matmul


def uniform(bound: float) -> nn.initializers.Initializer:
    """Draw from U(-bound, bound); weights and biases of PyTorch's linear maps use 1/√fan_in."""
    return lambda key, shape, dtype=float: jax.random.uniform(key, shape, dtype, -bound, bound)


def linear(
    x_RxD: jax.Array,
    weight_FxD: jax.Array,
    bias_F: jax.Array,
    dtype: jax.typing.DTypeLike | None = None,
) -> jax.Array:
    """Apply `torch.nn.functional.linear`; with a `dtype`, round the operands as `matmul` does."""
    product_RxF = x_RxD @ weight_FxD.T if dtype is None else matmul(x_RxD, weight_FxD, dtype)
    return product_RxF + bias_F[None]


def layer_norm(
    x_RxD: jax.Array, weight_D: jax.Array, bias_D: jax.Array, eps: float = 1e-5
) -> jax.Array:
    """Apply `torch.nn.functional.layer_norm` to each row."""
    centred = x_RxD - jnp.mean(x_RxD, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + eps) * weight_D[None] + bias_D[None]


def rms_norm(x_RxD: jax.Array, weight_D: jax.Array, eps: float = 1e-5) -> jax.Array:
    """Apply `torch.nn.functional.rms_norm` to each row."""
    square = jnp.mean(x_RxD**2, axis=-1, keepdims=True)
    return x_RxD * jax.lax.rsqrt(square + eps) * weight_D[None]


def select_rows(rows_RxD: jax.Array, at_P: jax.Array) -> jax.Array:
    """Return rows_RxD[at_P] by a one-hot product, which every backend and lanes do fast."""
    return jax.nn.one_hot(at_P, rows_RxD.shape[0], dtype=rows_RxD.dtype) @ rows_RxD


def count_tokens(tokens_L: jax.Array, vocabulary: int, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Count how often each token of a small vocabulary occurs; V.

    The counts are packed into one 32-bit integer where they fit.
    """
    bits = 32 // vocabulary
    if len(tokens_L) >= 2**bits:
        one_hot = (jax.nn.one_hot(token, vocabulary, dtype=dtype) for token in tokens_L)
        return jax.lax.optimization_barrier(sum(one_hot))
    shifted = (jnp.uint32(1) << (bits * token).astype(jnp.uint32) for token in tokens_L)
    packed = jax.lax.optimization_barrier(sum(shifted))
    shift_V = bits * jnp.arange(vocabulary, dtype=jnp.uint32)
    return ((packed >> shift_V) & jnp.uint32(2**bits - 1)).astype(dtype)
