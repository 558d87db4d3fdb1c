"""MLP-Mixer (Tolstikhin et al. 2021) with ReLU and no final norm, at selected positions.

Shapes: R rows, L tokens, P positions, D width, V vocabulary, T and C hidden widths of the tokenwise
and the channelwise MLP.
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import flax.linen as nn
import jax

from jaxtie.models.layers import layer_norm, linear, select_rows, uniform

Selection = Callable[[jax.Array], jax.Array]


class MixerLayer(nn.Module):
    """x + tokenwise(LN(x)ᵀ)ᵀ, then x + channelwise(LN(x)): MLPs of two layers with biases."""

    tokenwise: int
    channelwise: int

    @nn.compact
    def __call__(
        self,
        rows_RxD: jax.Array,
        expand: Selection,
        x_PxD: jax.Array,
        select: Selection,
        length: int,
    ) -> jax.Array:
        """Return the layer's output at some positions.

        Args:
          rows_RxD: the layer's input, each distinct row once.
          expand: from values of these rows to values of all positions, Rx. -> Lx.
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
            bias = self.param(f"{name}_bias", nn.initializers.zeros, (width,))
            return layer_norm(x, weight, bias)

        weight_TxL, bias_T, weight_LxT, bias_L = mlp("tokenwise", length, self.tokenwise)
        hidden_TxD = jax.nn.relu(weight_TxL @ expand(norm("norm1", rows_RxD)) + bias_T[:, None])
        x_PxD = x_PxD + select(weight_LxT) @ hidden_TxD + select(bias_L[:, None])
        weight_CxD, bias_C, weight_DxC, bias_D = mlp("channelwise", width, self.channelwise)
        hidden_PxC = jax.nn.relu(linear(norm("norm2", x_PxD), weight_CxD, bias_C))
        return x_PxD + linear(hidden_PxC, weight_DxC, bias_D)


class MixerBody(nn.Module):
    """A body, see `jaxtie.models.language_model`, initialised for sequences of one length.

    If the vocabulary is no larger than the sequence is long, the first norm is applied to each row
    of the table once. The last layer's tokenwise output and channelwise MLP are computed at the
    selected positions only.
    """

    layers: int
    tokenwise: int
    channelwise: int
    ordered: ClassVar[bool] = True

    @nn.compact
    def __call__(
        self, table_VxD: jax.Array, tokens_L: jax.Array, at_P: jax.Array, token_P: jax.Array
    ) -> jax.Array:
        """Return the hidden states at `at_P`, PxD."""
        length = len(tokens_L)

        def keep(x: jax.Array) -> jax.Array:
            return x

        select = partial(select_rows, at_P=at_P)
        expand: Selection = keep
        layers = [
            MixerLayer(self.tokenwise, self.channelwise, name=f"layer_{i}")
            for i in range(self.layers)
        ]
        if table_VxD.shape[0] <= length:
            rows, expand = table_VxD, partial(select_rows, at_P=tokens_L)
        else:
            rows = table_VxD[tokens_L]
        for layer in layers[:-1]:
            rows, expand = layer(rows, expand, expand(rows), keep, length), keep
        x_PxD = select_rows(table_VxD, token_P) if rows is table_VxD else select(rows)
        return layers[-1](rows, expand, x_PxD, select, length)
