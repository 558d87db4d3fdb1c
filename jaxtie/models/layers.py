"""What the bodies share.

Shapes: R rows, P rows asked for, D and F widths.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp


def uniform(bound: float) -> nn.initializers.Initializer:
    """U(-bound, bound); PyTorch's linear maps have bound 1/√fan_in, weights and biases alike."""
    return lambda key, shape, dtype=float: jax.random.uniform(key, shape, dtype, -bound, bound)


def linear(x_RxD: jax.Array, weight_FxD: jax.Array, bias_F: jax.Array) -> jax.Array:
    """`torch.nn.functional.linear`, rank promotion spelled out."""
    return x_RxD @ weight_FxD.T + bias_F[None]


def layer_norm(x_RxD: jax.Array, weight_D: jax.Array, bias_D: jax.Array, eps: float = 1e-5) -> jax.Array:
    """`torch.nn.functional.layer_norm` of each row."""
    centred = x_RxD - jnp.mean(x_RxD, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + eps) * weight_D[None] + bias_D[None]


def pick(rows_RxD: jax.Array, at_P: jax.Array) -> jax.Array:
    """rows_RxD[at_P] for few rows: products with a one-hot matrix, which every backend and `jaxtie.lanes` do well."""
    return jax.nn.one_hot(at_P, rows_RxD.shape[0], dtype=rows_RxD.dtype) @ rows_RxD
