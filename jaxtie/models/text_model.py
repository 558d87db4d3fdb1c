"""A language model of text: the vocabulary end around a body, asked at any positions of a batch.

Shapes: B rows, L tokens a row, P positions asked for out of all B·L, D width, V vocabulary.
"""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxtie.models.embedding import Embedding
from jaxtie.models.transformer import CausalTransformerBody, TransformerBody
from jaxtie.models.vocabulary_end import tables_of_params


class TextModel(nn.Module):
    """From tokens to hidden states at any positions among them, and to logits.

    Attributes:
      embedding: its `padding` is what is not there: no token attends to it.
      body: `TransformerBody` (masked) or `CausalTransformerBody`, of the embedding's width.
    """

    embedding: Embedding
    body: nn.Module

    def hidden(self, tokens_BxL: jax.Array, at_P: jax.Array) -> jax.Array:
        """Hidden states at positions in the flattened batch, PxD. The end of the last layer is
        computed there only.
        """
        padding = self.embedding.padding
        there_BxL = jnp.ones(tokens_BxL.shape, bool) if padding is None else tokens_BxL != padding
        attended = self.body.attend(self.embedding(tokens_BxL.ravel()), there_BxL)
        return self.body.finish(*(x_NxD[at_P] for x_NxD in attended))

    def __call__(self, tokens_L: jax.Array, at_P: jax.Array) -> jax.Array:
        """Logits PxV of one sequence at some of its positions."""
        return self.embedding.logits(self.hidden(tokens_L[None], at_P))


def masked_model(
    embedding: Embedding,
    *,
    layers: int = 3,
    heads: int = 4,
    feedforward: int = 512,
    dtype: jax.typing.DTypeLike | None = None,
) -> TextModel:
    """The paper's model of text around any vocabulary end: PyTorch's encoder without positions, at
    its published depth.

    As published the tables are 128 wide and N(0, 0.3²).

    Args:
      dtype: of the operands of the body's matrix products (bfloat16 on accelerators); norms and
        loss stay float32.
    """
    return TextModel(
        embedding, TransformerBody(embedding.width, layers, heads, feedforward, dtype=dtype)
    )


def causal_model(
    embedding: Embedding,
    *,
    layers: int = 3,
    heads: int = 4,
    feedforward: int = 512,
    branch_scale: float = 0.01,
    dtype: jax.typing.DTypeLike | None = None,
) -> TextModel:
    """A small pre-norm causal model around any vocabulary end; a fresh one all but hands on the
    normalised embedding.
    """
    return TextModel(
        embedding,
        CausalTransformerBody(embedding.width, layers, heads, feedforward, branch_scale, dtype),
    )


def output_end(params: dict, untied_rows: Sequence[int] = ()) -> dict:
    """An embedding's parameters without those that only look-up needs: the tree of a tied one with
    the same logits.

    So what is accumulated for the output, block by block, holds no zeros for an input table beside
    it.

    `untied_rows`: the embedding's.
    """
    tables = ("input", "output", "output_rows")
    rest = {name: value for name, value in params.items() if name not in tables}
    return {**rest, "input": tables_of_params(params, untied_rows)[1]}
