"""MLP-Mixer (Tolstikhin et al. 2021) with ReLU, at the positions that are asked for; no norm at the
end.

Shapes: R rows, L tokens, P positions asked for, D width, T and C hidden widths of the tokenwise and
the channelwise MLP.
"""

from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
import jax

from jaxtie.tying.head import layer_norm, linear, pick, uniform

Mapped = Callable[[jax.Array], jax.Array]


class MixerLayer(nn.Module):
    """x + tokenwise(LN(x)ᵀ)ᵀ, then x + channelwise(LN(x)); each an MLP of two layers, biases
    everywhere.
    """

    tokenwise: int
    channelwise: int

    @nn.compact
    def __call__(
        self, rows_RxD: jax.Array, place: Mapped, x_PxD: jax.Array, select: Mapped, length: int
    ) -> jax.Array:
        """The layer's output at some positions.

        Args:
          rows_RxD: what stands at the positions, be it once for several of them.
          place: from values of these rows to values of all positions, Rx. -> Lx.
          x_PxD: the layer's input at the positions of the output.
          select: from values of all positions to values of these, Lx. -> Px.
          length: L.
        """
        width = rows_RxD.shape[1]

        def mlp(name: str, outside: int, inside: int) -> tuple[jax.Array, ...]:
            first, second = uniform(outside**-0.5), uniform(inside**-0.5)
            return (
                self.param(f"{name}1_weight", first, (inside, outside)),
                self.param(f"{name}1_bias", first, (inside,)),
                self.param(f"{name}2_weight", second, (outside, inside)),
                self.param(f"{name}2_bias", second, (outside,)),
            )

        def norm(name: str, x: jax.Array) -> jax.Array:
            weight = self.param(f"{name}_weight", nn.initializers.ones, (width,))
            return layer_norm(
                x, weight, self.param(f"{name}_bias", nn.initializers.zeros, (width,))
            )

        weight_TxL, bias_T, weight_LxT, bias_L = mlp("tokenwise", length, self.tokenwise)
        hidden_TxD = jax.nn.relu(weight_TxL @ place(norm("norm1", rows_RxD)) + bias_T[:, None])
        x_PxD = x_PxD + select(weight_LxT) @ hidden_TxD + select(bias_L[:, None])
        weight_CxD, bias_C, weight_DxC, bias_D = mlp("channelwise", width, self.channelwise)
        hidden_PxC = jax.nn.relu(linear(norm("norm2", x_PxD), weight_CxD, bias_C))
        return x_PxD + linear(hidden_PxC, weight_DxC, bias_D)


class MixerBody(nn.Module):
    """A body: from the input table and the tokens to hidden states
    (see `jaxtie.models.language_model`).

    It is initialised for sequences of one length. The first norm meets each entry of the table once
    where the vocabulary is no larger than the sequence is long; the last layer's tokenwise output
    and channelwise MLP are computed at the positions asked for only.

    Attributes:
      layers, tokenwise, channelwise: sizes.
    """

    layers: int
    tokenwise: int
    channelwise: int
    ordered: ClassVar[bool] = True

    @nn.compact
    def __call__(
        self, table_VxD: jax.Array, tokens_L: jax.Array, at_P: jax.Array, token_P: jax.Array
    ) -> jax.Array:
        length = len(tokens_L)

        def same(x: jax.Array) -> jax.Array:
            return x

        def of_tokens(x: jax.Array) -> jax.Array:
            return pick(x, tokens_L)

        def asked_for(x: jax.Array) -> jax.Array:
            return pick(x, at_P)

        layers = [
            MixerLayer(self.tokenwise, self.channelwise, name=f"layer_{i}")
            for i in range(self.layers)
        ]
        by_entry = table_VxD.shape[0] <= length
        rows, place = (table_VxD, of_tokens) if by_entry else (table_VxD[tokens_L], same)
        for layer in layers[:-1]:
            rows, place = layer(rows, place, place(rows), same, length), same
        x_PxD = pick(table_VxD, token_P) if rows is table_VxD else asked_for(rows)
        return layers[-1](rows, place, x_PxD, asked_for, length)
