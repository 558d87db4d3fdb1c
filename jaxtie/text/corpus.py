"""Combine a text, its duplicates and its pairs for an experiment; unigram and bigram losses.

Imports no jax. Shapes: V vocabulary, K words, N tokens with the token on their left.
"""

from typing import NamedTuple

import numpy as np

from jaxtie.config import member_number
from jaxtie.text.config import TextExperiment
from jaxtie.text.data.batches import (
    CausalBatches,
    MaskedBatches,
    RowBatch,
    Rows,
    Special,
    lengths_of,
)
from jaxtie.text.data.tokens import Text, chosen_words
from jaxtie.text.pairs import (
    Duplicates,
    PairContexts,
    choose_contexts,
    choose_duplicates,
    duplicates_of,
    insert_duplicates,
    matched_pairs,
    random_pairs,
    take_half,
)

RANKS = (10, 100, 1_000, 10_000)  # last ranks of the groups of tokens, the most frequent first
FREQUENCIES = ("1-10", "11-100", "101-1,000", "1,001-10,000", "10,001 on")  # names of the groups
PROBES, NEIGHBOURS = 8, 5  # words whose nearest neighbours are recorded; neighbours of each
MOST_COUNTED = 2**25  # training tokens that the bigram model counts, at most


class PreparedCorpus(NamedTuple):
    """A text as an experiment uses it.

    Attributes:
      text: the text with its inserted duplicates and the training rows of the chosen half.
      vocabulary: its tokens, then the names of the duplicates; V.
      words_K: ids of the evaluated words, the most frequent first unless the experiment names them.
      drawn: duplicates of these words that are drawn afresh at each step.
      planted: duplicates that stand in the text itself.
      first, second: ids of the evaluated pairs, (kinds, K).
      contexts: where predictions of these pairs are evaluated; None: nowhere.
    """

    text: Text
    vocabulary: tuple[str, ...]
    words_K: np.ndarray
    drawn: Duplicates
    planted: Duplicates
    first: np.ndarray
    second: np.ndarray
    contexts: PairContexts | None = None


def prepare_corpus(experiment: TextExperiment, text: Text) -> PreparedCorpus:
    """Choose words, duplicates, pairs and contexts.

    Raises:
      UserError: if the text is too short for one batch or has too few words.
    """
    words_K, words = chosen_words(text, experiment.words)
    planted = choose_duplicates(text, experiment.planted)
    text = take_half(insert_duplicates(text, planted, experiment.data_seed), experiment.half)
    drawn = duplicates_of(words_K, words, len(text.vocabulary), experiment.duplicates)
    vocabulary = text.vocabulary + planted.names + drawn.names
    nothing = np.zeros((0, experiment.word_count), np.int32)
    prepared = PreparedCorpus(text, vocabulary, words_K, drawn, planted, nothing, nothing)
    pairs = {
        "duplicate": lambda: (words_K, drawn.duplicates_K),
        "matched": lambda: matched_pairs(
            experiment.data_seed, token_counts(prepared), drawn, text.special
        ),
        "random": lambda: random_pairs(experiment.data_seed, words_K, experiment.word_count),
    }
    first, second = np.array([pairs[kind]() for kind in experiment.kinds], np.int32).swapaxes(0, 1)
    prepared = prepared._replace(first=first, second=second)
    training_batches(experiment, prepared, experiment.seeds[0])  # raises if there is no batch
    validation_batches(experiment, prepared)
    if experiment.looks_at_predictions:
        contexts = choose_contexts(experiment, text, drawn, first, second)
        prepared = prepared._replace(contexts=contexts)
    return prepared


def probes(experiment: TextExperiment) -> np.ndarray:
    """Return which of the evaluated words have their nearest neighbours recorded."""
    found = np.arange(min(PROBES, experiment.word_count))
    return found * (experiment.word_count // len(found))


def never_asked(experiment: TextExperiment, special: Special) -> tuple[int, ...]:
    """Return the ids of tokens that a masked model never has to predict."""
    always = (special.pad, special.cls, special.sep)
    return always if experiment.masks_unknown else (*always, special.unk)


def token_counts(prepared: PreparedCorpus, rows: Rows | None = None) -> np.ndarray:
    """Count each token in the training or other rows, in expectation over drawn duplicates; V."""
    rows, count_V = rows or prepared.text.train, np.zeros(len(prepared.vocabulary))
    found_V = np.bincount(np.asarray(rows.tokens_N), minlength=len(count_V))
    count_V[: len(found_V)] = found_V
    count_V[prepared.text.special.sep] += rows.count
    drawn = prepared.drawn
    count_V[drawn.duplicates_K] = count_V[drawn.words_K] * drawn.probability_K
    count_V[drawn.words_K] *= 1 - drawn.probability_K
    return count_V


def frequency_groups(prepared: PreparedCorpus) -> np.ndarray:
    """Return the index in `FREQUENCIES` of each token's group; int32[V]."""
    rank_V = np.empty(len(prepared.vocabulary), np.int64)
    rank_V[np.argsort(-token_counts(prepared), kind="stable")] = np.arange(1, len(rank_V) + 1)
    return np.searchsorted(RANKS, rank_V).astype(np.int32)


def make_batches(
    experiment: TextExperiment,
    prepared: PreparedCorpus,
    rows: Rows,
    seed: int | None,
    **options: bool,
) -> MaskedBatches | CausalBatches:
    """Return the batches of some rows in the order of a seed; None keeps the order of the rows."""
    own, special = experiment, prepared.text.special
    if own.objective == "causal":
        return CausalBatches(rows, special, own.batch, own.length, seed, **options)
    return MaskedBatches(rows, special, own.batch, own.length, seed, own.buckets, **options)


def training_batches(
    experiment: TextExperiment, prepared: PreparedCorpus, seed: int
) -> MaskedBatches | CausalBatches:
    """Return the training batches in the order of a seed."""
    number = member_number(experiment.data_seed, seed)
    return make_batches(experiment, prepared, prepared.text.train, number)


def validation_batches(experiment: TextExperiment, prepared: PreparedCorpus) -> list[RowBatch]:
    """Return batches of all validation rows or a choice of them, the same for every member."""
    batches = make_batches(experiment, prepared, prepared.text.valid, None, keep_last=True)
    if batches.count > experiment.eval_batches:
        batches = make_batches(experiment, prepared, prepared.text.valid, experiment.data_seed)
    return [batches[k] for k in range(min(batches.count, experiment.eval_batches))]


def row_lengths(experiment: TextExperiment) -> tuple[int, ...]:
    """Return the possible row lengths of batches, ascending."""
    if experiment.objective == "causal":
        return (experiment.length + 1,)
    return lengths_of(experiment.buckets, experiment.length)


class Baselines(NamedTuple):
    """Losses on the validation batches, nats."""

    unigram: float
    bigram: float


class Follows(NamedTuple):
    """Tokens, and the token on the left of each."""

    left_N: np.ndarray
    token_N: np.ndarray


def loss_of_frequencies(known_V: np.ndarray, asked_V: np.ndarray) -> float:
    """Compute the mean unigram loss, nats, on tokens with some counts given other counts.

    The model has counted each token of the vocabulary once more than it was seen.
    """
    return float(-asked_V @ np.log((known_V + 1) / np.sum(known_V + 1)) / asked_V.sum())


class Bigrams:
    """Bigram model: absolute discounting, interpolated with the unigram distribution.

    q(t | s) = (max(c(s, t) - d, 0) + d·n(s)·q(t)) / c(s), where n(s) is the number of different
    tokens after s, d = n₁ / (n₁ + 2 n₂), and n₁ and n₂ are the numbers of pairs seen once and twice
    (Ney, Essen and Kneser 1994). If none was seen once, as in a repeated text, d = 1/2. If s was
    never seen, q(t | s) = q(t).
    """

    def __init__(self, seen: Follows, vocabulary: int, usable_V: np.ndarray | None = None):
        """Count.

        Args:
          seen: what is counted.
          vocabulary: number of tokens.
          usable_V: tokens that can follow, the only ones with a probability; None: all.
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
        """Compute q(token | left); N."""
        code_N = self._coded(asked)
        place_N = np.minimum(np.searchsorted(self._code, code_N), len(self._code) - 1)
        count_N = np.where(self._code[place_N] == code_N, self._count[place_N], 0)
        total_N, plain_N = self._total_V[asked.left_N], self.unigram_V[asked.token_N]
        spread_N = self.discount * self._kinds_V[asked.left_N] * plain_N
        found_N = (np.maximum(count_N - self.discount, 0) + spread_N) / np.maximum(total_N, 1)
        return np.where(total_N > 0, found_N, plain_N)


def baselines(experiment: TextExperiment, prepared: PreparedCorpus) -> Baselines:
    """Compute unigram and bigram losses on the positions that models are evaluated at.

    The bigram model of a masked model knows the token on the left. Losses are in expectation over
    masks and duplicates: a word and its duplicate count as one token, plus the entropy of the draw
    between them.
    """
    special, planted = prepared.text.special, prepared.planted
    vocabulary = len(prepared.text.vocabulary) + len(planted.words_K)
    is_causal = experiment.objective == "causal"
    never = (special.pad,) if is_causal else never_asked(experiment, special)
    usable_V = ~np.isin(np.arange(vocabulary), never)

    def wanted(follows: Follows) -> Follows:
        return Follows(*(each[usable_V[follows.token_N]] for each in follows))

    rows = first_rows(prepared.text.train, MOST_COUNTED)
    start = special.sep if is_causal else special.cls
    bigrams = Bigrams(wanted(_follows_in_rows(rows, start, special.sep)), vocabulary, usable_V)
    tokens = [batch.tokens_BxL for batch in validation_batches(experiment, prepared)]
    left_N, token_N = (
        np.concatenate([each[:, part].ravel() for each in tokens])
        for part in (slice(None, -1), slice(1, None))
    )
    asked = wanted(Follows(left_N, token_N))
    entropy = _rendering_entropy(asked.token_N, prepared.drawn)
    probabilities = bigrams.unigram_V[asked.token_N], bigrams.probability(asked)
    return Baselines(*(float(-np.mean(np.log(p_N))) + entropy for p_N in probabilities))


def first_rows(rows: Rows, tokens: int) -> Rows:
    """Return the first rows that together have at most some number of tokens."""
    count = int(np.searchsorted(rows.offsets, tokens, "right")) - 1
    if count >= rows.count:
        return rows
    return Rows(rows.tokens_N[: rows.offsets[count]], rows.offsets[: count + 1])


def _follows_in_rows(rows: Rows, start: int, sep: int) -> Follows:
    """List every token of rows and the [SEP] behind each; `start` stands on the left of a row."""
    token_N = np.insert(np.asarray(rows.tokens_N).astype(np.int64), rows.offsets[1:], sep)
    left_N = np.append(start, token_N[:-1])
    left_N[(rows.offsets[:-1] + np.arange(rows.count))] = start
    return Follows(left_N, token_N)


def _rendering_entropy(token_N: np.ndarray, drawn: Duplicates) -> float:
    """Compute the mean entropy, nats, of the draws between words and duplicates."""
    p_K = drawn.probability_K
    share_K = np.array([np.mean(token_N == word) for word in drawn.words_K])
    return float(share_K @ -(p_K * np.log(p_K) + (1 - p_K) * np.log1p(-p_K)))
