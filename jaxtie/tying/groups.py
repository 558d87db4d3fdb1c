"""Carry an optimizer's state over to an optimizer with other groups (`multi_transform`, masks).

A part of a state is laid out like the parameters (moments), or it is not (counts). Moments are told
apart by the field of the Optax state that holds them, such as `ScaleByAdamState.mu`. Those of all
groups make one tree, which is edited as a whole and then divided into the new groups.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxtie.tying import trees
from jaxtie.tying.head import Tree
from jaxtie.tying.trees import (
    MASKED,
    Edit,
    Path,
    Tables,
    format_path,
    get,
    is_variable,
    keys_of,
    put,
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
      group: path of the `optax.MaskedState` that has it, if any.
    """

    path: Path
    owner: Path
    kind: str
    node: Tree
    entries: list[Tree] | None
    group: Path | None


def list_parts(params: Tree, state: Tree) -> tuple[list[Part], jax.tree_util.PyTreeDef]:
    """Return the parts of a state, and the structure that rebuilds it from their nodes."""

    def is_laid_out(node: Tree) -> bool:
        return trees.entries_of(params, node) is not None

    def describe(path: Path, node: Tree) -> Part:
        owner: Path = ()
        group: Path | None = None
        kind, parent = "", state
        for i, key in enumerate(path):
            if isinstance(parent, optax.MaskedState):
                group = path[:i]
            if hasattr(parent, "_fields"):
                owner, kind = path[:i], f"{type(parent).__name__}.{key}"
            elif isinstance(parent, Mapping):  # hyperparameters by name; labels of groups
                kind = f"{kind}/{key}"
            parent = take_apart(parent)[0].get(str(key))
        return Part(path, owner, kind, node, trees.entries_of(params, node), group)

    nodes, structure = jax.tree_util.tree_flatten_with_path(state, is_leaf=is_laid_out)
    return [describe(keys_of(path), node) for path, node in nodes], structure


def check_state(params: Tree, state: Tree) -> None:
    """Raise ValueError if a state keeps arrays for other parameters than these.

    Such an array is in a tree that is not laid out like the parameters, or is as large as the
    largest of them, as those of `optax.flatten` are. Counts and random keys are neither.
    """
    largest = max((getattr(leaf, "size", 0) for leaf in jax.tree.leaves(params)), default=0)
    for part in list_parts(params, state)[0]:
        shape = getattr(part.node, "shape", ())
        below = part.path[len(part.owner) + 1 :]  # a field; an NNX variable adds "value"
        in_tree = "." in part.kind and below not in ((), ("value",))
        in_tree = in_tree and "hyperparams" not in part.kind
        if part.entries is None and shape and (in_tree or math.prod(shape) >= largest):
            raise ValueError(
                f"the optimizer's state has an array {shape} at {format_path(part.path)}, which is"
                " not laid out like the parameters; expected the state of an optimizer of exactly"
                " this tree of parameters, not flattened"
            )


def is_empty(entry: Tree) -> bool:
    """Return whether an optimizer keeps nothing for a parameter."""
    return not jax.tree.leaves(entry)


def find_unused_group(params: Tree, state: Tree) -> str | None:
    """Return the label of a group, or the key of a mask, that keeps moments of no parameter."""
    groups: dict[Path, list[Tree]] = {}
    for part in list_parts(params, state)[0]:
        if part.entries is not None and part.group is not None:
            groups.setdefault(part.group, []).extend(part.entries)
    unused = (group for group, entries in groups.items() if all(map(is_empty, entries)))
    return next((format_path(group[-1:]) or "masked" for group in unused), None)


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


def edit_state(
    edit: Edit,
    found: Sequence[Tables],
    params: Tree,
    opt_state: Tree,
    init: Callable[[Tree], Tree] | None,
) -> tuple[Tree, Tree]:
    """Edit these embeddings, and divide the state into the groups of a new optimizer.

    Args:
      edit: changes one embedding in a tree laid out like the parameters.
      found: embeddings to edit.
      params: parameters.
      opt_state: the state so far.
      init: the new optimizer's; its state gets the values of `opt_state`. What the old state lacks
        stays as `init` makes it, with its count of steps. None: the optimizer stays.

    Raises:
      ValueError: if the state is of other parameters; if the new optimizer has no place for a part
        of it; if moments have other shapes than the new optimizer's; if a group counts the steps
        of parameters that have moments and of others that have none.
    """
    check_state(params, opt_state)
    old, structure = list_parts(params, opt_state)
    edit_tree = partial(trees.edit_tree, edit, found)
    edited = edit_tree(params)
    if init is None:
        nodes = [part.node if part.entries is None else edit_tree(part.node) for part in old]
        return edited, jax.tree.unflatten(structure, nodes)

    def edit_layer(entries: list[Tree]) -> list[Tree]:
        layer = jax.tree.unflatten(jax.tree.structure(params, is_leaf=is_variable), entries)
        for tables in found:
            layer = edit(tables, _complete(tables, layer))
        return trees.entries_of(edited, layer) or []

    new, structure = list_parts(edited, init(trees.arrays_of(edited)))
    joined, _ = _layers([part for part in old if part.entries is not None])
    kept = {kind: [edit_layer(layer) for layer in layers] for kind, layers in joined.items()}
    own = [part for part in new if part.entries is not None]
    counts = [part for part in old if part.entries is None]
    moments, missing, lost = _divide(edited, own, kept)
    lost |= {part.kind for part in counts} - {part.kind for part in new if part.entries is None}
    if lost:
        raise ValueError(
            f"the optimizer's state has {min(lost)}, for which the optimizer tx has no place; pass"
            " the one that made the state, also divided into groups"
        )
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
        return put(layer, tables.input, trees.align(tables, other))
    return put(layer, tables.output, trees.align(tables, one, reverse=True))


def _divide(
    edited: Tree, parts: list[Part], kept: dict[str, list[list[Tree]]]
) -> tuple[dict[Path, Tree], dict[Path, tuple[bool, str]], set[str]]:
    """Put the moments that were kept into the parts of a new state.

    Returns:
      The parts, the states that lack some (whether others are there, and a name), and the kinds
      that have no place. Moments of a parameter for which the new optimizer keeps none at all, as
      it is frozen, may go.
    """
    nodes = jax.tree_util.tree_leaves_with_path(edited, is_leaf=is_variable)
    paths = [keys_of(path) for path, _ in nodes]
    moments: dict[Path, Tree] = {}
    there: set[Path] = set()
    lacking: dict[Path, str] = {}
    trained: set[int] = set()
    for part, place in zip(parts, _layers(parts)[1], strict=True):
        layers = kept.get(part.kind, [])
        sources = layers[place] if place < len(layers) else [MASKED] * len(paths)
        node = part.node
        for i, entry in enumerate(part.entries or []):
            if is_empty(entry):
                continue
            trained.add(i)
            name = f"{part.kind} of {format_path(paths[i])}"
            if is_empty(sources[i]):
                lacking[part.owner] = name
            else:
                there.add(part.owner)
                node = put(node, paths[i], _fit(name, entry, sources[i]))
                sources[i] = MASKED
        moments[part.path] = node
    kinds = {part.kind for part in parts}
    lost = {
        kind
        for kind, layers in kept.items()
        for layer in layers
        for i, entry in enumerate(layer)
        if not is_empty(entry) and (kind not in kinds or i in trained)
    }
    return moments, {owner: (owner in there, name) for owner, name in lacking.items()}, lost


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
    if jnp.issubdtype(alike[0].node.dtype, jnp.signedinteger):  # of groups that began later: fewer
        return reduce(jnp.maximum, (each.node for each in alike[1:]), alike[0].node.copy())
    return alike[0].node.copy()
