"""All of tying: the tables, what goes in through them, what comes out.

A tied model is one whose parameter tree has an `input` table only; an untied one has `input` and `output`. Nothing else
differs: code that is given parameters reads from their shape which it is.
"""

import flax.linen as nn
import jax


class Embedding(nn.Module):
    """The vocabulary end of a model: input and output embedding, tied or not.

    Attributes:
      vocabulary, width: V and D; a table is VxD, N(0, 1) at the start.
      tied: which tree `init` makes. `apply` goes by the tree it is given.
    """

    vocabulary: int
    width: int
    tied: bool = False

    def setup(self):
        shape = (self.vocabulary, self.width)
        self.input = self.param("input", nn.initializers.normal(1.0), shape)
        untied = not self.tied if self.is_initializing() else self.has_variable("params", "output")
        self.output = self.param("output", nn.initializers.normal(1.0), shape) if untied else self.input

    def logits(self, h_PxD: jax.Array) -> jax.Array:
        """Hidden states against the output embedding: no bias, no scaling; PxV."""
        return h_PxD @ self.output.T


def tables(params: dict) -> tuple[jax.Array, jax.Array]:
    """The input and the output table of an `Embedding`'s parameters; of a tied one, the same table twice."""
    return params["input"], params.get("output", params["input"])
