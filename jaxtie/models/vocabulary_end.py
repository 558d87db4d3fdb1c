"""The vocabulary end of a model as pure functions: initial tables, rows of tokens, logits of hidden states.

Parameters are a plain dictionary of arrays. A tied one has an `input` table only; an untied one has `input` and `output`.
Nothing else differs: code that is given parameters reads from their shape which it is. `jaxtie.Embedding` (Flax linen) and
`jaxtie.nnx.Embedding` are views of what stands here.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from jaxtie.formulas import Size, size
from jaxtie.models.layers import Tree, matmul
from jaxtie.models.transforms import Projection

PARTS = frozenset({"input", "output", "bias", "projection", "transform"})  # what an end may have parameters for


@dataclasses.dataclass(unsafe_hash=True)
class VocabularyEnd:
    """The vocabulary end of a model: input and output embedding, tied or not.

        rows = a·E_in[tokens]        `embedding(tokens)`; a: input_scale; also `table()`, all V rows
        logits = cap(s·f(h)·E_outᵀ + b)    `embedding.logits(h)`; f: transform, s: logit_scale, b: bias
        cap(x) = soft_cap·tanh(x / soft_cap)

    where E_out = E_in if tied. Whatever is not asked for is left out, not computed with a neutral value. Sizes may be
    numbers or the name of a formula in D and n = V, see `jaxtie.formulas.size`.

    Attributes:
      vocabulary, width: V and D; a table is VxD.
      tied: which parameters are made; rows and logits go by those that are there.
      deviation: the tables are N(0, deviation²) at the start.
      input_scale: a, "sqrt(D)" in Vaswani et al. (2017).
      transform: f, a function of vectors of length D such as `half_swap`, `partial(channel_shuffle, groups=4)`; or a
        `Projection`, which has parameters.
      logit_scale: s, for instance "1/sqrt(D)".
      bias: learn b, of length V, 0 at the start.
      soft_cap: logits stay within ±soft_cap (Gemma 2: 30).
      input_gradient, output_gradient: what the gradient of a table is multiplied by in that role; a tied table's is
        the sum of both.
      start: which table of the untied model of the same key a tied one has the initial values of.
      param_dtype: of all parameters.
      logits_dtype: of the logits, and what their sums are accumulated in; by default that of h·E_outᵀ.
      matmul_dtype: that h and E_out are rounded to for their product, and what their derivatives are products of; the
        logits then keep the dtype of h (bfloat16 on accelerators, with float32 tables and loss).
      padding: a token id whose rows start at 0. As an input its row has no gradient, as PyTorch's `padding_idx`.
      partition: names of the mesh axes that V and D are split along. Of linen, for `nn.get_partition_spec`: parameters are
        boxed in `nn.Partitioned`; of NNX they are split where they are made, under `jax.set_mesh`. With V split and under
        `jax.set_mesh`, the look-up is a masked one on every device and a sum over them, logits stay split along V, and no
        device ever holds a whole table or its gradient. (Mesh axes of type Auto, V a multiple of their size.)
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
    start: Literal["input", "output"] = "input"
    param_dtype: jax.typing.DTypeLike = jnp.float32
    logits_dtype: jax.typing.DTypeLike | None = None
    matmul_dtype: jax.typing.DTypeLike | None = None
    padding: int | None = None
    partition: tuple[str | None, str | None] | None = None


def initial_table(
    end: VocabularyEnd, key: jax.Array, shape: tuple[int, int], dtype: jax.typing.DTypeLike = jnp.float32
) -> jax.Array:
    """A fresh table, VxD, as an end's `deviation` and `padding` say."""
    table_VxD = jax.nn.initializers.normal(_size(end, end.deviation))(key, shape, dtype)
    return table_VxD if end.padding is None else table_VxD.at[end.padding].set(0)


def initial_params(end: VocabularyEnd, key: jax.Array) -> dict[str, Tree]:
    """Fresh parameters. What a tied and an untied end have in common starts as the same numbers."""
    of_input, of_output, of_projection = jax.random.split(key, 3)
    make = partial(initial_table, end, shape=(end.vocabulary, end.width), dtype=end.param_dtype)
    params = {"input": make(of_output if end.tied and end.start == "output" else of_input)}
    if not end.tied:
        params["output"] = make(of_output)
    if isinstance(end.transform, Projection):
        params["projection"] = end.transform.init(of_projection, end.width, end.param_dtype)
    if end.bias:
        params["bias"] = jnp.zeros(end.vocabulary, end.param_dtype)
    return params


def tables_of_params(params: Mapping) -> tuple[jax.Array, jax.Array]:
    """The input and the output table of an end's parameters; of a tied one, the same table twice."""
    return params["input"], params.get("output", params["input"])


def rows_of_tokens(end: VocabularyEnd, params: Mapping, tokens: jax.Array) -> jax.Array:
    """The rows of the input table that belong to token ids of any shape; (..., D)."""
    return _as_input(end, params["input"][tokens], tokens)


def whole_table(end: VocabularyEnd, params: Mapping) -> jax.Array:
    """The input table as a model sees it: the rows of all V tokens; VxD."""
    return _as_input(end, params["input"], jnp.arange(end.vocabulary))


def logits_of_hidden(end: VocabularyEnd, params: Mapping, h_PxD: jax.Array) -> jax.Array:
    """Hidden states, with any leading axes, against the output table; PxV."""
    if isinstance(end.transform, Projection):
        h_PxD = end.transform.apply(params["projection"], h_PxD)
    elif end.transform:
        h_PxD = end.transform(h_PxD)
    _, table_VxD = tables_of_params(params)
    if end.output_gradient != 1:
        table_VxD = scale_gradient(table_VxD, end.output_gradient)
    if end.matmul_dtype is not None:
        logits_PxV = matmul(h_PxD, table_VxD, end.matmul_dtype)  # PxD: no leading axes
    else:
        logits_PxV = jnp.matmul(h_PxD, table_VxD.T, preferred_element_type=end.logits_dtype)
    if end.logit_scale is not None:
        logits_PxV = logits_PxV * _size(end, end.logit_scale)
    if end.bias:
        bias_V = params["bias"].astype(logits_PxV.dtype)
        logits_PxV = logits_PxV + bias_V.reshape((1,) * (logits_PxV.ndim - 1) + (-1,))
    if end.soft_cap is not None:
        logits_PxV = end.soft_cap * jnp.tanh(logits_PxV / end.soft_cap)
    return logits_PxV


def _as_input(end: VocabularyEnd, rows: jax.Array, tokens: jax.Array) -> jax.Array:
    if end.padding is not None:
        rows = jnp.where((tokens == end.padding)[..., None], jax.lax.stop_gradient(rows), rows)
    if end.input_gradient != 1:
        rows = scale_gradient(rows, end.input_gradient)
    return rows if end.input_scale is None else rows * _size(end, end.input_scale)


def _size(end: VocabularyEnd, value: Size) -> float:
    return size(value, end.vocabulary, end.width)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def scale_gradient(x: jax.Array, factor: float) -> jax.Array:
    """x itself; what comes back to it from a loss is multiplied by `factor`."""
    return x


@scale_gradient.defjvp
def _(factor, primals, tangents):
    return primals[0], tangents[0] * factor
