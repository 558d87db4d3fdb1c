"""What a text's frequencies alone predict: the loss of a unigram and of a bigram model. NumPy only.

Such losses tell what the loss of a trained model is worth. A masked model is asked for a token in
the middle of its sentence; its bigram model knows the token on the left.

Shapes: N tokens with one on their left, V vocabulary, K words with a duplicate.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxtie.text.corpus.batches import RowBatch, Rows
from jaxtie.text.declaration import TextExperiment
from jaxtie.text.material import Material, never_asked, validation_batches
from jaxtie.text.planting import Duplicates

MOST_COUNTED = 2**25  # tokens of the training split, from its beginning


class Baselines(NamedTuple):
    """Losses on the validation batches, nats."""

    unigram: float
    bigram: float


class Follows(NamedTuple):
    """Tokens, and what stands on the left of each."""

    left_N: np.ndarray
    token_N: np.ndarray


def unigram_law(count_V: np.ndarray) -> np.ndarray:
    """The frequencies of tokens, each counted once more than it was seen; V."""
    return (count_V + 1) / np.sum(count_V + 1)


def loss_of_frequencies(known_V: np.ndarray, asked_V: np.ndarray) -> float:
    """Mean loss on tokens by their counts of the law of others by theirs, nats."""
    return float(-asked_V @ np.log(unigram_law(known_V)) / asked_V.sum())


class Bigrams:
    """A law of each token given the one on its left: absolute discounting, interpolated with the
    unigram law.

    q(t | s) = (max(c(s, t) - d, 0) + d·n(s)·q(t)) / c(s), with n(s) different tokens seen after s,
    and d = n₁ / (n₁ + 2 n₂) from how many couples were seen once and twice (Ney, Essen and Kneser
    1994), or 1/2 where none was seen once, as in a text that is there twice; q(t) where s was never
    seen.
    """

    def __init__(self, seen: Follows, vocabulary: int, usable_V: np.ndarray | None = None):
        """Args: seen: what it is made of; usable_V: the tokens that can follow, of which alone laws
        are; None: all.
        """
        self._vocabulary = vocabulary
        usable_V = np.ones(vocabulary, bool) if usable_V is None else usable_V
        once_more_V = (np.bincount(seen.token_N, minlength=vocabulary) + 1.0) * usable_V
        self.unigram_V = once_more_V / once_more_V.sum()
        self._code, self._count = np.unique(self._coded(seen), return_counts=True)
        left = self._code // vocabulary
        self._total_V = np.bincount(left, self._count, vocabulary)
        self._kinds_V = np.bincount(left, minlength=vocabulary)
        once, twice = (int(np.sum(self._count == times)) for times in (1, 2))
        self.discount = once / (once + 2 * twice) if once else 0.5

    def _coded(self, follows: Follows) -> np.ndarray:
        return follows.left_N.astype(np.int64) * self._vocabulary + follows.token_N

    def probability(self, asked: Follows) -> np.ndarray:
        """q(token | left) of each; N."""
        code_N = self._coded(asked)
        place_N = np.minimum(np.searchsorted(self._code, code_N), len(self._code) - 1)
        count_N = np.where(self._code[place_N] == code_N, self._count[place_N], 0)
        total_N, plain_N = self._total_V[asked.left_N], self.unigram_V[asked.token_N]
        spread_N = self.discount * self._kinds_V[asked.left_N] * plain_N
        found_N = (np.maximum(count_N - self.discount, 0) + spread_N) / np.maximum(total_N, 1)
        return np.where(total_N > 0, found_N, plain_N)


def baselines(experiment: TextExperiment, material: Material) -> Baselines:
    """Of what an experiment's models are asked on its validation batches, in expectation over masks
    and duplicates.

    A word and its duplicate are one to either model but for what the draw costs: nobody can know
    it.
    """
    special, planted = material.text.special, material.planted
    vocabulary = len(material.text.vocabulary) + len(planted.words_K)
    never = (special.pad,) if experiment.task == "causal" else never_asked(experiment, special)
    usable_V = ~np.isin(np.arange(vocabulary), never)

    def wanted(follows: Follows) -> Follows:
        return Follows(*(each[usable_V[follows.token_N]] for each in follows))

    rows = first_rows(material.text.train, MOST_COUNTED)
    start = special.sep if experiment.task == "causal" else special.cls
    bigrams = Bigrams(wanted(follows_in_rows(rows, start, special.sep)), vocabulary, usable_V)
    asked = wanted(follows_in_batches(validation_batches(experiment, material)))
    drawing = drawing_loss(asked.token_N, material.drawn)
    laws = bigrams.unigram_V[asked.token_N], bigrams.probability(asked)
    return Baselines(*(float(-np.mean(np.log(law_N))) + drawing for law_N in laws))


def first_rows(rows: Rows, tokens: int) -> Rows:
    """The rows up to so many tokens, or all."""
    count = int(np.searchsorted(rows.offsets, tokens, "right")) - 1
    return (
        rows
        if count >= rows.count
        else Rows(rows.tokens_N[: rows.offsets[count]], rows.offsets[: count + 1])
    )


def follows_in_rows(rows: Rows, start: int, sep: int) -> Follows:
    """Every token of rows, and the [SEP] behind each; on the left of a row stands `start`."""
    token_N = np.insert(np.asarray(rows.tokens_N).astype(np.int64), rows.offsets[1:], sep)
    left_N = np.append(start, token_N[:-1])
    left_N[(rows.offsets[:-1] + np.arange(rows.count))] = start
    return Follows(left_N, token_N)


def follows_in_batches(batches: Sequence[RowBatch]) -> Follows:
    """Every token of batches but the first of each row."""
    pairs = [
        (batch.tokens_BxL[:, :-1].ravel(), batch.tokens_BxL[:, 1:].ravel()) for batch in batches
    ]
    return Follows(*map(np.concatenate, zip(*pairs, strict=True)))


def drawing_loss(token_N: np.ndarray, drawn: Duplicates) -> float:
    """What it costs at best that tokens are spelled as words or duplicates by a draw, mean,
    nats.
    """
    p_K = drawn.probability_K
    share_K = np.array([np.mean(token_N == word) for word in drawn.words_K])
    return float(share_K @ -(p_K * np.log(p_K) + (1 - p_K) * np.log1p(-p_K)))
