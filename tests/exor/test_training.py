"""Arms with heads train as their formulas say, on the plain arm's batches; divergence freezes."""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bodies import once

from jaxtie.config import Arm, Head, Layout, Optimizer, Variant
from jaxtie.exor.config import Experiment
from jaxtie.exor.data import Batch
from jaxtie.exor.task import ExorTask
from jaxtie.training import devices as machine
from jaxtie.training.block_engine import BlockEngine, batch_members, stack_hparams
from jaxtie.training.distributed import Processes
from jaxtie.training.member import keep_finite, make_member, update
from jaxtie.training.optimizer import make_optimizer
from jaxtie.training.task import (
    Control,
    HParams,
    Members,
    Params,
    Recorded,
    State,
    flatten,
    phases_of,
    stream,
    unflatten,
)

HEADS = ("tied+bias", "untied+bias@20", "tied+half-swap+input-gradient=0")
SHORT = Experiment(
    arms=HEADS,
    steps=40,
    record_every=10,
    eval_every=20,
    seeds=(5,),
    optimizer=Optimizer(learning_rate=1e-2),
)
TIED = Variant(True)
BIAS = ".params['embedding']['bias']"


def task_of(variant: Variant = TIED, config: Experiment = SHORT) -> ExorTask:
    return config.build(variant, "cpu")


HPARAMS: HParams = task_of().hparams()


class Trained(NamedTuple):
    """The training of an arm.

    Attributes:
      first: its member at step 0.
      ends: at the end of each phase.
      opened: at the start of the last phase, if that followed another.
      records: of the member.
    """

    first: Members
    ends: list[Members]
    opened: Members | None
    records: Recorded


def train(engine: BlockEngine, arm: Arm) -> Trained:
    """Train the only member of an arm, which fills a block."""
    chunks, ends, opened = [], [], None
    for phase in phases_of(arm, SHORT.steps):
        opened = engine.untie(phase, ends[-1]) if phase.follows else None
        program = engine.compile(phase)
        chunks += engine.run(program, SHORT.members, opened, phase.until, Control([]))
        ends.append(chunks[-1].members)
    records = {
        name: np.concatenate([chunk.records[name] for chunk in chunks])
        for name in chunks[0].records
    }
    return Trained(chunks[0].members, ends, opened, records)


@pytest.fixture(scope="module")
def engine() -> BlockEngine:
    with pytest.MonkeyPatch.context() as patch:
        # a block of one, by `vmap`: sooner compiled than lanes, tested by themselves
        patch.setattr(Experiment, "layout", lambda *_: Layout((1,)))
        yield BlockEngine(SHORT, Processes())


@pytest.fixture(scope="module")
def trained(engine) -> dict[str, Trained]:
    return {arm.name: train(engine, arm) for arm in SHORT.arms}


@pytest.fixture(scope="module")
def plain(engine) -> tuple[State, jax.Array]:
    """The fresh member of the arm `tied`, and its stream, with the bits of the engine."""
    seeds, hparams = np.array(SHORT.seeds, np.uint32), stack_hparams(SHORT, "cpu")
    (start, _), _ = batch_members(SHORT, TIED, SHORT.layout("cpu"), engine.block, "cpu")
    states, streams, _ = start.lower(seeds, hparams).compile(machine.ONCE["cpu"])(seeds, hparams)
    return jax.tree.map(lambda x: np.array(x[0]), (states, streams))


def state_of(members: Members, variant: Variant) -> State:
    """Return the state of the only member."""
    init = make_member(task_of(variant)).init
    like = jax.eval_shape(init, np.uint32(0), HPARAMS)
    return jax.tree.map(lambda x: x[0], unflatten(like, members.states))


def test_heads_share_initial_values_and_batches_with_the_plain_arm(trained, plain):
    state, own_stream = plain
    leaves = flatten(state)
    for name, arm in trained.items():
        for path, leaf in leaves.items():
            found = arm.first.states[path][0]
            np.testing.assert_array_equal(found, leaf, err_msg=f"{name}: {path}")
        own = arm.first.states.keys() - leaves.keys()
        assert len(own) == (3 if "bias" in name else 0)  # a bias and its two moments
        for path in own:
            assert path.endswith("['embedding']['bias']") and not arm.first.states[path].any()
        for members in (arm.first, arm.ends[-1]):
            np.testing.assert_array_equal(members.streams[0], own_stream)


def test_every_head_trains(trained):
    for name, arm in trained.items():
        assert arm.records["loss"].shape == (5, 1) and (arm.records["diverged_at"] == -1).all()
        assert (arm.records["valid_loss"][-1] < arm.records["valid_loss"][0]).all(), name
        assert set(arm.ends[-1].steps.tolist()) == {SHORT.steps}


def expected_loss(head: Head, params: Params, batch: Batch) -> jax.Array:
    """Return the loss of a tied arm by the plain untied model: heads change tables or logits."""
    model, table = task_of().model, params["embedding"]["input"]
    ends = {"input": table, "output": table}
    if head.input_gradient == 0:
        ends["input"] = jax.lax.stop_gradient(table)
    if head.transform == "half-swap":  # (Ph)·E = h·(PE): P is its own inverse
        ends["output"] = jnp.roll(table, SHORT.model.width // 2, axis=-1)

    def logits_of(tokens_L: jax.Array, at_P: jax.Array) -> jax.Array:
        logits_PxV = model.apply({"params": params | {"embedding": ends}}, tokens_L, at_P)
        return logits_PxV + params["embedding"]["bias"][None] if head.bias else logits_PxV

    logits_BxPxV = jax.vmap(logits_of)(batch.tokens_BxL, batch.at_BxP)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits_BxPxV, batch.target_BxP))


@pytest.mark.parametrize("name", [name for name in HEADS if "@" not in name])
def test_an_arm_is_the_plain_loop_with_its_head(trained, name):
    """Step by step on the seed's batches, with the gradient that JAX takes of the formula."""
    variant, rule = Arm.parse(name).variant, make_optimizer(SHORT.optimizer)
    state, task = state_of(trained[name].first, variant), task_of()

    @once
    def advance(state: State, batch: Batch):
        return update(lambda p: (expected_loss(variant.head, p, batch), ()), rule, state)

    losses, own_stream = [], task.stream(SHORT.seeds[0])
    for at in range(SHORT.steps):
        state, (loss, _) = advance(state, task.batch(own_stream, HPARAMS, at, None))
        losses.append(float(loss))
    records, means = trained[name].records, np.mean(np.reshape(losses, (4, 10)), axis=1)
    np.testing.assert_allclose(records["loss"][0, 0], losses[0], rtol=1e-6)
    np.testing.assert_allclose(records["loss"][1:, 0], means, rtol=1e-5)
    table = state.params["embedding"]["input"]
    np.testing.assert_allclose(records["input_table"][-1, 0], table, rtol=1e-4, atol=1e-5)


def test_untied_with_a_bias_midway_nothing_changes_at_that_step(engine, trained):
    tied, midway = trained["tied+bias"], trained["untied+bias@20"]
    first, second = phases_of(Arm.parse("untied+bias@20"), SHORT.steps)
    (only,) = phases_of(Arm.parse("tied+bias"), SHORT.steps)
    assert engine.compile(first) is engine.compile(only) is not engine.compile(second)
    members, opened = midway.ends[0], midway.opened
    assert set(members.steps.tolist()) == {20} and members.states[BIAS].any()
    for path, leaf in opened.states.items():
        copied = members.states[path.replace("['output']", "['input']")]
        np.testing.assert_array_equal(leaf, copied, err_msg=path)
    assert sum("['output']" in path for path in opened.states) == 3  # the table and its two moments
    before, after = (
        once(task_of(phase.variant).evaluate)(state_of(own, phase.variant).params, HPARAMS)
        for phase, own in ((first, members), (second, opened))
    )
    for name in ("train_loss", "valid_loss", "log_odds"):
        np.testing.assert_allclose(after[name], before[name], rtol=0, atol=1e-6, err_msg=name)
    ours, theirs = midway.records, tied.records
    for name in theirs:
        np.testing.assert_array_equal(ours[name][:3], theirs[name][:3], err_msg=name)
    np.testing.assert_allclose(ours["loss"][3], theirs["loss"][3], rtol=1e-2)  # no fresh start
    assert (ours["loss"][3:] != theirs["loss"][3:]).all()
    assert (ours["input_distance"][-1] != ours["output_distance"][-1]).any()


def test_a_member_that_diverges_is_frozen_and_disturbs_nobody():
    task, sgd = task_of(), optax.sgd(1.0)

    def fresh(seed: jax.Array) -> State:
        params = task.init(jax.random.key(seed), HPARAMS)
        return State(params, sgd.init(params), jnp.int32(-1))

    states = once(jax.vmap(fresh))(jnp.arange(3))
    broken = states._replace(params=jax.tree.map(lambda x: x.at[1].mul(1e30), states.params))

    @once
    @partial(jax.vmap, in_axes=(0, None))
    def advance(state, at):
        batch = task.batch(stream(14, 0), HPARAMS, at, None)
        new, (loss, _) = update(lambda params: task.loss(params, batch), sgd, state)
        return keep_finite(new, state, loss, at)

    healthy, after = states, broken
    for at in range(5):
        healthy, after = advance(healthy, at), advance(after, at)
    assert after.diverged_at.tolist() == [-1, 0, -1]
    trees = map(jax.tree.leaves, (after.params, broken.params, healthy.params))
    for got, before, other in zip(*trees, strict=True):
        np.testing.assert_array_equal(got[1], before[1])
        np.testing.assert_array_equal(got[np.array([0, 2])], other[np.array([0, 2])])


def test_a_learning_rate_that_is_too_high_is_reported():
    wild = dataclasses.replace(SHORT, optimizer=Optimizer(learning_rate=1e30, eta_min=0))
    variant = Variant(False)
    task = task_of(variant, wild)
    member, hparams = make_member(task), task.hparams()
    state, own_stream, _ = once(member.start)(3, hparams)
    advance = once(member.advance)
    for at in (0, 10):
        state, seen = advance(state, own_stream, hparams, at)
        assert seen["diverged_at"] == 10
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
