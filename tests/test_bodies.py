"""What holds for every body: initial values as PyTorch draws them, shared by tied and untied; short ways that are exact."""

import dataclasses
from collections import defaultdict
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import assert_close, initial, once, random_params, sample
from flax.traverse_util import flatten_dict
from scipy import stats

from jaxtie import sweep
from jaxtie.config import LSTM, Mixer, Transformer
from jaxtie.data import exor
from jaxtie.models import lstm

CONFIGS = {  # and of how many seeds each leaf has 10,000 values; fan-ins all different where they are free
    "transformer-small": (Transformer(), 2_500),
    "transformer-medium": (Transformer(layers=2, width=32, feedforward=32), 320),
    "lstm": (LSTM(layers=2, width=4, hidden=6), 2_500),
    "mixer": (Mixer(layers=2, width=4, tokenwise=6, channelwise=11), 2_500),
}


@cache
def drawn(name: str) -> dict:
    config, seeds = CONFIGS[name]
    return initial(config, tied=False, seeds=seeds)


@pytest.mark.parametrize("name", CONFIGS)
def test_initial_values_are_distributed_as_torchs(name):
    torch = pytest.importorskip("torch", reason="the reference needs PyTorch: pip install 'jaxtie[parity]'")
    import torch_reference as reference

    (config, seeds), ours, theirs = CONFIGS[name], drawn(name), defaultdict(list)
    clones = isinstance(config, Transformer)  # of the first layer
    torch.manual_seed(0)
    for _ in range(seeds):
        body = reference.Reference(dataclasses.replace(config, layers=1) if clones else config, tied=False)
        for path, parameter in flatten_dict(reference.parameters(body), sep="/").items():
            theirs[path].append(parameter)
    assert {path for path in ours if not (clones and "layer_1" in path)} == theirs.keys()
    for path, values in theirs.items():
        mine, expected = ours[path], np.stack(values)
        assert mine.shape == expected.shape and mine.size >= 10_000, path
        if np.ptp(expected) == 0:
            np.testing.assert_array_equal(mine, expected, path)
        else:
            mine, expected = (array.reshape(seeds, -1)[:, :32].ravel() for array in (mine, expected))
            assert stats.ks_2samp(mine, expected).pvalue > 1e-3, path


@pytest.mark.parametrize(("name", "leaves"), [("transformer-small", 8), ("lstm", 20), ("mixer", 18)])
def test_initial_values_of_different_parameters_are_independent(name, leaves):
    random = [leaf.reshape(len(leaf), -1)[:, :4].ravel() for leaf in drawn(name).values() if np.ptp(leaf) > 0]
    assert len(random) == leaves
    correlation = np.corrcoef(random) - np.eye(leaves)
    assert np.abs(correlation).max() < 5 / len(random[0]) ** 0.5


@pytest.mark.parametrize("name", ["transformer-small", "lstm", "mixer"])
def test_tied_and_untied_start_from_the_same_values(name):
    tied, untied = (initial(CONFIGS[name][0], tied=tied, seeds=2) for tied in (True, False))
    assert untied.keys() - tied.keys() == {"embedding/output"} and not tied.keys() - untied.keys()
    for path, leaf in tied.items():
        np.testing.assert_array_equal(leaf, untied[path], path)
    assert not np.array_equal(untied["embedding/input"], untied["embedding/output"])


def differentiated(logits):
    """From parameters to logits BxPxV of a batch, and the gradient of a weighted sum of them."""
    batch = sample()

    def weighted(params):
        logits_BxPxV = jax.vmap(lambda tokens, at: logits(params, tokens, at))(batch.tokens_BxL, batch.at_BxP)
        weights = np.random.default_rng(1).standard_normal(logits_BxPxV.shape)
        return jnp.sum(weights.astype(logits_BxPxV.dtype) * logits_BxPxV), logits_BxPxV

    return once(jax.grad(weighted, has_aux=True))


@pytest.mark.parametrize(
    "config",
    [LSTM(2, 4, 3), Mixer(1, 4, 3, 5), Mixer(2, 4, 3, 5)],
    ids=lambda config: f"{type(config).__name__}-{config.layers}",
)
def test_asked_for_one_position_a_body_does_what_it_does_for_all(config, x64):
    """Against every position asked for, and a vocabulary that is longer than the sequence: each token on its own."""
    model, params = sweep.build_model(config, tied=False), random_params(config)
    pad = lambda table: jnp.pad(table, ((0, 2), (0, 0)), constant_values=3.0)

    def plain(params, tokens_L, at_P):
        table_VxD = pad(params["embedding"]["input"])
        h_LxD = model.body.apply({"params": params["body"]}, table_VxD, tokens_L, jnp.arange(8), tokens_L)
        return h_LxD[at_P] @ params["embedding"]["output"].T

    short = differentiated(lambda params, tokens, at: model.apply({"params": params}, tokens, at))(params)
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
    model, params = sweep.build_model(config, tied=False), random_params(config)
    assert model.body.ordered
    tokens, at = np.array([0, 1, 2, 3, 3, 2, exor.MASK, 4]), np.array([6])
    logits = once(lambda tokens: model.apply({"params": params}, tokens, at))
    assert np.abs(logits(tokens) - logits(tokens[[1, 0, 2, 3, 3, 2, 6, 7]])).max() > 1e-3
