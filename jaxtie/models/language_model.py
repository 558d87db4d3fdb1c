"""Put an embedding around a body: masked model, text model, body from sizes.

From declared sizes to the body that has them.

A masked language model: the vocabulary end around a body.

The contract of a body: `body(table_VxD, tokens_L, at_P, token_P) -> h_PxD`, for one sequence: from
the input table and the tokens to hidden states at the positions asked for. `token_P` is what the
model sees at these positions. It is given apart from `tokens_L` because a masked model knows it
beforehand: what depends on it alone is then computed once, not once per sequence of a batch. A
body's `ordered` says whether the order of the tokens matters to it.

A language model of text: the vocabulary end around a body, asked at any positions of a batch.

Shapes: B rows, L tokens a row, P positions asked for out of all B·L, D width, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxtie.config import LSTM, Body, Mixer, Transformer
from jaxtie.models.lstm import LSTMBody
from jaxtie.models.mixer import MixerBody
from jaxtie.models.transformer import CausalTransformerBody, TransformerBody
from jaxtie.tying.head import get_tables
from jaxtie.tying.linen import Embedding


def build_body(sizes: Body, *, accelerated: bool = False) -> nn.Module:
    """A body of these sizes; the contract of a body is in `jaxtie.models.language_model`.

    Args:
      accelerated: for a GPU or TPU, where few and large operations are faster.
    """
    match sizes:
        case Transformer():
            return TransformerBody(**dataclasses.asdict(sizes))
        case LSTM():
            return LSTMBody(sizes.layers, sizes.hidden, accelerated)
        case Mixer():
            return MixerBody(sizes.layers, sizes.tokenwise, sizes.channelwise)


class MaskedLM(nn.Module):
    """Logits at masked positions.

    Attributes:
      embedding: its tables are as wide as the body.
      body: see the contract above.
      mask: the token id that stands at every position asked for.
    """

    embedding: Embedding
    body: nn.Module
    mask: int

    def __call__(self, tokens_L: jax.Array, at_P: jax.Array) -> jax.Array:
        """Logits PxV of one sequence, masked at `at_P`."""
        return self.embedding.logits(self.hidden(tokens_L, at_P))

    def hidden(self, tokens_L: jax.Array, at_P: jax.Array) -> jax.Array:
        """What the vocabulary end makes these logits of, PxD."""
        token_P = jnp.full(at_P.shape, self.mask)
        return self.body(self.embedding.table(), tokens_L, at_P, token_P)


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


def output_params(params: dict, untied_rows: Sequence[int] = ()) -> dict:
    """An embedding's parameters without those that only look-up needs: the tree of a tied one with
    the same logits.

    So what is accumulated for the output, block by block, holds no zeros for an input table beside
    it.

    `untied_rows`: the embedding's.
    """
    tables = ("input", "output", "output_rows")
    rest = {name: value for name, value in params.items() if name not in tables}
    return {**rest, "input": get_tables(params, untied_rows)[1]}
