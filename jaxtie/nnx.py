"""Tying in Flax NNX: `from jaxtie import nnx`. What the front door has for linen and trees, for
modules.
"""

from typing import Any

import jax
from flax import nnx

from jaxtie.tying.head import (
    PARTS,
    Tree,
    VocabularyEnd,
    initial_params,
    logits_of_hidden,
    rows_of_tokens,
    whole_table,
)
from jaxtie.tying.nnx import Transposed, UntiedEmbed
from jaxtie.tying.tie import is_tied, saved_by_tying, tie, untie

__all__ = ["Embedding", "Transposed", "UntiedEmbed", "is_tied", "saved_by_tying", "tie", "untie"]


class Embedding(nnx.Module):
    __doc__ = VocabularyEnd.__doc__

    def __init__(
        self, vocabulary: int, width: int, tied: bool = False, *, rngs: nnx.Rngs, **options: Any
    ):
        self.end = VocabularyEnd(vocabulary, width, tied, **options)
        rows, columns = self.end.partition or (None, None)
        axes = {"input": (rows, columns), "output": (rows, columns), "bias": (rows,)}
        axes["output_rows"] = (None, columns)
        for name, value in initial_params(self.end, rngs.params()).items():
            split = {"out_sharding": axes[name]} if self.end.partition and name in axes else {}
            variables = jax.tree.map(lambda array, split=split: nnx.Param(array, **split), value)
            setattr(self, name, nnx.Dict(variables) if isinstance(value, dict) else variables)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """The rows of the input table that belong to token ids of any shape; (..., D)."""
        return rows_of_tokens(self.end, self._parameters(), tokens)

    def table(self) -> jax.Array:
        """The input table as a model sees it: the rows of all V tokens; VxD."""
        return whole_table(self.end, self._parameters())

    def logits(self, h_PxD: jax.Array) -> jax.Array:
        """Hidden states, with any leading axes, against the output table; PxV."""
        return logits_of_hidden(self.end, self._parameters(), h_PxD)

    def _parameters(self) -> dict[str, Tree]:
        """The plain dictionary of arrays."""
        variables = {name: value for name, value in vars(self).items() if name in PARTS}
        return jax.tree.map(
            lambda each: each.get_value(),
            variables,
            is_leaf=lambda each: isinstance(each, nnx.Variable),
        )
