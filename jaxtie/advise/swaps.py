"""Compute predictions of two models with one token in place of another.

What models say of real contexts of a token, and what becomes of it with another token in its
place.

A context is a window of the validation text: so many tokens on the left, the token, the true text
after it up to the end of its sentence. All that is asked of a token is asked in one call: its own
windows once, then each other token in its place.

Shapes: N windows of a token, L tokens a window, K distances, M tokens to put in its place, V
vocabulary.

What masked models say of real contexts of a token, and what becomes of it with another token in
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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxtie.models.language_model import TextModel
from jaxtie.text.data.tokens import Special
from jaxtie.text.pairs import AFTER, BEFORE, Stream, Windows, by_token
from jaxtie.training.devices import cores

AT_A_TIME = 16  # tokens that are put in a token's place in one call


class Swapped(NamedTuple):
    """What two models make of another token in the place of the true one.

    Attributes:
      own_2xN, other_2xN: ln q(true token | left), ln q(other token | left), nats.
      cross_NxK, own_2xNxK: ½⟨g_A, g_B⟩ and each model's ½⟨g, g⟩, see
        `jaxtie.advise.estimators.Products`.
    """

    own_2xN: np.ndarray
    other_2xN: np.ndarray
    cross_NxK: np.ndarray
    own_2xNxK: np.ndarray


def make_swap(models: Sequence[TextModel]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """A jitted function of the two models' parameters, tokens_NxL, other_M int32 and how many of
    these count.

    It returns ln q(token | left) of the true token and of the others, (2, N, 1 + M), and for each
    other one ½⟨g_A, g_B⟩, ½⟨g_A, g_A⟩ and ½⟨g_B, g_B⟩, (M, 3, N, K). What does not count is 0.
    """

    def log_law(model: TextModel, params: dict, tokens_NxL: jax.Array, first: int) -> jax.Array:
        """ln q of every token from place `first` on, (N, K, V)."""
        rows, length = tokens_NxL.shape
        at_P = (jnp.arange(rows)[:, None] * length + jnp.arange(first, length)[None]).ravel()
        h_PxD = model.apply({"params": params}, tokens_NxL, at_P, method="hidden")
        logits_PxV: Any = model.apply(
            {"params": params}, h_PxD, method=lambda self, h: self.embedding.logits(h)
        )
        return jax.nn.log_softmax(logits_PxV.astype(jnp.float32)).reshape(rows, length - first, -1)

    @jax.jit
    def swap(
        params_2: tuple[dict, dict], tokens_NxL: jax.Array, other_M: jax.Array, count: jax.Array
    ):
        ids_M1 = jnp.concatenate([tokens_NxL[0, BEFORE, None], other_M])
        left, root = [], []
        for model, params in zip(models, params_2):
            law_NxKxV = log_law(model, params, tokens_NxL, BEFORE - 1)
            left.append(law_NxKxV[:, 0][:, ids_M1])
            root.append(jnp.exp(law_NxKxV[:, 1:] / 2))

        def one(m: jax.Array, found: jax.Array) -> jax.Array:
            there_NxL = tokens_NxL.at[:, BEFORE].set(other_M[m])
            g_A, g_B = (
                jnp.exp(log_law(model, params, there_NxL, BEFORE) / 2) - root_NxKxV
                for model, params, root_NxKxV in zip(models, params_2, root)
            )
            products = [
                jnp.sum(x * y, axis=-1) / 2 for x, y in ((g_A, g_B), (g_A, g_A), (g_B, g_B))
            ]
            return found.at[m].set(jnp.stack(products))

        nothing = jnp.zeros((len(other_M), 3, len(tokens_NxL), AFTER), jnp.float32)
        return jnp.stack(left), jax.lax.fori_loop(0, count, one, nothing)

    return swap


def swap_all(
    swap: Callable[..., tuple[jax.Array, jax.Array]],
    params_2: tuple[dict, dict],
    windows: Mapping[int, Windows],
    others: Mapping[int, Sequence[int]],
) -> Iterator[tuple[int, int, Swapped]]:
    """Of each token and each one that is put in its place: what the models make of it; a thread a
    core.

    Args:
      windows: of each token; of any numbers, the largest of which all are filled up to.
      others: what is put in its place.
    """
    most = max(len(each.sentence_N) for each in windows.values())

    def one(task: tuple[int, Sequence[int]]) -> list[tuple[int, int, Swapped]]:
        token, some = task
        own, number = windows[token], len(windows[token].sentence_N)
        # again from the first where there are fewer
        tokens_NxL = np.resize(own.tokens_NxL, (most, *own.tokens_NxL.shape[1:]))
        other_M = np.zeros(AT_A_TIME, np.int32)
        other_M[: len(some)] = some
        left, products = (
            np.asarray(x) for x in swap(params_2, tokens_NxL, other_M, np.int32(len(some)))
        )
        products = np.where(own.asked_NxK, products[:, :, :number], np.nan)
        left = left[:, :number]
        return [
            (token, other, Swapped(left[..., 0], left[..., m + 1], products[m, 0], products[m, 1:]))
            for m, other in enumerate(some)
        ]

    with ThreadPoolExecutor(cores()) as pool:
        for found in pool.map(one, list(_tasks(others))):
            yield from found


def _tasks(others: Mapping[int, Sequence[int]]) -> Iterable[tuple[int, Sequence[int]]]:
    """Each token with some of those to be put in its place."""
    for token, some in others.items():
        for start in range(0, len(some), AT_A_TIME):
            yield token, some[start : start + AT_A_TIME]


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
