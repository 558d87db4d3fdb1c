"""The row engine on text: chunks, heads, untying, devices, and which runs share a program."""

import dataclasses
import functools
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bodies import once

from jaxtie.config import Arm, Head
from jaxtie.models.language_model import TextModel
from jaxtie.run.experiment_files import load_experiment
from jaxtie.text.config import TextExperiment
from jaxtie.text.corpus import prepare_corpus
from jaxtie.text.data.tokens import prepare_text
from jaxtie.text.masking import Targets
from jaxtie.text.task import TextTask
from jaxtie.training import row_engine
from jaxtie.training.distributed import Processes
from jaxtie.training.member import update
from jaxtie.training.optimizer import make_optimizer
from jaxtie.training.row_engine import MemberRun, RowEngine, load_carry
from jaxtie.training.task import Chunk, Control, Members, Phase, State, phases_of, stream
from jaxtie.training.trainer import estimate

SEED = 3
HEADS = ("tied+bias", "untied+bias@20", "tied+half-swap+input-gradient=0")
MORE_HEADS = (
    "untied tied+shuffle tied+projection tied+bert-head tied+logit-softcap=30"
    " tied+logit-scale=1-by-root-D untied+bias"
)


def small(place: Any, name: str, **changes: Any) -> TextExperiment:
    """Return a cheap variant of an experiment, prepared."""
    declared = load_experiment(place / f"{name}.py")
    size = 300 if declared.corpus.form == "documents" else 120
    own = {"paths": (str(place / "corpus"),), "vocab_size": size}
    corpus = dataclasses.replace(declared.corpus, **own)
    config = dataclasses.replace(declared, corpus=corpus, **changes)
    return dataclasses.replace(config, prepared=prepare_corpus(config, prepare_text(corpus)))


@pytest.fixture(scope="module")
def masked(place) -> TextExperiment:
    return small(place, "text_mlm", buckets=(16,), contexts=0)  # sooner compiled


@pytest.fixture(scope="module")
def causal(place) -> TextExperiment:
    return small(place, "text_clm", arms=HEADS)


def engine_of(config: TextExperiment, devices: int = 1) -> RowEngine:
    return RowEngine(config, Processes(), jax.devices()[:devices])


def phase(name: str, part: int = 0) -> Phase:
    """Return a phase of an arm that trains for 40 steps."""
    return phases_of(Arm.parse(name), 40)[part]


def train(
    engine: RowEngine, name: str, until: int, known: Members | None = None, part: int = 0
) -> list[Chunk]:
    """Return all chunks of a phase, each with its members."""
    program = engine.compile(phase(name, part))
    return list(engine.run(program, (SEED,), known, until, Control([], lambda: True)))


def losses_of(chunks: list[Chunk]) -> list[float]:
    return [chunk.records["loss"].item() for chunk in chunks if chunk.records]


def state_of(engine: RowEngine, of: Phase, members: Members) -> State:
    return load_carry(engine.compile(of).shapes, members).state


def validate(engine: RowEngine, of: Phase, members: Members) -> float:
    """Return the validation loss of a member."""
    program = engine.compile(of)
    params = jax.tree.map(program.place, state_of(engine, of, members).params)
    return engine.evaluate(program, params)["valid_loss"].item()


def assert_same_leaves(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, leaf in expected.items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)


def test_two_devices_share_a_batch(masked):
    """Every mask and every mean is that of one device."""
    found = []
    for count in (1, 2):
        engine = engine_of(masked, devices=count)
        assert engine.mesh.size == count
        found.append(losses_of(train(engine, "tied", 20)))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


def test_chunks_have_members_where_they_are_wanted_and_at_the_end(masked):
    """Copying a model of text costs."""
    engine = engine_of(masked)
    program, asked = engine.compile(phase("tied")), iter([False, True, False] + [False] * 30)
    chunks = list(engine.run(program, (SEED,), None, 20, Control([])))
    assert [chunk.members is not None for chunk in chunks] == [False] * 20 + [True]
    assert [chunk.updates for chunk in chunks] == [0] + [1] * 20
    assert sum(chunk.tokens for chunk in chunks) > 20 * 16 * 4
    assert [chunk.first_record for chunk in chunks if chunk.records] == [0, 1, 2]
    run = MemberRun(engine, program, SEED, None, 5)
    wanted = [chunk.members is not None for chunk in run.chunks(Control([], lambda: next(asked)))]
    assert wanted == [False, True, False, False, False, True]


def test_a_stopped_member_goes_on_with_the_same_bits(masked):
    engine = engine_of(masked)
    whole, program, stopped = train(engine, "tied", 20), engine.compile(phase("tied")), []
    first = []
    for chunk in engine.run(program, (SEED,), None, 20, Control(stopped)):
        first.append(chunk)
        if len(first) == 8:
            stopped.append(2)
    assert first[-1].members.steps.tolist() == [8]
    rest = train(engine, "tied", 20, first[-1].members)
    assert losses_of([*first, *rest]) == losses_of(whole)
    assert_same_leaves(rest[-1].members.states, whole[-1].members.states)


def test_members_side_by_side_have_the_bits_of_one_after_the_other(masked, monkeypatch):
    """For any number of them; large ones are trained one after the other."""
    engine, seeds = engine_of(masked), (SEED, 4, 5)
    program, found = engine.compile(phase("tied")), {}
    for cores in (1, 2):
        monkeypatch.setitem(engine.facts, "workers", cores)
        assert engine.at_a_time(program) == cores
        chunks = list(engine.run(program, seeds, None, 20, Control([])))
        order = [chunk.numbers.item() for chunk in chunks]
        of_each = [[chunk for chunk in chunks if chunk.numbers == seed] for seed in seeds]
        found[cores] = [(losses_of(each), each[-1].members.states) for each in of_each]
        assert sum(chunk.updates for chunk in chunks) == 3 * 20
        assert [len(each) for each in of_each] == [21] * 3
        last_of_first = max(i for i, number in enumerate(order) if number == SEED)
        assert (order.index(4) < last_of_first) == (cores == 2)
    for (losses, states), (other_losses, other_states) in zip(*found.values(), strict=True):
        assert losses == other_losses
        assert_same_leaves(other_states, states)
    monkeypatch.setattr(row_engine, "SIDE_BY_SIDE", 1)
    assert engine.at_a_time(program) == 1


def test_an_estimate_of_members_side_by_side_counts_their_evaluations_once(masked, monkeypatch):
    """Members evaluate at the same time, for longer than all of the steps that are timed."""
    engine = engine_of(dataclasses.replace(masked, seeds=(SEED, 4)))
    evaluate, needed = RowEngine.evaluate, 0.5

    def slow(*args: Any) -> dict:
        time.sleep(needed)
        return evaluate(*args)

    monkeypatch.setattr(RowEngine, "evaluate", slow)
    monkeypatch.setitem(engine.facts, "workers", 2)
    found = estimate(engine, engine.compile(phase("tied")))
    assert found.seconds > needed * len(masked.eval_steps) and "-" not in found.speed


def test_members_stopped_side_by_side_all_hand_out_their_state(masked, monkeypatch):
    engine, stopped, last = engine_of(masked), [], {}
    monkeypatch.setitem(engine.facts, "workers", 2)
    chunks = engine.run(engine.compile(phase("tied")), (SEED, 4, 5), None, 20, Control(stopped))
    for number, chunk in enumerate(chunks):
        last[chunk.numbers.item()] = chunk
        if number == 8:
            stopped.append(2)
    assert set(last) == {SEED, 4}
    assert all(chunk.members.steps.item() < 20 for chunk in last.values())


def test_programs_are_shared_where_all_they_depend_on_is_equal(masked, monkeypatch):
    """They are not compiled here."""
    monkeypatch.setattr(row_engine, "_compile", lambda *_: object())
    compile_rows = functools.lru_cache(8)(row_engine.compile_rows.__wrapped__)
    monkeypatch.setattr(row_engine, "compile_rows", compile_rows)

    def program(of: str, part: int = 0, **changes: Any) -> object:
        config = dataclasses.replace(masked, **changes)
        return engine_of(config).compile(phase(of, part))

    tied, untied = program("tied"), program("untied")
    alike = {"name": "other", "claim": "other", "seeds": (1, 2), "arms": ("tied", "untied@40")}
    alike |= {"steps": 60, "record_every": 5, "eval_every": 10}
    assert program("tied", **alike) is program("untied@20", **alike) is tied is not untied
    assert program("untied", **alike) is program("untied@20", 1, **alike) is untied
    slower = dataclasses.replace(masked.optimizer, learning_rate=1e-3)
    other = [program("tied", **each) for each in ({"optimizer": slower}, {"data_seed": 1})]
    assert len({tied, untied, *other, program("tied+bias"), program("tied", words=9)}) == 6
    assert program("tied") is tied


class Trained(NamedTuple):
    """The training of an arm: its member after each step and at the end of the first phase."""

    after: list[Members]
    first_end: Members
    opened: Members | None  # `first_end`, untied
    losses: list[float]


@pytest.fixture(scope="module")
def heads(causal) -> tuple[RowEngine, dict[str, Trained]]:
    """An engine, and 30 steps of each arm."""
    engine, found = engine_of(causal), {}
    for arm in causal.arms:
        until = arm.untie_at or 30
        chunks, opened = train(engine, arm.name, until), None
        first_end = chunks[-1].members
        if arm.untie_at:
            opened = engine.untie(phase(arm.name, 1), first_end)
            chunks += train(engine, arm.name, 30, opened, part=1)
        after = [chunk.members for chunk in chunks]
        found[arm.name] = Trained(after, first_end, opened, losses_of(chunks))
    return engine, found


def task_of(config: TextExperiment, name: str) -> TextTask:
    return config.build(Arm.parse(name).variant, "cpu")


def test_arms_of_a_seed_share_initial_values_and_batches(causal, heads):
    """Bit for bit, moments included, except for the parameters that a head adds."""
    plain = heads[1]["tied+half-swap+input-gradient=0"].after[0].states  # adds none
    for name, arm in heads[1].items():
        assert arm.losses[-1] < arm.losses[0], name
        own_stream = stream(causal.data_seed, np.uint32(SEED))
        np.testing.assert_array_equal(arm.after[0].streams[0], own_stream)
        found = arm.after[0].states
        assert_same_leaves(found, plain)
        added = {path.rpartition("[")[2] for path in found.keys() - plain.keys()}
        assert added == ({"'bias']"} if "bias" in name else set())
    names = ("tied", *MORE_HEADS.split())
    tasks = {name: task_of(causal, name) for name in names}
    start = once(lambda key: {name: task.init(key, {}) for name, task in tasks.items()})
    fresh = jax.device_get(start(jax.random.key(SEED)))
    for name, params in fresh.items():
        jax.tree.map(np.testing.assert_array_equal, params["body"], fresh["tied"]["body"])
        table = fresh["tied"]["embedding"]["input"]
        np.testing.assert_array_equal(params["embedding"]["input"], table, err_msg=name)
        assert ("output" in params["embedding"]) == name.startswith("untied")
    ends = [fresh[name]["embedding"]["output"] for name in ("untied", "untied+bias")]
    np.testing.assert_array_equal(*ends)


def expected_loss(
    head: Head, model: TextModel, params: dict, targets: Targets
) -> tuple[jax.Array, jax.Array]:
    """Return loss and weight of a tied arm, from the hidden states of the plain model."""
    table_VxD = params["embedding"]["input"]
    seen_VxD = jax.lax.stop_gradient(table_VxD) if head.input_gradient == 0 else table_VxD
    tree = {"body": params["body"], "embedding": {"input": seen_VxD}}
    h_PxD = model.apply({"params": tree}, targets.tokens_BxL, targets.at_P, method="hidden")
    if head.transform == "half-swap":
        half = h_PxD.shape[1] // 2
        h_PxD = jnp.concatenate([h_PxD[:, half:], h_PxD[:, :half]], axis=1)
    logits_PxV = h_PxD @ table_VxD.T
    if head.bias:
        logits_PxV = logits_PxV + params["embedding"]["bias"][None]
    loss_P = optax.softmax_cross_entropy_with_integer_labels(logits_PxV, targets.target_P)
    weight = jnp.sum(targets.weight_P)
    return jnp.sum(loss_P * targets.weight_P) / weight, weight


def rows_of(task: TextTask, step: int) -> np.ndarray:
    return task.rows.training(SEED)[step].tokens_BxL


def batch_of(task: TextTask, rows: np.ndarray) -> Targets:
    """Return the targets of a causal model, which need no randomness."""
    return task.batch(stream(0, 0), {}, 0, rows)


@pytest.mark.parametrize("name", [name for name in HEADS if "@" not in name])
def test_an_arm_is_the_plain_loop_with_its_head(causal, heads, name):
    """Step by step on the seed's batches, with the gradient that JAX takes of the formula."""
    (engine, found), head, task = heads, Arm.parse(name).head, task_of(causal, "tied")
    rule = make_optimizer(causal.optimizer)
    state = state_of(engine, phase(name), found[name].after[0])

    @once
    def advance(state: State, rows: jax.Array):
        loss_of = partial(expected_loss, head, task.model, targets=batch_of(task, rows))
        return update(loss_of, rule, state)

    rows, losses = [rows_of(task, step) for step in range(10)], []
    for each in rows:
        state, loss_and_weight = advance(state, each)
        losses.append(jax.device_get(loss_and_weight))
    assert len({tuple(each.ravel()) for each in rows}) == 10
    (loss, weight), recorded = np.array(losses).T, found[name].losses
    np.testing.assert_allclose(recorded[0], loss[0], rtol=1e-6)
    np.testing.assert_allclose(recorded[1], np.sum(loss * weight) / np.sum(weight), rtol=1e-5)
    table, expected = (
        own.params["embedding"]["input"]
        for own in (state_of(engine, phase(name), found[name].after[10]), state)
    )
    np.testing.assert_allclose(table, expected, rtol=1e-3, atol=1e-4)


def test_untied_with_a_bias_midway_nothing_changes_at_that_step(heads):
    engine, found = heads
    tied, midway = found["tied+bias"], found["untied+bias@20"]
    first, second = phase("untied+bias@20"), phase("untied+bias@20", 1)
    assert engine.compile(first) is engine.compile(phase("tied+bias")) is not engine.compile(second)
    members, opened = midway.first_end, midway.opened.states
    assert members.steps.tolist() == [20]
    assert members.states[".state.params['embedding']['bias']"].any()
    copied = {path: members.states[path.replace("['output']", "['input']")] for path in opened}
    assert_same_leaves(opened, copied)
    assert sum("['output']" in path for path in opened) == 3  # the table and its two moments
    before, after = validate(engine, first, members), validate(engine, second, midway.opened)
    assert abs(before - after) < 1e-6 * before
    # the same batches, the same program
    assert midway.losses[:3] == tied.losses[:3] and midway.losses[3] != tied.losses[3]
    np.testing.assert_allclose(midway.losses[3], tied.losses[3], rtol=0.02)  # no fresh start
    ends = state_of(engine, second, midway.after[-1]).params["embedding"]
    assert (ends["input"] != ends["output"]).any()
