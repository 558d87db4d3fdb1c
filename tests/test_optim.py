"""The schedule is PyTorch's and repeats exactly; AdamW decays everything."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtie import optim, sweep
from jaxtie.config import Transformer

RATES = {"learning_rate": 5e-4, "eta_min": 1e-5, "half_period": 10_000}


def test_schedule_is_torchs(x64):
    torch = pytest.importorskip("torch", reason="the reference needs PyTorch: pip install 'jaxtie[parity]'")
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=5e-4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=10_000, eta_min=1e-5)
    optimiser.step()  # once, or the schedule warns
    expected = []
    for _ in range(50_001):
        expected.append(optimiser.param_groups[0]["lr"])
        cosine.step()
    rates = jax.jit(optim.periodic_cosine(**RATES))(jnp.arange(50_001, dtype=jnp.int32))
    assert rates.dtype == jnp.float64
    np.testing.assert_allclose(rates, expected, rtol=0, atol=1e-12)


def test_schedule_goes_down_and_back_up():
    rates = np.array([optim.periodic_cosine(**RATES)(step) for step in (0, 5_000, 10_000, 15_000, 20_000, 30_000)])
    np.testing.assert_allclose(rates, [5e-4, 2.55e-4, 1e-5, 2.55e-4, 5e-4, 1e-5], rtol=1e-6)


@pytest.mark.parametrize("periods", [1, 24, 25, 100_000])
def test_float32_schedule_repeats_bit_by_bit(periods):
    schedule = jax.jit(optim.periodic_cosine(**RATES))
    step = jnp.arange(20_000, dtype=jnp.int32)
    first, later = schedule(step), schedule(step + 20_000 * periods)
    assert first.dtype == jnp.float32
    np.testing.assert_array_equal(first, later)
    exact = 1e-5 + 4.9e-4 * (1 + np.cos(np.pi * np.arange(20_000) / 10_000)) / 2
    np.testing.assert_allclose(later, exact, rtol=0, atol=2e-10)  # cos(πt) unreduced: 3e-9 at step 500,000


def test_adamw_decays_every_leaf_by_the_current_rate(x64):
    """With gradient 0 Adam's own part is 0, so what is left is the decay: on tables, norms and biases alike."""
    model = sweep.build_model(Transformer(), tied=False)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros(8, jnp.int32), jnp.zeros(1, jnp.int32))["params"]
    params = jax.tree.map(lambda leaf: jnp.asarray(np.random.default_rng(0).normal(size=leaf.shape)), shapes)
    schedule = lambda step: jnp.where(step == 0, 0.5, 0.25)
    adamw = optim.adamw(schedule, weight_decay=0.1, b1=0.9, b2=0.999, eps=1e-12)
    state, now, zero = adamw.init(params), params, jax.tree.map(jnp.zeros_like, params)
    update = jax.jit(adamw.update)
    for kept in (1 - 0.05, (1 - 0.05) * (1 - 0.025)):
        updates, state = update(zero, state, now)
        now = jax.tree.map(jnp.add, now, updates)
        jax.tree.map(lambda new, old, kept=kept: np.testing.assert_allclose(new, kept * old, rtol=1e-15), now, params)
