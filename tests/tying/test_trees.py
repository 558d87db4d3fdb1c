"""Tie and untie tables by their paths in any tree: transposed, stacked, boxed, masked; errors."""

from collections import OrderedDict
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import zoo
from bodies import once
from flax.core import freeze

from jaxtie import check, is_tied, reset_rows, resize, tie, untie

V, D = 6, 4
PATHS = {"input": "token_embedder/embedding", "output": "decoder/logits_dense/kernel"}
RNG = np.random.default_rng(0)


def random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def tied_tree(*stack):
    return {
        "token_embedder": {"embedding": random(*stack, V, D)},
        "decoder": {"norm": random(*stack, D)},
    }


def untied_tree(*stack, across=True):
    tree = tied_tree(*stack)
    tree["decoder"]["logits_dense"] = {"kernel": random(*stack, *((D, V) if across else (V, D)))}
    return tree


def filled(init, params):
    """Return a state of an optimizer with random numbers, as if it had been trained."""
    state = jax.eval_shape(init, params)
    return jax.tree.map(lambda leaf: (10 * RNG.random(leaf.shape)).astype(leaf.dtype), state)


def assert_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


OPTIMISERS = zoo.cases("adamw, clipped, lion, factored, sm3, labels, masked tables")


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_untie_and_tie_again(name, across):
    """The output table and its moments are the input's, transposed if it is D×V."""
    optimizer, params = OPTIMISERS[name], tied_tree()
    state = filled(optimizer.init, params)
    untied = untie(params, state, **PATHS, transposed=across)
    kernel = untied[0]["decoder"]["logits_dense"]["kernel"]
    np.testing.assert_array_equal(
        kernel.T if across else kernel, params["token_embedder"]["embedding"]
    )
    fresh = jax.eval_shape(optimizer.init, untied[0])
    assert jax.tree.map(np.shape, untied[1]) == jax.tree.map(np.shape, fresh)
    if name == "adamw":
        for moment in ("mu", "nu"):
            of_output = optax.tree.get(untied[1], moment)["decoder"]["logits_dense"]["kernel"]
            of_input = optax.tree.get(state, moment)["token_embedder"]["embedding"]
            np.testing.assert_array_equal(of_output.T if across else of_output, of_input)
    assert_equal(untie(*untied, **PATHS, transposed=across), untied)
    for how in ("input", "output", "mean"):
        assert_equal(tie(*untied, how, **PATHS), (params, state))
    assert is_tied(params, **PATHS) and not is_tied(untied[0], **PATHS)


def test_stacked_members():
    """Three members in one tree, mapped or not."""
    params = untied_tree(3)
    optimizer = OPTIMISERS["adamw"]
    state = filled(jax.vmap(optimizer.init), params)
    one = tie(params, state, **PATHS)
    assert_equal(once(jax.vmap(partial(tie, **PATHS)))(params, state), one)
    back = once(partial(untie, **PATHS, transposed=True))(*one)
    assert back[0]["decoder"]["logits_dense"]["kernel"].shape == (3, D, V)
    assert_equal(back, untie(*one, **PATHS, transposed=True))
    for k in range(3):
        (alone, state_alone), of_one = jax.tree.map(
            lambda leaf, k=k: leaf[k], ((params, state), one)
        )
        assert_equal(tie(alone, state_alone, **PATHS), of_one)


class Pair(NamedTuple):
    first: object
    second: object


def test_other_containers_and_keys():
    """Frozen and ordered dictionaries, tuples; keys with slashes, as Haiku has them, one by one."""
    tied = freeze(
        {
            "model/~/embed": {"embeddings": random(V, D)},
            "layers": (OrderedDict(w=random(2)), Pair(random(1), None)),
        }
    )
    untie_from, tie_to = (partial(f, input=("model/~/embed", "embeddings")) for f in (untie, tie))
    untied, _ = untie_from(tied, output=("model/~/head", "w"), transposed=True)
    assert set(untied) == {"model/~/embed", "model/~/head", "layers"} and type(untied) is type(tied)
    kernel, table = untied["model/~/head"]["w"], tied["model/~/embed"]["embeddings"]
    np.testing.assert_array_equal(kernel, table.T)
    assert_equal(tie_to(untied, output=("model/~/head", "w"))[0], tied)
    within, _ = untie_from(tied, output="layers/1/second")
    assert within["layers"][1].second.shape == (V, D)
    assert_equal(tie_to(within, output="layers/1/second")[0], tied)


GEMMA = {"transformer/embedder": {"input_embedding": random(V, D)}, "a": {"b": random(2)}}
TABLE = jax.tree_util.tree_leaves_with_path(GEMMA)[1][0]


@pytest.mark.parametrize("place", [["transformer/embedder", "input_embedding"], TABLE])
def test_keys_may_have_slashes_or_be_those_of_jax(place):
    """As Gemma's parameters have them."""
    new = ["transformer/embedder", "output_embedding"]
    untied, _ = untie(GEMMA, input=place, output=new)
    assert untied["transformer/embedder"]["output_embedding"].shape == (V, D)
    paths = {"input": place, "output": (*TABLE[:1], jax.tree_util.DictKey("output_embedding"))}
    assert not is_tied(untied, **paths)
    assert_equal(tie(untied, **paths)[0], GEMMA)
    with pytest.raises(ValueError, match="there is transformer/embedder, a; a key with a slash"):
        untie(GEMMA, input="transformer/embedder/input_embedding", output=new)


def test_a_path_into_a_sequence_of_layers():
    params = {"layers": (random(2), {"table": random(V, D)})}
    (_, (path, _)) = jax.tree_util.tree_leaves_with_path(params)
    assert "head" in untie(params, input=path, output="head")[0]


def test_tables_of_two_dtypes_have_no_mean():
    """A table never changes its dtype."""
    tree = {"in": jnp.ones((V, D), jnp.bfloat16), "out": jnp.ones((V, D))}
    paths = {"input": "in", "output": "out"}
    for how in ("mean", "output"):
        with pytest.raises(ValueError, match="in is bfloat16 and out float32; expected one dtype"):
            tie(tree, how=how, **paths)
    assert tie(tree, how="input", **paths)[0]["in"].dtype == jnp.bfloat16


@pytest.mark.parametrize("change", [untie, tie, resize, reset_rows, check])
def test_shapes_are_refused(change):
    tree = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, untied_tree()))
    arguments = {resize: ((), 12), reset_rows: ((), [1])}.get(change, ((),))
    with pytest.raises(ValueError, match=rf"jax.eval_shape\(partial\(jaxtie.{change.__name__},"):
        change(tree, *arguments, **PATHS)


def test_names_of_axes_are_transposed_too():
    tree = {"in": nn.Partitioned(random(V, D), ("vocabulary", "width"))}
    untied, _ = untie(tree, input="in", output="out", transposed=True)
    assert untied["out"].names == ("width", "vocabulary") and untied["out"].value.shape == (D, V)
    assert_equal(tie(untied, input="in", output="out")[0], tree)


def both(shape, other=None):
    return {"in": np.ones(shape), "rest": {"out": np.ones(other)} if other else {}}


PAIR, NO_PATHS = Pair(np.ones((V, D)), None), {"input": None, "output": None}
AS_WIDE = "rest/out is as wide as long; say transposed=True if it is D×V, or False"
NOTHING = "no 'rest/in' in the parameters; there is nothing"
ERRORS = [
    (tie, both((V, D), (V, 5)), {}, r"rest/out is \(6, 5\), but in is \(6, 4\); .* or \(4, 6\)"),
    (tie, both((V, D), (D, V)), {"transposed": False}, r"in is \(6, 4\); expected \(6, 4\)$"),
    (tie, both((2, V, D), (V, D)), {}, r"in is \(2, 6, 4\); expected .* or \(2, 4, 6\)"),
    (tie, both((D, D), (D, D)), {}, AS_WIDE),
    (tie, both((V,), (V,)), {}, r"in is an array \(6,\); expected a table"),
    (tie, both((V, D)), {"input": "inn"}, "no 'inn' in the parameters; there is in, rest$"),
    (untie, both((V, D)), {"input": "rest/in"}, NOTHING),
    (untie, both((V, D)), {"output": None}, "of input and output one path is given"),
    (untie, PAIR, {"input": "first", "output": "third"}, "Pair has nothing at 'third'; .* second"),
    (untie, PAIR, {"input": "first", "output": "second/w"}, "Pair has nothing at 'second'"),
    (untie, {"a/b": PAIR}, {"input": "a/first"}, "there is a/b; a key with a slash can be an item"),
    (untie, {"in": np.ones((V, D))}, NO_PATHS, "name the tables by their paths"),
]


@pytest.mark.parametrize(("operation", "tree", "options", "message"), ERRORS)
def test_errors_are_one_line(operation, tree, options, message):
    with pytest.raises(ValueError, match=message) as error:
        operation(tree, **{"input": "in", "output": "rest/out", **options})
    assert "\n" not in str(error.value)


def test_optimizer_states_that_cannot_be_edited():
    params, across = tied_tree(), {**PATHS, "transposed": True}
    other = {**tied_tree(), "token_embedder": {"embedding": random(D, D)}}
    with pytest.raises(ValueError, match=r"an array \(4, 4\) for a table \(6, 4\); it cannot"):
        untie(params, other, **across)
    square = {"token_embedder": {"embedding": random(D, D)}, "decoder": {"norm": random(D)}}
    with pytest.raises(ValueError, match=r"an array \(4,\) for a table \(4, 4\); it cannot"):
        untie(square, filled(OPTIMISERS["factored"].init, square), **across)
    groups = {"a": optax.adam(1e-2), "b": optax.sgd(0.1, momentum=0.9)}
    apart = optax.multi_transform(groups, {"token_embedder": "a", "decoder": "b"})
    state = apart.init(jax.tree.map(jnp.asarray, params))
    with pytest.raises(
        ValueError, match=r"masks .* but not the other table; pass the new optimizer as tx="
    ):
        untie(params, state, **PATHS)


@pytest.mark.parametrize("stack", [(), (3,)])
@pytest.mark.parametrize("size", [(V, D), (D, D)])
def test_sm3_statistics_of_rows_and_columns_change_places(size, stack):
    """Also of a square table, and of stacked members; the next update goes on."""
    optimizer = optax.sm3(0.1)
    params = {"in": jnp.asarray(random(*stack, *size))}
    over = jax.vmap if stack else lambda f: f
    gradient = {"in": jnp.asarray(random(*stack, *size))}
    _, state = over(optimizer.update)(gradient, over(optimizer.init)(params), params)
    paths = {"input": "in", "output": "out"}
    untied, own = untie(params, state, **paths, transposed=True)
    rows, columns = own[0].mu["in"]
    for found, expected in zip(own[0].mu["out"], (columns, rows), strict=True):
        np.testing.assert_array_equal(found, expected)
    both = {**gradient, "out": gradient["in"].swapaxes(-1, -2)}
    updates, _ = over(optimizer.update)(both, own, untied)
    np.testing.assert_allclose(updates["out"].swapaxes(-1, -2), updates["in"], rtol=1e-6)
    for how in ("input", "output", "mean"):
        assert_equal(tie(untied, own, how, **paths, transposed=True), (params, state))


class Quantised(NamedTuple):
    """A moment of eight bits: values are codes times scales."""

    codes: object
    scales: object


def eight_bits(kind, factor):
    shape = (V * D,) if kind == "flat" else (V, D)
    codes = {"int8": np.int8, "flat": np.uint8, "float8": jnp.float8_e4m3fn}[kind]
    scales = np.full((V * D // 8,) if kind == "flat" else (V, 1), factor, np.float32)
    return Quantised(RNG.integers(0, 100, shape).astype(codes), scales)


@pytest.mark.parametrize("kind", ["int8", "flat", "float8"])
def test_moments_of_eight_bits_have_no_mean(kind):
    params = {"in": random(V, D), "out": random(V, D)}
    state = {"in": eight_bits(kind, 0.01), "out": eight_bits(kind, 0.1)}
    paths = {"input": "in", "output": "out"}
    for how, kept in (("input", "in"), ("output", "out")):
        assert_equal(tie(params, state, how, **paths)[1], {"in": state[kept]})
    with pytest.raises(ValueError, match="have no mean; expected how='input' or 'output'"):
        tie(params, state, **paths)
    alone = {"in": state["in"]}
    assert_equal(untie({"in": params["in"]}, alone, **paths)[1]["out"], state["in"])
    with pytest.raises(ValueError, match="it cannot be transposed with it"):
        untie({"in": params["in"]}, alone, **paths, transposed=True)
