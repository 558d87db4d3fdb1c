"""Estimates of the initial loss, by hand and against models; the script that measures it, against
whole tables.
"""

import math
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from jaxtie.config import Arm
from jaxtie.tying.head import Projection
from jaxtie.tying.initial_loss import initial_loss
from jaxtie.tying.linen import make_embedding

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def script():
    """`experiments/scripts/initial_loss.py` as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXPERIMENTS / "scripts"))
        import initial_loss

        yield initial_loss
    del sys.modules["initial_loss"]


def test_estimates():
    """Check values of the protocol: D 512, n 30,000."""
    estimate = partial(initial_loss, 30_000, 512)
    for deviation, simple, corrected in (
        (512**-0.5, 22.6, 22.6),
        (math.log(30_000) / 512, 11.00, 11.06),
    ):
        assert estimate(deviation, corrected=False) == pytest.approx(simple, abs=0.06)
        assert estimate(deviation) == pytest.approx(corrected, abs=0.06)
    assert estimate(1, overlap=0, corrected=False) == pytest.approx(math.log(30_000), rel=1e-12)
    assert estimate(1, overlap=0) == pytest.approx(math.sqrt(2 * 512 * math.log(30_000)), rel=1e-12)
    assert estimate(0.05, overlap=0) == pytest.approx(
        math.log(30_000) + 512 * 0.05**2 / 2, rel=1e-12
    )
    assert estimate(2, logit_scale=0.03) == pytest.approx(estimate(0.06), rel=1e-12)
    assert estimate(0.05, overlap=0.5) == pytest.approx(
        math.log(math.exp(12.8) + 29_999 * math.exp(0.64)), rel=1e-12
    )
    assert estimate(100) == pytest.approx(51_200, rel=1e-12)  # and no overflow


def test_blocks_are_the_whole_vocabulary(script):
    """What `measure` adds up in blocks is what an `Embedding` of each arm gives with whole
    tables.
    """
    vocabulary, width, tokens, deviations = 2500, 32, 64, (0.02, 32**-0.5, 1.0)
    arms = tuple(
        map(Arm.parse, (*script.ARMS, "tied+shuffle=8+logit-scale=0.5", "untied+bert-head"))
    )
    key, drawn = jax.random.key(3), script.draw_projections(arms, 4, width)
    assert drawn.keys() == {"projection", "bert-head"}
    np.testing.assert_allclose(
        drawn["projection"]["weight"],
        Projection().init(jax.random.key(4), width)["weight"],
        atol=1e-6,
    )
    sizes = {"vocabulary": vocabulary, "width": width, "tokens": tokens}
    measured_SxA = script.measure(key, jnp.array(deviations), drawn, arms=arms, **sizes)

    keys = jax.random.split(key, 4)
    token = np.asarray(jax.random.randint(keys[0], (tokens,), 0, vocabulary))
    target = (
        token + np.asarray(jax.random.randint(keys[1], (tokens,), 1, vocabulary))
    ) % vocabulary
    assert np.all(token != target)
    table, other = (script.word_rows(key, jnp.arange(vocabulary), width) for key in keys[2:])
    assert np.mean(table) == pytest.approx(0, abs=0.02) and np.var(table) == pytest.approx(
        1, abs=0.02
    )
    for s, deviation in enumerate(deviations):
        for a, arm in enumerate(arms):
            tree = {
                "input": deviation * (table if arm.tied else other),
                "output": deviation * table,
            }
            if arm.head.transform in drawn:
                tree["projection"] = drawn[arm.head.transform]
            embedding = make_embedding(arm.head, vocabulary, width, tied=arm.tied)
            h = embedding.apply({"params": tree}, token)
            h = h / jnp.sqrt(jnp.mean(h**2, axis=-1, keepdims=True))
            logits = np.asarray(embedding.apply({"params": tree}, h, method="logits"), np.float64)
            loss = np.mean(logsumexp(logits, axis=-1) - logits[np.arange(tokens), target])
            np.testing.assert_allclose(measured_SxA[s, a], loss, rtol=1e-5, err_msg=arm.name)


@pytest.fixture(scope="module")
def small(script):
    """Losses on a small grid, and both estimates."""
    return script.measure_grid(widths=(16, 256), vocabularies=(100, 3000), seeds=range(4))


def test_the_corrected_estimate_holds_where_logits_spread_little(script, small):
    table = script.frame_of(small)
    assert len(table) == 2 * 2 * 4 * 6
    little = table[table["spread"] < 1 + 1e-5]
    assert len(little) == 60
    assert np.max(np.abs(little["corrected"] / little["measured"] - 1)) < 0.03
    # the simple one does not
    assert np.max(np.abs(little["simple"] / little["measured"] - 1)) > 0.05
    # its own logit rules, whatever the spread
    tied = table.loc[:, :, :, ["tied", "tied+logit-scale=1-by-root-D"]]
    assert len(tied) == 32 and np.max(np.abs(tied["corrected"] / tied["measured"] - 1)) < 0.05


def test_the_script_prints_the_tables_of_the_document_from_the_data(
    script, capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(script, "FIGURE", tmp_path / "figure.png")
    monkeypatch.setattr(sys, "argv", ["initial_loss.py", "--tables"])
    script.main()
    document = (EXPERIMENTS / "README.md").read_text()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(rows) == 24 + 6 + 4 and all(row in document for row in rows)
    assert (tmp_path / "figure.png").stat().st_size > 10_000
