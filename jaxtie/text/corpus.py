"""Combine a text, its duplicates and its pairs for an experiment; losses of counts.

Imports no jax. Shapes: V vocabulary, K words, M and N pairs of a token and the one on its right.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxtie.config import UserError, member_number
from jaxtie.text.counts import ORDER, KneserNey
from jaxtie.text.data.batches import (
    EpochBatches,
    PaddedRows,
    Rows,
    causal_batches,
    lengths_of,
    masked_batches,
)
from jaxtie.text.data.tokens import Text, frequent_words
from jaxtie.text.data.vocabulary import ADDED
from jaxtie.text.pairs import (
    Duplicates,
    PairContexts,
    choose_contexts,
    duplicates_of,
    matched_pairs,
    random_pairs,
    stream_of,
)

if TYPE_CHECKING:
    from jaxtie.text.config import TextExperiment

RANKS = (10, 100, 1_000, 10_000)  # last ranks of the groups of tokens, the most frequent first
FREQUENCIES = ("1-10", "11-100", "101-1,000", "1,001-10,000", "10,001 on")  # names of the groups
MOST_COUNTED = 2**25  # training tokens that are counted, at most; that of 4-grams, which take
MOST_OF_FOUR = 2**24  # 80 bytes each


class PreparedCorpus(NamedTuple):
    """A text as an experiment uses it."""

    text: Text
    vocabulary: tuple[str, ...]  # its tokens, then the names of the duplicates; V
    words_K: np.ndarray  # evaluated words, the most frequent first
    drawn: Duplicates  # of these words, drawn afresh at each step
    first: np.ndarray  # ids of the evaluated pairs, (kinds, K)
    second: np.ndarray
    contexts: PairContexts | None = (
        None  # where predictions of these pairs are evaluated, if at all
    )
    validation: Sequence[PaddedRows] = ()  # batches of every evaluation


def prepare_corpus(experiment: "TextExperiment", text: Text) -> PreparedCorpus:
    """Choose words, duplicates, pairs and contexts.

    Raises:
      UserError: if the text is too short, or the vocabulary lacks tokens of a masked model.
    """
    special = text.special._asdict()
    if text.vocabulary[text.special.sep] == ADDED:
        special["sep"] = -1
    if experiment.objective == "masked" and min(special.values()) < 0:
        lacking = ", ".join(name for name, i in special.items() if i < 0)
        raise UserError(
            f"--vocab {experiment.corpus.vocab}: has no special token for {lacking}; expected a"
            " vocabulary like BERT's for a masked model"
        )
    named = {name for arm in experiment.arms for name in arm.head.row_sets}
    needs_mask = experiment.blanks or experiment.mask_norms or "mask" in named
    if needs_mask and special["mask"] < 0:
        raise UserError(
            "blanks, mask_norms and rows 'mask': the vocabulary has no [MASK]; set form='sentences'"
        )
    if "never-targets" in named and max(special[each] for each in ("pad", "mask", "cls")) < 0:
        raise UserError("rows 'never-targets': every token of this vocabulary can be a target")
    words_K, words = frequent_words(text, experiment.words)
    drawn = duplicates_of(words_K, words, len(text.vocabulary), experiment.duplicates)
    vocabulary = text.vocabulary + drawn.names
    nothing = np.zeros((0, experiment.words), np.int32)
    prepared = PreparedCorpus(text, vocabulary, words_K, drawn, nothing, nothing)
    training_batches(experiment, prepared, experiment.seeds[0])  # raises if there is no batch
    validation = validation_batches(experiment, prepared)
    pairs = {
        "duplicate": lambda: (words_K, drawn.duplicates_K),
        "matched": lambda: matched_pairs(
            experiment.data_seed, token_counts(prepared, text.train), drawn, text.special
        ),
        "random": lambda: random_pairs(experiment.data_seed, words_K, experiment.words),
    }
    first, second = np.array([pairs[kind]() for kind in experiment.kinds], np.int32).swapaxes(0, 1)
    prepared = prepared._replace(first=first, second=second, validation=validation)
    if experiment.evaluates_predictions:
        contexts = choose_contexts(experiment, text, drawn, first, second)
        prepared = prepared._replace(contexts=contexts)
    return prepared


def token_counts(prepared: PreparedCorpus, rows: Rows) -> np.ndarray:
    """Count each token in rows and their [SEP], in expectation over drawn duplicates; V."""
    drawn = prepared.drawn
    count_V = np.bincount(rows.tokens_N, minlength=len(prepared.vocabulary)).astype(np.float64)
    count_V[prepared.text.special.sep] += rows.count
    count_V[drawn.duplicates_K] = count_V[drawn.words_K] * drawn.probability_K
    count_V[drawn.words_K] *= 1 - drawn.probability_K
    return count_V


def frequency_groups(prepared: PreparedCorpus) -> np.ndarray:
    """Return the index in `FREQUENCIES` of each token's group; int32[V]."""
    count_V = token_counts(prepared, prepared.text.train)
    rank_V = np.argsort(np.argsort(-count_V, kind="stable")) + 1
    return np.searchsorted(RANKS, rank_V).astype(np.int32)


def make_batches(
    experiment: "TextExperiment",
    prepared: PreparedCorpus,
    rows: Rows,
    seed: int | None,
    **options: bool,
) -> EpochBatches:
    """Return the batches of rows in the order of a seed; None: in the order of the text."""
    own, special = experiment, prepared.text.special
    if own.objective == "causal":
        return causal_batches(rows, special, own.batch, own.length, seed, **options)
    return masked_batches(rows, special, own.batch, own.length, seed, own.buckets, **options)


def training_batches(
    experiment: "TextExperiment", prepared: PreparedCorpus, seed: int
) -> EpochBatches:
    """Return the training batches in the order of a seed."""
    number = member_number(experiment.data_seed, seed)
    return make_batches(experiment, prepared, prepared.text.train, number)


def validation_batches(experiment: "TextExperiment", prepared: PreparedCorpus) -> list[PaddedRows]:
    """Return batches of all validation rows or a choice of them, the same for every member."""
    make = partial(make_batches, experiment, prepared, prepared.text.valid)
    batches = make(None, keep_last=True)
    if batches.count > experiment.eval_batches:
        batches = make(experiment.data_seed)
    return [batches[k] for k in range(min(batches.count, experiment.eval_batches))]


def row_lengths(experiment: "TextExperiment") -> tuple[int, ...]:
    """Return the possible row lengths of batches, ascending."""
    if experiment.objective == "causal":
        return (experiment.length + 1,)
    return lengths_of(experiment.buckets, experiment.length)


def bigram_probabilities(
    seen_2xM: np.ndarray, predicted_2xN: np.ndarray, usable_V: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute q(t) and q(t | s) of pairs (s, t) by counts of other pairs; (N,) each.

    q(t) counts each usable token once more than it was seen. The bigram model has absolute
    discounting, interpolated with it (Ney, Essen and Kneser 1994):

      q(t | s) = (max(c(s, t) - d, 0) + d·n(s)·q(t)) / c(s)

    n(s) is the number of different tokens after s, d = n₁ / (n₁ + 2 n₂), and n₁ and n₂ are the
    numbers of pairs seen once and twice. If none was seen once, as in a repeated text, d = 1/2. If
    s was never seen, q(t | s) = q(t).
    """
    vocabulary = len(usable_V)
    once_more_V = (np.bincount(seen_2xM[1], minlength=vocabulary) + 1.0) * usable_V
    unigram_N = (once_more_V / once_more_V.sum())[predicted_2xN[1]]
    codes, counts = np.unique(seen_2xM[0] * vocabulary + seen_2xM[1], return_counts=True)
    once, twice = (int(np.sum(counts == times)) for times in (1, 2))
    discount = once / (once + 2 * twice) if once else 0.5
    total_N, kinds_N = (
        np.bincount(codes // vocabulary, weights, vocabulary)[predicted_2xN[0]]
        for weights in (counts, None)
    )
    code_N = predicted_2xN[0] * vocabulary + predicted_2xN[1]
    place_N = np.minimum(np.searchsorted(codes, code_N), len(codes) - 1)
    count_N = np.where(codes[place_N] == code_N, counts[place_N], 0)
    found_N = np.maximum(count_N - discount, 0) + discount * kinds_N * unigram_N
    return unigram_N, np.where(total_N > 0, found_N / np.maximum(total_N, 1), unigram_N)


def baselines(experiment: "TextExperiment", prepared: PreparedCorpus) -> dict[str, float]:
    """Compute losses of counts, nats, on the positions that models are evaluated at.

    Of a unigram model, a bigram model and `jaxtie.text.counts.KneserNey`, which read tokens on the
    left, also where the model is masked. Losses are in expectation over masks and duplicates: a
    word and its duplicate count as one token, plus the entropy of the draw between them.
    """
    special, drawn = prepared.text.special, prepared.drawn
    is_causal = experiment.objective == "causal"
    usable_V = np.ones(len(prepared.vocabulary) - len(drawn.words_K), bool)
    never = special[:1] if is_causal else special[:4]  # of a masked model all but [MASK]
    usable_V[[each for each in never if each >= 0]] = False

    def is_target(tokens: np.ndarray) -> np.ndarray:
        return (tokens >= 0) & usable_V[tokens]  # below 0: rows that fill a batch up

    def pairs_of(tokens_xL: np.ndarray) -> np.ndarray:
        """Return the usable tokens and the token on the left of each; 2xN."""
        left_and_token = np.stack([tokens_xL[..., :-1].ravel(), tokens_xL[..., 1:].ravel()])
        return left_and_token[:, is_target(left_and_token[1])]

    start = special.sep if is_causal else special.cls
    seen = stream_of(first_rows(prepared.text.train, MOST_COUNTED), special.sep).tokens_N
    seen_2xM = pairs_of(np.append(special.sep, seen))
    seen_2xM[0, seen_2xM[0] == special.sep] = start
    batches = [pairs_of(batch.tokens_BxL) for batch in prepared.validation]
    predicted_2xN = np.concatenate(batches, axis=1).astype(np.int64)
    p_K = drawn.probability_K
    share_K = np.array([np.mean(predicted_2xN[1] == word) for word in drawn.words_K])
    entropy = float(share_K @ -(p_K * np.log(p_K) + (1 - p_K) * np.log1p(-p_K)))
    both = bigram_probabilities(seen_2xM, predicted_2xN, usable_V)
    counts = KneserNey(np.append(np.full(ORDER, special.sep), seen[:MOST_OF_FOUR]), usable_V)
    rows = (np.where(each == start, special.sep, each) for each, _ in prepared.validation)
    of_four = [counts.probabilities(each)[is_target(each[:, 1:])] for each in rows]
    losses = [float(-np.mean(np.log(p_N))) + entropy for p_N in (*both, np.concatenate(of_four))]
    known = 1 if experiment.blanks else 3  # counts do not read blanks
    return dict(zip(("unigram", "bigram", "kneser_ney")[:known], losses[:known], strict=True))


def first_rows(rows: Rows, tokens: int) -> Rows:
    """Return the rows of the first tokens; the last one may be cut."""
    count = int(np.searchsorted(rows.offsets, tokens))
    offsets = np.minimum(rows.offsets[: count + 1], tokens)
    return Rows(rows.tokens_N[: offsets[-1]], offsets)
