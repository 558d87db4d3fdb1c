"""PyTorch's `TransformerEncoder` without positions, at the positions that are asked for.

Without positions a token is only what it is and how often it occurs. So a sequence may be given as its tokens, or, where
the vocabulary is no larger than the sequence is long, as the whole vocabulary with the number of times each entry occurs:
then keys, queries and values are projected once per entry instead of once per token, and (in the first layer) once for a
whole batch. Both are exact and one and the same code: rows with weights.

Shapes: R rows, P rows asked for, D width, F feed-forward width, H heads, E = D / H.
"""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxtie.models.layers import layer_norm, linear, uniform


def _gelu(x: jax.Array) -> jax.Array:
    """Exact GELU by erf, as PyTorch has it; `jax.nn.gelu` goes by erfc, which costs twice as much."""
    return x * 0.5 * (1 + jax.lax.erf(x * 0.5**0.5))


def _attention(q_PxHxE: jax.Array, k_RxHxE: jax.Array, v_RxHxE: jax.Array, weight_R: jax.Array) -> jax.Array:
    """Scaled dot-product attention to rows that each stand for `weight_R` equal ones (0: not there); PxHxE."""
    score = jnp.einsum("phe,rhe->phr", q_PxHxE, k_RxHxE) / q_PxHxE.shape[-1] ** 0.5
    weight = jnp.broadcast_to(weight_R[None, None], score.shape)
    score = jnp.where(weight > 0, score, -jnp.inf)
    mass = weight * jnp.exp(score - jax.lax.stop_gradient(jnp.max(score, axis=-1, keepdims=True)))
    return jnp.einsum("phr,rhe->phe", mass / jnp.sum(mass, axis=-1, keepdims=True), v_RxHxE)


class EncoderLayer(nn.Module):
    """`torch.nn.TransformerEncoderLayer` (post-norm, exact GELU, no dropout), its parameters by the same names."""

    heads: int
    feedforward: int

    @nn.compact
    def __call__(self, x_PxD: jax.Array, rows_RxD: jax.Array, weight_R: jax.Array) -> jax.Array:
        """The layer's output at rows `x_PxD`, attending to `rows_RxD`."""
        width, heads, feedforward = x_PxD.shape[-1], self.heads, self.feedforward
        zeros, ones = nn.initializers.zeros, nn.initializers.ones
        inner = uniform(width**-0.5)

        # Xavier-uniform over the whole 3DxD matrix, as PyTorch has it.
        in_weight = self.param("in_proj_weight", uniform((6 / (4 * width)) ** 0.5), (3 * width, width))
        in_bias = self.param("in_proj_bias", zeros, (3 * width,))
        w_q, w_k, w_v = jnp.split(in_weight, 3)
        b_q, b_k, b_v = jnp.split(in_bias, 3)
        split = lambda y: y.reshape(y.shape[0], heads, width // heads)
        attended = _attention(
            split(linear(x_PxD, w_q, b_q)),
            split(linear(rows_RxD, w_k, b_k)),
            split(linear(rows_RxD, w_v, b_v)),
            weight_R,
        )
        attended = linear(
            attended.reshape(x_PxD.shape),
            self.param("out_proj_weight", inner, (width, width)),
            self.param("out_proj_bias", zeros, (width,)),
        )
        h = layer_norm(
            x_PxD + attended, self.param("norm1_weight", ones, (width,)), self.param("norm1_bias", zeros, (width,))
        )
        hidden = linear(
            h,
            self.param("linear1_weight", inner, (feedforward, width)),
            self.param("linear1_bias", inner, (feedforward,)),
        )
        outer = uniform(feedforward**-0.5)
        hidden = linear(
            _gelu(hidden),
            self.param("linear2_weight", outer, (width, feedforward)),
            self.param("linear2_bias", outer, (width,)),
        )
        return layer_norm(h + hidden, self.param("norm2_weight", ones, (width,)), self.param("norm2_bias", zeros, (width,)))


class Transformer(nn.Module):
    """A body: from the input table and the tokens to hidden states (see `jaxtie.models.masked_lm`).

    Attributes:
      layers, heads, feedforward: sizes.
      independent_layers: draw each layer's initial values anew. PyTorch clones the first, and so it is by default.
    """

    layers: int
    heads: int
    feedforward: int
    independent_layers: bool = False
    ordered: ClassVar[bool] = False

    @nn.compact
    def __call__(self, table_VxD: jax.Array, tokens_L: jax.Array, at_P: jax.Array, token_P: jax.Array) -> jax.Array:
        vocabulary = table_VxD.shape[0]
        if vocabulary <= len(tokens_L):
            counts_V = jnp.sum(jax.nn.one_hot(tokens_L, vocabulary, dtype=table_VxD.dtype), axis=0)
            rows, weight = table_VxD, jax.lax.optimization_barrier(counts_V)  # else each use counts again
            pick = lambda rows_VxD: jax.nn.one_hot(token_P, vocabulary, dtype=rows_VxD.dtype) @ rows_VxD
        else:
            rows, weight = table_VxD[tokens_L], jnp.ones(len(tokens_L), table_VxD.dtype)
            pick = lambda rows_LxD: rows_LxD[at_P]
        layers = [EncoderLayer(self.heads, self.feedforward, name=f"layer_{i}") for i in range(self.layers)]
        for layer in layers[:-1]:
            rows = layer(rows, rows, weight)
        h_PxD = layers[-1](pick(rows), rows, weight)
        if self.is_initializing() and not self.independent_layers:
            for name, value in layers[0].variables["params"].items():
                for layer in layers[1:]:
                    layer.put_variable("params", name, value)
        return h_PxD
