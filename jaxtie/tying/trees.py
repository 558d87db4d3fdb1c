"""Find the two tables in any tree and edit every part of an optimizer state laid out like it.

A path is a tuple of the keys, attributes or indices that lead from the root to a table. The entry
at a path may be an array, a box around one (`nn.Partitioned`, `nnx.Variable`), or an optimizer's: a
tree or nothing.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import reduce
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxtie.tying.head import PARTS, Tree

Path = tuple[Hashable, ...]
# "decoder/head/kernel"; a sequence of keys, which may contain slashes; or a key path of JAX
Place = str | Sequence[Hashable]
How = Literal["input", "output", "mean"]
MASKED = optax.MaskedNode()
GONE = object()


class Tables(NamedTuple):
    """The input and the output table of one embedding in a parameter tree.

    Attributes:
      input, output: their paths, whether there is anything or not.
      shape: of the input table, (..., V, D).
      transposed: whether the output table is (..., D, V); None if the shape does not show it.
      untied: whether the tree has both.
      tied_at: path of the only table while they are tied; the output's if NNX modules share it and
        the output comes first.
      rows: path of the untied output rows; empty for tables that no `Embedding` created.
      partly_tied: whether the tree has these rows.
    """

    input: Path
    output: Path
    shape: tuple[int, ...]
    transposed: bool | None
    untied: bool
    tied_at: Path
    rows: Path = ()
    partly_tied: bool = False

    @property
    def input_now(self) -> Path:
        """Path of the input table in the tree as it is."""
        return self.input if self.untied else self.tied_at


Edit = Callable[[Tables, Tree], Tree]


def read_path(place: Place) -> Path:
    """Return the keys that a place names."""
    keys = place.split("/") if isinstance(place, str) else place
    return tuple(keys_of((x,))[0] if type(x).__module__.startswith("jax") else x for x in keys)


def format_path(path: Path) -> str:
    """Return "a/b/c"."""
    return "/".join(map(str, path))


def get(tree: Tree, path: Path) -> Tree:
    """Return the entry at a path: None if there is none, `MASKED` if an optimizer masks it."""
    for key in path:
        if isinstance(tree, optax.MaskedNode):
            return MASKED
        tree = take_apart(tree)[0].get(str(key))
    return tree


def _get_existing(tree: Tree, path: Path) -> Tree:
    """Return the entry at a path of the parameters; ValueError if there is none."""
    for i in range(len(path)):
        if get(tree, path[: i + 1]) is None:
            there = ", ".join(take_apart(get(tree, path[:i]))[0]) or "nothing"
            how = (
                "; a key with a slash can be an item of a sequence of keys" if "/" in there else ""
            )
            raise ValueError(
                f"no {format_path(path[: i + 1])!r} in the parameters; there is {there}{how}"
            )
    return get(tree, path)


def put(tree: Tree, path: Path, value: Tree) -> Tree:
    """Return the tree with a value at a path; create missing dictionaries on the way.

    `GONE` removes what is there. Dictionaries lose the key, and are removed if that empties them;
    elsewhere None takes its place.

    Raises:
      ValueError: if a container that is no dictionary lacks the key, or an optimizer masks it.
    """
    if not path:
        return value
    if isinstance(tree, optax.MaskedNode):
        if value is not GONE and jax.tree.leaves(value):
            raise ValueError(
                f"the optimizer masks {format_path(path)!r}, but not the other table;"
                " pass the new optimizer as tx=..., or treat both alike"
            )
        return tree
    parts, rebuild = take_apart(tree)
    key, is_dict = str(path[0]), isinstance(tree, Mapping)
    part = parts.get(key)
    if part is None and is_dict:
        part = {}
    elif key not in parts or (part is None and len(path) > 1):
        raise ValueError(
            f"{type(tree).__name__} has nothing at {key!r}; there are: {', '.join(parts) or 'none'}"
        )
    new = put(part, path[1:], value)
    if new is GONE and is_dict:
        rest = {name: part for name, part in parts.items() if name != key}
        return rebuild(rest) if rest else GONE
    return rebuild(parts | {key: None if new is GONE else new})


def take_apart(tree: Tree) -> tuple[dict[str, Tree], Callable[[dict[str, Tree]], Tree]]:
    """Return the children of a tree by name, and a function that rebuilds the tree from such.

    A dictionary can be rebuilt from more or fewer children.
    """
    if isinstance(tree, Mapping):
        kind: Callable = type(tree)
        # a `State` contains dictionaries but returns them as states
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


def keys_of(path: tuple[jax.tree_util.KeyEntry, ...]) -> tuple[str, ...]:
    """Return the names of the keys of a JAX path."""
    return tuple(jax.tree_util.keystr((entry,), simple=True) for entry in path)


def find_tables(
    params: Tree,
    input: Place | None = None,
    output: Place | None = None,
    transposed: bool | None = None,
) -> list[Tables]:
    """Find the embedding at these paths or, without paths, all that an `Embedding` created."""
    if input is not None and output is not None:
        return [_tables_at(params, read_path(input), read_path(output), transposed)]
    if input is not None or output is not None:
        raise ValueError(
            "of input and output one path is given; expected both, or none for tables that jaxtie"
            " made"
        )
    if not (roots := embedding_roots(params)):
        raise ValueError(
            "no embedding (a dictionary with a table `input`, as `Embedding` makes it) in the"
            " parameters; name the tables by their paths: input=..., output=... (of a TrainState,"
            " give its params and its opt_state)"
        )
    found = []
    for root in roots:
        rows = (*root, "output_rows")
        tables = _tables_at(params, (*root, "input"), (*root, "output"), transposed=False)
        found.append(tables._replace(rows=rows, partly_tied=get(params, rows) is not None))
    return found


def embedding_roots(params: Tree) -> list[Path]:
    """Return the paths of the dictionaries that an `Embedding` created."""

    def is_embedding(node: Tree) -> bool:
        return (
            isinstance(node, Mapping)
            and "input" in node.keys() <= PARTS
            and not isinstance(node["input"], Mapping)
        )

    found = jax.tree_util.tree_leaves_with_path(params, is_leaf=is_embedding)
    return [keys_of(path) for path, node in found if is_embedding(node)]


def is_filled_in(node: Tree) -> bool:
    """Return whether this is the placeholder of an array that an `eqx.nn.Shared` fills in."""
    return type(node).__name__ == "SharedNode"


def _table(node: Tree, path: Path) -> Tree:
    """Return an array or its box; raise ValueError if the path names a module or dictionary."""
    is_array = is_filled_in(node) or hasattr(node, "shape") or hasattr(node, "value")
    if isinstance(node, Mapping) or not is_array:
        parts = node if isinstance(node, Mapping) else vars(node)
        inside = ", ".join(format_path((*path, str(name))) for name in parts)
        raise ValueError(f"{format_path(path)} is no table; expected the path of one: {inside}")
    return node


def _tables_at(params: Tree, input: Path, output: Path, transposed: bool | None) -> Tables:
    (one,) = jax.tree.leaves(_table(_get_existing(params, input), input))
    if is_filled_in(one):
        raise ValueError(
            f"{format_path(input)} is filled in by an eqx.nn.Shared; name the table that it keeps"
            " as input=..., this one as output=..."
        )
    other = get(params, output)
    other = None if is_filled_in(other) else other
    shape = tuple(one.shape)
    if len(shape) < 2:
        raise ValueError(f"{format_path(input)} is an array {shape}; expected a table, (..., V, D)")
    if other is not None:
        (other,) = jax.tree.leaves(_table(other, output))
        across = _swap_last(shape)
        fits: dict[bool | None, bool] = {False: other.shape == shape, True: other.shape == across}
        if not fits.get(transposed, any(fits.values())):
            expected = {False: f"{shape}", True: f"{across}", None: f"{shape} or {across}"}
            raise ValueError(
                f"{format_path(output)} is {other.shape}, but {format_path(input)} is {shape};"
                f" expected {expected[transposed]}"
            )
        if transposed is None and not all(fits.values()):
            transposed = fits[True]
    return Tables(input, output, shape, transposed, other is not None, input)


def arrays_of(tree: Tree) -> Tree:
    """Return a tree without leaves that are no arrays, such as functions in an Equinox module."""
    return jax.tree.map(lambda leaf: leaf if hasattr(leaf, "shape") else None, tree)


def check_arrays(name: str, params: Tree, *others: Tree) -> None:
    """Raise ValueError if a function of this name gets shapes instead of arrays."""
    trees = nnx.state(params) if isinstance(params, nnx.Module) else params, *others
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(trees)):
        raise ValueError(
            f"jaxtie.{name} got a jax.ShapeDtypeStruct; expected arrays, or for shapes only"
            f" jax.eval_shape(partial(jaxtie.{name}, ...), params, ...)"
        )


def refuse_own_rows(found: Sequence[Tables]) -> None:
    """Raise ValueError if an embedding has untied rows."""
    for tables in found:
        if tables.partly_tied:
            raise ValueError(
                f"{format_path(tables.rows)} are rows of their own; expected an embedding without"
                " untied_rows"
            )


def is_transposed(tables: Tables) -> bool:
    """Return whether the output table is D×V; ValueError if its shape does not show it."""
    if tables.transposed is None:
        raise ValueError(
            f"{format_path(tables.output)} is as wide as long; say transposed=True if it is D×V,"
            " or False"
        )
    return tables.transposed


def edit_tree(edit: Edit, found: Sequence[Tables], tree: Tree) -> Tree:
    """Edit these embeddings in a tree laid out like the parameters."""
    return reduce(lambda tree, tables: edit(tables, tree), found, tree)


def entries_of(params: Tree, node: Tree) -> list[Tree] | None:
    """Return the entry of each parameter in a part of a state; None if it is not laid out alike.

    A leaf or box of the parameters may have become a tree, and `optax.MaskedNode` may replace
    anything; `MASKED` is each entry below it.
    """
    if isinstance(node, optax.MaskedNode):
        return [MASKED for _ in jax.tree.leaves(params, is_leaf=is_variable)]
    if is_variable(params) or jax.tree_util.all_leaves([params]):
        return [node]
    (expected, structure), (nodes, outer) = split_once(params), split_once(node)
    if outer != structure:
        return None
    entries: list[Tree] = []
    for pair in zip(expected, nodes, strict=True):
        if (own := entries_of(*pair)) is None:
            return None
        entries += own
    return entries


def is_variable(node: Tree) -> bool:
    """Return whether a node is a box of NNX."""
    return isinstance(node, nnx.Variable)


def split_once(tree: Tree) -> tuple[list, jax.tree_util.PyTreeDef]:
    """Return the children of a tree, and its own node's structure."""
    return jax.tree.flatten(tree, is_leaf=lambda node: node is not tree)


def untie_tree(tables: Tables, tree: Tree) -> Tree:
    """Give a tree laid out like tied parameters two tables."""
    if tables.transposed is None and tables.output[-1] == "kernel":
        raise ValueError(
            f"{format_path(tables.output)}: say transposed=True if it is D×V, as the kernel of a"
            " Dense, or False"
        )
    table = get(tree, tables.tied_at)
    if tables.transposed:
        output = _transpose(table, tables.shape)
    else:  # A copy: a step that donates its state cannot take the same array twice.
        output = jax.tree.map(lambda leaf: leaf.copy(), table)
    return put(put(tree, tables.input, table), tables.output, output)


def tie_tree(how: How, tables: Tables, tree: Tree) -> Tree:
    """Give a tree laid out like untied parameters one table."""
    table = get(tree, tables.input)
    if how != "input":
        aligned = align(tables, get(tree, tables.output))

        def combine(a: jax.Array, b: jax.Array) -> jax.Array:
            if how == "output":
                return _shard_like(b, a)
            if a.ndim > len(tables.shape) - 2 and a.dtype.itemsize == 1 and a.dtype != bool:
                raise ValueError(
                    f"there are {a.dtype.name} values for {format_path(tables.input)}, which their"
                    " scales belong to; they have no mean; expected how='input' or 'output'"
                )
            # exactly a where a = b; a count or an index has no mean
            is_float = jnp.issubdtype(a.dtype, jnp.floating)
            return _shard_like((a + b) / 2 if is_float else a, a)

        leaves, others = jax.tree.leaves(table), jax.tree.leaves(aligned)
        if len(leaves) != len(others):
            raise ValueError(
                f"the optimizer keeps {len(leaves)} arrays for {format_path(tables.input)} and"
                f" {len(others)} for {format_path(tables.output)}; pass the new optimizer as"
                " tx=..., or treat both alike"
            )
        table = jax.tree.unflatten(jax.tree.structure(table), map(combine, leaves, others))
    if tables.tied_at == tables.input:
        return put(put(tree, tables.input, table), tables.output, GONE)
    emptied = put(tree, tables.output, {})  # the table is at the output or below it
    return put(put(emptied, tables.tied_at, table), tables.input, GONE)


def check_dtypes(tables: Tables, tree: Tree) -> None:
    """Raise ValueError if two tables have different dtypes, so that one would change."""
    one, other = (jax.tree.leaves(get(tree, path))[0].dtype for path in tables[:2])
    if one != other:
        raise ValueError(
            f"{format_path(tables.input)} is {one} and {format_path(tables.output)} {other};"
            " expected one dtype: cast a table, or tie with how='input'"
        )


def align(tables: Tables, entry: Tree, *, reverse: bool = False) -> Tree:
    """Return the entry of the output table laid out like the input's, or the `reverse`."""
    if not is_transposed(tables):
        return entry
    return _transpose(entry, tables.shape if reverse else _swap_last(tables.shape))


def _transpose(entry: Tree, shape: tuple[int, ...]) -> Tree:
    """Transpose the entry of a table of this shape: its arrays and the names of its mesh axes."""

    def is_list(node: Tree) -> bool:
        return type(node) in (list, tuple)

    def transpose(leaf: Any) -> Any:
        if is_list(leaf):  # SM3's: an array for each axis
            ends = tuple(part.shape[-1:] for part in leaf[-2:])
            if ends != (shape[-2:-1], shape[-1:]) or leaf[-1].ndim >= len(shape):
                return type(leaf)(map(transpose, leaf))
            return type(leaf)([*leaf[:-2], leaf[-1].copy(), leaf[-2].copy()])
        if leaf.shape == shape:
            swapped = leaf.swapaxes(-1, -2)
            return swapped if isinstance(swapped, jax.Array) else swapped.copy()  # NumPy: a view
        # Statistics of rows and of columns differ in length, unless the table is square.
        if _is_statistic(leaf, shape) and not (
            leaf.ndim and shape[-1] == shape[-2] == leaf.shape[-1]
        ):
            return leaf.copy()
        raise ValueError(
            f"the optimizer keeps an array {leaf.shape} for a table {shape}; it cannot be"
            " transposed with it"
        )

    return _swap_axes(jax.tree.map(transpose, entry, is_leaf=is_list))


def _is_statistic(leaf: jax.Array, shape: tuple[int, ...]) -> bool:
    """Return whether an array has one value per table, or per row or column of it."""
    front = len(shape) - 2
    return leaf.ndim <= front or (leaf.ndim == front + 1 and leaf.shape[-1] in (*shape[-2:], 1))


def _swap_last(axes: tuple) -> tuple:
    return (*axes[:-2], *axes[:-3:-1]) if len(axes) > 1 else axes


def _swap_axes(entry: Tree) -> Tree:
    """Swap the names of the last two mesh axes in a box around a table."""
    if isinstance(entry, nn.Partitioned):
        return entry.replace(names=_swap_last(entry.names))
    if isinstance(entry, nnx.Variable):
        axes = entry.get_metadata().get("out_sharding")
        return entry.replace(out_sharding=_swap_last(axes)) if isinstance(axes, tuple) else entry
    return entry


def _shard_like(value: jax.Array, like: jax.Array) -> jax.Array:
    """Put a value on the devices of another array; inside a program its compiler does that."""
    if any(not isinstance(x, jax.Array) or isinstance(x, jax.core.Tracer) for x in (value, like)):
        return value
    return value if value.sharding == like.sharding else jax.device_put(value, like.sharding)
