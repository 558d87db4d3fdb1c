"""Two tables from one and one from two, in any tree: where they stand, how they fit, what is done to each part of a state."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from jaxtie.models import paths
from jaxtie.models.layers import Tree
from jaxtie.models.paths import Path
from jaxtie.models.vocabulary_end import PARTS

How = Literal["input", "output", "mean"]
Place = str | Sequence[Hashable]  # "decoder/head/kernel", or its keys one by one where these have slashes


class Tables(NamedTuple):
    """Where the two tables of an embedding stand in a parameter tree.

    Attributes:
      shape: of the input table, (..., V, D).
      transposed: the output table is (..., D, V); None where a shape does not tell.
      untied: both are there.
      kept: where the one table stands while they are tied: at the input, but of modules that share it perhaps at the output.
    """

    input: Path
    output: Path
    shape: tuple[int, ...]
    transposed: bool | None
    untied: bool
    kept: Path

    @property
    def now(self) -> Path:
        """Where the input table stands as the tree is."""
        return self.input if self.untied else self.kept


Surgery = Callable[[Tables, Tree], Tree]


def find_tables(
    params: Tree, input: Place | None = None, output: Place | None = None, transposed: bool | None = None
) -> list[Tables]:
    """The embeddings of a parameter tree: the one at these paths or, if none are given, all that `VocabularyEnd` laid out.

    Raises:
      ValueError: if there is none, or if two tables do not fit together.
    """
    if (input is None) != (output is None):
        raise ValueError("of input and output one path is given; expected both, or none for tables that jaxtie made")
    if input is not None:
        return [_tables_at(params, paths.parse(input), paths.parse(output), transposed)]
    if not (roots := embedding_roots(params)):
        raise ValueError(
            "no embedding (a dictionary with a table `input`, as `Embedding` makes it) in the parameters; "
            "name the tables by their paths: input=..., output=..."
        )
    return [_tables_at(params, (*root, "input"), (*root, "output"), transposed=False) for root in roots]


def embedding_roots(params: Tree) -> list[Path]:
    """Where the embeddings that `VocabularyEnd` laid out stand in a tree."""
    found = jax.tree_util.tree_leaves_with_path(params, is_leaf=_is_embedding)
    return [paths.keys_of(path) for path, node in found if _is_embedding(node)]


def _tables_at(params: Tree, input: Path, output: Path, transposed: bool | None) -> Tables:
    (one,) = jax.tree.leaves(paths.demand(params, input))
    other = paths.look(params, output)
    shape = tuple(one.shape)
    if len(shape) < 2:
        raise ValueError(f"{paths.shown(input)} is an array {shape}; expected a table, (..., V, D)")
    if other is not None:
        (other,) = jax.tree.leaves(other)
        across = (*shape[:-2], shape[-1], shape[-2])
        fits = {False: other.shape == shape, True: other.shape == across}
        if not fits.get(transposed, any(fits.values())):
            expected = {False: f"{shape}", True: f"{across}", None: f"{shape} or {across}"}[transposed]
            raise ValueError(
                f"{paths.shown(output)} is {other.shape}, but {paths.shown(input)} is {shape}; expected {expected}"
            )
        if transposed is None and not all(fits.values()):
            transposed = fits[True]
    return Tables(input, output, shape, transposed, other is not None, input)


def operate(surgery: Surgery, found: Sequence[Tables], params: Tree, opt_state: Tree) -> tuple[Tree, Tree]:
    """A surgery on all of these embeddings, in parameters and in every part of an optimiser's state laid out as they are."""

    def edit(tree: Tree) -> Tree:
        for tables in found:
            tree = surgery(tables, tree)
        return tree

    return edit(params), paths.edit_alike(edit, params, opt_state)


def untied_tree(tables: Tables, tree: Tree) -> Tree:
    """A tree laid out as tied parameters, with two tables."""
    kept = paths.look(tree, tables.kept)
    # A copy, not a second reference: a step that is given its state to keep could not take the same array twice.
    copy = _across(kept, tables.shape) if tables.transposed else jax.tree.map(lambda leaf: leaf.copy(), kept)
    return paths.put(paths.put(tree, tables.input, kept), tables.output, copy)


def is_across(tables: Tables) -> bool:
    """Whether the output table is D×V. ValueError where a shape does not tell."""
    if tables.transposed is None:
        raise ValueError(f"{paths.shown(tables.output)} is as wide as long; say transposed=True if it is D×V, or False")
    return tables.transposed


def tied_tree(how: How, tables: Tables, tree: Tree) -> Tree:
    """A tree laid out as untied parameters, with one table."""
    one, other = paths.look(tree, tables.input), paths.look(tree, tables.output)
    if how != "input":
        if is_across(tables):
            other = _across(other, (*tables.shape[:-2], tables.shape[-1], tables.shape[-2]))
        leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
        if len(leaves) != len(others):
            raise ValueError(
                f"the optimiser keeps {len(leaves)} arrays for {paths.shown(tables.input)} and {len(others)} for "
                f"{paths.shown(tables.output)}; expected both tables to be treated alike"
            )
        combine = {"output": lambda _, b: b, "mean": _mean}[how]
        combined = [_split_as(combine(a, b), a) for a, b in zip(leaves, others, strict=True)]
        one = jax.tree.unflatten(jax.tree.structure(one), combined)
    if tables.kept == tables.input:
        return paths.drop(paths.put(tree, tables.input, one), tables.output)
    emptied = paths.put(tree, tables.output, {})  # it may be kept there, or below
    return paths.drop(paths.put(emptied, tables.kept, one), tables.input)


def _mean(a: jax.Array, b: jax.Array) -> jax.Array:
    """Exactly a where a = b; a where it is not a floating-point number."""
    return (a + b) / 2 if jnp.issubdtype(a.dtype, jnp.floating) else a


def _split_as(value: jax.Array, like: jax.Array) -> jax.Array:
    """A value on the devices where its like is, split as that is; within a program its compiler sees to it."""
    if any(not isinstance(x, jax.Array) or isinstance(x, jax.core.Tracer) for x in (value, like)):
        return value
    return value if value.sharding == like.sharding else jax.device_put(value, like.sharding)


def _across(entry: Tree, shape: tuple[int, ...]) -> Tree:
    """What belongs to a table of a shape, for the same table transposed: arrays of that shape, names of mesh axes."""

    def turn(leaf: jax.Array) -> jax.Array:
        if leaf.shape == shape:
            turned = leaf.swapaxes(-1, -2)
            return turned if isinstance(turned, jax.Array) else turned.copy()  # NumPy's is a view
        # Statistics of rows or columns are told apart by their lengths, so those of a square table are not.
        if leaf.ndim < len(shape) and not (leaf.ndim and shape[-1] == shape[-2] == leaf.shape[-1]):
            return leaf.copy()
        raise ValueError(f"the optimiser keeps an array {leaf.shape} for a table {shape}; it cannot be transposed with it")

    entry = jax.tree.map(turn, entry)
    if isinstance(entry, nn.Partitioned):
        return entry.replace(names=_swapped(entry.names))
    if isinstance(entry, nnx.Variable) and isinstance(axes := entry.get_metadata().get("out_sharding"), tuple):
        return entry.replace(out_sharding=_swapped(axes))
    return entry


def _swapped(axes: tuple) -> tuple:
    return (*axes[:-2], *axes[:-3:-1]) if len(axes) > 1 else axes


def _is_embedding(node: Tree) -> bool:
    return isinstance(node, Mapping) and "input" in node.keys() <= PARTS and not isinstance(node["input"], Mapping)
