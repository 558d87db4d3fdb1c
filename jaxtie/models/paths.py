"""Trees by paths, and the parts of an optimiser's state that are laid out as the parameters.

A path is a tuple of the keys, attributes or indices that lead from the root to a table. A table may
be an array, a box around one (`nn.Partitioned`, `nnx.Variable`), or what an optimiser keeps in its
place: a tree of its own, or nothing.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence

import jax
import optax
from flax import nnx

from jaxtie.models.layers import Tree

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
    """What stands at a path; None if nothing does, `MASKED` if it is in a part that an optimiser
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
        an optimiser masks it.
    """
    if not path:
        return value
    if isinstance(tree, optax.MaskedNode):
        if jax.tree.leaves(value):
            raise ValueError(
                f"the optimiser masks {shown(path)!r}, but not the other table; expected both alike"
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
    """An optimiser's state with `edit` done to every part of it that is laid out as `params`.

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
