"""Turn rows into targets: swap duplicates in, then mask tokens or take the next ones.

Pure functions of fixed shapes. Everything is drawn from a key, for a whole batch at once. Positions
are numbers in the flattened batch. Arrays of targets have P entries: the targets first, the rest
with weight 0.

Shapes: B rows, L tokens a row, N = B·L, P targets, K words with a duplicate.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Of BERT (Devlin et al. 2019).
RATE = 0.15  # share of the tokens that are chosen
TO_MASK, TO_RANDOM = 0.8, 0.1  # shares of the chosen that become a mask, or a random token


class Targets(NamedTuple):
    """A batch: the model's input and the tokens that it has to predict."""

    tokens_BxL: jax.Array  # input, int32
    at_P: jax.Array  # positions in the flattened batch, int32
    target_P: jax.Array  # tokens to predict, int32
    weight_P: jax.Array  # 1 for targets, then 0; float32


def capacity(tokens: int) -> int:
    """Return room for the targets chosen from some number of tokens, a multiple of 8.

    It is the mean plus 6 standard deviations, at most all tokens: one batch in 10^9 does not fit,
    see `mask`.
    """
    room = tokens * RATE + 6 * math.sqrt(tokens * RATE * (1 - RATE))
    return min(tokens, 8 * math.ceil(room / 8))


def swap(
    key: jax.Array,
    tokens_BxL: jax.Array,
    words_K: Sequence[int] | np.ndarray,
    duplicates_K: Sequence[int] | np.ndarray,
    probability: float | Sequence[float] | np.ndarray = 0.5,
) -> jax.Array:
    """Replace each occurrence of a word by its duplicate with a probability; BxL.

    Words, duplicates and their probability, one or one each, are constants of the program.
    """
    last = max(words_K) + 1  # one entry for all tokens beyond the words
    twin, chance = np.full(last + 1, -1, np.int32), np.zeros(last + 1, np.float32)
    twin[np.asarray(words_K)], chance[np.asarray(words_K)] = duplicates_K, probability
    at_BxL = jnp.minimum(tokens_BxL, last)
    twin_BxL, chance_BxL = jnp.asarray(twin)[at_BxL], jnp.asarray(chance)[at_BxL]
    return jnp.where(jax.random.bernoulli(key, chance_BxL), twin_BxL, tokens_BxL)


def mask(
    key: jax.Array,
    tokens_BxL: jax.Array,
    *,
    mask: int,
    never: Sequence[int],
    base_vocabulary: int,
    room: int,
) -> Targets:
    """Mask tokens as BERT does: 80 % of the chosen become the mask, 10 % a random token.

    If more than `room` (P, see `capacity`) are chosen, as many are kept, each equally likely; the
    others stay as they are. Ids in `never` are not chosen; random ids are below `base_vocabulary`.
    """
    chosen_key, room_key, fate_key, token_key = jax.random.split(key, 4)
    tokens_N = jnp.ravel(tokens_BxL)
    choosable_N = jnp.all(tokens_N[None] != jnp.asarray(never, tokens_N.dtype)[:, None], axis=0)
    chosen_N = choosable_N & jax.random.bernoulli(chosen_key, RATE, tokens_N.shape)
    at_P, is_target_P = _pack_positions(chosen_N, room, room_key)
    target_P = tokens_N[at_P]
    fate_P = jax.random.uniform(fate_key, (room,))
    random_P = jax.random.randint(token_key, (room,), 0, base_vocabulary, tokens_N.dtype)
    seen_P = jnp.where(
        fate_P < TO_MASK, mask, jnp.where(fate_P < TO_MASK + TO_RANDOM, random_P, target_P)
    )
    put_P = jnp.where(is_target_P, at_P, len(tokens_N))  # out of range: dropped
    seen_BxL = tokens_N.at[put_P].set(seen_P, mode="drop").reshape(tokens_BxL.shape)
    return Targets(seen_BxL, at_P, target_P, is_target_P.astype(jnp.float32))


def next_tokens(tokens_BxL: jax.Array, *, padding: int) -> Targets:
    """Predict every token but the first of a row, padding left out; P = B·(L - 1)."""
    rows, length = tokens_BxL.shape
    following_BxL = jnp.pad(tokens_BxL[:, 1:], ((0, 0), (0, 1)), constant_values=padding)
    following_N = following_BxL.ravel()
    at_P, is_target_P = _pack_positions(following_N != padding, rows * (length - 1))
    return Targets(tokens_BxL, at_P, following_N[at_P], is_target_P.astype(jnp.float32))


def _pack_positions(
    chosen_N: jax.Array, room: int, key: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Return chosen positions, packed to the front, and which entries are chosen; (P,) each.

    Without a `key` there must be room for all.
    """
    count_N = jnp.cumsum(chosen_N, dtype=jnp.int32)
    number, place_P = count_N[-1], jnp.arange(room, dtype=jnp.int32)
    # Too many: take consecutive ones from a random start, so that each has the same chance.
    if key is not None:
        begin = jax.random.randint(key, (), 0, jnp.maximum(number, 1))
        place_P = jnp.where(number > room, (begin + place_P) % jnp.maximum(number, 1), place_P)
    # of the k-th: the first position with a count of k
    at_P = jnp.searchsorted(count_N, place_P + 1).astype(jnp.int32)
    is_chosen_P = jnp.arange(room) < number
    return jnp.where(is_chosen_P, at_P, 0), is_chosen_P
