"""What a model of text is asked: duplicates swapped in, then BERT's masks, or the next token. Pure,
of fixed shapes.

Everything is drawn afresh from a key, for a whole batch at once. The tokens of a batch lie in one
row, and the positions asked for are numbers in 0...N-1 there. A fixed number P of them have room;
what is asked comes first, the rest has weight 0.

Shapes: B rows, L tokens a row, N = B·L, P positions asked for, K words with a duplicate.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# BERT's (Devlin et al. 2019).
RATE = 0.15  # of the tokens are chosen
TO_MASK, TO_RANDOM = 0.8, 0.1  # of the chosen: a mask stands there; a random token does


class Asked(NamedTuple):
    """What the model sees, and what it is asked there.

    Attributes:
      tokens_BxL: int32.
      at_P: positions in the flattened batch, int32.
      target_P: the tokens to predict, int32.
      weight_P: 1 for what is asked, then 0 to the end; float32.
      dropped: how many more were chosen but did not fit into P; they are neither masked nor asked.
        int32.
    """

    tokens_BxL: jax.Array
    at_P: jax.Array
    target_P: jax.Array
    weight_P: jax.Array
    dropped: jax.Array


def capacity(tokens: int, rate: float = RATE, deviations: float = 6.0) -> int:
    """Room for the positions chosen out of so many tokens: the mean and so many standard
    deviations, in eights.

    With 6 deviations one batch in 10^9 has no room for all; `mask` says what happens then. Never
    more than all tokens.
    """
    room = tokens * rate + deviations * math.sqrt(tokens * rate * (1 - rate))
    return min(tokens, 8 * math.ceil(room / 8))


def swap(
    key: jax.Array,
    tokens_BxL: jax.Array,
    words_K: Sequence[int],
    duplicates_K: Sequence[int],
    probability: float | Sequence[float] = 0.5,
) -> jax.Array:
    """Every occurrence of a word becomes its duplicate with a probability, each on its own; BxL.

    Args:
      words_K, duplicates_K: token ids, known beforehand (not traced).
      probability: of all words, or of each; likewise.
    """
    last = max(words_K) + 1  # an entry for all that come after the words
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
    rate: float = RATE,
) -> Asked:
    """BERT's masks: each token is chosen at a `rate`; of the chosen, 80 % turn into the mask, 10 %
    into a random token.

    If more than `room` are chosen, it keeps so many of them, each equally likely; the others stay
    as they are, and
    `dropped` counts them. So no place in the batch is favoured, though such a batch has less than
    its share of masks.

    Args:
      mask: the mask's token id.
      never: ids that are never chosen: [CLS], [SEP], [PAD], [UNK].
      base_vocabulary: random tokens are out of the first so many ids.
      room: P, see `capacity`.
    """
    chosen_key, room_key, fate_key, token_key = jax.random.split(key, 4)
    tokens_N = jnp.ravel(tokens_BxL)
    choosable_N = jnp.all(tokens_N[None] != jnp.asarray(never, tokens_N.dtype)[:, None], axis=0)
    chosen_N = choosable_N & jax.random.bernoulli(chosen_key, rate, tokens_N.shape)
    at_P, asked_P, dropped = _pack_positions(chosen_N, room, room_key)
    target_P = tokens_N[at_P]
    fate_P = jax.random.uniform(fate_key, (room,))
    random_P = jax.random.randint(token_key, (room,), 0, base_vocabulary, tokens_N.dtype)
    seen_P = jnp.where(
        fate_P < TO_MASK, mask, jnp.where(fate_P < TO_MASK + TO_RANDOM, random_P, target_P)
    )
    put_P = jnp.where(asked_P, at_P, len(tokens_N))  # what is not asked is put nowhere
    seen_BxL = tokens_N.at[put_P].set(seen_P, mode="drop").reshape(tokens_BxL.shape)
    return Asked(seen_BxL, at_P, target_P, asked_P.astype(jnp.float32), dropped)


def next_tokens(tokens_BxL: jax.Array, *, padding: int) -> Asked:
    """Every token but the first of a row is asked of the ones before it, padding left out; P = B·(L
    - 1).
    """
    rows, length = tokens_BxL.shape
    following_BxL = jnp.pad(tokens_BxL[:, 1:], ((0, 0), (0, 1)), constant_values=padding)
    at_P, asked_P, dropped = _pack_positions(
        (following_BxL != padding).ravel(), rows * (length - 1)
    )
    return Asked(
        tokens_BxL, at_P, following_BxL.ravel()[at_P], asked_P.astype(jnp.float32), dropped
    )


def _pack_positions(
    chosen_N: jax.Array, room: int, key: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Up to `room` of the positions chosen, which of these are any (the first ones), and how many
    found no room.

    Without a `key` there must be room for all.
    """
    count_N = jnp.cumsum(chosen_N, dtype=jnp.int32)
    number, place_P = count_N[-1], jnp.arange(room, dtype=jnp.int32)
    # Too many: take consecutive ones from a random start, so that each has the same chance.
    if key is not None:
        begin = jax.random.randint(key, (), 0, jnp.maximum(number, 1))
        place_P = jnp.where(number > room, (begin + place_P) % jnp.maximum(number, 1), place_P)
    # of the k-th: the first place with a count of k
    at_P = jnp.searchsorted(count_N, place_P + 1).astype(jnp.int32)
    asked_P = jnp.arange(room) < number
    return jnp.where(asked_P, at_P, 0), asked_P, jnp.maximum(number - room, 0)
