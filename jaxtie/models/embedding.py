"""All of tying: the tables, what goes in through them, what comes out; tying and untying what is being trained.

A tied model is one whose parameter tree has an `input` table only; an untied one has `input` and `output`. Nothing else
differs: code that is given parameters reads from their shape which it is.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxtie.experiment import TRANSFORMS, Head
from jaxtie.formulas import Size, size
from jaxtie.models.layers import Tree, gelu, matmul

PARTS = frozenset({"input", "output", "bias", "projection", "transform"})  # what an `Embedding` may have parameters for


def half_swap(h_PxD: jax.Array) -> jax.Array:
    """(h_1 ... h_D) -> (h_D/2+1 ... h_D, h_1 ... h_D/2). A random vector and its half swap are nearly orthogonal.

    Proposed in kexue.fm/archives/9698. ValueError if D is odd.
    """
    return jnp.roll(h_PxD, _divide(h_PxD.shape[-1], 2), axis=-1)


def channel_shuffle(h_PxD: jax.Array, groups: int = 2) -> jax.Array:
    """The coordinates of every vector laid out as groups x D/groups, transposed and in a row again (ShuffleNet, CVPR 2018).

    1 + gcd(groups - 1, D - 1) coordinates stay where they are: 2 with 2 groups, but 8 of 64 with 8. ValueError if `groups`
    does not divide D.
    """
    width = h_PxD.shape[-1]
    grouped = h_PxD.reshape(*h_PxD.shape[:-1], groups, _divide(width, groups))
    return jnp.swapaxes(grouped, -1, -2).reshape(h_PxD.shape)


def _divide(width: int, groups: int) -> int:
    if width % groups:
        raise ValueError(f"the width is {width}; expected a multiple of {groups}, to take the coordinates apart")
    return width // groups


@dataclasses.dataclass(frozen=True)
class Projection:
    """h -> norm(activation(h·P + b)), P orthogonal (DxD) at the start; with all three, the head of BERT (2018).

    Attributes:
      bias: learn b, 0 at the start.
      activation: a function of each coordinate.
      norm: layer norm with learned weight and bias, 1 and 0 at the start.
      eps: of the norm; 1e-12 is BERT's.
    """

    bias: bool = False
    activation: Callable[[jax.Array], jax.Array] | None = None
    norm: bool = False
    eps: float = 1e-12

    def init(self, key: jax.Array, width: int, dtype: jax.typing.DTypeLike = jnp.float32) -> dict[str, jax.Array]:
        """Initial values: `weight` DxD and, where there are, `bias`, `norm_weight`, `norm_bias`, each D."""
        params = {"weight": nn.initializers.orthogonal()(key, (width, width), dtype)}
        if self.bias:
            params["bias"] = jnp.zeros(width, dtype)
        if self.norm:
            params |= {"norm_weight": jnp.ones(width, dtype), "norm_bias": jnp.zeros(width, dtype)}
        return params

    def apply(self, params: dict[str, jax.Array], h_PxD: jax.Array) -> jax.Array:
        """Hidden states projected, PxD."""

        def of_each(name: str) -> jax.Array:
            return params[name].reshape((1,) * (h_PxD.ndim - 1) + (-1,))

        h_PxD = h_PxD @ params["weight"]
        if self.bias:
            h_PxD = h_PxD + of_each("bias")
        if self.activation:
            h_PxD = self.activation(h_PxD)
        if self.norm:
            mean, variance = (of(h_PxD, axis=-1, keepdims=True) for of in (jnp.mean, jnp.var))
            h_PxD = (h_PxD - mean) * jax.lax.rsqrt(variance + self.eps) * of_each("norm_weight") + of_each("norm_bias")
        return h_PxD


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def scale_gradient(x: jax.Array, factor: float) -> jax.Array:
    """x itself; what comes back to it from a loss is multiplied by `factor`."""
    return x


@scale_gradient.defjvp
def _(factor, primals, tangents):
    return primals[0], tangents[0] * factor


class Embedding(nn.Module):
    """The vocabulary end of a model: input and output embedding, tied or not.

        rows = a·E_in[tokens]        a: input_scale; also `table()`, all V rows
        logits = cap(s·f(h)·E_outᵀ + b)    f: transform, s: logit_scale, b: bias, cap(x) = soft_cap·tanh(x / soft_cap)

    where E_out = E_in if tied. Whatever is not asked for is left out, not computed with a neutral value. Sizes may be
    numbers or the name of a formula in D and n = V, see `jaxtie.formulas.size`.

    Attributes:
      vocabulary, width: V and D; a table is VxD.
      tied: which tree `init` makes. `apply` goes by the tree it is given.
      deviation: the tables are N(0, deviation²) at the start.
      input_scale: a, "sqrt(D)" in Vaswani et al. (2017).
      transform: f, a function of vectors of length D such as `half_swap`, `partial(channel_shuffle, groups=4)`; or a
        `Projection`, which has parameters.
      logit_scale: s, for instance "1/sqrt(D)".
      bias: learn b, of length V, 0 at the start.
      soft_cap: logits stay within ±soft_cap (Gemma 2: 30).
      input_gradient, output_gradient: what the gradient of a table is multiplied by in that role; a tied table's is
        the sum of both.
      param_dtype: of all parameters.
      logits_dtype: of the logits, and what their sums are accumulated in; by default that of h·E_outᵀ.
      matmul_dtype: that h and E_out are rounded to for their product, and what their derivatives are products of; the
        logits then keep the dtype of h (bfloat16 on accelerators, with float32 tables and loss).
      padding: a token id whose rows start at 0. As an input its row has no gradient, as PyTorch's `padding_idx`.
      partition: names of the mesh axes that V and D are split along, for `nn.get_partition_spec`: parameters are then boxed
        in `nn.Partitioned`. With V split and under `jax.set_mesh`, the look-up is a masked one on every device and a sum
        over them, logits stay split along V, and no device ever holds a whole table or its gradient. (Mesh axes of type
        Auto, V a multiple of their size.)
    """

    vocabulary: int
    width: int
    tied: bool = False
    deviation: Size = 1.0
    input_scale: Size | None = None
    transform: Callable[[jax.Array], jax.Array] | Projection | None = None
    logit_scale: Size | None = None
    bias: bool = False
    soft_cap: float | None = None
    input_gradient: float = 1.0
    output_gradient: float = 1.0
    param_dtype: jax.typing.DTypeLike = jnp.float32
    logits_dtype: jax.typing.DTypeLike | None = None
    matmul_dtype: jax.typing.DTypeLike | None = None
    padding: int | None = None
    partition: tuple[str | None, str | None] | None = None

    def setup(self):
        def split(init: nn.initializers.Initializer, axes: tuple[str | None, ...]) -> Callable:
            return nn.with_partitioning(init, axes) if self.partition else init

        rows, columns = self.partition or (None, None)
        table = split(self._start, (rows, columns))
        shape = (self.vocabulary, self.width)
        self.input = self.param("input", table, shape, self.param_dtype)
        untied = not self.tied if self.is_initializing() else self.has_variable("params", "output")
        self.output = self.param("output", table, shape, self.param_dtype) if untied else self.input
        if isinstance(self.transform, Projection):
            if self.is_initializing() and self.tied:
                self.make_rng("params")  # the output table's, so the projection is the same numbers, tied or not
            self.projection = self.param("projection", self.transform.init, self.width, self.param_dtype)
        if self.bias:
            bias = split(nn.initializers.zeros, (rows,))
            self.output_bias = self.param("bias", bias, (self.vocabulary,), self.param_dtype)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """The rows of the input table that belong to token ids of any shape; (..., D)."""
        return self._as_input(self.input[tokens], tokens)

    def table(self) -> jax.Array:
        """The input table as a model sees it: the rows of all V tokens; VxD."""
        return self._as_input(self.input, jnp.arange(self.vocabulary))

    def logits(self, h_PxD: jax.Array) -> jax.Array:
        """Hidden states, with any leading axes, against the output table; PxV."""
        if isinstance(self.transform, Projection):
            h_PxD = self.transform.apply(self.projection, h_PxD)
        elif self.transform:
            h_PxD = self.transform(h_PxD)
        table_VxD = self.output if self.output_gradient == 1 else scale_gradient(self.output, self.output_gradient)
        if self.matmul_dtype is not None:
            logits_PxV = matmul(h_PxD, table_VxD, self.matmul_dtype)  # PxD: no leading axes
        else:
            logits_PxV = jnp.matmul(h_PxD, table_VxD.T, preferred_element_type=self.logits_dtype)
        if self.logit_scale is not None:
            logits_PxV = logits_PxV * self._size(self.logit_scale)
        if self.bias:
            bias_V = self.output_bias.astype(logits_PxV.dtype)
            logits_PxV = logits_PxV + bias_V.reshape((1,) * (logits_PxV.ndim - 1) + (-1,))
        if self.soft_cap is not None:
            logits_PxV = self.soft_cap * jnp.tanh(logits_PxV / self.soft_cap)
        return logits_PxV

    def _start(self, key: jax.Array, shape: tuple[int, int], dtype: jax.typing.DTypeLike) -> jax.Array:
        table_VxD = nn.initializers.normal(self._size(self.deviation))(key, shape, dtype)
        return table_VxD if self.padding is None else table_VxD.at[self.padding].set(0)

    def _as_input(self, rows: jax.Array, tokens: jax.Array) -> jax.Array:
        if self.padding is not None:
            rows = jnp.where((tokens == self.padding)[..., None], jax.lax.stop_gradient(rows), rows)
        if self.input_gradient != 1:
            rows = scale_gradient(rows, self.input_gradient)
        return rows if self.input_scale is None else rows * self._size(self.input_scale)

    def _size(self, value: Size) -> float:
        return size(value, self.vocabulary, self.width)


def make_embedding(
    head: Head,
    vocabulary: int,
    width: int,
    *,
    tied: bool,
    deviation: Size = 1.0,
    padding: int | None = None,
    matmul_dtype: jax.typing.DTypeLike | None = None,
) -> Embedding:
    """The vocabulary end that a head declares.

    Args:
      tied: which tree `init` makes.
      deviation: of the tables, where the head names none.
      vocabulary, width, padding, matmul_dtype: see `Embedding`.
    """
    return Embedding(
        vocabulary,
        width,
        tied,
        deviation=deviation if head.deviation is None else head.deviation,
        input_scale=head.input_scale,
        transform=_make_transform(head),
        logit_scale=head.logit_scale,
        bias=head.bias,
        soft_cap=head.soft_cap,
        input_gradient=head.input_gradient,
        output_gradient=head.output_gradient,
        matmul_dtype=matmul_dtype,
        padding=padding,
    )


def _make_transform(head: Head) -> Callable[[jax.Array], jax.Array] | Projection | None:
    match head.transform:
        case None:
            return None
        case "half-swap":
            return half_swap
        case "shuffle":
            return partial(channel_shuffle, groups=head.groups)
        case "projection":
            return Projection()
        case "bert-head":
            return Projection(bias=True, activation=gelu, norm=True)
    raise ValueError(f"a head's transform is {head.transform!r}; expected one of {', '.join(TRANSFORMS)}")


def tables_of_params(params: dict) -> tuple[jax.Array, jax.Array]:
    """The input and the output table of an `Embedding`'s parameters; of a tied one, the same table twice."""
    return params["input"], params.get("output", params["input"])


def untie(params: Tree, opt_state: Tree = ()) -> tuple[Tree, Tree]:
    """Give every embedding an output table of its own: a copy of its input table, moments included.

    Nothing else changes, so logits and loss do not. (The author's proposal, ICML 2024, "untying midway".) Works on single
    and stacked members, host and device arrays, under `jit` and `vmap`.

    Args:
      params: a parameter tree with one or more `Embedding`s at any depth (dictionaries with a table `input` and nothing
        else than `Embedding` has); those that are untied stay as they are.
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

    def count_bytes(tree: Tree) -> int:
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))

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
    edited = jax.tree.map(
        lambda node: edit(params, node) if is_like_params(node) else node, opt_state, is_leaf=is_like_params
    )
    return edit(params, params), edited


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
    return isinstance(node, Mapping) and "input" in node.keys() <= PARTS and not isinstance(node["input"], Mapping)


def _embeddings(params: Tree) -> list[Mapping]:
    found = [node for node in jax.tree.leaves(params, is_leaf=_is_embedding) if _is_embedding(node)]
    if not found:
        raise ValueError("no embedding (a dictionary with a table `input`, as `Embedding` makes it) in the parameters")
    return found
