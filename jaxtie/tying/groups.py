"""Carry an optimizer's state over to an optimizer with other groups (`multi_transform`, masks).

A part of a state is laid out like the parameters (moments), or it is not (counts). Moments are told
apart by the field of the Optax state that holds them, such as `ScaleByAdamState.mu`. Those of all
groups make one tree, which is edited as a whole and then divided into the new groups.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import optax
from flax import nnx

from jaxtie.tying.head import Tree
from jaxtie.tying.trees import (
    MASKED,
    Edit,
    Path,
    Tables,
    align,
    format_path,
    get,
    keys_of,
    matches,
    put,
    split_once,
    take_apart,
)


class Part(NamedTuple):
    """A part of an optimizer's state.

    Attributes:
      path: where it is.
      owner: path of the Optax state that has it.
      kind: name and field of that state, "ScaleByAdamState.mu".
      node: an array, or a tree laid out like the parameters.
      entries: of each parameter, if it is laid out like them.
    """

    path: Path
    owner: Path
    kind: str
    node: Tree
    entries: list[Tree] | None


def list_parts(params: Tree, state: Tree) -> tuple[list[Part], jax.tree_util.PyTreeDef]:
    """Return the parts of a state, and the structure that rebuilds it from their nodes."""

    def is_laid_out(node: Tree) -> bool:
        return matches(params, node)

    nodes, structure = jax.tree_util.tree_flatten_with_path(state, is_leaf=is_laid_out)
    return [_describe(params, state, keys_of(path), node) for path, node in nodes], structure


def _describe(params: Tree, state: Tree, path: Path, node: Tree) -> Part:
    owner: Path = ()
    kind, parent = "", state
    for i, key in enumerate(path):
        if hasattr(parent, "_fields"):
            owner, kind = path[:i], f"{type(parent).__name__}.{key}"
        elif isinstance(parent, Mapping):  # hyperparameters by name; labels of groups
            kind = f"{kind}/{key}"
        parent = take_apart(parent)[0].get(str(key))
    entries = entries_of(params, node) if matches(params, node) else None
    return Part(path, owner, kind, node, entries)


def entries_of(params: Tree, node: Tree) -> list[Tree]:
    """Return the entry of each parameter in a tree laid out like them; `MASKED` below a mask."""
    if isinstance(node, optax.MaskedNode):
        return [MASKED for _ in jax.tree.leaves(params, is_leaf=_is_variable)]
    if _is_variable(params) or jax.tree_util.all_leaves([params]):
        return [node]
    pairs = zip(split_once(params)[0], split_once(node)[0], strict=True)
    return [entry for pair in pairs for entry in entries_of(*pair)]


def _fill(params: Tree, node: Tree, entries: Iterator[Tree]) -> Tree:
    """Return a tree laid out like the parameters with other entries."""
    if isinstance(node, optax.MaskedNode):
        for _ in entries_of(params, node):
            next(entries)
        return node
    if _is_variable(params) or jax.tree_util.all_leaves([params]):
        return next(entries)
    children, structure = split_once(node)
    pairs = zip(split_once(params)[0], children, strict=True)
    return jax.tree.unflatten(structure, [_fill(*pair, entries) for pair in pairs])


def _is_variable(node: Tree) -> bool:
    return isinstance(node, nnx.Variable)


def is_empty(entry: Tree) -> bool:
    """Return whether an optimizer keeps nothing for a parameter."""
    return not jax.tree.leaves(entry)


def has_groups(state: Tree) -> bool:
    """Return whether an optimizer has groups or masks."""

    def is_group(node: Tree) -> bool:
        return isinstance(node, (optax.MaskedState, optax.PartitionState))

    return any(map(is_group, jax.tree.leaves(state, is_leaf=is_group)))


def find_unused_group(params: Tree, state: Tree) -> str | None:
    """Return the label of a group of `multi_transform` that keeps moments, but of no parameter."""
    of_groups: dict[str, list[bool]] = {}
    for part in list_parts(params, state)[0]:
        if part.entries is not None and "inner_states" in part.path:
            label = str(part.path[part.path.index("inner_states") + 1])
            of_groups.setdefault(label, []).append(all(map(is_empty, part.entries)))
    return next((label for label, unused in of_groups.items() if all(unused)), None)


def _layers(parts: list[Part]) -> tuple[dict[str, list[list[Tree]]], list[int]]:
    """Join the parts of a kind whose groups are disjoint; return them, and where each part went."""
    layers: dict[str, list[list[Tree]]] = {}
    places = []
    for part in parts:
        of_kind, entries = layers.setdefault(part.kind, []), part.entries or []
        for place, layer in enumerate(of_kind):
            if all(is_empty(a) or is_empty(b) for a, b in zip(layer, entries, strict=True)):
                of_kind[place] = [
                    b if is_empty(a) else a for a, b in zip(layer, entries, strict=True)
                ]
                break
        else:
            place = len(of_kind)
            of_kind.append(entries)
        places.append(place)
    return layers, places


def edit_groups(
    edit: Edit, found: Sequence[Tables], params: Tree, opt_state: Tree, init: Callable[[Tree], Tree]
) -> tuple[Tree, Tree]:
    """Edit these embeddings, and divide the state into the groups of a new optimizer.

    Args:
      edit: see `edit_trees`.
      found: embeddings to edit.
      params: parameters.
      opt_state: the state so far.
      init: the new optimizer's; its state gets the values of `opt_state`. What the old state lacks
        stays as `init` makes it, with its count of steps.

    Raises:
      ValueError: if moments have other shapes than the new optimizer's; if a group counts the steps
        of parameters that have moments and of others that have none.
    """
    edited = params
    for tables in found:
        edited = edit(tables, edited)

    def edit_layer(entries: list[Tree]) -> list[Tree]:
        layer = jax.tree.unflatten(jax.tree.structure(params, is_leaf=_is_variable), entries)
        for tables in found:
            layer = edit(tables, _complete(tables, layer))
        return entries_of(edited, layer)

    arrays = jax.tree.map(lambda leaf: leaf if hasattr(leaf, "shape") else None, edited)
    old, (new, structure) = list_parts(params, opt_state)[0], list_parts(edited, init(arrays))
    joined, _ = _layers([part for part in old if part.entries is not None])
    kept = {kind: [edit_layer(layer) for layer in layers] for kind, layers in joined.items()}
    moments, missing = _divide(edited, [part for part in new if part.entries is not None], kept)
    counts = [part for part in old if part.entries is None]
    nodes = [
        moments[part.path] if part.path in moments else _count(part, counts, missing)
        for part in new
    ]
    return edited, jax.tree.unflatten(structure, nodes)


def _complete(tables: Tables, layer: Tree) -> Tree:
    """Give both tables of a tree that keeps one table's moments the same."""
    one, other = get(layer, tables.input), get(layer, tables.output)
    if not tables.untied or is_empty(one) == is_empty(other):
        return layer
    if is_empty(one):
        return put(layer, tables.input, align(tables, other))
    return put(layer, tables.output, align(tables, one, reverse=True))


def _divide(
    edited: Tree, parts: list[Part], kept: dict[str, list[list[Tree]]]
) -> tuple[dict[Path, Tree], dict[Path, tuple[bool, str]]]:
    """Return the new moments, and which states lack some: whether others are there, and a name."""
    nodes = jax.tree_util.tree_leaves_with_path(edited, is_leaf=_is_variable)
    names = [format_path(keys_of(path)) for path, _ in nodes]
    moments: dict[Path, Tree] = {}
    there: set[Path] = set()
    lacking: dict[Path, str] = {}
    for part, place in zip(parts, _layers(parts)[1], strict=True):
        layers = kept.get(part.kind, [])
        sources = layers[place] if place < len(layers) else [MASKED] * len(names)
        filled = []
        for name, entry, source in zip(names, part.entries or [], sources, strict=True):
            if not is_empty(entry) and is_empty(source):
                lacking[part.owner] = f"{part.kind} of {name}"
            elif not is_empty(entry):
                there.add(part.owner)
                entry = _fit(f"{part.kind} of {name}", entry, source)
            filled.append(entry)
        moments[part.path] = _fill(edited, part.node, iter(filled))
    return moments, {owner: (owner in there, name) for owner, name in lacking.items()}


def _fit(name: str, entry: Tree, source: Tree) -> Tree:
    """Return the old moments in the dtypes of the new ones."""
    new, old = jax.tree.leaves(entry), jax.tree.leaves(source)
    if [leaf.shape for leaf in new] != [leaf.shape for leaf in old]:
        raise ValueError(
            f"the optimizer keeps {name} as {', '.join(str(leaf.shape) for leaf in old)}; the new"
            f" one expects {', '.join(str(leaf.shape) for leaf in new)}"
        )
    cast = [a.astype(b.dtype) for a, b in zip(old, new, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(source), cast)


def _count(part: Part, old: list[Part], missing: dict[Path, tuple[bool, str]]) -> Tree:
    """Return the count of a new state: the old one, unless its moments start anew."""
    others, name = missing.get(part.owner, (False, ""))
    if others:
        raise ValueError(
            f"the optimizer so far has no {name}, and the new one counts its steps with those of"
            " others; give it a group of its own"
        )
    alike = [] if name else [each for each in old if each.kind == part.kind]
    same = [each for each in alike if each.path == part.path]
    if same or not alike or "/" in part.kind:  # a group has hyperparameters of its own
        return same[0].node if same else part.node
    return alike[0].node.copy()
