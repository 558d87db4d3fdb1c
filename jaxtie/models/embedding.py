"""All of tying: the tables, what goes in through them, what comes out; tying and untying what is being trained.

A tied model is one whose parameter tree has an `input` table only; an untied one has `input` and `output`. Nothing else
differs: code that is given parameters reads from their shape which it is.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

Tree = Any  # a pytree: parameters, or the state of an optimiser

PARTS = frozenset({"input", "output"})  # the names of an `Embedding`'s parameters


class Embedding(nn.Module):
    """The vocabulary end of a model: input and output embedding, tied or not.

    Attributes:
      vocabulary, width: V and D; a table is VxD, N(0, 1) at the start.
      tied: which tree `init` makes. `apply` goes by the tree it is given.
    """

    vocabulary: int
    width: int
    tied: bool = False

    def setup(self):
        shape = (self.vocabulary, self.width)
        self.input = self.param("input", nn.initializers.normal(1.0), shape)
        untied = not self.tied if self.is_initializing() else self.has_variable("params", "output")
        self.output = self.param("output", nn.initializers.normal(1.0), shape) if untied else self.input

    def logits(self, h_PxD: jax.Array) -> jax.Array:
        """Hidden states against the output embedding: no bias, no scaling; PxV."""
        return h_PxD @ self.output.T


def tables(params: dict) -> tuple[jax.Array, jax.Array]:
    """The input and the output table of an `Embedding`'s parameters; of a tied one, the same table twice."""
    return params["input"], params.get("output", params["input"])


def untie(params: Tree, opt_state: Tree = ()) -> tuple[Tree, Tree]:
    """Give every embedding an output table of its own: a copy of its input table, moments included.

    Nothing else changes, so logits and loss do not. (The author's proposal, ICML 2024, "untying midway".) Works on single
    and stacked members, host and device arrays, under `jit` and `vmap`.

    Args:
      params: a parameter tree with one or more `Embedding`s at any depth; those that are untied stay as they are.
      opt_state: the state of any Optax optimiser for `params`. What belongs to the tables is found by structure: in every
        part of the state that is laid out as `params` (where a leaf may have become a tree of its own, of any shapes, and
        `optax.MaskedNode` may stand for any part), the input's entry is copied. Masks and labels of the optimiser must fit
        both trees and treat both tables alike, as functions and prefix trees do. `optax.flatten` has no such structure.

    Returns:
      The new parameters and the new state.

    Raises:
      ValueError: if `params` has no embedding.
    """
    return _operate(_untie, params, opt_state)


def tie(params: Tree, opt_state: Tree = (), how: Literal["input", "output", "mean"] = "mean") -> tuple[Tree, Tree]:
    """The reverse of `untie`: one table, and its moments, that are the input's, the output's or the mean of both.

    The mean of what is not a floating-point number is the input's. `tie(*untie(x)) == x`, whatever `how`.

    Raises:
      ValueError: if `params` has no embedding, or `how` is none of the three.
    """
    if how not in (choices := ("input", "output", "mean")):
        raise ValueError(f"how is {how!r}; expected one of {', '.join(choices)}")
    return _operate(partial(_tie, how=how), params, opt_state)


def is_tied(params: Tree) -> bool:
    """Whether every embedding in `params` has one table only. ValueError if there is none."""
    return all("output" not in embedding for embedding in _embeddings(params))


def count_parameters(tree: Tree) -> int:
    """The number of values in a tree of arrays or of their shapes; of stacked members, all of them."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


class Saving(NamedTuple):
    """What tying saves: V·D parameters and, of most optimisers, as many of each moment (of a factored one, about V + D)."""

    parameters: int
    moments: int
    bytes: int


def saved_by_tying(params: Tree, opt_state: Tree = ()) -> Saving:
    """Parameters and moments (numbers of values) and bytes of both, saved by tying, whether tied now or not."""
    count_bytes = lambda tree: sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
    one, two = (jax.eval_shape(operation, params, opt_state) for operation in (tie, untie))
    parameters, moments = (count_parameters(more) - count_parameters(less) for more, less in zip(two, one, strict=True))
    return Saving(parameters, moments, count_bytes(two) - count_bytes(one))


def _untie(embedding: Mapping) -> Mapping:
    # A copy, not a second reference: a step that is given its state to keep could not take the same array twice.
    output = embedding.get("output", jax.tree.map(lambda leaf: leaf.copy(), embedding["input"]))
    return type(embedding)({**embedding, "output": output})


def _tie(embedding: Mapping, how: str) -> Mapping:
    def mean(a: jax.Array, b: jax.Array) -> jax.Array:  # exactly a where a = b
        return (a + b) / 2 if jnp.issubdtype(a.dtype, jnp.floating) else a

    rest = {name: value for name, value in embedding.items() if name != "output"}
    if "output" not in embedding or how == "input":
        table = embedding["input"]
    elif how == "output":
        table = embedding["output"]
    else:
        table = jax.tree.map(mean, embedding["input"], embedding["output"])
    return type(embedding)({**rest, "input": table})


def _operate(operation: Callable[[Mapping], Mapping], params: Tree, opt_state: Tree) -> tuple[Tree, Tree]:
    """`operation` on every embedding of `params` and on what `opt_state` keeps for it."""
    _embeddings(params)  # raises if there is none

    def edit(like: Tree, node: Tree) -> Tree:
        if isinstance(node, optax.MaskedNode) or jax.tree_util.all_leaves([like]):
            return node
        if _is_embedding(like):
            return operation(node)
        nodes, outer = _children(node)
        return jax.tree.unflatten(outer, map(edit, _children(like)[0], nodes))

    is_like_params = partial(_is_like, params)
    edit_like_params = lambda node: edit(params, node) if is_like_params(node) else node
    return edit(params, params), jax.tree.map(edit_like_params, opt_state, is_leaf=is_like_params)


def _is_like(params: Tree, node: Tree) -> bool:
    """Whether `node` is laid out as `params`, see `untie`."""
    if isinstance(node, optax.MaskedNode) or jax.tree_util.all_leaves([params]):
        return True
    (likes, like), (nodes, outer) = _children(params), _children(node)
    return outer == like and all(map(_is_like, likes, nodes))


def _children(tree: Tree) -> tuple[list, Any]:
    """A tree taken apart by one level."""
    return jax.tree.flatten(tree, is_leaf=lambda node: node is not tree)


def _is_embedding(node: Tree) -> bool:
    return isinstance(node, Mapping) and node.keys() <= PARTS and not isinstance(node.get("input", node), Mapping)


def _embeddings(params: Tree) -> list[Mapping]:
    found = [node for node in jax.tree.leaves(params, is_leaf=_is_embedding) if _is_embedding(node)]
    if not found:
        raise ValueError("no embedding (a dictionary with a table `input`, as `Embedding` makes it) in the parameters")
    return found
