"""Equinox's own layers: `eqx.nn.Shared` is untied and tied, a layer never loses its table."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxtie import is_tied, tie, untie

eqx = pytest.importorskip("equinox", reason="the test needs Equinox: pip install 'jaxtie[test]'")

V, D = 12, 4
TOKENS, TARGETS = np.random.default_rng(0).integers(V, size=(2, 20))


class DxV(eqx.Module):
    """A head by hand whose table is D×V."""

    kernel: jax.Array

    def __call__(self, h):
        return h @ self.kernel


def linear(key):
    return eqx.nn.Linear(D, V, use_bias=False, key=key)


class Model(eqx.Module):
    shared: eqx.nn.Shared

    def __call__(self, token):
        embed, head, *_ = self.shared()
        return head(jnp.tanh(embed(token)))


def rows_of(pair):
    return pair[0].weight


WAYS = {  # head, where, get, name of the output table
    "linear": (linear, lambda pair: pair[1].weight, rows_of, "weight"),
    "transposed": (
        lambda key: DxV(jax.random.normal(key, (D, V))),
        lambda pair: pair[1].kernel,
        lambda pair: rows_of(pair).T,
        "kernel",
    ),
    "several": (
        linear,
        lambda pair: (pair[2].weight, pair[1].weight),
        lambda pair: (rows_of(pair), rows_of(pair)),
        "weight",
    ),
}
OPTIMIZER = optax.adamw(1e-2)


@eqx.filter_jit
def step(model, state):
    def loss_of(model):
        logits = jax.vmap(model)(jnp.asarray(TOKENS))
        return optax.softmax_cross_entropy_with_integer_labels(logits, TARGETS).mean()

    loss, gradient = eqx.filter_value_and_grad(loss_of)(model)
    updates, state = OPTIMIZER.update(gradient, state, eqx.filter(model, eqx.is_array))
    return loss, eqx.apply_updates(model, updates), state


def fresh(model):
    return jax.eval_shape(OPTIMIZER.init, eqx.filter(model, eqx.is_array))


@pytest.mark.parametrize("way", WAYS)
def test_a_shared_table_is_untied_and_tied_again(way):
    make, where, get, name = WAYS[way]
    keys = jax.random.split(jax.random.key(0), 3)
    layers = eqx.nn.Embedding(V, D, key=keys[0]), make(keys[1]), linear(keys[2])
    model = Model(eqx.nn.Shared(layers, where, get))
    state = OPTIMIZER.init(eqx.filter(model, eqx.is_array))
    paths = {"input": "shared/pytree/0/weight", "output": f"shared/pytree/1/{name}"}
    _, model, state = step(model, state)
    assert is_tied(model, **paths)
    before, _, _ = step(model, state)
    untied = untie(model, state, **paths, transposed=way == "transposed")
    assert not is_tied(untied[0], **paths)
    assert jax.tree.structure(untied[1]) == jax.tree.structure(fresh(untied[0]))
    loss, *later = step(*untied)
    np.testing.assert_allclose(loss, before, rtol=1e-6)
    embed, head, third = later[0].shared()
    output = head.kernel.T if way == "transposed" else head.weight
    assert not np.array_equal(embed.weight, output)
    if way == "several":  # the third is still shared
        np.testing.assert_array_equal(third.weight, embed.weight)
    back = tie(*untied, **paths)
    assert eqx.tree_equal(back, (model, state))
    again = tie(*later, **paths)
    assert is_tied(again[0], **paths) and np.isfinite(step(*again)[0])
    np.testing.assert_allclose(again[0].shared()[0].weight, (embed.weight + output) / 2, rtol=1e-6)


class Plain(eqx.Module):
    embed: eqx.nn.Embedding
    head: eqx.nn.Linear


@pytest.mark.parametrize("output", ["head/weight", "layers/1/weight"])
def test_a_layer_never_loses_its_table(output):
    embed, head = eqx.nn.Embedding(V, D, key=jax.random.key(0)), linear(jax.random.key(1))
    model = Plain(embed, head)
    if output == "layers/1/weight":
        model = {"embed": embed, "layers": [eqx.nn.Lambda(jnp.tanh), head]}
    with pytest.raises(
        ValueError, match=f"{output} is of an eqx.nn.Linear, which needs it; tie by"
    ):
        tie(model, input="embed/weight", output=output)


def test_the_table_that_is_filled_in_is_the_output():
    layers = eqx.nn.Embedding(V, D, key=jax.random.key(0)), linear(jax.random.key(1))
    model = Model(eqx.nn.Shared(layers, rows_of, lambda pair: pair[1].weight))
    paths = {"input": "shared/pytree/0/weight", "output": "shared/pytree/1/weight"}
    with pytest.raises(ValueError, match=r"filled in by an eqx.nn.Shared; name the table that it"):
        untie(model, **paths)
    assert is_tied(model, input=paths["output"], output=paths["input"])
