"""`check` finds each way in which a tie breaks, and is silent on sound models."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from six_models import OPTIMISER, START, WAYS, D, OfModules, V, X, cross_entropy_of

import jaxtie
from jaxtie import check, untie

PATHS = {"input": "embed/table", "output": "head/kernel"}
TABLE = jnp.asarray(START["input"], jnp.float32)
W = jnp.asarray(START["W"], jnp.float32)


def loss_of(params, stop=()):
    """Follow the parameters; no gradient to the roles in `stop`."""
    one, output = params["embed"]["table"], params["embed"]["table"].T
    output = params["head"]["kernel"] if "head" in params else output
    one = jax.lax.stop_gradient(one) if "input" in stop else one
    output = jax.lax.stop_gradient(output) if "output" in stop else output
    return cross_entropy_of(jnp.tanh(one[X] @ params["w"]) @ output)


def tree(**changes):
    return {"embed": {"table": TABLE}, "w": W, **changes}


def two_tables(output=None):
    """A D×V head, independent by default."""
    other = jax.random.normal(jax.random.key(1), (D, V)) if output is None else output
    return tree(head={"kernel": other})


def decay(mask):
    return optax.adamw(1e-2, weight_decay=0.1, mask=mask)


def not_head(params):
    return {name: name != "head" for name in params}


def labels(params):
    return {name: "head" if name == "head" else "rest" for name in params}


TWO_DECAYS = optax.multi_transform({"head": optax.adamw(1e-2), "rest": decay(None)}, labels)
MUON = optax.contrib.muon(1e-2)
TWO_RULES = optax.multi_transform({"head": optax.lion(1e-2), "rest": optax.adam(1e-2)}, labels)
ONE_FROZEN = optax.multi_transform({"head": optax.set_to_zero(), "rest": optax.sgd(0.1)}, labels)


def of_rates(table, rest):
    groups = {"table": optax.adam(table), "rest": optax.adam(rest)}
    return optax.multi_transform(
        groups, lambda params: {name: "table" if name == "embed" else "rest" for name in params}
    )


WARM = optax.adamw(optax.linear_schedule(0, 1e-2, 10), mask=not_head)


def with_copy():
    embedding = jaxtie.nnx.Embedding(V, D, True, rngs=nnx.Rngs(0))
    return nnx.Dict(a=embedding, b=nnx.Param(embedding.input[...] * 1.01))


def two_embeds(tie=None):
    model = nnx.Dict(
        embed=nnx.Embed(V, D, rngs=nnx.Rngs(0)), head=nnx.Embed(V, D, rngs=nnx.Rngs(1))
    )
    if tie == "values":
        model.head.embedding.set_value(model.embed.embedding.get_value())
    elif tie == "variable":
        model.head.embedding = model.embed.embedding
    return model


OF_EMBEDS = {"input": "embed/embedding", "output": "head/embedding"}
NOISE = 0.1 * jax.random.normal(jax.random.key(2), (D, V))


def of_linen(**options):
    embedding = jaxtie.Embedding(V, D, **options)
    params = embedding.init(jax.random.key(0), X)["params"]

    def loss(params):
        h = jnp.tanh(embedding.apply({"params": params}, X))
        return cross_entropy_of(embedding.apply({"params": params}, h, method="logits"))

    return {"params": params, "loss": loss}


def of_nnx(**options):
    model = jaxtie.nnx.Embedding(V, D, **options, rngs=nnx.Rngs(0))
    return {
        "params": model,
        "loss": lambda model: cross_entropy_of(model.logits(jnp.tanh(model(X)))),
    }


EQUAL, DRIFTED = "is a copy of .*, equal", "is a copy of .*, drifted by"
TWICE = "the number of parameters and the global norm count both"
BROKEN = {
    "one array at two places": (EQUAL, lambda: {"params": two_tables(TABLE.T), **PATHS}),
    "two variables with one value": (EQUAL, lambda: {"params": two_embeds("values"), **OF_EMBEDS}),
    "two where one is expected": (
        "are two tables; expected one",
        lambda: {"params": two_tables(), "tied": True, **PATHS},
    ),
    "two variables where one is expected": (
        "are two tables; expected one",
        lambda: {"params": two_embeds(), "tied": True, **OF_EMBEDS},
    ),
    "drifted": (DRIFTED, lambda: {"params": two_tables(TABLE.T + NOISE), **PATHS}),
    "drifted in low precision": (
        DRIFTED,
        lambda: {"params": two_tables((TABLE.T * 0.9).astype(jnp.bfloat16)), **PATHS},
    ),
    "a copy elsewhere": (
        f"old is a copy of .*{TWICE}",
        lambda: {"params": tree(old=TABLE.T + 0), **PATHS},
    ),
    "a copy in a module": (f"b is a copy of .*{TWICE}", lambda: {"params": with_copy()}),
    "a scaled copy": (
        "old is a copy of embed/table, scaled",
        lambda: {"params": tree(old=(TABLE.T * 30).astype(jnp.bfloat16)), **PATHS},
    ),
    "a scaled output table": (
        "head/kernel is a copy of embed/table, scaled",
        lambda: {"params": two_tables(TABLE.T * 30), **PATHS},
    ),
    "a padded copy": (
        "old is a copy of embed/table, equal",
        lambda: {"params": tree(old=jnp.pad(TABLE.T, [(0, 0), (0, 2)])), **PATHS},
    ),
    "a copy without padding": (
        "old is a copy of embed/table, equal",
        lambda: {"params": tree(old=TABLE[:-1]), **PATHS},
    ),
    "NaN": (
        "embed/table has values that are NaN or infinite",
        lambda: {"params": tree(embed={"table": TABLE.at[2, 1].set(jnp.nan)}), **PATHS},
    ),
    "infinite values in the output table": (
        "head/kernel has values that are NaN or infinite",
        lambda: {"params": two_tables(2 * TABLE[::-1].T.at[2, 1].set(jnp.inf)), **PATHS},
    ),
    "a state of other parameters": (
        r"the optimizer's state has an array \(6, 4\) at 0/mu/embed/table, which is not laid out",
        lambda: {"params": tree(), "opt_state": optax.adam(1.0).init(two_tables()), **PATHS},
    ),
    "Muon": (
        r"embed/table is updated by Muon \(.*MuonState.mu\), which is for hidden matrices",
        lambda: {"params": tree(), "opt_state": MUON.init(tree()), **PATHS},
    ),
    "Muon without its state": (
        "embed/table is updated by Muon",
        lambda: {"params": tree(), "tx": MUON, **PATHS},
    ),
    "Muon in an NNX optimizer": (
        "embed/embedding is updated by Muon",
        lambda: (
            {"params": (model := two_embeds("variable")), **OF_EMBEDS}
            | {"opt_state": nnx.Optimizer(model, MUON, wrt=nnx.Param)}
        ),
    ),
    "a rate of 0": (
        "embed/table has moments, but no update changes it; expected a rate above 0",
        lambda: {"params": tree(), "tx": of_rates(table=0.0, rest=1e-2), **PATHS},
    ),
    "groups that differ": (
        "embed/table has moments in .*rest/.*Adam.*, head/kernel in .*head/.*Lion.*; expected both",
        lambda: {"params": two_tables(), "opt_state": TWO_RULES.init(two_tables()), **PATHS},
    ),
    "one table is frozen": (
        "an update changes only one of embed/table and head/kernel",
        lambda: {"params": two_tables(), "tx": ONE_FROZEN, **PATHS},
    ),
    "decay by mask": (
        "decays embed/table by 0.001 and head/kernel by 0",
        lambda: {"params": two_tables(), "tx": decay(not_head), **PATHS},
    ),
    "decay by mask of bfloat16": (
        "decays embed/table by 0.001 and head/kernel by 0",
        lambda: (
            {"params": jax.tree.map(lambda x: x.astype(jnp.bfloat16), two_tables())}
            | {"tx": decay(not_head), **PATHS}
        ),
    ),
    "decay by group": (
        "decays embed/table by 0.001 and head/kernel by 1e-06",
        lambda: {"params": two_tables(), "tx": TWO_DECAYS, **PATHS},
    ),
    "decay after a warm-up": (
        "decays embed/table by .* and head/kernel by 0",
        lambda: {"params": two_tables(), "tx": WARM, **PATHS},
    ),
    "no gradient to the output": (
        "no gradient in its output role",
        lambda: (
            {"params": tree(), "loss": partial(loss_of, stop=["output"])}
            | {"transposed": True, **PATHS}
        ),
    ),
    "no gradient to the input": (
        "no gradient in its input role",
        lambda: {"params": two_tables(), "loss": partial(loss_of, stop=["input"]), **PATHS},
    ),
    "output_gradient=0 in linen": (
        "no gradient in its output role",
        lambda: of_linen(tied=True, output_gradient=0.0),
    ),
    "input_gradient=0 in nnx": (
        "no gradient in its input role",
        lambda: of_nnx(tied=True, input_gradient=0.0),
    ),
    "a head that the code ignores": (
        "no gradient in its output role",
        lambda: (
            {"params": two_tables(), **PATHS}
            | {"loss": lambda params: loss_of({name: params[name] for name in ("embed", "w")})}
        ),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_tie_is_found(name):
    message, make = BROKEN[name]
    report = check(**make())
    assert len(report.problems) == 1 and "\n" not in report.problems[0]
    assert f"problem: {report.problems[0]}" in str(report)
    with pytest.raises(ValueError, match=message):
        report.raise_if_broken()


def of_way(way, untied=False):
    def make():
        if way == "equinox":
            pytest.importorskip("equinox", reason="needs Equinox: pip install 'jaxtie[test]'")
        model = WAYS[way]()
        for _ in range(2):
            model.step()
        if untied:
            model.untie()
        if isinstance(model, OfModules):
            own = model.model, model.optimizer
            loss = lambda model: cross_entropy_of(model(X))  # noqa: E731
        else:
            own = model.params, model.opt_state
            loss = lambda params: cross_entropy_of(model.logits(params))  # noqa: E731
        across = {"transposed": True} if way == "maxtext" else {}
        options = {"loss": loss, "tied": not untied, "tx": OPTIMISER, **model.paths, **across}
        return {"params": own[0], "opt_state": own[1], **options}

    return make


def split():
    mesh = jax.make_mesh((2,), ("vocabulary",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("vocabulary", None))
    params = tree(embed={"table": jax.device_put(TABLE, sharding)})
    return {"params": params, "loss": loss_of, "transposed": True, **PATHS}


def matrices(params):
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


FREEZE = optax.multi_transform(
    {"tables": optax.set_to_zero(), "rest": optax.adamw(1e-2)},
    lambda params: {name: "rest" if name == "w" else "tables" for name in params},
)
SOUND = {
    **{f"tied {way}": of_way(way) for way in WAYS},
    **{f"untied {way}": of_way(way, untied=True) for way in ("linen", "nnx-linear", "maxtext")},
    "split": split,
    "Muon for the rest": lambda: {
        "params": two_tables(),
        "tx": optax.contrib.muon(
            1e-2,
            muon_weight_dimension_numbers=lambda params: {
                "embed": {"table": None},
                "head": {"kernel": None},
                "w": optax.contrib.MuonDimensionNumbers(),
            },
        ),
        **PATHS,
    },
    "two groups, meant": lambda: (
        {"params": two_tables(), "tied": False, **PATHS}
        | {"opt_state": TWO_RULES.init(two_tables()), "tx": TWO_RULES}
    ),
    "gradients that are accumulated": lambda: {
        "params": two_tables(),
        "tx": optax.MultiSteps(optax.adam(1e-2), 4).gradient_transformation(),
        **PATHS,
    },
    "masked decay": lambda: {"params": two_tables(), "tx": decay(matrices), **PATHS},
    "frozen tables": lambda: {"params": two_tables(), "tx": FREEZE, "loss": loss_of, **PATHS},
    "no gradient at all": lambda: (
        {"params": tree(), **PATHS}
        | {"loss": partial(loss_of, stop=["input", "output"]), "transposed": True}
    ),
    "partly tied in linen": lambda: of_linen(tied=True, untied_rows=(1, 2)),
    "partly tied in nnx": lambda: of_nnx(tied=True, untied_rows=(1, 2)),
    "one variable at two places": lambda: {"params": two_embeds("variable"), **OF_EMBEDS},
    "other tables of the same shape": lambda: {
        "params": tree(zeros=jnp.zeros((V, D)), ones=jnp.ones((V, D)), other=W[:, :D]),
        **PATHS,
    },
    "code that does not follow": lambda: {
        "params": tree(),
        "loss": lambda params: loss_of({name: params[name] for name in ("embed", "w")}),
        "transposed": True,
        **PATHS,
    },
    "an optimizer that needs the loss": lambda: {
        "params": two_tables(),
        "tx": optax.lbfgs(),
        **PATHS,
    },
}


@pytest.mark.parametrize("name", SOUND)
def test_no_false_alarm(name, x64):
    report = check(**SOUND[name]())
    assert report.problems == () and "problem: none" in str(report)
    report.raise_if_broken()


def test_a_report_says_what_it_found():
    params = two_tables(TABLE.T + NOISE)
    tx = optax.multi_transform({"head": optax.adam(1e-2), "rest": optax.lion(1e-2)}, labels)
    report = check(params, tx.init(params), loss=loss_of, tx=tx, tied=False, **PATHS)
    (found,) = report.embeddings
    assert report.parameters == 2 * V * D + D * D and not found.tied
    one, other = np.asarray(TABLE), np.asarray(params["head"]["kernel"]).T
    expected = np.linalg.norm(one - other) / np.linalg.norm(one)
    np.testing.assert_allclose(found.difference, expected, rtol=1e-5)
    slope = jax.grad(loss_of)(params)
    norms = [jnp.linalg.norm(slope["embed"]["table"]), jnp.linalg.norm(slope["head"]["kernel"])]
    np.testing.assert_allclose(found.gradients, norms, rtol=1e-5)
    assert [len(group) for group in found.groups] == [1, 2]
    assert "inner_states/rest" in found.groups[0][0] and "inner_states/head" in found.groups[1][0]
    np.testing.assert_allclose(found.decay, [1e-5, 0], rtol=1e-3)
    assert "difference: " in str(report) and "gradients: " in str(report)
    of_input, of_output = map(", ".join, found.groups)
    assert f"groups: {of_input}; {of_output}" in str(report)


def test_tables_on_explicit_mesh_axes():
    mesh = jax.make_mesh((2,), ("vocabulary",), axis_types=(AxisType.Explicit,))

    def put(array, *axes):
        return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*axes)))

    params = {
        "embed": {"table": put(TABLE, "vocabulary")},
        "head": {"kernel": put(TABLE.T, None, "vocabulary")},
        "w": put(W),
    }

    def loss(params):
        tables = params["embed"]["table"].T, params["head"]["kernel"]
        return sum(jnp.sum(jnp.tanh(params["w"] @ table) ** 2) for table in tables)

    tx = optax.adamw(1e-2)
    with jax.set_mesh(mesh):
        report = check(params, tx.init(params), loss=loss, tx=tx, **PATHS)
    assert len(report.problems) == 1 and "equal" in report.problems[0]
    np.testing.assert_allclose(*report.embeddings[0].gradients, rtol=1e-5)


def test_gradients_by_role_add_up_to_that_of_the_tied_table():
    params = tree()
    (found,) = check(params, loss=loss_of, transposed=True, **PATHS).embeddings
    apart, _ = untie(params, **PATHS, transposed=True)
    slope = jax.grad(loss_of)(apart)
    both = slope["embed"]["table"], slope["head"]["kernel"]
    np.testing.assert_allclose(found.gradients, list(map(jnp.linalg.norm, both)), rtol=1e-5)
    whole = jax.grad(loss_of)(params)["embed"]["table"]
    np.testing.assert_allclose(both[0] + both[1].T, whole, rtol=1e-5, atol=1e-6)
