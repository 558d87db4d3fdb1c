"""Blockwise cross-entropy against the plain formula: loss, gradients, accuracy, dtypes, memory."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtie import cross_entropy

P, V, D = 70, 50, 8
HEADS = [
    {},
    {"bias": True},
    {"logit_softcap": 2.0, "logit_scale": 0.5},
    {"allowed": True, "z_loss": 1e-2},
    {"bias": True, "logit_softcap": 3.0, "allowed": True, "z_loss": 1e-3},
]
RNG = np.random.default_rng(0)
VALUES = {
    "h": RNG.normal(size=(P, D)),
    "table": RNG.normal(size=(V, D)),
    "bias": RNG.normal(size=V),
}
TARGETS = jnp.asarray(RNG.integers(0, V - 10, P))
# zeros in between and at the end
WEIGHTS = jnp.asarray(RNG.choice([0.0, 1.0, 2.5], P) * (np.arange(P) < 60)).at[0].set(1.0)
ALLOWED = jnp.arange(V) < V - 10


def cast(values, dtype):
    return {name: jnp.asarray(value, dtype) for name, value in values.items()}


def plain(
    values, *, bias=False, allowed=False, logit_scale=1.0, logit_softcap=None, z_loss=0.0, count=P
):
    """Compute all logits at once."""
    target, weight = TARGETS[:count], WEIGHTS[:count]
    logits = values["h"][:count] @ values["table"].T * logit_scale
    logits = logits + values["bias"][None] if bias else logits
    logits = logit_softcap * jnp.tanh(logits / logit_softcap) if logit_softcap else logits
    logits = jnp.where(ALLOWED[None], logits, -jnp.inf) if allowed else logits
    log_sum = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, target[:, None], axis=-1)[:, 0]
    loss = log_sum - chosen + z_loss * log_sum**2
    correct = jnp.argmax(logits, axis=-1) == target
    return tuple(jnp.sum(weight.astype(loss.dtype) * x) / weight.sum() for x in (loss, correct))


def ours(values, *, bias=False, allowed=False, block=16, count=P, **options):
    extra = {"bias_V": values["bias"] if bias else None, "allowed_V": ALLOWED if allowed else None}
    args = values["h"][:count], values["table"], TARGETS[:count], WEIGHTS[:count]
    return cross_entropy(*args, **extra, **options, block=block)


@pytest.mark.parametrize("head", HEADS)
def test_loss_accuracy_and_gradients_match_the_formula(x64, head):
    values = cast(VALUES, jnp.float64)
    for block, count in ((16, P), (1000, P), (1, 37), (7, 37), (7, 1)):
        expected = jax.value_and_grad(partial(plain, **head, count=count), has_aux=True)(values)
        blocks = partial(ours, **head, block=block, count=count)
        found = jax.value_and_grad(blocks, has_aux=True)(values)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-13), found, expected)
        np.testing.assert_allclose(blocks(values), expected[0], rtol=1e-13)
    expected = jax.value_and_grad(partial(plain, **head), has_aux=True)(values)
    in_32 = cast(VALUES, jnp.float32)
    found = jax.value_and_grad(partial(ours, **head), has_aux=True)(in_32)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, expected)


@pytest.mark.parametrize("head", [HEADS[0], HEADS[-1]])
def test_bfloat16_operands(head, x64):
    """The loss is that of the rounded values, summed in float32; a gradient is rounded once."""
    rounded = cast(VALUES, jnp.bfloat16)
    exact = cast(rounded, jnp.float64)
    found, slopes = jax.value_and_grad(lambda v: ours(v, **head)[0])(rounded)
    expected, expected_slopes = jax.value_and_grad(lambda v: plain(v, **head)[0])(exact)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for name, slope in slopes.items():
        assert slope.dtype == jnp.bfloat16
        largest = np.abs(expected_slopes[name]).max()
        np.testing.assert_allclose(
            slope.astype(jnp.float64), expected_slopes[name], rtol=2**-7, atol=2**-8 * largest
        )


def test_default_weights_and_weights_of_zero():
    h, table, _ = cast(VALUES, jnp.float32).values()
    batch = h.reshape(2, -1, D), table, TARGETS.reshape(2, -1)
    loss, accuracy = cross_entropy(*batch)
    assert (loss, accuracy) == cross_entropy(*batch, jnp.ones((2, P // 2)))
    assert (loss, accuracy) == cross_entropy(h, table, TARGETS) and 0 <= float(accuracy) < 0.5
    assert cross_entropy(*batch, jnp.zeros((2, P // 2))) == (0, 0)
    with pytest.raises(ValueError, match="same leading axes"):
        cross_entropy(*batch[:2], TARGETS[:5])


def test_a_target_that_is_not_allowed_has_an_infinite_loss():
    h, table, _ = cast(VALUES, jnp.float32).values()
    assert jnp.isposinf(cross_entropy(h, table, jnp.full(P, V - 1), allowed_V=ALLOWED)[0])


@pytest.mark.parametrize("target", [V - 1, -100])
def test_positions_of_weight_zero_may_have_any_target(target):
    """Neither their target nor token 0, which pads the last block, is allowed."""
    targets = jnp.where(TARGETS == 0, 1, TARGETS).at[3].set(target)
    weights, allowed = jnp.ones(P).at[3].set(0), ALLOWED.at[0].set(False)

    def loss(values):
        options = {"allowed_V": allowed, "block": 16}
        return cross_entropy(values["h"], values["table"], targets, weights, **options)[0]

    found, slopes = jax.value_and_grad(loss)(cast(VALUES, jnp.float32))
    assert jnp.isfinite(found) and all(jnp.isfinite(slope).all() for slope in slopes.values())


def test_bfloat16_gradients_add_up_over_many_blocks():
    """In bfloat16 1 + 1/256 is 1: most of the table's gradient would be lost."""
    h, table = jnp.ones((4096, 1), jnp.bfloat16), jnp.zeros((2, 1), jnp.bfloat16)
    slope = jax.grad(lambda table: cross_entropy(h, table, jnp.zeros(4096, int), block=1)[0])(table)
    np.testing.assert_allclose(slope.astype(jnp.float32).ravel(), [-0.5, 0.5], rtol=1e-2)


def test_memory_grows_with_the_block_and_not_with_the_positions():
    """Beyond arguments and gradients, which the plain loss has, too."""

    def temporary(loss, positions: int) -> int:
        shapes = (
            ((positions, 64), jnp.float32),
            ((32_000, 64), jnp.float32),
            ((positions,), jnp.int32),
        )
        arguments = [jax.ShapeDtypeStruct(*each) for each in shapes]
        program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*arguments)
        compiled = program.compile({"xla_backend_optimization_level": 0})
        return compiled.memory_analysis().temp_size_in_bytes

    def all_at_once(h, table, target):
        logits = h @ table.T
        chosen = jnp.take_along_axis(logits, target[:, None], axis=-1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)

    def by_blocks(h, table, target):
        return cross_entropy(h, table, target)[0]

    few, many = (temporary(by_blocks, positions) for positions in (1024, 8192))
    assert many - few < 2**23 < temporary(all_at_once, 8192) / 50
