"""Flax NNX: the same embedding as in linen; tie and untie modules and their optimizers in place."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import zoo
from bodies import once
from flax import nnx
from six_models import (
    NNX,
    NNXLinear,
    NNXShared,
    WithEmbed,
    WithEmbedding,
    cross_entropy_of,
    module_step,
)

import jaxtie
from jaxtie import is_tied, tie, untie
from jaxtie.tying.head import (
    EmbeddingSpec,
    Projection,
    compute_logits,
    embed_tokens,
    half_swap,
    initial_params,
)

V, D = 6, 4
TOKENS = np.array([3, 0, 5, 3])
BERT = Projection(bias=True, activation=jax.nn.gelu, norm=True)
SCALES = {"input_scale": "sqrt(D)", "logit_scale": "1/sqrt(D)", "logit_softcap": 3.0}
HEADS = {
    "scales": {**SCALES, "bias": True, "transform": half_swap},
    "projection": {"tied": True, "transform": BERT, "padding": 3}
    | {"input_gradient": 0.5, "output_gradient": 2.0},
}


@pytest.mark.parametrize("head", ["scales", pytest.param("projection", marks=pytest.mark.slow)])
def test_functions_linen_and_nnx_agree(head, x64):
    """With the same parameters: trees, embeddings, logits and gradients."""
    options = {**HEADS[head], "param_dtype": "float64"}
    rng = np.random.default_rng(0)
    spec, linen = EmbeddingSpec(V, D, **options), jaxtie.Embedding(V, D, **options)
    graph, state = nnx.split(jaxtie.nnx.Embedding(V, D, **options, rngs=nnx.Rngs(0)))
    fresh = jax.eval_shape(partial(initial_params, spec), jax.random.key(0))
    params = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape), fresh)
    of_linen = jax.eval_shape(linen.init, jax.random.key(0), 0)["params"]
    for tree in (of_linen, nnx.to_pure_dict(state)):
        assert jax.tree.structure(tree) == jax.tree.structure(params)

    def bind_module(params):
        own = jax.tree.map(lambda leaf: leaf, state)
        nnx.replace_by_pure_dict(own, params)
        module = nnx.merge(graph, own)
        return module, module.logits

    def bind_linen(params):
        bound = linen.bind({"params": params})
        return bound, bound.logits

    def bind_functions(params):
        return partial(embed_tokens, spec, params), partial(compute_logits, spec, params)

    @partial(once, static_argnums=0)
    def look(bind, params):
        def score(params):
            rows_of, logits_of = bind(params)
            rows = rows_of(TOKENS)
            logits = logits_of(jnp.tanh(rows))
            return jnp.sum(jnp.sin(logits)) + jnp.sum(rows**2), (rows, logits)

        return jax.value_and_grad(score, has_aux=True)(params)

    expected = look(bind_functions, params)
    assert all(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(expected))
    close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14)
    for bind in (bind_linen, bind_module):
        jax.tree.map(close, look(bind, params), expected)


def test_initial_values():
    """What tied and untied share starts equal, and later draws get the same numbers."""
    options = {"init_std": "1/sqrt(D)", "transform": Projection(), "padding": 7}
    made = []
    for tied in (True, False):
        rngs = nnx.Rngs(3)
        made.append((jaxtie.nnx.Embedding(3000, 64, tied, **options, rngs=rngs), rngs.params()))
    (tied, after_tied), (untied, after_untied) = made
    assert after_tied == after_untied
    np.testing.assert_array_equal(tied.input[...], untied.input[...])
    np.testing.assert_array_equal(tied.projection.weight[...], untied.projection.weight[...])
    for table in (untied.input[...], untied.output[...]):
        assert np.std(table) == pytest.approx(1 / 8, rel=0.01) and not np.any(table[7])
    assert np.abs(untied.input[...] - untied.output[...]).max() > 0.1


def part_of(name):
    return "tables" if "embed" in name or "head" in name else "rest"


def by_part(params):
    return jax.tree.map_with_path(lambda path, _: part_of(jax.tree_util.keystr(path)), params)


OPTIMISERS = zoo.cases("adamw, clipped, lion, labels") | {
    "frozen": optax.multi_transform(
        {"tables": optax.set_to_zero(), "rest": optax.adam(1e-2)}, by_part
    )
}


def arrays(tree):
    return jax.device_get(nnx.as_pure(tree))


def assert_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("way", [NNX, NNXShared, NNXLinear])
def test_any_optimizer_goes_along(way, name):
    """In place, under `nnx.jit`, split and merged give the same state; training goes on."""
    made = way()
    model, optimizer = made.model, nnx.Optimizer(made.model, OPTIMISERS[name], wrt=nnx.Param)
    for _ in range(2):
        module_step(model, optimizer)
    before, tied = float(made.loss()), arrays((nnx.state(model), optimizer.opt_state))
    merged = nnx.merge(*nnx.split((model, optimizer)))
    untie(*merged, **made.paths)
    merged = nnx.merge(*nnx.split(merged))
    nnx.jit(lambda model, optimizer: untie(model, optimizer, **made.paths) and None)(
        model, optimizer
    )
    assert_equal(arrays(nnx.state(model)), arrays(nnx.state(merged[0])))
    assert_equal(arrays(optimizer.opt_state), arrays(merged[1].opt_state))
    assert abs(float(made.loss()) - before) < 1e-6 and not made.is_tied()
    fresh = jax.eval_shape(OPTIMISERS[name].init, nnx.as_pure(nnx.state(model, nnx.Param)))
    shapes = partial(jax.tree.map, lambda leaf: (leaf.shape, leaf.dtype))
    assert shapes(nnx.as_pure(optimizer.opt_state)) == shapes(fresh)
    tie(*merged, **made.paths)
    assert_equal(arrays((nnx.state(merged[0]), merged[1].opt_state)), tied)
    losses = [float(module_step(model, optimizer)) for _ in range(10)]
    assert losses[-1] < losses[0]
    input_VxD, output_VxD = made.tables(nnx.state(model))
    assert (name == "frozen") or not np.array_equal(input_VxD, output_VxD)
    nnx.jit(lambda model, optimizer: tie(model, optimizer, **made.paths) and None)(model, optimizer)
    assert made.is_tied() and np.isfinite(module_step(model, optimizer))
    assert jax.tree.structure(arrays(nnx.state(model))) == jax.tree.structure(tied[0])


class Twice(nnx.Module):
    """One `nnx.Embed` by two names, or one `nnx.Param` in two modules; the output comes first."""

    def __init__(self, share_module: bool):
        self.tokens, self.places = (nnx.Embed(V, D, rngs=nnx.Rngs(i)) for i in (0, 1))
        self.blocks = nnx.List([nnx.Embed(V, D, rngs=nnx.Rngs(2))])
        if share_module:
            self.blocks[0] = self.tokens
        else:
            self.blocks[0].embedding = self.tokens.embedding

    def __call__(self, tokens):
        return self.blocks[0].attend(jnp.tanh(self.tokens(tokens) + self.places(tokens)))


@pytest.mark.parametrize(
    ("share_module", "paths"),
    [
        (True, {"input": "blocks/0/embedding"}),
        (False, {"input": "tokens/embedding", "output": "blocks/0/embedding"}),
    ],
)
def test_shared_modules_and_variables(share_module, paths):
    model = Twice(share_module)
    optimizer = nnx.Optimizer(model, OPTIMISERS["adamw"], wrt=nnx.Param)
    for _ in range(3):
        module_step(model, optimizer)
    before = cross_entropy_of(model(TOKENS_OF_BATCH))
    tied = arrays((nnx.state(model), optimizer.opt_state))
    assert is_tied(model, **paths)
    untie(model, optimizer, **paths)
    assert not is_tied(model, **paths)
    assert abs(cross_entropy_of(model(TOKENS_OF_BATCH)) - before) < 1e-6
    copy = nnx.clone((model, optimizer))
    tie(*copy, **paths)
    assert_equal(arrays((nnx.state(copy[0]), copy[1].opt_state)), tied)
    for _ in range(3):
        module_step(model, optimizer)
    output = model.tokens.output if share_module else model.blocks[0].embedding
    tables = [model.tokens.embedding[...], output[...]]
    assert not np.array_equal(*tables)
    tie(model, optimizer, **paths)
    assert is_tied(model, **paths) and model.blocks[0].embedding is model.tokens.embedding
    np.testing.assert_allclose(model.tokens.embedding[...], np.mean(tables, axis=0), rtol=1e-6)
    assert np.isfinite(module_step(model, optimizer))


TOKENS_OF_BATCH = np.random.default_rng(0).integers(V, size=40)


def test_tables_that_are_not_trained_have_nothing_in_the_optimizer():
    model = WithEmbed(nnx.Rngs(0))
    body = nnx.All(nnx.Param, nnx.PathContains("body"))
    optimizer = nnx.Optimizer(model, OPTIMISERS["adamw"], wrt=body)
    before = arrays(optimizer.opt_state)
    untie(model, optimizer)
    assert not is_tied(model)
    assert_equal(arrays(optimizer.opt_state), before)


def test_a_state_of_optax_is_returned():
    model = WithEmbedding(nnx.Rngs(0))
    opt_state = OPTIMISERS["adamw"].init(nnx.state(model, nnx.Param))
    same, opt_state = untie(model, opt_state)
    expected = jax.eval_shape(OPTIMISERS["adamw"].init, nnx.state(model, nnx.Param))
    assert same is model and jax.tree.structure(opt_state) == jax.tree.structure(expected)


def test_errors():
    model = Twice(share_module=True)
    several = r"name one by input=.*'blocks/0/embedding', 'places/embedding'"
    with pytest.raises(ValueError, match=several):
        untie(model)
    with pytest.raises(ValueError, match="are of one module; leave the output's path out"):
        untie(model, input="tokens/embedding", output="blocks/0/embedding")
    with pytest.raises(ValueError, match="there are: none"):
        untie(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match="the model is an Embed itself"):
        untie(nnx.Embed(V, D, rngs=nnx.Rngs(0)))
    wide = nnx.Dict(
        embed=nnx.Embed(V, D, rngs=nnx.Rngs(0)), head=nnx.Linear(D, V, rngs=nnx.Rngs(1))
    )
    wide.square, wide.other, wide.as_wide = (
        nnx.Linear(D, size, rngs=nnx.Rngs(2)) for size in (D, V + 1, D)
    )
    shapes = r"other/kernel is \(4, 7\), but embed/embedding is \(6, 4\); .* or \(4, 6\)"
    with pytest.raises(ValueError, match=shapes):
        tie(wide, input="embed/embedding", output="other/kernel")
    with pytest.raises(ValueError, match=r"say transposed=True if it is D×V, or False"):
        tie(wide, how="input", input="square/kernel", output="as_wide/kernel")
    with pytest.raises(ValueError, match="no 'haed' in the model to put an output table into"):
        untie(wide, input="embed/embedding", output="haed/kernel")
    with pytest.raises(ValueError, match="of input and output one path is given"):
        untie(wide, output="head/kernel")


@pytest.mark.parametrize("deeper", [False, True])
def test_a_head_of_its_own_is_not_overlooked(deeper):
    """An untied model must be named by both paths: `attend` does not make its logits."""
    head = nnx.Linear(D, V, rngs=nnx.Rngs(1))
    model = WithHead("embed", nnx.Sequential(head) if deeper else head)
    before = jax.tree.structure(nnx.state(model))
    for call in (is_tied, tie, untie):
        with pytest.raises(ValueError, match=r"head/.*kernel has the sizes of embed/embedding"):
            call(model)
    assert jax.tree.structure(nnx.state(model)) == before
    untie(model, input="embed/embedding")  # says that attend makes the logits
    assert not is_tied(model, input="embed/embedding")


def test_a_path_to_a_module_is_refused_before_anything_changes():
    model = WithHead("embed", nnx.Linear(D, V, use_bias=False, rngs=nnx.Rngs(1)))
    optimizer = nnx.Optimizer(model, OPTIMISERS["adamw"], wrt=nnx.Param)
    before = jax.tree.structure((nnx.state(model), nnx.state(optimizer)))
    for paths in (
        {"input": "embed", "output": "head"},
        {"input": "embed/embedding", "output": "head"},
    ):
        with pytest.raises(
            ValueError, match=r"is no table; expected the path of one: (embed/e|head/k)"
        ):
            tie(model, optimizer, **paths)
    assert jax.tree.structure((nnx.state(model), nnx.state(optimizer))) == before
    tie(model, optimizer, input="embed/embedding", output="head/kernel")
    assert is_tied(model, input="embed/embedding", output="head/kernel")


def test_keys_of_lists_may_be_numbers():
    model = nnx.Module()
    model.inputs, model.outputs = (
        nnx.List([nnx.Param(jnp.full((V, D), value))]) for value in (1.0, 2.0)
    )
    paths = {"input": ("inputs", 0), "output": ("outputs", 0)}
    tie(model, **paths)
    assert is_tied(model, **paths) and model.outputs[0] is model.inputs[0]
    untie(model, **paths)
    assert not is_tied(model, **paths)


class WithHead(nnx.Module):
    """An `nnx.Embed` and a head whose table is D×V; their names decide which comes first."""

    def __init__(self, table_name: str, head: nnx.Module):
        self.table_name, self.head = table_name, head
        setattr(self, table_name, nnx.Embed(V, D, rngs=nnx.Rngs(0)))

    def __call__(self, tokens):
        return self.head(jnp.tanh(getattr(self, self.table_name)(tokens)))


class Product(nnx.Module):
    """A head by hand."""

    def __init__(self):
        self.kernel = nnx.Param(jax.random.normal(jax.random.key(1), (D, V)))

    def __call__(self, h):
        return h @ self.kernel


HEADS_ACROSS = {"linear": lambda: nnx.Linear(D, V, rngs=nnx.Rngs(1)), "product": Product}


@pytest.mark.parametrize(("first", "head"), [("embed", "linear"), ("tokens", "product")])
def test_tying_a_transposed_head(first, head):
    """Its kernel becomes a view of the table; tables and moments are averaged."""
    model = WithHead(first, HEADS_ACROSS[head]())
    optimizer = nnx.Optimizer(model, OPTIMISERS["adamw"], wrt=nnx.Param)
    paths = {"input": f"{first}/embedding", "output": "head/kernel"}
    module_step(model, optimizer)
    table, kernel = getattr(model, first).embedding, model.head.kernel

    def both_of(tree):
        return np.array(tree[first]["embedding"][...]), np.array(tree["head"]["kernel"][...])

    adam = optimizer.opt_state[0]
    before = [both_of(tree) for tree in (nnx.state(model), adam.mu, adam.nu)]
    assert not is_tied(model, **paths)
    nnx.jit(lambda *own: tie(*own, **paths) and None)(model, optimizer)
    assert is_tied(model, **paths)
    assert model.head.kernel.table is getattr(model, first).embedding is table
    trees = nnx.state(model, nnx.Param), optimizer.opt_state[0].mu, optimizer.opt_state[0].nu
    assert len({jax.tree.structure(nnx.as_pure(tree)) for tree in trees}) == 1
    for tree, (one, other) in zip(trees, before, strict=True):
        (found,) = [leaf for leaf in jax.tree.leaves(nnx.as_pure(tree)) if leaf.ndim == 2]
        np.testing.assert_allclose(found, (one + other.T) / 2, rtol=1e-6)
    np.testing.assert_array_equal(model.head.kernel[...], table[...].T)
    assert model.head.kernel.shape == kernel.shape and float(module_step(model, optimizer)) > 0
    tied = arrays((nnx.state(model), optimizer.opt_state))
    at_tied = cross_entropy_of(model(TOKENS_OF_BATCH))
    for change, now in ((untie, False), (tie, True)):  # equal tables: neither moves the loss
        change(model, optimizer, **paths)
        expected = jaxtie.nnx.Transposed if now else nnx.Param
        assert is_tied(model, **paths) == now and type(model.head.kernel) is expected
        assert abs(cross_entropy_of(model(TOKENS_OF_BATCH)) - at_tied) < 1e-6
    assert_equal(arrays((nnx.state(model), optimizer.opt_state)), tied)


def test_a_transposed_table_must_be_named():
    model = WithHead("embed", Product())
    model.head.kernel = jaxtie.nnx.Transposed(model.embed.embedding)
    paths = {"input": "embed/embedding", "output": "head/kernel"}
    assert is_tied(model, **paths)
    with pytest.raises(ValueError, match=r"head/kernel is embed/embedding, transposed; name both"):
        untie(model)
    model.more = nnx.Embed(V, D, rngs=nnx.Rngs(1))
    with pytest.raises(ValueError, match="head/kernel is another table than more/embedding, tr"):
        untie(model, **paths | {"input": "more/embedding"})


def test_a_state_by_paths():
    wide = WithHead("embed", nnx.Linear(D, V, rngs=nnx.Rngs(1)))
    paths = {"input": "embed/embedding", "output": "head/kernel"}
    state = nnx.state(wide)
    opt_state = once(OPTIMISERS["adamw"].init)(state)
    one, opt_state_of_one = tie(state, opt_state, "output", **paths)
    np.testing.assert_array_equal(one["embed"]["embedding"][...], state["head"]["kernel"][...].T)
    assert set(one["head"]) == {"bias"} and type(one) is nnx.State
    two, opt_state_of_two = untie(one, opt_state_of_one, **paths, transposed=True)
    np.testing.assert_array_equal(two["head"]["kernel"][...], state["head"]["kernel"][...])
    assert jax.tree.structure((two, opt_state_of_two)) == jax.tree.structure((state, opt_state))


@pytest.mark.parametrize("head", ["linear", "embed"])
def test_tree_mode_refuses_to_share_a_parameter(head):
    """Nothing has changed then."""
    heads = {"linear": WithHead("embed", Product()), "embed": Twice(share_module=False)}
    paths = {
        "linear": {"input": "embed/embedding", "output": "head/kernel"},
        "embed": {"input": "tokens/embedding", "output": "places/embedding"},
    }[head]
    model = heads[head]
    if head == "embed":
        model.blocks[0] = nnx.Embed(V, D, rngs=nnx.Rngs(2))
    with nnx.set_graph_mode(False):
        before = jax.device_get(nnx.as_pure(nnx.state(model)))
        with pytest.raises(ValueError, match=f"{paths['output']} would be .* in NNX's tree mode"):
            tie(model, **paths)
        assert_equal(jax.device_get(nnx.as_pure(nnx.state(model))), before)


@pytest.mark.parametrize("way", [WithEmbed, WithEmbedding])
def test_tree_mode_gives_the_numbers_of_graph_mode(way):
    found = []
    for graph_mode in (True, False):
        with nnx.set_graph_mode(graph_mode):
            model = way(nnx.Rngs(0))
            optimizer = nnx.Optimizer(model, OPTIMISERS["adamw"], wrt=nnx.Param)
            losses = []
            for change in (untie, tie):
                losses += [float(module_step(model, optimizer)) for _ in range(2)]
                change(model, optimizer)
                assert is_tied(model) == (change is tie)
            losses.append(float(module_step(model, optimizer)))
            found.append((losses, arrays(nnx.state(model))))
    assert_equal(*found)
