"""Find the two tables in any tree and edit every part of an optimizer state laid out like it.

Trees by paths, and the parts of an optimizer's state that are laid out as the parameters.

A path is a tuple of the keys, attributes or indices that lead from the root to a table. A table may
be an array, a box around one (`nn.Partitioned`, `nnx.Variable`), or what an optimizer keeps in its
place: a tree of its own, or nothing.

Two tables from one and one from two, in any tree: where they stand, how they fit, what is done
to each part of a state.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxtie.tying.head import PARTS, Tree, check_ids

Path = tuple[Hashable, ...]
MASKED = optax.MaskedNode()


def parse(path: str | Sequence[Hashable]) -> Path:
    """A path, as it is or from its text: keys with slashes between them."""
    return tuple(path.split("/")) if isinstance(path, str) else tuple(path)


def keys_of(path: tuple[jax.tree_util.KeyEntry, ...]) -> tuple[str, ...]:
    """A path as JAX has it."""
    return tuple(jax.tree_util.keystr((entry,), simple=True) for entry in path)


def shown(path: Path) -> str:
    """A path as text."""
    return "/".join(map(str, path))


def look(tree: Tree, path: Path) -> Tree:
    """What stands at a path; None if nothing does, `MASKED` if it is in a part that an optimizer
    masks.
    """
    for key in path:
        if isinstance(tree, optax.MaskedNode):
            return MASKED
        tree = _parts(tree)[0].get(str(key))
    return tree


def demand(tree: Tree, path: Path) -> Tree:
    """What stands at a path of parameters.

    Raises:
      ValueError: if nothing does; it says what there is instead.
    """
    for i in range(len(path)):
        if look(tree, path[: i + 1]) is None:
            there = ", ".join(_parts(look(tree, path[:i]))[0]) or "nothing"
            raise ValueError(f"no {shown(path[: i + 1])!r} in the parameters; there is {there}")
    return look(tree, path)


def put(tree: Tree, path: Path, value: Tree) -> Tree:
    """A tree with a value at a path; in dictionaries, what is missing on the way is made.

    Raises:
      ValueError: if what is there has no such part and can get none, as of a list or a module; if
        an optimizer masks it.
    """
    if not path:
        return value
    if isinstance(tree, optax.MaskedNode):
        if jax.tree.leaves(value):
            raise ValueError(
                f"the optimizer masks {shown(path)!r}, but not the other table; expected both alike"
            )
        return tree
    parts, rebuild = _parts(tree)
    key = str(path[0])
    part = parts.get(key)
    if part is None and isinstance(tree, Mapping):
        part = {}
    elif key not in parts or (part is None and len(path) > 1):
        raise ValueError(
            f"{type(tree).__name__} has nothing at {key!r}; there are: {', '.join(parts) or 'none'}"
        )
    return rebuild(parts | {key: put(part, path[1:], value)})


def drop(tree: Tree, path: Path) -> Tree:
    """A tree with nothing at a path: no key in a dictionary (nor one that becomes empty by it),
    None elsewhere.
    """
    if isinstance(tree, optax.MaskedNode):
        return tree
    parts, rebuild = _parts(tree)
    key = str(path[0])
    rest = drop(parts[key], path[1:]) if len(path) > 1 else None
    gone = rest is None or (isinstance(rest, Mapping) and not rest)
    if gone and isinstance(tree, Mapping):
        return rebuild({name: part for name, part in parts.items() if name != key})
    return rebuild(parts | {key: rest})


def edit_alike(edit: Callable[[Tree], Tree], params: Tree, opt_state: Tree) -> Tree:
    """An optimizer's state with `edit` done to every part of it that is laid out as `params`.

    In such a part a leaf or box of `params` may have become a tree of its own, and
    `optax.MaskedNode` may stand for anything.
    """

    def is_alike(node: Tree) -> bool:
        return _is_alike(params, node)

    return jax.tree.map(
        lambda node: edit(node) if is_alike(node) else node, opt_state, is_leaf=is_alike
    )


def _is_alike(params: Tree, node: Tree) -> bool:
    if (
        isinstance(node, optax.MaskedNode)
        or isinstance(params, nnx.Variable)
        or jax.tree_util.all_leaves([params])
    ):
        return True
    (likes, like), (nodes, outer) = _children(params), _children(node)
    return outer == like and all(map(_is_alike, likes, nodes))


def _children(tree: Tree) -> tuple[list, jax.tree_util.PyTreeDef]:
    """A tree taken apart by one level."""
    return jax.tree.flatten(tree, is_leaf=lambda node: node is not tree)


def _parts(tree: Tree) -> tuple[dict[str, Tree], Callable[[dict[str, Tree]], Tree]]:
    """A tree taken apart by one level, by names; and what puts such parts together, of dictionaries
    with more or fewer.
    """
    if isinstance(tree, Mapping):
        kind: Callable = type(tree)
        # What is in a `State` are dictionaries, but it hands them out as states.
        inner = tree.raw_mapping if isinstance(tree, nnx.State) else tree
        keys = {str(key): key for key in inner}
        parts = {name: inner[key] for name, key in keys.items()}
        return parts, lambda parts: kind(
            {keys.get(name, name): part for name, part in parts.items()}
        )
    if jax.tree_util.all_leaves([tree]):
        return {}, lambda _: tree
    children, outer = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: node is not tree
    )
    parts = {keys_of(path)[0]: child for path, child in children}
    return parts, lambda parts: jax.tree.unflatten(outer, parts.values())


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
        return [_tables_at(params, parse(input), parse(output), transposed)]
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
    return [keys_of(path) for path, node in found if _is_embedding(node)]


def _laid_out_at(params: Tree, root: Path) -> Tables:
    rows = (*root, "output_rows")
    tables = _tables_at(params, (*root, "input"), (*root, "output"), transposed=False)
    return tables._replace(rows=rows, partly=look(params, rows) is not None)


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
        where = shown(tables.rows)
        (own,) = jax.tree.leaves(look(params, tables.rows))
        if not ids:
            raise ValueError(f"{where} are rows of their own; say which by untied_rows=...")
        if own.shape[-2] != len(ids):
            raise ValueError(f"{where} are {own.shape[-2]} rows; expected as many untied_rows")
    return tables._replace(untied_rows=ids)


def _tables_at(params: Tree, input: Path, output: Path, transposed: bool | None) -> Tables:
    (one,) = jax.tree.leaves(demand(params, input))
    other = look(params, output)
    shape = tuple(one.shape)
    if len(shape) < 2:
        raise ValueError(f"{shown(input)} is an array {shape}; expected a table, (..., V, D)")
    if other is not None:
        (other,) = jax.tree.leaves(other)
        across = (*shape[:-2], shape[-1], shape[-2])
        fits: dict[bool | None, bool] = {False: other.shape == shape, True: other.shape == across}
        if not fits.get(transposed, any(fits.values())):
            expected = {False: f"{shape}", True: f"{across}", None: f"{shape} or {across}"}[
                transposed
            ]
            raise ValueError(
                f"{shown(output)} is {other.shape}, but {shown(input)} is {shape};"
                f" expected {expected}"
            )
        if transposed is None and not all(fits.values()):
            transposed = fits[True]
    return Tables(input, output, shape, transposed, other is not None, input)


def operate(
    surgery: Surgery, found: Sequence[Tables], params: Tree, opt_state: Tree
) -> tuple[Tree, Tree]:
    """A surgery on all of these embeddings, in parameters and in every part of an optimizer's state
    laid out as they are.
    """

    def edit(tree: Tree) -> Tree:
        for tables in found:
            tree = surgery(tables, tree)
        return tree

    return edit(params), edit_alike(edit, params, opt_state)


def untied_tree(tables: Tables, tree: Tree) -> Tree:
    """A tree laid out as tied or partly tied parameters, with two tables."""
    kept = look(tree, tables.kept)
    if tables.partly:
        output = _with_own_rows(tables, kept, look(tree, tables.rows))
        return drop(put(tree, tables.output, output), tables.rows)
    # A copy, not a second reference: a step that is given its state to keep could not take the same
    # array twice.
    copy = (
        _across(kept, tables.shape)
        if tables.transposed
        else jax.tree.map(lambda leaf: leaf.copy(), kept)
    )
    return put(put(tree, tables.input, kept), tables.output, copy)


def is_across(tables: Tables) -> bool:
    """Whether the output table is D×V. ValueError where a shape does not tell."""
    if tables.transposed is None:
        raise ValueError(
            f"{shown(tables.output)} is as wide as long; say transposed=True if it is D×V, or False"
        )
    return tables.transposed


def tied_tree(how: How, tables: Tables, tree: Tree) -> Tree:
    """A tree laid out as untied parameters, with one table; and the output rows of its own."""
    one, other = look(tree, tables.input), look(tree, tables.output)
    tied = _tied_tree(how, tables, tree)
    if not tables.untied_rows:
        return tied
    combined, own = look(tied, tables.input), _own_rows(tables, other)
    if how != "input":  # the rows that are untied have no part in it
        leaves = [_own_rows(tables, leaf) for leaf in jax.tree.leaves(one)]
        rows = jax.tree.unflatten(jax.tree.structure(one), leaves)
        combined = _with_own_rows(tables, combined, rows)
    return put(put(tied, tables.input, combined), tables.rows, own)


def _tied_tree(how: How, tables: Tables, tree: Tree) -> Tree:
    one, other = look(tree, tables.input), look(tree, tables.output)
    if how != "input":
        if is_across(tables):
            other = _across(other, (*tables.shape[:-2], tables.shape[-1], tables.shape[-2]))
        leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
        if len(leaves) != len(others):
            raise ValueError(
                f"the optimizer keeps {len(leaves)} arrays for {shown(tables.input)} and"
                f" {len(others)} for {shown(tables.output)}; expected both tables to be"
                " treated alike"
            )
        combine = {"output": lambda _, b: b, "mean": _mean}[how]
        combined = [_split_as(combine(a, b), a) for a, b in zip(leaves, others, strict=True)]
        one = jax.tree.unflatten(jax.tree.structure(one), combined)
    if tables.kept == tables.input:
        return drop(put(tree, tables.input, one), tables.output)
    emptied = put(tree, tables.output, {})  # it may be kept there, or below
    return drop(put(emptied, tables.kept, one), tables.input)


def _with_own_rows(tables: Tables, whole: Tree, rows: Tree) -> Tree:
    """What belongs to a table, with what belongs to its rows `untied_rows` put in.

    What tells no rows apart, such as statistics of columns, stays the table's.
    """
    leaves, others = jax.tree.leaves(whole), jax.tree.leaves(rows)

    def put(leaf: jax.Array, own: jax.Array) -> jax.Array:
        at = _index_of_rows(tables, leaf)
        if own.shape != (leaf.shape if at is None else jax.eval_shape(lambda x: x[at], leaf).shape):
            raise ValueError(
                f"the optimizer keeps {leaf.shape} for {shown(tables.input)} and {own.shape}"
                f" for {shown(tables.rows)}; expected both to be treated alike"
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
            f"the optimizer keeps {len(leaves)} arrays for {shown(tables.input)} and"
            f" {len(others)} for {shown(tables.rows)}; expected both to be treated alike"
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
            f"the optimizer keeps an array {leaf.shape} for a table {tables.shape}; its rows cannot"
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
            f"the optimizer keeps an array {leaf.shape} for a table {shape}; it cannot be"
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
