"""Split a tied table's gradient and Adam's step by role exactly, without changing its training."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import once, sample

from jaxtie.config import Arm, Optimizer, Variant
from jaxtie.exor.config import Experiment
from jaxtie.exor.task import PAIR_IDS, ExorTask
from jaxtie.training.block_engine import BlockEngine
from jaxtie.training.distributed import Processes
from jaxtie.training.gradient_by_role import (
    CONTRIBUTIONS,
    RoleStep,
    RoleSums,
    contribute,
    no_roles,
    sum_by_role,
    sum_by_row,
    update_by_role,
    with_role_moments,
)
from jaxtie.training.member import make_member, update
from jaxtie.training.optimizer import make_optimizer
from jaxtie.training.task import Members, Phase, Roles, State, flatten
from jaxtie.tying.tie import tie, untie

ADAM = {"b1": 0.9, "b2": 0.999, "eps": 1e-12}
RATE, DECAY, STEPS = 1e-2, 0.1, 6
OPTIMIZER = make_optimizer(Optimizer(learning_rate=RATE, eta_min=RATE, weight_decay=DECAY, **ADAM))
BOTH = [PAIR_IDS["X-Y"], PAIR_IDS["A-B"]]
EXPERIMENT = Experiment(seeds=(3,), steps=20, record_every=5, eval_every=10, roles=True)


def task_of(arm: str) -> ExorTask:
    return EXPERIMENT.build(Arm.parse(arm).variant, "cpu")


def fresh(arm: str, dtype=np.float32) -> State:
    task = task_of(arm)

    def start() -> State:
        params = task.init(jax.random.key(0), task.hparams())
        params = jax.tree.map(lambda x: x.astype(dtype), params)
        return State(params, OPTIMIZER.init(params), jnp.int32(-1))

    return once(start)()


class Training(NamedTuple):
    """Some steps of a tied member, plain and by role: states before and after, and the splits."""

    plain: list[State]
    by_role: list[State]
    own: list[RoleStep]

    @property
    def tables(self) -> list[tuple[np.ndarray, np.ndarray, RoleStep]]:
        """Table before, table after, and split of each step."""
        tables = [state.params["embedding"]["input"] for state in self.by_role]
        return list(zip(tables, tables[1:], self.own, strict=False))


@pytest.fixture(scope="module")
def training() -> Training:
    """In float64, so that exact equalities show."""
    with jax.enable_x64(True):
        batch, first = sample(), fresh("tied", np.float64)
        loss_of = partial(lambda loss, params: loss(params, batch), task_of("tied").loss)
        one = once(lambda state: update(loss_of, OPTIMIZER, state))
        split = once(lambda state: update_by_role(loss_of, OPTIMIZER, state, **ADAM))
        found = Training([first], [with_role_moments(first)], [])
        for _ in range(STEPS):
            found.plain.append(one(found.plain[-1])[0])
            state, _, own = split(found.by_role[-1])
            found.by_role.append(state)
            found.own.append(own)
        return jax.device_get(found)


def test_training_does_not_change(training):
    for plain, by_role in zip(training.plain, training.by_role, strict=True):
        ours, theirs = (flatten(state._replace(role_moments=())) for state in (by_role, plain))
        # the bias of keys walks at random
        for name in ours.keys() - {name for name in ours if "in_proj_bias" in name}:
            np.testing.assert_allclose(
                ours[name], theirs[name], rtol=1e-9, atol=1e-12, err_msg=name
            )


@pytest.mark.parametrize("role", ["input", "output"])
def test_a_roles_gradient_is_the_tied_one_with_the_other_role_stopped(training, x64, role):
    """Another way than by two tables: by the heads that stop it, in the tied model."""
    batch, params = sample(), training.by_role[2].params
    stopped = {"input": "output", "output": "input"}[role]
    loss = task_of(f"tied+{stopped}-gradient=0").loss
    alone = once(jax.grad(lambda params: loss(params, batch)[0]))(params)["embedding"]["input"]
    part = getattr(training.own[2].gradient, role)
    assert np.abs(part).max() > 1e-3
    np.testing.assert_allclose(part, alone, rtol=0, atol=1e-12 * np.abs(alone).max())


def test_adams_step_is_the_sum_of_both_parts_and_moves_the_table(training, x64):
    for (old, new, own), after in zip(training.tables, training.by_role[1:], strict=True):
        moved = -(new - (1 - RATE * DECAY) * old) / RATE
        np.testing.assert_allclose(own.step.whole, moved, rtol=1e-8, atol=1e-9)
        first = after.opt_state[0].mu["embedding"]["input"]
        np.testing.assert_allclose(after.role_moments.whole, first, rtol=1e-10, atol=1e-14)
        sums = sum_by_row(own)
        by_output = np.sum(own.step.whole * own.step.output, axis=-1)
        whole = (sums.input_step_product + by_output) / sums.step_square
        np.testing.assert_allclose(whole, 1, rtol=1e-12)
    assert np.abs(by_output / sums.step_square - 0.5).max() > 0.1  # shares are not all a half


def test_a_stopped_role_has_no_part():
    """Its first moment stays 0, so the other one has the whole of Adam's step."""
    arm, batch = "tied+input-gradient=0", sample()
    loss_of = partial(lambda loss, params: loss(params, batch), task_of(arm).loss)
    split = once(lambda state: sum_by_row(update_by_role(loss_of, OPTIMIZER, state, **ADAM)[2]))
    sums = split(with_role_moments(fresh(arm)))
    assert not np.any(sums.input_step_product) and not np.any(sums.input_gradient_square)
    assert np.all(sums.step_square > 0)


def test_groups_are_sums_over_their_rows(training, x64):
    (table_VxD, _, own), group_V = training.tables[-1], np.array([2, 0, 2, 1, 1, 1, 2])
    rows, found = sum_by_row(own)._asdict(), sum_by_role(own, table_VxD, RATE, Roles(4, group_V))
    assert found.keys() == rows.keys() == no_roles(Roles(4, group_V)).keys()
    for name, of_row_V in rows.items():
        expected = [of_row_V[group_V == group].sum() for group in range(4)]
        np.testing.assert_allclose(found[name], expected, rtol=1e-12, err_msg=name)
    with_pairs = sum_by_role(own, table_VxD, RATE, Roles(7, pairs=BOTH))
    assert [*with_pairs] == [*RoleSums._fields, *CONTRIBUTIONS]
    for name, of_row_V in rows.items():
        np.testing.assert_array_equal(with_pairs[name], of_row_V)
    contributions = contribute(table_VxD, own.step, RATE, BOTH)
    for name, expected in zip(CONTRIBUTIONS, contributions, strict=True):
        np.testing.assert_array_equal(with_pairs[name], expected)


def test_contributions_and_decay_add_up_to_the_distance(training, x64):
    """To first order, the log-distance changes by both contributions and ln(1 - rate·decay)."""

    def log_distance(table_VxD: np.ndarray) -> np.ndarray:
        return np.log([np.linalg.norm(table_VxD[s] - table_VxD[t]) for s, t in BOTH])

    for old, new, own in training.tables:
        found = contribute(old, own.step, RATE, BOTH)
        left = log_distance(new) - log_distance(old) - np.log(1 - RATE * DECAY) - found.whole
        assert np.abs(left).max() < 3 * RATE**2 * max(1, np.abs(found.whole / RATE).max() ** 2)
    assert np.abs(found.input).max() > 1e-5 and np.abs(found.output).max() > 1e-3


def test_a_tied_member_records_roles_and_an_untied_one_none():
    """A record has means of the sums, and sums of the contributions; step 0 has NaN."""
    variants = Variant(True), Variant(False)
    tasks = [EXPERIMENT.build(variant, "cpu") for variant in variants]
    tied, untied = (make_member(task) for task, variant in zip(tasks, variants, strict=True))
    hparams = tasks[0].hparams()
    state, stream, first = once(tied.start)(np.uint32(3), hparams)
    state, found = once(tied.advance)(state, stream, hparams, np.int32(0))
    assert np.isnan(first["step_square"]).all() and np.isnan(first["input_push"]).all()
    for pair, (s, t) in enumerate(BOTH):
        start = np.linalg.norm(first["input_table"][s] - first["input_table"][t])
        grown = np.log(found["input_distance"][s, t] / start) - 5 * np.log(1 - DECAY * 5e-4)
        both = found["input_push"][pair] + found["output_push"][pair]
        np.testing.assert_allclose(both, grown, atol=2e-5)
    assert (found["step_square"] > 0).all()
    assert found["step_square"].sum() < 7 * 4 * 1.001  # a coordinate moves by 1 at most
    _, _, records = jax.eval_shape(untied.start, np.uint32(3), hparams)
    assert records["step_square"].shape == (7,) and records["output_push"].shape == (2,)
    leaves = flatten(jax.tree.map(lambda x: x[None], state))
    members = Members(np.array([3]), np.array([5]), np.zeros((1, 2), np.uint32), leaves)
    engine = BlockEngine(EXPERIMENT, Processes())
    after = engine.untie(Phase(EXPERIMENT.arms[0], "tied", True, 5), members)
    assert not [name for name in after.states if "role_moments" in name]
    assert [name for name in members.states if "role_moments" in name]


@pytest.mark.parametrize("options", ["", "+bert-head"])
def test_a_tied_table_starts_where_its_arm_says(options):
    """At the untied model's input or output table; all else is the same numbers."""

    def draw(key):
        arms = [f"untied{options}", f"tied{options}", f"tied{options}+output-start"]
        return [task.init(key, task.hparams()) for task in map(task_of, arms)]

    untied, *others = once(draw)(jax.random.key(5))
    assert not np.array_equal(untied["embedding"]["input"], untied["embedding"]["output"])
    for params, table in zip(others, ("input", "output"), strict=True):
        expected, _ = tie(untied, how=table)
        jax.tree.map(np.testing.assert_array_equal, params, expected)
        assert "output" in untie(params)[0]["embedding"]
