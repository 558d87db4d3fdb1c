"""PyTorch's `TransformerEncoder` without positions, at the positions that are asked for; and a
causal one, pre-norm.

Without positions a token is only what it is and how often it occurs. So a sequence may be given as
its tokens, or, where the vocabulary is no larger than the sequence is long, as the whole vocabulary
with the number of times each entry occurs: then keys, queries and values are projected once per
entry instead of once per token, and (in the first layer) once for a whole batch. Both are exact and
one and the same code: rows with weights. That is for a process of seven symbols.

For text, where the vocabulary is large and the positions asked for lie anywhere in a batch, a body
comes in two parts:
`attend`, up to the last attention; and `finish`: what is left of the last layer, three quarters of
its work, and done only where it is asked for. Both take rows of all sequences at once, for all but
attention treats each row by itself, and the gradient of weights is then one product; attention is
written for one sequence.

Shapes: R rows, P rows asked for, B sequences of L tokens, N = B·L, D width, F feed-forward width, H
heads, E = D / H.
"""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxtie.tying.head import count_entries, gelu, layer_norm, linear, pick, uniform


def _attention(
    q_PxHxE: jax.Array, k_RxHxE: jax.Array, v_RxHxE: jax.Array, weight_R: jax.Array
) -> jax.Array:
    """Scaled dot-product attention to rows that each stand for `weight_R` equal ones (0: not
    there); PxHxE.
    """
    score = jnp.einsum("phe,rhe->phr", q_PxHxE, k_RxHxE) / q_PxHxE.shape[-1] ** 0.5
    weight = jnp.broadcast_to(weight_R[None, None], score.shape)
    score = jnp.where(weight > 0, score, -jnp.inf)
    mass = weight * jnp.exp(score - jax.lax.stop_gradient(jnp.max(score, axis=-1, keepdims=True)))
    return jnp.einsum("phr,rhe->phe", mass / jnp.sum(mass, axis=-1, keepdims=True), v_RxHxE)


def _share(q_HxPxE: jax.Array, k_HxRxE: jax.Array, there_PxR: jax.Array) -> jax.Array:
    score = jnp.einsum(
        "hpe,hre->hpr",
        q_HxPxE,
        k_HxRxE,
        preferred_element_type=jnp.promote_types(q_HxPxE.dtype, jnp.float32),
    )
    # Finite, so that a row of nothing but padding attends to all of it alike and harms nobody.
    score = jnp.where(
        there_PxR[None], score * q_HxPxE.shape[-1] ** -0.5, jnp.finfo(score.dtype).min
    )
    mass = jnp.exp(score - jnp.max(score, axis=-1, keepdims=True))
    return mass / jnp.sum(mass, axis=-1, keepdims=True)


@jax.custom_vjp
def masked_attention(
    q_HxPxE: jax.Array, k_HxRxE: jax.Array, v_HxRxE: jax.Array, there_PxR: jax.Array
) -> jax.Array:
    """Scaled dot-product attention of every row asked for to the rows that are there (or 1xR: for
    all alike); HxPxE.

    Heads come first and the derivative is by hand: at 64 tokens that halves the time on a CPU. The
    shares, HxPxR, would fill
    the memory if a whole batch kept them: they are made again on the way back, at no loss. Products
    are of the operands' dtype, sums and shares at least float32.
    """
    share_HxPxR = _share(q_HxPxE, k_HxRxE, there_PxR)
    return jnp.einsum(
        "hpr,hre->hpe",
        share_HxPxR.astype(v_HxRxE.dtype),
        v_HxRxE,
        preferred_element_type=share_HxPxR.dtype,
    )


def _attention_forward(*arguments):
    return masked_attention(*arguments), arguments


def _attention_backward(arguments, d_out):
    q, k, v, there_PxR = arguments
    share = _share(q, k, there_PxR)

    def product(form: str, a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.einsum(
            form, a.astype(q.dtype), b.astype(q.dtype), preferred_element_type=share.dtype
        )

    d_share = product("hpe,hre->hpr", d_out, v)
    d_score = (
        share * (d_share - jnp.sum(d_share * share, axis=-1, keepdims=True)) * q.shape[-1] ** -0.5
    )
    d_q, d_k = product("hpr,hre->hpe", d_score, k), product("hpr,hpe->hre", d_score, q)
    return *(d.astype(q.dtype) for d in (d_q, d_k, product("hpr,hpe->hre", share, d_out))), None


masked_attention.defvjp(_attention_forward, _attention_backward)


def _rotate(x_HxLxE: jax.Array) -> jax.Array:
    """Rotary positions (Su et al. 2021): pairs (i, i + E/2) turned by position · 10,000^(-2i/E)."""
    length, width = x_HxLxE.shape[1:]
    frequency = 10_000.0 ** (-jnp.arange(0, width, 2) / width)
    angle_1xLxhalf = (jnp.arange(length)[:, None] * frequency[None])[None]
    cos, sin = (of(angle_1xLxhalf).astype(x_HxLxE.dtype) for of in (jnp.cos, jnp.sin))
    a, b = jnp.split(x_HxLxE, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


class EncoderLayer(nn.Module):
    """`torch.nn.TransformerEncoderLayer` (exact GELU, no dropout), its parameters by the same
    names.

    Attributes:
      width, heads, feedforward: sizes.
      norm_first: a norm before either branch instead of after it.
      causal: no token attends to later ones; queries and keys are turned by their positions
        (`attend` only).
      branch_scale: of the initial values of what ends either branch, against PyTorch's.
      dtype: that the operands of matrix products are rounded to, see `layers.matmul`.
    """

    width: int
    heads: int
    feedforward: int
    norm_first: bool = False
    causal: bool = False
    branch_scale: float = 1.0
    dtype: jax.typing.DTypeLike | None = None

    def setup(self) -> None:
        width, feedforward = self.width, self.feedforward
        zeros, ones = nn.initializers.zeros, nn.initializers.ones
        inner, outer = uniform(width**-0.5), uniform(self.branch_scale * feedforward**-0.5)
        # Xavier-uniform over the whole 3DxD matrix, as PyTorch has it.
        self.in_proj_weight = self.param(
            "in_proj_weight", uniform((6 / (4 * width)) ** 0.5), (3 * width, width)
        )
        self.in_proj_bias = self.param("in_proj_bias", zeros, (3 * width,))
        self.out_proj = (
            self.param("out_proj_weight", uniform(self.branch_scale * width**-0.5), (width, width)),
            self.param("out_proj_bias", zeros, (width,)),
        )
        self.norm1 = (
            self.param("norm1_weight", ones, (width,)),
            self.param("norm1_bias", zeros, (width,)),
        )
        self.linear1 = (
            self.param("linear1_weight", inner, (feedforward, width)),
            self.param("linear1_bias", inner, (feedforward,)),
        )
        self.linear2 = (
            self.param("linear2_weight", outer, (width, feedforward)),
            self.param("linear2_bias", outer, (width,)),
        )
        self.norm2 = (
            self.param("norm2_weight", ones, (width,)),
            self.param("norm2_bias", zeros, (width,)),
        )

    def __call__(self, x_PxD: jax.Array, rows_RxD: jax.Array, weight_R: jax.Array) -> jax.Array:
        """The layer's output at rows `x_PxD`, attending to `rows_RxD` of so many tokens each."""
        w_q, w_k, w_v = jnp.split(self.in_proj_weight, 3)
        b_q, b_k, b_v = jnp.split(self.in_proj_bias, 3)

        def split(y_RxD: jax.Array) -> jax.Array:
            return y_RxD.reshape(y_RxD.shape[0], self.heads, self.width // self.heads)

        attended = _attention(
            split(linear(x_PxD, w_q, b_q)),
            split(linear(rows_RxD, w_k, b_k)),
            split(linear(rows_RxD, w_v, b_v)),
            weight_R,
        )
        return self.finish(x_PxD, attended.reshape(x_PxD.shape))

    def attend(self, x_NxD: jax.Array, there_BxL: jax.Array) -> jax.Array:
        """What the tokens of a sequence that are there have for each of them, before the projection
        out; NxD.
        """
        batch, length = there_BxL.shape
        rows_NxD = layer_norm(x_NxD, *self.norm1) if self.norm_first else x_NxD
        qkv = linear(rows_NxD, self.in_proj_weight, self.in_proj_bias, self.dtype).astype(
            self.dtype or x_NxD.dtype
        )
        qkv = qkv.reshape(batch, length, 3, self.heads, self.width // self.heads)
        attended_BxHxLxE = jax.vmap(self._attend)(jnp.transpose(qkv, (0, 2, 3, 1, 4)), there_BxL)
        return jnp.swapaxes(attended_BxHxLxE, 1, 2).reshape(x_NxD.shape).astype(x_NxD.dtype)

    def _attend(self, qkv_3xHxLxE: jax.Array, there_L: jax.Array) -> jax.Array:
        (q, k, v), there_1xL = qkv_3xHxLxE, there_L[None]
        if not self.causal:
            return masked_attention(q, k, v, there_1xL)
        return masked_attention(
            _rotate(q), _rotate(k), v, there_1xL & jnp.tri(len(there_L), dtype=bool)
        )

    def finish(self, x_PxD: jax.Array, attended_PxD: jax.Array) -> jax.Array:
        """The layer's output from its input and what attention gave: each row by itself."""
        h = x_PxD + linear(attended_PxD, *self.out_proj, self.dtype)
        if not self.norm_first:
            h = layer_norm(h, *self.norm1)
        hidden = linear(
            layer_norm(h, *self.norm2) if self.norm_first else h, *self.linear1, self.dtype
        )
        hidden = linear(gelu(hidden), *self.linear2, self.dtype)
        return h + hidden if self.norm_first else layer_norm(h + hidden, *self.norm2)


def _attend(
    layers: list[EncoderLayer], x_NxD: jax.Array, there_BxL: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Input of the last layer and what its attention gives, NxD each."""
    for layer in layers[:-1]:
        x_NxD = layer.finish(x_NxD, layer.attend(x_NxD, there_BxL))
    return x_NxD, layers[-1].attend(x_NxD, there_BxL)


class TransformerBody(nn.Module):
    """A body: from the input table and the tokens to hidden states (see
    `jaxtie.models.language_model`);
    `attend`, `finish`: text.

    Attributes:
      width, layers, heads, feedforward: sizes.
      independent_layers: draw each layer's initial values anew. PyTorch clones the first, and so it
        is by default.
      dtype: that the operands of matrix products are rounded to, for text.
    """

    width: int
    layers: int
    heads: int
    feedforward: int
    independent_layers: bool = False
    dtype: jax.typing.DTypeLike | None = None
    ordered: ClassVar[bool] = False

    def setup(self):
        sizes = self.width, self.heads, self.feedforward
        self.layer = [EncoderLayer(*sizes, dtype=self.dtype) for _ in range(self.layers)]

    def __call__(
        self, table_VxD: jax.Array, tokens_L: jax.Array, at_P: jax.Array, token_P: jax.Array
    ) -> jax.Array:
        vocabulary = table_VxD.shape[0]
        by_entry = vocabulary <= len(tokens_L)
        if by_entry:
            rows, weight = table_VxD, count_entries(tokens_L, vocabulary, table_VxD.dtype)
        else:
            rows, weight = table_VxD[tokens_L], jnp.ones(len(tokens_L), table_VxD.dtype)
        for layer in self.layer[:-1]:
            rows = layer(rows, rows, weight)
        h_PxD = self.layer[-1](pick(rows, token_P) if by_entry else rows[at_P], rows, weight)
        self._clone()
        return h_PxD

    def attend(self, rows_NxD: jax.Array, there_BxL: jax.Array) -> tuple[jax.Array, jax.Array]:
        """From sequences' rows of the input table, and which of them are tokens, to what `finish`
        takes of each; NxD.
        """
        return _attend(self.layer, rows_NxD, there_BxL)

    def finish(self, x_PxD: jax.Array, attended_PxD: jax.Array) -> jax.Array:
        """Hidden states of any positions."""
        h_PxD = self.layer[-1].finish(x_PxD, attended_PxD)
        self._clone()
        return h_PxD

    def _clone(self) -> None:
        if self.is_initializing() and not self.independent_layers:
            for name, value in self.layer[0].variables["params"].items():
                for layer in self.layer[1:]:
                    layer.put_variable("params", name, value)


class CausalTransformerBody(nn.Module):
    """A body for the next token: pre-norm, a final norm, layers drawn independently, branches that
    start near zero.

    Positions are rotary: they add nothing to what the tables give and have no parameters, so a
    fresh model hands on a token's embedding, normalised (what the initial loss of a tied one hangs
    on), and arms differ in their tables alone.

    Attributes:
      width, layers, heads, feedforward: sizes; width / heads must be even.
      branch_scale: see `EncoderLayer`.
      dtype: that the operands of matrix products are rounded to.
    """

    width: int
    layers: int
    heads: int
    feedforward: int
    branch_scale: float = 0.01
    dtype: jax.typing.DTypeLike | None = None
    ordered: ClassVar[bool] = True

    def setup(self):
        options = {
            "norm_first": True,
            "causal": True,
            "branch_scale": self.branch_scale,
            "dtype": self.dtype,
        }
        self.layer = [
            EncoderLayer(self.width, self.heads, self.feedforward, **options)
            for _ in range(self.layers)
        ]
        self.norm_weight = self.param("norm_weight", nn.initializers.ones, (self.width,))
        self.norm_bias = self.param("norm_bias", nn.initializers.zeros, (self.width,))

    def attend(self, rows_NxD: jax.Array, there_BxL: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `TransformerBody.attend`."""
        return _attend(self.layer, rows_NxD, there_BxL)

    def finish(self, x_PxD: jax.Array, attended_PxD: jax.Array) -> jax.Array:
        """See `TransformerBody.finish`."""
        return layer_norm(
            self.layer[-1].finish(x_PxD, attended_PxD), self.norm_weight, self.norm_bias
        )
