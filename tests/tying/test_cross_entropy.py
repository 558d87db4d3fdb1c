"""Blockwise cross-entropy against the plain formula: loss, gradients, accuracy, dtypes, memory."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bodies import once
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxtie
from jaxtie import cross_entropy
from jaxtie.tying.cross_entropy import embedding_cross_entropy
from jaxtie.tying.head import EmbeddingSpec, Projection, compute_logits, half_swap, initial_params

P, V, D = 70, 50, 8
HEADS = [
    {},
    {"bias": True},
    {"logit_softcap": 2.0},
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


def plain(values, *, bias=False, allowed=False, logit_softcap=None, z_loss=0.0, count=P):
    """Compute all logits at once."""
    target, weight = TARGETS[:count], WEIGHTS[:count]
    logits = values["h"][:count] @ values["table"].T
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
    values, close = cast(VALUES, jnp.float64), np.testing.assert_allclose

    def with_gradients(loss):
        return once(lambda values: (jax.value_and_grad(loss, has_aux=True)(values), loss(values)))

    is_alone = len(head) == 1  # one option, which others are combined with
    for count, blocks in ((P, (16,)),) if is_alone else ((P, (1000, 16)), (37, (1, 7)), (1, (7,))):
        expected, _ = with_gradients(partial(plain, **head, count=count))(values)
        for block in blocks:
            own = with_gradients(partial(ours, **head, block=block, count=count))
            found, without = own(values)
            jax.tree.map(partial(close, rtol=1e-12, atol=1e-13), found, expected)
            close(without, expected[0], rtol=1e-13)
        if count == P:
            found, _ = own(cast(VALUES, jnp.float32))
            jax.tree.map(partial(close, rtol=1e-5, atol=1e-6), found, expected)


@pytest.mark.parametrize("head", [HEADS[0], HEADS[-1]])
def test_bfloat16_operands(head, x64):
    """The loss is that of the rounded values, summed in float32; a gradient is rounded once."""
    rounded = cast(VALUES, jnp.bfloat16)
    exact = cast(rounded, jnp.float64)
    found, slopes = once(jax.value_and_grad(lambda v: ours(v, **head)[0]))(rounded)
    expected, expected_slopes = once(jax.value_and_grad(lambda v: plain(v, **head)[0]))(exact)
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

    found, slopes = once(jax.value_and_grad(loss))(cast(VALUES, jnp.float32))
    assert jnp.isfinite(found) and all(jnp.isfinite(slope).all() for slope in slopes.values())


@pytest.mark.parametrize("target", [-1, -100, V, 2 * V])
def test_a_target_that_is_no_token_makes_loss_and_gradients_nan(target):
    targets = TARGETS.at[3].set(target)

    def loss(values):
        return cross_entropy(values["h"], values["table"], targets, block=16)[0]

    found, slopes = once(jax.value_and_grad(loss))(cast(VALUES, jnp.float32))
    assert jnp.isnan(found) and jnp.isnan(slopes["table"]).all() and jnp.isnan(slopes["h"][3]).all()


@pytest.mark.parametrize(
    ("ignored", "reduction"), [(-100, "mean"), (-1, "sum"), (7, "mean"), (7, "sum"), (V, "mean")]
)
def test_ignored_targets_do_not_count(ignored, reduction):
    """Loss and gradients are those of a weight of 0."""
    values, places = cast(VALUES, jnp.float32), jnp.array([0, 3, P - 1])
    targets = jnp.where(ignored == TARGETS, 8, TARGETS)

    def loss(values, targets, weights, **options):
        found = cross_entropy(
            values["h"], values["table"], targets, weights, reduction=reduction, **options
        )
        return found[0], found

    look = jax.value_and_grad(loss, has_aux=True)
    found = once(partial(look, ignore_index=ignored))(values, targets.at[places].set(ignored), None)
    expected = once(look)(values, targets, jnp.ones(P).at[places].set(0))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), found, expected)


def by_optax(values, *, allowed, z_loss):
    """Return losses from all logits."""
    logits = values["h"] @ values["table"].T + values["bias"][None]
    kept = logits[:, : V - 10] if allowed else logits
    log_sum = jax.nn.logsumexp(kept, axis=-1)
    losses = optax.softmax_cross_entropy_with_integer_labels(kept, TARGETS)
    return losses + z_loss * log_sum**2


@pytest.mark.parametrize(
    ("reduction", "options"), [("mean", {}), ("sum", {"z_loss": 1e-2, "allowed": True})]
)
def test_agreement_with_optax(reduction, options, x64):
    """In loss and gradients, for V×D and D×V tables."""
    values, across = cast(VALUES, jnp.float64), bool(options)
    z, allowed = options.get("z_loss", 0.0), options.get("allowed", False)
    weights = WEIGHTS.astype(jnp.float64)
    scale = weights / weights.sum() if reduction == "mean" else weights

    def plainly(values):
        return jnp.sum(scale * by_optax(values, allowed=allowed, z_loss=z))

    def blockwise(values):
        table = values["table"].T if across else values["table"]
        found = cross_entropy(
            values["h"].reshape(2, -1, D),
            table,
            TARGETS.reshape(2, -1),
            weights.reshape(2, -1),
            transposed=across,
            bias_V=values["bias"],
            allowed_V=ALLOWED if allowed else None,
            z_loss=z,
            reduction=reduction,
            block=16,
        )
        return found[0]

    found, expected = (once(jax.value_and_grad(loss))(values) for loss in (blockwise, plainly))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-12), found, expected)
    loss = cross_entropy(*(values[name].astype(jnp.float32) for name in ("h", "table")), TARGETS)[0]
    logits = values["h"] @ values["table"].T
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, TARGETS).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


HEADS_OF_EMBEDDINGS = {
    "scales": {"bias": True, "transform": half_swap, "logit_scale": "1/sqrt(D)"}
    | {"logit_softcap": 2.0, "input_scale": "sqrt(D)", "output_gradient": 0.5},
    "projection": {"transform": Projection(bias=True, activation=jnp.tanh, norm=True)},
    "rows": {"tied": True, "untied_rows": (1, 4), "excluded_rows": (0, 4), "bias": True},
    "bfloat16": {"tied": True, "matmul_dtype": jnp.bfloat16, "logit_softcap": 2.0},
}


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS_OF_EMBEDDINGS)
@pytest.mark.parametrize("kind", ["linen", "nnx", "pure"])
def test_the_loss_of_an_embedding_has_every_option_of_its_head(head, kind):
    options = HEADS_OF_EMBEDDINGS[head]
    spec, linen = EmbeddingSpec(V, D, **options), jaxtie.Embedding(V, D, **options)
    fresh = jax.eval_shape(partial(initial_params, spec), jax.random.key(0))
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), fresh)
    graph, state = nnx.split(jaxtie.nnx.Embedding(V, D, **options, rngs=nnx.Rngs(0)))
    h, targets, weights = jnp.asarray(VALUES["h"], jnp.float32), TARGETS + 5, WEIGHTS

    def blockwise(params, h):
        h, own = h.reshape(2, -1, D), (targets.reshape(2, -1), weights.reshape(2, -1))
        if kind == "linen":
            found = linen.apply({"params": params}, h, *own, method="cross_entropy", block=16)
        elif kind == "nnx":
            nnx.replace_by_pure_dict(state, params)
            found = nnx.merge(graph, state).cross_entropy(h, *own, block=16)
        else:
            found = embedding_cross_entropy(spec, params, h, *own, block=16)
        return found

    def plainly(params, h):
        logits = compute_logits(spec, params, h)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        correct = jnp.argmax(logits, axis=-1) == targets
        return tuple(jnp.sum(weights * x) / weights.sum() for x in (loss, correct))

    found, expected = (
        jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, h)
        for loss in (blockwise, plainly)
    )
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, found, expected)
    assert np.abs(found[1][1]).max() > 1e-4


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ((D, V), {}, r"the table is \(8, 50\); .* \('V', 8\); say transposed=True if it is D×V"),
        ((V, D), {"transposed": True}, r"the table is \(50, 8\); .* need \(8, 'V'\)$"),
        ((V, D), {"reduction": "avg"}, "reduction is 'avg'; expected one of mean, sum"),
    ],
)
def test_errors_are_one_line(table, options, message):
    with pytest.raises(ValueError, match=message):
        cross_entropy(jnp.ones((P, D)), jnp.ones(table), TARGETS, **options)


@pytest.mark.parametrize("across", [False, True])
def test_no_device_holds_a_whole_table_that_is_split_along_the_vocabulary(across):
    mesh = jax.make_mesh((2,), ("vocabulary",), axis_types=(AxisType.Auto,))
    axes = (None, "vocabulary") if across else ("vocabulary", None)
    shape = (D, V) if across else (V, D)
    table = jax.ShapeDtypeStruct(
        shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*axes))
    )
    h = jax.ShapeDtypeStruct((P, D), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec()))

    def loss(h, table):
        options = {"transposed": across, "block": 16, "z_loss": 1e-3}
        return cross_entropy(h, table, TARGETS, **options)[0]

    with jax.set_mesh(mesh):
        text = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(h, table).compile().as_text()
    assert re.search(rf"f32\[(?:{V // 2},{D}|{D},{V // 2})\]", text)
    assert not re.search(rf"f32\[(?:{V},{D}|{D},{V})\]", text)
    assert not re.search(rf"f32\[(?:\d+,)*{V}\]", text)  # nor the logits of a block


def test_bfloat16_gradients_add_up_over_many_blocks():
    """In bfloat16 1 + 1/256 is 1: most of the table's gradient would be lost."""
    h, table = jnp.ones((1024, 1), jnp.bfloat16), jnp.zeros((2, 1), jnp.bfloat16)
    loss = lambda table: cross_entropy(h, table, jnp.zeros(1024, int), block=1)[0]  # noqa: E731
    slope = once(jax.grad(loss))(table)
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


def on_mesh(axis_type):
    """Return hidden states and targets that are split over two devices, and a table that is not."""
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(axis_type,))
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["batch"], []))
    values = cast(VALUES, jnp.float32)
    arrays = values["h"], values["table"], TARGETS, WEIGHTS
    shardings = split, whole, split, split
    return mesh, arrays, tuple(map(jax.device_put, arrays, shardings))


REDUCED = {"reduction": "sum", "z_loss": 1e-3}


@pytest.mark.parametrize("checked", [True, False])
def test_shard_map(checked):
    """Loss and gradients are those of one device, with and without `check_vma`."""
    mesh, arrays, own = on_mesh(AxisType.Auto)

    def loss(h, table, *rest):
        return cross_entropy(h, table, *rest, block=16, **REDUCED)[0]

    def mapped(*arrays):
        axes = PartitionSpec("batch"), PartitionSpec(), *[PartitionSpec("batch")] * 2
        each = jax.shard_map(
            lambda *own: jax.lax.psum(loss(*own), "batch"),
            mesh=mesh,
            in_specs=axes,
            out_specs=PartitionSpec(),
            check_vma=checked,
        )
        return each(*arrays)

    found, expected = (
        once(jax.value_and_grad(f, argnums=(0, 1)))(*x) for f, x in ((mapped, own), (loss, arrays))
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, expected)


@pytest.mark.parametrize("options", [{}, REDUCED])
def test_explicit_mesh_axes(options):
    """Gradients of hidden states stay split as these are."""
    mesh, arrays, own = on_mesh(AxisType.Explicit)

    def loss(h, table, *rest):
        return cross_entropy(h, table, *rest, block=16, **options)[0]

    look = once(jax.value_and_grad(loss, argnums=(0, 1)))
    expected = look(*arrays)
    with jax.set_mesh(mesh):
        found = look(*own)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, expected)
    assert found[1][0].sharding.spec[0] == "batch"


@pytest.mark.parametrize(("axes", "put"), [(("batch", None), np.asarray), ((None, "batch"), None)])
def test_a_table_on_explicit_mesh_axes_and_targets_of_the_host(axes, put):
    """As in an evaluation that is not compiled; with hidden states of the host or of one device."""
    mesh, (h, table, *rest), _ = on_mesh(AxisType.Explicit)
    expected = cross_entropy(h, table, *rest, block=16)
    with jax.set_mesh(mesh):
        split = jax.device_put(table, NamedSharding(mesh, PartitionSpec(*axes)))
        found = cross_entropy(put(h) if put else h, split, *map(np.asarray, rest), block=16)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, expected)


def test_a_term_of_a_schedule_is_an_array():
    """As that of the compiled step, also where it is 0."""
    values = cast(VALUES, jnp.float32)

    @partial(jax.jit, static_argnums=1)
    def look(z_loss, fixed):
        def loss(h):
            arguments = h, values["table"], TARGETS, WEIGHTS
            own = z_loss if fixed is None else fixed
            return cross_entropy(*arguments, block=16, z_loss=own)[0]

        return jax.value_and_grad(loss)(values["h"])

    for z_loss in (1e-2, 0):
        found, expected = look(jnp.float32(z_loss), None), look(0.0, z_loss)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, expected)


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_no_positions(shape):
    values = cast(VALUES, jnp.float32)

    def loss(table):
        h, target = jnp.zeros((*shape, D)), jnp.zeros(shape, int)
        return cross_entropy(h, table, target)[0]

    found, slope = once(jax.value_and_grad(loss))(values["table"])
    assert found == 0 and not np.any(slope)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_negative_weights_are_advantages(reduction):
    """The mean divides by Σ |weight|, so that it keeps the sign; the accuracy is in 0...1."""
    values, weights = cast(VALUES, jnp.float32), WEIGHTS * jnp.where(jnp.arange(P) % 2, -2, 1)
    share = weights / jnp.sum(jnp.abs(weights)) if reduction == "mean" else weights

    def plainly(values):
        logits = values["h"] @ values["table"].T
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, TARGETS)
        return jnp.sum(share * losses), jnp.sum(jnp.abs(share) * (jnp.argmax(logits, 1) == TARGETS))

    def blockwise(values):
        arguments = values["h"], values["table"], TARGETS, weights
        return cross_entropy(*arguments, reduction=reduction, block=16)

    found, expected = (
        once(jax.value_and_grad(lambda v, f=f: tuple(f(v)), has_aux=True))(values)
        for f in (blockwise, plainly)
    )
    expected[1]["bias"] = jnp.zeros(V)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, expected)


def test_a_target_that_is_excluded_is_wrong():
    """Loss and gradients are NaN, unless the position does not count."""
    spec = EmbeddingSpec(V, D, tied=True, excluded_rows=(0, 4))
    params = {"input": jnp.asarray(VALUES["table"], jnp.float32)}
    h, targets = jnp.asarray(VALUES["h"], jnp.float32), TARGETS.at[TARGETS == 0].set(1)

    def loss(params, weights=None):
        wrong = targets.at[3].set(4)
        return embedding_cross_entropy(spec, params, h, wrong, weights, block=16)[0]

    found, slope = once(jax.value_and_grad(loss))(params)
    assert jnp.isnan(found) and jnp.isnan(slope["input"]).any()
    assert jnp.isfinite(once(loss)(params, jnp.ones(P).at[3].set(0).at[targets == 4].set(0)))


def test_forward_derivatives():
    """`jvp` is the gradient times the direction; second derivatives are those of the formula."""
    values = cast(VALUES, jnp.float32)
    h, table = values["h"], values["table"]
    direction = jnp.cos(h), jnp.sin(table)

    def loss(h, table):
        return cross_entropy(h, table, TARGETS, WEIGHTS, block=16)[0]

    def plainly(h, table):
        return plain({"h": h, "table": table})[0]

    for f in (lambda f: lambda *x: f(*x), lambda f: jax.grad(f, argnums=(0, 1))):
        found, expected = (
            once(partial(jax.jvp, f(g)))((h, table), direction) for g in (loss, plainly)
        )
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, expected)


def test_a_block_without_positions_is_refused():
    with pytest.raises(ValueError, match="block = 0; expected 1 position or more"):
        cross_entropy(jnp.ones((P, D)), jnp.ones((V, D)), TARGETS, block=0)
