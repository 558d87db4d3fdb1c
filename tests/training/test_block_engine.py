"""Neither company, devices nor chunks change a bit of a seed; a sweep needs no more programs."""

import dataclasses
import runpy
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax
import numpy as np
import pytest
from bodies import once
from quickly import as_users

from jaxtie.config import Mixer, Optimizer, Transformer, Variant
from jaxtie.exor.config import Experiment
from jaxtie.training.block_engine import (
    BlockEngine,
    BlockProgram,
    BlockRun,
    batch_members,
    compile_block,
    layout_of,
    lower,
    members_per_block,
)
from jaxtie.training.distributed import Processes
from jaxtie.training.member import make_member, update
from jaxtie.training.optimizer import make_optimizer
from jaxtie.training.task import Chunk, State, phases_of
from jaxtie.training.trainer import estimate

SHORT = Experiment(steps=200, record_every=20, eval_every=100, seeds=tuple(range(40)))
ONE_DEVICE = tuple(jax.devices()[:1])
EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(autouse=True, scope="module")
def compiled_as_users_do():
    """Bits of programs of several sizes are compared here."""
    with as_users():
        yield


def block_of(config: Experiment) -> int:
    return members_per_block(layout_of(config, "cpu"), len(config.members))


def program(
    config: Experiment,
    arm: str,
    like: Experiment = SHORT,
    devices: Sequence[jax.Device] = ONE_DEVICE,
) -> BlockProgram:
    """Compile an arm, for blocks of the size that `like` gets."""
    key, variant = config.program_key(), Variant(arm == "tied")
    layout, own = layout_of(config, "cpu"), tuple(dict.fromkeys(devices))
    return compile_block(key, variant, layout, block_of(like), own)


def records(
    config: Experiment,
    arm: str,
    *,
    like: Experiment = SHORT,
    workers: Sequence[jax.Device] = ONE_DEVICE,
    chunk_seconds: float = 1.0,
) -> dict[str, np.ndarray]:
    """Return all records of an arm, arrays (records, members, ...)."""
    compiled = program(config, arm, like, workers)
    run = BlockRun(compiled, workers, config, config.steps, chunk_seconds)
    return joined(run.chunks(config.members, None))


def joined(chunks: Iterable[Chunk]) -> dict[str, np.ndarray]:
    """Return the records of all members, in their order."""
    blocks: dict[int, list] = {}
    for chunk in chunks:
        blocks.setdefault(int(chunk.numbers[0]), []).append(chunk.records)
    whole = [
        {name: np.concatenate([each[name] for each in block]) for name in block[0]}
        for _, block in sorted(blocks.items())
    ]
    return {name: np.concatenate([each[name] for each in whole], axis=1) for name in whole[0]}


def assert_same_bits(one: dict, other: dict) -> None:
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def select(found: dict[str, np.ndarray], members) -> dict[str, np.ndarray]:
    return {name: value[:, members] for name, value in found.items()}


@pytest.mark.slow
def test_few_members_of_a_mixer_give_the_bits_of_many():
    """A transformer's are below."""
    many = dataclasses.replace(SHORT, steps=100, model=Mixer())
    few = dataclasses.replace(many, seeds=(0, 17, 39))
    everyone = records(many, "untied", like=many)
    assert_same_bits(records(few, "untied", like=few), select(everyone, few.seeds))


@pytest.fixture(scope="module", params=[pytest.param("tied", marks=pytest.mark.slow), "untied"])
def arm_and_records(request):
    return request.param, records(SHORT, request.param)


@pytest.mark.slow
def test_a_seed_alone_gives_the_bits_it_gives_among_many(arm_and_records):
    arm, many = arm_and_records
    alone = dataclasses.replace(SHORT, seeds=(17,))
    assert_same_bits(records(alone, arm, like=alone), select(many, [17]))


@pytest.mark.parametrize("how", [{"workers": ONE_DEVICE * 2}, {"chunk_seconds": 1e-9}])
def test_threads_and_chunks_change_no_bit(arm_and_records, how):
    arm, usual = arm_and_records
    assert_same_bits(records(SHORT, arm, **how), usual)


@pytest.mark.slow  # the program is compiled for the second one too
def test_two_devices_give_the_bits_of_one():
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices; the tests ask for two before the backend starts")
    assert_same_bits(records(SHORT, "untied", workers=jax.devices()[:2]), records(SHORT, "untied"))


def test_a_longer_run_begins_with_the_shorter_one(arm_and_records):
    arm, usual = arm_and_records
    shorter = records(dataclasses.replace(SHORT, steps=100), arm)
    assert_same_bits(shorter, {name: value[:6] for name, value in usual.items()})


def test_a_block_is_the_plain_loop():
    """Member by member and step by step, without vmap, scan or lanes."""
    config, variant = dataclasses.replace(SHORT, steps=40), Variant(False)
    found, task = records(config, "untied"), config.build(variant, "cpu")
    rule, hparams = make_optimizer(config.optimizer), task.hparams()

    @once
    def start(seed):
        params = task.init(jax.random.key(seed), hparams)
        return State(params, rule.init(params), -1)

    @once
    def advance(state, batch):
        return update(lambda params: task.loss(params, batch), rule, state)

    for seed in (0, 17):
        state, losses = start(seed), []
        for at in range(40):
            state, (loss, _) = advance(state, task.batch(task.stream(seed), hparams, at, None))
            losses.append(float(loss))
        means = np.mean(np.reshape(losses, (2, 20)), axis=1)
        np.testing.assert_allclose(found["loss"][1:, seed], means, rtol=1e-5)
        np.testing.assert_allclose(found["loss"][0, seed], losses[0], rtol=1e-6)
        table = np.asarray(state.params["embedding"]["input"])
        np.testing.assert_allclose(found["input_table"][-1, seed], table, rtol=1e-4, atol=1e-5)
        gap = np.linalg.norm(table[0] - table[1])
        np.testing.assert_allclose(found["input_distance"][-1, seed, 0, 1], gap, rtol=1e-4)


def test_members_that_diverge_leave_the_bits_of_the_others_alone():
    """At this learning rate products overflow in some members; which ones depends on rounding."""
    optimizer = Optimizer(learning_rate=1e7, eta_min=0, weight_decay=0)
    wild = dataclasses.replace(SHORT, optimizer=optimizer, seeds=tuple(range(32)))
    everyone = records(wild, "untied", like=wild)
    diverged_at = everyone["diverged_at"][-1]
    steady = np.flatnonzero(diverged_at < 0)
    assert 0 < len(steady) < 32
    alone = records(dataclasses.replace(wild, seeds=tuple(steady.tolist())), "untied", like=wild)
    assert_same_bits(alone, select(everyone, steady))
    first = np.argmax(diverged_at)
    frozen = everyone["input_distance"][diverged_at[first] // SHORT.record_every - 1 :, first]
    assert np.isfinite(frozen).all() and (frozen == frozen[:1]).all()


def test_speed_is_measured_before_the_step_of_untying():
    later = dataclasses.replace(SHORT, arms=("untied@100",))
    engine = BlockEngine(later, Processes())
    engine.workers = [*ONE_DEVICE]
    assert estimate(engine, program(SHORT, "untied")).seconds > 0


SWEPT = (
    ("weight_decay", (0.0, 0.1)),
    ("p_X", (0.1, 0.5)),
    ("learning_rate", (1e-4, 5e-4)),
    ("p_A", (0.2, 0.5)),
)


@pytest.mark.parametrize("arm", [pytest.param("tied", marks=pytest.mark.slow), "untied"])
def test_a_swept_member_gives_the_bits_of_its_sweep_point_alone(arm):
    swept = dataclasses.replace(SHORT, seeds=(0, 17, 5), sweep=SWEPT)
    together = records(swept, arm)  # 48 members in two blocks, by a program that knows no sweep
    for at in (0, 6, 15):
        alone = swept.traced_points[at]
        assert alone.optimizer.weight_decay == SWEPT[0][1][at // 8]
        assert alone.process.ones[0] == SWEPT[3][1][at % 2]
        own = select(together, slice(3 * at, 3 * at + 3))
        assert_same_bits(records(alone, arm, like=alone), own)


def test_exact_evaluations_are_of_the_members_own_process():
    swept = dataclasses.replace(SHORT, seeds=(3,), sweep=(("p_X", (0.0, 0.3, 1.0)),))
    found = records(swept, "untied")["train_loss"]
    assert np.isfinite(found[-1]).all() and len(np.unique(found[-1])) == 3
    variant, point = Variant(False), swept.traced_points[1]
    task = point.build(variant, "cpu")
    start = once(make_member(task).start)
    one = start(np.uint32(3), task.hparams())[2]["train_loss"]
    np.testing.assert_allclose(found[0, 1], one, rtol=1e-6)


def declared(name: str) -> Experiment:
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
}


def key_of(config: Experiment) -> tuple[Experiment, Variant]:
    """Return the key of the program of the first phase."""
    return config.program_key(), phases_of(config.arms[0], config.steps)[0].variant


def lowered(config: Experiment) -> str:
    """Return the text of the program of the first phase, before it is compiled."""
    own, variant = key_of(config)
    _, advance = batch_members(own, variant, layout_of(config, "cpu"), block_of(config), "cpu")
    return lower(*advance, ONE_DEVICE[0]).as_text()


@pytest.mark.slow
def test_a_program_does_not_depend_on_hyperparameters():
    """Its text, and its key among compiled programs, are equal for all; others have other keys."""
    main = lowered(SHARING["main"])
    assert len(main) > 100_000
    for name, config in SHARING.items():
        assert key_of(config) == key_of(SHARING["main"]), name
        assert lowered(config) == main, name
    assert lowered(OTHERS["model"]) != main
    keys = {key_of(config) for config in (SHARING["main"], *OTHERS.values())}
    assert len(keys) == 1 + len(OTHERS)


@pytest.mark.slow
def test_the_phases_of_an_arm_that_unties_are_the_programs_of_arms_that_do_not():
    engine = BlockEngine(
        dataclasses.replace(SHORT, arms=("tied", "untied", "untied@100")), Processes()
    )
    programs = [
        engine.compile(phase) for arm in engine.config.arms for phase in phases_of(arm, 200)
    ]
    assert programs[2] is programs[0] and programs[3] is programs[1]
