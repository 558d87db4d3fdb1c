"""The vocabulary end as a module of Flax linen, and the one that a head declares."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import flax.linen as nn
import jax

from jaxtie.config import TRANSFORMS, Head, Size, check
from jaxtie.tying.head import (
    Projection,
    Tree,
    VocabularyEnd,
    channel_shuffle,
    check_rows,
    gelu,
    half_swap,
    initial_rows,
    initial_table,
    logits_of_hidden,
    rows_of_tokens,
    whole_table,
)


class Embedding(VocabularyEnd, nn.Module):
    __doc__ = VocabularyEnd.__doc__

    def setup(self):
        def split(init: nn.initializers.Initializer, axes: tuple[str | None, ...]) -> Callable:
            return nn.with_partitioning(init, axes) if self.partition else init

        check_rows(self)
        rows, columns = self.partition or (None, None)
        table = split(partial(initial_table, self), (rows, columns))
        shape = (self.vocabulary, self.width)
        # of two keys, so that the projection is the same, tied or not
        passes_over_one = self.is_initializing() and self.tied
        if passes_over_one and self.start == "output":
            self.make_rng("params")
        self.input = self.param("input", table, shape, self.param_dtype)
        untied = not self.tied if self.is_initializing() else self.has_variable("params", "output")
        self.output = self.param("output", table, shape, self.param_dtype) if untied else self.input
        has_rows = bool(self.untied_rows) and (
            self.is_initializing() or self.has_variable("params", "output_rows")
        )
        if has_rows:
            own_rows = split(partial(initial_rows, self), (None, columns))
            self.output_rows = self.param("output_rows", own_rows, shape, self.param_dtype)
        if isinstance(self.transform, Projection):
            if passes_over_one and self.start == "input" and not has_rows:
                self.make_rng("params")
            self.projection = self.param(
                "projection", self.transform.init, self.width, self.param_dtype
            )
        if self.bias:
            bias = split(nn.initializers.zeros, (rows,))
            self.output_bias = self.param("bias", bias, (self.vocabulary,), self.param_dtype)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """The rows of the input table that belong to token ids of any shape; (..., D)."""
        return rows_of_tokens(self, self._parameters(), tokens)

    def table(self) -> jax.Array:
        """The input table as a model sees it: the rows of all V tokens; VxD."""
        return whole_table(self, self._parameters())

    def logits(self, h_PxD: jax.Array) -> jax.Array:
        """Hidden states, with any leading axes, against the output table; PxV."""
        return logits_of_hidden(self, self._parameters(), h_PxD)

    def _parameters(self) -> dict[str, Tree]:
        params = {"input": self.input, "output": self.output}
        if self.untied_rows and self.has_variable("params", "output_rows"):
            params["output_rows"] = self.output_rows
        if isinstance(self.transform, Projection):
            params["projection"] = self.projection
        return params | {"bias": self.output_bias} if self.bias else params


def make_embedding(
    head: Head,
    vocabulary: int,
    width: int,
    *,
    tied: bool,
    init_std: Size = 1.0,
    padding: int | None = None,
    matmul_dtype: jax.typing.DTypeLike | None = None,
    row_sets: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> Embedding:
    """The vocabulary end that a head declares.

    Args:
      tied: which tree `init` makes.
      init_std: of the tables, where the head names none.
      vocabulary, width, padding, matmul_dtype: see `Embedding`.
      row_sets: token ids of the sets of rows that a head can name.

    Raises:
      UserError: where the head names another set of rows.
    """
    untied_rows = _untied_rows(head, vocabulary, row_sets)
    return Embedding(
        vocabulary,
        width,
        tied or head.is_partly_tied,
        init_std=init_std if head.init_std is None else head.init_std,
        input_scale=head.input_scale,
        transform=_make_transform(head),
        logit_scale=head.logit_scale,
        bias=head.bias,
        logit_softcap=head.logit_softcap,
        input_gradient=head.input_gradient,
        output_gradient=head.output_gradient,
        start=head.start,
        matmul_dtype=matmul_dtype,
        padding=padding,
        untied_rows=untied_rows,
        excluded_rows=_rows_named("never-targets", row_sets) if head.targets_only else (),
    )


def _untied_rows(
    head: Head, vocabulary: int, row_sets: Mapping[str, Sequence[int]]
) -> tuple[int, ...]:
    """The rows that are untied where the others are tied; none where all are alike."""
    if head.untied_rows is not None:
        return _rows_named(head.untied_rows, row_sets)
    if head.tied_rows is None:
        return ()
    tied = {*_rows_named(head.tied_rows, row_sets)}
    return tuple(row for row in range(vocabulary) if row not in tied)


def _rows_named(name: str, row_sets: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    expected = ", ".join(row_sets) or "none"
    check(name in row_sets, f"rows {name!r}: this task has no such rows; expected {expected}")
    return tuple(row_sets[name])


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
    raise ValueError(
        f"a head's transform is {head.transform!r}; expected one of {', '.join(TRANSFORMS)}"
    )
