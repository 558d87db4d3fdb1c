"""EXor's members: arms with heads train as their formulas say, on the batches of the plain arm;
what diverges is frozen.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bodies import once
from jaxtie.exor.blocks import batch_members
from jaxtie.exor.engine import ExorEngine

from jaxtie.config import Arm, Head, Optimizer
from jaxtie.exor import blocks
from jaxtie.exor import data as process
from jaxtie.exor.config import Experiment
from jaxtie.exor.task import (
    Setting,
    Static,
    build_model,
    loss_and_accuracy,
    make_member,
    stack_settings,
    step,
)
from jaxtie.training import devices as machine
from jaxtie.training.distributed import Processes
from jaxtie.training.member import State, initial_state, keep_finite, stream
from jaxtie.training.optimizer import adamw_of
from jaxtie.training.task import Control, Members, Records, flatten, phases_of, unflatten

HEADS = ("tied+bias", "untied+bias@20", "tied+half-swap+input-gradient=0")
SHORT = Experiment(
    arms=HEADS,
    steps=40,
    record_every=10,
    eval_every=20,
    seeds=(5,),
    optimizer=Optimizer(learning_rate=1e-2),
)
BITS = process.split(7, False, 14).train
BIAS = ".params['embedding']['bias']"


def setting(experiment: Experiment) -> Setting:
    """Of an experiment that sweeps nothing."""
    return jax.tree.map(lambda x: x[0], stack_settings(experiment))


class Trained(NamedTuple):
    """What became of an arm.

    Attributes:
      first: where its member stood at first.
      ends: where it stood at the end of each phase.
      opened: where it stood at the start of the last one, if that followed another.
      records: of its member.
    """

    first: Members
    ends: list[Members]
    opened: Members | None
    records: Records


def train(engine: ExorEngine, arm: Arm) -> Trained:
    """Train the only member of an arm, which fills a block."""
    pieces, ends, opened = [], [], None
    for phase in phases_of(arm, SHORT.steps):
        opened = engine.untie(phase, ends[-1]) if phase.follows else None
        program = engine.compile(phase)
        pieces += engine.run(program, SHORT.members, opened, phase.until, Control([]))
        ends.append(pieces[-1].members)
    records = {
        name: np.concatenate([piece.records[name] for piece in pieces])
        for name in pieces[0].records
    }
    return Trained(pieces[0].members, ends, opened, records)


@pytest.fixture(scope="module")
def engine() -> ExorEngine:
    with pytest.MonkeyPatch.context() as patch:
        # a block of one, by `vmap`: sooner compiled than lanes, tested by themselves
        patch.setattr(blocks, "WIDE", 1)
        yield ExorEngine(SHORT, Processes())


@pytest.fixture(scope="module")
def trained(engine) -> dict[str, Trained]:
    return {arm.name: train(engine, arm) for arm in SHORT.arms}


@pytest.fixture(scope="module")
def plain(engine) -> Members:
    """Fresh members of the arm `tied`; its program is not wanted."""
    batched = batch_members(Static.of(SHORT, tied=True), engine.block, "cpu")
    numbers = np.resize(np.array(SHORT.seeds, np.uint32), engine.block)
    settings = jax.tree.map(lambda x: np.repeat(x, engine.block, axis=0), stack_settings(SHORT))
    start = batched.start.lower(numbers, settings).compile(machine.ONCE["cpu"])
    states, streams, _ = jax.tree.map(
        lambda x: np.array(x[: len(SHORT.seeds)]), start(numbers, settings)
    )
    return Members(
        np.array(SHORT.seeds), np.zeros(len(SHORT.seeds), np.int64), streams, flatten(states)
    )


def state_of(members: Members, name: str = "tied") -> State:
    """Where the only member stands, of a tied arm."""
    model = build_model(Static.of(SHORT, tied=True, head=Arm.parse(name).head))
    like = jax.eval_shape(
        lambda key: initial_state(model, adamw_of(SHORT.optimizer), key, 8), jax.random.key(0)
    )
    stacked = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), like)
    return jax.tree.map(lambda x: x[0], unflatten(stacked, members.states))


def test_a_head_shares_with_the_plain_arm_its_initial_values_and_its_batches(trained, plain):
    for name, arm in trained.items():
        for path, leaf in plain.states.items():
            np.testing.assert_array_equal(arm.first.states[path], leaf, err_msg=f"{name}: {path}")
        own = arm.first.states.keys() - plain.states.keys()
        assert len(own) == (3 if "bias" in name else 0)  # a bias and its two moments
        assert all(
            path.endswith("['embedding']['bias']") and not arm.first.states[path].any()
            for path in own
        )
        np.testing.assert_array_equal(arm.first.streams, plain.streams)
        np.testing.assert_array_equal(arm.ends[-1].streams, plain.streams)


def test_every_head_trains(trained):
    for name, arm in trained.items():
        assert arm.records["loss"].shape == (5, 1) and (arm.records["diverged_at"] == -1).all()
        assert (arm.records["valid_loss"][-1] < arm.records["valid_loss"][0]).all(), name
        assert set(arm.ends[-1].steps.tolist()) == {SHORT.steps}


Params = dict[str, dict]


def expected_loss(head: Head, params: Params, batch: process.Batch) -> jax.Array:
    """Of a tied arm, by the plain model: what its head does is done to the tables, or to the
    logits.
    """
    model, table = build_model(Static.of(SHORT, tied=True)), params["embedding"]["input"]
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
    """Step by step on the batches of the seed's stream, with the gradient that JAX takes of the
    formula.
    """
    rule, (seed,) = adamw_of(SHORT.optimizer), SHORT.seeds
    state = state_of(trained[name].first, name)

    @once
    def advance(state: State, batch: process.Batch):
        loss, gradient = jax.value_and_grad(partial(expected_loss, Arm.parse(name).head))(
            state.params, batch
        )
        updates, opt_state = rule.update(gradient, state.opt_state, state.params)
        return state._replace(
            params=optax.apply_updates(state.params, updates), opt_state=opt_state
        ), loss

    losses = []
    for at in range(SHORT.steps):
        drawn = process.sample(stream(14, seed), at, BITS, SHORT.process.zeros, SHORT.process.ones)
        state, loss = advance(state, drawn)
        losses.append(float(loss))
    records = trained[name].records
    np.testing.assert_allclose(records["loss"][0, 0], losses[0], rtol=1e-6)
    np.testing.assert_allclose(
        records["loss"][1:, 0], np.mean(np.reshape(losses, (4, 10)), axis=1), rtol=1e-5
    )
    np.testing.assert_allclose(
        records["input_table"][-1, 0], state.params["embedding"]["input"], rtol=1e-4, atol=1e-5
    )


def test_without_the_inputs_gradient_a_tied_table_has_that_of_the_output_alone(plain):
    """The other parameters have the one that they have anyway."""
    static, params = Static.of(SHORT, tied=True), state_of(plain).params
    batch = process.sample(stream(14, 3), 0, BITS, SHORT.process.zeros, SHORT.process.ones)

    head = Arm.parse("tied+input-gradient=0").head

    def gradient_of(head: Head) -> Params:
        model = build_model(static._replace(head=head))
        return once(jax.grad(lambda params: loss_and_accuracy(model, params, batch)[0]))(params)

    found, whole = gradient_of(head), gradient_of(Head())
    expected = once(jax.grad(partial(expected_loss, head)))(params, batch)
    output_alone, both = expected["embedding"]["input"], whole["embedding"]["input"]
    assert np.abs(both - output_alone).max() > 0.01 * np.abs(both).max()
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, expected)
    del found["embedding"], whole["embedding"]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, whole)


def test_untied_with_a_bias_midway_nothing_changes_at_that_step(engine, trained):
    tied, midway = trained["tied+bias"], trained["untied+bias@20"]
    arms = {arm.name: arm for arm in SHORT.arms}
    first, second = phases_of(arms["untied+bias@20"], SHORT.steps)
    (only,) = phases_of(arms["tied+bias"], SHORT.steps)
    assert engine.compile(first) is engine.compile(only) is not engine.compile(second)
    standing, opened = midway.ends[0], midway.opened
    assert set(standing.steps.tolist()) == {20} and standing.states[BIAS].any()
    for path, leaf in opened.states.items():
        np.testing.assert_array_equal(
            leaf, standing.states[path.replace("['output']", "['input']")], err_msg=path
        )
    assert sum("['output']" in path for path in opened.states) == 3  # the table and its two moments
    exact = []
    for phase, members in ((first, standing), (second, opened)):
        evaluate = make_member(Static.of(SHORT, tied=phase.tied, head=phase.arm.head)).evaluate
        states = unflatten(engine.compile(phase).states, members.states)
        exact.append(once(jax.vmap(evaluate, in_axes=(0, None)))(states, setting(SHORT)))
    for name in ("train_loss", "valid_loss", "log_odds"):
        np.testing.assert_allclose(exact[1][name], exact[0][name], rtol=0, atol=1e-6, err_msg=name)
    for name in tied.records:
        np.testing.assert_array_equal(
            midway.records[name][:3], tied.records[name][:3], err_msg=name
        )
    # nothing starts anew
    np.testing.assert_allclose(midway.records["loss"][3], tied.records["loss"][3], rtol=1e-2)
    assert (midway.records["loss"][3:] != tied.records["loss"][3:]).all()
    assert (midway.records["input_distance"][-1] != midway.records["output_distance"][-1]).any()


def test_one_stream_for_all_seeds_or_one_for_each():
    """What a model sees first shows in the accuracy of the first batch, where the initial values
    are the same.
    """

    def accuracy(static: Static, seed: jax.Array) -> jax.Array:
        return make_member(static).start(seed, setting(SHORT))[2]["accuracy"]

    start = {}
    for data in ("per-seed", "shared"):
        static = Static.of(dataclasses.replace(SHORT, data=data), tied=True)
        start[data] = once(jax.vmap(partial(accuracy, static)))(jnp.arange(9))
    assert not np.array_equal(start["per-seed"], start["shared"])
    streams = [np.asarray(stream(14, seed)) for seed in (None, 0, 1)]
    assert len({each.tobytes() for each in streams}) == 3


def test_a_member_that_diverges_is_frozen_and_disturbs_nobody():
    model = build_model(Static.of(SHORT, tied=True))
    sgd = optax.sgd(1.0)

    def fresh(seed: jax.Array) -> State:
        return initial_state(model, sgd, jax.random.key(seed), 8)

    states = once(jax.vmap(fresh))(jnp.arange(3))
    broken = states._replace(params=jax.tree.map(lambda x: x.at[1].mul(1e30), states.params))

    @once
    @partial(jax.vmap, in_axes=(0, None))
    def advance(state, at):
        new, (loss, _) = step(
            model, sgd, state, process.sample(stream(14, 0), at, BITS, (0.1, 0.9), (0.5, 0.5))
        )
        return keep_finite(new, state, loss, at)

    healthy, after = states, broken
    for at in range(5):
        healthy, after = advance(healthy, at), advance(after, at)
    assert after.diverged_at.tolist() == [-1, 0, -1]
    for got, before, other in zip(
        *map(jax.tree.leaves, (after.params, broken.params, healthy.params)), strict=True
    ):
        np.testing.assert_array_equal(got[1], before[1])
        np.testing.assert_array_equal(got[np.array([0, 2])], other[np.array([0, 2])])


def test_a_learning_rate_that_is_too_high_is_reported():
    wild = dataclasses.replace(SHORT, optimizer=Optimizer(learning_rate=1e30, eta_min=0))
    member = make_member(Static.of(wild, tied=False))
    state, own_stream, _ = once(member.start)(3, setting(wild))
    advance = once(member.advance)
    for at in (0, 10):
        state, seen = advance(state, own_stream, setting(wild), at)
        assert seen["diverged_at"] == 10
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
