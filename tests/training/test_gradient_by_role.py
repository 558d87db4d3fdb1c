"""A tied table's gradient and Adam's step are split by role exactly; training is what it was;
pushes add up to distances.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bodies import once, sample
from jaxtie.exor.engine import untie_members

from jaxtie.config import Arm, UserError
from jaxtie.exor.config import Experiment
from jaxtie.exor.task import (
    SPELLINGS,
    Static,
    build_model,
    loss_and_accuracy,
    make_member,
    stack_settings,
    step,
)
from jaxtie.training.gradient_by_role import (
    RoleStep,
    pushes,
    sum_by_group,
    sum_by_row,
    update_by_role,
    with_role_moments,
)
from jaxtie.training.member import State, initial_state
from jaxtie.training.optimizer import adamw
from jaxtie.training.task import Members, Phase, flatten
from jaxtie.tying.tie import tie, untie

ADAM = {"b1": 0.9, "b2": 0.999, "eps": 1e-12}
RATE, DECAY, STEPS = 1e-2, 0.1, 6
PAIRS = [SPELLINGS["X-Y"], SPELLINGS["A-B"]]
EXPERIMENT = Experiment(
    arms=("tied", "untied"), seeds=(3,), steps=20, record_every=5, eval_every=10, roles=True
)


def model_of(arm: str):
    parsed = Arm.parse(arm)
    return build_model(Static.of(EXPERIMENT, tied=parsed.tied, head=parsed.head))


class Training(NamedTuple):
    """A tied member over some steps, plain and by role; of each step the state before it and what
    was looked at.
    """

    plain: list[State]
    by_role: list[State]
    own: list[RoleStep]


@pytest.fixture(scope="module")
def training() -> Training:
    """In float64, so that what is exact is seen to be."""
    with jax.enable_x64(True):
        model, batch = model_of("tied"), sample()
        optimizer = adamw(optax.constant_schedule(RATE), weight_decay=DECAY, **ADAM)
        fresh = initial_state(model, optimizer, jax.random.key(0), 8)
        fresh = fresh._replace(params=jax.tree.map(lambda x: x.astype(np.float64), fresh.params))
        fresh = fresh._replace(opt_state=optimizer.init(fresh.params))
        one, loss_of = (
            once(partial(step, model, optimizer)),
            lambda params: loss_and_accuracy(model, params, batch),
        )
        split = once(lambda state: update_by_role(loss_of, optimizer, state, **ADAM))
        found = Training([fresh], [with_role_moments(fresh)], [])
        for _ in range(STEPS):
            found.plain.append(one(found.plain[-1], batch)[0])
            state, _, own = split(found.by_role[-1])
            found.by_role.append(state)
            found.own.append(own)
        return jax.device_get(found)


def test_the_member_is_trained_as_ever(training):
    for plain, by_role in zip(training.plain, training.by_role, strict=True):
        ours, theirs = (flatten(state._replace(role_moments=())) for state in (by_role, plain))
        # of keys it walks at random
        for name in ours.keys() - {name for name in ours if "in_proj_bias" in name}:
            np.testing.assert_allclose(
                ours[name], theirs[name], rtol=1e-9, atol=1e-12, err_msg=name
            )


def test_a_roles_gradient_is_the_tied_one_with_the_other_role_stopped(training, x64):
    """By the heads that stop it, in the tied model: another way than by two tables."""
    batch, params = sample(), training.by_role[2].params
    for arm, own in (("tied+output-gradient=0", "input"), ("tied+input-gradient=0", "output")):
        loss_of = partial(loss_and_accuracy, model_of(arm))
        alone = once(jax.grad(lambda params, f=loss_of: f(params, batch)[0]))(params)["embedding"][
            "input"
        ]
        part = getattr(training.own[2].gradient, own)
        assert np.abs(part).max() > 1e-3
        np.testing.assert_allclose(part, alone, rtol=0, atol=1e-12 * np.abs(alone).max())


def test_adams_step_is_the_sum_of_both_parts_and_is_what_the_table_moves_by(training, x64):
    for before, after, own in zip(
        training.by_role, training.by_role[1:], training.own, strict=False
    ):
        old, new = (state.params["embedding"]["input"] for state in (before, after))
        np.testing.assert_allclose(
            own.step.whole, -(new - (1 - RATE * DECAY) * old) / RATE, rtol=1e-8, atol=1e-9
        )
        np.testing.assert_allclose(
            after.role_moments.whole,
            after.opt_state[0].mu["embedding"]["input"],
            rtol=1e-10,
            atol=1e-14,
        )
        sums = sum_by_row(own)
        by_output = np.sum(own.step.whole * own.step.output, axis=-1)
        np.testing.assert_allclose(
            (sums.input_step_product + by_output) / sums.step_square, 1, rtol=1e-12
        )
    # it does not say half of everything
    assert np.abs(by_output / sums.step_square - 0.5).max() > 0.1


def test_a_role_that_is_stopped_writes_nothing():
    """Its first moment stays 0, so the other one has the whole of Adam's step."""
    model, batch = model_of("tied+input-gradient=0"), sample()
    optimizer = adamw(optax.constant_schedule(RATE), weight_decay=DECAY, **ADAM)
    state = with_role_moments(initial_state(model, optimizer, jax.random.key(0), 8))
    _, _, own = once(
        lambda state: update_by_role(
            lambda params: loss_and_accuracy(model, params, batch), optimizer, state, **ADAM
        )
    )(state)
    sums = sum_by_row(own)
    assert (
        not np.any(sums.input_step_product)
        and not np.any(sums.input_gradient_square)
        and np.all(sums.step_square > 0)
    )


def test_groups_are_sums_over_their_rows(training, x64):
    own, group_V = training.own[-1], np.array([2, 0, 2, 1, 1, 1, 2])
    for of_row_V, of_group_G in zip(sum_by_row(own), sum_by_group(own, group_V, 4), strict=True):
        expected = [of_row_V[group_V == group].sum() for group in range(4)]
        np.testing.assert_allclose(of_group_G, expected, rtol=1e-12)


def test_pushes_and_decay_add_up_to_the_distance(training, x64):
    """The logarithm of a distance changes by both pushes and ln(1 - rate·decay), but for terms of
    second order.
    """

    def log_distance(table_VxD: np.ndarray) -> np.ndarray:
        return np.log([np.linalg.norm(table_VxD[s] - table_VxD[t]) for s, t in PAIRS])

    for before, after, own in zip(
        training.by_role, training.by_role[1:], training.own, strict=False
    ):
        old, new = (state.params["embedding"]["input"] for state in (before, after))
        pushed = pushes(old, own.step, RATE, PAIRS)
        left = log_distance(new) - log_distance(old) - np.log(1 - RATE * DECAY) - pushed.whole
        assert np.abs(left).max() < 3 * RATE**2 * max(1, np.abs(pushed.whole / RATE).max() ** 2)
    assert np.abs(pushed.input).max() > 1e-5 and np.abs(pushed.output).max() > 1e-3


def test_a_member_records_them_and_an_untied_one_has_none():
    """Over a record: means of the sums, the whole of the pushes; step 0 has none, nor has a member
    of two tables.
    """
    setting = jax.tree.map(lambda x: x[0], stack_settings(EXPERIMENT))
    tied, untied = (make_member(Static.of(EXPERIMENT, tied=tied)) for tied in (True, False))
    state, stream, first = once(tied.start)(np.uint32(3), setting)
    state, found = once(tied.advance)(state, stream, setting, np.int32(0))
    assert np.isnan(first["step_square"]).all() and np.isnan(first["input_push"]).all()
    for pair, (s, t) in enumerate(PAIRS):
        start = tied_distance(first, s, t)
        grown = np.log(found["input_distance"][s, t] / start) - 5 * np.log(1 - DECAY * 5e-4)
        np.testing.assert_allclose(
            found["input_push"][pair] + found["output_push"][pair], grown, atol=2e-5
        )
    assert (found["step_square"] > 0).all() and found[
        "step_square"
    ].sum() < 7 * 4 * 1.001  # a coordinate moves by 1 at most
    _, stream, records = jax.eval_shape(untied.start, np.uint32(3), setting)
    assert records["step_square"].shape == (7,) and records["output_push"].shape == (2,)
    standing = Members(
        np.array([3]),
        np.array([5]),
        np.zeros((1, 2), np.uint32),
        flatten(jax.tree.map(lambda x: x[None], state)),
    )
    after = untie_members(EXPERIMENT, Phase(EXPERIMENT.arms[0], "tied", True, 5), standing)
    assert not [name for name in after.states if "role_moments" in name]
    assert [name for name in standing.states if "role_moments" in name]


def tied_distance(first: dict, s: int, t: int) -> float:
    return np.linalg.norm(first["input_table"][s] - first["input_table"][t])


@pytest.mark.parametrize("options", ["", "+bert-head"])
def test_a_tied_table_starts_where_its_arm_says(options):
    """At the untied model's input table, or at its output table; all else is the same numbers."""

    def draw(key):
        arms = [f"untied{options}", f"tied{options}", f"tied{options}+output-start"]
        return [
            model_of(arm).init(key, jnp.zeros(8, jnp.int32), jnp.zeros(1, jnp.int32))["params"]
            for arm in arms
        ]

    untied, *others = once(draw)(jax.random.key(5))
    assert not np.array_equal(untied["embedding"]["input"], untied["embedding"]["output"])
    for params, table in zip(others, ("input", "output"), strict=True):
        expected, _ = tie(untied, how=table)
        jax.tree.map(np.testing.assert_array_equal, params, expected)
        assert "output" in untie(params)[0]["embedding"]


def test_two_tables_have_no_one_start():
    with pytest.raises(UserError, match=r"untied\+output-start.*both.*for a tied table"):
        Arm.parse("untied+output-start")
    assert Arm.parse("untied+output-start@500").tied  # tied up to there
