"""A model, written five ways, with its vocabulary split over two devices."""

import re
from functools import partial

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from six_models import WAYS, ByHand, D, OfModules, V, module_step

import jaxtie.nnx
from jaxtie import tie, untie

WHOLE = re.compile(rf"f64\[(?:{V},{D}|{D},{V})\]")
HALF = f"f64[{V // 2},{D}]"


@pytest.fixture
def mesh():
    return jax.make_mesh((2,), ("vocabulary",), axis_types=(AxisType.Auto,))


def sharding_of(leaf, mesh) -> NamedSharding:
    """Split tables and their moments along V; replicate the rest."""
    axes = {(V, D): ("vocabulary", None), (D, V): (None, "vocabulary")}.get(np.shape(leaf), ())
    return NamedSharding(mesh, PartitionSpec(*axes))


def split(tree, mesh):
    return jax.tree.map(lambda leaf: jax.device_put(leaf, sharding_of(leaf, mesh)), tree)


def assert_split(model, mesh, tables: int):
    """Assert that there are so many tables and two moments of each, all split."""
    found = [
        leaf
        for leaf in jax.tree.leaves((model.params, model.moments()))
        if np.shape(leaf) in ((V, D), (D, V))
    ]
    assert len(found) == 3 * tables
    for leaf in found:
        assert leaf.sharding.is_equivalent_to(sharding_of(leaf, mesh), 2)
        assert {shard.data.size for shard in leaf.addressable_shards} == {V * D // 2}


def programs(model, edit, **options) -> list[str]:
    """Return the compiled programs of a step and of tying or untying."""
    if isinstance(model, OfModules):
        own = model.model, model.optimizer
        paths = model.paths
        step = module_step
        change = nnx.jit(lambda model, optimizer: edit(model, optimizer, **paths) and None)
    else:
        own = model.params, model.opt_state
        step, change = map(jax.jit, (model._update, partial(edit, **model.paths, **options)))
    return [program.lower(*own).compile().as_text() for program in (step, change)]


# Without Equinox: its trees are edited as dictionaries are, and hold more than arrays.
MOST_OF = [
    pytest.param(way, marks=[] if way == "nnx" else pytest.mark.slow)
    for way in WAYS
    if way != "equinox"
]


@pytest.mark.parametrize("way", MOST_OF)
def test_a_split_vocabulary(way, mesh, x64):
    model, reference = WAYS[way](), ByHand()
    if isinstance(model, OfModules):
        for each in (model.model, model.optimizer):
            nnx.update(each, split(nnx.state(each), mesh))
    else:
        model.params, model.opt_state = split(model.params, mesh), split(model.opt_state, mesh)
    with jax.set_mesh(mesh):
        for change, tables in ((None, 1), ("untie", 2), ("tie", 1)):
            if change:
                getattr(model, change)()
                getattr(reference, change)()
            assert_split(model, mesh, tables)
            for _ in range(2):
                np.testing.assert_allclose(model.step(), reference.step(), rtol=1e-9)
            assert_split(model, mesh, tables)
            across = {"transposed": way == "maxtext"}
            edit, options = (tie, {}) if change == "untie" else (untie, across)
            for text in programs(model, edit, **options):
                assert HALF in text and not WHOLE.search(text)


def test_partition_of_an_nnx_embedding(mesh):
    """Parameters and moments are split when created, and stay so when untied and tied."""
    with jax.set_mesh(mesh):
        embedding = jaxtie.nnx.Embedding(
            V, D, tied=True, bias=True, partition=("vocabulary", None), rngs=nnx.Rngs(0)
        )
        optimizer = nnx.Optimizer(embedding, optax.adam(1.0), wrt=nnx.Param)
        for change, arrays in ((untie, 9), (tie, 6)):
            change(embedding, optimizer)
            leaves = jax.tree.leaves((nnx.state(embedding), optimizer.opt_state))
            found = [leaf.sharding.spec for leaf in leaves if leaf.ndim]
            assert len(found) == arrays and {spec[0] for spec in found} == {"vocabulary"}
            logits = embedding.logits(embedding(np.array([3, 0, 5])))
            assert logits.sharding.spec == PartitionSpec(None, "vocabulary")
