"""Initial tables, lookup and logits as pure functions, with every head option.

Parameters are a plain dictionary of arrays. Its keys say whether the embeddings are tied: tied
ones have the table `input` only, untied ones `input` and `output`, partly tied ones `input` and the
untied rows of the output table, `output_rows`. `jaxtie.Embedding` (Flax linen) and
`jaxtie.nnx.Embedding` wrap these functions.

Shapes: D width, V vocabulary, K untied rows, P any leading axes, R rows, F outputs.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding

from jaxtie.config import Size, size

Tree = Any  # a pytree: parameters, or the state of an optimizer

# `log_scale`: of arms with +learned-scale
PARTS = frozenset({"input", "output", "output_rows", "bias", "projection", "log_scale"})
MAX_SLICES = 8  # runs of consecutive row ids that `replace_rows` joins by slices


def gelu(x: jax.Array) -> jax.Array:
    """Exact GELU by erf, as in PyTorch; `jax.nn.gelu` uses erfc, which costs twice as much."""
    return x * 0.5 * (1 + jax.lax.erf(x * 0.5**0.5))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x_RxD: jax.Array, weight_FxD: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Return x·weightᵀ of operands rounded to `dtype`, also in the backward pass.

    Sums and results keep the dtype of x. Pass all rows at once: under `vmap` over rows, each row
    would compute its own gradient of the weights.
    """
    return jnp.matmul(
        x_RxD.astype(dtype), weight_FxD.T.astype(dtype), preferred_element_type=x_RxD.dtype
    )


def _matmul_forward(x, weight, dtype):
    residuals = x.astype(dtype), weight.astype(dtype), jnp.zeros((), weight.dtype)
    return matmul(x, weight, dtype), residuals


def _matmul_backward(dtype, residuals, d_out):
    (x, weight, like), d = residuals, d_out.astype(dtype)
    product = partial(jnp.matmul, preferred_element_type=d_out.dtype)
    d_rows, x_rows = (each.reshape(-1, each.shape[-1]) for each in (d, x))
    return product(d, weight), product(d_rows.T, x_rows).astype(like.dtype)


matmul.defvjp(_matmul_forward, _matmul_backward)


def on_auto_axes(f: Callable, out_specs: Any, *arrays: jax.Array) -> Callable:
    """Return f; if arrays are on mesh axes of type Explicit, they are of type Auto within f."""
    meshes = [jax.typeof(x).sharding.mesh for x in jax.tree.leaves(arrays)]
    mesh = next((mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types), None)
    if mesh is None:
        return f
    shardings = jax.tree.map(partial(NamedSharding, mesh), out_specs)
    return jax.sharding.auto_axes(f, out_sharding=shardings)


def half_swap(h_PxD: jax.Array) -> jax.Array:
    """Swap the two halves of every vector, which makes a random vector nearly orthogonal to itself.

    Proposed in kexue.fm/archives/9698. ValueError if D is odd.
    """
    return jnp.roll(h_PxD, _divide(h_PxD.shape[-1], 2), axis=-1)


def channel_shuffle(h_PxD: jax.Array, groups: int = 2) -> jax.Array:
    """Reshape every vector to groups x D/groups, transpose and flatten it (ShuffleNet, CVPR 2018).

    1 + gcd(groups - 1, D - 1) coordinates do not move. ValueError if `groups` does not divide D.
    """
    width = h_PxD.shape[-1]
    grouped = h_PxD.reshape(*h_PxD.shape[:-1], groups, _divide(width, groups))
    return jnp.swapaxes(grouped, -1, -2).reshape(h_PxD.shape)


def _divide(width: int, groups: int) -> int:
    if width % groups:
        raise ValueError(f"the width is {width}; expected a multiple of {groups}")
    return width // groups


@dataclasses.dataclass(frozen=True)
class Projection:
    """h -> norm(activation(h·P + b)), P orthogonal (DxD) at the start; with all three, BERT's head.

    Attributes:
      bias: learn b, 0 at the start.
      activation: a function of each coordinate.
      norm: layer norm with learned weight and bias, 1 and 0 at the start, and BERT's ε of 1e-12.
    """

    bias: bool = False
    activation: Callable[[jax.Array], jax.Array] | None = None
    norm: bool = False

    def init(
        self, key: jax.Array, width: int, dtype: jax.typing.DTypeLike = jnp.float32
    ) -> dict[str, jax.Array]:
        """Return `weight` DxD and, as declared, `bias`, `norm_weight`, `norm_bias` of length D."""
        params = {"weight": nn.initializers.orthogonal()(key, (width, width), dtype)}
        if self.bias:
            params["bias"] = jnp.zeros(width, dtype)
        if self.norm:
            params |= {"norm_weight": jnp.ones(width, dtype), "norm_bias": jnp.zeros(width, dtype)}
        return params

    def apply(self, params: dict[str, jax.Array], h_PxD: jax.Array) -> jax.Array:
        """Project hidden states, PxD."""

        def vector(name: str) -> jax.Array:
            return params[name].reshape((1,) * (h_PxD.ndim - 1) + (-1,))

        h_PxD = h_PxD @ params["weight"]
        if self.bias:
            h_PxD = h_PxD + vector("bias")
        if self.activation:
            h_PxD = self.activation(h_PxD)
        if self.norm:
            mean, variance = (of(h_PxD, axis=-1, keepdims=True) for of in (jnp.mean, jnp.var))
            normalised = (h_PxD - mean) * jax.lax.rsqrt(variance + 1e-12)
            h_PxD = normalised * vector("norm_weight") + vector("norm_bias")
        return h_PxD


@dataclasses.dataclass(unsafe_hash=True)
class EmbeddingSpec:
    """The input and the output embedding of a model, tied or not, with every head option.

        rows = a·E_in[tokens]        `embedding(tokens)`; `embedding.table()` for all V tokens
        logits = cap(s·f(h)·E_outᵀ + b)    `embedding.logits(h)`
        cap(x) = logit_softcap·tanh(x / logit_softcap)

    a: input_scale, f: transform, s: logit_scale, b: bias; E_out = E_in if tied, except for
    `untied_rows`. Options that are off cost nothing. Sizes may be numbers or formulas in D and
    n = V, see `jaxtie.config.size`.

    Attributes:
      vocabulary, width: V and D; a table is VxD.
      tied: which parameters to create; lookup and logits follow the parameters that they get.
      init_std: the tables start as N(0, init_std²).
      input_scale: a, "sqrt(D)" in Vaswani et al. (2017).
      transform: f, a function of vectors of length D such as `half_swap` or
        `partial(channel_shuffle, groups=4)`; or a `Projection`, which has parameters.
      logit_scale: s, for instance "1/sqrt(D)".
      bias: learn b, of length V, 0 at the start.
      logit_softcap: keep logits within ±logit_softcap (Gemma 2: 30).
      input_gradient, output_gradient: factors of a table's gradient in that role; the gradient of a
        tied table is the sum of both.
      start: which table of the untied model with the same key a tied table starts as.
      param_dtype: of all parameters.
      matmul_dtype: round h and E_out to it for their product and its derivatives; the logits keep
        the dtype of h.
      padding: a token id whose rows start at 0 and whose input row has no gradient, as PyTorch's
        `padding_idx`.
      untied_rows: ascending token ids, such as special tokens, whose output rows in a tied
        embedding are parameters of their own, `output_rows`, KxD. They start as these rows of the
        output table of the untied embedding with the same key.
      excluded_rows: ascending token ids that are never predicted, such as padding and mask: their
        probability is 0 and their output rows have no gradient; as a target, `cross_entropy` is
        NaN.
      partition: names of the mesh axes, of type Auto, that V and D are split along; V is a multiple
        of their size. Linen boxes parameters in `nn.Partitioned`; NNX splits them when they are
        created, under `jax.set_mesh`. With V split and under `jax.set_mesh`, logits stay split
        along V, and no device ever holds a whole table or its gradient.
    """

    vocabulary: int
    width: int
    tied: bool = False
    init_std: Size = 0.02
    input_scale: Size | None = None
    transform: Callable[[jax.Array], jax.Array] | Projection | None = None
    logit_scale: Size | None = None
    bias: bool = False
    logit_softcap: float | None = None
    input_gradient: float = 1.0
    output_gradient: float = 1.0
    start: Literal["input", "output"] = "input"
    param_dtype: jax.typing.DTypeLike = jnp.float32
    matmul_dtype: jax.typing.DTypeLike | None = None
    padding: int | None = None
    partition: tuple[str | None, str | None] | None = None
    untied_rows: tuple[int, ...] = ()
    excluded_rows: tuple[int, ...] = ()


def check_rows(spec: EmbeddingSpec) -> None:
    """Raise ValueError unless `untied_rows` and `excluded_rows` are possible."""
    for name in ("untied_rows", "excluded_rows"):
        ids, end = getattr(spec, name), spec.vocabulary
        if list(ids) != sorted({*ids}) or not all(0 <= row < end for row in ids):
            raise ValueError(f"{name} = {ids}: expected ascending ids in 0...{end - 1}")
    if len(spec.excluded_rows) == spec.vocabulary:
        raise ValueError("excluded_rows are all rows; expected one that can be predicted")
    if spec.untied_rows and not spec.tied:
        raise ValueError("untied_rows: all rows are untied; expected tied=True")
    if spec.untied_rows and spec.start == "output":
        raise ValueError("untied_rows: expected start='input', for they start as the output rows")


def partition_axes(spec: EmbeddingSpec) -> dict[str, tuple[str | None, ...]]:
    """Return the names of the mesh axes of each parameter that is split."""
    if spec.partition is None:
        return {}
    rows, columns = spec.partition
    table = {"input": (rows, columns), "output": (rows, columns)}
    return {**table, "output_rows": (None, columns), "bias": (rows,)}


def initial_table(spec: EmbeddingSpec, key: jax.Array) -> jax.Array:
    """Draw a table, VxD."""
    draw = jax.nn.initializers.normal(_size(spec, spec.init_std))
    table_VxD = draw(key, (spec.vocabulary, spec.width), spec.param_dtype)
    return table_VxD if spec.padding is None else table_VxD.at[spec.padding].set(0)


def initial_rows(spec: EmbeddingSpec, key: jax.Array) -> jax.Array:
    """Draw a table and return its rows `untied_rows`, KxD."""
    return initial_table(spec, key)[jnp.array(spec.untied_rows)]


def initial_params(spec: EmbeddingSpec, key: jax.Array) -> dict[str, Tree]:
    """Draw parameters. Parameters that a tied and an untied embedding share start equal."""
    check_rows(spec)
    input_key, output_key, projection_key = jax.random.split(key, 3)
    only_key = output_key if spec.tied and spec.start == "output" else input_key
    params: dict[str, Tree] = {"input": initial_table(spec, only_key)}
    if not spec.tied:
        params["output"] = initial_table(spec, output_key)
    if spec.untied_rows:
        params["output_rows"] = initial_rows(spec, output_key)
    if isinstance(spec.transform, Projection):
        params["projection"] = spec.transform.init(projection_key, spec.width, spec.param_dtype)
    if spec.bias:
        params["bias"] = jnp.zeros(spec.vocabulary, spec.param_dtype)
    return params


def get_tables(params: Mapping, untied_rows: Sequence[int] = ()) -> tuple[jax.Array, jax.Array]:
    """Return the input and the output table, VxD; partly tied parameters need `untied_rows`."""
    if "output_rows" in params:
        return params["input"], replace_rows(params["input"], params["output_rows"], untied_rows)
    return params["input"], params.get("output", params["input"])


def replace_rows(table_VxD: jax.Array, rows_KxD: jax.Array, ids: Sequence[int]) -> jax.Array:
    """Return `table.at[ids].set(rows)`, ids ascending.

    A few runs of consecutive ids are joined by slices, since indexing is slow on a CPU in lanes. If
    the ids are all rows, the result is `rows` itself.
    """
    if len(ids) != len(rows_KxD):
        raise ValueError(
            f"{len(rows_KxD)} output_rows for untied_rows = {tuple(ids)}: as many expected"
        )
    starts = [i for i in range(len(ids)) if i == 0 or ids[i] != ids[i - 1] + 1]
    if len(starts) > MAX_SLICES:
        return table_VxD.at[jnp.array(ids)].set(rows_KxD)
    parts, done = [], 0
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        parts += [table_VxD[done : ids[start]], rows_KxD[start:end]]
        done = ids[end - 1] + 1
    parts = [part for part in (*parts, table_VxD[done:]) if len(part)]
    return jnp.concatenate(parts) if len(parts) > 1 else parts[0]


def embed_tokens(spec: EmbeddingSpec, params: Mapping, tokens: jax.Array) -> jax.Array:
    """Return the input embeddings of token ids of any shape; (..., D)."""
    return _as_input(spec, params["input"][tokens], tokens)


def embed_vocabulary(spec: EmbeddingSpec, params: Mapping) -> jax.Array:
    """Return the input embeddings of all tokens; VxD."""
    return _as_input(spec, params["input"], jnp.arange(spec.vocabulary))


def _as_input(spec: EmbeddingSpec, rows: jax.Array, tokens: jax.Array) -> jax.Array:
    if spec.padding is not None:
        rows = jnp.where((tokens == spec.padding)[..., None], jax.lax.stop_gradient(rows), rows)
    if spec.input_gradient != 1:
        rows = scale_gradient(rows, spec.input_gradient)
    return rows if spec.input_scale is None else rows * _size(spec, spec.input_scale)


def compute_logits(spec: EmbeddingSpec, params: Mapping, h_PxD: jax.Array) -> jax.Array:
    """Return the logits of hidden states with any leading axes; PxV."""
    return output_logits(spec, params, transform_hidden(spec, params, h_PxD))


def transform_hidden(spec: EmbeddingSpec, params: Mapping, h_PxD: jax.Array) -> jax.Array:
    """Apply the transform before the output embedding."""
    if isinstance(spec.transform, Projection):
        return spec.transform.apply(params["projection"], h_PxD)
    return spec.transform(h_PxD) if spec.transform else h_PxD


def output_params(params: Mapping, untied_rows: Sequence[int] = ()) -> dict[str, Tree]:
    """Return an `Embedding`'s parameters as those of a tied one with the same logits.

    Gradients accumulated block by block then hold no zeros for a separate input table.
    """
    rest = {name: params[name] for name in params if not name.startswith(("input", "output"))}
    return {**rest, "input": get_tables(params, untied_rows)[1]}


def output_logits(
    spec: EmbeddingSpec,
    params: Mapping,
    h_PxD: jax.Array,
    dtype: jax.typing.DTypeLike | None = None,
) -> jax.Array:
    """Return the logits of transformed hidden states; PxV, in `dtype` if given."""
    _, table_VxD = get_tables(params, spec.untied_rows)
    if spec.output_gradient != 1:
        table_VxD = scale_gradient(table_VxD, spec.output_gradient)
    if spec.matmul_dtype is not None:
        h_PxD = h_PxD if dtype is None else h_PxD.astype(dtype)
        logits_PxV = matmul(h_PxD, table_VxD, spec.matmul_dtype)  # PxD: no leading axes
    else:
        logits_PxV = jnp.matmul(h_PxD, table_VxD.T, preferred_element_type=dtype)
    if spec.logit_scale is not None:
        logits_PxV = logits_PxV * _size(spec, spec.logit_scale)
    if spec.bias:
        bias_V = params["bias"].astype(logits_PxV.dtype)
        logits_PxV = logits_PxV + bias_V.reshape((1,) * (logits_PxV.ndim - 1) + (-1,))
    if spec.logit_softcap is not None:
        logits_PxV = spec.logit_softcap * jnp.tanh(logits_PxV / spec.logit_softcap)
    if spec.excluded_rows:
        # exp of it is 0 and 0 times it is 0, which does not hold for -inf
        excluded_logit = float(jnp.finfo(logits_PxV.dtype).min) / 2
        predicted_V = ~np.isin(np.arange(spec.vocabulary), spec.excluded_rows)
        logits_PxV = jnp.where(predicted_V, logits_PxV, excluded_logit)
    return logits_PxV


def _size(spec: EmbeddingSpec, value: Size) -> float:
    return size(value, spec.vocabulary, spec.width)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def scale_gradient(x: jax.Array, factor: float) -> jax.Array:
    """Return x; multiply its gradient by `factor`."""
    return x


@scale_gradient.defjvp
def _(factor, primals, tangents):
    return primals[0], tangents[0] * factor
