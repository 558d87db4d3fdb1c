"""Tying and untying modules of Flax NNX and their optimizers, in place."""

from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxtie.tying import trees
from jaxtie.tying.head import Tree
from jaxtie.tying.trees import (
    How,
    Path,
    Place,
    Surgery,
    Tables,
    embedding_roots,
    find_tables,
    is_across,
    operate,
    tied_tree,
    untied_tree,
    with_untied_rows,
)

Model = TypeVar("Model", bound=nnx.Module)


class UntiedEmbed(nnx.Embed):
    """What `untie` puts in the place of an `nnx.Embed`: `attend` has a table of its own, `output`,
    VxD.

    All else is as it was, so a model that ties by asking one `nnx.Embed` for rows and for logits is
    untied as it is written.
    """

    def __init__(self, embed: nnx.Embed, output: nnx.Param):
        for name, value in vars(embed).items():
            if not name.startswith("_"):
                setattr(self, name, value)
        self.output = output

    def attend(self, query: jax.Array, *arguments: Any, **options: Any) -> jax.Array:
        """As `nnx.Embed.attend`, of `output`."""
        with_output: Any = SimpleNamespace(**vars(self) | {"embedding": self.output})
        return nnx.Embed.attend(with_output, query, *arguments, **options)


class Transposed(nnx.Pytree):
    """A table V×D seen as D×V: what `tie` puts in the place of a D×V table, such as the kernel of
    an `nnx.Linear`.

    It is read as an `nnx.Param` is (`kernel[...]`, `kernel.get_value()`, in a product), so the
    module that has it stays as it is; the variable is `table`, shared with the module whose table
    it is. A model that is tied from the start:

        self.head.kernel = jaxtie.nnx.Transposed(self.embed.embedding)

    Args:
      table: the variable, (..., V, D).
    """

    def __init__(self, table: nnx.Variable):
        self.table = table

    def get_value(self) -> jax.Array:
        """(..., D, V)."""
        return jnp.swapaxes(self.table.get_value(), -1, -2)

    value = property(get_value)

    def __getitem__(self, place: Any) -> jax.Array:
        return self.get_value()[place]

    def __jax_array__(self) -> jax.Array:
        return self.get_value()

    def __getattr__(self, name: str) -> Any:
        """What arrays have: shape, dtype, methods."""
        if name.startswith("_") or name == "table":
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return getattr(self.get_value(), name)


def find_in_module(
    model: nnx.Module,
    input: Place | None = None,
    output: Place | None = None,
    transposed: bool | None = None,
) -> list[Tables]:
    """The embeddings of a model: by paths, else its `jaxtie.nnx.Embedding`s, else its `nnx.Embed`.

    Raises:
      ValueError: if there is none, or several `nnx.Embed` of which none is named.
    """
    state = nnx.state(model)
    if output is not None:
        return [_find_by_paths(model, state, input, output, transposed)]
    if input is None and embedding_roots(state):
        return find_tables(state)
    embeds = {
        (*path, "embedding"): (*path, "output")
        for path, node in nnx.iter_graph(model)
        if type(node) in (nnx.Embed, UntiedEmbed)
    }
    named = None if input is None else trees.shown(trees.parse(input))
    asked = {one: other for one, other in embeds.items() if named in (None, trees.shown(one))}
    if len(asked) != 1:
        there = ", ".join(map(repr, map(trees.shown, embeds))) or "none"
        raise ValueError(
            "no embedding of jaxtie, nor one nnx.Embed to take; name one by input=...; there are:"
            f" {there}"
        )
    ((one, other),) = asked.items()
    for path, node in nnx.iter_graph(model):
        if isinstance(node, Transposed) and node.table is _at(model, one):
            raise ValueError(
                f"{trees.shown(path)} is {trees.shown(one)}, transposed; name both by input=...,"
                " output=..."
            )
    if len(one) == 1:
        raise ValueError(
            f"the model is an {type(model).__name__} itself; expected a model that has one"
        )
    return find_tables(state, one, other, transposed=False)


def _find_by_paths(
    model: nnx.Module, state: nnx.State, input: Place | None, output: Place, transposed: bool | None
) -> Tables:
    if input is None:
        raise ValueError("of input and output one path is given; expected both")
    one, other = trees.parse(input), trees.parse(output)
    if _at(model, other[:-1]) is None:
        raise ValueError(f"no {trees.shown(other[:-1])!r} in the model to put an output table into")
    table, seen = _at(model, one), _at(model, other)
    across = isinstance(seen, Transposed)
    own = seen.table if across else seen
    visited = [path for path, node in nnx.iter_graph(model) if node is table or node is own]
    if table is None or table is not own:
        if across and table is not None:
            raise ValueError(
                f"{trees.shown(other)} is another table than {trees.shown(one)}, transposed"
            )
        (tables,) = find_tables(state, one, other, transposed)
        first = visited and trees.shown(visited[0]) == trees.shown(other)
        return (
            tables._replace(kept=_kept_at(visited[0], tables.transposed))
            if tables.untied and first
            else tables
        )
    if _at(model, one[:-1]) is _at(model, other[:-1]):
        raise ValueError(
            f"{trees.shown(one)} and {trees.shown(other)} are of one module; leave the output's"
            " path out"
        )
    there = {trees.shown(path): path for path in (one, _kept_at(other, across))}
    kept = next((path for path in visited if trees.shown(path) in there), one)
    (tables,) = find_tables(state, kept, (*kept, "output"), transposed=False)
    return tables._replace(input=one, output=other, kept=kept, transposed=across)


def _kept_at(output: Path, transposed: bool | None) -> Path:
    """Where the state of a model has the one table, if the output's place comes first."""
    return (*output, "table") if transposed else output


def untie_module(
    model: Model, optimizer: Any, input: Place | None, output: Place | None, transposed: bool
) -> tuple[Model, Any]:
    """See `jaxtie.tying.tie.untie`."""
    found = _find_with_rows(model, input, output, transposed)
    found = [tables for tables in found if not tables.untied]
    untied, optimizer = _operate_on_module(untied_tree, found, model, optimizer)
    for tables in found:
        if tables.partly:
            _set(_at(model, tables.rows[:-1]), tables.rows[-1], None)
        parent, own = _at(model, tables.input[:-1]), trees.look(untied, tables.output)
        if type(parent) is nnx.Embed and output is None:
            _replace(model, parent, UntiedEmbed(parent, own))
        else:
            _set(_at(model, tables.output[:-1]), tables.output[-1], own)
    return model, optimizer


def tie_module(
    model: Model,
    optimizer: Any,
    how: How,
    input: Place | None,
    output: Place | None,
    transposed: bool | None,
) -> tuple[Model, Any]:
    """See `jaxtie.tying.tie.tie`."""
    found = _find_with_rows(model, input, output, transposed)
    found = [tables for tables in found if tables.untied]
    across = {tables: is_across(tables) for tables in found}  # told before anything changes

    def surgery(tables: Tables, tree: Tree) -> Tree:
        return tied_tree(how, tables, tree)

    tied, optimizer = _operate_on_module(surgery, found, model, optimizer)
    for tables in found:
        parent, shared = _at(model, tables.input[:-1]), _at(model, tables.input)
        shared.set_value(trees.look(tied, tables.kept).get_value())
        if isinstance(parent, UntiedEmbed):
            _replace(model, parent, _embed_of(parent))
        else:
            left = None if output is None else Transposed(shared) if across[tables] else shared
            _set(_at(model, tables.output[:-1]), tables.output[-1], left)
        if tables.untied_rows:
            _set(_at(model, tables.rows[:-1]), tables.rows[-1], trees.look(tied, tables.rows))
    return model, optimizer


def _find_with_rows(
    model: nnx.Module, input: Place | None, output: Place | None, transposed: bool | None
) -> list[Tables]:
    """As `find_in_module`, with the rows that a `jaxtie.nnx.Embedding` knows to be untied."""
    state = nnx.state(model)

    def known(tables: Tables) -> Tables:
        end = getattr(_at(model, tables.rows[:-1]), "end", None) if tables.rows else None
        return tables if end is None else with_untied_rows(tables, state, end.untied_rows)

    return [known(tables) for tables in find_in_module(model, input, output, transposed)]


def trees_of(model: nnx.Module, optimizer: Any) -> tuple[nnx.State, Tree]:
    """What an optimizer trains, and its state."""
    if isinstance(optimizer, nnx.Optimizer):
        return nnx.state(model, optimizer.wrt), optimizer.opt_state
    return nnx.state(model, nnx.Param), optimizer


def _operate_on_module(
    surgery: Surgery, found: list[Tables], model: nnx.Module, optimizer: Any
) -> tuple[nnx.State, Any]:
    """The state of the changed model, which itself is not changed yet; the optimizer is, or the new
    state of Optax's.
    """
    changed, _ = operate(surgery, found, nnx.state(model), ())
    trained, opt_state = trees_of(model, optimizer)
    found = [tables for tables in found if trees.look(trained, tables.now) is not None]
    _, opt_state = operate(surgery, found, trained, opt_state)
    if isinstance(optimizer, nnx.Optimizer):
        optimizer.opt_state = nnx.data(opt_state)
        return changed, optimizer
    return changed, opt_state


def _at(node: Any, path: Path) -> Any:
    """What stands at a path of a model; None if nothing does."""
    for key in path:
        node = (
            getattr(node, str(key), None)
            if isinstance(node, nnx.Pytree)
            else trees.look(node, (key,))
        )
    return node


def _set(node: Any, key: Hashable, value: nnx.Variable | Transposed | None) -> None:
    """Put a table into a module or a dictionary, or take it out."""
    if not isinstance(node, nnx.Pytree):
        node.pop(key) if value is None else node.__setitem__(key, value)
    elif value is None:
        delattr(node, str(key))
    else:
        setattr(node, str(key), value)


def _replace(model: nnx.Module, old: nnx.Module, new: nnx.Module) -> None:
    """Put a module wherever another one stands in a model."""
    for _, node in list(nnx.iter_graph(model)):
        if isinstance(node, nnx.Pytree):
            for name in [name for name, value in vars(node).items() if value is old]:
                setattr(node, name, new)


def _embed_of(untied: UntiedEmbed) -> nnx.Embed:
    """The `nnx.Embed` that was there before."""
    names = ("num_embeddings", "features", "dtype", "param_dtype", "promote_dtype")
    own = {name: getattr(untied, name) for name in names}
    embed = nnx.Embed(
        **own, embedding_init=lambda *_: untied.embedding.get_value(), rngs=nnx.Rngs(0)
    )
    embed.embedding = untied.embedding
    return embed
