"""The schedule is PyTorch's and repeats exactly; AdamW decays every leaf; traced values count."""

import dataclasses
import functools
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import once, random_params

import jaxtie
from jaxtie import Experiment
from jaxtie.config import Arm, Optimizer, Transformer
from jaxtie.training.optimizer import make_optimizer, periodic_cosine, schedule_table

RATES = {"learning_rate": 5e-4, "eta_min": 1e-5, "half_period": 10_000}


def test_schedule_is_torchs(x64):
    torch = pytest.importorskip("torch", reason="pip install 'jaxtie[parity]'")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=5e-4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1_000, eta_min=1e-5)
    optimizer.step()  # once, or the schedule warns
    expected = []
    for _ in range(5_001):
        expected.append(optimizer.param_groups[0]["lr"])
        cosine.step()
    schedule = jax.jit(partial(periodic_cosine, **RATES | {"half_period": 1_000}))
    rates = schedule(jnp.arange(5_001, dtype=jnp.int32))
    assert rates.dtype == jnp.float64
    np.testing.assert_allclose(rates, expected, rtol=0, atol=1e-12)


def test_warm_up_is_torchs(x64):
    torch = pytest.importorskip("torch", reason="pip install 'jaxtie[parity]'")
    from torch.optim import lr_scheduler

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=5e-4)
    warm = lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=99)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=1_000)
    both = lr_scheduler.ChainedScheduler([warm, cosine])
    optimizer.step()  # once, or the schedule warns
    expected = []
    for _ in range(1_000):
        expected.append(optimizer.param_groups[0]["lr"])
        both.step()
    own = {"learning_rate": 5e-4, "eta_min": 0.0, "half_period": 1_000, "warmup": 100}
    rates = periodic_cosine(jnp.arange(1_000), **own)
    np.testing.assert_allclose(rates, expected, rtol=1e-9)
    table = schedule_table(Optimizer(**own), range(1_000))
    np.testing.assert_allclose(table, expected, rtol=1e-6)


@pytest.mark.parametrize("periods", [1, 24, 25, 100_000])
def test_float32_schedule_repeats_bit_by_bit(periods):
    schedule = jax.jit(partial(periodic_cosine, **RATES))
    step = jnp.arange(20_000, dtype=jnp.int32)
    first, later = schedule(step), schedule(step + 20_000 * periods)
    assert first.dtype == jnp.float32
    np.testing.assert_array_equal(first, later)
    exact = 1e-5 + 4.9e-4 * (1 + np.cos(np.pi * np.arange(20_000) / 10_000)) / 2
    # cos(πt) unreduced: 3e-9 at step 500,000
    np.testing.assert_allclose(later, exact, rtol=0, atol=2e-10)


def test_adamw_decays_every_leaf_by_the_current_rate(x64):
    """With gradient 0 the decay is left: of tables, norms and biases alike."""
    params = random_params(Transformer())
    optimizer = make_optimizer(Optimizer(learning_rate=0.5, eta_min=0.25, half_period=1))
    state, now, zero = optimizer.init(params), params, jax.tree.map(jnp.zeros_like, params)
    update = once(optimizer.update)
    for kept in (1 - 0.05, (1 - 0.05) * (1 - 0.025)):
        updates, state = update(zero, state, now)
        now = jax.tree.map(jnp.add, now, updates)
        jax.tree.map(
            lambda new, old, kept=kept: np.testing.assert_allclose(new, kept * old, rtol=1e-15),
            now,
            params,
        )


def first_step(optimizer, factor: float, params):
    """Return the updates of a fresh optimizer for a gradient of so many times the parameters."""

    def step(params):
        gradient = jax.tree.map(lambda leaf: factor * leaf, params)
        return optimizer.update(gradient, optimizer.init(params), params)[0]

    return jax.device_get(once(step)(params))


def test_an_undecayed_output_bias_alone_is_left_out_of_the_decay():
    """The biases of the body are decayed."""
    head = Arm.parse("tied+undecayed-bias").head
    params = {
        "embedding": {"input": jnp.ones((3, 2)), "bias": jnp.ones(3)},
        "body": {"bias": jnp.ones(2)},
    }
    own = dataclasses.replace(DECLARED, weight_decay=0.5, learning_rate=0.5)
    updates = first_step(make_optimizer(own, head), 0.0, params)
    moved = jax.tree.map(lambda leaf: float(np.abs(leaf).max()), updates)
    assert moved == {"embedding": {"input": 0.25, "bias": 0.0}, "body": {"bias": 0.25}}


DECLARED = Optimizer(
    learning_rate=3e-3, eta_min=2e-4, half_period=7, weight_decay=0.3, b1=0.8, b2=0.95, eps=1e-3
)


def trained(optimizer, params, steps: int = 12):
    """Return the parameters after some updates along -1."""
    gradient = jax.tree.map(lambda leaf: -jnp.ones_like(leaf), params)

    def step(_, state):
        params, opt_state = state
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return jax.tree.map(jnp.add, params, updates), opt_state

    return jax.lax.fori_loop(0, steps, step, (params, optimizer.init(params)))[0]


def test_every_declared_value_counts(x64):
    """By the formulas of Adam and of decoupled decay."""
    theta, mean, square = 0.7, 0.0, 0.0
    for t in range(12):
        rate = 2e-4 + (3e-3 - 2e-4) * (1 + np.cos(np.pi * t / 7)) / 2
        mean, square = 0.8 * mean + 0.2 * -1, 0.95 * square + 0.05 * 1
        towards = mean / (1 - 0.8 ** (t + 1)) / (np.sqrt(square / (1 - 0.95 ** (t + 1))) + 1e-3)
        theta -= rate * (towards + 0.3 * theta)
    np.testing.assert_allclose(
        trained(make_optimizer(DECLARED), jnp.float64(0.7)), theta, rtol=1e-12
    )


def test_traced_values_replace_the_declared_ones():
    """As stacked arguments of a program: to rounding, for constants may be folded."""
    declared = [
        DECLARED,
        dataclasses.replace(DECLARED, learning_rate=1e-2, eta_min=0.0, weight_decay=0.0, eps=1e-8),
    ]
    names = ("learning_rate", "eta_min", "weight_decay", "eps")
    own = {name: np.float32([getattr(each, name) for each in declared]) for name in names}
    base = Optimizer(half_period=7, b1=0.8, b2=0.95)

    def train(own):
        return trained(make_optimizer(base, hparams=own), jnp.float32(0.7))

    expected = [trained(make_optimizer(each), jnp.float32(0.7)) for each in declared]
    np.testing.assert_allclose(once(jax.vmap(train))(own), expected, rtol=1e-6)


def test_the_table_of_the_schedule_is_the_schedule():
    """It goes down and back up."""
    table = schedule_table(Optimizer(), range(0, 30_001, 5_000))
    assert table.dtype == np.float32
    on_device = periodic_cosine(jnp.arange(0, 30_001, 5_000), **RATES)
    np.testing.assert_allclose(table, on_device, rtol=1e-6)
    np.testing.assert_allclose(
        table, [5e-4, 2.55e-4, 1e-5, 2.55e-4, 5e-4, 2.55e-4, 1e-5], rtol=1e-6
    )


TABLES = {
    "embedding": {"input": jnp.ones((3, 2)), "output": jnp.ones((3, 2)), "bias": jnp.ones(3)},
    "body": {"input": jnp.ones(2)},
}


@functools.cache
def moved(name: str) -> dict:
    adam = Optimizer(**RATES, weight_decay=0.1)
    return first_step(make_optimizer(adam, Arm.parse(name).head), 0.3, TABLES)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("table-rate=0.5", (0.5, 0.5, 1)),
        ("input-rate=0.5", (0.5, 1, 1)),
        ("output-rate=3", (1, 3, 1)),
        ("input-rate=0.5+table-rate=4", (2, 4, 1)),
    ],
)
def test_rates_of_tables_scale_their_whole_step(options, expected):
    """Decay included; a parameter of the body with the name of a table is left alone."""
    plain, scaled = moved("untied"), moved(f"untied+{options}")
    for name, factor in zip(("input", "output", "bias"), expected):
        ratio = scaled["embedding"][name] / plain["embedding"][name]
        np.testing.assert_allclose(ratio, factor, rtol=1e-6)
    np.testing.assert_allclose(scaled["body"]["input"], plain["body"]["input"], rtol=1e-6)


def test_the_decay_of_tables_is_set_apart():
    adam = Optimizer(learning_rate=0.5, eta_min=0.5, weight_decay=0.5)

    def left(name):
        optimizer = make_optimizer(adam, Arm.parse(name).head)
        return jax.tree.map(lambda x: -float(x.ravel()[0]), first_step(optimizer, 0.0, TABLES))

    assert left("untied+table-decay=0") == {
        "embedding": {"input": 0.0, "output": 0.0, "bias": 0.25},
        "body": {"input": 0.25},
    }
    halves = left("untied+table-decay=0.5+undecayed-bias")
    assert halves["embedding"] == {"input": 0.125, "output": 0.125, "bias": 0.0}


@pytest.mark.slow
def test_an_arm_with_rates_of_tables_trains_and_unties():
    arms = ("untied+table-rate=0.5+table-decay=0@20",)
    experiment = Experiment(arms=arms, steps=40, record_every=20, eval_every=40, seeds=(0,))
    assert np.isfinite(jaxtie.run(experiment, quiet=True)["loss"]).all()


@pytest.mark.slow
def test_initial_deviation_and_decay_of_tables_are_swept_in_one_program():
    sweep = {"init_std": (0.5, 1.0), "table_decay": (0.0, 1.0)}
    optimizer = Optimizer(learning_rate=0.5, eta_min=0.5, weight_decay=0.5)
    short = Experiment(
        arms=("tied",), steps=4, record_every=2, eval_every=2, seeds=(0,), optimizer=optimizer
    )
    swept = jaxtie.run(dataclasses.replace(short, sweep=sweep), quiet=True)
    start = swept["input_table"].sel(seed=0, table_step=0)
    np.testing.assert_array_equal(2 * start.sel(init_std=0.5), start.sel(init_std=1.0))
    for deviation, decay in itertools.product(*sweep.values()):
        alone = dataclasses.replace(short, init_std=deviation, table_decay=decay)
        point = swept.sel(init_std=deviation, table_decay=decay)
        for name in ("train_loss", "output_table"):
            np.testing.assert_array_equal(point[name], jaxtie.run(alone, quiet=True)[name])
    by_head = dataclasses.replace(short, arms=("tied+init-std=0.5+table-decay=0",))
    same = swept["loss"].sel(arm="tied", init_std=0.5, table_decay=0.0)
    np.testing.assert_array_equal(same, jaxtie.run(by_head, quiet=True)["loss"].isel(arm=0))
    kept = swept["decay_factor"].sel(init_std=1.0, step=4)
    np.testing.assert_allclose(kept, [1, 0.75**4], rtol=1e-6)
