"""Change the size of a vocabulary: both tables, the bias and the optimizer's state.

Shapes: V tokens, K new tokens, D width.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxtie.tying import nnx as modules
from jaxtie.tying.head import Tree
from jaxtie.tying.trees import (
    Path,
    Place,
    Tables,
    find_tables,
    get,
    is_transposed,
    put,
    set_untied_rows,
)

Params = TypeVar("Params")
NewRows = Literal["mean", "zeros"] | jax.Array


def resize(
    params: Params,
    opt_state: Tree,
    size: int,
    *,
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
      multiple: round V up to a multiple, for instance of the devices that share a table.
      new_rows: values of new rows, in both tables: the mean of the table's rows, zeros, or an array
        KxD. New entries of a bias are 0 for "zeros", else its mean.
      input: path of the input table.
      output: path of the output table.
      transposed: whether the output table is D×V; inferred unless the table is square.
      tx: the optimizer. New rows of its state start as its `init` makes them.

    Returns:
      The new parameters, the new state (for NNX the model and its optimizer), and a mask laid out
      like the parameters, which broadcasts to them: True for new rows. Apply it to updates, since
      weight decay and momentum move rows without a gradient.

    Raises:
      ValueError: if there is no embedding; if the state does not fit `tx`; if devices cannot share
        the new table evenly.
    """
    if size < 1:
        raise ValueError(f"size = {size}; expected 1 or more")
    size = size if multiple is None else -(-size // multiple) * multiple
    if isinstance(params, nnx.Module):
        found = modules.find_in_module(params, input, output, transposed)
        return _resize_module(params, opt_state, found, size, new_rows, tx)
    found = [
        set_untied_rows(tables, params, None)
        for tables in find_tables(params, input, output, transposed)
    ]
    edited, axes = _resize_tree(params, found, size, new_rows)
    arrays = jax.tree.map(lambda leaf: leaf if hasattr(leaf, "shape") else None, edited)
    return edited, _resize_state(opt_state, found, arrays, size, tx), _mask(arrays, axes, found)


def _resize_module(
    model: Any,
    optimizer: Any,
    found: Sequence[Tables],
    size: int,
    new_rows: NewRows,
    tx: optax.GradientTransformation | None,
) -> tuple[Any, Any, Tree]:
    edited, axes = _resize_tree(nnx.state(model), found, size, new_rows)
    modules.set_sizes(model, edited, axes, size)
    trained, opt_state = modules.trained_trees(model, optimizer)
    mask = _mask(trained, axes, found)
    if not isinstance(optimizer, nnx.Optimizer):
        return model, _resize_state(opt_state, found, trained, size, tx), mask
    fresh = modules.to_opt_state(optimizer.tx.init(trained))
    optimizer.opt_state = nnx.data(_merge(opt_state, found, fresh, size))
    return model, optimizer, mask


def _resize_tree(
    params: Tree, found: Sequence[Tables], size: int, new_rows: NewRows
) -> tuple[Tree, dict[Path, int]]:
    """Return the edited parameters, and the axis of the vocabulary in what was edited."""
    axes: dict[Path, int] = {}
    for tables in found:
        vocabulary, width = tables.shape[-2:]
        new = size - vocabulary
        if not isinstance(new_rows, str) and new > 0 and jnp.shape(new_rows) != (new, width):
            raise ValueError(f"new_rows are {jnp.shape(new_rows)}; expected {(new, width)}")
        axes[tables.input_now] = -2
        if tables.untied:
            axes[tables.output] = -1 if is_transposed(tables) else -2
        bias = (*tables.output[:-1], "bias")
        leaves = jax.tree.leaves(get(params, bias))
        if len(leaves) == 1 and leaves[0].shape[-1] == vocabulary:
            axes[bias] = -1
        for path in (tables.input_now, tables.output, bias):
            if path in axes:
                entry = get(params, path)
                rows = new_rows if new > 0 else "zeros"
                grow = partial(_resize_array, size=size, axis=axes[path], new_rows=rows)
                params = put(params, path, jax.tree.map(grow, entry))
    return params, axes


def _resize_array(array: jax.Array, size: int, axis: int, new_rows: NewRows) -> jax.Array:
    """Return a table or a bias with new entries along an axis."""
    if isinstance(new_rows, str) and new_rows == "zeros":
        fill = jnp.zeros((), array.dtype)
    elif isinstance(new_rows, str) or array.ndim < 2:
        wide = jnp.promote_types(array.dtype, jnp.float32)
        fill = jnp.mean(array, axis=axis, keepdims=True, dtype=wide).astype(array.dtype)
    else:
        rows = jnp.asarray(new_rows, array.dtype)
        rows = rows if axis == -2 else rows.T
        before = [(0, 0)] * rows.ndim
        before[axis] = (size - rows.shape[axis], 0)
        fill = jnp.pad(rows, before)
    return _join(array, fill, size, axis)


def _join(array: jax.Array, fill: jax.Array, size: int, axis: int) -> jax.Array:
    """Cut an array, or continue it with the values of `fill`; it stays split as it was."""
    shape = list(array.shape)
    shape[axis] = size
    sharding = getattr(array, "sharding", None)
    is_split = isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)
    if not is_split or sharding is None or len(sharding.device_set) == 1:
        return _join_whole(array, fill, size, axis)
    try:
        sharding.shard_shape(tuple(shape))
    except ValueError:
        raise ValueError(
            f"{len(sharding.device_set)} devices cannot share {size} tokens evenly; expected"
            " another size, or multiple=..."
        ) from None
    compiled = jax.jit(_join_whole, static_argnums=(2, 3), out_shardings=sharding)
    return compiled(array, fill, size, axis)


def _join_whole(array: jax.Array, fill: jax.Array, size: int, axis: int) -> jax.Array:
    length = array.shape[axis]
    if size <= length:
        return jax.lax.slice_in_dim(array, 0, size, axis=axis)
    after = [(0, 0, 0)] * array.ndim
    after[axis] = (0, size - length, 0)
    padded = jax.lax.pad(array, jnp.zeros((), array.dtype), after)
    is_old = jax.lax.broadcasted_iota(jnp.int32, padded.shape, axis % array.ndim) < length
    return jnp.where(is_old, padded, fill.reshape((1,) * (array.ndim - fill.ndim) + fill.shape))


def _resize_state(
    opt_state: Tree,
    found: Sequence[Tables],
    params: Tree,
    size: int,
    tx: optax.GradientTransformation | None,
) -> Tree:
    if not jax.tree.leaves(opt_state):
        return opt_state
    if tx is None:
        raise ValueError("an optimizer's state needs the optimizer; pass it as tx=...")
    return _merge(opt_state, found, tx.init(params), size)


def _merge(opt_state: Tree, found: Sequence[Tables], fresh: Tree, size: int) -> Tree:
    """Return the state with its old values, and with fresh ones for new rows."""
    outline, outlines = jax.tree.structure(fresh), map(_outline, (opt_state, fresh))
    if len({*outlines}) > 1:
        raise ValueError("the state is not of this optimizer; pass the one that made it as tx=...")
    before = {tables.shape[-2] for tables in found}

    def merge(old: jax.Array, new: jax.Array) -> jax.Array:
        changed = [i for i, pair in enumerate(zip(old.shape, new.shape)) if pair[0] != pair[1]]
        if old.ndim != new.ndim or len(changed) > 1:
            changed = [-1]
        elif not changed:
            return old
        (axis,) = changed
        if old.shape[axis] not in before or new.shape[axis] != size:
            raise ValueError(
                f"the optimizer keeps {old.shape} and would keep {new.shape}; it cannot be resized"
            )
        return _join(old, new, size, axis)

    return jax.tree.unflatten(outline, map(merge, *map(jax.tree.leaves, (opt_state, fresh))))


def _outline(state: Tree) -> Any:
    """Return the structure of a state, of its arrays if it has an NNX variable for each."""
    return jax.tree.structure(nnx.as_pure(state))


def _mask(params: Tree, axes: dict[Path, int], found: Sequence[Tables]) -> Tree:
    """Return a mask of the new rows, which broadcasts to the parameters."""
    before = {
        path: tables.shape[-2]
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
            return (jnp.arange(leaf.shape[axis]) >= before[path]).reshape(shape)

        mask = put(mask, path, jax.tree.map(new, get(params, path)))
    return mask
