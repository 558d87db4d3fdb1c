"""Change the size of a vocabulary: both tables, the bias and the optimizer's state.

Shapes: V tokens, K new tokens, D width.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxtie.tying import nnx as modules
from jaxtie.tying.equinox import set_sizes
from jaxtie.tying.head import Tree, on_auto_axes
from jaxtie.tying.trees import (
    Path,
    Place,
    Tables,
    check_arrays,
    find_tables,
    format_path,
    get,
    is_transposed,
    put,
    set_untied_rows,
)

Params = TypeVar("Params")
NewRows = Literal["mean", "zeros"] | jax.Array


class _Sizes(NamedTuple):
    """Number of rows that stay, None: all that were there; tokens; rows, padding included."""

    known: int | None
    tokens: int
    rows: int

    def stay(self, vocabulary: int) -> int:
        """Return how many of these rows stay."""
        return min(self.rows, vocabulary if self.known is None else self.known)


def resize(
    params: Params,
    opt_state: Tree,
    size: int,
    *,
    known: int | None = None,
    multiple: int | None = None,
    new_rows: NewRows = "mean",
    input: Place | None = None,
    output: Place | None = None,
    transposed: bool | None = None,
    tx: optax.GradientTransformation | None = None,
) -> tuple[Params, Tree, Tree]:
    """Grow or shrink the vocabulary of every embedding, or of the one at these paths.

    Rows that stay keep their values and moments, on their devices. An array `bias` next to the
    output table goes along if its length is V. An `nnx.Module` and its `nnx.Optimizer` change in
    place; a linen `Embedding` is made anew with the new vocabulary. Map it over stacked members.

        params, opt_state, is_new = resize(params, opt_state, 50_304, tx=tx)
        updates = jax.tree.map(lambda u, new: jnp.where(new, u, 0), updates, is_new)

    Args:
      params: see `jaxtie.untie`.
      opt_state: the state of the optimizer `tx`, or an `nnx.Optimizer`; () if there is none.
      size: the new V.
      known: number of tokens so far, if the rows after them are padding: those rows are new, too.
        By default all rows of a table are known.
      multiple: round V up to a multiple, for instance of the devices that share a table; the rows
        that this adds count as new.
      new_rows: values of new rows, in both tables: the mean of the rows that stay, zeros, or an
        array KxD, K = size - known; padding after them is 0. New entries of a bias are 0 for
        "zeros", else its mean.
      input: path of the input table.
      output: path of the output table.
      transposed: whether the output table is D×V; inferred unless the table is square.
      tx: the optimizer. New rows of its state start as its `init` makes them.

    Returns:
      The new parameters, the new state (for NNX the model and its optimizer), and a mask laid out
      like the parameters, which broadcasts to them: True for new rows. Apply it to updates, since
      weight decay and momentum move rows without a gradient.

    Raises:
      ValueError: if there is no embedding; if a table has fewer rows than `known`, or enough rows
        already and `known` is not given; if the state does not fit `tx`; if devices cannot share
        the new table evenly.
    """
    for name, value in {"size": size, "known": known, "multiple": multiple}.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} = {value}; expected 1 or more")
    sizes = _Sizes(known, size, size if multiple is None else -(-size // multiple) * multiple)
    check_arrays("resize", params, opt_state)
    if isinstance(params, nnx.Module):
        found = modules.find_in_module(params, input, output, transposed)
        return _resize_module(params, opt_state, found, sizes, new_rows, tx)
    found = [
        set_untied_rows(tables, params, None)
        for tables in find_tables(params, input, output, transposed)
    ]
    edited, axes = _resize_tree(params, found, sizes, new_rows)
    edited = set_sizes(edited, found, sizes.rows)
    before, after = _arrays(params), _arrays(edited)
    state = _resize_state(opt_state, found, before, after, sizes, tx and tx.init)
    return edited, state, _mask(after, axes, found, sizes)


def _arrays(tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: leaf if hasattr(leaf, "shape") else None, tree)


def _resize_module(
    model: Any,
    optimizer: Any,
    found: Sequence[Tables],
    sizes: _Sizes,
    new_rows: NewRows,
    tx: optax.GradientTransformation | None,
) -> tuple[Any, Any, Tree]:
    before = jax.eval_shape(lambda tree: tree, modules.trained_trees(model, optimizer)[0])
    edited, axes = _resize_tree(nnx.state(model), found, sizes, new_rows)
    modules.set_sizes(model, edited, axes, sizes.rows)
    trained, opt_state = modules.trained_trees(model, optimizer)
    mask = _mask(trained, axes, found, sizes)
    if not isinstance(optimizer, nnx.Optimizer):
        return model, _resize_state(opt_state, found, before, trained, sizes, tx and tx.init), mask

    def init(params: Tree) -> Tree:
        return modules.to_opt_state(optimizer.tx.init(params))

    state = _resize_state(opt_state, found, before, trained, sizes, init)
    optimizer.opt_state = nnx.data(state)
    return model, optimizer, mask


def _resize_tree(
    params: Tree, found: Sequence[Tables], sizes: _Sizes, new_rows: NewRows
) -> tuple[Tree, dict[Path, int]]:
    """Return the edited parameters, and the axis of the vocabulary in what was edited."""
    axes: dict[Path, int] = {}
    for tables in found:
        vocabulary, width = tables.shape[-2:]
        if sizes.known is not None and sizes.known > vocabulary:
            raise ValueError(
                f"known = {sizes.known}, but {format_path(tables.input)} has {vocabulary} rows;"
                " expected the number of its rows that are tokens"
            )
        if sizes.known is None and sizes.tokens < vocabulary <= sizes.rows:
            raise ValueError(
                f"{format_path(tables.input)} has {vocabulary} rows for {sizes.tokens} tokens; say"
                " known=..., the number of rows that are tokens so far"
            )
        stay = sizes.stay(vocabulary)
        if not isinstance(new_rows, str) and sizes.rows > stay:
            expected = [(size - stay, width) for size in (sizes.tokens, sizes.rows)]
            if jnp.shape(new_rows) not in expected:
                raise ValueError(f"new_rows are {jnp.shape(new_rows)}; expected {expected[0]}")
        axes[tables.input_now] = -2
        if tables.untied:
            axes[tables.output] = -1 if is_transposed(tables) else -2
        bias = (*tables.output[:-1], "bias")
        leaves = jax.tree.leaves(get(params, bias))
        if len(leaves) == 1 and leaves[0].shape[-1] == vocabulary:
            axes[bias] = -1
        rows = new_rows if sizes.rows > stay else "zeros"
        grow = partial(_resize_array, size=sizes.rows, stay=stay, new_rows=rows)
        for path in (tables.input_now, tables.output, bias):
            if path in axes and (entry := get(params, path)) is not None:
                params = put(params, path, jax.tree.map(partial(grow, axis=axes[path]), entry))
    return params, axes


def _resize_array(
    array: jax.Array, size: int, stay: int, new_rows: NewRows, axis: int
) -> jax.Array:
    """Return a table or a bias with new entries along an axis, after those that stay."""
    if isinstance(new_rows, str) and new_rows == "zeros":
        fill = jnp.zeros((), array.dtype)
    elif isinstance(new_rows, str) or array.ndim < 2:
        wide = jnp.promote_types(array.dtype, jnp.float32)
        is_known = None
        if stay < array.shape[axis]:
            is_known = jax.lax.broadcasted_iota(jnp.int32, array.shape, axis % array.ndim) < stay
        fill = jnp.mean(array, axis=axis, keepdims=True, dtype=wide, where=is_known)
        fill = fill.astype(array.dtype)
    else:
        rows = jnp.asarray(new_rows, array.dtype)
        rows = rows if axis == -2 else rows.T
        around = [(0, 0)] * rows.ndim
        around[axis] = (stay, size - stay - rows.shape[axis])
        fill = jnp.pad(rows, around)
    return _join(array, fill, size, axis, stay)


def _join(
    array: jax.Array, fill: jax.Array, size: int, axis: int, stay: int | None = None
) -> jax.Array:
    """Cut an array, or continue it with the values of `fill`; it stays split as it was."""
    shape = list(array.shape)
    shape[axis] = size
    sharding = getattr(array, "sharding", None)
    is_split = isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)
    if not is_split or sharding is None or len(sharding.device_set) == 1:
        return _join_whole(array, fill, size, axis, stay)
    try:
        sharding.shard_shape(tuple(shape))
    except ValueError:
        raise ValueError(
            f"{len(sharding.device_set)} devices cannot share {size} tokens evenly; expected"
            " another size, or multiple=..."
        ) from None
    join = on_auto_axes(partial(_join_whole, size=size, axis=axis, stay=stay), sharding, array)
    return jax.jit(join, out_shardings=sharding)(array, fill)


def _join_whole(
    array: jax.Array, fill: jax.Array, size: int, axis: int, stay: int | None = None
) -> jax.Array:
    length = array.shape[axis]
    stay = min(length if stay is None else stay, size)
    if size <= length:
        array = jax.lax.slice_in_dim(array, 0, size, axis=axis)
    if size == stay:
        return array
    if size > length:
        after = [(0, 0, 0)] * array.ndim
        after[axis] = (0, size - length, 0)
        array = jax.lax.pad(array, jnp.zeros((), array.dtype), after)
    is_old = jax.lax.broadcasted_iota(jnp.int32, array.shape, axis % array.ndim) < stay
    return jnp.where(is_old, array, fill.reshape((1,) * (array.ndim - fill.ndim) + fill.shape))


def _resize_state(
    opt_state: Tree,
    found: Sequence[Tables],
    before: Tree,
    params: Tree,
    sizes: _Sizes,
    init: Callable[[Tree], Tree] | None,
) -> Tree:
    """Return the state with its old values, and with fresh ones for new rows."""
    if not jax.tree.leaves(opt_state):
        return opt_state
    if init is None:
        raise ValueError("an optimizer's state needs the optimizer; pass it as tx=...")
    fresh, expected = init(params), jax.eval_shape(init, before)
    if _outline(opt_state) != _outline(expected):
        raise ValueError(
            "the state is not of this optimizer; pass the one that made it as tx=..., and the"
            " parameters that it is of"
        )
    taller = fresh
    if sizes.known is not None:  # tells the vocabulary's axis where the length stays
        here = [
            tables._replace(shape=(*tables.shape[:-2], sizes.rows, tables.shape[-1]))
            for tables in found
        ]
        one_more = _Sizes(None, sizes.rows + 1, sizes.rows + 1)
        plain = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
        taller = jax.eval_shape(
            lambda tree: init(_resize_tree(tree, here, one_more, "zeros")[0]), plain
        )
    resized = {(tables.shape[-2], sizes.rows) for tables in found}

    def merge(old: jax.Array, new: jax.Array, other: jax.Array) -> jax.Array:
        changed = _differing(old.shape, new.shape) or _differing(new.shape, other.shape)
        if not changed:
            return old
        is_one = old.ndim == new.ndim and len(changed) == 1
        if not is_one or (old.shape[changed[0]], new.shape[changed[0]]) not in resized:
            raise ValueError(
                f"the optimizer keeps {old.shape} and would keep {new.shape}; it cannot be resized"
            )
        return _join(old, new, sizes.rows, changed[0], sizes.stay(old.shape[changed[0]]))

    leaves = map(jax.tree.leaves, (opt_state, fresh, taller))
    return jax.tree.unflatten(jax.tree.structure(fresh), map(merge, *leaves))


def _outline(state: Tree) -> Any:
    """Return structure and shapes of a state, of its arrays if it has NNX variables."""
    return jax.tree.map(jnp.shape, nnx.as_pure(state)), jax.tree.structure(nnx.as_pure(state))


def _differing(one: tuple[int, ...], other: tuple[int, ...]) -> list[int]:
    """Return the axes along which two shapes differ."""
    return [i for i, (a, b) in enumerate(zip_longest(one, other)) if a != b]


def _mask(params: Tree, axes: dict[Path, int], found: Sequence[Tables], sizes: _Sizes) -> Tree:
    """Return a mask of the new rows, which broadcasts to the parameters."""
    stay = {
        path: sizes.stay(tables.shape[-2])
        for tables in found
        for path in (tables.input_now, tables.output, (*tables.output[:-1], "bias"))
    }
    mask = jax.tree.map(lambda _: jnp.zeros((), bool), params)
    for path, axis in axes.items():
        if get(params, path) is None:  # not trained
            continue

        def new(leaf: jax.Array, path: Path = path, axis: int = axis) -> jax.Array:
            shape = [1] * leaf.ndim
            shape[axis] = leaf.shape[axis]
            return (jnp.arange(leaf.shape[axis]) >= stay[path]).reshape(shape)

        mask = put(mask, path, jax.tree.map(new, get(params, path)))
    return mask
