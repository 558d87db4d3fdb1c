"""Streams of random numbers: one for each seed, shared by its arms; what is drawn is a function of
stream and step.
"""

import jax
import numpy as np

from jaxtie.experiment import SEEDS

KEY_IMPLEMENTATION = "threefry2x32"


def stream(data_seed: int, seed: jax.typing.ArrayLike | None) -> jax.Array:
    """The key of a seed's own stream of samples, or with `seed` None of the stream that all share;
    uint32[2].
    """
    key = jax.random.key(data_seed, impl=KEY_IMPLEMENTATION)
    return jax.random.key_data(key if seed is None else jax.random.fold_in(key, seed))


def key_at(stream: jax.Array, step: jax.typing.ArrayLike) -> jax.Array:
    """The key of a stream's step."""
    return jax.random.fold_in(jax.random.wrap_key_data(stream, impl=KEY_IMPLEMENTATION), step)


def evaluation_stream(data_seed: int) -> np.ndarray:
    """The stream that evaluations draw from: of a seed and a step that training does not have;
    uint32[2].
    """
    key = jax.random.key(data_seed, impl=KEY_IMPLEMENTATION)
    for _ in range(2):
        key = jax.random.fold_in(key, np.uint32(SEEDS - 1))
    return np.asarray(jax.random.key_data(key))
