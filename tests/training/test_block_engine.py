"""Seeds are independent: neither company, nor devices, nor chunks change a bit. What differs in
settings shares a program.
"""

import dataclasses
import runpy
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest
from bodies import once
from jaxtie.exor.blocks import Program, batch_members, block_of, compile_block, lower_advance
from jaxtie.exor.engine import BlockRun, ExorEngine, seconds_per_record, untie_members
from quickly import as_users

from jaxtie.config import Arm, Mixer, Optimizer, Transformer
from jaxtie.exor import data
from jaxtie.exor.config import Experiment
from jaxtie.exor.task import Setting, Static, build_model, make_member, stack_settings, step
from jaxtie.training.distributed import Processes
from jaxtie.training.member import initial_state, stream
from jaxtie.training.optimizer import adamw, periodic_cosine
from jaxtie.training.task import Members, Piece, merge, phases_of, unflatten

SHORT = Experiment(steps=200, record_every=20, eval_every=100, seeds=tuple(range(40)))
ONE_DEVICE = tuple(jax.devices()[:1])
EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(autouse=True, scope="module")
def compiled_as_users_do():
    """What is compared to the bit here are programs of several sizes."""
    with as_users():
        yield


def program(
    experiment: Experiment,
    arm: str,
    like: Experiment = SHORT,
    devices: Sequence[jax.Device] = ONE_DEVICE,
) -> Program:
    """Of the plain arm of an experiment, for blocks of the size that `like` gets."""
    return compile_block(
        Static.of(experiment, tied=arm == "tied"), block_of(like, devices), devices
    )


def records(
    experiment: Experiment,
    arm: str,
    *,
    like: Experiment = SHORT,
    workers: Sequence[jax.Device] = (),
    chunk_seconds=1.0,
) -> dict[str, np.ndarray]:
    """All records of an arm, arrays (records, members, ...), in blocks of the size that `like`
    gets.
    """
    workers = workers or ONE_DEVICE
    run = BlockRun(
        program(experiment, arm, like, workers),
        workers,
        experiment,
        experiment.steps,
        chunk_seconds,
    )
    return joined(run.pieces(experiment.members, None))


def joined(pieces: Sequence[Piece]) -> dict[str, np.ndarray]:
    """The records of all members, in their order."""
    blocks: dict[int, list] = {}
    for piece in pieces:
        blocks.setdefault(int(piece.numbers[0]), []).append(piece.records)
    whole = [
        {name: np.concatenate([each[name] for each in block]) for name in block[0]}
        for _, block in sorted(blocks.items())
    ]
    return {name: np.concatenate([each[name] for each in whole], axis=1) for name in whole[0]}


def setting(experiment: Experiment) -> Setting:
    """Of an experiment that sweeps nothing."""
    return jax.tree.map(lambda x: x[0], stack_settings(experiment))


def assert_same_bits(one: dict, other: dict) -> None:
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.slow
def test_few_members_give_the_bits_of_many_in_a_mixer_too():
    """The transformer's are below."""
    many = dataclasses.replace(SHORT, steps=100, model=Mixer())
    few = dataclasses.replace(many, seeds=(0, 17, 39))
    own = records(few, "untied", like=few)
    assert_same_bits(
        own,
        {name: value[:, few.seeds] for name, value in records(many, "untied", like=many).items()},
    )


@pytest.fixture(scope="module", params=[pytest.param("tied", marks=pytest.mark.slow), "untied"])
def arm_and_records(request):
    return request.param, records(SHORT, request.param)


def test_a_seed_alone_gives_the_bits_it_gives_among_many(arm_and_records):
    arm, many = arm_and_records
    alone = dataclasses.replace(SHORT, seeds=(17,))
    assert_same_bits(
        records(alone, arm, like=alone), {name: value[:, 17:18] for name, value in many.items()}
    )


def test_two_threads_give_the_bits_of_one(arm_and_records):
    arm, one_thread = arm_and_records
    assert_same_bits(records(SHORT, arm, workers=jax.devices()[:1] * 2), one_thread)


@pytest.mark.slow  # the program is compiled for the second one too
def test_two_devices_give_the_bits_of_one():
    if len(jax.devices()) < 2:
        pytest.skip(
            "needs two devices; the tests ask for two CPU devices before the backend starts"
        )
    assert_same_bits(records(SHORT, "untied", workers=jax.devices()[:2]), records(SHORT, "untied"))


def test_length_of_chunks_changes_no_bit(arm_and_records):
    arm, usual = arm_and_records
    assert_same_bits(records(SHORT, arm, chunk_seconds=1e-9), usual)


def test_a_longer_run_begins_with_the_shorter_one(arm_and_records):
    arm, usual = arm_and_records
    shorter = records(dataclasses.replace(SHORT, steps=100), arm)
    assert_same_bits(shorter, {name: value[:6] for name, value in usual.items()})


def test_a_block_is_the_plain_loop():
    """Member by member and step by step, without vmap, scan or lanes."""
    experiment = dataclasses.replace(SHORT, steps=40)
    found = records(experiment, "untied")
    own = experiment.process
    model = build_model(Static.of(experiment, tied=False))
    rule = adamw(periodic_cosine(5e-4, 1e-5, 10_000), weight_decay=0.1, b1=0.9, b2=0.999, eps=1e-12)
    bits = data.split(own.length, own.all_strings, own.data_seed).train
    start = once(lambda seed: initial_state(model, rule, jax.random.key(seed), 8))
    advance = once(lambda state, batch: step(model, rule, state, batch))
    for seed in (0, 17):
        state, losses = start(seed), []
        for at in range(40):
            batch = data.sample(stream(own.data_seed, seed), at, bits, own.zeros, own.ones)
            state, (loss, _) = advance(state, batch)
            losses.append(float(loss))
        np.testing.assert_allclose(
            found["loss"][1:, seed], np.mean(np.reshape(losses, (2, 20)), axis=1), rtol=1e-5
        )
        np.testing.assert_allclose(found["loss"][0, seed], losses[0], rtol=1e-6)
        table = np.asarray(state.params["embedding"]["input"])
        np.testing.assert_allclose(found["input_table"][-1, seed], table, rtol=1e-4, atol=1e-5)
        gap = np.linalg.norm(table[0] - table[1])
        np.testing.assert_allclose(found["input_distance"][-1, seed, 0, 1], gap, rtol=1e-4)


def test_members_that_diverge_leave_the_others_the_bits_of_a_run_without_them():
    """At this learning rate products overflow in some members; when, and in which, depends on how
    JAX rounds.
    """
    wild = dataclasses.replace(
        SHORT,
        optimizer=Optimizer(learning_rate=1e7, eta_min=0, weight_decay=0),
        seeds=tuple(range(32)),
    )
    everyone = records(wild, "untied", like=wild)
    diverged_at = everyone["diverged_at"][-1]
    steady = np.flatnonzero(diverged_at < 0)
    assert 0 < len(steady) < 32
    alone = records(dataclasses.replace(wild, seeds=tuple(steady.tolist())), "untied", like=wild)
    assert_same_bits(alone, {name: value[:, steady] for name, value in everyone.items()})
    first = np.argmax(diverged_at)
    frozen = everyone["input_distance"][diverged_at[first] // SHORT.record_every - 1 :, first]
    assert np.isfinite(frozen).all() and (frozen == frozen[:1]).all()


def exact(members: Members, arm: str) -> dict[str, np.ndarray]:
    """Exact evaluations of members of SHORT where they stand."""
    evaluate = make_member(Static.of(SHORT, tied=arm == "tied")).evaluate
    states = unflatten(program(SHORT, arm).states, members.states)
    return once(jax.vmap(evaluate, in_axes=(0, None)))(states, setting(SHORT))


@pytest.mark.slow
def test_untied_midway_is_tied_until_then_and_changes_nothing_at_that_step():
    worker, (first, second) = jax.devices()[:1], phases_of(Arm.parse("untied@100"), SHORT.steps)
    assert (first.tied, first.until, second.tied, second.until) == (True, 100, False, 200)
    tied = list(
        BlockRun(program(SHORT, "tied"), worker, SHORT, first.until).pieces(SHORT.members, None)
    )
    standing = merge(*[piece.members for piece in tied])
    assert standing.numbers.tolist() == [*SHORT.members] and set(standing.steps.tolist()) == {100}
    opened = untie_members(SHORT, second, standing)
    for name, leaf in opened.states.items():
        np.testing.assert_array_equal(
            leaf, standing.states[name.replace("['output']", "['input']")], err_msg=name
        )
    assert sum("['output']" in name for name in opened.states) == 3  # the table and its two moments
    before, after = exact(standing, "tied"), exact(opened, "untied")
    for name in ("train_loss", "valid_loss", "log_odds"):
        np.testing.assert_allclose(after[name], before[name], rtol=0, atol=1e-6, err_msg=name)
    untied = BlockRun(program(SHORT, "untied"), worker, SHORT, second.until).pieces(
        SHORT.members, opened
    )
    loss = joined([*tied, *untied])["loss"]
    always_tied = records(SHORT, "tied")["loss"]
    np.testing.assert_array_equal(loss[:6], always_tied[:6])
    np.testing.assert_allclose(loss[6], always_tied[6], rtol=1e-2)  # nothing starts anew
    assert (loss[7:] != always_tied[7:]).any(axis=1).all()


def test_speed_is_measured_before_the_step_of_untying():
    later = dataclasses.replace(SHORT, arms=("untied@100",))
    assert seconds_per_record(program(SHORT, "untied"), jax.devices()[:1], later) > 0


SWEPT = (
    ("weight_decay", (0.0, 0.1)),
    ("p_X", (0.1, 0.5)),
    ("learning_rate", (1e-4, 5e-4)),
    ("p_A", (0.2, 0.5)),
)


@pytest.mark.parametrize("arm", [pytest.param("tied", marks=pytest.mark.slow), "untied"])
def test_a_swept_member_gives_the_bits_of_its_setting_alone(arm):
    swept = dataclasses.replace(SHORT, seeds=(0, 17, 5), sweep=SWEPT)
    together = records(swept, arm)  # 48 members in two blocks, by a program that knows no sweep
    for at in (0, 6, 15):
        alone = swept.settings[at]
        assert (
            alone.optimizer.weight_decay == SWEPT[0][1][at // 8]
            and alone.process.ones[0] == SWEPT[3][1][at % 2]
        )
        assert_same_bits(
            records(alone, arm, like=alone),
            {k: v[:, 3 * at : 3 * at + 3] for k, v in together.items()},
        )


def test_exact_evaluations_are_of_the_members_own_process():
    swept = dataclasses.replace(SHORT, seeds=(3,), sweep=(("p_X", (0.0, 0.3, 1.0)),))
    found = records(swept, "untied")
    assert (
        np.isfinite(found["train_loss"][-1]).all() and len(np.unique(found["train_loss"][-1])) == 3
    )
    member = make_member(Static.of(SHORT, tied=False))
    one = once(member.start)(np.uint32(3), setting(swept.settings[1]))[2]["train_loss"]
    np.testing.assert_allclose(found["train_loss"][0, 1], one, rtol=1e-6)


def declared(name: str) -> Experiment:
    """What an experiment file declares."""
    return runpy.run_path(str(EXPERIMENTS / f"{name}.py"))["experiment"]


SHARING = {  # each has 64 members or more, whose first phase is tied
    "main": declared("transformer_small"),
    "ndh": declared("transformer_ndh"),
    "ydh": declared("transformer_ydh"),
    "swept": Experiment(arms=("tied",), sweep=(("weight_decay", (0.0, 0.1, 0.3)),)),
    "untied midway": dataclasses.replace(declared("untie_midway"), arms=("untied@25000",)),
}
OTHERS = {
    "model": Experiment(arms=("tied",), model=Transformer(feedforward=8)),
    "untied": Experiment(arms=("untied",)),
    "head": Experiment(arms=("tied+half-swap",)),
    "records": SHORT,
    "one stream": Experiment(data="shared"),
}


def static_of(experiment: Experiment) -> Static:
    """Of the first phase of its first arm."""
    first = phases_of(experiment.arms[0], experiment.steps)[0]
    return Static.of(experiment, tied=first.tied, head=first.arm.head)


def lowered(experiment: Experiment) -> str:
    """The text of what trains a block of the first phase, before it is compiled."""
    device = jax.devices()[0]
    batched = batch_members(static_of(experiment), block_of(experiment, [device]), device.platform)
    return lower_advance(batched, device).as_text()


def test_what_differs_in_settings_alone_is_one_program():
    """Proved by its text; what differs in more is another one."""
    main = lowered(SHARING["main"])
    assert len(main) > 100_000
    for name, experiment in SHARING.items():
        assert lowered(experiment) == main, name
    assert lowered(OTHERS["model"]) != main


@pytest.mark.slow
def test_what_is_one_program_is_compiled_once(monkeypatch):
    """Whoever asks for it; the phases of an arm that unties are the programs of arms that do
    not.
    """
    compiled = {tied: program(SHORT, "tied" if tied else "untied") for tied in (True, False)}
    # as these programs have it
    often = {
        "record_every": SHORT.record_every,
        "eval_every": SHORT.eval_every,
    }
    # and their devices
    monkeypatch.setattr("jaxtie.exor.engine.assign_workers", lambda *_: [*compiled[True].advance])
    for name, experiment in SHARING.items():
        assert static_of(experiment) == static_of(SHARING["main"]), name
        engine = ExorEngine(dataclasses.replace(experiment, **often), Processes())
        for arm in engine.experiment.arms:
            for phase in phases_of(arm, engine.experiment.steps):
                assert engine.compile(phase) is compiled[phase.tied], (name, phase.name)
    assert len(
        {static_of(experiment) for experiment in (SHARING["main"], *OTHERS.values())}
    ) == 1 + len(OTHERS)
