"""Estimates of the initial loss, by hand and against models; the measurement in blocks, against whole tables."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp

from jaxtie import initial_loss, theory
from jaxtie.config import InitialLoss
from jaxtie.models.embedding import Embedding, Projection, channel_shuffle, half_swap


def test_estimates():
    """Check values of the protocol: D 512, n 30,000."""
    estimate = partial(theory.initial_loss, 30_000, 512)
    for deviation, simple, corrected in ((512**-0.5, 22.6, 22.6), (math.log(30_000) / 512, 11.00, 11.06)):
        assert estimate(deviation, corrected=False) == pytest.approx(simple, abs=0.06)
        assert estimate(deviation) == pytest.approx(corrected, abs=0.06)
    assert estimate(1, overlap=0, corrected=False) == pytest.approx(math.log(30_000), rel=1e-12)
    assert estimate(1, overlap=0) == pytest.approx(math.sqrt(2 * 512 * math.log(30_000)), rel=1e-12)
    assert estimate(0.05, overlap=0) == pytest.approx(math.log(30_000) + 512 * 0.05**2 / 2, rel=1e-12)
    assert estimate(2, logit_scale=0.03) == pytest.approx(estimate(0.06), rel=1e-12)
    assert estimate(0.05, overlap=0.5) == pytest.approx(math.log(math.exp(12.8) + 29_999 * math.exp(0.64)), rel=1e-12)
    assert estimate(100) == pytest.approx(51_200, rel=1e-12)  # and no overflow


def test_blocks_are_the_whole_vocabulary():
    """What `measure` adds up in blocks is what `Embedding` gives with whole tables."""
    vocabulary, width, tokens, deviations = 2500, 32, 64, (0.02, 32**-0.5, 1.0)
    key, projection = jax.random.key(3), Projection().init(jax.random.key(4), width)
    measured_SxF = initial_loss.measure(key, vocabulary, tokens, jnp.array(deviations), projection)

    keys = jax.random.split(key, 4)
    token = np.asarray(jax.random.randint(keys[0], (tokens,), 0, vocabulary))
    target = (token + np.asarray(jax.random.randint(keys[1], (tokens,), 1, vocabulary))) % vocabulary
    assert np.all(token != target)
    table, other = (initial_loss.rows(key, jnp.arange(vocabulary), width) for key in keys[2:])
    assert np.mean(table) == pytest.approx(0, abs=0.02) and np.var(table) == pytest.approx(1, abs=0.02)
    ways = {
        "tied": {},
        "tied, logits / √D": {"logit_scale": "1/sqrt(D)"},
        "channel shuffle": {"transform": partial(channel_shuffle, groups=2)},
        "half swap": {"transform": half_swap},
        "projection": {"transform": Projection()},
        "untied": {},
    }
    assert list(ways) == list(initial_loss.VARIANTS)
    for s, deviation in enumerate(deviations):
        for f, (variant, options) in enumerate(ways.items()):
            tree = {"input": deviation * (other if variant == "untied" else table), "output": deviation * table}
            if variant == "projection":
                tree["projection"] = projection
            embedding = Embedding(vocabulary, width, **options)
            h = embedding.apply({"params": tree}, token)
            h = h / jnp.sqrt(jnp.mean(h**2, axis=-1, keepdims=True))
            logits = np.asarray(embedding.apply({"params": tree}, h, method="logits"), np.float64)
            loss = np.mean(logsumexp(logits, axis=-1) - logits[np.arange(tokens), target])
            np.testing.assert_allclose(measured_SxF[s, f], loss, rtol=1e-5, err_msg=variant)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("initial-loss")
    lines = []
    summary = initial_loss.main(InitialLoss(vocabularies=(100, 3000), widths=(16, 256)), folder, lines.append)
    assert len(lines) == 4
    return folder, summary


def test_the_corrected_estimate_holds_where_logits_spread_little(small):
    table = pd.read_csv(small[0] / "initial_loss.csv")
    assert len(table) == 2 * 2 * 4 * 6
    little = table[table["spread"] < 1 + 1e-5]
    assert len(little) == 60
    assert np.max(np.abs(little["corrected"] / little["measured"] - 1)) < 0.03
    assert np.max(np.abs(little["simple"] / little["measured"] - 1)) > 0.05  # the simple one does not
    tied = table[table["variant"].str.startswith("tied")]
    assert np.max(np.abs(tied["corrected"] / tied["measured"] - 1)) < 0.05  # tied, its own logit rules, whatever the spread


def test_what_is_left(small):
    folder, summary = small
    assert (folder / "summary.md").read_text() == summary
    assert "D 256, n 3,000 (log n = 8.006)" in summary and summary.count("| tied |") == 5
    assert {path.name for path in (folder / "figures").iterdir()} == {"initial_loss.png", "initial_loss.pdf"}
