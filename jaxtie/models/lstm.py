"""PyTorch's bidirectional LSTM and a linear map, at the positions that are asked for.

Shapes: L tokens, P positions asked for, D width, H hidden width of a direction, I inputs, V
vocabulary.
"""

from collections.abc import Sequence
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxtie.tying.head import pick, uniform


def _sigmoid(x: jax.Array) -> jax.Array:
    """At the price of a tanh."""
    return 0.5 + 0.5 * jnp.tanh(0.5 * x)


@jax.custom_vjp
def _cell(gates_4xH: Sequence[jax.Array], c_H: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Output and cell state after gates i, f, g, o and the cell state before.

    The derivative by hand keeps what it needs and no more: all the steps' intermediates of a block
    are what fills a cache.
    """
    return _cell_forward(gates_4xH, c_H)[0]


def _cell_forward(gates_4xH, c_H):
    i, f, o = (_sigmoid(gates_4xH[gate]) for gate in (0, 1, 3))
    g = jnp.tanh(gates_4xH[2])
    new_c = f * c_H + i * g
    tanh_c = jnp.tanh(new_c)
    return (o * tanh_c, new_c), (i, f, g, o, c_H, tanh_c)


def _cell_backward(kept, cotangents):
    (i, f, g, o, c, tanh_c), (d_h, d_c) = kept, cotangents
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
    """Outputs LxH of one direction of a layer.

    Args:
      inputs, weights: what comes in, LxI each, and its weights, 4HxI each.
    """
    # A product for each gate and input, never a concatenation or its parts: these are copies that
    # cost as much.
    gates = list(zip(*(jnp.split(x, 4) for x in (bias_4H, *weights, recurrent_4HxH))))

    def step(carry, x):
        h, c = carry
        h, c = _cell([bias + sum(w @ y for w, y in zip(ws, (*x, h))) for bias, *ws in gates], c)
        return (h, c), h

    zeros_H = jnp.zeros_like(recurrent_4HxH[0])
    return jax.lax.scan(step, (zeros_H, zeros_H), tuple(inputs), reverse=reverse)[1]


def _both_directions(
    x_LxI: jax.Array, weight_2x4HxI: jax.Array, recurrent_2x4HxH: jax.Array, bias_2x4H: jax.Array
) -> jax.Array:
    """Outputs Lx2H of both directions of a layer, in few and large operations: what an accelerator
    wants.

    What comes in meets its weights at all positions in one product; then both directions make each
    step together, one from the left and one from the right. Steps are no loop: the compiler may put
    what stands between two products into one kernel.
    """
    forward_LxG, backward_LxG = jnp.einsum("li,dgi->dlg", x_LxI, weight_2x4HxI) + bias_2x4H[:, None]

    def step(carry, gates_2x4H):
        h_2xH, c_2xH = carry
        gates_2x4H = gates_2x4H + jnp.einsum("dgh,dh->dg", recurrent_2x4HxH, h_2xH)
        h_2xH, c_2xH = _cell(jnp.split(gates_2x4H, 4, axis=1), c_2xH)
        return (h_2xH, c_2xH), h_2xH

    zeros_2xH = jnp.zeros_like(recurrent_2x4HxH[:, 0])
    along = jnp.stack([forward_LxG, backward_LxG[::-1]], axis=1)
    _, h_Lx2xH = jax.lax.scan(step, (zeros_2xH, zeros_2xH), along, unroll=len(x_LxI))
    return jnp.concatenate([h_Lx2xH[:, 0], h_Lx2xH[::-1, 1]], axis=1)


class LSTMBody(nn.Module):
    """A body: from the input table and the tokens to hidden states
    (see `jaxtie.models.language_model`).

    `torch.nn.LSTM(bidirectional=True)`, its parameters by the same names, and `torch.nn.Linear` to
    the width of the table.

    Attributes:
      layers, hidden: sizes.
      accelerated: make few and large operations of it, of the same function; a CPU is faster with
        many small ones.
    """

    layers: int
    hidden: int
    accelerated: bool = False
    ordered: ClassVar[bool] = True

    @nn.compact
    def __call__(
        self, table_VxD: jax.Array, tokens_L: jax.Array, at_P: jax.Array, token_P: jax.Array
    ) -> jax.Array:
        (vocabulary, width), gates = table_VxD.shape, 4 * self.hidden
        inner, outer = uniform(self.hidden**-0.5), uniform((2 * self.hidden) ** -0.5)
        # the first weights meet each entry of the table once, not each token
        by_entry = vocabulary <= len(tokens_L)
        if by_entry:
            one_hot_LxV = jax.nn.one_hot(tokens_L, vocabulary, dtype=table_VxD.dtype)
            inputs = [jax.lax.optimization_barrier(one_hot_LxV)]  # else each use makes it again
        else:
            inputs = [table_VxD[tokens_L]]
        for layer in range(self.layers):
            directions = []
            for place in (f"_l{layer}", f"_l{layer}_reverse"):
                weight = self.param(
                    f"weight_ih{place}", inner, (gates, 2 * self.hidden if layer else width)
                )
                weight = weight if layer or not by_entry else weight @ table_VxD.T
                bias_4H = self.param(f"bias_ih{place}", inner, (gates,)) + self.param(
                    f"bias_hh{place}", inner, (gates,)
                )
                directions.append(
                    (weight, self.param(f"weight_hh{place}", inner, (gates, self.hidden)), bias_4H)
                )
            if self.accelerated:
                outputs_Lx2H = _both_directions(
                    jnp.concatenate(inputs, axis=1), *map(jnp.stack, zip(*directions))
                )
                inputs = jnp.split(outputs_Lx2H, 2, axis=1)
            else:
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
        h_PxD = sum(pick(x, at_P) @ w.T for x, w in zip(inputs, jnp.split(weight_Dx2H, 2, axis=1)))
        return h_PxD + self.param("linear_bias", outer, (width,))[None]
