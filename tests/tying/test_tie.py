"""Tie and untie parameters and the state of any optimizer at any step of training."""

from functools import cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import zoo
from bodies import once
from flax.core import freeze
from six_models import WAYS, ByHand

from jaxtie.tying.linen import Embedding
from jaxtie.tying.tie import is_tied, tie, untie


class Bigram(nn.Module):
    """The smallest model with a body."""

    tied: bool = True

    @nn.compact
    def __call__(self, token):
        embedding = Embedding(7, 4, tied=self.tied, name="embedding")
        return embedding.logits(jnp.tanh(nn.Dense(4, name="body")(embedding(token))))


MODEL = Bigram()
PAIRS_2xB = np.random.default_rng(0).integers(7, size=(2, 64))


OPTIMISERS = zoo.cases("adamw, factored, clipped, labels, masked, sm3")


def look(params):
    """Return logits and loss."""
    logits = MODEL.apply({"params": params}, PAIRS_2xB[0])
    return logits, jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, PAIRS_2xB[1]))


compiled_look = jax.jit(look)


@cache
def three_members():
    return once(jax.vmap(lambda key: MODEL.init(key, 0)["params"]))(
        jax.random.split(jax.random.key(5), 3)
    )


def alone(stacked, number=0):
    return jax.tree.map(lambda leaf: leaf[number], stacked)


def start(optimizer):
    """A member."""
    params = alone(three_members())
    return params, optimizer.init(params)


@partial(once, static_argnums=0)
def advance(optimizer, state, steps):
    def step(_, state):
        params, opt_state = state
        gradient = jax.grad(lambda p: look(p)[1])(params)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return jax.lax.fori_loop(0, steps, step, state)


def assert_equal(one, other):
    """Same structure, types and bits."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other)):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def shapes(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def apart(tree):
    """Return the leaves of output tables, of input tables and all others."""
    found: dict[str, list] = {"output": [], "input": [], "rest": []}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        keys = [str(key) for key in path]
        name = next((name for name in ("output", "input") if f"['{name}']" in keys), "rest")
        found[name].append(leaf)
    return tuple(found.values())


STEPS_S = np.array([0, 1, 30])  # a member each


@pytest.mark.parametrize("name", OPTIMISERS)
def test_untying_at_any_step_changes_nothing_and_training_goes_on(name):
    """Alone and stacked, as it is and compiled."""
    optimizer = OPTIMISERS[name]
    stacked_advance = jax.vmap(partial(advance, optimizer))
    fresh = three_members(), once(jax.vmap(optimizer.init))(three_members())
    tied = stacked_advance(fresh, STEPS_S)
    untied = untie(*tied)

    @once
    def compiled(tied, untied):
        return untie(*tied), jax.vmap(untie)(*tied), jax.vmap(tie)(*untied)

    for found, expected in zip(compiled(tied, untied), (untied, untied, tied), strict=True):
        assert_equal(found, expected)
    assert_equal(jax.vmap(untie)(*tied), untied)
    later = stacked_advance(untied, jnp.full(3, 30))[0]
    assert not np.any(
        np.all(later["embedding"]["input"] == later["embedding"]["output"], axis=(1, 2))
    )
    for k in range(len(STEPS_S)):
        assert_equal(untie(*alone(tied, k)), alone(untied, k))
        assert_untied_and_nothing_else(optimizer, alone(tied, k), alone(untied, k))
        assert compiled_look(alone(later, k))[1] < compiled_look(alone(untied[0], k))[1]


def assert_untied_and_nothing_else(optimizer, tied, untied):
    """Parameters and state, of one member."""
    assert is_tied(tied[0]) and not is_tied(untied[0])
    assert_equal(look(untied[0]), look(tied[0]))
    assert_equal(compiled_look(untied[0]), compiled_look(tied[0]))
    for now, before in zip(untied, tied):
        outputs, inputs, rest = apart(now)
        assert_equal(outputs, inputs)
        assert_equal([inputs, rest], list(apart(before)[1:]))
    assert shapes(untied[1]) == shapes(jax.eval_shape(optimizer.init, untied[0]))
    for how in ("input", "output", "mean"):
        assert_equal(tie(*untied, how), tied)


WITH_VALUES = """
    lbfgs galore muon prodigy accumulated masked-part masked-other-part mechanised
""".split()


@pytest.mark.parametrize("name", zoo.NAMES)
def test_state_fits_the_untied_parameters(name):
    """Structure, shapes and types are Optax's for untied parameters."""
    optimizer = zoo.make(name)
    tied = jax.eval_shape(lambda: start(optimizer))
    untied = jax.eval_shape(untie, *tied)
    assert shapes(untied[1]) == shapes(jax.eval_shape(optimizer.init, untied[0]))
    assert shapes(jax.eval_shape(tie, *untied)) == shapes(tied)
    if name in WITH_VALUES:
        tied = start(optimizer)
        assert_equal(tie(*untie(*tied)), tied)


@pytest.mark.parametrize("how", ["input", "output", "mean"])
def test_tying_picks_or_averages(how):
    """With tables and moments that differ; the rest stays."""
    untied = advance(OPTIMISERS["adamw"], untie(*start(OPTIMISERS["adamw"])), 5)
    for now, before in zip(tie(*untied, how), untied):
        (outputs, inputs, rest), (none, table, rest_now) = apart(before), apart(now)
        expected = {
            "input": inputs,
            "output": outputs,
            "mean": [(a + b) / 2 for a, b in zip(inputs, outputs)],
        }[how]
        assert none == [] and not np.array_equal(inputs[0], outputs[0])
        for a, b in zip(table, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=0)
        assert_equal(rest_now, rest)


def test_any_tree():
    """At any depth, several at once, in other containers, on the host."""
    table = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    params = {
        "a": freeze({"input": table, "projection": {"weight": table}}),
        "b": [{"x": {"input": table + 1, "output": table}}, None],
        "c": {"input": {"w": table}},
    }
    moments = (jax.tree.map(np.zeros_like, params), np.int32(3))
    untied, state = untie(params, moments)
    expected = {**params, "a": params["a"].copy({"output": table})}
    assert_equal(untied, expected)
    assert_equal(state, (jax.tree.map(np.zeros_like, expected), np.int32(3)))
    assert not is_tied(params) and not is_tied(untied) and is_tied(params["a"])
    assert_equal(
        tie(untied, how="input"),
        ({"a": params["a"], "b": [{"x": {"input": table + 1}}, None], "c": params["c"]}, ()),
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_the_untied_state_can_be_donated(compiled):
    """No array occurs twice in it."""
    untied = (once(untie) if compiled else untie)(*start(OPTIMISERS["adamw"]))
    expected = jax.tree.map(lambda leaf: np.asarray(leaf) + 1, untied)
    add_one = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)
    found = add_one(untied)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(untied))
    assert_equal(found, expected)


@pytest.mark.parametrize("operation", [untie, tie, is_tied])
def test_no_embedding(operation):
    with pytest.raises(ValueError, match="no embedding"):
        operation({"body": {"input": {"kernel": np.ones(3)}, "weight": np.ones(2)}})


def test_unknown_choice():
    with pytest.raises(ValueError, match=r"how is 'both'; expected one of input, output, mean"):
        tie({"input": np.ones((3, 2))}, how="both")


@pytest.fixture(params=WAYS)
def model(request, x64):
    if request.param == "equinox":
        pytest.importorskip("equinox", reason="the test needs Equinox: pip install 'jaxtie[test]'")
    return WAYS[request.param]()


def assert_same_tables(model, reference, tolerance=1e-9):
    """Compare tables and moments."""
    moments = [{name: both[i] for name, both in reference.moments.items()} for i in (0, 1)]
    references = [reference.params, *moments]
    for tree, expected in zip([model.params, *model.moments()], references, strict=True):
        for found, name in zip(model.tables(tree), ("input", "output"), strict=True):
            assert (found is None) == (name not in expected)
            if found is not None:
                close = partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
                close(found, expected[name])


def test_six_ways_to_write_a_model(model):
    """Tied, trained, untied midway, trained on and tied again, against NumPy."""
    reference = ByHand()
    tied_structure = jax.tree.structure((model.params, model.moments()))
    for change, tied_then in ((None, True), ("untie", False), ("tie", True)):
        if change:
            before = float(model.loss())
            getattr(model, change)()
            getattr(reference, change)()
            if change == "untie":
                assert abs(float(model.loss()) - before) < 1e-6
        assert model.is_tied() == tied_then
        assert (jax.tree.structure((model.params, model.moments())) == tied_structure) == tied_then
        assert_same_tables(model, reference)
        losses = np.array([[float(model.step()), reference.step()] for _ in range(8)])
        np.testing.assert_allclose(losses[:, 0], losses[:, 1], rtol=1e-9)
        assert losses[-1, 0] < losses[0, 0]
        assert_same_tables(model, reference)
