"""A plain model, its initial values, random parameters, a batch, and a comparison of trees."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from quickly import QUICK

from jaxtie.config import Body
from jaxtie.exor import data
from jaxtie.exor.config import Process
from jaxtie.models.language_model import MaskedLM, build_body
from jaxtie.training.task import stream
from jaxtie.tying.linen import Embedding

PROCESS = Process()
once = partial(
    jax.jit, compiler_options=QUICK
)  # what runs once takes longer to compile than to run


def build_model(sizes: Body, *, tied: bool, vocabulary: int = data.VOCABULARY) -> MaskedLM:
    """Return the plain model of EXor, or one with more words."""
    return MaskedLM(
        Embedding(vocabulary, sizes.width, tied, init_std=1.0), build_body(sizes), data.MASK
    )


def start(model: MaskedLM, key: jax.Array) -> dict:
    """Return fresh parameters."""
    return model.init(key, jnp.zeros(8, jnp.int32), jnp.zeros(1, jnp.int32))["params"]


def initial(sizes: Body, *, tied: bool, seeds: int) -> dict:
    """Return initial parameters of many seeds, flat."""
    model = build_model(sizes, tied=tied)
    keys = jax.random.split(jax.random.key(0), seeds)
    drawn = once(jax.vmap(partial(start, model)))(keys)
    return flatten_dict(jax.device_get(drawn), sep="/")


def random_params(sizes: Body) -> dict:
    """Return untied parameters, every leaf N(0, 1)."""
    model = build_model(sizes, tied=False)
    shapes = jax.eval_shape(partial(start, model), jax.random.key(0))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape)), shapes)


def sample() -> data.Batch:
    """Sample a third of the training strings."""
    bits = data.split(7, False, 14).train[::3]
    draw = once(lambda: data.sample(stream(14, 1), 0, bits, PROCESS.zeros, PROCESS.ones))
    return jax.device_get(draw())


def assert_close(ours, theirs, tolerance: float):
    """Compare every leaf; the tolerance is relative to its largest value, or to 1."""

    def assert_leaf(a, b):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1, np.abs(b).max()))

    jax.tree.map(assert_leaf, ours, theirs)
