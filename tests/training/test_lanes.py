"""`lanes` computes what `vmap` computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import PROCESS, build_model, once, start
from draws import draws
from random_programs import random_program

from jaxtie.config import LSTM, Arm, Mixer, Transformer
from jaxtie.exor import data
from jaxtie.exor.task import loss_and_accuracy
from jaxtie.training.lanes import lanes
from jaxtie.training.task import stream
from jaxtie.tying.linen import make_embedding

MEMBERS = 5


def random(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal((*shape, MEMBERS))) for shape in shapes]


def assert_as_vmap(f, *arguments, rtol=1e-12, kept_apart=(True,)):
    ways = jax.vmap(f, in_axes=-1, out_axes=-1), *(lanes(f, kept_apart=each) for each in kept_apart)
    expected, *found = once(lambda *arrays: [way(*arrays) for way in ways])(*arguments)
    for each in found:
        for got, want in zip(*map(jax.tree.leaves, (each, expected)), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


FUNCTIONS = {
    "short contraction": (lambda a, b: a @ b, (3, 4), (4, 5)),
    "long contraction": (lambda a, b: a @ b, (3, 114), (114, 5)),
    "contraction of the left's first axis": (lambda a, b: a.T @ b, (114, 3), (114, 5)),
    "contraction over several axes": (
        lambda a, b: jnp.einsum("bpd,bpf->df", a, b),
        (10, 3, 4),
        (10, 3, 5),
    ),
    "axes in another order": (lambda a, b: jnp.einsum("bpd,pbf->df", a, b), (10, 3, 4), (3, 10, 5)),
    "batched contraction": (lambda a, b: jnp.einsum("phe,rhe->phr", a, b), (2, 3, 4), (6, 3, 4)),
    "outer product": (lambda a, b: jnp.einsum("i,j->ij", a, b), (3,), (4,)),
    "long sums": (lambda a: (a.sum(0), a.sum(1), a.sum()), (30, 50)),
    "extremes": (lambda a: (a.max(1), a.min(0), jnp.argmax(a, 1)), (20, 4)),
    "pad and concatenate": (
        lambda a: jnp.pad(jnp.concatenate([a, 2 * a[:1]]), ((1, 2), (0, 1))),
        (3, 4),
    ),
    "without a rule": (
        lambda a: (jnp.sort(a, 0), jnp.cumprod(a, 1), a[jnp.argmax(a[:, 0])]),
        (6, 4),
    ),
    "rare forms": (
        lambda a, b: (
            jax.lax.pad(a, b[0], ((1, 2, 0), (0, 1, 0))),
            jax.lax.reshape(a, (12,), dimensions=(1, 0)),
        ),
        (3, 4),
        (2,),
    ),
    "a custom derivative of what is not mapped": (
        lambda a: (a * jax.nn.relu(jnp.arange(4.0) - 1), jax.nn.logsumexp(jnp.arange(3.0))),
        (4,),
    ),
    "sums of nothing": (
        lambda a: (
            a.sum(1),
            a @ a.T,
            jax.lax.reduce_max_p.bind(a, axes=(1,), out_sharding=None),
            jnp.einsum("ij,ij->i", a, a),
        ),
        (3, 0),
    ),
    "integers that overflow before they are widened": (
        lambda a: jax.lax.dot_general(
            *[jnp.floor(100 * a).astype(jnp.int8)] * 2,
            (((0,), (0,)), ((), ())),
            preferred_element_type=jnp.int32,
        ),
        (12,),
    ),
    "a contraction with a number": (
        lambda a: jax.lax.dot_general(2.0, a, (((), ()), ((), ()))),
        (),
    ),
    "a carry that starts unmapped": (
        lambda a: jax.lax.scan(lambda c, x: (c + x, c * x), jnp.zeros(4), a),
        (3, 4),
    ),
    "no use of the argument": (lambda a: jnp.arange(3.0), (2,)),
    "conditional": (lambda a: jax.lax.cond(a[0] > 0, jnp.sin, jnp.cos, a), (4,)),
    "backwards": (
        lambda a, b: jax.lax.scan(lambda c, x: (c * x[0] + x[1], c), a[0], (a, b), reverse=True),
        (5, 3),
        (5, 3),
    ),
    "gradient through a scan": (
        jax.grad(
            lambda a, w: jnp.sum(
                jax.lax.scan(lambda h, x: (jnp.tanh(w @ h + x), h), a[0], a)[1] ** 2
            ),
            argnums=(0, 1),
        ),
        (5, 3),
        (3, 3),
    ),
    "gradient": (
        jax.grad(lambda a: jnp.sum(jax.nn.softmax(a @ a.T) * jax.nn.gelu(a @ a.T))),
        (4, 4),
    ),
}


@pytest.mark.parametrize("f_and_shapes", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_lanes_is_vmap(f_and_shapes, x64):
    f, *shapes = f_and_shapes
    assert_as_vmap(f, *random(*shapes))


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(first, first + 10), marks=[pytest.mark.slow] * (first > 0))
        for first in range(0, draws(30), 10)
    ],
    ids=str,
)
def test_random_programs_are_those_of_vmap(seeds, x64):
    """Of what `lanes` know and do not know; see `random_programs`."""
    for seed in seeds:
        try:
            assert_as_vmap(*random_program(seed), rtol=1e-9, kept_apart=(True, False))
        except Exception as error:
            raise AssertionError(f"random_program({seed})") from error


def test_types_are_promoted_as_by_vmap():
    """A number of Python takes the type of the other operand, also as an argument."""
    weak = jnp.broadcast_to(2.0, MEMBERS)
    assert weak.weak_type
    assert_as_vmap(lambda x: x * jnp.float16(3), weak)


def test_closed_over_arrays_are_not_mapped(x64):
    (a,), shared = random((3, 4)), jnp.arange(20.0).reshape(4, 5)
    assert_as_vmap(lambda a: (a @ shared, shared.sum()), a)


@pytest.mark.parametrize(
    ("config", "tied"),
    [
        pytest.param(Transformer(), True, marks=pytest.mark.slow),
        (Transformer(layers=2, heads=2, width=8, feedforward=12), False),
        pytest.param(LSTM(layers=1), True, marks=pytest.mark.slow),
        pytest.param(Mixer(), False, marks=pytest.mark.slow),
    ],
)
def test_samples_loss_and_gradients_are_those_of_vmap(config, tied, x64):
    model = build_model(config, tied=tied)
    bits = data.split(7, False, 14).train

    initial = jax.vmap(lambda seed: start(model, jax.random.key(seed)), out_axes=-1)
    params = once(initial)(jnp.arange(MEMBERS))
    params = jax.tree.map(lambda x: x.astype(jnp.float64), params)
    streams = jax.vmap(lambda seed: stream(14, seed), out_axes=-1)(jnp.arange(MEMBERS))

    def member(params, own_stream):
        batch = data.sample(own_stream, 7, bits, PROCESS.zeros, PROCESS.ones)
        return batch, jax.value_and_grad(
            lambda p: loss_and_accuracy(model, p, batch), has_aux=True
        )(params)

    assert_as_vmap(member, params, streams)


@pytest.mark.parametrize(
    "arm",
    [
        "tied+bert-head+bias+logit-softcap=3+logit-scale=1-by-root-D+input-scale=root-D",
        "untied+shuffle+input-gradient=0+output-gradient=0.5",
        "tied+half-swap+output-gradient=0",
    ],
)
def test_heads_are_those_of_vmap(arm, x64):
    """Of the embedding alone, without a body."""
    arm = Arm.parse(arm)
    embedding = make_embedding(arm.head, 7, 4, tied=arm.tied)
    shapes = jax.eval_shape(embedding.init, jax.random.key(0), 0)["params"]
    leaves, tree = jax.tree.flatten(shapes)

    def loss(params):
        logits = embedding.apply({"params": params}, jnp.tanh(params["input"][:5]), method="logits")
        return jnp.sum(
            jnp.sin(logits + embedding.apply({"params": params}, method="table")[:5, :1])
        )

    assert_as_vmap(
        jax.value_and_grad(loss), tree.unflatten(random(*(leaf.shape for leaf in leaves)))
    )


def test_axes_of_different_sizes_are_refused():
    with pytest.raises(ValueError, match=r"one size, found \[2, 3\]"):
        lanes(jnp.add)(jnp.ones((4, 2)), jnp.ones((4, 3)))
