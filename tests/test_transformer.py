"""Initial values as PyTorch draws them; clones; what tied and untied share; two forms of one function; its limits."""

from collections import defaultdict
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from scipy import stats

from jaxtie import sweep
from jaxtie.config import Process, Transformer
from jaxtie.data import exor
from jaxtie.models.masked_lm import MaskedLM

PROCESS = Process()
SMALL = Transformer(layers=1, heads=1, width=4, feedforward=4)
MEDIUM = Transformer(layers=2, heads=1, width=32, feedforward=32)


def initial(config: Transformer, *, tied: bool, seeds: int) -> dict:
    """Initial parameters, flat, of many seeds."""
    model = sweep.build_model(config, tied=tied)
    start = lambda key: model.init(key, jnp.zeros(8, jnp.int32), jnp.zeros(1, jnp.int32))["params"]
    return flatten_dict(jax.device_get(jax.jit(jax.vmap(start))(jax.random.split(jax.random.key(0), seeds))), sep="/")


@pytest.fixture(scope="module")
def small():
    return initial(SMALL, tied=False, seeds=5_000)


@pytest.fixture(scope="module")
def medium():
    return initial(MEDIUM, tied=False, seeds=640)


@pytest.mark.parametrize("size", ["small", "medium"])
def test_initial_values_are_distributed_as_torchs(size, request):
    torch = pytest.importorskip("torch", reason="the reference needs PyTorch: pip install 'jaxtie[parity]'")
    from torch_reference import place

    ours, config = request.getfixturevalue(size), {"small": SMALL, "medium": MEDIUM}[size]
    torch.manual_seed(0)
    theirs = defaultdict(list)
    for _ in range(len(ours["embedding/input"])):
        layer = torch.nn.TransformerEncoderLayer(config.width, config.heads, config.feedforward)
        for name, parameter in layer.named_parameters(prefix="body.layers.0"):
            theirs["/".join(place(name))].append(parameter.detach().numpy())
        for table in ("embedding/input", "embedding/output"):
            theirs[table].append(torch.nn.Embedding(exor.VOCABULARY, config.width).weight.detach().numpy())
    assert {name for name in ours if "layer_1" not in name} == theirs.keys()
    for name, values in theirs.items():
        drawn, expected = ours[name], np.stack(values)
        assert drawn.shape == expected.shape and drawn.size >= 20_000, name
        if np.ptp(expected) == 0:
            np.testing.assert_array_equal(drawn, expected, name)
        else:
            assert stats.ks_2samp(drawn.ravel(), expected.ravel()).pvalue > 1e-3, name


def test_initial_values_of_different_parameters_are_independent(small):
    drawn = {name: leaf.reshape(5_000, -1)[:, :4].ravel() for name, leaf in small.items() if np.ptp(leaf) > 0}
    assert len(drawn) == 8
    correlation = np.corrcoef(list(drawn.values())) - np.eye(len(drawn))
    assert np.abs(correlation).max() < 5 / 20_000**0.5


@pytest.mark.parametrize("independent", [False, True])
def test_layers_start_as_clones_unless_independent(independent, medium):
    ours = initial(Transformer(2, 1, 4, 4, independent_layers=True), tied=True, seeds=2) if independent else medium
    for name, leaf in ours.items():
        if name.startswith("body/layer_") and not name.startswith("body/layer_0"):
            first = ours["body/layer_0/" + name.split("/")[-1]]
            constant = np.ptp(first) == 0  # biases at 0, norms at 1
            assert np.array_equal(leaf, first) == (constant or not independent), name


def test_tied_and_untied_start_from_the_same_values(small):
    tied = initial(SMALL, tied=True, seeds=5_000)
    assert small.keys() - tied.keys() == {"embedding/output"} and not tied.keys() - small.keys()
    for name, leaf in tied.items():
        np.testing.assert_array_equal(leaf, small[name], name)
    assert not np.array_equal(small["embedding/input"], small["embedding/output"])


def random_params(config: Transformer) -> dict:
    model = sweep.build_model(config, tied=False)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros(8, jnp.int32), jnp.zeros(1, jnp.int32))["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape)), shapes)


@cache
def forms(config: Transformer) -> dict:
    """The model in its two forms: from parameters, tokens and places to logits, and the gradient of a weighted sum.

    Two entries that never occur make the vocabulary longer than the sequence, which is what selects the token form.
    """
    bag = sweep.build_model(config, tied=False)
    token = MaskedLM(9, config.width, exor.MASK, bag.body)
    pad = lambda table: jnp.pad(table, ((0, 2), (0, 0)), constant_values=3.0)
    padded = lambda params: {**params, "embedding": jax.tree.map(pad, params["embedding"])}

    def differentiated(model, prepare):
        def weighted(params, tokens_BxL, at_BxP):
            apply = lambda tokens, at: model.apply({"params": prepare(params)}, tokens, at)[..., :7]
            logits_BxPxV = jax.vmap(apply)(tokens_BxL, at_BxP)
            weights = np.random.default_rng(1).standard_normal(logits_BxPxV.shape)
            return jnp.sum(weights.astype(logits_BxPxV.dtype) * logits_BxPxV), logits_BxPxV

        def function(params, tokens_BxL, at_BxP):
            gradient, logits_BxPxV = jax.grad(weighted, has_aux=True)(params, tokens_BxL, at_BxP)
            return logits_BxPxV, gradient

        return jax.jit(function)

    return {"bag": differentiated(bag, lambda params: params), "token": differentiated(token, padded)}


@pytest.fixture(scope="module")
def batch():
    bits = exor.split(7, False, 14).train[::3]
    return jax.device_get(exor.sample(exor.stream(14, 1), 0, bits, PROCESS.zeros, PROCESS.ones))


def assert_close(ours, theirs, tolerance: float):
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1, np.abs(b).max()))
    jax.tree.map(close, ours, theirs)


@pytest.mark.parametrize("config", [Transformer(1, 1, 8, 8), Transformer(2, 2, 8, 8)], ids=["1x1", "2x2"])
def test_bag_and_token_form_are_one_function(config, batch, x64):
    params = random_params(config)
    by_bag, by_token = (form(params, batch.tokens_BxL, batch.at_BxP) for form in forms(config).values())
    assert by_bag[0].dtype == jnp.float64
    assert_close(by_bag, by_token, 1e-12)


@pytest.mark.parametrize(("form", "tolerance"), [("bag", 0), ("token", 1e-12)])
def test_order_of_tokens_does_not_matter(form, tolerance, batch, x64):
    config = Transformer(2, 2, 8, 8)
    params, function = random_params(config), forms(config)[form]
    order = np.random.default_rng(2).permuted(np.tile(np.arange(8), (len(batch.at_BxP), 1)), axis=1)
    shuffled = np.take_along_axis(batch.tokens_BxL, order, axis=1)
    at = np.argmax(shuffled == exor.MASK, axis=1)[:, None].astype(np.int32)
    expected = function(params, batch.tokens_BxL, batch.at_BxP)
    assert_close(function(params, shuffled, at), expected, tolerance)
    assert np.ptp(expected[0], axis=0).max() > 0.1  # while what the tokens are does


@pytest.mark.parametrize("form", ["bag", "token"])
def test_extreme_attention_scores_stay_finite(form, batch):
    config = Transformer(1, 1, 4, 4)
    params = random_params(config)
    params["body"]["layer_0"]["in_proj_weight"] *= 1e3
    logits_BxPxV, gradient = forms(config)[form](params, batch.tokens_BxL, batch.at_BxP)
    assert logits_BxPxV.dtype == jnp.float32 and np.isfinite(logits_BxPxV).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
