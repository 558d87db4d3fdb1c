"""Two tables from one and one from two, in any tree: where they stand, how they fit, what is done
to each part of a state.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxtie.models import paths
from jaxtie.models.layers import Tree
from jaxtie.models.paths import Path
from jaxtie.models.vocabulary_end import PARTS, check_ids

How = Literal["input", "output", "mean"]
# "decoder/head/kernel", or its keys one by one where these have slashes
Place = str | Sequence[Hashable]


class Tables(NamedTuple):
    """Where the two tables of an embedding stand in a parameter tree.

    Attributes:
      shape: of the input table, (..., V, D).
      transposed: the output table is (..., D, V); None where a shape does not tell.
      untied: both are there.
      kept: where the one table stands while they are tied: at the input, but of modules that share
        it perhaps at the output.
      rows: where output rows of its own stand, or would, if it is tied but for these; empty of
        tables that `VocabularyEnd` did not lay out.
      partly: they are there.
      untied_rows: their token ids, ascending; empty where none were given.
    """

    input: Path
    output: Path
    shape: tuple[int, ...]
    transposed: bool | None
    untied: bool
    kept: Path
    rows: Path = ()
    partly: bool = False
    untied_rows: tuple[int, ...] = ()

    @property
    def now(self) -> Path:
        """Where the input table stands as the tree is."""
        return self.input if self.untied else self.kept


Surgery = Callable[[Tables, Tree], Tree]


def find_tables(
    params: Tree,
    input: Place | None = None,
    output: Place | None = None,
    transposed: bool | None = None,
) -> list[Tables]:
    """The embeddings of a parameter tree: the one at these paths or, if none are given, all that
    `VocabularyEnd` laid out.

    Raises:
      ValueError: if there is none, or if two tables do not fit together.
    """
    if input is not None and output is not None:
        return [_tables_at(params, paths.parse(input), paths.parse(output), transposed)]
    if input is not None or output is not None:
        raise ValueError(
            "of input and output one path is given; expected both, or none for tables that jaxtie"
            " made"
        )
    if not (roots := embedding_roots(params)):
        raise ValueError(
            "no embedding (a dictionary with a table `input`, as `Embedding` makes it) in the"
            " parameters; name the tables by their paths: input=..., output=..."
        )
    return [_laid_out_at(params, root) for root in roots]


def embedding_roots(params: Tree) -> list[Path]:
    """Where the embeddings that `VocabularyEnd` laid out stand in a tree."""
    found = jax.tree_util.tree_leaves_with_path(params, is_leaf=_is_embedding)
    return [paths.keys_of(path) for path, node in found if _is_embedding(node)]


def _laid_out_at(params: Tree, root: Path) -> Tables:
    rows = (*root, "output_rows")
    tables = _tables_at(params, (*root, "input"), (*root, "output"), transposed=False)
    return tables._replace(rows=rows, partly=paths.look(params, rows) is not None)


def with_untied_rows(tables: Tables, params: Tree, untied_rows: Sequence[int]) -> Tables:
    """The same, with the token ids of output rows of its own.

    Raises:
      ValueError: where they are needed and not given, or others than there can be.
    """
    if untied_rows and not tables.rows:
        raise ValueError("untied_rows: expected an Embedding of jaxtie, not tables by their paths")
    ids = tuple(int(row) for row in untied_rows)
    check_ids("untied_rows", ids, tables.shape[-2])
    if tables.partly:
        where = paths.shown(tables.rows)
        (own,) = jax.tree.leaves(paths.look(params, tables.rows))
        if not ids:
            raise ValueError(f"{where} are rows of their own; say which by untied_rows=...")
        if own.shape[-2] != len(ids):
            raise ValueError(f"{where} are {own.shape[-2]} rows; expected as many untied_rows")
    return tables._replace(untied_rows=ids)


def _tables_at(params: Tree, input: Path, output: Path, transposed: bool | None) -> Tables:
    (one,) = jax.tree.leaves(paths.demand(params, input))
    other = paths.look(params, output)
    shape = tuple(one.shape)
    if len(shape) < 2:
        raise ValueError(f"{paths.shown(input)} is an array {shape}; expected a table, (..., V, D)")
    if other is not None:
        (other,) = jax.tree.leaves(other)
        across = (*shape[:-2], shape[-1], shape[-2])
        fits: dict[bool | None, bool] = {False: other.shape == shape, True: other.shape == across}
        if not fits.get(transposed, any(fits.values())):
            expected = {False: f"{shape}", True: f"{across}", None: f"{shape} or {across}"}[
                transposed
            ]
            raise ValueError(
                f"{paths.shown(output)} is {other.shape}, but {paths.shown(input)} is {shape};"
                f" expected {expected}"
            )
        if transposed is None and not all(fits.values()):
            transposed = fits[True]
    return Tables(input, output, shape, transposed, other is not None, input)


def operate(
    surgery: Surgery, found: Sequence[Tables], params: Tree, opt_state: Tree
) -> tuple[Tree, Tree]:
    """A surgery on all of these embeddings, in parameters and in every part of an optimiser's state
    laid out as they are.
    """

    def edit(tree: Tree) -> Tree:
        for tables in found:
            tree = surgery(tables, tree)
        return tree

    return edit(params), paths.edit_alike(edit, params, opt_state)


def untied_tree(tables: Tables, tree: Tree) -> Tree:
    """A tree laid out as tied or partly tied parameters, with two tables."""
    kept = paths.look(tree, tables.kept)
    if tables.partly:
        output = _with_own_rows(tables, kept, paths.look(tree, tables.rows))
        return paths.drop(paths.put(tree, tables.output, output), tables.rows)
    # A copy, not a second reference: a step that is given its state to keep could not take the same
    # array twice.
    copy = (
        _across(kept, tables.shape)
        if tables.transposed
        else jax.tree.map(lambda leaf: leaf.copy(), kept)
    )
    return paths.put(paths.put(tree, tables.input, kept), tables.output, copy)


def is_across(tables: Tables) -> bool:
    """Whether the output table is D×V. ValueError where a shape does not tell."""
    if tables.transposed is None:
        raise ValueError(
            f"{paths.shown(tables.output)} is as wide as long; say transposed=True if it is D×V, or"
            " False"
        )
    return tables.transposed


def tied_tree(how: How, tables: Tables, tree: Tree) -> Tree:
    """A tree laid out as untied parameters, with one table; and the output rows of its own."""
    one, other = paths.look(tree, tables.input), paths.look(tree, tables.output)
    tied = _tied_tree(how, tables, tree)
    if not tables.untied_rows:
        return tied
    combined, own = paths.look(tied, tables.input), _own_rows(tables, other)
    if how != "input":  # the rows that are untied have no part in it
        leaves = [_own_rows(tables, leaf) for leaf in jax.tree.leaves(one)]
        rows = jax.tree.unflatten(jax.tree.structure(one), leaves)
        combined = _with_own_rows(tables, combined, rows)
    return paths.put(paths.put(tied, tables.input, combined), tables.rows, own)


def _tied_tree(how: How, tables: Tables, tree: Tree) -> Tree:
    one, other = paths.look(tree, tables.input), paths.look(tree, tables.output)
    if how != "input":
        if is_across(tables):
            other = _across(other, (*tables.shape[:-2], tables.shape[-1], tables.shape[-2]))
        leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
        if len(leaves) != len(others):
            raise ValueError(
                f"the optimiser keeps {len(leaves)} arrays for {paths.shown(tables.input)} and"
                f" {len(others)} for {paths.shown(tables.output)}; expected both tables to be"
                " treated alike"
            )
        combine = {"output": lambda _, b: b, "mean": _mean}[how]
        combined = [_split_as(combine(a, b), a) for a, b in zip(leaves, others, strict=True)]
        one = jax.tree.unflatten(jax.tree.structure(one), combined)
    if tables.kept == tables.input:
        return paths.drop(paths.put(tree, tables.input, one), tables.output)
    emptied = paths.put(tree, tables.output, {})  # it may be kept there, or below
    return paths.drop(paths.put(emptied, tables.kept, one), tables.input)


def _with_own_rows(tables: Tables, whole: Tree, rows: Tree) -> Tree:
    """What belongs to a table, with what belongs to its rows `untied_rows` put in.

    What tells no rows apart, such as statistics of columns, stays the table's.
    """
    leaves, others = jax.tree.leaves(whole), jax.tree.leaves(rows)

    def put(leaf: jax.Array, own: jax.Array) -> jax.Array:
        at = _index_of_rows(tables, leaf)
        if own.shape != (leaf.shape if at is None else jax.eval_shape(lambda x: x[at], leaf).shape):
            raise ValueError(
                f"the optimiser keeps {leaf.shape} for {paths.shown(tables.input)} and {own.shape}"
                f" for {paths.shown(tables.rows)}; expected both to be treated alike"
            )
        if at is None:
            return leaf.copy()
        if isinstance(leaf, np.ndarray):
            leaf = leaf.copy()
            leaf[at] = own
            return leaf
        return _split_as(leaf.at[at].set(own), leaf)

    if len(leaves) != len(others):
        raise ValueError(
            f"the optimiser keeps {len(leaves)} arrays for {paths.shown(tables.input)} and"
            f" {len(others)} for {paths.shown(tables.rows)}; expected both to be treated alike"
        )
    both = [put(leaf, own) for leaf, own in zip(leaves, others, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(whole), both)


def _own_rows(tables: Tables, entry: Tree) -> Tree:
    """What belongs to a table, for its rows `untied_rows` alone."""

    def take(leaf: jax.Array) -> jax.Array:
        at = _index_of_rows(tables, leaf)
        return leaf.copy() if at is None else leaf[at]

    rows = jax.tree.map(take, entry)
    if isinstance(rows, nn.Partitioned):
        return rows.replace(names=_unsplit(rows.names))
    if isinstance(rows, nnx.Variable):
        axes = rows.get_metadata().get("out_sharding")
        return rows.replace(out_sharding=_unsplit(axes)) if isinstance(axes, tuple) else rows
    return rows


def _unsplit(axes: tuple) -> tuple:
    """Names of a table's mesh axes, for few rows of it."""
    return (*axes[:-2], None, *axes[-1:])


def _index_of_rows(tables: Tables, leaf: jax.Array) -> tuple | None:
    """Where the rows `untied_rows` are in what belongs to a table; None where rows are not told."""
    front, vocabulary, width = len(tables.shape) - 2, *tables.shape[-2:]
    ids = np.array(tables.untied_rows)
    if leaf.shape == tables.shape:
        return (*[slice(None)] * front, ids)
    of_rows = [axis for axis in range(front, leaf.ndim) if leaf.shape[axis] == vocabulary]
    if not of_rows:
        return None
    if vocabulary == width or len(of_rows) > 1:
        raise ValueError(
            f"the optimiser keeps an array {leaf.shape} for a table {tables.shape}; its rows cannot"
            " be told"
        )
    return (*[slice(None)] * of_rows[0], ids)


def _mean(a: jax.Array, b: jax.Array) -> jax.Array:
    """Exactly a where a = b; a where it is not a floating-point number."""
    return (a + b) / 2 if jnp.issubdtype(a.dtype, jnp.floating) else a


def _split_as(value: jax.Array, like: jax.Array) -> jax.Array:
    """A value on the devices where its like is, split as that is; within a program its compiler
    sees to it.
    """
    if any(not isinstance(x, jax.Array) or isinstance(x, jax.core.Tracer) for x in (value, like)):
        return value
    return value if value.sharding == like.sharding else jax.device_put(value, like.sharding)


def _across(entry: Tree, shape: tuple[int, ...]) -> Tree:
    """What belongs to a table of a shape, for the same table transposed: arrays of that shape,
    names of mesh axes.
    """

    def turn(leaf: jax.Array) -> jax.Array:
        if leaf.shape == shape:
            turned = leaf.swapaxes(-1, -2)
            return turned if isinstance(turned, jax.Array) else turned.copy()  # NumPy's is a view
        # Statistics of rows or columns are told apart by their lengths, so those of a square table
        # are not.
        if leaf.ndim < len(shape) and not (leaf.ndim and shape[-1] == shape[-2] == leaf.shape[-1]):
            return leaf.copy()
        raise ValueError(
            f"the optimiser keeps an array {leaf.shape} for a table {shape}; it cannot be"
            " transposed with it"
        )

    entry = jax.tree.map(turn, entry)
    if isinstance(entry, nn.Partitioned):
        return entry.replace(names=_swapped(entry.names))
    if isinstance(entry, nnx.Variable) and isinstance(
        axes := entry.get_metadata().get("out_sharding"), tuple
    ):
        return entry.replace(out_sharding=_swapped(axes))
    return entry


def _swapped(axes: tuple) -> tuple:
    return (*axes[:-2], *axes[:-3:-1]) if len(axes) > 1 else axes


def _is_embedding(node: Tree) -> bool:
    return (
        isinstance(node, Mapping)
        and "input" in node.keys() <= PARTS
        and not isinstance(node["input"], Mapping)
    )
