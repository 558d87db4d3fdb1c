"""Combine corpus, duplicates, pairs and batches; unigram and bigram losses.

A corpus as an experiment sees it: its vocabulary with duplicates, the words that are looked at,
batches of its rows.

Imports no jax.

What a text's frequencies alone predict: the loss of a unigram and of a bigram model. NumPy only.

Such losses tell what the loss of a trained model is worth. A masked model is asked for a token in
the middle of its sentence; its bigram model knows the token on the left.

Shapes: N tokens with one on their left, V vocabulary, K words with a duplicate.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxtie.config import number_of
from jaxtie.text.config import TextExperiment
from jaxtie.text.data.batches import (
    CausalBatches,
    MaskedBatches,
    RowBatch,
    Rows,
    Special,
    lengths_of,
)
from jaxtie.text.data.tokens import Text
from jaxtie.text.data.words import chosen_words
from jaxtie.text.pairs import (
    Duplicates,
    PairContexts,
    choose_contexts,
    duplicates_of,
    matched_pairs,
    plant,
    planted_words,
    random_pairs,
    take_half,
)

RANKS = (10, 100, 1_000, 10_000)  # where groups of tokens end, the most frequent ones first
FREQUENCIES = ("1-10", "11-100", "101-1,000", "1,001-10,000", "10,001 on")  # these groups, by rank
PROBES, NEIGHBOURS = 8, 5  # words whose nearest neighbours are looked up, and how many of these


class Material(NamedTuple):
    """A corpus as an experiment sees it.

    Attributes:
      text: the corpus; with what is planted, and of its training rows what the experiment trains
        on.
      vocabulary: its tokens, then a duplicate of each of the frequent words, marked by a star; V.
      words_K: ids of the words that are looked at, the most frequent first unless the experiment
        names them.
      drawn: the duplicates of these words that are drawn afresh at each step, if there are any.
      planted: words whose duplicates stand in the text itself.
      first, second: ids of the pairs that are looked at, (kinds, K).
      contexts: where predictions of these pairs are looked at; None: nowhere.
    """

    text: Text
    vocabulary: tuple[str, ...]
    words_K: np.ndarray
    drawn: Duplicates
    planted: Duplicates
    first: np.ndarray
    second: np.ndarray
    contexts: PairContexts | None = None


def make_material(experiment: TextExperiment, text: Text) -> Material:
    """The corpus, prepared, as the experiment sees it.

    Raises:
      UserError: where the text is too short for one batch or has too few words.
    """
    words_K, words = chosen_words(text, experiment.words)
    planted = planted_words(text, experiment.planted)
    text = take_half(plant(text, planted, experiment.data_seed), experiment.half)
    drawn = duplicates_of(words_K, words, len(text.vocabulary), experiment.duplicates)
    nothing = np.zeros((0, experiment.word_count), np.int32)
    material = Material(
        text,
        text.vocabulary + planted.names + drawn.names,
        words_K,
        drawn,
        planted,
        nothing,
        nothing,
    )
    pairs = {
        "duplicate": lambda: (words_K, drawn.duplicates_K),
        "matched": lambda: matched_pairs(
            experiment.data_seed, token_counts(material), drawn, text.special
        ),
        "random": lambda: random_pairs(experiment.data_seed, words_K, experiment.word_count),
    }
    first, second = np.array([pairs[kind]() for kind in experiment.kinds], np.int32).swapaxes(0, 1)
    material = material._replace(first=first, second=second)
    training_batches(experiment, material, experiment.seeds[0])  # they raise
    validation_batches(experiment, material)
    if experiment.looks_at_predictions:
        material = material._replace(
            contexts=choose_contexts(experiment, text, drawn, first, second)
        )
    return material


def probes(experiment: TextExperiment) -> np.ndarray:
    """Places among the frequent words of those whose neighbours are looked up."""
    found = np.arange(min(PROBES, experiment.word_count))
    return found * (experiment.word_count // len(found))


def never_asked(experiment: TextExperiment, special: Special) -> tuple[int, ...]:
    """Ids of tokens that a masked model is not asked for."""
    return (special.pad, special.cls, special.sep) + (
        () if experiment.masks_unknown else (special.unk,)
    )


def token_counts(material: Material) -> np.ndarray:
    """How often each token stands in the training rows; of a word and its duplicate that is drawn,
    by its probability; V.
    """
    rows, count_V = material.text.train, np.zeros(len(material.vocabulary))
    found_V = np.bincount(np.asarray(rows.tokens_N), minlength=len(count_V))
    count_V[: len(found_V)] = found_V
    count_V[material.text.special.sep] += rows.count
    drawn = material.drawn
    count_V[drawn.duplicates_K] = count_V[drawn.words_K] * drawn.probability_K
    count_V[drawn.words_K] *= 1 - drawn.probability_K
    return count_V


def frequency_groups(material: Material) -> np.ndarray:
    """Of each token, the number of its group in `FREQUENCIES`; int32[V]."""
    rank_V = np.empty(len(material.vocabulary), np.int64)
    rank_V[np.argsort(-token_counts(material), kind="stable")] = np.arange(1, len(rank_V) + 1)
    return np.searchsorted(RANKS, rank_V).astype(np.int32)


def _batches(
    experiment: TextExperiment, material: Material, rows: Rows, seed: int | None, **options: bool
):
    special = material.text.special
    if experiment.objective == "causal":
        return CausalBatches(rows, special, experiment.batch, experiment.length, seed, **options)
    return MaskedBatches(
        rows, special, experiment.batch, experiment.length, seed, experiment.buckets, **options
    )


def training_batches(
    experiment: TextExperiment, material: Material, seed: int
) -> MaskedBatches | CausalBatches:
    """A seed's own order of the rows."""
    return _batches(
        experiment, material, material.text.train, number_of(experiment.data_seed, seed)
    )


def validation_batches(experiment: TextExperiment, material: Material) -> list[RowBatch]:
    """Batches of all rows, or a choice of them; the same for all seeds and arms."""
    batches = _batches(experiment, material, material.text.valid, None, keep_last=True)
    if batches.count > experiment.eval_batches:
        batches = _batches(experiment, material, material.text.valid, experiment.data_seed)
    return [batches[k] for k in range(min(batches.count, experiment.eval_batches))]


def row_lengths(experiment: TextExperiment) -> tuple[int, ...]:
    """How many tokens the rows of batches may have, ascending."""
    if experiment.objective == "causal":
        return (experiment.length + 1,)
    return lengths_of(experiment.buckets, experiment.length)


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
    never = (special.pad,) if experiment.objective == "causal" else never_asked(experiment, special)
    usable_V = ~np.isin(np.arange(vocabulary), never)

    def wanted(follows: Follows) -> Follows:
        return Follows(*(each[usable_V[follows.token_N]] for each in follows))

    rows = first_rows(material.text.train, MOST_COUNTED)
    start = special.sep if experiment.objective == "causal" else special.cls
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
