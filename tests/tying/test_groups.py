"""Untie and tie with optimizers that have the two tables in different groups."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import zoo
from bodies import once
from flax import nnx
from six_models import WithEmbed, WithEmbedding, WithLinear, make_equinox, module_step

from jaxtie import tie, untie

V, D = 7, 4
TOKENS, TARGETS = np.random.default_rng(0).integers(V, size=(2, 32))
NAMES = {"embedding": {}, "maxtext": {"input": "embed/table", "output": "head/kernel"}}


def start(layout):
    rng = np.random.default_rng(1)
    table, w = (jnp.asarray(rng.normal(size=(rows, D)), jnp.float32) for rows in (V, D))
    names = {"embedding": "input", "maxtext": "table"}
    root = "embedding" if layout == "embedding" else "embed"
    return {root: {names[layout]: table}, "w": w}


def loss_of(params):
    if "embed" in params:
        table = params["embed"]["table"]
        output = params["head"]["kernel"].T if "head" in params else table
    else:
        table = params["embedding"]["input"]
        output = params["embedding"].get("output", table)
    logits = jnp.tanh(table[TOKENS] @ params["w"]) @ output.T
    return optax.softmax_cross_entropy_with_integer_labels(logits, TARGETS).mean()


@partial(once, static_argnums=(0, 3))
def train(tx, params, opt_state, steps=4):
    def step(_, state):
        params, opt_state = state
        updates, opt_state = tx.update(jax.grad(loss_of)(params), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return jax.lax.fori_loop(0, steps, step, (params, opt_state))


def label(path, _):
    keys = jax.tree_util.keystr(path)
    if "output" in keys or "head" in keys:
        return "out"
    return "inp" if "embed" in keys else "rest"


def labels(params):
    return jax.tree.map_with_path(label, params)


def is_output(params):
    return jax.tree.map(lambda name: name == "out", labels(params))


def is_other(params):
    return jax.tree.map(lambda name: name != "out", labels(params))


def in_groups(inp, out=None, rest=None):
    groups = {"inp": inp, "out": out or inp, "rest": rest or inp}
    return optax.multi_transform(groups, labels)


def in_masks(inner):
    return optax.chain(optax.masked(inner, is_output), optax.masked(inner, is_other))


INNER = zoo.cases("adamw, momentum, lion, sm3, factored, schedule, injected, two")


def shapes(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def close(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), one, other)


LAYOUTS = {"embedding": in_groups, "maxtext": in_masks}
QUICK = {"adamw", "injected"}


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(name, layout, marks=[] if name in QUICK else pytest.mark.slow)
        for name in INNER
        for layout in LAYOUTS
    ],
)
def test_groups_that_are_alike_train_as_one_optimizer_does(name, layout):
    """One optimizer, then a group for each table, then one again; no state is lost."""
    one, paths = INNER[name], NAMES[layout]
    many, across = LAYOUTS[layout](one), {"transposed": True} if paths else {}
    tied = train(one, start(layout), one.init(start(layout)))
    expected = untie(*tied, **paths, **across)
    found = untie(*tied, **paths, **across, tx=many)
    assert shapes(found[1]) == shapes(jax.eval_shape(many.init, found[0]))
    jax.tree.map(lambda leaf: leaf + 1, found)  # every leaf is an array
    close(once(partial(untie, **paths, **across, tx=many))(*tied), found)
    expected, found = train(one, *expected), train(many, *found)
    close(found[0], expected[0])
    for how in ("mean", "input", "output"):
        back, again = tie(*found, how, **paths, tx=one), tie(*expected, how, **paths)
        close(train(one, *back), train(one, *again))
        apart = tie(*found, how, **paths, tx=many)
        assert shapes(apart[1]) == shapes(jax.eval_shape(many.init, apart[0]))
        close(train(many, *apart)[0], train(one, *again)[0])


def test_the_state_can_be_donated_and_moments_keep_the_new_dtype():
    one = optax.adam(1e-2)
    many = in_groups(optax.adam(1e-2, mu_dtype=jnp.bfloat16))
    untied = untie(*train(one, start("embedding"), one.init(start("embedding"))), tx=many)
    assert shapes(untied[1]) == shapes(jax.eval_shape(many.init, untied[0]))
    jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)(untied)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(untied))


@pytest.mark.parametrize("old", [optax.sgd(0.1), in_groups(optax.sgd(0.1), rest=optax.adam(1e-2))])
def test_what_a_group_did_not_keep_starts_anew(old):
    """Its moments are 0 and so is its count, while the other groups go on."""
    new = in_groups(optax.sgd(0.1), out=optax.adam(1e-3), rest=optax.adam(1e-2))
    tied = train(old, start("embedding"), old.init(start("embedding")))
    untied = untie(*tied, tx=new)
    groups = {name: group.inner_state[0] for name, group in untied[1].inner_states.items()}
    assert groups["out"].count == 0 and not np.any(groups["out"].mu["embedding"]["output"])
    kept = isinstance(tied[1], optax.PartitionState)
    assert groups["rest"].count == (4 if kept else 0)
    assert np.any(groups["rest"].mu["w"]) == kept
    later = train(new, *untied)
    back = tie(*later, "output", tx=in_groups(optax.adam(1e-3), rest=optax.adam(1e-2)))
    moments = back[1].inner_states["inp"].inner_state[0].mu["embedding"]["input"]
    own = later[1].inner_states["out"].inner_state[0].mu["embedding"]["output"]
    np.testing.assert_array_equal(moments, own)


def test_hyperparameters_are_those_of_the_group():
    make = optax.inject_hyperparams(optax.adam)
    old, new = in_groups(make(1e-2)), in_groups(make(1e-2), out=make(1e-4))
    tied = train(old, start("embedding"), old.init(start("embedding")))
    states = untie(*tied, tx=new)[1].inner_states
    rates = [float(states[name].inner_state.hyperparams["learning_rate"]) for name in states]
    np.testing.assert_allclose(rates, [1e-2] * 3)  # of the old state, where the old one has it
    plain = make(3e-2)
    states = untie(*train(plain, start("embedding"), plain.init(start("embedding"))), tx=new)[1]
    rates = {
        name: float(group.inner_state.hyperparams["learning_rate"])
        for name, group in states.inner_states.items()
    }
    np.testing.assert_allclose([rates["inp"], rates["out"]], [1e-2, 1e-4])


PLAIN, GROUPS = optax.adam(1e-2), in_groups(optax.adam(1e-2))
FACTORED = optax.adafactor(1e-2, min_dim_size_to_factor=4)
ERRORS = [
    (in_groups(optax.sgd(0.1), rest=PLAIN), PLAIN, r"has no ScaleByAdamState.\w+ of embedding"),
    (FACTORED, optax.adafactor(1e-2), r"FactoredState.\w+ of \S+ as \(\d,?\); the new one expects"),
    (GROUPS, None, "group 'out' has no parameter yet; pass the optimizer as tx="),
]


@pytest.mark.parametrize(("old", "new", "message"), ERRORS)
def test_states_that_do_not_fit_are_refused_in_one_line(old, new, message):
    tied = train(old, start("embedding"), old.init(start("embedding")))
    with pytest.raises(ValueError, match=message) as error:
        untie(*tied, tx=new)
    assert "\n" not in str(error.value)


def test_tying_tables_of_different_groups_needs_the_optimizer():
    untied = untie(*train(GROUPS, start("embedding"), GROUPS.init(start("embedding"))), tx=GROUPS)
    with pytest.raises(ValueError, match="pass the new optimizer as tx="):
        tie(*untied)


OF_HEAD = {"input": "embed/embedding", "output": "head/kernel"}


@pytest.mark.parametrize(
    ("way", "paths", "graph_mode"),
    [
        (WithEmbed, {}, True),
        (WithEmbed, {}, False),
        (WithEmbedding, {}, True),
        (WithEmbedding, {}, False),
        (WithLinear, OF_HEAD, True),
    ],
)
def test_an_nnx_optimizer_with_groups_is_regrouped(way, paths, graph_mode):
    """By its own `tx`, or by another."""

    def of(params):
        def name(path, _):
            keys = jax.tree_util.keystr(path)
            return "out" if "output" in keys or "head" in keys else "inp"

        return jax.tree.map_with_path(name, params)

    many = optax.multi_transform({"inp": optax.adam(1e-2), "out": optax.adam(1e-4)}, of)
    with nnx.set_graph_mode(graph_mode):
        for old, new in ((many, None), (optax.adam(1e-2), many))[: 1 + graph_mode]:
            model = way(nnx.Rngs(0))
            if paths:
                tie(model, **paths)
            optimizer = nnx.Optimizer(model, old, wrt=nnx.Param)
            module_step(model, optimizer)
            before = float(module_step(model, optimizer))
            untie(model, optimizer, **paths, tx=new)
            own = optimizer.opt_state.inner_states
            of_input, of_output = (
                jax.tree.leaves(own[name].inner_state[0].mu) for name in ("inp", "out")
            )
            assert any(
                np.array_equal(of_output[0], x) or np.array_equal(of_output[0], x[...].T)
                for x in of_input
            )
            fresh = nnx.Optimizer(model, optimizer.tx, wrt=nnx.Param).opt_state
            assert jax.tree.structure(nnx.as_pure(optimizer.opt_state)) == jax.tree.structure(
                nnx.as_pure(fresh)
            )
            assert float(module_step(model, optimizer)) < before
            tie(model, optimizer, **paths)
            assert float(module_step(model, optimizer)) < before


def test_equinox_with_groups():
    pytest.importorskip("equinox", reason="the test needs Equinox: pip install 'jaxtie[test]'")
    model = make_equinox()
    one, many = INNER["adamw"], in_groups(INNER["adamw"])
    state = one.init(model.arrays(model.params))
    params, state = untie(model.params, state, **model.paths, tx=many)
    assert shapes(state) == shapes(many.init(model.arrays(params)))
    assert shapes(tie(params, state, **model.paths, tx=one)[1]) == shapes(
        one.init(model.arrays(model.params))
    )


@pytest.mark.parametrize(
    ("name", "layout"),
    [*((name, "maxtext") for name in zoo.IN_GROUPS), ("adam", "embedding"), ("sm3", "embedding")],
)
def test_the_state_of_any_optimizer_fits_the_groups(name, layout):
    """Structure, shapes and dtypes are those of `init`, from one optimizer to groups and back."""
    one = zoo.make(name)
    many, paths = in_groups(one), NAMES[layout]
    across = {"transposed": True} if paths else {}
    params = start(layout)
    tied = params, jax.eval_shape(one.init, params)
    untied = jax.eval_shape(partial(untie, **paths, **across, tx=many), *tied)
    assert shapes(untied[1]) == shapes(jax.eval_shape(many.init, untied[0]))
    back = jax.eval_shape(partial(tie, **paths, tx=one), *untied)
    assert shapes(back) == shapes(tied)
