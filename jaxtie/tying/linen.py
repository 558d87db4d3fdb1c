"""`Embedding` for Flax linen, and the one that a `Head` declares."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxtie.config import Head, Size, check
from jaxtie.tying.cross_entropy import embedding_cross_entropy
from jaxtie.tying.head import (
    EmbeddingSpec,
    Projection,
    Tree,
    channel_shuffle,
    check_rows,
    compute_logits,
    embed_tokens,
    embed_vocabulary,
    gelu,
    half_swap,
    initial_rows,
    initial_table,
    partition_axes,
)


class Embedding(EmbeddingSpec, nn.Module):
    """`EmbeddingSpec` as a module of Flax linen."""

    def setup(self) -> None:
        """Create the parameters; the order of `make_rng` and `param` determines their values."""
        check_rows(self)
        parameters: dict[str, Tree] = {}
        axes, initializing = partition_axes(self), self.is_initializing()
        # A tied embedding skips the key of the other table, so that the projection is the same.
        skips_key = initializing and self.tied

        def create(name: str, init: Callable[[jax.Array], Tree]) -> None:
            split = nn.with_partitioning(init, axes[name]) if name in axes else init
            parameters[name] = self.param(name, split)

        if skips_key and self.start == "output":
            self.make_rng("params")
        create("input", partial(initial_table, self))
        if not self.tied if initializing else self.has_variable("params", "output"):
            create("output", partial(initial_table, self))
        if self.untied_rows and (initializing or self.has_variable("params", "output_rows")):
            create("output_rows", partial(initial_rows, self))
        if isinstance(self.transform, Projection):
            if skips_key and self.start == "input" and "output_rows" not in parameters:
                self.make_rng("params")
            create(
                "projection", partial(self.transform.init, width=self.width, dtype=self.param_dtype)
            )
        if self.bias:
            create("bias", lambda _: jnp.zeros(self.vocabulary, self.param_dtype))
        self.parameters = parameters

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the input embeddings of token ids of any shape; (..., D)."""
        return embed_tokens(self, self.parameters, tokens)

    def table(self) -> jax.Array:
        """Return the input embeddings of all tokens; VxD."""
        return embed_vocabulary(self, self.parameters)

    def logits(self, h_PxD: jax.Array) -> jax.Array:
        """Return the logits of hidden states with any leading axes; PxV."""
        return compute_logits(self, self.parameters, h_PxD)

    def cross_entropy(
        self,
        h_PxD: jax.Array,
        target_P: jax.Array,
        weight_P: jax.Array | None = None,
        **options: Any,
    ) -> tuple[jax.Array, jax.Array]:
        """Return loss and accuracy of `logits`, without all of them in memory at a time.

        For the other arguments see `jaxtie.tying.cross_entropy.reduce_losses`.
        """
        return embedding_cross_entropy(self, self.parameters, h_PxD, target_P, weight_P, **options)


Embedding.__doc__ = EmbeddingSpec.__doc__


def make_embedding(
    head: Head,
    vocabulary: int,
    width: int,
    *,
    tied: bool,
    init_std: Size = 0.02,
    padding: int | None = None,
    matmul_dtype: jax.typing.DTypeLike | None = None,
    row_sets: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> Embedding:
    """Return the embedding that a head declares.

    `init_std` is used unless the head sets its own; `row_sets` has the token ids of the sets of
    rows that a head can name. For the other arguments see `Embedding`.

    Raises:
      UserError: if the head names another set of rows.
    """

    def rows(name: str) -> tuple[int, ...]:
        expected = ", ".join(row_sets) or "none"
        check(name in row_sets, f"rows {name!r}: this task has no such rows; expected {expected}")
        return tuple(row_sets[name])

    transforms = {
        None: None,
        "half-swap": half_swap,
        "shuffle": partial(channel_shuffle, groups=head.groups),
        "projection": Projection(),
        "bert-head": Projection(bias=True, activation=gelu, norm=True),
    }
    untied_rows = () if head.untied_rows is None else rows(head.untied_rows)
    if head.tied_rows is not None:
        untied_rows = tuple(sorted({*range(vocabulary)} - {*rows(head.tied_rows)}))
    shared = {field.name for field in dataclasses.fields(EmbeddingSpec)}
    options: dict[str, Any] = {name: value for name, value in vars(head).items() if name in shared}
    options |= {
        "init_std": init_std if head.init_std is None else head.init_std,
        "transform": transforms[head.transform],
        "untied_rows": untied_rows,
        "excluded_rows": rows("never-targets") if head.targets_only else (),
        "padding": padding,
        "matmul_dtype": matmul_dtype,
    }
    return Embedding(vocabulary, width, tied or head.is_partly_tied, **options)
