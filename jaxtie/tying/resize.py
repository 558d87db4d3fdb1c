"""Change a vocabulary: its size, its ids, rows that begin anew; with the optimizer's state.

Shapes: V tokens, D width.
"""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxtie.tying import nnx as modules
from jaxtie.tying import trees
from jaxtie.tying.equinox import set_module_sizes
from jaxtie.tying.groups import check_state, list_parts
from jaxtie.tying.head import Tree, on_auto_axes
from jaxtie.tying.tie import AnyModel, find
from jaxtie.tying.trees import Path, Place, Tables, format_path, get, put

Places = dict[Path, tuple[int, np.ndarray]]  # axis of the vocabulary and source of its rows


class _Plan(NamedTuple):
    """New rows of tables.

    Attributes:
      source: from V to the old id of every new row, -1 for a row that is new.
      tokens: rows from this one on keep their ids: padding.
      known: number of rows so far that are tokens; None: all.
    """

    source: Callable[[int], np.ndarray]
    tokens: int = 0
    known: int | None = None


def resize(
    params: AnyModel,
    opt_state: Tree,
    size: int | None = None,
    *,
    keep: Sequence[int] | None = None,
    known: int | None = None,
    multiple: int | None = None,
    input: Place | None = None,
    output: Place | None = None,
    transposed: bool | None = None,
    tx: optax.GradientTransformation | None = None,
) -> tuple[Any, ...]:
    """Grow, shrink or trim the vocabulary of every embedding, or of the one at these paths.

    Rows that stay keep their values and moments, on their devices; new ones are the mean of those
    that stay. An array `bias` next to the output table goes along if its length is V. An
    `nnx.Module` and its `nnx.Optimizer` change in place; a linen `Embedding` is made anew with the
    new vocabulary, and with new ids in its `padding` and `excluded_rows`. Map it over stacked
    members.

        params, opt_state, is_new = resize(params, opt_state, 50_304, tx=tx)
        updates = jax.tree.map(lambda u, new: jnp.where(new, u, 0), updates, is_new)
        params, opt_state, is_new, new_ids = resize(params, opt_state, keep=ids, tx=tx)

    Args:
      params: see `jaxtie.untie`.
      opt_state: the state of the optimizer `tx`, or an `nnx.Optimizer`; () if there is none.
      size: the new V, by default the number of tokens in `keep`.
      keep: ids of the tokens that stay, which become 0, 1, 2...; by default all that fit.
      known: number of tokens so far, if the rows after them are padding: those rows are new, too.
        By default all; needed if a table has room for `size`.
      multiple: round V up to a multiple, for instance of the devices that share a table; the rows
        that this adds count as new.
      input: path of the input table.
      output: path of the output table.
      transposed: whether the output table is D×V; inferred unless the table is square.
      tx: the optimizer. New rows of its state start as its `init` makes them.

    Returns:
      The new parameters, the new state (for NNX the model and its optimizer), and a mask laid out
      like the parameters, which broadcasts to them: True for new rows. Apply it to updates, since
      weight decay and momentum move rows without a gradient. With `keep` also the new id of every
      old one, an array of length V, -1 for tokens that are gone.

    Raises:
      ValueError: if there is no embedding, or one has `untied_rows`; if `known` is missing where a
        table has room; if ids are impossible; if the state does not fit `tx`; if devices cannot
        share the table evenly.
    """
    trees.check_arrays("resize", params, opt_state)
    found = find(params, input, output, transposed)
    trees.refuse_own_rows(found)
    kept = None if keep is None else _check_ids("keep", keep, found, known)
    least = 1 if kept is None else len(kept)
    tokens = (0 if kept is None else least) if size is None else size
    for name, value, low in (
        ("size", tokens, least),
        ("known", known, 1),
        ("multiple", multiple, 1),
    ):
        if value is not None and value < low:
            raise ValueError(f"{name} = {value}; expected {low} or more")
    rows = -(-tokens // (multiple or 1)) * (multiple or 1)
    for tables in found if kept is None and known is None else ():
        if tokens < tables.shape[-2] <= rows:
            raise ValueError(
                f"{format_path(tables.input)} has {tables.shape[-2]} rows for {tokens} tokens; say"
                " known=..., the number of rows that are tokens so far"
            )

    def source(vocabulary: int) -> np.ndarray:
        stay = np.arange(min(tokens, known or vocabulary)) if kept is None else kept
        return np.pad(stay, (0, rows - len(stay)), constant_values=-1)

    edited = _apply(params, opt_state, found, _Plan(source, tokens, known), tx)
    if kept is None:
        return edited
    new_ids = np.full(found[0].shape[-2], -1)
    new_ids[kept] = np.arange(len(kept))
    return *edited, new_ids


def reset_rows(
    params: AnyModel,
    opt_state: Tree,
    ids: Sequence[int],
    *,
    known: int | None = None,
    input: Place | None = None,
    output: Place | None = None,
    transposed: bool | None = None,
    tx: optax.GradientTransformation | None = None,
) -> tuple[AnyModel, Tree]:
    """Let tokens begin anew, such as reserved ones: their rows, bias and optimizer state.

        params, opt_state = reset_rows(params, opt_state, [5, 6], tx=tx)

    Arguments are those of `resize`. The rows of these ids become the mean of all others (of the
    first `known`, if padding follows), and entries of a bias likewise. Padding does not change. An
    `nnx.Module` and its `nnx.Optimizer` change in place.

    Raises:
      ValueError: as `resize`; if no row stays.
    """
    trees.check_arrays("reset_rows", params, opt_state)
    found = find(params, input, output, transposed)
    trees.refuse_own_rows(found)
    anew = _check_ids("ids", ids, found, known)

    def source(vocabulary: int) -> np.ndarray:
        return np.where(np.isin(np.arange(vocabulary), anew), -1, np.arange(vocabulary))

    return _apply(params, opt_state, found, _Plan(source, known=known), tx)[:2]


def _check_ids(
    name: str, ids: Sequence[int], found: Sequence[Tables], known: int | None
) -> np.ndarray:
    """Return ids as an array; ValueError unless every table has these rows, once."""
    chosen = np.array([operator.index(row) for row in ids], int)
    sizes = [tables.shape[-2] for tables in found]
    end = min(sizes if known is None else [known, *sizes])
    rows, counts = np.unique(chosen, return_counts=True)
    wrong = rows[(rows < 0) | (rows >= end) | (counts > 1)]
    if len(wrong) or not len(rows):
        first = wrong[0] if len(wrong) else "no ids"
        raise ValueError(f"{name} has {first}; expected ids in 0...{end - 1}, each once")
    return chosen


def _apply(
    params: AnyModel,
    opt_state: Tree,
    found: Sequence[Tables],
    plan: _Plan,
    tx: optax.GradientTransformation | None,
) -> tuple[AnyModel, Tree, Tree]:
    """Return parameters and state with new rows, and the mask of these."""
    init = tx and tx.init
    if not isinstance(params, nnx.Module):
        edited, places = _edit(params, found, plan)
        edited = set_module_sizes(edited, found, plan.source)
        after = trees.arrays_of(edited)
        state = _edit_state(opt_state, trees.arrays_of(params), after, places, init)
        return edited, state, _mask(after, places)
    whole, places = _edit(nnx.state(params), found, plan)
    owner = opt_state if isinstance(opt_state, nnx.Optimizer) else None
    if owner is not None:
        init = lambda tree: modules.to_opt_state(owner.tx.init(tree))  # noqa: E731
    before, state = modules.trained_trees(params, opt_state)
    after = nnx.filter_state(whole, nnx.Param if owner is None else owner.wrt)
    state = _edit_state(state, before, after, places, init)
    modules.set_sizes(params, whole, found, places, plan)
    if owner is not None:
        owner.opt_state = nnx.data(state)
    return params, owner or state, _mask(after, places)


def _edit(params: Tree, found: Sequence[Tables], plan: _Plan) -> tuple[Tree, Places]:
    places: Places = {}
    for tables in found:
        vocabulary = tables.shape[-2]
        if plan.known is not None and plan.known > vocabulary:
            raise ValueError(
                f"known = {plan.known}, but {format_path(tables.input)} has {vocabulary} rows;"
                " expected the number of its rows that are tokens"
            )
        source = plan.source(vocabulary)
        places[tables.input_now] = -2, source
        if tables.untied:
            places[tables.output] = -1 if trees.is_transposed(tables) else -2, source
        bias = *tables.output[:-1], "bias"
        leaves = jax.tree.leaves(get(params, bias))
        if len(leaves) == 1 and leaves[0].shape[-1:] == (vocabulary,):
            places[bias] = -1, source
    for path, (axis, source) in places.items():
        if (entry := get(params, path)) is not None:
            params = put(params, path, jax.tree.map(partial(_renew, plan, source, axis), entry))
    return params, places


def _renew(plan: _Plan, source: np.ndarray, axis: int, array: jax.Array) -> jax.Array:
    """Return an array with its rows selected and new ones added, as planned."""
    ids = np.arange(array.shape[axis])
    stays = np.isin(ids, source) & (ids < (plan.known or len(ids)))
    if not stays.any():
        raise ValueError("no row stays, so new ones have no mean; expected fewer ids")
    where = None if stays.all() else _along(stays, array, axis)
    wide = jnp.promote_types(array.dtype, jnp.float32)
    mean = jnp.mean(array, axis=axis, keepdims=True, dtype=wide, where=where)
    return _join(array, mean.astype(array.dtype), source, axis)


def _along(mask: np.ndarray, array: jax.Array, axis: int) -> np.ndarray:
    """Return a mask that broadcasts to an array along its other axes."""
    shape = [1] * array.ndim
    shape[axis] = -1
    return mask.reshape(shape)


def _join(array: jax.Array, fill: jax.Array, source: np.ndarray, axis: int) -> jax.Array:
    """Return an array of other rows, new ones those of `fill`; split as it was."""
    shape = list(array.shape)
    shape[axis] = len(source)
    is_placed = isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)
    if not is_placed or len(array.sharding.device_set) == 1:
        return _join_whole(array, fill, source, axis)
    sharding: Any = array.sharding
    try:
        sharding.shard_shape(tuple(shape))
    except ValueError:
        raise ValueError(
            f"{len(sharding.device_set)} devices cannot share {len(source)} tokens evenly; expected"
            " another size, or multiple=..."
        ) from None
    join = on_auto_axes(partial(_join_whole, source=source, axis=axis), sharding.spec, array)
    return jax.jit(join, out_shardings=sharding)(array, fill)


def _join_whole(array: jax.Array, fill: jax.Array, source: np.ndarray, axis: int) -> jax.Array:
    is_old, missing = source >= 0, len(source) - array.shape[axis]
    if not np.array_equal(source[is_old], np.flatnonzero(is_old)):
        array = jnp.take(array, np.maximum(source, 0), axis=axis)
    elif missing < 0:
        array = jax.lax.slice_in_dim(array, 0, len(source), axis=axis)
    elif missing > 0:
        after = [(0, 0, 0)] * array.ndim
        after[axis] = (0, missing, 0)
        array = jax.lax.pad(array, jnp.zeros((), array.dtype), after)
    if is_old.all():
        return array
    fill = fill.reshape((1,) * (array.ndim - fill.ndim) + fill.shape)
    return jnp.where(_along(is_old, array, axis), array, fill)


def _edit_state(
    opt_state: Tree, before: Tree, after: Tree, places: Places, init: Callable[[Tree], Tree] | None
) -> Tree:
    """Return the state with its old values, and with fresh ones for new rows."""
    if not jax.tree.leaves(opt_state):
        return opt_state
    if init is None:
        raise ValueError("an optimizer's state needs the optimizer; pass it as tx=...")
    if _outline(opt_state) != _outline(jax.eval_shape(init, before)):
        raise ValueError(
            "the state is not of this optimizer; pass the one that made it as tx=..., and the"
            " parameters that it is of"
        )
    check_state(before, opt_state)
    fresh = init(after)
    nodes = []
    for old, new in zip(list_parts(before, opt_state)[0], list_parts(after, fresh)[0], strict=True):
        node = old.node
        for path, (axis, source) in places.items() if old.entries is not None else ():
            if (entry := get(node, path)) is not None:
                (own,) = jax.tree.leaves(get(before, path))
                merge = partial(_merge, own.shape, axis, source)
                node = put(node, path, jax.tree.map(merge, entry, get(new.node, path)))
        nodes.append(node)
    return jax.tree.unflatten(jax.tree.structure(fresh), jax.tree.leaves(nodes))


def _merge(
    shape: tuple[int, ...], axis: int, source: np.ndarray, old: jax.Array, new: jax.Array
) -> jax.Array:
    """Return an array of a state with its old rows, and with those that the optimizer makes anew.

    `shape` and `axis`, that of the vocabulary, are its parameter's; a statistic's axis is found by
    its length.
    """
    is_whole = old.shape[-len(shape) :] == shape
    axes = [i for i, size in enumerate(old.shape) if size == shape[axis]]
    at, expected = axis if is_whole else next(iter(axes), None), list(old.shape)
    if at is not None:
        expected[at] = len(source)
    others = {*shape[:axis], *shape[axis:][1:]}
    is_unclear = len(axes) > 1 or not others.isdisjoint((shape[axis], len(source)))
    if new.shape != tuple(expected) or (is_unclear and old.size > 1 and not is_whole):
        raise ValueError(
            f"the optimizer keeps {old.shape} and would keep {new.shape}; it cannot be resized"
        )
    return old if at is None else _join(old, new, source, at)


def _outline(state: Tree) -> Any:
    """Return structure and shapes of a state, of its arrays if it has NNX variables."""
    return jax.tree.map(jnp.shape, nnx.as_pure(state)), jax.tree.structure(nnx.as_pure(state))


def _mask(params: Tree, places: Places) -> Tree:
    """Return a mask of the new rows, which broadcasts to the parameters."""
    mask = jax.tree.map(lambda _: jnp.zeros((), bool), params)
    for path, (axis, source) in places.items():
        if (entry := get(params, path)) is not None:  # trained
            is_new = jnp.asarray(_along(source < 0, jax.tree.leaves(entry)[0], axis))
            mask = put(mask, path, jax.tree.map(lambda _, is_new=is_new: is_new, entry))
    return mask
