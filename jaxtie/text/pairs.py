"""Which pairs of tokens words and their duplicates are held against. NumPy only.

Shapes: K pairs, V vocabulary.
"""

import numpy as np

from jaxtie.text.corpus.batches import Special
from jaxtie.text.planting import Duplicates

CLOSE = 3  # a token that matches is one of so many that are nearest in frequency


def random_pairs(seed: int, words_K: np.ndarray, pairs: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of different words, no pair twice, whichever way round; the same for the same seed.

    Raises:
      ValueError: if there are not so many.
    """
    first, second = np.triu_indices(len(words_K), 1)
    if pairs > len(first):
        raise ValueError(f"pairs = {pairs}: {len(words_K)} words make {len(first)}")
    chosen = np.random.default_rng(seed).choice(len(first), pairs, replace=False)
    return np.asarray(words_K)[first[chosen]], np.asarray(words_K)[second[chosen]]


def matched_pairs(
    seed: int, count_V: np.ndarray, drawn: Duplicates, special: Special
) -> tuple[np.ndarray, np.ndarray]:
    """For each word and its duplicate two other tokens, about as frequent as these; the same for
    the same seed.

    Either is drawn from the tokens that are nearest to the one it stands for, by the ratio of their
    counts. The two are never a word and its own duplicate, nor special tokens.

    Args:
      count_V: how often each token is seen, duplicates too.
    """
    rng = np.random.default_rng(seed)
    usable_V = count_V > 0
    usable_V[list(special)] = False
    log_V = np.log(np.maximum(count_V, 1e-9))
    partner = dict(zip(drawn.words_K.tolist(), drawn.duplicates_K.tolist()))
    partner |= {duplicate: word for word, duplicate in partner.items()}

    def like(token: int, besides: set[int]) -> int:
        apart_V = np.where(usable_V, np.abs(log_V - log_V[token]), np.inf)
        apart_V[list(besides)] = np.inf
        return int(rng.choice(np.argsort(apart_V, kind="stable")[:CLOSE]))

    found = []
    for own in zip(drawn.words_K.tolist(), drawn.duplicates_K.tolist()):
        first = like(own[0], {*own})
        second = like(own[1], {*own, first, partner.get(first, first)})
        found.append((first, second))
    first_K, second_K = np.array(found, np.int32).T
    return first_K, second_K
