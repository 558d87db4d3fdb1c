"""What masked models say of real contexts of a token, and what becomes of it with another token in
its place.

A context is the token's own row, [CLS] and [SEP] included, as far as `SIDE` tokens on either side.
It is asked of twice. For the token itself, a mask stands in its place. For its consequences the
token stands there, and one other position is masked: one on the left and one on the right, each
drawn out of the `NEAR_BY` nearest, each asked by itself, so all the rest is there.

The token is always in the middle; where its row ends before, there is padding, which no token
attends to. The models have no positions, so where a row stands changes nothing.

Shapes: N windows of a token, R = 3 ways to ask each (the token, the left, the right), L tokens a
window, K = 2 sides, M tokens to put in its place, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtie.models.text_model import TextModel
from jaxtie.text.corpus.tokens import Special
from jaxtie.text.windows import Stream, Windows, by_token

SIDE, NEAR_BY = 20, 4  # tokens on either side; how far away a masked one may be


def places_in_rows(stream: Stream, vocabulary: int) -> list[np.ndarray]:
    """Of each token, where it is in the stream with another token of its row beside it."""
    before_N, after_N = _room(stream)
    usable_N = np.flatnonzero(
        (before_N + after_N > 0) & (stream.end_N > np.arange(len(stream.end_N)))
    )
    return by_token(stream.tokens_N, usable_N, vocabulary)


def _room(stream: Stream) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens of its row are before each token, and after it."""
    at_N = np.arange(len(stream.tokens_N))
    first_N = np.append(0, stream.end_N[:-1] + 1)
    starts_N = np.maximum.accumulate(
        np.where(np.append(True, stream.row_N[1:] != stream.row_N[:-1]), first_N, 0)
    )
    return at_N - starts_N, stream.end_N - at_N - 1


def masked_windows(
    stream: Stream, places_N: np.ndarray, special: Special, rng: np.random.Generator
) -> Windows:
    """The windows around some places: `tokens_NxRxL`, each with one mask; which of the two sides
    has a token, NxK.
    """
    before_N, after_N = (room_N[places_N] for room_N in _room(stream))
    offset_L = np.arange(-SIDE, SIDE + 1)
    at_NxL = np.clip(places_N[:, None] + offset_L, 0, len(stream.tokens_N) - 1)
    own_NxL = (offset_L >= -before_N[:, None]) & (offset_L <= after_N[:, None])
    tokens_NxL = np.where(own_NxL, stream.tokens_N[at_NxL], special.pad)
    tokens_NxL[offset_L == -before_N[:, None] - 1] = special.cls
    tokens_NxL[offset_L == after_N[:, None] + 1] = special.sep
    tokens_NxRxL = np.repeat(tokens_NxL[:, None], 3, axis=1)
    tokens_NxRxL[:, 0, SIDE] = special.mask
    asked_NxK = np.stack([before_N, after_N], axis=1) > 0
    for side, (room_N, sign) in enumerate(((before_N, -1), (after_N, 1))):
        away_N = 1 + rng.integers(0, np.clip(room_N, 1, NEAR_BY))
        rows = np.flatnonzero(asked_NxK[:, side])
        tokens_NxRxL[rows, 1 + side, SIDE + sign * away_N[rows]] = special.mask
    return Windows(tokens_NxRxL.astype(np.int32), asked_NxK, stream.row_N[places_N])


def make_masked_swap(
    models: Sequence[TextModel], mask: int
) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """As `swaps.make_swap`, of tokens_NxRxL: a jitted function that returns ln q(token | rest), (2,
    N, 1 + M), and ½⟨g_A, g_B⟩, ½⟨g_A, g_A⟩ and ½⟨g_B, g_B⟩ at the masked position of either side,
    (M, 3, N, K).
    """

    def log_law(model: TextModel, params: dict, tokens_BxL: jax.Array) -> jax.Array:
        """ln q of every token where the mask is, (B, V)."""
        rows, length = tokens_BxL.shape
        at_B = jnp.arange(rows) * length + jnp.argmax(tokens_BxL == mask, axis=1)
        h_BxD = model.apply({"params": params}, tokens_BxL, at_B, method="hidden")
        logits_BxV: Any = model.apply(
            {"params": params}, h_BxD, method=lambda self, h: self.embedding.logits(h)
        )
        return jax.nn.log_softmax(logits_BxV.astype(jnp.float32))

    @jax.jit
    def swap(
        params_2: tuple[dict, dict], tokens_NxRxL: jax.Array, other_M: jax.Array, count: jax.Array
    ):
        number, _, length = tokens_NxRxL.shape
        ids_M1 = jnp.concatenate([tokens_NxRxL[0, 1, SIDE, None], other_M])
        sides_BxL = tokens_NxRxL[:, 1:].reshape(-1, length)
        left, root = [], []
        for model, params in zip(models, params_2):
            left.append(log_law(model, params, tokens_NxRxL[:, 0])[:, ids_M1])
            root.append(jnp.exp(log_law(model, params, sides_BxL) / 2))

        def one(m: jax.Array, found: jax.Array) -> jax.Array:
            there_BxL = sides_BxL.at[:, SIDE].set(other_M[m])
            g_A, g_B = (
                jnp.exp(log_law(model, params, there_BxL) / 2) - root_BxV
                for model, params, root_BxV in zip(models, params_2, root)
            )
            products = [
                jnp.sum(x * y, axis=-1) / 2 for x, y in ((g_A, g_B), (g_A, g_A), (g_B, g_B))
            ]
            return found.at[m].set(jnp.stack(products).reshape(3, number, -1))

        nothing = jnp.zeros((len(other_M), 3, number, 2), jnp.float32)
        return jnp.stack(left), jax.lax.fori_loop(0, count, one, nothing)

    return swap
