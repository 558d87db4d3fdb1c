"""Support `eqx.nn.Shared`, Equinox's own way to tie, without importing Equinox."""

import copy
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

from jaxtie.tying.head import Tree
from jaxtie.tying.trees import Path, Tables, format_path, get, is_filled_in, put


@dataclasses.dataclass(frozen=True)
class Without:
    """The function `where` or `get` of an `eqx.nn.Shared` without the node that is untied.

    Attributes:
      nodes: the function as it was.
      index: of the untied node among its nodes.
      placeholder: what the `eqx.nn.Shared` had in its place.
    """

    nodes: Callable[[Tree], Any]
    index: int
    placeholder: Any

    def __call__(self, tree: Tree) -> list[Any]:
        """Return the other nodes."""
        nodes = _as_list(self.nodes(tree))
        return nodes[: self.index] + nodes[self.index + 1 :]


def _as_list(nodes: Any) -> list[Any]:
    return list(nodes) if isinstance(nodes, (list, tuple)) else [nodes]


def unshare(params: Tree, found: Sequence[Tables], before: Tree) -> Tree:
    """Keep every `eqx.nn.Shared` from filling in an output table that is untied now."""
    for tables in found:
        node, path = get(before, tables.output), _find_shared(before, tables.output)
        if path is None or not is_filled_in(node):
            continue
        shared = get(before, path)
        nodes = _as_list(shared.where(shared.pytree))
        index = next(i for i, each in enumerate(nodes) if each is node)
        for name in ("where", "get"):
            own = Without(getattr(shared, name), index, node)
            params = put(params, (*path, name), own)
    return params


def share(params: Tree, found: Sequence[Tables]) -> Tree:
    """Undo `unshare` for output tables that are gone."""
    for tables in found:
        path = _find_shared(params, tables.output)
        own = None if path is None else get(params, path).where
        if path is None or not isinstance(own, Without):
            continue
        params = put(params, tables.output, own.placeholder)
        for name in ("where", "get"):
            params = put(params, (*path, name), getattr(get(params, path), name).nodes)
    return params


def check_owner(params: Tree, tables: Tables) -> None:
    """Raise ValueError if a layer of Equinox would lose its table."""
    owner, path = get(params, tables.output[:-1]), _find_shared(params, tables.output)
    can_be_shared = path is not None and isinstance(get(params, path).where, Without)
    if type(owner).__module__.startswith("equinox.nn") and not can_be_shared:
        raise ValueError(
            f"{format_path(tables.output)} is of an eqx.nn.{type(owner).__name__}, which needs it;"
            " tie by eqx.nn.Shared, or make the output table an attribute that may be None"
        )


def set_module_sizes(params: Tree, found: Sequence[Tables], source: Callable) -> Tree:
    """Put the number of rows into layers of Equinox that own a table, or get one filled in."""
    for tables in found:
        for path in (tables.input_now[:-1], tables.output[:-1]):
            owner = get(params, path)
            if type(owner).__module__.startswith("equinox.nn"):
                new = copy.copy(owner)
                for name in {"num_embeddings", "out_features"} & vars(owner).keys():  # it is frozen
                    object.__setattr__(new, name, len(source(tables.shape[-2])))
                params = put(params, path, new)
    return params


def _find_shared(params: Tree, output: Path) -> Path | None:
    """Return the path of the innermost `eqx.nn.Shared` that has a table."""
    equinox = sys.modules.get("equinox")
    if equinox is None:
        return None
    paths = [output[:i] for i in reversed(range(len(output)))]
    return next((path for path in paths if isinstance(get(params, path), equinox.nn.Shared)), None)
