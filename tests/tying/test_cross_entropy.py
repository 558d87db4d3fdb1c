"""The loss over a large vocabulary: that of the plain formula, gradients too, with memory that does
not grow with P × V.
"""

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


def made_up(dtype) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    made = {
        "h": rng.normal(size=(2, P // 2, D)),
        "table": rng.normal(size=(V, D)),
        "bias": rng.normal(size=V),
    }
    return {name: jnp.asarray(value, dtype) for name, value in made.items()}


TARGETS = jnp.asarray(np.random.default_rng(1).integers(0, V - 10, (2, P // 2)))
WEIGHTS = jnp.asarray(np.random.default_rng(2).choice([0.0, 1.0, 2.5], (2, P // 2)))
ALLOWED = jnp.arange(V) < V - 10


def plain(
    values, *, bias=False, allowed=False, logit_scale=1.0, logit_softcap=None, z_loss=0.0
) -> jax.Array:
    """The formula, by all logits at once."""
    logits = values["h"] @ values["table"].T * logit_scale
    logits = logits + values["bias"].reshape(1, 1, -1) if bias else logits
    logits = logit_softcap * jnp.tanh(logits / logit_softcap) if logit_softcap else logits
    logits = jnp.where(ALLOWED[None, None], logits, -jnp.inf) if allowed else logits
    log_sum = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, TARGETS[..., None], axis=-1)[..., 0]
    return (
        jnp.sum(WEIGHTS.astype(log_sum.dtype) * (log_sum - chosen + z_loss * log_sum**2))
        / WEIGHTS.sum()
    )


def ours(values, *, bias=False, allowed=False, block=16, **rest) -> jax.Array:
    extra = {"bias_V": values["bias"] if bias else None, "allowed_V": ALLOWED if allowed else None}
    return cross_entropy(
        values["h"], values["table"], TARGETS, WEIGHTS, **extra, **rest, block=block
    )[0]


@pytest.mark.parametrize("head", HEADS)
def test_loss_and_gradients_are_those_of_the_formula(x64, head):
    values = made_up(jnp.float64)
    for block in (16, 1000):
        found, expected = (
            jax.value_and_grad(partial(f, **head))(values)
            for f in (partial(ours, block=block), plain)
        )
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-13), found, expected)
    in_32 = {name: value.astype(jnp.float32) for name, value in values.items()}
    found, expected = (
        jax.value_and_grad(partial(ours, **head))(in_32),
        jax.value_and_grad(partial(plain, **head))(values),
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, expected)


@pytest.mark.parametrize("head", [HEADS[0], HEADS[-1]])
def test_operands_of_bfloat16(head, x64):
    """The loss is that of the rounded values, summed in float32; a gradient is rounded once more,
    to 8 bits.
    """
    rounded = {name: value.astype(jnp.bfloat16) for name, value in made_up(jnp.float64).items()}
    exact = {name: value.astype(jnp.float64) for name, value in rounded.items()}
    found, slopes = jax.value_and_grad(partial(ours, **head))(rounded)
    expected, expected_slopes = jax.value_and_grad(partial(plain, **head))(exact)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for name, slope in slopes.items():
        assert slope.dtype == jnp.bfloat16
        largest = np.abs(expected_slopes[name]).max()
        np.testing.assert_allclose(
            slope.astype(jnp.float64), expected_slopes[name], rtol=2**-7, atol=2**-8 * largest
        )


def test_without_weights_all_count_alike():
    values = made_up(jnp.float32)
    told = [
        cross_entropy(values["h"], values["table"], TARGETS, *weights)
        for weights in ((), (jnp.ones((2, P // 2)),))
    ]
    assert told[0] == told[1] and 0 <= float(told[0][1]) < 0.5


def test_a_target_that_is_not_allowed_has_an_infinite_loss():
    values = made_up(jnp.float32)
    loss, _ = cross_entropy(
        values["h"], values["table"], jnp.full((2, P // 2), V - 1), allowed_V=ALLOWED
    )
    assert jnp.isposinf(loss)


@pytest.mark.parametrize("target", [V - 1, -100])
def test_what_does_not_count_may_be_no_target_at_all(target):
    """One of weight 0 whose token is shut or no token; padding of the last block, whose token 0 is
    shut.
    """
    values = made_up(jnp.float32)
    targets = jnp.where(TARGETS == 0, 1, TARGETS).at[0, 3].set(target)
    weights = jnp.ones((2, P // 2)).at[0, 3].set(0)
    shut = ALLOWED.at[0].set(False)

    def loss(values):
        return cross_entropy(
            values["h"], values["table"], targets, weights, allowed_V=shut, block=16
        )[0]

    found, slopes = jax.value_and_grad(loss)(values)
    assert jnp.isfinite(found) and all(jnp.isfinite(slope).all() for slope in slopes.values())


def test_shapes_that_do_not_fit_are_refused():
    values = made_up(jnp.float32)
    with pytest.raises(ValueError, match="same leading axes"):
        cross_entropy(values["h"], values["table"], TARGETS[:, :5])


def test_gradients_of_bfloat16_add_up_over_many_blocks():
    """In bfloat16 1 + 1/256 is 1: added there block by block, most of the table's gradient would be
    lost.
    """
    positions = 4096
    h = jnp.ones((positions, 1), jnp.bfloat16)
    table = jnp.zeros((2, 1), jnp.bfloat16)
    loss = partial(
        lambda h, table: cross_entropy(h, table, jnp.zeros(positions, int), block=1)[0], h
    )
    np.testing.assert_allclose(
        jax.grad(loss)(table).astype(jnp.float32).ravel(), [-0.5, 0.5], rtol=1e-2
    )


def test_memory_grows_with_the_block_and_not_with_the_positions():
    """Above arguments and gradients, of which the plain loss has the same."""

    def above(loss, positions: int) -> int:
        shape = jax.ShapeDtypeStruct
        arguments = (
            shape((positions, 64), jnp.float32),
            shape((32_000, 64), jnp.float32),
            shape((positions,), jnp.int32),
        )
        program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*arguments)
        return (
            program.compile({"xla_backend_optimization_level": 0})
            .memory_analysis()
            .temp_size_in_bytes
        )

    def all_at_once(h, table, target):
        logits = h @ table.T
        return jnp.mean(
            jax.nn.logsumexp(logits, axis=-1)
            - jnp.take_along_axis(logits, target[:, None], axis=-1)[:, 0]
        )

    def by_blocks(h, table, target):
        return cross_entropy(h, table, target)[0]

    few, many = (above(by_blocks, positions) for positions in (1024, 8192))
    assert many - few < 2**23 < above(all_at_once, 8192) / 50
