"""Bidirectional LSTM with a linear output map, as in PyTorch, at selected positions.

Shapes: L tokens, P positions, D width, H hidden width of a direction, I inputs, V vocabulary.
"""

from collections.abc import Sequence
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxtie.models.layers import select_rows, uniform


def _sigmoid(x: jax.Array) -> jax.Array:
    """Compute the logistic function at the cost of a tanh."""
    return 0.5 + 0.5 * jnp.tanh(0.5 * x)


@jax.custom_vjp
def _cell(gates_4xH: Sequence[jax.Array], c_H: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return output and new cell state from gates i, f, g, o and the cell state.

    The handwritten derivative keeps no more than it needs: the intermediates of all steps of a
    block fill the cache.
    """
    return _cell_forward(gates_4xH, c_H)[0]


def _cell_forward(gates_4xH, c_H):
    i, f, o = (_sigmoid(gates_4xH[gate]) for gate in (0, 1, 3))
    g = jnp.tanh(gates_4xH[2])
    new_c = f * c_H + i * g
    tanh_c = jnp.tanh(new_c)
    return (o * tanh_c, new_c), (i, f, g, o, c_H, tanh_c)


def _cell_backward(residuals, cotangents):
    (i, f, g, o, c, tanh_c), (d_h, d_c) = residuals, cotangents
    d_c = d_c + d_h * o * (1 - tanh_c**2)
    d_gates = [
        d_c * g * i * (1 - i),
        d_c * c * f * (1 - f),
        d_c * i * (1 - g**2),
        d_h * tanh_c * o * (1 - o),
    ]
    return d_gates, d_c * f


_cell.defvjp(_cell_forward, _cell_backward)


def _direction(
    inputs: Sequence[jax.Array],
    weights: Sequence[jax.Array],
    recurrent_4HxH: jax.Array,
    bias_4H: jax.Array,
    *,
    reverse: bool,
) -> jax.Array:
    """Return the outputs LxH of one direction for inputs LxI with weights 4HxI."""
    # One product per gate and input: concatenating or splitting would copy, which costs as much.
    gates = list(zip(*(jnp.split(x, 4) for x in (bias_4H, *weights, recurrent_4HxH))))

    def step(carry, x):
        h, c = carry
        h, c = _cell([bias + sum(w @ y for w, y in zip(ws, (*x, h))) for bias, *ws in gates], c)
        return (h, c), h

    zeros_H = jnp.zeros_like(recurrent_4HxH[0])
    return jax.lax.scan(step, (zeros_H, zeros_H), tuple(inputs), reverse=reverse)[1]


class LSTMBody(nn.Module):
    """A body, see `jaxtie.models.language_model`: an LSTM and a linear map to the table's width.

    `torch.nn.LSTM(bidirectional=True)`, with the same parameter names, and `torch.nn.Linear`.
    """

    layers: int
    hidden: int
    ordered: ClassVar[bool] = True

    @nn.compact
    def __call__(
        self, table_VxD: jax.Array, tokens_L: jax.Array, at_P: jax.Array, token_P: jax.Array
    ) -> jax.Array:
        """Return the hidden states at `at_P`, PxD."""
        (vocabulary, width), gates = table_VxD.shape, 4 * self.hidden
        inner, outer = uniform(self.hidden**-0.5), uniform((2 * self.hidden) ** -0.5)
        # apply the first weights to each row of the table instead of to each token
        by_row = vocabulary <= len(tokens_L)
        if by_row:
            one_hot_LxV = jax.nn.one_hot(tokens_L, vocabulary, dtype=table_VxD.dtype)
            inputs = [jax.lax.optimization_barrier(one_hot_LxV)]  # else each use computes it again
        else:
            inputs = [table_VxD[tokens_L]]
        for layer in range(self.layers):
            directions = []
            for place in (f"_l{layer}", f"_l{layer}_reverse"):
                weight = self.param(
                    f"weight_ih{place}", inner, (gates, 2 * self.hidden if layer else width)
                )
                weight = weight if layer or not by_row else weight @ table_VxD.T
                bias_ih = self.param(f"bias_ih{place}", inner, (gates,))
                bias_4H = bias_ih + self.param(f"bias_hh{place}", inner, (gates,))
                recurrent = self.param(f"weight_hh{place}", inner, (gates, self.hidden))
                directions.append((weight, recurrent, bias_4H))
            inputs = [
                _direction(
                    inputs,
                    jnp.split(weight, 2, axis=1) if layer else [weight],
                    *own,
                    reverse=reverse,
                )
                for reverse, (weight, *own) in zip((False, True), directions)
            ]
        weight_Dx2H = self.param("linear_weight", outer, (width, 2 * self.hidden))
        weights = jnp.split(weight_Dx2H, 2, axis=1)
        h_PxD = sum(select_rows(x, at_P) @ w.T for x, w in zip(inputs, weights))
        return h_PxD + self.param("linear_bias", outer, (width,))[None]
