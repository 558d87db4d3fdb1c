"""What can be done to hidden states before the output table: coordinates in another order, or a
projection.
"""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp


def half_swap(h_PxD: jax.Array) -> jax.Array:
    """(h_1 ... h_D) -> (h_D/2+1 ... h_D, h_1 ... h_D/2). A random vector and its half swap are
    nearly orthogonal.

    Proposed in kexue.fm/archives/9698. ValueError if D is odd.
    """
    return jnp.roll(h_PxD, _divide(h_PxD.shape[-1], 2), axis=-1)


def channel_shuffle(h_PxD: jax.Array, groups: int = 2) -> jax.Array:
    """The coordinates of every vector laid out as groups x D/groups, transposed and in a row again
    (ShuffleNet, CVPR 2018).

    1 + gcd(groups - 1, D - 1) coordinates stay where they are: 2 with 2 groups, but 8 of 64 with 8.
    ValueError if `groups` does not divide D.
    """
    width = h_PxD.shape[-1]
    grouped = h_PxD.reshape(*h_PxD.shape[:-1], groups, _divide(width, groups))
    return jnp.swapaxes(grouped, -1, -2).reshape(h_PxD.shape)


def _divide(width: int, groups: int) -> int:
    if width % groups:
        raise ValueError(
            f"the width is {width}; expected a multiple of {groups}, to take the coordinates apart"
        )
    return width // groups


@dataclasses.dataclass(frozen=True)
class Projection:
    """h -> norm(activation(h·P + b)), P orthogonal (DxD) at the start; with all three, the head of
    BERT (2018).

    Attributes:
      bias: learn b, 0 at the start.
      activation: a function of each coordinate.
      norm: layer norm with learned weight and bias, 1 and 0 at the start.
      eps: of the norm; 1e-12 is BERT's.
    """

    bias: bool = False
    activation: Callable[[jax.Array], jax.Array] | None = None
    norm: bool = False
    eps: float = 1e-12

    def init(
        self, key: jax.Array, width: int, dtype: jax.typing.DTypeLike = jnp.float32
    ) -> dict[str, jax.Array]:
        """Initial values: `weight` DxD and, where there are, `bias`, `norm_weight`, `norm_bias`,
        each D.
        """
        params = {"weight": nn.initializers.orthogonal()(key, (width, width), dtype)}
        if self.bias:
            params["bias"] = jnp.zeros(width, dtype)
        if self.norm:
            params |= {"norm_weight": jnp.ones(width, dtype), "norm_bias": jnp.zeros(width, dtype)}
        return params

    def apply(self, params: dict[str, jax.Array], h_PxD: jax.Array) -> jax.Array:
        """Hidden states projected, PxD."""

        def of_each(name: str) -> jax.Array:
            return params[name].reshape((1,) * (h_PxD.ndim - 1) + (-1,))

        h_PxD = h_PxD @ params["weight"]
        if self.bias:
            h_PxD = h_PxD + of_each("bias")
        if self.activation:
            h_PxD = self.activation(h_PxD)
        if self.norm:
            mean, variance = (of(h_PxD, axis=-1, keepdims=True) for of in (jnp.mean, jnp.var))
            h_PxD = (h_PxD - mean) * jax.lax.rsqrt(variance + self.eps) * of_each(
                "norm_weight"
            ) + of_each("norm_bias")
        return h_PxD
