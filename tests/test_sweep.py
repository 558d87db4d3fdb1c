"""Seeds are independent: neither company, nor devices, nor chunks change a bit; and a sweep is the plain loop."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxtie import optim, sweep, train
from jaxtie.config import Experiment, Optimiser
from jaxtie.data import exor

SHORT = Experiment(steps=200, record_every=20, eval_every=100, seeds=tuple(range(20)))


def records(experiment: Experiment, arm: str, devices: int = 1, **options) -> dict[str, np.ndarray]:
    """All records of an arm, arrays (records, seeds, ...)."""
    program = sweep.compile_arm(experiment, arm, sweep.seed_mesh(len(experiment.seeds), jax.devices()[:devices]))
    rounds = {}
    for piece in sweep.run(program, experiment, **options):
        rounds.setdefault(piece.first_seed, []).append(piece.records)
    joined = [{k: np.concatenate([r[k] for r in pieces]) for k in pieces[0]} for _, pieces in sorted(rounds.items())]
    return {k: np.concatenate([r[k] for r in joined], axis=1) for k in joined[0]}


def assert_same_bits(one: dict, other: dict) -> None:
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.fixture(scope="module", params=["tied", "untied"])
def arm_and_records(request):
    return request.param, records(SHORT, request.param)


def test_a_seed_alone_gives_the_bits_it_gives_among_many(arm_and_records):
    arm, many = arm_and_records
    alone = records(dataclasses.replace(SHORT, seeds=(17,)), arm)
    assert_same_bits(alone, {name: value[:, 17:18] for name, value in many.items()})


def test_two_devices_give_the_bits_of_one(arm_and_records):
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices; the tests ask for two CPU devices before the backend starts")
    arm, one_device = arm_and_records
    assert_same_bits(records(SHORT, arm, devices=2), one_device)


def test_length_of_chunks_changes_no_bit(arm_and_records):
    arm, usual = arm_and_records
    assert_same_bits(records(SHORT, arm, chunk_seconds=0.0), usual)


def test_a_longer_run_begins_with_the_shorter_one(arm_and_records):
    arm, usual = arm_and_records
    shorter = records(dataclasses.replace(SHORT, steps=100), arm)
    assert_same_bits(shorter, {name: value[:6] for name, value in usual.items()})


def test_a_sweep_is_the_plain_loop():
    """Member by member and step by step, without vmap, scan or blocks."""
    experiment = dataclasses.replace(SHORT, steps=40)
    swept = records(experiment, "untied")
    process = experiment.process
    model = sweep.build_model(process, experiment.model, tied=False)
    adamw = optim.adamw(optim.periodic_cosine(5e-4, 1e-5, 10_000), weight_decay=0.1, b1=0.9, b2=0.999, eps=1e-12)
    bits = exor.split(process.length, process.all_strings, process.data_seed).train
    for seed in (0, 17):
        state = train.initial_state(model, adamw, jax.random.key(seed), 8)
        step = jax.jit(lambda state, batch, at: train.step(model, adamw, state, batch, at))
        losses = []
        for at in range(40):
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(14), seed), at)
            state, (loss, _) = step(state, exor.sample(key, bits, process.zeros, process.ones), at)
            losses.append(float(loss))
        np.testing.assert_allclose(swept["loss"][1:, seed], np.mean(np.reshape(losses, (2, 20)), axis=1), rtol=1e-5)
        np.testing.assert_allclose(swept["loss"][0, seed], losses[0], rtol=1e-6)
        table = np.asarray(state.params["embedding"]["input"])
        np.testing.assert_allclose(swept["input_table"][-1, seed], table, rtol=1e-4, atol=1e-5)
        gap = np.linalg.norm(table[0] - table[1])
        np.testing.assert_allclose(swept["input_distance"][-1, seed, 0, 1], gap, rtol=1e-4)


def test_arms_see_the_same_samples_and_seeds_do_not():
    """The loss of a model that ignores its input tells which targets were drawn."""
    per_seed, shared = (
        [records(dataclasses.replace(SHORT, steps=20, seeds=(0, 1), data=data), arm) for arm in ("tied", "untied")]
        for data in ("per-seed", "shared")
    )
    assert not np.array_equal(per_seed[0]["loss"][:, 0], shared[0]["loss"][:, 0])
    np.testing.assert_array_equal(per_seed[0]["input_table"][0], per_seed[1]["input_table"][0])


def test_a_member_that_diverges_is_frozen_and_disturbs_nobody():
    model = sweep.build_model(SHORT.process, SHORT.model, tied=True)
    sgd = optax.sgd(1.0)
    bits = exor.split(7, False, 14).train
    states = jax.vmap(lambda seed: train.initial_state(model, sgd, jax.random.key(seed), 8))(jnp.arange(3))
    broken = states._replace(params=jax.tree.map(lambda x: x.at[1].mul(1e30), states.params))
    batch = exor.sample(jax.random.key(0), bits, SHORT.process.zeros, SHORT.process.ones)
    step = jax.jit(jax.vmap(lambda state, at: train.step(model, sgd, state, batch, at), in_axes=(0, None)))
    healthy, after = states, broken
    for at in range(5):
        healthy, _ = step(healthy, at)
        after, _ = step(after, at)
    assert after.diverged_at.tolist() == [-1, 0, -1]
    for got, before, other in zip(*map(jax.tree.leaves, (after.params, broken.params, healthy.params)), strict=True):
        np.testing.assert_array_equal(got[1], before[1])
        np.testing.assert_array_equal(got[np.array([0, 2])], other[np.array([0, 2])])


def test_a_learning_rate_that_is_too_high_is_reported():
    wild = dataclasses.replace(SHORT, steps=100, seeds=(0, 1), optimiser=Optimiser(learning_rate=1e30, eta_min=0))
    seen = records(wild, "untied")
    assert (seen["diverged_at"][-1] >= 0).all()
    assert np.isfinite(seen["input_table"]).all()
