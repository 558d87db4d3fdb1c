"""Tying and untying what is being trained: parameters or modules, and what an optimizer keeps for
them.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeVar, get_args

import jax
from flax import nnx

from jaxtie.tying import nnx as modules
from jaxtie.tying import trees
from jaxtie.tying.head import Tree
from jaxtie.tying.trees import (
    How,
    Place,
    Surgery,
    Tables,
    find_tables,
    operate,
    tied_tree,
    untied_tree,
    with_untied_rows,
)

Params = TypeVar("Params")


def untie(
    params: Params,
    opt_state: Tree = (),
    *,
    input: Place | None = None,
    output: Place | None = None,
    transposed: bool = False,
    untied_rows: Sequence[int] = (),
) -> tuple[Params, Tree]:
    """Give every embedding an output table of its own: a copy of its input table, moments included.

    Nothing else changes, so logits and loss do not. (The author's proposal, ICML 2024, "untying
    midway".) Works on single and stacked members, host, device and split arrays, under `jit` and
    `vmap`.

        params, opt_state = untie(params, opt_state)           what `jaxtie.Embedding` made, in a
        tree of any shape untie(model, optimizer)                                an `nnx.Module` and
        its `nnx.Optimizer`, in place untie(params, opt_state, input="token_embedder/embedding",
        output="decoder/logits_dense/kernel", transposed=True)

    Args:
      params: a parameter tree. Without paths: one with `Embedding`s at any depth (dictionaries with
        a table `input` and nothing else than `Embedding` has). With paths: dictionaries, NNX
        states, Equinox modules, anything that is a tree to JAX. Or an `nnx.Module`: with paths;
        with `jaxtie.nnx.Embedding`s; or with one `nnx.Embed` whose `attend` makes the logits, see
        `jaxtie.nnx.UntiedEmbed`. What is untied stays as it is.
      opt_state: the state of any Optax optimizer for `params`. What belongs to the tables is found
        by structure: in every part of the state that is laid out as `params` (where a leaf may have
        become a tree of its own, of any shapes, and
        `optax.MaskedNode` may stand for any part), the input's entry is copied. Masks and labels of
        the optimizer must fit both trees and treat both tables alike, as functions and prefix trees
        do. `optax.flatten` has no such structure.
      input, output: paths of the two tables, "a/b/c" or keys one by one. In a dictionary the
        output's is new; in an Equinox module it is there and None.
      untied_rows: ids of the output rows of its own that a partly tied `Embedding` has, as it was
        given them; a module of NNX knows them. They and their moments are put into the new table;
        statistics of columns stay those of the input table.
      transposed: the output table is D×V, not V×D as the input table; the moments of its shape too.
        (What an optimizer keeps of a table's rows and columns stays: it can be told apart by
        length.) A `jaxtie.nnx.Transposed` says so itself.

    Returns:
      The new parameters and the new state; of an `nnx.Module` itself and its optimizer.

    Raises:
      ValueError: if `params` has no embedding, or nothing at the path; if a part of the state
        cannot go along.
    """
    if isinstance(params, nnx.Module):
        return modules.untie_module(params, opt_state, input, output, transposed)
    found = find_tables(params, input, output, transposed)
    found = [with_untied_rows(tables, params, untied_rows) for tables in found]
    apart = [tables for tables in found if not tables.untied]
    return operate(untied_tree, apart, params, opt_state)


def tie(
    params: Params,
    opt_state: Tree = (),
    how: How = "mean",
    *,
    input: Place | None = None,
    output: Place | None = None,
    transposed: bool | None = None,
    untied_rows: Sequence[int] = (),
) -> tuple[Params, Tree]:
    """The reverse of `untie`: one table, and its moments, that are the input's, the output's or the
    mean of both.

    The mean of what is not a floating-point number is the input's. `tie(*untie(x)) == x`, whatever
    `how`. The table stays where the input table was, stacked and split as that; nothing is left at
    the output. In an `nnx.Module` whose tables are named by paths, both places share one
    `nnx.Param` from then on; a D×V table becomes a `jaxtie.nnx.Transposed` of it.

    Args:
      params, opt_state, input, output: see `untie`.
      untied_rows: ids of rows that stay untied, for an `Embedding` with the same; they and their
        moments are as the output's are, and the input's rows as they were. A module of NNX knows
        them. What is partly tied stays as it is.
      transposed: whether the output table is D×V; found by its shape, but of a square one it must
        be said.

    Raises:
      ValueError: as `untie`; if the tables' shapes do not fit; if `how` is none of the three.
    """
    if how not in (choices := get_args(How)):
        raise ValueError(f"how is {how!r}; expected one of {', '.join(choices)}")
    if isinstance(params, nnx.Module):
        return modules.tie_module(params, opt_state, how, input, output, transposed)
    found = find_tables(params, input, output, transposed)
    found = [with_untied_rows(tables, params, untied_rows) for tables in found]
    together = [tables for tables in found if tables.untied]
    return operate(partial(tied_tree, how), together, params, opt_state)


def is_tied(params: Tree, *, input: Place | None = None, output: Place | None = None) -> bool:
    """Whether every embedding in `params`, or the one at these paths, has one table only.
    ValueError if there is none.
    """
    if isinstance(params, nnx.Module):
        found = modules.find_in_module(params, input, output)
    else:
        found = find_tables(params, input, output)
    return not any(tables.untied or tables.partly for tables in found)


def count_parameters(tree: Tree) -> int:
    """The number of values in a tree of arrays or of their shapes; of stacked members, all of
    them.
    """
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


class Saving(NamedTuple):
    """What tying saves: V·D parameters and, of most optimizers, as many of each moment (of a
    factored one, about V + D).
    """

    parameters: int
    moments: int
    bytes: int


def saved_by_tying(
    params: Tree, opt_state: Tree = (), *, input: Place | None = None, output: Place | None = None
) -> Saving:
    """Parameters and moments (numbers of values) and bytes of both, saved by tying, whether tied
    now or not.

    Where rows are untied, what tying all others saves.

    Args:
      params, opt_state, input, output: see `untie`.
    """
    if isinstance(params, nnx.Module):
        found = modules.find_in_module(params, input, output)
        params, opt_state = modules.trees_of(params, opt_state)
        # what is trained
        found = [tables for tables in found if trees.look(params, tables.now) is not None]
    else:
        found = find_tables(params, input, output)
    # A module of Equinox may have leaves that are no arrays.
    params = jax.tree.map(lambda leaf: leaf if hasattr(leaf, "shape") else None, params)

    def count_bytes(tree: Tree) -> int:
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))

    def changed(surgery: Surgery, now_untied: bool) -> tuple[Tree, Tree]:
        change = partial(
            operate, surgery, [tables for tables in found if tables.untied == now_untied]
        )
        return jax.eval_shape(change, params, opt_state)

    def of_any_rows(tables: Tables, tree: Tree) -> Tree:
        if not tables.partly:
            return untied_tree(tables, tree)
        (own,) = jax.tree.leaves(trees.look(params, tables.rows))
        return untied_tree(tables._replace(untied_rows=tuple(range(own.shape[-2]))), tree)

    one, two = changed(partial(tied_tree, "input"), True), changed(of_any_rows, False)
    parameters, moments = (
        count_parameters(more) - count_parameters(less) for more, less in zip(two, one, strict=True)
    )
    return Saving(parameters, moments, count_bytes(two) - count_bytes(one))
