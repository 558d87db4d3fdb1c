"""Interventions on rows of text models: logits, gradients, blanks, and lengths by role."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bodies import once

import jaxtie
from jaxtie.config import Arm, Transformer, UserError
from jaxtie.text.analysis import MASK_NORMS
from jaxtie.text.config import TextExperiment
from jaxtie.text.corpus import prepare_corpus, training_batches
from jaxtie.text.data.tokens import prepare_text
from jaxtie.text.task import TextTask, make_targets
from jaxtie.training.task import key_at
from jaxtie.tying.tie import untie

BLANKS = 0.3
SMALL = dict(
    objective="causal",
    model=Transformer(layers=1, heads=2, width=8, feedforward=8),
    duplicates=False,
    words=8,
    batch=8,
    length=16,
    seeds=(3,),
    steps=20,
    record_every=10,
    eval_every=20,
    blanks=BLANKS,
    mask_norms=True,
)


@pytest.fixture(scope="module")
def experiment(corpus, filled) -> TextExperiment:
    own = dataclasses.replace(corpus, form="sentences")
    config = TextExperiment(name="small", corpus=own, **SMALL)
    return dataclasses.replace(
        config, prepared=prepare_corpus(config, prepare_text(own, filled[0]))
    )


def targets_of(experiment: TextExperiment, step: int = 0):
    rows = training_batches(experiment, experiment.prepared, 3)[step].tokens_BxL
    return rows, make_targets(
        experiment, key_at(jax.random.key_data(jax.random.key(5)), step), rows
    )


def task_of(experiment: TextExperiment, name: str) -> TextTask:
    return TextTask(experiment, Arm.parse(name).variant, "cpu")


def test_blanks_are_inputs_and_never_targets(experiment):
    mask, seen = experiment.prepared.text.special.mask, []
    whole = dataclasses.replace(experiment, blanks=0.0)
    for step in range(5):
        rows, targets = targets_of(experiment, step)
        assert not np.any(targets.target_P == mask)
        np.testing.assert_array_equal(targets.target_P, targets_of(whole, step)[1].target_P)
        is_blank = np.asarray(targets.tokens_BxL) == mask
        np.testing.assert_array_equal(np.asarray(targets.tokens_BxL)[~is_blank], rows[~is_blank])
        seen.append(is_blank)
    assert np.mean(seen) == pytest.approx(BLANKS, abs=4 * np.sqrt(0.21 / np.size(seen)))
    assert len({each.tobytes() for each in seen}) == 5


@pytest.mark.parametrize("name", ["tied+gain=mask", "untied+learned-scale"])
def test_factors_multiply_logits_and_gradients_are_finite_differences(experiment, name):
    task, plain = (task_of(experiment, each) for each in (name, name.partition("+")[0]))
    params = task.init(jax.random.key(1), {})
    expected = plain.init(jax.random.key(1), {})
    _, batch = targets_of(experiment)
    leaf = "log_scale" if "scale" in name else "log_gain"
    loss = once(jax.value_and_grad(lambda params: task.loss(params, batch)[0]))
    of_plain = once(lambda params: plain.loss(params, batch)[0])(expected)
    assert float(loss(params)[0]) == pytest.approx(float(of_plain), rel=1e-6)
    factor = np.full_like(params["embedding"][leaf], 0.4)
    params = {**params, "embedding": {**params["embedding"], leaf: factor}}
    h = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)

    def logits(task, params):
        model = task.model.bind({"params": task.effective(params)})
        return np.asarray(model.embedding.logits(h))

    times = np.ones(len(experiment.prepared.vocabulary), np.float32)
    rows = experiment.prepared.text.special.mask if name == "tied+gain=mask" else slice(None)
    times[rows] = np.exp(np.float32(0.4))
    np.testing.assert_allclose(logits(task, params), logits(plain, expected) * times, 1e-5, 1e-6)
    _, gradient = loss(params)
    slope = float(jnp.sum(gradient["embedding"][leaf]))
    low, high = (
        float(loss({**params, "embedding": {**params["embedding"], leaf: factor + step}})[0])
        for step in (-0.02, 0.02)
    )
    assert slope == pytest.approx((high - low) / 0.04, rel=0.02, abs=1e-5)


def test_the_rarer_half_of_the_rows_is_untied(experiment):
    """Of the training split; half of the vocabulary."""
    task = task_of(experiment, "tied+untie-rows=rarer-half")
    rows = np.array(task.model.embedding.untied_rows)
    prepared = experiment.prepared
    count_V = np.bincount(prepared.text.train.tokens_N, minlength=len(prepared.vocabulary))
    count_V[prepared.text.special.sep] += prepared.text.train.count
    assert len(rows) == len(prepared.vocabulary) // 2
    assert count_V[rows].max() <= np.delete(count_V, rows).min()
    params = task.init(jax.random.key(1), {})["embedding"]
    assert params["output_rows"].shape == (len(rows), 8) and "output" not in params


def test_norms_are_held(experiment):
    task = task_of(experiment, "tied+input-norm=3")
    params = task.init(jax.random.key(1), {})
    found = once(lambda params: task.evaluate(params, {}))(params)
    mask = experiment.prepared.text.special.mask
    table = np.asarray(params["embedding"]["input"])
    assert found["input_mask_norm"] == pytest.approx(3, rel=1e-6)
    assert found["output_mask_norm"] == pytest.approx(np.linalg.norm(table[mask]), rel=1e-6)
    norms = np.delete(np.linalg.norm(table, axis=1), mask)
    assert found["output_norm"] == pytest.approx(np.median(norms), rel=0.05)


def test_a_row_of_padding_stays_0_and_gets_no_gradient(experiment):
    task = task_of(experiment, "tied+input-norm=3")
    params, (_, batch) = task.init(jax.random.key(1), {}), targets_of(experiment)
    gradient = once(jax.grad(lambda params: task.loss(params, batch)[0]))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    pad = experiment.prepared.text.special.pad
    assert not np.any(task.effective(params)["embedding"]["input"][pad])


def test_blanks_and_norms_need_a_mask(experiment, corpus, tmp_path):
    with pytest.raises(UserError, match=r"blanks = 0\.3: expected objective = 'causal'"):
        TextExperiment(blanks=BLANKS)
    own = dataclasses.replace(corpus, form="documents", vocab_size=300)
    config = TextExperiment(corpus=own, **SMALL)
    text = prepare_text(own, tmp_path)
    with pytest.raises(UserError, match=r"the vocabulary has no \[MASK\]; set form='sentences'"):
        prepare_corpus(config, text)
    plain = dataclasses.replace(config, blanks=0.0, mask_norms=False)
    for name in ("tied+gain=mask", "untied+input-norm=3", "tied+untie-rows=mask"):
        with pytest.raises(UserError, match=r"the vocabulary has no \[MASK\]"):
            prepare_corpus(dataclasses.replace(plain, arms=(name,)), text)
    with pytest.raises(UserError, match="every token of this vocabulary can be a target"):
        prepare_corpus(dataclasses.replace(plain, arms=("tied+gain=never-targets",)), text)


@pytest.mark.slow
def test_a_run_with_a_learned_scale_is_the_tied_one_until_it_is_untied(experiment):
    arms = ("tied+learned-scale", "untied+learned-scale@10")
    results = jaxtie.run(dataclasses.replace(experiment, prepared=None, arms=arms), quiet=True)
    tied, midway = (results["loss"].sel(arm=arm).values for arm in arms)
    assert np.array_equal(tied[..., :2], midway[..., :2]) and tied[0, 2] != midway[0, 2]


def test_a_learned_scale_goes_on_where_an_arm_is_untied(experiment):
    """The logits are the same, and both trees have the scale."""
    params = task_of(experiment, "tied+learned-scale").init(jax.random.key(1), {})
    params["embedding"]["log_scale"] = params["embedding"]["log_scale"] + 0.5
    optimizer = optax.adamw(1e-3)
    untied, _ = untie(params, optimizer.init(params))
    assert {"input", "output", "log_scale"} == {*untied["embedding"]}
    batch = targets_of(experiment)[1]
    losses = []
    for start, own in (("tied", params), ("untied", untied)):
        task = task_of(experiment, f"{start}+learned-scale")
        losses.append(float(once(partial(task.loss, batch=batch))(own)[0]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.slow
def test_a_run_records_the_lengths_of_rows_by_role(experiment, tmp_path):
    own = dataclasses.replace(
        experiment, prepared=None, arms=("tied", "untied", "tied+gain=mask+learned-scale")
    )
    results = jaxtie.run(own, out=tmp_path / "run", quiet=True)
    assert {*MASK_NORMS} <= {*results} and results.sizes["eval_step"] == 2
    tied, untied = (results.sel(arm=arm, eval_step=20) for arm in ("tied", "untied"))
    assert tied["input_mask_norm"] == tied["output_mask_norm"] > 0
    assert untied["input_mask_norm"] != untied["output_mask_norm"]
    assert (
        "length of the row of [MASK], input embedding" in (tmp_path / "run/summary.md").read_text()
    )
