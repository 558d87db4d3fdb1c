"""Put an embedding around a body: masked model, text model, body from sizes.

A body is a module `body(table_VxD, tokens_L, at_P, token_P) -> h_PxD` for one sequence: from the
input table and the tokens to hidden states at P positions. `token_P` are the tokens that the model
sees there; values that depend on them alone are computed once per batch. A body's `ordered` says
whether the order of the tokens matters to it. Transformer bodies also have `attend` and `finish`.

Shapes: B rows, L tokens a row, P positions out of all B·L, D width, V vocabulary.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxtie.config import LSTM, Body, Decoder, Mixer, Transformer
from jaxtie.models.lstm import LSTMBody
from jaxtie.models.mixer import MixerBody
from jaxtie.models.transformer import CausalTransformerBody, DecoderBody, TransformerBody
from jaxtie.tying.linen import Embedding


def build_body(
    sizes: Body, *, causal: bool = False, dtype: jax.typing.DTypeLike | None = None
) -> nn.Module:
    """Return a body of these sizes.

    Args:
      sizes: a `Decoder` is causal.
      causal: of a `Transformer`: a `CausalTransformerBody`, otherwise PyTorch's encoder.
      dtype: round the operands of a transformer's matrix products to it (bfloat16 on accelerators);
        norms and loss stay float32.
    """
    match sizes:
        case Decoder():
            stds = sizes.gated, sizes.weight_std, sizes.end_std
            own = sizes.width, sizes.layers, sizes.heads, sizes.hidden
            return DecoderBody(*own, *stds, dtype)
        case Transformer():
            own = sizes.width, sizes.layers, sizes.heads, sizes.hidden
            if causal:
                return CausalTransformerBody(*own, dtype=dtype)
            return TransformerBody(*own, sizes.independent_layers, dtype)
        case LSTM():
            return LSTMBody(sizes.layers, sizes.hidden)
        case Mixer():
            return MixerBody(sizes.layers, sizes.tokenwise, sizes.channelwise)


class MaskedLM(nn.Module):
    """Predict masked tokens of one sequence; `mask` is the id at every predicted position."""

    embedding: Embedding
    body: nn.Module
    mask: int

    def __call__(self, tokens_L: jax.Array, at_P: jax.Array) -> jax.Array:
        """Return the logits PxV of one sequence, masked at `at_P`."""
        return self.embedding.logits(self.hidden(tokens_L, at_P))

    def hidden(self, tokens_L: jax.Array, at_P: jax.Array) -> jax.Array:
        """Return the hidden states behind these logits, PxD."""
        token_P = jnp.full(at_P.shape, self.mask)
        return self.body(self.embedding.table(), tokens_L, at_P, token_P)


class TextModel(nn.Module):
    """Compute hidden states and logits at any positions of a batch of text.

    No token attends to the `padding` of the embedding. Bodies are those of transformers.
    """

    embedding: Embedding
    body: nn.Module

    def hidden(self, tokens_BxL: jax.Array, at_P: jax.Array) -> jax.Array:
        """Return hidden states at positions in the flattened batch, PxD.

        The last layer after its attention is computed at these positions only.
        """
        padding = self.embedding.padding
        there_BxL = jnp.ones(tokens_BxL.shape, bool) if padding is None else tokens_BxL != padding
        attended = self.body.attend(self.embedding(tokens_BxL.ravel()), there_BxL)
        return self.body.finish(*(x_NxD[at_P] for x_NxD in attended))

    def __call__(self, tokens_L: jax.Array, at_P: jax.Array) -> jax.Array:
        """Return the logits PxV of one sequence at some of its positions."""
        return self.embedding.logits(self.hidden(tokens_L[None], at_P))
