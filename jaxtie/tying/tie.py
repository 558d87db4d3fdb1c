"""Tie and untie a model during training: parameters or modules, and the optimizer's state."""

import math
from functools import partial
from typing import TypeVar, get_args

import jax
import optax
from flax import nnx

from jaxtie.tying import nnx as modules
from jaxtie.tying import trees
from jaxtie.tying.equinox import check_owner, share, unshare
from jaxtie.tying.groups import edit_state, find_unused_group
from jaxtie.tying.head import Tree
from jaxtie.tying.trees import How, Place, Tables

AnyModel = TypeVar("AnyModel")


def untie(
    params: AnyModel,
    opt_state: Tree = (),
    *,
    input: Place | None = None,
    output: Place | None = None,
    transposed: bool = False,
    tx: optax.GradientTransformation | None = None,
) -> tuple[AnyModel, Tree]:
    """Give every embedding an output table: a copy of its input table, moments included.

    So logits and loss do not change. (Proposed by the author, ICML 2024, as "untying midway".)
    Works on stacked members and on split arrays, under `jit` and `vmap`. In NNX's tree mode call it
    outside `nnx.jit`, which then does not return new variables.

        params, opt_state = untie(params, opt_state)    # `jaxtie.Embedding`s in a tree
        untie(model, optimizer)                         # an `nnx.Module`, in place
        untie(params, opt_state, input="token_embedder/embedding",
              output="decoder/logits_dense/kernel", transposed=True)

    Args:
      params: a tree: without paths, one with `Embedding`s at any depth (dictionaries with a table
        `input` and only keys of `Embedding`); with paths, any. Or an `nnx.Module`: with paths, with
        `jaxtie.nnx.Embedding`s, or with one `nnx.Embed` whose `attend` makes the logits. Untied
        embeddings stay as they are.
      opt_state: the state of any Optax optimizer for `params`, but `optax.flatten`. Wherever a part
        has the structure of `params` (a leaf may have become a tree, and `optax.MaskedNode` may
        replace any part), the input's entry is copied. Masks and labels must be functions, and
        treat both tables alike unless `tx` is given.
      input: path of the input table: "a/b/c", a sequence of keys, or a key path of JAX.
      output: path of the output table. In a dictionary it is created; in an Equinox module it
        exists and is None, or an `eqx.nn.Shared` fills it in.
      transposed: the output table is D×V, and so are its moments; a `jaxtie.nnx.Transposed`
        implies it.
      tx: the optimizer from now on, the same or another; needed if it has the tables in different
        groups (`optax.multi_transform`, masks). Moments and counts of steps are carried over; what
        the state lacks starts as `tx.init` makes it. Only moments of parameters that it freezes may
        go; where groups become one, the largest count stays. An `nnx.Optimizer` gives its own.

    Returns:
      The new parameters and the new state; for an `nnx.Module`, the module and its optimizer.

    Raises:
      ValueError: if `params` has no embedding, no table at the path, or shapes instead of arrays;
        if an embedding has `untied_rows`; if a part of the state cannot be edited likewise, is of
        other parameters, or has no place in `tx`.
    """
    trees.check_arrays("untie", params, opt_state)
    tied = [tables for tables in find(params, input, output, transposed) if not tables.untied]
    trees.refuse_own_rows(tied)
    if isinstance(params, nnx.Module):
        return modules.untie_module(params, opt_state, tied, tx)
    if tx is None and tied and (label := find_unused_group(params, opt_state)) is not None:
        raise ValueError(
            f"the optimizer's group {label!r} has no parameter yet; pass the optimizer as tx=...,"
            " which finds the group of the output table"
        )
    untied, opt_state = edit_state(trees.untie_tree, tied, params, opt_state, tx and tx.init)
    return unshare(untied, tied, params), opt_state


def tie(
    params: AnyModel,
    opt_state: Tree = (),
    how: How = "mean",
    *,
    input: Place | None = None,
    output: Place | None = None,
    transposed: bool | None = None,
    tx: optax.GradientTransformation | None = None,
) -> tuple[AnyModel, Tree]:
    """Undo `untie`: keep one table, and its moments: the input's, the output's or their mean.

    `tie(*untie(x)) == x` for every `how`. Arrays that are not floating-point are the input's. The
    table stays where the input table was, stacked and split like it; the output is removed. In an
    `nnx.Module` whose tables are named by paths, both places then share one `nnx.Param`; a D×V
    table becomes a `jaxtie.nnx.Transposed` of it.

    Arguments are those of `untie`, but `transposed` is inferred unless the table is square. An
    embedding with `untied_rows` stays as it is. With `tx`, a moment that only one table has is this
    one.

    Raises:
      ValueError: as `untie`; if the tables' shapes do not fit, or their dtypes, unless `how` is
        "input"; if `how` is none of the three.
    """
    if how not in (choices := get_args(How)):
        raise ValueError(f"how is {how!r}; expected one of {', '.join(choices)}")
    trees.check_arrays("tie", params, opt_state)
    untied = [tables for tables in find(params, input, output, transposed) if tables.untied]
    for tables in untied if how != "input" else ():
        trees.check_dtypes(tables, nnx.state(params) if isinstance(params, nnx.Module) else params)
    if isinstance(params, nnx.Module):
        return modules.tie_module(params, opt_state, how, untied, tx)
    for tables in untied:
        check_owner(params, tables)
    edit = partial(trees.tie_tree, how)
    tied, opt_state = edit_state(edit, untied, params, opt_state, tx and tx.init)
    return share(tied, untied), opt_state


def find(
    params: Tree, input: Place | None, output: Place | None, transposed: bool | None = None
) -> list[Tables]:
    """Find the embedding at these paths, or all, in a tree or in a module."""
    look = modules.find_in_module if isinstance(params, nnx.Module) else trees.find_tables
    return look(params, input, output, transposed)


def is_tied(params: Tree, *, input: Place | None = None, output: Place | None = None) -> bool:
    """Return whether every embedding, or the one at these paths, has one table only.

    Raises:
      ValueError: if there is no embedding.
    """
    return not any(tables.untied or tables.partly_tied for tables in find(params, input, output))


def count_parameters(tree: Tree) -> int:
    """Count the values in a tree of arrays or of their shapes, stacked members included."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
