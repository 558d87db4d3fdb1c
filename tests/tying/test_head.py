"""Every head option by its formula, gradients by role, dtypes, a vocabulary split over a mesh."""

import math
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from scipy.special import erf

from jaxtie.config import size
from jaxtie.tying.head import Projection, channel_shuffle, half_swap, matmul, scale_gradient
from jaxtie.tying.linen import Embedding
from jaxtie.tying.tie import untie

V, D, P = 30, 12, 5
RNG = np.random.default_rng(0)
TABLE, OTHER = RNG.standard_normal((2, V, D))
HIDDEN = RNG.standard_normal((P, D))
TOKENS = np.array([3, 0, 29, 3, 7])


def logits(tree, hidden=HIDDEN, **options):
    return Embedding(V, D, **options).apply({"params": tree}, hidden, method="logits")


def gelu(x):
    return x * (1 + erf(x / math.sqrt(2))) / 2


SCALES = {
    None: 1,
    3.5: 3.5,
    "sqrt(D)": math.sqrt(D),
    "1/sqrt(D)": 1 / math.sqrt(D),
    "log(n)/D": math.log(V) / D,
}


@pytest.mark.parametrize("scale", SCALES)
def test_scales(scale, x64):
    bound = Embedding(V, D, input_scale=scale).bind({"params": {"input": TABLE, "output": OTHER}})
    expected = np.stack([TABLE[token] for token in TOKENS]) * SCALES[scale]
    np.testing.assert_allclose(bound(TOKENS), expected, rtol=1e-14)
    np.testing.assert_allclose(bound.table(), TABLE * SCALES[scale], rtol=1e-14)
    for tree, output in (({"input": TABLE}, TABLE), ({"input": TABLE, "output": OTHER}, OTHER)):
        # a scale of the input is not one of the output
        scaled = logits(tree, logit_scale=scale, input_scale=7)
        np.testing.assert_allclose(
            scaled, np.einsum("pd,vd->pv", HIDDEN, output) * SCALES[scale], rtol=1e-12
        )


STDS = {1.0: 1, 0.02: 0.02, "1/sqrt(D)": 64**-0.5, "log(n)/D": math.log(3000) / 64}


@pytest.mark.parametrize(("init_std", "expected"), STDS.items())
def test_init_std(init_std, expected):
    params = Embedding(3000, 64, init_std=init_std).init(jax.random.key(0), 0)["params"]
    for table in params.values():
        assert np.std(table) == pytest.approx(expected, rel=0.01)
        assert abs(np.mean(table)) < 0.01 * expected
    assert not np.array_equal(*params.values())


@pytest.mark.parametrize("cap", [None, 2.0, 30.0])
def test_bias_then_cap(cap, x64):
    bias = RNG.standard_normal(V)
    expected = np.einsum("pd,vd->pv", HIDDEN, TABLE) / math.sqrt(D) + bias
    if cap:
        expected = cap * np.tanh(expected / cap)
    options = {"bias": True, "logit_scale": "1/sqrt(D)", "logit_softcap": cap}
    for batch in (np.s_[:], np.s_[None, None, :]):
        found = logits({"input": TABLE, "bias": bias}, HIDDEN[batch], **options)
        np.testing.assert_allclose(found, expected[batch], rtol=1e-12)
    fresh = Embedding(V, D, bias=True).init(jax.random.key(0), 0)["params"]
    assert np.all(fresh["bias"] == np.zeros(V))


def swapped(h):
    return np.array([*h[D // 2 :], *h[: D // 2]])


def shuffled(h, groups):
    out = np.empty(D)
    for i in range(D):
        out[i % (D // groups) * groups + i // (D // groups)] = h[i]
    return out


TRANSFORMS = {
    "half swap": (half_swap, swapped),
    **{
        f"shuffle {g}": (partial(channel_shuffle, groups=g), partial(shuffled, groups=g))
        for g in (1, 2, 3, 4, 12)
    },
    "own": (jnp.sin, np.sin),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_without_parameters(name, x64):
    transform, formula = TRANSFORMS[name]
    transformed = np.stack([formula(h) for h in HIDDEN])
    for tree, output in (({"input": TABLE}, TABLE), ({"input": TABLE, "output": OTHER}, OTHER)):
        expected = np.einsum("pd,vd->pv", transformed, output)
        np.testing.assert_allclose(logits(tree, transform=transform), expected, rtol=1e-12)
        alone = logits(tree, HIDDEN[0], transform=transform)
        np.testing.assert_allclose(alone, expected[0], rtol=1e-12)
    fresh = Embedding(V, D, tied=True, transform=transform).init(jax.random.key(0), 0)["params"]
    assert fresh.keys() == {"input"}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("norm", [False, True])
def test_projection(bias, activation, norm, x64):
    projection = Projection(bias, activation and partial(jax.nn.gelu, approximate=False), norm)
    fresh = Embedding(V, D, tied=True, transform=projection).init(jax.random.key(0), 0)["params"]
    names = {"weight", *["bias"] * bias, *["norm_weight", "norm_bias"] * norm}
    assert fresh.keys() == {"input", "projection"} and fresh["projection"].keys() == names
    weight = fresh["projection"]["weight"]
    np.testing.assert_allclose(weight.T @ weight, np.eye(D), atol=1e-6)

    own = {name: RNG.standard_normal(value.shape) for name, value in fresh["projection"].items()}
    expected = np.empty((P, V))
    for p in range(P):
        h = own["weight"].T @ HIDDEN[p] + (own["bias"] if bias else 0)
        h = gelu(h) if activation else h
        if norm:
            h = (h - np.mean(h)) / math.sqrt(np.var(h) + 1e-12)
            h = h * own["norm_weight"] + own["norm_bias"]
        expected[p] = TABLE @ h
    np.testing.assert_allclose(
        logits({"input": TABLE, "projection": own}, transform=projection), expected, rtol=1e-10
    )


OPTIONS = {
    "plain": {},
    "all": {
        "input_scale": "sqrt(D)",
        "logit_scale": "1/sqrt(D)",
        "bias": True,
        "logit_softcap": 3.0,
        "transform": Projection(bias=True, activation=nn.gelu, norm=True),
    },
}


def loss_of(**options):
    """Return parameters and loss of a model without a body."""
    embedding = Embedding(V, D, tied=True, **options)
    target = jax.nn.one_hot(TOKENS[::-1], V)

    def apply(tree):
        h = jnp.tanh(embedding.apply({"params": tree}, TOKENS))
        logits = embedding.apply({"params": tree}, h, method="logits")
        return -jnp.sum(jax.nn.log_softmax(logits) * target), logits

    return embedding.init(jax.random.key(3), 0)["params"], apply


@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.25, 1.0), (1.0, 3.0), (0.0, 1.0), (-2.0, 0.5)])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_tied_tables_gradient_is_the_sum_of_both_roles(name, scales, x64):
    tied, plain = loss_of(**OPTIONS[name], param_dtype="float64")
    _, scaled = loss_of(**OPTIONS[name], input_gradient=scales[0], output_gradient=scales[1])
    untied = untie(tied)[0]
    for run in (plain, jax.jit(plain)):  # equal tables give the same bits
        np.testing.assert_array_equal(run(tied)[1], run(untied)[1])
    np.testing.assert_array_equal(scaled(tied)[1], plain(tied)[1])
    by_role, of_tied, of_untied = (
        jax.grad(lambda tree, loss=loss: loss(tree)[0])(tree)
        for loss, tree in ((plain, untied), (scaled, tied), (scaled, untied))
    )
    by_role |= {name: scale * by_role[name] for name, scale in zip(("input", "output"), scales)}
    expected = by_role | {"input": by_role["input"] + by_role["output"]}
    del expected["output"]
    close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)
    jax.tree.map(close, of_tied, expected)
    jax.tree.map(close, of_untied, by_role)


def test_scaled_gradient_is_the_value_itself():
    x = jnp.array([1e-30, jnp.inf, 3.1])
    np.testing.assert_array_equal(scale_gradient(x, 0.3), x)
    assert jax.jvp(partial(scale_gradient, factor=0.5), (2.0,), (1.0,)) == (2.0, 0.5)


def test_rounded_matmul():
    rng = np.random.default_rng(4)
    x, weight, d = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((5, 8), (6, 8), (5, 6))
    )
    out, back = jax.vjp(lambda x, w: matmul(x, w, jnp.bfloat16), x, weight)
    rounded = [np.asarray(jnp.asarray(array, jnp.bfloat16), np.float64) for array in (x, weight, d)]
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, rounded[0] @ rounded[1].T, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(back(d), (rounded[2] @ rounded[1], rounded[2].T @ rounded[0])):
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_rounded_matmul_has_a_gradient_of_any_leading_axes():
    rng = np.random.default_rng(0)
    h, table = (jnp.asarray(rng.normal(size=n), jnp.float32) for n in ((2, 3, 4), (9, 4)))
    module = Embedding(9, 4, True, matmul_dtype=jnp.bfloat16)

    def loss(h, table):
        return jnp.sin(module.apply({"params": {"input": table}}, h, method="logits")).sum()

    found = jax.grad(loss, (0, 1))(h, table)
    flat = jax.grad(loss, (0, 1))(h.reshape(6, 4), table)
    np.testing.assert_array_equal(found[0].reshape(6, 4), flat[0])
    np.testing.assert_array_equal(found[1], flat[1])


def test_dtypes():
    """Logits of bfloat16 tables are float32 for hidden states of float32."""
    options = {"param_dtype": jnp.bfloat16, "logit_scale": 0.5, "init_std": 1.0}
    small = Embedding(V, D, tied=True, bias=True, **options)
    params = small.init(jax.random.key(0), 0)["params"]
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("bfloat16")}
    h = small.apply({"params": params}, TOKENS)
    assert h.dtype == jnp.bfloat16
    found = small.apply({"params": params}, h.astype(jnp.float32), method="logits")
    assert found.dtype == jnp.float32
    exact = np.asarray(h, np.float64) @ np.asarray(params["input"], np.float64).T / 2
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)
    rounded = Embedding(V, D).apply({"params": {"input": params["input"]}}, h, method="logits")
    assert rounded.dtype == jnp.bfloat16
    assert np.max(np.abs(np.asarray(rounded, np.float64) / 2 - exact)) > 1e-3
    loss = lambda p: jnp.sum(small.apply({"params": p}, h, method="logits") ** 2)  # noqa: E731
    assert jax.grad(loss)(params)["input"].dtype == jnp.bfloat16


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": True, "transform": half_swap, "logit_softcap": 30.0}],
    ids=["plain", "more"],
)
@pytest.mark.parametrize("tied", [True, False])
def test_vocabulary_split_over_a_mesh(tied, options):
    """Values are the same; arrays stay split, and no device has a whole table or gradient."""
    mesh = jax.make_mesh((2,), ("vocabulary",), axis_types=(AxisType.Auto,))
    options = options | {"init_std": 1.0}
    embedding = Embedding(64, 48, tied, partition=("vocabulary", None), **options)
    whole = Embedding(64, 48, tied, **options)
    specs = nn.get_partition_spec(jax.eval_shape(embedding.init, jax.random.key(0), 0))
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    params = jax.jit(embedding.init, out_shardings=shardings)(jax.random.key(0), 0)["params"]
    plain = nn.unbox(params)
    assert {leaf.sharding.spec[0] for leaf in jax.tree.leaves(params)} == {"vocabulary"}
    jax.tree.map(np.testing.assert_array_equal, plain, whole.init(jax.random.key(0), 0)["params"])

    def at(*axes):
        return NamedSharding(mesh, PartitionSpec(*axes))

    def apply(embedding, tree):
        h = jnp.tanh(embedding.apply({"params": tree}, TOKENS))
        logits = embedding.apply({"params": tree}, h, method="logits")
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - logits[:, 3]), logits

    split = jax.jit(jax.value_and_grad(partial(apply, embedding), has_aux=True))
    with jax.set_mesh(mesh):
        (loss, found), gradient = split(params)
        program = split.lower(params).compile().as_text()
    on_one = jax.device_put(plain, jax.devices()[0])
    on_whole = jax.value_and_grad(partial(apply, whole), has_aux=True)
    (expected_loss, expected), expected_gradient = on_whole(on_one)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, nn.unbox(gradient), expected_gradient)
    assert found.sharding.is_equivalent_to(at(None, "vocabulary"), 2)
    for leaf in jax.tree.leaves(gradient):
        assert leaf.sharding.is_equivalent_to(at("vocabulary"), leaf.ndim)
    assert "f32[32,48]" in program and "f32[64,48]" not in program and "f32[48,64]" not in program

    for leaf in jax.tree.leaves(untie(params)[0]):
        assert leaf.sharding.is_equivalent_to(at("vocabulary"), leaf.ndim)


def test_unknown_size():
    with pytest.raises(ValueError, match=r"'1/D'; expected a number or one of sqrt\(D\), 1/sqrt"):
        Embedding(V, D, init_std="1/D").init(jax.random.key(0), 0)
    assert size(0.3, 10, 10) == 0.3


@pytest.mark.parametrize("transform", [half_swap, partial(channel_shuffle, groups=4)])
def test_width_that_does_not_fit_the_transform(transform):
    with pytest.raises(ValueError, match="the width is 7; expected a multiple of"):
        transform(jnp.ones(7))
