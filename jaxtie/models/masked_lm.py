"""A masked language model: the vocabulary end around a body.

The contract of a body: `body(table_VxD, tokens_L, at_P, token_P) -> h_PxD`, for one sequence: from
the input table and the tokens to hidden states at the positions asked for. `token_P` is what the
model sees at these positions. It is given apart from `tokens_L` because a masked model knows it
beforehand: what depends on it alone is then computed once, not once per sequence of a batch. A
body's `ordered` says whether the order of the tokens matters to it.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxtie.models.embedding import Embedding


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
