"""Halves of a text, for two models that share no sentence; and words planted in it twice, which are
known to be equivalent.

A planted word has a duplicate, a token of its own, marked by a star. Each occurrence is spelled as
one of the two by a draw of its own, once and for all. So the two are equally likely but for one
constant, and the choice has no consequences.

Imports no jax. Shapes: R rows, N tokens of a split, K planted words.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxtie.experiment import UserError
from jaxtie.text.corpus.batches import Rows
from jaxtie.text.corpus.tokens import Text
from jaxtie.text.corpus.words import frequent_words
from jaxtie.text.declaration import HALVES

SENTENCES = 64  # sentences that stay together in a half: contexts go over the ends of sentences
# Ranks of the frequent words that get duplicates: as frequent as those that are evaluated.
EVERY, OFFSET = 5, 3
EVENLY, RARELY = 0.5, 0.1  # in turn, how often an occurrence is spelled as the duplicate


class Duplicates(NamedTuple):
    """Words with a duplicate: ids of both, how likely an occurrence is spelled as the duplicate,
    and what this is called.
    """

    words_K: np.ndarray
    duplicates_K: np.ndarray
    probability_K: np.ndarray
    names: tuple[str, ...]

    def twins(self, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
        """Of each of so many tokens the duplicate, or itself where it has none, and how likely it
        is spelled so; V, V.
        """
        twin_V, chance_V = np.arange(vocabulary), np.zeros(vocabulary)
        twin_V[self.words_K], chance_V[self.words_K] = self.duplicates_K, self.probability_K
        return twin_V, chance_V


def duplicates_of(
    words_K: np.ndarray, words: Sequence[str], first: int, probabilities: Sequence[float]
) -> Duplicates:
    """Duplicates of words, numbered from `first` on, which get the probabilities in turn; none
    where there are none.
    """
    number = len(words_K) if probabilities else 0
    probability_K = np.resize(np.array(probabilities, np.float64), number)
    names = tuple(f"{word}*" for word in words[:number])
    return Duplicates(
        np.asarray(words_K)[:number],
        first + np.arange(number, dtype=np.int32),
        probability_K,
        names,
    )


def planted_words(text: Text, number: int) -> Duplicates:
    """Which words have a duplicate in the text itself: from the frequent ones every fifth, fair and
    skewed ones in turn.

    Raises:
      UserError: where the text has too few words.
    """
    wanted = EVERY * (number - 1) + OFFSET + 1 if number else 0
    ids, words = frequent_words(text, wanted) if number else (np.zeros(0, np.int32), ())
    return duplicates_of(
        ids[OFFSET::EVERY], words[OFFSET::EVERY], len(text.vocabulary), (EVENLY, RARELY)
    )


def plant(text: Text, planted: Duplicates, seed: int) -> Text:
    """The text with duplicates in every split; its own vocabulary stays what it is. Tokens are in
    memory then.
    """
    if not len(planted.words_K):
        return text
    vocabulary = len(text.vocabulary) + len(planted.words_K)
    twin_V, chance_V = planted.twins(vocabulary)

    def spelled(split: int, rows: Rows) -> Rows:
        tokens_N = np.asarray(rows.tokens_N)
        drawn_N = (
            np.random.default_rng((seed, split)).random(len(tokens_N), np.float32)
            < chance_V[tokens_N]
        )
        dtype = np.uint16 if vocabulary <= 2**16 else np.uint32
        return Rows(np.where(drawn_N, twin_V[tokens_N], tokens_N).astype(dtype), rows.offsets)

    return text._replace(
        train=spelled(0, text.train), valid=spelled(1, text.valid), test=spelled(2, text.test)
    )


def take_half(text: Text, half: str | None) -> Text:
    """The text with one half of the training rows, block by block in turn; the other splits stay
    whole.

    Raises:
      UserError: where there is one block only.
    """
    if half is None:
        return text
    rows = text.train
    own_R = np.arange(rows.count) // SENTENCES % 2 == HALVES.index(half)
    if not own_R.any() or own_R.all():
        raise UserError(
            f"text: {rows.count:,} sentences are too few for two halves of blocks of {SENTENCES};"
            " give more text"
        )
    own_N = np.repeat(own_R, rows.lengths)
    offsets = np.append(0, np.cumsum(rows.lengths[own_R]))
    return text._replace(train=Rows(np.asarray(rows.tokens_N)[own_N], offsets))
