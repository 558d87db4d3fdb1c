"""`Embedding`, `Transposed` and in-place tie and untie for Flax NNX."""

import dataclasses
from collections.abc import Hashable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.nnx.training.optimizer import to_opt_state

from jaxtie.tying import head, trees
from jaxtie.tying.cross_entropy import embedding_cross_entropy
from jaxtie.tying.groups import edit_state, list_parts
from jaxtie.tying.head import PARTS, EmbeddingSpec, Tree
from jaxtie.tying.trees import Edit, How, Path, Place, Tables, format_path, get

Model = TypeVar("Model", bound=nnx.Module)


class Embedding(nnx.Module):
    """`EmbeddingSpec` as a module of Flax NNX."""

    def __init__(
        self, vocabulary: int, width: int, tied: bool = False, *, rngs: nnx.Rngs, **options: Any
    ):
        """Draw the parameters from `rngs`; see `EmbeddingSpec` for the options."""
        self.spec = EmbeddingSpec(vocabulary, width, tied, **options)
        axes = head.partition_axes(self.spec)
        for name, value in head.initial_params(self.spec, rngs.params()).items():
            split = {"out_sharding": axes[name]} if name in axes else {}
            variables = jax.tree.map(lambda array, split=split: nnx.Param(array, **split), value)
            setattr(self, name, nnx.Dict(variables) if isinstance(value, dict) else variables)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the input embeddings of token ids of any shape; (..., D)."""
        return head.embed_tokens(self.spec, self._parameters(), tokens)

    def table(self) -> jax.Array:
        """Return the input embeddings of all tokens; VxD."""
        return head.embed_vocabulary(self.spec, self._parameters())

    def logits(self, h_PxD: jax.Array) -> jax.Array:
        """Return the logits of hidden states with any leading axes; PxV."""
        return head.compute_logits(self.spec, self._parameters(), h_PxD)

    def cross_entropy(
        self,
        h_PxD: jax.Array,
        target_P: jax.Array,
        weight_P: jax.Array | None = None,
        **options: Any,
    ) -> tuple[jax.Array, jax.Array]:
        """Return loss and accuracy of `logits`, without all of them in memory at a time.

        For the other arguments see `jaxtie.tying.cross_entropy.reduce_losses`.
        """
        return embedding_cross_entropy(
            self.spec, self._parameters(), h_PxD, target_P, weight_P, **options
        )

    def _parameters(self) -> dict[str, Tree]:
        variables = {name: value for name, value in vars(self).items() if name in PARTS}
        return jax.tree.map(
            lambda each: each.get_value(),
            variables,
            is_leaf=lambda each: isinstance(each, nnx.Variable),
        )


Embedding.__doc__ = EmbeddingSpec.__doc__


class UntiedEmbed(nnx.Embed):
    """An `nnx.Embed` whose `attend` uses a table of its own, `output`, VxD.

    `untie` replaces an `nnx.Embed` by it, so that the code of the model need not change.
    """

    def __init__(self, embed: nnx.Embed, output: nnx.Param):
        """Take over all attributes of an `nnx.Embed`."""
        _copy_embed(embed, self)
        self.output = output

    def attend(self, query: jax.Array, *arguments: Any, **options: Any) -> jax.Array:
        """Do what `nnx.Embed.attend` does, with `output`."""
        with_output: Any = SimpleNamespace(**vars(self) | {"embedding": self.output})
        return nnx.Embed.attend(with_output, query, *arguments, **options)


class Transposed(nnx.Pytree):
    """A D×V view of a V×D table, which is read like an `nnx.Param`.

    `tie` replaces a D×V table, such as the kernel of an `nnx.Linear`, by it. The variable is
    `table`, shared with the module that owns it. For a model that is tied from the start:

        self.head.kernel = jaxtie.nnx.Transposed(self.embed.embedding)
    """

    def __init__(self, table: nnx.Variable):
        """View a table (..., V, D)."""
        self.table = table

    def get_value(self) -> jax.Array:
        """Return the transposed table; (..., D, V)."""
        return jnp.swapaxes(self.table.get_value(), -1, -2)

    value = property(get_value)

    def __getitem__(self, place: Any) -> jax.Array:
        """Index the transposed table."""
        return self.get_value()[place]

    def __jax_array__(self) -> jax.Array:
        """Return the transposed table, for JAX functions."""
        return self.get_value()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the array: shape, dtype, methods."""
        if name.startswith("_") or name == "table":
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return getattr(self.get_value(), name)


def find_in_module(
    model: nnx.Module,
    input: Place | None = None,
    output: Place | None = None,
    transposed: bool | None = None,
) -> list[Tables]:
    """Find embeddings: by paths, else a model's `jaxtie.nnx.Embedding`s, else its `nnx.Embed`."""
    state = nnx.state(model)
    if input is not None and output is not None:
        return [_find_by_paths(model, state, input, output, transposed)]
    if output is None and (input is not None or not trees.embedding_roots(state)):
        one = _find_embed(model, input)
        if input is None:
            _refuse_head(state, one)
        return trees.find_tables(state, one, (*one[:-1], "output"), transposed=False)
    return trees.find_tables(state, input, output)


def _find_embed(model: nnx.Module, input: Place | None) -> Path:
    """Return the path of the table of a model's only, or of the named, `nnx.Embed`."""
    paths = [
        (*path, "embedding")
        for path, node in nnx.iter_graph(model)
        if type(node) in (nnx.Embed, UntiedEmbed)
    ]
    named = None if input is None else format_path(trees.read_path(input))
    chosen = [path for path in paths if named in (None, format_path(path))]
    if len(chosen) != 1:
        there = ", ".join(map(repr, map(format_path, paths))) or "none"
        raise ValueError(
            "no embedding of jaxtie, nor one nnx.Embed to take; name one by input=...; there are:"
            f" {there}"
        )
    for path, node in nnx.iter_graph(model):
        if isinstance(node, Transposed) and node.table is _at(model, chosen[0]):
            raise ValueError(
                f"{format_path(path)} is {format_path(chosen[0])}, transposed; name both by"
                " input=..., output=..."
            )
    if len(chosen[0]) == 1:
        raise ValueError(
            f"the model is an {type(model).__name__} itself; expected a model that has one"
        )
    return chosen[0]


def _refuse_head(state: nnx.State, table: Path) -> None:
    """Raise ValueError where another array, no deeper than the table, has its sizes, as a head."""
    shape = get(state, table).shape
    for path, leaf in nnx.to_flat_state(state):
        if path[:-1] != table[:-1] and leaf.shape in (shape, shape[::-1]):
            raise ValueError(
                f"{format_path(path)} has the sizes of {format_path(table)} and may be the output"
                " embedding; name both by input=..., output=..., or the input alone if its attend"
                " makes the logits"
            )


def _find_by_paths(
    model: nnx.Module, state: nnx.State, input: Place, output: Place, transposed: bool | None
) -> Tables:
    one, other = trees.read_path(input), trees.read_path(output)
    if _at(model, other[:-1]) is None:
        raise ValueError(f"no {format_path(other[:-1])!r} in the model to put an output table into")
    table, seen = _at(model, one), _at(model, other)
    across = isinstance(seen, Transposed)
    own = seen.table if across else seen
    visited = [path for path, node in nnx.iter_graph(model) if node is table or node is own]
    if table is None or table is not own:
        if across and table is not None:
            raise ValueError(
                f"{format_path(other)} is another table than {format_path(one)}, transposed"
            )
        (tables,) = trees.find_tables(state, one, other, transposed)
        if tables.untied and visited and format_path(visited[0]) == format_path(other):
            return tables._replace(tied_at=_state_path(visited[0], tables.transposed))
        return tables
    if _at(model, one[:-1]) is _at(model, other[:-1]):
        raise ValueError(
            f"{format_path(one)} and {format_path(other)} are of one module; leave the output's"
            " path out"
        )
    there = {format_path(path): path for path in (one, _state_path(other, across))}
    tied_at = next((path for path in visited if format_path(path) in there), one)
    (tables,) = trees.find_tables(state, tied_at, (*tied_at, "output"), transposed=False)
    return tables._replace(input=one, output=other, tied_at=tied_at, transposed=across)


def _state_path(output: Path, transposed: bool | None) -> Path:
    """Return where a state holds the shared table if the output comes first in the model."""
    return (*output, "table") if transposed else output


def untie_module(
    model: Model, optimizer: Any, found: list[Tables], tx: optax.GradientTransformation | None
) -> tuple[Model, Any]:
    """Untie these embeddings of a model in place; see `jaxtie.tying.tie.untie`."""
    untied, optimizer = _edit_module(trees.untie_tree, found, model, optimizer, tx)
    for tables in found:
        parent, own = _at(model, tables.input[:-1]), get(untied, tables.output)
        if type(parent) is nnx.Embed and tables.output == (*tables.input[:-1], "output"):
            _replace(model, parent, UntiedEmbed(parent, own))
        else:
            _set(model, tables.output, own)
    return model, optimizer


def tie_module(
    model: Model,
    optimizer: Any,
    how: How,
    found: list[Tables],
    tx: optax.GradientTransformation | None,
) -> tuple[Model, Any]:
    """Tie these embeddings of a model in place; see `jaxtie.tying.tie.tie`."""
    graph_mode = getattr(nnx, "set_graph_mode", None)  # not in early Flax 0.12
    in_tree_mode = graph_mode is not None and not graph_mode.current_value()
    for tables in found:
        shares = not (tables.rows or isinstance(_at(model, tables.input[:-1]), UntiedEmbed))
        if shares and in_tree_mode:
            raise ValueError(
                f"{format_path(tables.output)} would be {format_path(tables.input)}, but modules"
                " share nothing in NNX's tree mode; expected nnx.Embed.attend or"
                " jaxtie.nnx.Embedding, or nnx.set_graph_mode(True)"
            )
    # raise before anything changes
    across = {tables: trees.is_transposed(tables) for tables in found}
    tied, optimizer = _edit_module(partial(trees.tie_tree, how), found, model, optimizer, tx)
    for tables in found:
        parent, shared = _at(model, tables.input[:-1]), _at(model, tables.input)
        shared.set_value(get(tied, tables.tied_at).get_value())
        if isinstance(parent, UntiedEmbed):
            _copy_embed(parent, plain := nnx.Embed(1, 1, rngs=nnx.Rngs(0)))
            _replace(model, parent, plain)
        elif tables.rows:  # not by paths
            _set(model, tables.output, None)
        else:
            _set(model, tables.output, Transposed(shared) if across[tables] else shared)
    return model, optimizer


def set_sizes(
    model: nnx.Module, resized: Tree, found: Iterable[Tables], places: Iterable[Path], plan: Any
) -> None:
    """Put resized tables and vectors into a model, and their rows into its modules."""
    for tables in found:
        source = plan.source(tables.shape[-2]).tolist()
        owners = [_at(model, path[:-1]) for path in (tables.input, tables.output)]
        for owner in {id(owner): owner for owner in owners}.values():
            if isinstance(owner, Embedding):
                owner.spec = _renumber(owner, source, plan.tokens)
            elif isinstance(owner, nnx.Embed):
                owner.num_embeddings = len(source)
            elif isinstance(owner, nnx.Linear):
                owner.out_features = len(source)
    for path in places:
        _at(model, path).set_value(get(resized, path).get_value())


def _renumber(embedding: Embedding, source: list[int], tokens: int) -> EmbeddingSpec:
    """Return the declaration of an embedding with other rows; see `jaxtie.tying.resize`."""
    spec, padding = embedding.spec, range(tokens, len(source))
    new_ids: dict = dict(zip(padding, padding)) | {old: new for new, old in enumerate(source)}
    excluded = tuple(sorted(new_ids[row] for row in spec.excluded_rows if row in new_ids))
    sizes: dict[str, Any] = {"vocabulary": len(source), "padding": new_ids.get(spec.padding)}
    return dataclasses.replace(spec, excluded_rows=excluded, **sizes)


def trained_trees(model: nnx.Module, optimizer: Any) -> tuple[nnx.State, Tree]:
    """Return the parameters that an optimizer trains, and its state."""
    if isinstance(optimizer, nnx.Optimizer):
        return nnx.state(model, optimizer.wrt), optimizer.opt_state
    return nnx.state(model, nnx.Param), optimizer


def _edit_module(
    edit: Edit,
    found: list[Tables],
    model: nnx.Module,
    optimizer: Any,
    tx: optax.GradientTransformation | None,
) -> tuple[nnx.State, Any]:
    """Return the edited state of a model, which is not changed itself, and the edited optimizer."""
    changed = trees.edit_tree(edit, found, nnx.state(model))
    trained, opt_state = trained_trees(model, optimizer)
    found = [tables for tables in found if get(trained, tables.input_now) is not None]
    owns_state = isinstance(optimizer, nnx.Optimizer)
    parts = list_parts(trained, opt_state)[0]
    if tx is None and owns_state and any(part.group is not None for part in parts):
        tx = optimizer.tx
    init = None
    if tx is not None:
        init = (lambda params: to_opt_state(tx.init(params))) if owns_state else tx.init
    _, opt_state = edit_state(edit, found, trained, opt_state, init)
    if not owns_state:
        return changed, opt_state
    optimizer.opt_state = nnx.data(opt_state)
    optimizer.tx = tx or optimizer.tx
    return changed, optimizer


def _at(node: Any, path: Path) -> Any:
    """Return the node at a path of a model; None if there is none."""
    for key in path:
        is_module = isinstance(node, nnx.Pytree)
        node = getattr(node, str(key), None) if is_module else get(node, (key,))
    return node


def _set(model: nnx.Module, path: Path, value: nnx.Variable | Transposed | None) -> None:
    """Put a table into a module or a dictionary of a model; None removes it."""
    node: Any = _at(model, path[:-1])
    key: Hashable = path[-1]
    if not isinstance(node, nnx.Pytree):
        node.pop(key) if value is None else node.__setitem__(key, value)
    elif value is None:
        delattr(node, str(key))
    else:
        setattr(node, str(key), value)


def _replace(model: nnx.Module, old: nnx.Module, new: nnx.Module) -> None:
    """Replace a module everywhere in a model."""
    for _, node in list(nnx.iter_graph(model)):
        if isinstance(node, nnx.Pytree):
            for name in [name for name, value in vars(node).items() if value is old]:
                setattr(node, name, new)


def _copy_embed(source: nnx.Embed, target: nnx.Embed) -> None:
    for name, value in vars(source).items():
        if not name.startswith("_") and name != "output":
            setattr(target, name, value)
