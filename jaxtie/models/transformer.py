"""Post-norm encoder without positions, as in PyTorch; pre-norm causal transformer; decoder.

Without positions, only the number of times that each token occurs matters. If the vocabulary is no
larger than the sequence is long, as for EXor, a sequence is therefore given as the whole vocabulary
with counts: keys, queries and values are projected once per row of the table instead of once per
token and, in the first layer, once per batch. Both are exact.

For text, a body has two parts: `attend`, up to the attention of the last layer, and `finish`, the
rest of that layer (three quarters of its work), at selected positions only. Both take the rows of
all sequences at once, so that the gradient of the weights is one product.

Shapes: R rows, P selected rows, B sequences of L tokens, N = B·L, D width, F feed-forward width,
H heads, E = D / H.
"""

from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxtie.models.layers import count_tokens, layer_norm, linear, rms_norm, select_rows, uniform
from jaxtie.tying.head import gelu, matmul


def _attention(
    q_PxHxE: jax.Array, k_RxHxE: jax.Array, v_RxHxE: jax.Array, weight_R: jax.Array
) -> jax.Array:
    """Compute scaled dot-product attention to rows that occur `weight_R` times each; PxHxE."""
    score = jnp.einsum("phe,rhe->phr", q_PxHxE, k_RxHxE) / q_PxHxE.shape[-1] ** 0.5
    weight = jnp.broadcast_to(weight_R[None, None], score.shape)
    score = jnp.where(weight > 0, score, -jnp.inf)
    mass = weight * jnp.exp(score - jax.lax.stop_gradient(jnp.max(score, axis=-1, keepdims=True)))
    return jnp.einsum("phr,rhe->phe", mass / jnp.sum(mass, axis=-1, keepdims=True), v_RxHxE)


def _attention_weights(q_HxPxE: jax.Array, k_HxRxE: jax.Array, there_PxR: jax.Array) -> jax.Array:
    score = jnp.einsum(
        "hpe,hre->hpr",
        q_HxPxE,
        k_HxRxE,
        preferred_element_type=jnp.promote_types(q_HxPxE.dtype, jnp.float32),
    )
    # finite, so that a row of padding only attends to all of it equally and gives no NaN
    score = jnp.where(
        there_PxR[None], score * q_HxPxE.shape[-1] ** -0.5, jnp.finfo(score.dtype).min
    )
    mass = jnp.exp(score - jnp.max(score, axis=-1, keepdims=True))
    return mass / jnp.sum(mass, axis=-1, keepdims=True)


@jax.custom_vjp
def masked_attention(
    q_HxPxE: jax.Array, k_HxRxE: jax.Array, v_HxRxE: jax.Array, there_PxR: jax.Array
) -> jax.Array:
    """Compute scaled dot-product attention to the rows that are there (1xR: for all); HxPxE.

    Heads come first and the derivative is handwritten, which halves the time on a CPU at 64 tokens.
    The backward pass computes the weights, HxPxR, again: those of a batch would fill the memory.
    Products have the operands' dtype, sums and weights at least float32.
    """
    weight_HxPxR = _attention_weights(q_HxPxE, k_HxRxE, there_PxR)
    return jnp.einsum(
        "hpr,hre->hpe",
        weight_HxPxR.astype(v_HxRxE.dtype),
        v_HxRxE,
        preferred_element_type=weight_HxPxR.dtype,
    )


def _attention_forward(*arguments):
    return masked_attention(*arguments), arguments


def _attention_backward(arguments, d_out):
    q, k, v, there_PxR = arguments
    weight = _attention_weights(q, k, there_PxR)

    def product(form: str, a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.einsum(
            form, a.astype(q.dtype), b.astype(q.dtype), preferred_element_type=weight.dtype
        )

    d_weight = product("hpe,hre->hpr", d_out, v)
    centred = d_weight - jnp.sum(d_weight * weight, axis=-1, keepdims=True)
    d_score = weight * centred * q.shape[-1] ** -0.5
    d_q, d_k = product("hpr,hre->hpe", d_score, k), product("hpr,hpe->hre", d_score, q)
    return *(d.astype(q.dtype) for d in (d_q, d_k, product("hpr,hpe->hre", weight, d_out))), None


masked_attention.defvjp(_attention_forward, _attention_backward)


def _rotate(x_HxLxE: jax.Array) -> jax.Array:
    """Apply rotary positions (Su et al. 2021): turn (i, i + E/2) by position · 10,000^(-2i/E)."""
    length, width = x_HxLxE.shape[1:]
    frequency = 10_000.0 ** (-jnp.arange(0, width, 2) / width)
    angle_1xLxhalf = (jnp.arange(length)[:, None] * frequency[None])[None]
    cos, sin = (of(angle_1xLxhalf).astype(x_HxLxE.dtype) for of in (jnp.cos, jnp.sin))
    a, b = jnp.split(x_HxLxE, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def causal_attention(qkv_3xHxLxE: jax.Array, there_L: jax.Array) -> jax.Array:
    """Attend to earlier tokens of one sequence that are there, with rotary positions; HxLxE."""
    q, k, v = qkv_3xHxLxE
    return masked_attention(
        _rotate(q), _rotate(k), v, there_L[None] & jnp.tri(len(there_L), dtype=bool)
    )


def attend_by_heads(
    qkv_Nx3D: jax.Array,
    there_BxL: jax.Array,
    heads: int,
    attend: Callable[[jax.Array, jax.Array], jax.Array],
) -> jax.Array:
    """Return what `attend` makes of each sequence, (3xHxLxE, L) -> HxLxE, as rows NxD."""
    batch, length = there_BxL.shape
    qkv = jnp.transpose(qkv_Nx3D.reshape(batch, length, 3, heads, -1), (0, 2, 3, 1, 4))
    return jnp.swapaxes(jax.vmap(attend)(qkv, there_BxL), 1, 2).reshape(batch * length, -1)


def _attend_to_all(qkv_3xHxLxE: jax.Array, there_L: jax.Array) -> jax.Array:
    return masked_attention(*qkv_3xHxLxE, there_L[None])


class EncoderLayer(nn.Module):
    """`torch.nn.TransformerEncoderLayer` (exact GELU, no dropout), with its parameter names.

    Attributes:
      causal: no token attends to later ones; queries and keys have rotary positions (`attend`
        only); a norm is before each branch instead of after it.
      branch_scale: factor of PyTorch's initial values for the last weights of each branch.
      dtype: round the operands of matrix products to it, see `jaxtie.tying.head.matmul`.
    """

    width: int
    heads: int
    feedforward: int
    causal: bool = False
    branch_scale: float = 1.0
    dtype: jax.typing.DTypeLike | None = None

    def setup(self) -> None:
        """Create the parameters, whose order determines their initial values."""
        width, feedforward = self.width, self.feedforward
        zeros, ones = nn.initializers.zeros, nn.initializers.ones
        inner, outer = uniform(width**-0.5), uniform(self.branch_scale * feedforward**-0.5)

        def pair(name: str, weight, bias, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
            weights = self.param(f"{name}_weight", weight, shape)
            return weights, self.param(f"{name}_bias", bias, shape[:1])

        # Xavier-uniform over the whole 3DxD matrix, as in PyTorch
        xavier, attention_end = uniform((6 / (4 * width)) ** 0.5), self.branch_scale * width**-0.5
        self.in_proj = pair("in_proj", xavier, zeros, (3 * width, width))
        self.out_proj = pair("out_proj", uniform(attention_end), zeros, (width, width))
        self.norm1 = pair("norm1", ones, zeros, (width,))
        self.linear1 = pair("linear1", inner, inner, (feedforward, width))
        self.linear2 = pair("linear2", outer, outer, (width, feedforward))
        self.norm2 = pair("norm2", ones, zeros, (width,))

    def __call__(
        self,
        x_PxD: jax.Array,
        rows_RxD: jax.Array,
        weight_R: jax.Array,
        residual_PxD: jax.Array | None = None,
    ) -> jax.Array:
        """Return the layer's output at rows `x_PxD`; they attend to `rows_RxD` with counts.

        Attention is added to `residual_PxD` instead of `x_PxD`, if given.
        """
        (w_q, w_k, w_v), (b_q, b_k, b_v) = (jnp.split(part, 3) for part in self.in_proj)

        def split(y_RxD: jax.Array) -> jax.Array:
            return y_RxD.reshape(y_RxD.shape[0], self.heads, self.width // self.heads)

        attended = _attention(
            split(linear(x_PxD, w_q, b_q)),
            split(linear(rows_RxD, w_k, b_k)),
            split(linear(rows_RxD, w_v, b_v)),
            weight_R,
        )
        residual_PxD = x_PxD if residual_PxD is None else residual_PxD
        return self.finish(residual_PxD, attended.reshape(x_PxD.shape))

    def attend(self, x_NxD: jax.Array, there_BxL: jax.Array) -> jax.Array:
        """Return the output of attention before its projection; NxD."""
        rows_NxD = layer_norm(x_NxD, *self.norm1) if self.causal else x_NxD
        qkv = linear(rows_NxD, *self.in_proj, self.dtype).astype(self.dtype or x_NxD.dtype)
        attend = causal_attention if self.causal else _attend_to_all
        return attend_by_heads(qkv, there_BxL, self.heads, attend).astype(x_NxD.dtype)

    def finish(self, x_PxD: jax.Array, attended_PxD: jax.Array) -> jax.Array:
        """Return the layer's output from its input and the output of attention, row by row."""
        h = x_PxD + linear(attended_PxD, *self.out_proj, self.dtype)
        if not self.causal:
            h = layer_norm(h, *self.norm1)
        rows = layer_norm(h, *self.norm2) if self.causal else h
        hidden = gelu(linear(rows, *self.linear1, self.dtype))
        hidden = linear(hidden, *self.linear2, self.dtype)
        return h + hidden if self.causal else layer_norm(h + hidden, *self.norm2)


class _Encoder(nn.Module):
    """A body of layers."""

    width: int
    layers: int
    heads: int
    feedforward: int

    def attend(self, rows_NxD: jax.Array, there_BxL: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the two arguments of `finish` at all positions, NxD each.

        Args:
          rows_NxD: embeddings of the tokens.
          there_BxL: which of them are tokens, not padding.
        """
        for layer in self.layer[:-1]:
            rows_NxD = layer.finish(rows_NxD, layer.attend(rows_NxD, there_BxL))
        return rows_NxD, self.layer[-1].attend(rows_NxD, there_BxL)


class TransformerBody(_Encoder):
    """A body, see `jaxtie.models.language_model`: PyTorch's encoder without positions.

    Its parameters may hold `residual`, a table VxD that is read on the residual path of the first
    layer; its queries, keys and values are then still those of the input table.

    Attributes:
      independent_layers: draw each layer's initial values separately instead of cloning the first
        layer as PyTorch does.
      dtype: round the operands of matrix products to it, for text.
    """

    independent_layers: bool = False
    dtype: jax.typing.DTypeLike | None = None
    ordered: ClassVar[bool] = False

    def setup(self) -> None:
        """Create the layers."""
        sizes = self.width, self.heads, self.feedforward
        self.layer = [EncoderLayer(*sizes, dtype=self.dtype) for _ in range(self.layers)]

    def __call__(
        self, table_VxD: jax.Array, tokens_L: jax.Array, at_P: jax.Array, token_P: jax.Array
    ) -> jax.Array:
        """Return the hidden states at `at_P`, PxD."""
        vocabulary = table_VxD.shape[0]
        by_row = vocabulary <= len(tokens_L)
        if by_row:
            rows, weight = table_VxD, count_tokens(tokens_L, vocabulary, table_VxD.dtype)
        else:
            rows, weight = table_VxD[tokens_L], jnp.ones(len(tokens_L), table_VxD.dtype)
        residual: jax.Array | None = None
        if self.has_variable("params", "residual"):
            residual = self.get_variable("params", "residual")
            residual = residual if by_row else residual[tokens_L]

        def select(rows: jax.Array) -> jax.Array:
            return select_rows(rows, token_P) if by_row else rows[at_P]

        for layer in self.layer[:-1]:
            rows, residual = layer(rows, rows, weight, residual), None
        own = None if residual is None else select(residual)
        h_PxD = self.layer[-1](select(rows), rows, weight, own)
        self._clone()
        return h_PxD

    def finish(self, x_PxD: jax.Array, attended_PxD: jax.Array) -> jax.Array:
        """Return the hidden states of any positions."""
        h_PxD = self.layer[-1].finish(x_PxD, attended_PxD)
        self._clone()
        return h_PxD

    def _clone(self) -> None:
        if self.is_initializing() and not self.independent_layers:
            for name, value in self.layer[0].variables["params"].items():
                for layer in self.layer[1:]:
                    layer.put_variable("params", name, value)


class CausalTransformerBody(_Encoder):
    """A body for the next token: pre-norm, final norm, branches that start near zero.

    Rotary positions add nothing to the embeddings and have no parameters. So a fresh model passes
    on the normalised embedding, on which the initial loss of a tied model depends, and arms differ
    in their tables only. `width / heads` must be even. Attributes: see `EncoderLayer`.
    """

    branch_scale: float = 0.01
    dtype: jax.typing.DTypeLike | None = None
    ordered: ClassVar[bool] = True

    def setup(self) -> None:
        """Create the layers."""
        sizes = self.width, self.heads, self.feedforward
        self.layer = [
            EncoderLayer(*sizes, True, self.branch_scale, self.dtype) for _ in range(self.layers)
        ]
        self.norm_weight = self.param("norm_weight", nn.initializers.ones, (self.width,))
        self.norm_bias = self.param("norm_bias", nn.initializers.zeros, (self.width,))

    def finish(self, x_PxD: jax.Array, attended_PxD: jax.Array) -> jax.Array:
        """Return the hidden states of any positions."""
        h_PxD = self.layer[-1].finish(x_PxD, attended_PxD)
        return layer_norm(h_PxD, self.norm_weight, self.norm_bias)


class DecoderLayer(nn.Module):
    """A layer of LLaMA (Touvron et al. 2023): RMSNorm first, rotary positions, no biases.

    Weights start from N(0, std²), the last ones of both branches from N(0, end_std²).

    Attributes:
      gated: SwiGLU; otherwise exact GELU.
      std, end_std: of the initial weights.
      dtype: round the operands of matrix products to it, see `jaxtie.tying.head.matmul`.
    """

    width: int
    heads: int
    feedforward: int
    gated: bool
    std: float
    end_std: float
    dtype: jax.typing.DTypeLike | None = None

    def setup(self) -> None:
        """Create the parameters."""
        width, hidden = self.width, self.feedforward
        ones, normal = nn.initializers.ones, nn.initializers.normal
        self.norm1 = self.param("norm1_weight", ones, (width,))
        self.qkv = self.param("qkv_weight", normal(self.std), (3 * width, width))
        self.out = self.param("out_weight", normal(self.end_std), (width, width))
        self.norm2 = self.param("norm2_weight", ones, (width,))
        inner = (2 * hidden if self.gated else hidden, width)
        self.up = self.param("up_weight", normal(self.std), inner)  # of a gate: its rows first
        self.down = self.param("down_weight", normal(self.end_std), (width, hidden))

    def attend(self, x_NxD: jax.Array, there_BxL: jax.Array) -> jax.Array:
        """Return the output of attention before its projection; NxD."""
        dtype = self.dtype or x_NxD.dtype
        qkv = matmul(rms_norm(x_NxD, self.norm1), self.qkv, dtype).astype(dtype)
        attended = attend_by_heads(qkv, there_BxL, self.heads, causal_attention)
        return attended.astype(x_NxD.dtype)

    def finish(self, x_PxD: jax.Array, attended_PxD: jax.Array) -> jax.Array:
        """Return the layer's output from its input and the output of attention, row by row."""
        dtype = self.dtype or x_PxD.dtype
        h = x_PxD + matmul(attended_PxD, self.out, dtype)
        hidden = matmul(rms_norm(h, self.norm2), self.up, dtype)
        if self.gated:
            gate, hidden = jnp.split(hidden, 2, axis=-1)
            hidden = nn.silu(gate) * hidden
        else:
            hidden = gelu(hidden)
        return h + matmul(hidden, self.down, dtype)


class DecoderBody(_Encoder):
    """A body for the next token, of `DecoderLayer`s; `width / heads` must be even."""

    gated: bool = True
    std: float = 0.02
    end_std: float = 0.02
    dtype: jax.typing.DTypeLike | None = None
    ordered: ClassVar[bool] = True

    def setup(self) -> None:
        """Create the layers."""
        own = self.width, self.heads, self.feedforward, self.gated, self.std, self.end_std
        self.layer = [DecoderLayer(*own, self.dtype) for _ in range(self.layers)]
        self.norm_weight = self.param("norm_weight", nn.initializers.ones, (self.width,))

    def finish(self, x_PxD: jax.Array, attended_PxD: jax.Array) -> jax.Array:
        """Return the hidden states of any positions."""
        return rms_norm(self.layer[-1].finish(x_PxD, attended_PxD), self.norm_weight)
