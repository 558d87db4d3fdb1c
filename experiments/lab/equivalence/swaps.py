"""Compute predictions of two models with one token in place of another, in real contexts.

Causal models: a context is a window of the validation text: tokens on the left, the token, the true
text after it up to the end of its sentence.

Masked models: a context is the token's row with [CLS] and [SEP], at most `SIDE` tokens on either
side; the token is in the middle, padded where the row ends. Each window has three variants: a mask
in place of the token, and one masked position on the left and on the right, drawn from the
`NEAR_BY` nearest. The models have no positions, so padding changes nothing.

Shapes: N windows of a token, R = 3 variants of a masked window, L tokens per window, K distances
(masked: the two sides), M tokens put in its place, V vocabulary, B rows, P positions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxtie.models.language_model import TextModel
from jaxtie.text.data.tokens import Special
from jaxtie.text.pairs import AFTER, BEFORE, Stream, by_token
from jaxtie.training.devices import cores

AT_A_TIME = 16  # tokens put in a token's place per call
SIDE, NEAR_BY = 20, 4


class Windows(NamedTuple):
    """Windows of a text around occurrences of one token."""

    tokens_NxL: np.ndarray  # the tokens before it, the token, AFTER - 1 tokens after it
    asked_NxK: np.ndarray  # which of the AFTER tokens after it belong to its sentence, with [SEP]
    sentence_N: np.ndarray  # number of its row


class Swapped(NamedTuple):
    """Predictions of two models with another token in place of the true one."""

    log_true_2xN: np.ndarray  # ln q(true token | left), nats
    log_other_2xN: np.ndarray  # ln q(other token | left)
    cross_NxK: np.ndarray  # ½⟨g_A, g_B⟩, see `estimators.semantic_sums`
    own_2xNxK: np.ndarray  # ½⟨g, g⟩ of each model


def make_swap(
    models: Sequence[TextModel], mask: int | None = None
) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Compile the predictions of two models with other tokens in the place of one.

    `mask` is the id of the mask token of masked models.

    Returns:
      A jitted function of both models' parameters, tokens_NxL (masked: tokens_NxRxL), other_M int32
      and how many of these count. It returns ln q(token | left), or given the rest, of the true
      token and the others, (2, N, 1 + M); and ½⟨g_A, g_B⟩, ½⟨g_A, g_A⟩ and ½⟨g_B, g_B⟩ for each
      other token, (M, 3, N, K), 0 for those that do not count.
    """
    place = BEFORE if mask is None else SIDE

    def log_q(model: TextModel, params: dict, tokens_BxL: jax.Array, first: int = 0) -> jax.Array:
        """Return ln q from position `first` on, (B, K, V); masked: at the mask, (B, V)."""
        rows, length = tokens_BxL.shape
        if mask is None:
            at_P = (jnp.arange(rows)[:, None] * length + jnp.arange(first, length)[None]).ravel()
        else:
            at_P = jnp.arange(rows) * length + jnp.argmax(tokens_BxL == mask, axis=1)
        h_PxD = model.apply({"params": params}, tokens_BxL, at_P, method="hidden")
        logits_PxV: Any = model.apply(
            {"params": params}, h_PxD, method=lambda self, h: self.embedding.logits(h)
        )
        log_q_PxV = jax.nn.log_softmax(logits_PxV.astype(jnp.float32))
        return log_q_PxV.reshape(rows, length - first, -1) if mask is None else log_q_PxV

    @jax.jit
    def swap(params_2: tuple[dict, dict], tokens: jax.Array, other_M: jax.Array, count: jax.Array):
        rows_BxL = tokens if mask is None else tokens[:, 1:].reshape(-1, tokens.shape[-1])
        ids_M1 = jnp.concatenate([rows_BxL[0, place, None], other_M])
        left, root = [], []
        for model, params in zip(models, params_2):
            if mask is None:
                log_q_NxKxV = log_q(model, params, tokens, BEFORE - 1)
                left_NxV, right = log_q_NxKxV[:, 0], log_q_NxKxV[:, 1:]
            else:
                left_NxV = log_q(model, params, tokens[:, 0])
                right = log_q(model, params, rows_BxL)
            left.append(left_NxV[:, ids_M1])
            root.append(jnp.exp(right / 2))

        def one(m: jax.Array, found: jax.Array) -> jax.Array:
            swapped_BxL = rows_BxL.at[:, place].set(other_M[m])
            g_A, g_B = (
                jnp.exp(log_q(model, params, swapped_BxL, BEFORE) / 2) - own_root
                for model, params, own_root in zip(models, params_2, root)
            )
            pairs = (g_A, g_B), (g_A, g_A), (g_B, g_B)
            products = [jnp.sum(x * y, axis=-1) / 2 for x, y in pairs]
            return found.at[m].set(jnp.stack(products).reshape(found.shape[1:]))

        distances = AFTER if mask is None else 2
        nothing = jnp.zeros((len(other_M), 3, len(tokens), distances), jnp.float32)
        return jnp.stack(left), jax.lax.fori_loop(0, count, one, nothing)

    return swap


def swap_all(
    swap: Callable[..., tuple[jax.Array, jax.Array]],
    params_2: tuple[dict, dict],
    windows: Mapping[int, Windows],
    others: Mapping[int, Sequence[int]],
) -> Iterator[tuple[int, int, Swapped]]:
    """Yield (token, other, predictions) for each token and each of the `others` in its place.

    Runs one thread per core.
    """
    most = max(len(each.sentence_N) for each in windows.values())
    calls = [
        (token, some[start : start + AT_A_TIME])
        for token, some in others.items()
        for start in range(0, len(some), AT_A_TIME)
    ]

    def one(call: tuple[int, Sequence[int]]) -> list[tuple[int, int, Swapped]]:
        token, some = call
        own, number = windows[token], len(windows[token].sentence_N)
        # One shape for all calls: repeat windows from the first on.
        tokens = np.resize(own.tokens_NxL, (most, *own.tokens_NxL.shape[1:]))
        other_M = np.zeros(AT_A_TIME, np.int32)
        other_M[: len(some)] = some
        left, products = map(np.asarray, swap(params_2, tokens, other_M, np.int32(len(some))))
        products = np.where(own.asked_NxK, products[:, :, :number], np.nan)
        left = left[:, :number]
        return [
            (token, other, Swapped(left[..., 0], left[..., m + 1], products[m, 0], products[m, 1:]))
            for m, other in enumerate(some)
        ]

    with ThreadPoolExecutor(cores()) as pool:
        for found in pool.map(one, calls):
            yield from found


def places_of(stream: Stream, vocabulary: int) -> list[np.ndarray]:
    """List, for each token, the positions around which a whole window fits."""
    return by_token(stream.tokens_N, np.arange(BEFORE, len(stream.tokens_N) - AFTER), vocabulary)


def windows_at(stream: Stream, places_N: np.ndarray) -> Windows:
    """Cut the windows around some positions."""
    at_NxL = places_N[:, None] + np.arange(-BEFORE, AFTER)
    asked_NxK = places_N[:, None] + np.arange(1, AFTER + 1) <= stream.end_N[places_N][:, None]
    return Windows(stream.tokens_N[at_NxL], asked_NxK, stream.row_N[places_N])


def places_in_rows(stream: Stream, vocabulary: int) -> list[np.ndarray]:
    """Return where each token of the vocabulary occurs together with another token of its row."""
    before_N, after_N = _tokens_around(stream)
    is_end_N = stream.end_N <= np.arange(len(stream.end_N))
    usable = np.flatnonzero((before_N + after_N > 0) & ~is_end_N)
    return by_token(stream.tokens_N, usable, vocabulary)


def _tokens_around(stream: Stream) -> tuple[np.ndarray, np.ndarray]:
    """Return how many tokens of its row precede each token, and how many follow it."""
    at_N = np.arange(len(stream.tokens_N))
    is_first_N = np.append(True, stream.row_N[1:] != stream.row_N[:-1])
    start_N = np.maximum.accumulate(np.where(is_first_N, at_N, 0))
    return at_N - start_N, stream.end_N - at_N - 1


def masked_windows(
    stream: Stream, places_N: np.ndarray, special: Special, rng: np.random.Generator
) -> Windows:
    """Return the windows around some places, NxRxL, and which sides have a token, NxK."""
    before_N, after_N = (number_N[places_N] for number_N in _tokens_around(stream))
    offset_L = np.arange(-SIDE, SIDE + 1)
    at_NxL = np.clip(places_N[:, None] + offset_L, 0, len(stream.tokens_N) - 1)
    own_NxL = (offset_L >= -before_N[:, None]) & (offset_L <= after_N[:, None])
    tokens_NxL = np.where(own_NxL, stream.tokens_N[at_NxL], special.pad)
    tokens_NxL[offset_L == -before_N[:, None] - 1] = special.cls
    tokens_NxL[offset_L == after_N[:, None] + 1] = special.sep
    tokens_NxRxL = np.repeat(tokens_NxL[:, None], 3, axis=1)
    tokens_NxRxL[:, 0, SIDE] = special.mask
    has_token_NxK = np.stack([before_N, after_N], axis=1) > 0
    for side, (number_N, sign) in enumerate(((before_N, -1), (after_N, 1))):
        distance_N = 1 + rng.integers(0, np.clip(number_N, 1, NEAR_BY))
        rows = np.flatnonzero(has_token_NxK[:, side])
        tokens_NxRxL[rows, 1 + side, SIDE + sign * distance_N[rows]] = special.mask
    return Windows(tokens_NxRxL.astype(np.int32), has_token_NxK, stream.row_N[places_N])
