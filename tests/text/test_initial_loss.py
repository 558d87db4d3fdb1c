"""Estimates of the initial loss, by hand and against models; the script that measures it."""

import math
import sys
from functools import partial

import initial_loss as script
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import once
from scipy.special import logsumexp

from jaxtie.config import Arm
from jaxtie.text.initial_loss import estimate, initial_loss, overlap_of
from jaxtie.tying.head import Projection
from jaxtie.tying.linen import make_embedding


def test_initial_loss():
    """Check values of the protocol: D 512, n 30,000."""
    loss = partial(initial_loss, 30_000, 512)
    for std, simple, corrected in ((512**-0.5, 22.6, 22.6), (math.log(30_000) / 512, 11, 11.06)):
        assert loss(std, corrected=False) == pytest.approx(simple, abs=0.06)
        assert loss(std) == pytest.approx(corrected, abs=0.06)
    assert loss(1, overlap=0, corrected=False) == pytest.approx(math.log(30_000), rel=1e-12)
    assert loss(1, overlap=0) == pytest.approx(math.sqrt(2 * 512 * math.log(30_000)), rel=1e-12)
    assert loss(0.05, overlap=0) == pytest.approx(math.log(30_000) + 512 * 0.05**2 / 2, rel=1e-12)
    assert loss(2, logit_scale=0.03) == pytest.approx(loss(0.06), rel=1e-12)
    assert loss(0.05, overlap=0.5) == pytest.approx(
        math.log(math.exp(12.8) + 29_999 * math.exp(0.64)), rel=1e-12
    )
    assert loss(100) == pytest.approx(51_200, rel=1e-12)  # and no overflow


SHUFFLES = [f"+shuffle={groups}" for groups in (1, 2, 4, 8, 16, 64)]


@pytest.mark.parametrize("options", ["", "+bias", "+half-swap", "+shuffle", *SHUFFLES])
def test_overlap_is_the_share_of_coordinates_that_stay(options):
    head, width = Arm.parse(f"tied{options}").head, 64
    transform = make_embedding(head, 30, width, tied=True).transform or (lambda h: h)
    stays = np.mean(np.asarray(transform(jnp.arange(width))) == np.arange(width))
    assert overlap_of(head, width, tied=True) == stays
    assert overlap_of(head, width, tied=False) == 0
    if options == "+shuffle":
        assert stays == 2 / width


ARMS = """
    tied untied tied+logit-scale=1-by-root-D tied+logit-scale=2 tied+init-std=log-n-by-D
    untied+init-std=0.02 tied+shuffle tied+shuffle=4+bias tied+half-swap untied+half-swap
    tied+projection tied+bert-head tied+bias+input-scale=root-D+input-gradient=0
""".split()


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    """Return the losses of fresh models whose body passes on the normalised embedding."""
    vocabulary, width, tokens = 2000, 64, 512
    token, target = np.random.default_rng(0).integers(vocabulary, size=(2, tokens))

    def loss(arm, key):
        embedding = make_embedding(arm.head, vocabulary, width, tied=arm.tied, init_std="1/sqrt(D)")
        params = embedding.init(key, 0)
        rows = embedding.apply(params, token)
        h = rows * jnp.sqrt(width / jnp.sum(rows**2, axis=1, keepdims=True))
        logits = embedding.apply(params, h, method="logits")
        chosen = jnp.take_along_axis(logits, target[:, None], axis=1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=1) - chosen, where=token != target)

    look = once(lambda key: {name: loss(Arm.parse(name), key) for name in ARMS})
    return jax.device_get(look(jax.random.key(0)))


@pytest.mark.parametrize("name", ARMS)
def test_estimate(name, measured):
    """By a number and by a formula, for n = 2,000, D = 64 and tables N(0, 1/D)."""
    arm = Arm.parse(name)
    for init_std in (1 / 8, "1/sqrt(D)"):
        options = {"tied": arm.tied, "vocabulary": 2000, "width": 64, "init_std": init_std}
        assert estimate(arm.head, **options) == pytest.approx(measured[name], rel=0.03)


def test_no_estimate_with_a_logit_softcap():
    head = Arm.parse("tied+logit-softcap=30").head
    assert math.isnan(estimate(head, tied=True, vocabulary=2000, width=64, init_std=1.0))


@pytest.mark.slow
def test_blocks_are_the_whole_vocabulary():
    """The losses that `measure` sums in blocks are those of whole `Embedding`s."""
    vocabulary, width, tokens, stds = 2500, 32, 64, (0.02, 32**-0.5, 1.0)
    arms = tuple(
        map(Arm.parse, (*script.ARMS, "tied+shuffle=8+logit-scale=0.5", "untied+bert-head"))
    )
    key, drawn = jax.random.key(3), script.draw_projections(arms, 4, width)
    assert drawn.keys() == {"projection", "bert-head"}
    projection = Projection().init(jax.random.key(4), width)
    np.testing.assert_allclose(drawn["projection"]["weight"], projection["weight"], atol=1e-6)
    sizes = {"vocabulary": vocabulary, "width": width, "tokens": tokens}
    measured_SxA = script.measure(key, jnp.array(stds), drawn, arms=arms, **sizes)

    keys = jax.random.split(key, 4)
    token = np.asarray(jax.random.randint(keys[0], (tokens,), 0, vocabulary))
    distance = np.asarray(jax.random.randint(keys[1], (tokens,), 1, vocabulary))
    target = (token + distance) % vocabulary
    assert np.all(token != target)
    table, other = (script.word_rows(key, jnp.arange(vocabulary), width) for key in keys[2:])
    assert np.mean(table) == pytest.approx(0, abs=0.02)
    assert np.var(table) == pytest.approx(1, abs=0.02)
    for s, std in enumerate(stds):
        for a, arm in enumerate(arms):
            tree = {"input": std * (table if arm.tied else other), "output": std * table}
            if arm.head.transform in drawn:
                tree["projection"] = drawn[arm.head.transform]
            embedding = make_embedding(arm.head, vocabulary, width, tied=arm.tied)
            h = embedding.apply({"params": tree}, token)
            h = h / jnp.sqrt(jnp.mean(h**2, axis=-1, keepdims=True))
            logits = np.asarray(embedding.apply({"params": tree}, h, method="logits"), np.float64)
            loss = np.mean(logsumexp(logits, axis=-1) - logits[np.arange(tokens), target])
            np.testing.assert_allclose(measured_SxA[s, a], loss, rtol=1e-5, err_msg=arm.name)


@pytest.fixture(scope="module")
def small():
    """Losses on a small grid, and both estimates."""
    return script.measure_grid(widths=(16, 256), vocabularies=(100, 3000), seeds=range(4))


@pytest.mark.slow
def test_the_corrected_estimate_holds_where_logits_spread_little(small):
    table = script.frame_of(small)
    assert len(table) == 2 * 2 * 4 * 6
    little = table[table["spread"] < 1 + 1e-5]
    assert len(little) == 60
    assert np.max(np.abs(little["corrected"] / little["measured"] - 1)) < 0.03
    # the simple one does not
    assert np.max(np.abs(little["simple"] / little["measured"] - 1)) > 0.05
    # its own logit rules, at any spread
    tied = table.loc[:, :, :, ["tied", "tied+logit-scale=1-by-root-D"]]
    assert len(tied) == 32 and np.max(np.abs(tied["corrected"] / tied["measured"] - 1)) < 0.05


def test_the_script_prints_its_tables_from_the_data(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["initial_loss.py", "--tables"])
    script.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(rows) == 24 + 6 + 4
