"""Seeds are independent: neither company, nor devices, nor chunks change a bit; and a sweep is the plain loop."""

import dataclasses
import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxtie import optim, sweep, train
from jaxtie.config import Experiment, Mixer, Optimiser
from jaxtie.data import exor

SHORT = Experiment(steps=200, record_every=20, eval_every=100, seeds=tuple(range(40)))


@functools.cache
def program(experiment: Experiment, arm: str, devices: int) -> sweep.Program:
    return sweep.compile_program(experiment, jax.devices()[:devices], tied=arm == "tied")


def records(
    experiment: Experiment, arm: str, *, like: Experiment = SHORT, devices: int = 1, threads: int = 1, **options
) -> dict[str, np.ndarray]:
    """All records of an arm, arrays (records, seeds, ...), by the program of `like`: other steps and seeds need no other."""
    workers = jax.devices()[:devices] * threads
    rounds = {}
    for piece in sweep.run(program(like, arm, devices), workers, experiment, **options):
        rounds.setdefault(int(piece.members.numbers[0]), []).append(piece.records)
    joined = [{k: np.concatenate([r[k] for r in pieces]) for k in pieces[0]} for _, pieces in sorted(rounds.items())]
    return {k: np.concatenate([r[k] for r in joined], axis=1) for k in joined[0]}


def setting(experiment: Experiment) -> sweep.Setting:
    return jax.tree.map(lambda x: x[0], sweep.stack_settings(experiment))


def assert_same_bits(one: dict, other: dict) -> None:
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_few_members_give_the_bits_of_many_in_a_mixer_too():
    """The transformer's are below; the half block of the one and the whole of the other are compiled differently."""
    many = dataclasses.replace(SHORT, steps=100, model=Mixer())
    few = dataclasses.replace(many, seeds=(0, 17, 39))
    own = records(few, "untied", like=few)
    assert_same_bits(own, {name: value[:, few.seeds] for name, value in records(many, "untied", like=many).items()})


@pytest.fixture(scope="module", params=["tied", "untied"])
def arm_and_records(request):
    return request.param, records(SHORT, request.param)


def test_a_seed_alone_gives_the_bits_it_gives_among_many(arm_and_records):
    arm, many = arm_and_records
    alone = dataclasses.replace(SHORT, seeds=(17,))
    among_many = {name: value[:, 17:18] for name, value in many.items()}
    for like in (SHORT, alone):  # in a block of the size that many have, and of its own
        assert_same_bits(records(alone, arm, like=like), among_many)


def test_two_threads_give_the_bits_of_one(arm_and_records):
    arm, one_thread = arm_and_records
    assert_same_bits(records(SHORT, arm, threads=2), one_thread)


def test_two_devices_give_the_bits_of_one(arm_and_records):
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices; the tests ask for two CPU devices before the backend starts")
    arm, one_device = arm_and_records
    assert_same_bits(records(SHORT, arm, devices=2), one_device)


def test_length_of_chunks_changes_no_bit(arm_and_records):
    arm, usual = arm_and_records
    assert_same_bits(records(SHORT, arm, chunk_seconds=1e-9), usual)


def test_a_longer_run_begins_with_the_shorter_one(arm_and_records):
    arm, usual = arm_and_records
    shorter = records(dataclasses.replace(SHORT, steps=100), arm)
    assert_same_bits(shorter, {name: value[:6] for name, value in usual.items()})


def test_a_sweep_is_the_plain_loop():
    """Member by member and step by step, without vmap, scan or blocks."""
    experiment = dataclasses.replace(SHORT, steps=40)
    swept = records(experiment, "untied")
    process = experiment.process
    model = sweep.build_model(experiment.model, tied=False)
    adamw = optim.adamw(optim.periodic_cosine(5e-4, 1e-5, 10_000), weight_decay=0.1, b1=0.9, b2=0.999, eps=1e-12)
    bits = exor.split(process.length, process.all_strings, process.data_seed).train
    for seed in (0, 17):
        state = jax.jit(lambda seed: train.initial_state(model, adamw, jax.random.key(seed), 8))(seed)
        step = jax.jit(lambda state, batch: train.step(model, adamw, state, batch))
        stream, losses = exor.stream(process.data_seed, seed), []
        for at in range(40):
            state, (loss, _) = step(state, exor.sample(stream, at, bits, process.zeros, process.ones))
            losses.append(float(loss))
        np.testing.assert_allclose(swept["loss"][1:, seed], np.mean(np.reshape(losses, (2, 20)), axis=1), rtol=1e-5)
        np.testing.assert_allclose(swept["loss"][0, seed], losses[0], rtol=1e-6)
        table = np.asarray(state.params["embedding"]["input"])
        np.testing.assert_allclose(swept["input_table"][-1, seed], table, rtol=1e-4, atol=1e-5)
        gap = np.linalg.norm(table[0] - table[1])
        np.testing.assert_allclose(swept["input_distance"][-1, seed, 0, 1], gap, rtol=1e-4)


def test_one_stream_for_all_seeds_or_one_for_each():
    """What a model sees first shows in the accuracy of the first batch, where the initial values are the same."""
    start = {}
    for data in ("per-seed", "shared"):
        member = sweep.make_member(dataclasses.replace(SHORT, data=data), tied=True)
        accuracy = lambda seed, member=member: member.start(seed, setting(SHORT))[2]["accuracy"]
        start[data] = jax.jit(jax.vmap(accuracy))(jnp.arange(9))
    assert not np.array_equal(start["per-seed"], start["shared"])
    streams = [np.asarray(exor.stream(14, seed)) for seed in (None, 0, 1)]
    assert len({stream.tobytes() for stream in streams}) == 3


def test_a_member_that_diverges_is_frozen_and_disturbs_nobody():
    model = sweep.build_model(SHORT.model, tied=True)
    sgd = optax.sgd(1.0)
    bits = exor.split(7, False, 14).train
    fresh = jax.vmap(lambda seed: train.initial_state(model, sgd, jax.random.key(seed), 8))
    states = jax.jit(fresh)(jnp.arange(3))
    broken = states._replace(params=jax.tree.map(lambda x: x.at[1].mul(1e30), states.params))

    @jax.jit
    @partial(jax.vmap, in_axes=(0, None))
    def advance(state, at):
        new, (loss, _) = train.step(model, sgd, state, exor.sample(exor.stream(14, 0), at, bits, (0.1, 0.9), (0.5, 0.5)))
        return train.keep_finite(new, state, loss, at)

    healthy, after = states, broken
    for at in range(5):
        healthy, after = advance(healthy, at), advance(after, at)
    assert after.diverged_at.tolist() == [-1, 0, -1]
    for got, before, other in zip(*map(jax.tree.leaves, (after.params, broken.params, healthy.params)), strict=True):
        np.testing.assert_array_equal(got[1], before[1])
        np.testing.assert_array_equal(got[np.array([0, 2])], other[np.array([0, 2])])


def test_a_learning_rate_that_is_too_high_is_reported():
    wild = dataclasses.replace(SHORT, optimiser=Optimiser(learning_rate=1e30, eta_min=0))
    member = sweep.make_member(wild, tied=False)
    state, stream, _ = jax.jit(member.start)(3, setting(wild))
    advance = jax.jit(member.advance)
    for step in (0, 20):
        state, seen = advance(state, stream, setting(wild), step)
        assert seen["diverged_at"] == 20
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def test_members_that_diverge_leave_the_others_the_bits_of_a_run_without_them():
    """At this learning rate products overflow in some members, at once or after many steps."""
    wild = dataclasses.replace(
        SHORT, optimiser=Optimiser(learning_rate=1e7, eta_min=0, weight_decay=0), seeds=tuple(range(32))
    )
    everyone = records(wild, "untied", like=wild)
    diverged_at = everyone["diverged_at"][-1]
    steady = np.flatnonzero(diverged_at < 0)
    assert 0 < len(steady) < 32
    assert len(np.unique(diverged_at)) > 2
    alone = records(dataclasses.replace(wild, seeds=tuple(steady.tolist())), "untied", like=wild)
    assert_same_bits(alone, {name: value[:, steady] for name, value in everyone.items()})
    first = np.argmax(diverged_at)
    frozen = everyone["input_distance"][diverged_at[first] // SHORT.record_every - 1 :, first]
    assert np.isfinite(frozen).all() and (frozen == frozen[:1]).all()


def test_untied_midway_is_tied_until_then_and_changes_nothing_at_that_step():
    worker, (first, second) = jax.devices()[:1], sweep.phases("untied@100", SHORT.steps)
    tied = list(sweep.run(program(SHORT, "tied", 1), worker, SHORT, until=first.until))
    standing = sweep.merge(*[piece.members for piece in tied])
    assert set(standing.steps.tolist()) == {100}
    opened = sweep.untie(SHORT, standing)
    for name, leaf in opened.states.items():
        np.testing.assert_array_equal(leaf, standing.states[name.replace("['output']", "['input']")], err_msg=name)
    assert sum("['output']" in name for name in opened.states) == 3  # the table and its two moments
    exact = [
        jax.jit(jax.vmap(sweep.make_member(SHORT, tied=is_tied).evaluate, in_axes=(0, None)))(
            sweep.unflatten(program(SHORT, "tied" if is_tied else "untied", 1).states, members.states), setting(SHORT)
        )
        for is_tied, members in ((True, standing), (False, opened))
    ]
    for name in ("train_loss", "valid_loss", "log_odds"):
        np.testing.assert_allclose(exact[1][name], exact[0][name], rtol=0, atol=1e-6, err_msg=name)
    untied = list(sweep.run(program(SHORT, "untied", 1), worker, SHORT, members=opened, until=second.until))
    joined = [piece for piece in (*tied, *untied) if piece.members.numbers[0] == 0]
    loss = np.concatenate([piece.records["loss"] for piece in joined])
    always_tied = records(SHORT, "tied")["loss"][:, :32]
    np.testing.assert_array_equal(loss[:6], always_tied[:6])
    np.testing.assert_allclose(loss[6], always_tied[6], rtol=1e-2)  # nothing starts anew
    assert (loss[7:] != always_tied[7:]).any(axis=1).all()


def test_speed_is_measured_before_the_step_of_untying():
    later = dataclasses.replace(SHORT, arms=("untied@100",))
    assert sweep.seconds_per_record(program(SHORT, "untied", 1), jax.devices()[:1], later) > 0


SWEPT = (("weight_decay", (0.0, 0.1)), ("p_X", (0.1, 0.5)), ("learning_rate", (1e-4, 5e-4)), ("p_A", (0.2, 0.5)))


@pytest.mark.parametrize("arm", ["tied", "untied"])
def test_a_swept_member_gives_the_bits_of_its_setting_alone(arm):
    swept = dataclasses.replace(SHORT, seeds=(0, 17, 5), sweep=SWEPT)
    together = records(swept, arm)  # 48 members in two blocks, by a program that knows no sweep
    for at in (0, 6, 15):
        alone = swept.settings[at]
        assert alone.optimiser.weight_decay == SWEPT[0][1][at // 8] and alone.process.ones[0] == SWEPT[3][1][at % 2]
        assert_same_bits(records(alone, arm, like=alone), {k: v[:, 3 * at : 3 * at + 3] for k, v in together.items()})


def test_exact_evaluations_are_of_the_members_own_process():
    swept = dataclasses.replace(SHORT, seeds=(3,), sweep=(("p_X", (0.0, 0.3, 1.0)),))
    last = {name: value[-1] for name, value in records(swept, "untied").items()}
    assert np.isfinite(last["train_loss"]).all() and len(np.unique(last["train_loss"])) == 3
    one = jax.jit(sweep.make_member(SHORT, tied=False).start)(3, setting(swept.settings[1]))[2]["train_loss"]
    first = records(swept, "untied")["train_loss"][0]
    np.testing.assert_allclose(first[1], one, rtol=1e-6)
