"""A masked language model: the tables around a body.

The contract of a body: `body(table_VxD, tokens_L, at_P, token_P) -> h_PxD`, for one sequence: from the input table and
the tokens to hidden states at the positions asked for. `token_P` is what the model sees at these positions. It is given
apart from `tokens_L` because of a masked model it is known beforehand: what depends on it alone is then computed once,
not once per sequence of a batch. A body's `ordered` says whether the order of the tokens matters to it.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxtie.models.embedding import Embedding


class MaskedLM(nn.Module):
    """Logits at masked positions.

    Attributes:
      vocabulary, width: V and D.
      mask: the token id that stands at every position asked for.
      body: see the contract above.
      tied: which parameter tree `init` makes; `apply` goes by the tree it is given.
    """

    vocabulary: int
    width: int
    mask: int
    body: nn.Module
    tied: bool = False

    def setup(self):
        self.embedding = Embedding(self.vocabulary, self.width, self.tied)

    def __call__(self, tokens_L: jax.Array, at_P: jax.Array) -> jax.Array:
        """Logits PxV of one sequence, masked at `at_P`."""
        token_P = jnp.full(at_P.shape, self.mask)
        return self.embedding.logits(self.body(self.embedding.table(), tokens_L, at_P, token_P))
