"""Find out whether a model is tied as it should be, in the middle of training."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import PartitionSpec

from jaxtie.tying import nnx as modules
from jaxtie.tying import trees
from jaxtie.tying.groups import check_state, is_empty, list_parts
from jaxtie.tying.head import Tree, on_auto_axes
from jaxtie.tying.tie import count_parameters, find, untie
from jaxtie.tying.trees import Path, Place, Tables, format_path, get, keys_of, put

COPY = 0.5  # two tables whose difference is less than this part of one are copies of each other
SCALED = 0.05  # or that is less than this part once one of them is scaled


@dataclasses.dataclass(frozen=True)
class Found:
    """What `check` found about one embedding; None where it was not or could not be measured.

    Attributes:
      input, output: paths of the tables.
      tied: whether there is one table only, or one but for untied rows.
      difference: of two tables, ‖E_in - E_out‖ / ‖E_in‖; 0 if they are equal.
      copies: other parameters that are this table, or were: paths and differences.
      gradients: norms of the gradient in the input and the output role.
      groups: of the optimizer, for either table: which states have moments of it.
      decay: share that an update without a gradient takes from either table.
      moves: whether an update with a gradient changes either table.
      problems: what is wrong, a line each.
    """

    input: str
    output: str
    tied: bool
    difference: float | None
    copies: tuple[tuple[str, float], ...]
    gradients: tuple[float, float] | None
    groups: tuple[tuple[str, ...], tuple[str, ...]] | None
    decay: tuple[float, float] | None
    moves: tuple[bool, bool] | None
    problems: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Report:
    """What `check` found; print it, or call `raise_if_broken` in a training script."""

    parameters: int
    embeddings: tuple[Found, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, a line each."""
        return tuple(line for found in self.embeddings for line in found.problems)

    def raise_if_broken(self) -> None:
        """Raise ValueError if anything is wrong."""
        if self.problems:
            raise ValueError("; ".join(self.problems))

    def __str__(self) -> str:
        lines = [f"{self.parameters:,} parameters"]
        for found in self.embeddings:
            lines.append(f"{found.input}: {'tied' if found.tied else f'untied, {found.output}'}")
            for field in dataclasses.fields(found)[3:-1]:
                if (value := getattr(found, field.name)) not in (None, ()):
                    lines.append(f"  {field.name}: {_show(value)}")
        return "\n".join([*lines, *(f"problem: {line}" for line in self.problems or ["none"])])


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        nested = bool(value) and all(isinstance(each, tuple) for each in value)
        return ("; " if nested else ", ").join(map(_show, value)) or "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def check(
    params: Tree,
    opt_state: Tree = (),
    *,
    loss: Callable[[Any], jax.Array] | None = None,
    tied: bool | None = None,
    tx: optax.GradientTransformation | None = None,
    input: Place | None = None,
    output: Place | None = None,
    transposed: bool | None = None,
) -> Report:
    """Report whether a tie holds: one table or two, equal or drifted, trained and decayed alike.

        check(model, optimizer, loss=lambda model: loss(model, batch), tied=True).raise_if_broken()

    Problems are: two tables where one is expected; copies of a table, even scaled or padded; values
    that are not finite; a role without a gradient while the other has one; two tables that the
    optimizer treats differently; a table that is updated by Muon, or not at all though it has
    moments; a state of other parameters.

    Args:
      params: see `jaxtie.untie`.
      opt_state: the optimizer's state or an `nnx.Optimizer`: for groups, and for `tx`.
      loss: a function of `params`, for gradients by role. Its code must follow the parameters, tied
        or untied, as that of `Embedding` does; else they are None.
      tied: what is expected. None: tied if two tables are copies; False: copies are fine.
      tx: the optimizer: for decay and moves.
      input: path of the input table.
      output: path of the output table.
      transposed: the output table is, or would be, D×V.

    Raises:
      ValueError: if there is no embedding; if there are shapes instead of arrays.
    """
    trees.check_arrays("check", params, opt_state)
    paths: dict[str, Any] = {"input": input, "output": output, "transposed": transposed}
    tree = nnx.state(params) if isinstance(params, nnx.Module) else params
    trained, state = tree, opt_state
    if isinstance(params, nnx.Module):
        trained, state = modules.trained_trees(params, opt_state)
    if isinstance(opt_state, nnx.Optimizer):
        tx = opt_state.tx
    wrong, arrays = [], trees.arrays_of(trained)
    try:
        check_state(arrays, state)
    except ValueError as error:
        wrong.append(str(error))
    found = []
    for number, tables in enumerate(find(params, **paths)):
        places = tables.input_now, tables.output if tables.untied else tables.input_now
        one, other = (_array(tree, place) for place in places)
        difference, is_copy = None, False
        if tables.untied:
            apart, copied = _compare(one, trees.align(tables, other), one.shape[-2])
            difference, is_copy = float(apart), bool(copied)
        fact = Found(
            input=format_path(tables.input),
            output=format_path(tables.output),
            tied=not tables.untied,
            difference=difference,
            copies=_find_copies(tree, tables),
            gradients=_gradients(params, tables, paths, number, loss),
            **_treatment(arrays, state, tx, places),
            problems=(),
        )
        broken = [
            f"{format_path(place)} has values that are NaN or infinite"
            for place in dict.fromkeys(places)
            if not jnp.all(jnp.isfinite(_array(tree, place)))
        ]
        broken += _problems(fact, tied, is_copy=is_copy)
        found.append(dataclasses.replace(fact, problems=(*wrong, *broken)))
    return Report(count_parameters(trees.arrays_of(tree)), tuple(found))


def _problems(found: Found, expected: bool | None, *, is_copy: bool) -> Iterator[str]:
    one, copies = found.input, found.copies
    if found.difference is not None and is_copy and expected is not False:
        copies = ((found.output, found.difference), *copies)
    elif not found.tied and expected:
        yield f"{one} and {found.output} are two tables; expected one: tie them by jaxtie.tie"
    for path, apart in copies:
        drift = f"drifted by {apart:.2g} of its norm" if apart else "equal"
        drift = drift if apart < COPY else "scaled"
        yield (
            f"{path} is a copy of {one}, {drift}; the number of parameters and the global norm"
            " count both: tie them by jaxtie.tie, or say tied=False if they are meant to be two"
        )
    gradients = found.gradients or (1, 1)
    for i, name in enumerate(("input", "output")):
        if gradients[i] == 0 < gradients[1 - i]:
            yield f"{one} has no gradient in its {name} role"
    yield from _problems_of_optimizer(found, expected)


def _problems_of_optimizer(found: Found, expected: bool | None) -> Iterator[str]:
    groups, moves, decay = found.groups or ((), ()), found.moves or (True, True), found.decay
    names = (found.input,) if found.tied else (found.input, found.output)
    for name, own, moved in zip(names, groups, moves):
        if muon := [each for each in own if "Muon" in each]:
            yield (
                f"{name} is updated by Muon ({muon[0]}), which is for hidden matrices; expected"
                " another optimizer for tables, such as Adam"
            )
        if own and not moved:
            yield f"{name} has moments, but no update changes it; expected a rate above 0"
    if len(names) < 2 or expected is False:
        return
    if decay is not None and not np.isclose(*decay, rtol=1e-2, atol=0):
        yield (
            f"an update decays {names[0]} by {decay[0]:.3g} and {names[1]} by {decay[1]:.3g};"
            " expected both alike"
        )
    elif groups[0] != groups[1]:
        one, other = (", ".join(own) or "none" for own in groups)
        yield f"{names[0]} has moments in {one}, {names[1]} in {other}; expected both alike"
    elif moves[0] != moves[1]:
        yield f"an update changes only one of {names[0]} and {names[1]}; expected both alike"


def _array(entry: Tree, path: Path = ()) -> jax.Array:
    (array,) = jax.tree.leaves(get(entry, path))
    return array


def _norm(array: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(array.astype(jnp.promote_types(array.dtype, jnp.float32)) ** 2))


@partial(jax.jit, static_argnums=2)
def _compare(one: jax.Array, other: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
    """Return ‖one - other‖ / ‖one‖ of the first rows, and whether one is a copy, maybe scaled.

    The difference is infinite if all values of one are the same.
    """

    def compare(one: jax.Array, other: jax.Array) -> tuple[jax.Array, jax.Array]:
        one, other = (x[..., :rows, :].astype(jnp.float32) for x in (one, other))
        product, of_one, of_other = jnp.sum(one * other), jnp.sum(one**2), jnp.sum(other**2)
        difference = jnp.sqrt(jnp.sum((one - other) ** 2) / of_one)
        difference = jnp.where(jnp.max(one) == jnp.min(one), jnp.inf, difference)
        is_scaled = (product**2 > (1 - SCALED**2) * of_one * of_other) & jnp.isfinite(difference)
        return difference, (difference < COPY) | is_scaled

    return on_auto_axes(compare, (PartitionSpec(),) * 2, one, other)(one, other)


def _find_copies(tree: Tree, tables: Tables) -> tuple[tuple[str, float], ...]:
    """Return other parameters that are, or nearly are, the input table, and their differences."""
    table, own = _array(tree, tables.input_now), (tables.input_now, tables.output)
    found: dict[str, float] = {}
    nodes = jax.tree_util.tree_leaves_with_path(
        trees.arrays_of(tree), is_leaf=lambda node: isinstance(node, nnx.Variable)
    )
    for path, node in nodes:
        keys, leaves = keys_of(path), jax.tree.leaves(node)
        if len(leaves) != 1 or any(keys[: len(each)] == tuple(map(str, each)) for each in own):
            continue
        for other in (leaves[0], leaves[0].swapaxes(-1, -2)) if leaves[0].ndim > 1 else ():
            lengths = table.shape[-2], other.shape[-2]
            is_like = (*other.shape[:-2], other.shape[-1]) == (*table.shape[:-2], table.shape[-1])
            if is_like and 2 * min(lengths) >= max(lengths):
                difference, is_copy = _compare(table, other, min(lengths))
                if is_copy:
                    name = format_path(keys)
                    found[name] = min(float(difference), found.get(name, jnp.inf))
    return tuple(found.items())


def _treatment(
    params: Tree, state: Tree, tx: optax.GradientTransformation | None, places: tuple[Path, Path]
) -> dict[str, Any]:
    """Return states with moments of two tables, with their groups; their decay and their moves."""
    facts: dict[str, Any] = dict.fromkeys(("groups", "decay", "moves"))
    if tx is not None and not jax.tree.leaves(state):
        state = jax.eval_shape(tx.init, params)
    if jax.tree.leaves(state):
        parts = [part for part in list_parts(params, state)[0] if part.entries is not None]
        facts["groups"] = tuple(
            tuple(
                "/".join(map(str, (*part.path[:-1], part.kind)))
                for part in parts
                if not is_empty(get(part.node, place))
            )
            for place in places
        )
    if tx is None or get(params, places[0]) is None:
        return facts

    @jax.jit
    def probe(params: Tree, slope: bool) -> list:
        gradient = jax.tree.map(lambda x: jnp.where(slope, jnp.cos(x), 0).astype(x.dtype), params)
        state = tx.init(params)
        for _ in range(2):  # the first may have a learning rate of 0
            updates, state = tx.update(gradient, state, params)
        each = []
        for path in places:
            table, update = (_array(tree, path).astype(jnp.float32) for tree in (params, updates))
            share = 0 - jnp.sum(update * table) / jnp.sum(table**2)
            rest = _norm(update + share * table)
            each.append((share, rest <= 1e-3 * jnp.abs(share) * _norm(table), jnp.any(update != 0)))
        return [*each, jnp.array([jnp.any(update != 0) for update in jax.tree.leaves(updates)])]

    wide = jax.tree.map(
        lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), nnx.as_pure(params)
    )
    try:
        without, (*tables, moved) = (probe(wide, slope) for slope in (False, True))
    except TypeError:  # it needs the value of the loss
        return facts
    if without[0][1] and without[1][1]:
        facts["decay"] = float(without[0][0]), float(without[1][0])
    if moved.any():
        facts["moves"] = tuple(bool(table[2]) for table in tables)
    return facts


def _gradients(
    params: Tree,
    tables: Tables,
    paths: dict[str, Any],
    number: int,
    loss: Callable[[Any], jax.Array] | None,
) -> tuple[float, float] | None:
    """Return the norms of a table's gradient in either role, from a copy that is untied."""
    if loss is None or tables.partly_tied:
        return None
    is_module, was_tied = isinstance(params, nnx.Module), not tables.untied
    rebuild = lambda tree: tree  # noqa: E731
    if was_tied:
        apart = nnx.clone(params) if is_module else params
        params, _ = untie(apart, **paths | {"transposed": bool(paths["transposed"])})
        tables = find(params, **paths)[number]
    tree = params
    if is_module:
        graph, tree = nnx.split(params)
        rebuild = partial(nnx.merge, graph)

    def value(both: tuple[Tree, Tree]) -> jax.Array:
        changed = put(put(tree, tables.input, both[0]), tables.output, both[1])
        return loss(rebuild(changed))

    both = get(tree, tables.input), get(tree, tables.output)
    look = jax.jit(jax.value_and_grad(value))
    found, gradient = look(both)
    if was_tied and look((both[0], jax.tree.map(jnp.zeros_like, both[1])))[0] == found:
        return None  # the model's code does not follow its parameters
    one, other = (float(_norm(_array(each))) for each in gradient)
    return one, other
