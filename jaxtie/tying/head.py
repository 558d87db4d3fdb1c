"""Initial tables, lookup and logits as pure functions, with every head option.

What can be done to hidden states before the output table: coordinates in another order, or a
projection.

The vocabulary end of a model as pure functions: initial tables, rows of tokens, logits of hidden
states.

Parameters are a plain dictionary of arrays. A tied one has an `input` table only; an untied one has
`input` and `output`; one that is tied but for some rows has `input` and these rows of the output
table, `output_rows`.
Nothing else differs: code that is given parameters reads from their shape which it is.
`jaxtie.Embedding` (Flax linen) and
`jaxtie.nnx.Embedding` are views of what stands here.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxtie.config import Size, size
from jaxtie.tying.head import Tree, matmul


def half_swap(h_PxD: jax.Array) -> jax.Array:
    """(h_1 ... h_D) -> (h_D/2+1 ... h_D, h_1 ... h_D/2). A random vector and its half swap are
    nearly orthogonal.

    Proposed in kexue.fm/archives/9698. ValueError if D is odd.
    """
    return jnp.roll(h_PxD, _divide(h_PxD.shape[-1], 2), axis=-1)


def channel_shuffle(h_PxD: jax.Array, groups: int = 2) -> jax.Array:
    """The coordinates of every vector laid out as groups x D/groups, transposed and in a row again
    (ShuffleNet, CVPR 2018).

    1 + gcd(groups - 1, D - 1) coordinates stay where they are: 2 with 2 groups, but 8 of 64 with 8.
    ValueError if `groups` does not divide D.
    """
    width = h_PxD.shape[-1]
    grouped = h_PxD.reshape(*h_PxD.shape[:-1], groups, _divide(width, groups))
    return jnp.swapaxes(grouped, -1, -2).reshape(h_PxD.shape)


def _divide(width: int, groups: int) -> int:
    if width % groups:
        raise ValueError(
            f"the width is {width}; expected a multiple of {groups}, to take the coordinates apart"
        )
    return width // groups


@dataclasses.dataclass(frozen=True)
class Projection:
    """h -> norm(activation(h·P + b)), P orthogonal (DxD) at the start; with all three, the head of
    BERT (2018).

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

    def init(
        self, key: jax.Array, width: int, dtype: jax.typing.DTypeLike = jnp.float32
    ) -> dict[str, jax.Array]:
        """Initial values: `weight` DxD and, where there are, `bias`, `norm_weight`, `norm_bias`,
        each D.
        """
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
            h_PxD = (h_PxD - mean) * jax.lax.rsqrt(variance + self.eps) * of_each(
                "norm_weight"
            ) + of_each("norm_bias")
        return h_PxD


# What an end may have parameters for.
PARTS = frozenset({"input", "output", "output_rows", "bias", "projection", "transform"})

STRETCHES = 8  # of consecutive ids that are put together by slices; of more, by index


@dataclasses.dataclass(unsafe_hash=True)
class VocabularyEnd:
    """The vocabulary end of a model: input and output embedding, tied or not.

        rows = a·E_in[tokens]        `embedding(tokens)`; a: input_scale; also `table()`, all V rows
        logits = cap(s·f(h)·E_outᵀ + b)    `embedding.logits(h)`
        cap(x) = logit_softcap·tanh(x / logit_softcap)

    f: transform, s: logit_scale, b: bias; E_out = E_in if tied, but for the rows `untied_rows`.
    Whatever is not asked for is left out, not computed with a neutral value. Sizes may be numbers
    or the name of a formula in D and n = V, see `jaxtie.config.size`.

    Attributes:
      vocabulary, width: V and D; a table is VxD.
      tied: which parameters are made; rows and logits go by those that are there.
      init_std: the tables are N(0, init_std²) at the start.
      input_scale: a, "sqrt(D)" in Vaswani et al. (2017).
      transform: f, a function of vectors of length D such as `half_swap` or
        `partial(channel_shuffle, groups=4)`; or a `Projection`, which has parameters.
      logit_scale: s, for instance "1/sqrt(D)".
      bias: learn b, of length V, 0 at the start.
      logit_softcap: logits stay within ±logit_softcap (Gemma 2: 30).
      input_gradient, output_gradient: what the gradient of a table is multiplied by in that role; a
        tied table's is the sum of both.
      start: which table of the untied model of the same key a tied one has the initial values of.
      param_dtype: of all parameters.
      logits_dtype: of the logits, and what their sums are accumulated in; by default that of
        h·E_outᵀ.
      matmul_dtype: that h and E_out are rounded to for their product, and what their derivatives
        are products of; the logits then keep the dtype of h (bfloat16 on accelerators, with float32
        tables and loss).
      padding: a token id whose rows start at 0. As an input its row has no gradient, as PyTorch's
        `padding_idx`.
      untied_rows: of a tied end, ascending token ids whose output rows are not their input rows but
        parameters of their own, `output_rows`, KxD: special tokens, for instance. They start as
        these rows of the output table that the untied end of the same key has.
      excluded_rows: ascending token ids that are never predicted, such as padding and mask: their
        logits are so low that their probability is 0, and their output rows have no gradient. What
        a softmax makes of a target among them means nothing.
      partition: names of the mesh axes that V and D are split along. Of linen, for
        `nn.get_partition_spec`: parameters are boxed in `nn.Partitioned`; of NNX they are split
        where they are made, under `jax.set_mesh`. With V split and under
        `jax.set_mesh`, the look-up is a masked one on every device and a sum over them, logits stay
        split along V, and no device ever holds a whole table or its gradient. (Mesh axes of type
        Auto, V a multiple of their size.)
    """

    vocabulary: int
    width: int
    tied: bool = False
    init_std: Size = 1.0
    input_scale: Size | None = None
    transform: Callable[[jax.Array], jax.Array] | Projection | None = None
    logit_scale: Size | None = None
    bias: bool = False
    logit_softcap: float | None = None
    input_gradient: float = 1.0
    output_gradient: float = 1.0
    start: Literal["input", "output"] = "input"
    param_dtype: jax.typing.DTypeLike = jnp.float32
    logits_dtype: jax.typing.DTypeLike | None = None
    matmul_dtype: jax.typing.DTypeLike | None = None
    padding: int | None = None
    partition: tuple[str | None, str | None] | None = None
    untied_rows: tuple[int, ...] = ()
    excluded_rows: tuple[int, ...] = ()


def check_rows(end: VocabularyEnd) -> None:
    """Raise ValueError unless `untied_rows` and `excluded_rows` are rows that the end can have."""
    for name in ("untied_rows", "excluded_rows"):
        check_ids(name, getattr(end, name), end.vocabulary)
    if len(end.excluded_rows) == end.vocabulary:
        raise ValueError("excluded_rows are all rows; expected one that can be predicted")
    if end.untied_rows and not end.tied:
        raise ValueError("untied_rows: all rows are untied; expected tied=True")
    if end.untied_rows and end.start == "output":
        raise ValueError("untied_rows: expected start='input', for they start as the output rows")


def check_ids(name: str, ids: tuple[int, ...], vocabulary: int) -> None:
    """Raise ValueError unless these are ascending token ids."""
    if list(ids) != sorted({*ids}) or not all(0 <= row < vocabulary for row in ids):
        raise ValueError(f"{name} = {ids}: expected ascending ids in 0...{vocabulary - 1}")


def initial_table(
    end: VocabularyEnd,
    key: jax.Array,
    shape: tuple[int, int],
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> jax.Array:
    """A fresh table, VxD, as an end's `init_std` and `padding` say."""
    table_VxD = jax.nn.initializers.normal(_size(end, end.init_std))(key, shape, dtype)
    return table_VxD if end.padding is None else table_VxD.at[end.padding].set(0)


def initial_rows(
    end: VocabularyEnd,
    key: jax.Array,
    shape: tuple[int, int],
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> jax.Array:
    """The rows `untied_rows` of a fresh table, KxD; the shape is the table's."""
    return initial_table(end, key, shape, dtype)[jnp.array(end.untied_rows)]


def initial_params(end: VocabularyEnd, key: jax.Array) -> dict[str, Tree]:
    """Fresh parameters. What a tied and an untied end have in common starts as the same numbers."""
    check_rows(end)
    of_input, of_output, of_projection = jax.random.split(key, 3)
    make = partial(initial_table, end, shape=(end.vocabulary, end.width), dtype=end.param_dtype)
    params: dict[str, Tree] = {
        "input": make(of_output if end.tied and end.start == "output" else of_input)
    }
    if not end.tied:
        params["output"] = make(of_output)
    if end.untied_rows:
        shape = (end.vocabulary, end.width)
        params["output_rows"] = initial_rows(end, of_output, shape, end.param_dtype)
    if isinstance(end.transform, Projection):
        params["projection"] = end.transform.init(of_projection, end.width, end.param_dtype)
    if end.bias:
        params["bias"] = jnp.zeros(end.vocabulary, end.param_dtype)
    return params


def get_tables(params: Mapping, untied_rows: Sequence[int] = ()) -> tuple[jax.Array, jax.Array]:
    """The input and the output table of an end's parameters; of a tied one, the same table twice.

    `untied_rows`: the end's; needed where some rows are parameters of their own.
    """
    if "output_rows" in params:
        return params["input"], with_rows(params["input"], params["output_rows"], untied_rows)
    return params["input"], params.get("output", params["input"])


def with_rows(table_VxD: jax.Array, rows_KxD: jax.Array, ids: Sequence[int]) -> jax.Array:
    """`table.at[ids].set(rows)`, ids ascending; few stretches of ids are put together by slices.

    So it is as fast where indexing is slow, as on a CPU in lanes, and of all rows it is `rows`.
    """
    if len(ids) != len(rows_KxD):
        raise ValueError(
            f"{len(rows_KxD)} output_rows for untied_rows = {tuple(ids)}: as many expected"
        )
    starts = [i for i in range(len(ids)) if i == 0 or ids[i] != ids[i - 1] + 1]
    if len(starts) > STRETCHES:
        return table_VxD.at[jnp.array(ids)].set(rows_KxD)
    parts, done = [], 0
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        parts += [table_VxD[done : ids[start]], rows_KxD[start:end]]
        done = ids[end - 1] + 1
    parts = [part for part in (*parts, table_VxD[done:]) if len(part)]
    return jnp.concatenate(parts) if len(parts) > 1 else parts[0]


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
    _, table_VxD = get_tables(params, end.untied_rows)
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
    if end.logit_softcap is not None:
        logits_PxV = end.logit_softcap * jnp.tanh(logits_PxV / end.logit_softcap)
    if end.excluded_rows:
        predicted_V = ~np.isin(np.arange(end.vocabulary), end.excluded_rows)
        logits_PxV = jnp.where(predicted_V, logits_PxV, excluded_logit(logits_PxV.dtype))
    return logits_PxV


def excluded_logit(dtype: jax.typing.DTypeLike) -> float:
    """The logit of what is never predicted: exp of it is 0, and 0 times it is 0, as of -inf not."""
    return float(jnp.finfo(dtype).min) / 2


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
