"""What a model predicts of pairs of tokens: how likely the one beside the other, and what it makes
of the one for the other.

Both are exact laws over the whole vocabulary, at places that `jaxtie.text.contexts` has chosen
once.

Shapes: C contexts at a time, L tokens, M places asked about beside a token, V vocabulary, K pairs
of a kind, N of a pair.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtie.models.cross_entropy import POSITIONS
from jaxtie.models.text_model import TextModel
from jaxtie.text.contexts import PREDICTED, PairContexts


def make_look_at_predictions(
    model: TextModel, contexts: PairContexts
) -> Callable[[dict], dict[str, jax.Array]]:
    """A pure function of a model's parameters: what `PREDICTED` lists of each pair, (kinds, K); NaN
    where it has no place.
    """
    chunk = max(1, POSITIONS // contexts.asked_QxM.shape[1])
    count = len(contexts.at_Q)

    def in_chunks(x_Q: np.ndarray) -> np.ndarray:
        padded = np.pad(x_Q, [(0, -count % chunk)] + [(0, 0)] * (x_Q.ndim - 1), mode="edge")
        return padded.reshape(-1, chunk, *x_Q.shape[1:])

    chunks = tuple(map(in_chunks, contexts[:6]))

    def look(params: dict) -> dict[str, jax.Array]:
        each = jax.lax.map(lambda some: _of_chunk(model, params, some, contexts.mask), chunks)
        odds, divergence, counts = (x.ravel()[:count].reshape(contexts.shape) for x in each)
        there = jnp.where(counts > 0, 1.0, 0.0)
        total = jnp.sum(there, axis=-1)
        mean_odds = jnp.sum(odds * there, axis=-1) / total
        variance = jnp.sum((odds - mean_odds[..., None]) ** 2 * there, axis=-1) / total
        swapped = jnp.sum(divergence * there, axis=-1) / total
        return dict(zip(PREDICTED, (mean_odds, jnp.sqrt(variance), swapped), strict=True))

    return look


def _of_chunk(
    model: TextModel, params: dict, some: tuple[jax.Array, ...], mask: int | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log-odds, divergence and how many of its places count, of each context; C, C, C."""
    tokens_CxL, at_C, asked_CxM, counts_CxM, first_C, second_C = some
    row_C = jnp.arange(len(at_C))

    def law(tokens_CxL: jax.Array, at_CxM: jax.Array) -> jax.Array:
        """ln p of every token at some places, CxMxV."""
        places_P = (row_C[:, None] * tokens_CxL.shape[1] + at_CxM).ravel()
        h_PxD = model.apply({"params": params}, tokens_CxL, places_P, method="hidden")
        logits_PxV: Any = model.apply(
            {"params": params}, h_PxD, method=lambda self, h: self.embedding.logits(h)
        )
        return jax.nn.log_softmax(logits_PxV.astype(jnp.float32)).reshape(*at_CxM.shape, -1)

    if mask is None:
        itself, others = law(tokens_CxL, at_C[:, None] - 1), tokens_CxL
    else:
        itself = law(tokens_CxL.at[row_C, at_C].set(mask), at_C[:, None])
        others = tokens_CxL.at[row_C[:, None], asked_CxM].set(mask)
    odds_C = itself[row_C, 0, first_C] - itself[row_C, 0, second_C]
    before, after = (
        jnp.exp(law(others.at[row_C, at_C].set(token_C), asked_CxM))
        for token_C in (first_C, second_C)
    )
    moved_CxM = jnp.sum(jnp.abs(after - before), axis=-1) / 2
    counts_C = jnp.sum(counts_CxM, axis=1)
    return odds_C, jnp.sum(moved_CxM * counts_CxM, axis=1) / jnp.maximum(counts_C, 1), counts_C
