"""What tests of the bodies share: their initial values, random parameters, a batch, comparison."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from jaxtie import sweep
from jaxtie.config import Body, Process
from jaxtie.data import exor

PROCESS = Process()
once = partial(jax.jit, compiler_options=sweep.ONCE["cpu"])  # of what runs once, compiling is what takes time


def initial(config: Body, *, tied: bool, seeds: int) -> dict:
    """Initial parameters, flat, of many seeds."""
    model = sweep.build_model(config, tied=tied)
    start = lambda key: model.init(key, jnp.zeros(8, jnp.int32), jnp.zeros(1, jnp.int32))["params"]
    drawn = once(jax.vmap(start))(jax.random.split(jax.random.key(0), seeds))
    return flatten_dict(jax.device_get(drawn), sep="/")


def random_params(config: Body) -> dict:
    model = sweep.build_model(config, tied=False)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros(8, jnp.int32), jnp.zeros(1, jnp.int32))["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape)), shapes)


def sample() -> exor.Batch:
    bits = exor.split(7, False, 14).train[::3]
    return jax.device_get(exor.sample(exor.stream(14, 1), 0, bits, PROCESS.zeros, PROCESS.ones))


def assert_close(ours, theirs, tolerance: float):
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1, np.abs(b).max()))
    jax.tree.map(close, ours, theirs)
