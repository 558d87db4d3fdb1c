"""Resize a vocabulary: both tables, bias, optimizer state and sharding, in every kind of tree."""

import contextlib
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import zoo
from bodies import once
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from six_models import OPTIMISER, WAYS, D, OfModules, V

import jaxtie
from jaxtie import reset_rows, resize, tie, untie
from jaxtie.tying.resize import _join_whole

NEW = V + 3
RNG = np.random.default_rng(0)


def assert_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


IDS = [4, 0, 3]


def edit(model, change, *arguments, **options):
    """Edit a model of `six_models` in place; return what the change returns."""
    if isinstance(model, OfModules):
        return change(model.model, model.optimizer, *arguments, **model.paths, **options)
    own = model.params, model.opt_state, *arguments
    found = change(*own, **model.paths, tx=OPTIMISER, **options)
    model.params, model.opt_state = found[:2]
    return found


def tables_of(model):
    """Return the tables on the host, and those of either moment."""
    trees = model.params, *model.moments()
    return [[x if x is None else np.asarray(x) for x in model.tables(tree)] for tree in trees]


def assert_edited(model, before, expected_of, atol=1e-15, *, untied):
    """Compare tables and moments with `expected_of(the one before, 1 or 0 for a moment)`."""
    for number, (old, new) in enumerate(zip(before, tables_of(model), strict=True)):
        for a, b in zip(old, new, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                expected = expected_of(a, 0 if number else 1)
                np.testing.assert_allclose(b, expected, rtol=0, atol=atol)
    assert model.is_tied() == (not untied)


@pytest.mark.parametrize("untied", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_rows_that_stay_keep_values_and_moments(way, untied, x64):
    """New rows are the mean, their moments 0; then rows follow ids, and one begins anew."""
    if way == "equinox":
        pytest.importorskip("equinox", reason="the test needs Equinox: pip install 'jaxtie[test]'")
    model = WAYS[way]()
    if untied:
        model.untie()
    for _ in range(3):
        model.step()
    compare = partial(assert_edited, model, untied=untied)
    before = tables_of(model)
    *_, mask = edit(model, resize, NEW)
    compare(before, lambda a, is_table: np.vstack([a, *[a.mean(0) * is_table] * 3]))
    counted = sum(int(np.sum(leaf)) for leaf in jax.tree.leaves(nnx.as_pure(mask)))
    assert counted == 3 * (1 + untied)
    if way in ("linen", "maxtext", "equinox"):
        arrays = WAYS[way]().arrays(model.params)
        shapes = partial(jax.tree.map, lambda leaf: (leaf.shape, leaf.dtype))
        assert shapes(model.opt_state) == shapes(jax.eval_shape(OPTIMISER.init, arrays))
    if way != "linen":  # which is made anew
        assert np.isfinite(model.step())
    before = tables_of(model)
    *_, mask, new_ids = edit(model, resize, keep=IDS)
    np.testing.assert_array_equal(new_ids, [1, -1, -1, 2, 0, *[-1] * (NEW - 5)])
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(nnx.as_pure(mask)))
    compare(before, lambda a, _: a[IDS], 0)
    edit(model, reset_rows, [1])
    compare(before, lambda a, is_table: [a[4], a[[4, 3]].mean(0) * is_table, a[3]])


LABELS = {"head": optax.adam(1e-3), "rest": optax.sgd(0.1, momentum=0.9)}
OTHERS = zoo.cases("factored, accumulated, schedule-free") | {
    "groups": optax.multi_transform(
        LABELS, lambda tree: {name: "head" if name == "head" else "rest" for name in tree}
    )
}


def untied_tree():
    def random(*shape):
        return jnp.asarray(RNG.standard_normal(shape), jnp.float32)

    head = {"kernel": random(D, V), "bias": random(V)}
    return {"embed": {"table": random(V, D)}, "head": head, "w": random(D)}


PATHS = {"input": "embed/table", "output": "head/kernel"}


@pytest.mark.parametrize("name", [*zoo.alike_slow(zoo.IN_GROUPS), *OTHERS])
def test_any_optimizer_goes_along(name):
    """Structure, shapes, dtypes and new rows are those of `init`; old rows are as before."""
    tx = OTHERS[name] if name in OTHERS else zoo.make(name)
    params = untied_tree()
    fresh = once(tx.init)(params)
    state = jax.tree.map(lambda leaf: leaf + jnp.ones((), leaf.dtype), fresh)
    larger, larger_state, _ = resize(params, state, NEW, **PATHS, tx=tx)
    expected = tx.init(larger)
    shapes = partial(jax.tree.map, lambda leaf: (leaf.shape, leaf.dtype))
    assert shapes(larger_state) == shapes(expected)
    for old, new, start in zip(*map(jax.tree.leaves, (state, larger_state, expected)), strict=True):
        kept = tuple(slice(0, length) for length in old.shape)
        np.testing.assert_array_equal(new[kept], old)
        is_new = np.ones(new.shape, bool)
        is_new[kept] = False
        np.testing.assert_array_equal(new[is_new], start[is_new])
    assert_equal(resize(larger, larger_state, V, **PATHS, tx=tx)[:2], (params, state))


def test_new_rows():
    """In a V×D table, a D×V table and the bias between them."""
    params = untied_tree()
    found, _, mask = resize(params, (), NEW, **PATHS)
    tables = [(params["embed"]["table"], found["embed"]["table"])]
    tables.append((params["head"]["kernel"].T, found["head"]["kernel"].T))
    for old, new in tables:
        np.testing.assert_array_equal(new[:V], old)
        np.testing.assert_allclose(new[V:], np.broadcast_to(old.mean(0), (3, D)), rtol=1e-6)
    bias = params["head"]["bias"]
    np.testing.assert_allclose(found["head"]["bias"], [*bias, *[bias.mean()] * 3], rtol=1e-6)
    np.testing.assert_array_equal(found["w"], params["w"])
    assert jax.tree.map(jnp.shape, mask) == {
        "embed": {"table": (NEW, 1)},
        "head": {"kernel": (1, NEW), "bias": (NEW,)},
        "w": (),
    }


@pytest.mark.parametrize("tied", [True, False])
def test_the_mask_trains_new_rows_alone(tied):
    """Also with weight decay, and with momentum of the rows that stay."""
    tx, params = optax.adamw(0.1, weight_decay=0.1), untied_tree()
    if tied:
        params, _ = tie(params, **PATHS)
    slope = jax.tree.map(jnp.ones_like, params)
    _, state = tx.update(slope, tx.init(params), params)
    params, state, is_new = resize(params, state, NEW, **PATHS, tx=tx)
    updates, _ = tx.update(jax.tree.map(jnp.ones_like, params), state, params)
    updates = jax.tree.map(lambda u, new: jnp.where(new, u, 0), updates, is_new)
    later = optax.apply_updates(params, updates)
    moved = jax.tree.map(lambda a, b: a != b, params, later)
    assert_equal(moved, jax.tree.map(lambda new, x: new & (x == x), is_new, params))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("size", [10, 4])
def test_a_split_vocabulary_stays_split(axis, size):
    """No device holds a whole table, not even while it is resized."""
    mesh = jax.make_mesh((2,), ("vocabulary",), axis_types=(AxisType.Auto,))
    names = PartitionSpec(*[("vocabulary", None), (None, "vocabulary")][axis])
    sharding = NamedSharding(mesh, names)
    table = jax.device_put(
        jnp.arange(float(V * D)).reshape((V, D) if axis == 0 else (D, V)), sharding
    )
    params = {"in": jnp.ones((V, D)), "out": table}
    tx = optax.adam(1.0)
    edit = partial(resize, input="in", output="out", transposed=axis == 1, tx=tx)
    found, state, _ = edit(params, tx.init(params), size)
    whole = rf"f32\[(?:{size},{D}|{D},{size}|{V},{D}|{D},{V})\]"
    for leaf in (found["out"], state[0].mu["out"], state[0].nu["out"]):
        assert leaf.sharding.is_equivalent_to(sharding, 2)
    source = np.where(np.arange(size) < V, np.arange(size), -1)
    join = jax.jit(partial(_join_whole, source=source, axis=axis), out_shardings=sharding)
    fill = jnp.mean(table, axis=axis, keepdims=True)
    text = join.lower(table, fill).compile().as_text()
    assert not re.search(whole, text)
    with pytest.raises(ValueError, match=r"2 devices cannot share 9 tokens evenly; .* multiple="):
        edit(params, tx.init(params), 9)
    assert edit(params, tx.init(params), 9, multiple=4)[0]["out"].shape[axis] == 12


def test_embeddings_of_linen_and_nnx_with_their_bias():
    """A linen embedding is made anew; the logits of old tokens do not change."""
    h = jnp.ones((2, D))
    linen = jaxtie.Embedding(V, D, True, bias=True)
    params = linen.init(jax.random.key(0), jnp.zeros(1, int))["params"]
    larger, _, _ = resize(params, (), NEW)
    logits = jaxtie.Embedding(NEW, D, True, bias=True).apply({"params": larger}, h, method="logits")
    before = linen.apply({"params": params}, h, method="logits")
    np.testing.assert_allclose(logits[:, :V], before, rtol=1e-6)
    module = jaxtie.nnx.Embedding(V, D, True, bias=True, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(module, optax.adam(1e-2), wrt=nnx.Param)
    before = module.logits(h)
    for edit in (untie, tie):
        edit(module, optimizer)
        _, _, mask = resize(module, optimizer, module.spec.vocabulary + 1)
        np.testing.assert_allclose(module.logits(h)[:, :V], before, rtol=1e-6)
        optimizer.update(module, jax.tree.map(jnp.ones_like, nnx.state(module, nnx.Param)))
        before = module.logits(h)[:, :V]
        assert jax.tree.structure(nnx.as_pure(mask)) == jax.tree.structure(
            nnx.as_pure(nnx.state(module, nnx.Param))
        )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("size", "rows"), [(7, 8), (8, 8), (11, 12)])
def test_new_tokens_within_the_padding(tied, size, rows):
    """A table of 8 rows, of which 6 are tokens: the others are new, and the mean is of 6."""
    tx, paths = optax.adam(1e-2), {"input": "in", "output": "head/kernel"}
    table = jnp.asarray(RNG.standard_normal((8, D)), jnp.float32).at[6:].set(0)
    params = {"in": table, "head": {"bias": jnp.arange(8.0).at[6:].set(0)}}
    if not tied:
        params, _ = untie(params, **paths, transposed=True)
    state = jax.tree.map(lambda x: x + jnp.ones((), x.dtype), tx.init(params))
    found, new, mask = resize(params, state, size, known=6, multiple=4, tx=tx, **paths)
    for moments in (None, new[0].mu, new[0].nu):
        tree = found if moments is None else moments
        old = table if moments is None else jnp.ones((8, D))
        fill = table[:6].mean(0) if moments is None else jnp.zeros(D)
        for own in (tree["in"], *([] if tied else [tree["head"]["kernel"].T])):
            expected = [*old[:6], *[fill] * (rows - 6)]
            np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-7)
    bias = found["head"]["bias"]
    np.testing.assert_allclose(bias, [*range(6), *[2.5] * (rows - 6)], rtol=1e-6)
    is_new = [False] * 6 + [True] * (rows - 6)
    np.testing.assert_array_equal(mask["in"][:, 0], is_new)
    np.testing.assert_array_equal(mask["head"]["bias"], is_new)


def test_tokens_that_go_do_not_stay_as_padding():
    table, paths = (
        jnp.asarray(RNG.standard_normal((10, D)), jnp.float32),
        {"input": "in", "output": "out"},
    )
    found, _, mask = resize({"in": table}, (), 6, known=10, multiple=4, **paths)
    np.testing.assert_array_equal(mask["in"][:, 0], [False] * 6 + [True] * 2)
    np.testing.assert_allclose(found["in"][6:], [table[:6].mean(0)] * 2, rtol=1e-5)


def test_new_tokens_within_the_padding_of_an_nnx_model():
    model = jaxtie.nnx.Embedding(8, D, True, bias=True, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    optimizer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param)))
    before = model.input[...]
    resize(model, optimizer, 7, known=6, multiple=8)
    np.testing.assert_array_equal(model.input[:6], before[:6])
    np.testing.assert_allclose(model.input[6:], [before[:6].mean(0)] * 2, rtol=1e-5)
    moment = optimizer.opt_state[0].mu["input"][...]
    assert np.all(moment[:6]) and not np.any(moment[6:])


def test_a_table_with_room_needs_the_number_of_its_tokens():
    """63 tokens of 64 rows; if all rows are tokens from now on, all stay."""
    table, paths = jnp.ones((8, D)).at[6:].set(0), {"input": "in", "output": "out"}
    _, _, mask = resize({"in": table}, (), 8, multiple=4, **paths)
    assert not mask["in"].any()
    with pytest.raises(ValueError, match="in has 8 rows for 7 tokens; say known="):
        resize({"in": table}, (), 7, multiple=4, **paths)


def test_vectors_padding_and_new_tokens_when_a_vocabulary_is_trimmed():
    """Three tokens stay and one is added, of a multiple of 4; a bias goes along."""
    params, tx = untied_tree(), optax.adam(1.0)
    state = jax.tree.map(lambda leaf: leaf + jnp.ones((), leaf.dtype), tx.init(params))
    found, state, mask, _ = resize(params, state, 5, keep=IDS, multiple=4, tx=tx, **PATHS)
    ids = np.array(IDS)
    for new, old in (
        (found["embed"]["table"], params["embed"]["table"]),
        (found["head"]["kernel"].T, params["head"]["kernel"].T),
    ):
        mean = old[ids].mean(0)
        np.testing.assert_allclose(new, np.vstack([old[ids], *[mean] * 5]), rtol=1e-6)
    old = params["head"]["bias"][ids]
    np.testing.assert_allclose(found["head"]["bias"], [*old, *[old.mean()] * 5], rtol=1e-6)
    np.testing.assert_array_equal(state[0].mu["head"]["bias"], [1] * 3 + [0] * 5)
    np.testing.assert_array_equal(mask["head"]["bias"], [False] * 3 + [True] * 5)


def test_rows_begin_anew_as_the_mean_of_all_others():
    params, ids, others = untied_tree(), np.array([1, 4]), np.array([0, 2, 3])
    found, state = reset_rows(params, (), ids, known=5, **PATHS)
    assert state == ()
    tables = [(params["embed"]["table"], found["embed"]["table"])]
    tables.append((params["head"]["kernel"].T, found["head"]["kernel"].T))
    for old, new in tables:
        np.testing.assert_array_equal(np.delete(new, ids, 0), np.delete(old, ids, 0))
        np.testing.assert_allclose(new[ids], [old[others].mean(0)] * 2, rtol=1e-5)
    bias = params["head"]["bias"]
    np.testing.assert_allclose(found["head"]["bias"][ids], bias[others].mean(), rtol=1e-5)
    np.testing.assert_array_equal(found["w"], params["w"])


@pytest.mark.parametrize("name", ["adam", "adafactor", "rmsprop", "sm3", "schedule-free"])
def test_moments_of_any_optimizer_follow_ids_and_begin_anew(name):
    assert_rows_follow(OTHERS[name] if name in OTHERS else zoo.make(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*zoo.IN_GROUPS, *OTHERS])
def test_moments_of_every_optimizer_follow_ids_and_begin_anew(name):
    assert_rows_follow(OTHERS[name] if name in OTHERS else zoo.make(name))


def assert_rows_follow(tx):
    """Compare every array of a state whose rows are numbered; the axis is found by its length."""
    params = untied_tree()
    fresh = once(tx.init)(params)

    def number(leaf):
        axes = [axis for axis, length in enumerate(leaf.shape) if length == V]
        assert len(axes) <= 1
        ones = np.ones(leaf.shape, leaf.dtype)
        if not axes:
            return ones, None
        shape = [-1 if axis == axes[0] else 1 for axis in range(leaf.ndim)]
        return ones * np.arange(10, 10 + V).astype(leaf.dtype).reshape(shape), axes[0]

    numbered = [number(leaf) for leaf in jax.tree.leaves(fresh)]
    state = jax.tree.unflatten(jax.tree.structure(fresh), [x for x, _ in numbered])
    ids = [4, 0, 3, 5, 1]  # more than the width, so that factored moments keep their axes
    kept = resize(params, state, keep=ids, tx=tx, **PATHS)
    reset = reset_rows(params, state, [2, 5], tx=tx, **PATHS)
    new = once(tx.init)(reset[0])
    leaves = zip(*map(jax.tree.leaves, (kept[1], reset[1], new)), strict=True)
    for (old, axis), (trimmed, anew, begun) in zip(numbered, leaves, strict=True):
        if axis is None:
            np.testing.assert_array_equal(trimmed, old)
            np.testing.assert_array_equal(anew, old)
            continue
        np.testing.assert_array_equal(trimmed, np.take(old, ids, axis))
        for row in range(V):
            source = begun if row in (2, 5) else old
            source, here = np.asarray(source), np.asarray(anew)
            np.testing.assert_array_equal(np.take(here, row, axis), np.take(source, row, axis))


@pytest.mark.parametrize("rows", [D - 1, D])
def test_factored_moments_are_refused_if_their_rows_would_be_elsewhere(rows):
    """Optax keeps the statistics of the longer side last, of a square table those of columns."""
    tx, params = OTHERS["factored"], untied_tree()
    with pytest.raises(ValueError, match=r"the optimizer keeps .*; it cannot be resized") as error:
        resize(params, tx.init(params), keep=range(rows), tx=tx, **PATHS)
    assert "\n" not in str(error.value)
    square = {"in": jnp.ones((D, D))}
    with pytest.raises(ValueError, match="it cannot be resized"):
        reset_rows(square, tx.init(square), [1], tx=tx, input="in", output="out")


@pytest.mark.parametrize("rows", [127, 128])
def test_rows_of_a_table_at_the_size_from_which_moments_are_factored(rows):
    tx, params = optax.adafactor(1e-2), {"in": jnp.ones((rows, 130))}
    ones = jax.tree.map(lambda leaf: leaf + jnp.ones((), leaf.dtype), tx.init(params))
    _, state = reset_rows(params, ones, [5], tx=tx, input="in", output="out")
    changed = [
        np.argwhere(one != two).T
        for one, two in zip(*map(jax.tree.leaves, (ones, state)), strict=True)
    ]
    assert {int(places[0][0]) for places in changed if places.size} == {5}


def test_an_nnx_embedding_knows_its_new_ids():
    """Padding, rows that are never predicted; a Linear that shares the table knows its size."""
    options = {"padding": 3, "excluded_rows": (2, 3, 6, 7), "rngs": nnx.Rngs(0)}
    model = jaxtie.nnx.Embedding(8, D, True, **options)
    resize(model, (), 7, known=6, multiple=8)  # 6 is a new token, and can be predicted
    assert (model.spec.excluded_rows, model.spec.padding) == ((2, 3, 7), 3)
    reset_rows(model, (), [2])
    assert (model.spec.excluded_rows, model.spec.padding) == ((2, 3, 7), 3)
    resize(model, (), keep=[5, 3, 0, 1], multiple=8)
    assert (model.spec.excluded_rows, model.spec.padding) == ((1, 7), 1)
    resize(model, (), keep=[0, 2])
    assert (model.spec.vocabulary, model.spec.excluded_rows, model.spec.padding) == (2, (), None)
    partly = jaxtie.nnx.Embedding(8, D, True, untied_rows=(1, 6), rngs=nnx.Rngs(0))
    table = partly.input
    for change, options in ((resize, {"size": 4}), (resize, {"keep": [1, 6]})):
        with pytest.raises(ValueError, match="expected an embedding without"):
            change(partly, (), **options)
        assert partly.input is table and table.shape == (8, D) and partly.spec.vocabulary == 8
    linear = WAYS["nnx-linear"]()
    resize(linear.model, linear.optimizer, NEW, **linear.paths)
    assert linear.model.head.out_features == linear.model.embed.num_embeddings == NEW


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_split_vocabulary_stays_split_when_it_is_trimmed(kind):
    mesh = jax.make_mesh((2,), ("vocabulary",), axis_types=(kind,))
    sharding = NamedSharding(mesh, PartitionSpec("vocabulary", None))
    table, tx = jnp.arange(float(V * D)).reshape(V, D), optax.adam(1.0)
    params, paths = {"in": jax.device_put(table, sharding)}, {"input": "in", "output": "out"}
    with jax.set_mesh(mesh) if kind == AxisType.Explicit else contextlib.nullcontext():
        kept, state, _, _ = resize(params, tx.init(params), keep=[5, 1], tx=tx, **paths)
        reset, other = reset_rows(params, tx.init(params), [5, 1], tx=tx, **paths)
    np.testing.assert_array_equal(kept["in"], table[np.array([5, 1])])
    for own in (kept["in"], state[0].mu["in"], reset["in"], other[0].mu["in"]):
        assert own.sharding.is_equivalent_to(sharding, 2)


@pytest.mark.parametrize("in_mesh", [True, False])
def test_a_vocabulary_on_an_explicit_mesh_axis(in_mesh):
    mesh = jax.make_mesh((2,), ("vocabulary",), axis_types=(AxisType.Explicit,))
    sharding = NamedSharding(mesh, PartitionSpec("vocabulary", None))
    params, tx = {"in": jax.device_put(jnp.ones((8, D)), sharding)}, optax.adam(1.0)
    with jax.set_mesh(mesh) if in_mesh else contextlib.nullcontext():
        for size in (12, 8, 7):
            options = {"known": 6, "multiple": 4, "tx": tx, "input": "in", "output": "out"}
            found, state, _ = resize(params, tx.init(params), size, **options)
            for own in (found["in"], state[0].mu["in"]):
                assert own.sharding.is_equivalent_to(sharding, 2) and len(own) == -(-size // 4) * 4


def test_layers_of_equinox_know_their_new_size():
    eqx = pytest.importorskip("equinox", reason="needs Equinox: pip install 'jaxtie[test]'")
    keys, tx = jax.random.split(jax.random.key(0)), optax.adam(1e-2)
    layers = {
        "embed": eqx.nn.Embedding(V, D, key=keys[0]),
        "head": eqx.nn.Linear(D, V, key=keys[1]),
    }
    paths = {"input": "embed/weight", "output": "head/weight"}
    state = tx.init(eqx.filter(layers, eqx.is_array))
    found, state, mask = resize(layers, state, NEW, **paths, tx=tx)
    for tree in (found, mask, state[0].mu):
        assert (tree["embed"].num_embeddings, tree["head"].out_features) == (NEW, NEW)
    assert found["head"](jnp.ones(D)).shape == (NEW,)
    assert (layers["embed"].num_embeddings, layers["head"].out_features) == (V, V)
    tx.update(eqx.filter(found, eqx.is_array), state)


ERRORS = [
    ({"known": V + 1}, "known = 7, but embed/table has 6 rows; expected the number of its rows"),
    ({"known": 0}, "known = 0; expected 1 or more"),
    ({"size": V - 1, "multiple": 2}, "has 6 rows for 5 tokens; say known=..., the number of rows"),
    ({"opt_state": optax.adam(1.0).init({"other": jnp.ones(3)})}, "and the parameters that it is"),
    ({"size": 0}, "size = 0; expected 1 or more"),
    ({"tx": None}, "an optimizer's state needs the optimizer; pass it as tx="),
    ({"tx": optax.sgd(0.1)}, "the state is not of this optimizer; pass the one that made it"),
    ({"input": "embed/tabel"}, "no 'embed/tabel' in the parameters; there is table"),
]


OF_IDS = [
    (resize, {"keep": [1, 1]}, "keep has 1; expected ids in 0...5, each once"),
    (resize, {"keep": [0, 6]}, "keep has 6; expected ids in 0...5, each once"),
    (resize, {"keep": [4], "known": 4}, "keep has 4; expected ids in 0...3, each once"),
    (resize, {"keep": []}, "keep has no ids"),
    (resize, {"keep": [1, 2], "size": 1}, "size = 1; expected 2 or more"),
    (resize, {}, "size = 0; expected 1 or more"),
    (reset_rows, {"ids": [-1]}, "ids has -1; expected ids in 0...5, each once"),
    (reset_rows, {"ids": range(V)}, "no row stays, so new ones have no mean"),
    (reset_rows, {"ids": [1], "tx": optax.sgd(0.1)}, "the state is not of this optimizer"),
]


@pytest.mark.parametrize(("change", "options", "message"), OF_IDS)
def test_wrong_ids_are_refused_in_one_line(change, options, message):
    params, tx = untied_tree(), optax.adam(1.0)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        change(params, **{"opt_state": tx.init(params), "tx": tx, **PATHS, **options})
    assert "\n" not in str(error.value)


def test_rows_of_a_partly_tied_embedding_are_refused():
    params = jaxtie.Embedding(V, D, True, untied_rows=(1,)).init(
        jax.random.key(0), jnp.zeros(1, int)
    )["params"]
    for change in (partial(resize, keep=[1]), partial(reset_rows, ids=[1])):
        with pytest.raises(ValueError, match="output_rows are rows of their own; expected an"):
            change({"embedding": params}, ())


@pytest.mark.parametrize(("options", "message"), ERRORS)
def test_errors_are_one_line(options, message):
    params, tx = untied_tree(), optax.adam(1.0)
    with pytest.raises(ValueError, match=message) as error:
        resize(params, **{"opt_state": tx.init(params), "size": NEW, "tx": tx, **PATHS, **options})
    assert "\n" not in str(error.value)
