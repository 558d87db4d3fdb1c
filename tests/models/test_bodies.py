"""What holds for every body: initial values as PyTorch draws them, shared by tied and untied; short
ways that are exact.
"""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import assert_close, build_model, initial, once, random_params, sample
from flax.traverse_util import flatten_dict
from scipy import stats

from jaxtie.config import LSTM, Body, Mixer, Transformer
from jaxtie.exor.data import MASK
from jaxtie.models import lstm
from jaxtie.tying.head import count_entries

# and of how many seeds each leaf has 10,000 values; fan-ins all different where they are free
CONFIGS = {
    "transformer-small": (Transformer(), 2_500),
    "transformer-medium": (Transformer(layers=2, width=32, feedforward=32), 320),
    "lstm": (LSTM(layers=2, width=4, hidden=6), 2_500),
    "mixer": (Mixer(layers=2, width=4, tokenwise=6, channelwise=11), 2_500),
}


@cache
def drawn(name: str) -> dict:
    config, seeds = CONFIGS[name]
    return initial(config, tied=False, seeds=seeds)


def law(sizes: Body, path: str):
    """How PyTorch draws a leaf: a distribution, or the number that all its values are."""
    name = path.split("/")[-1]
    if path.startswith("embedding/"):
        return stats.norm()
    if "norm" in name:
        return float("weight" in name)
    match sizes:
        case Transformer():
            if name in ("in_proj_bias", "out_proj_bias"):
                return 0.0
            xavier = 6 / (sizes.width + 3 * sizes.width)  # of the whole 3DxD matrix
            square = {"in_proj": xavier, "linear2": 1 / sizes.feedforward}.get(
                name.rpartition("_")[0], 1 / sizes.width
            )
        case LSTM():
            square = 1 / (2 * sizes.hidden if "linear" in name else sizes.hidden)
        case Mixer():
            inputs = {"tokenwise1": 8, "tokenwise2": sizes.tokenwise, "channelwise1": sizes.width}
            square = 1 / inputs.get(name.rpartition("_")[0], sizes.channelwise)
    return stats.uniform(-(square**0.5), 2 * square**0.5)


def assert_law(values, law, path):
    """Of so many values that another bound, or a tenth of another distribution, would be seen."""
    if isinstance(law, float):
        return np.testing.assert_array_equal(values, law, path)
    assert stats.kstest(values, law.cdf).pvalue > 1e-3, path
    low, high = law.support()
    assert np.isinf(high) or (
        low <= values.min() < 0.95 * low and 0.95 * high < values.max() <= high
    ), path


@pytest.mark.parametrize("name", CONFIGS)
def test_initial_values_have_their_law(name):
    for path, leaf in drawn(name).items():
        assert leaf.size >= 10_000, path
        assert_law(leaf.reshape(len(leaf), -1)[:, :32].ravel(), law(CONFIGS[name][0], path), path)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_law_is_torchs(name):
    """Its own modules, fresh ones until each leaf has some hundred values."""
    torch = pytest.importorskip(
        "torch", reason="the reference needs PyTorch: pip install 'jaxtie[parity]'"
    )
    import torch_reference as reference

    sizes, _ = CONFIGS[name]
    clones = isinstance(sizes, Transformer)  # of the first layer
    one = dataclasses.replace(sizes, layers=1) if clones else sizes
    torch.manual_seed(0)
    made = [
        reference.parameters(reference.Reference(one, tied=False))
        for _ in range(100 if sizes.width == 4 else 20)
    ]
    theirs = flatten_dict(jax.tree.map(lambda *leaves: np.stack(leaves), *made), sep="/")
    ours = drawn(name)
    assert {path for path in ours if not (clones and "layer_1" in path)} == theirs.keys()
    for path, leaf in theirs.items():
        assert leaf.shape[1:] == ours[path].shape[1:] and leaf.size >= 400, path
        assert_law(leaf.ravel(), law(sizes, path), path)


@pytest.mark.parametrize(
    ("name", "leaves"), [("transformer-small", 8), ("lstm", 20), ("mixer", 18)]
)
def test_initial_values_of_different_parameters_are_independent(name, leaves):
    random = [
        leaf.reshape(len(leaf), -1)[:, :4].ravel()
        for leaf in drawn(name).values()
        if np.ptp(leaf) > 0
    ]
    assert len(random) == leaves
    correlation = np.corrcoef(random) - np.eye(leaves)
    assert np.abs(correlation).max() < 5 / len(random[0]) ** 0.5


@pytest.mark.parametrize("name", ["transformer-small", "lstm", "mixer"])
def test_tied_and_untied_start_from_the_same_values(name):
    tied, untied = initial(CONFIGS[name][0], tied=True, seeds=CONFIGS[name][1]), drawn(name)
    assert untied.keys() - tied.keys() == {"embedding/output"} and not tied.keys() - untied.keys()
    for path, leaf in tied.items():
        np.testing.assert_array_equal(leaf, untied[path], path)
    assert not np.array_equal(untied["embedding/input"], untied["embedding/output"])


def differentiated(logits):
    """From parameters to the gradient of a weighted sum of logits BxPxV of a batch, and these."""
    batch = sample()

    def weighted(params):
        logits_BxPxV = jax.vmap(lambda tokens, at: logits(params, tokens, at))(
            batch.tokens_BxL, batch.at_BxP
        )
        weights = np.random.default_rng(1).standard_normal(logits_BxPxV.shape)
        return jnp.sum(weights.astype(logits_BxPxV.dtype) * logits_BxPxV), logits_BxPxV

    return once(jax.grad(weighted, has_aux=True))


@pytest.mark.parametrize(
    "config",
    [LSTM(2, 4, 3), Mixer(1, 4, 3, 5), Mixer(2, 4, 3, 5)],
    ids=lambda config: f"{type(config).__name__}-{config.layers}",
)
def test_asked_for_one_position_a_body_does_what_it_does_for_all(config, x64):
    """Against every position asked for, and a vocabulary that is longer than the sequence: each
    token on its own.
    """
    model, params = build_model(config, tied=False), random_params(config)

    def plain(params, tokens_L, at_P):
        table_VxD = jnp.pad(params["embedding"]["input"], ((0, 2), (0, 0)), constant_values=3.0)
        h_LxD = model.body.apply(
            {"params": params["body"]}, table_VxD, tokens_L, jnp.arange(8), tokens_L
        )
        return h_LxD[at_P] @ params["embedding"]["output"].T

    short = differentiated(lambda params, tokens, at: model.apply({"params": params}, tokens, at))(
        params
    )
    assert short[1].dtype == jnp.float64
    assert_close(short, differentiated(plain)(params), 1e-12)


def test_cell_of_an_lstm_and_its_derivative(x64):
    def plain(gates_4xH, c_H):
        i, f, g, o = gates_4xH
        c_H = jax.nn.sigmoid(f) * c_H + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c_H), c_H

    *gates_4xH, c_H, d_h, d_c = jax.random.normal(jax.random.key(0), (7, 50)) * 3
    ours, theirs = (jax.vjp(cell, list(gates_4xH), c_H) for cell in (lstm._cell, plain))
    assert_close(ours[0], theirs[0], 1e-12)
    assert_close(ours[1]((d_h, d_c)), theirs[1]((d_h, d_c)), 1e-12)


@pytest.mark.parametrize("config", [LSTM(), Mixer()], ids=["lstm", "mixer"])
def test_order_of_tokens_matters(config):
    model, params = build_model(config, tied=False), random_params(config)
    assert model.body.ordered
    tokens, at = np.array([0, 1, 2, 3, 3, 2, MASK, 4]), np.array([6])
    logits = once(lambda tokens: model.apply({"params": params}, tokens, at))
    assert np.abs(logits(tokens) - logits(tokens[[1, 0, 2, 3, 3, 2, 6, 7]])).max() > 1e-3


@pytest.mark.parametrize(
    "vocabulary, length", [(7, 8), (7, 15), (7, 16), (7, 17), (3, 40), (32, 1), (40, 60)]
)
def test_entries_are_counted_whether_their_numbers_fit_into_one_integer_or_not(vocabulary, length):
    rng = np.random.default_rng(length)
    for tokens in (rng.integers(vocabulary, size=length), np.full(length, vocabulary - 1)):
        found = once(lambda tokens: count_entries(tokens, vocabulary, jnp.float32))(
            tokens.astype(np.int32)
        )
        np.testing.assert_array_equal(found, np.bincount(tokens, minlength=vocabulary))
