"""Choose duplicates, matched and random pairs, and places to evaluate them.

Windows of a text around occurrences of a token. NumPy only.

A context is a window of the validation text: so many tokens on the left, the token, the true text
after it up to the end of its sentence.

Shapes: N tokens of a text, or windows of a token; L tokens a window, K distances, V vocabulary.

Halves of a text, for two models that share no sentence; and words planted in it twice, which are
known to be equivalent.

A planted word has a duplicate, a token of its own, marked by a star. Each occurrence is spelled as
one of the two by a draw of its own, once and for all. So the two are equally likely but for one
constant, and the choice has no consequences.

Imports no jax. Shapes: R rows, N tokens of a split, K planted words.

Where predictions of pairs of tokens are looked at: places in the validation text. NumPy only.

Half of a pair's places are occurrences of its first token, half of its second. A duplicate can
stand wherever its word does; the other words of a context are spelled by one draw, for good. So
every seed and every arm is asked the same.

Shapes: K pairs of a kind, N places of a pair, Q = kinds·K·N, L tokens, M places asked about beside
a token, V vocabulary.

Which pairs of tokens words and their duplicates are held against. NumPy only.

Shapes: K pairs, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxtie.config import UserError
from jaxtie.text.config import HALVES, TextExperiment
from jaxtie.text.data.batches import Rows, Special
from jaxtie.text.data.tokens import Text
from jaxtie.text.data.words import frequent_words

BEFORE, AFTER = 40, 8  # tokens on the left; tokens after it whose predictions are compared


class Windows(NamedTuple):
    """Windows of the validation text around occurrences of one token.

    Attributes:
      tokens_NxL: BEFORE tokens, or fewer where that is asked for, the token, AFTER - 1 more.
      asked_NxK: which of the AFTER tokens after it are still of its sentence, whose end counts as
        one.
      sentence_N: number of its row.
    """

    tokens_NxL: np.ndarray
    asked_NxK: np.ndarray
    sentence_N: np.ndarray


class Stream(NamedTuple):
    """Rows one after the other, each ended by [SEP], as a causal model is trained on them."""

    tokens_N: np.ndarray
    row_N: np.ndarray
    end_N: np.ndarray  # where the [SEP] of each token's row is


def stream_of(rows: Rows, sep: int) -> Stream:
    """The rows as one stream, in memory."""
    ends_R = rows.offsets[1:]
    tokens_N = np.insert(np.asarray(rows.tokens_N).astype(np.int32), ends_R, sep)
    row_N = np.repeat(np.arange(rows.count), rows.lengths + 1)
    return Stream(tokens_N, row_N, (ends_R + np.arange(rows.count))[row_N])


def places_of(stream: Stream, vocabulary: int, before: int = BEFORE) -> list[np.ndarray]:
    """Of each token, where a whole window around it is in the stream."""
    return by_token(stream.tokens_N, np.arange(before, len(stream.tokens_N) - AFTER), vocabulary)


def by_token(tokens_N: np.ndarray, usable: np.ndarray, vocabulary: int) -> list[np.ndarray]:
    """Of each token, at which of these places it stands, ascending."""
    tokens = tokens_N[usable]
    order = usable[np.argsort(tokens, kind="stable")]
    return np.split(order, np.cumsum(np.bincount(tokens, minlength=vocabulary))[:-1])


def windows_at(stream: Stream, places_N: np.ndarray, before: int = BEFORE) -> Windows:
    """The windows around some places."""
    at_NxL = places_N[:, None] + np.arange(-before, AFTER)
    asked_NxK = places_N[:, None] + np.arange(1, AFTER + 1) <= stream.end_N[places_N][:, None]
    return Windows(stream.tokens_N[at_NxL], asked_NxK, stream.row_N[places_N])


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


# what is looked at there, see `jaxtie.text.task`
PREDICTED = (
    "log_odds",
    "log_odds_deviation",
    "swap_divergence",
)
LONGEST = 32  # tokens of a sentence that a masked model is asked about
STREAM = 2  # of the random numbers that are drawn here, beside others of the same seed


class PairContexts(NamedTuple):
    """Places at which a token of a pair stands, pair after pair.

    Attributes:
      tokens_QxL: what stands there, padded; at `at_Q` the first token of the pair.
      at_Q: where.
      asked_QxM: the places whose predictions are compared when the second token takes that place.
      counts_QxM: which of these count; none of a pair that the text has no place for.
      first_Q, second_Q: the pair.
      shape: kinds, K, N.
      mask: id of the mask, by which a masked model is asked; None: a causal one predicts from what
        stands before.
    """

    tokens_QxL: np.ndarray
    at_Q: np.ndarray
    asked_QxM: np.ndarray
    counts_QxM: np.ndarray
    first_Q: np.ndarray
    second_Q: np.ndarray
    shape: tuple[int, int, int]
    mask: int | None


def choose_contexts(
    experiment: TextExperiment, text: Text, drawn: Duplicates, first: np.ndarray, second: np.ndarray
) -> PairContexts:
    """Places for the pairs (kinds, K) of these tokens, chosen and spelled by the experiment's
    `data_seed`.
    """
    rng, number = np.random.default_rng((experiment.data_seed, STREAM)), experiment.contexts
    vocabulary = len(text.vocabulary) + len(drawn.words_K)
    word_V = np.arange(vocabulary)
    word_V[drawn.duplicates_K] = drawn.words_K
    pair_Px2 = word_V[np.stack([first.ravel(), second.ravel()], axis=1)]
    if experiment.objective == "causal":
        before = max(1, min(BEFORE, experiment.length - AFTER))
        tokens_QxL, at_Q, asked_QxM, counts_QxM = _in_stream(
            rng, text, vocabulary, pair_Px2, number, before
        )
        mask = None
    else:
        longest = min(LONGEST, experiment.length) - 2
        tokens_QxL, at_Q, asked_QxM, counts_QxM = _in_rows(
            rng, text, vocabulary, pair_Px2, number, longest
        )
        mask = text.special.mask
    twin_V, chance_V = drawn.twins(vocabulary)
    is_drawn_QxL = rng.random(tokens_QxL.shape) < chance_V[tokens_QxL]
    tokens_QxL = np.where(is_drawn_QxL, twin_V[tokens_QxL], tokens_QxL).astype(np.int32)
    first_Q, second_Q = (
        np.repeat(each.ravel(), number).astype(np.int32) for each in (first, second)
    )
    tokens_QxL[np.arange(len(at_Q)), at_Q] = first_Q
    places = at_Q.astype(np.int32), asked_QxM.astype(np.int32)
    return PairContexts(
        tokens_QxL, *places, counts_QxM, first_Q, second_Q, (*first.shape, number), mask
    )


def _in_stream(
    rng: np.random.Generator,
    text: Text,
    vocabulary: int,
    pair_Px2: np.ndarray,
    number: int,
    before: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Windows of a causal model; what is asked about are the tokens that follow, to the end of the
    sentence.
    """
    stream = stream_of(text.valid, text.special.sep)
    place_Q = _choose(rng, places_of(stream, vocabulary, before), pair_Px2, number)
    windows = windows_at(stream, np.maximum(place_Q, before), before)
    at_Q = np.full(len(place_Q), before)
    return (
        windows.tokens_NxL,
        at_Q,
        at_Q[:, None] + np.arange(AFTER),
        windows.asked_NxK & (place_Q >= 0)[:, None],
    )


def _in_rows(
    rng: np.random.Generator,
    text: Text,
    vocabulary: int,
    pair_Px2: np.ndarray,
    number: int,
    longest: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Whole sentences of a masked model, up to a length; what is asked about is one other token of
    each, at random.
    """
    rows, special = text.valid, text.special
    row_N = np.repeat(np.arange(rows.count), rows.lengths)
    usable_N = np.flatnonzero((rows.lengths <= longest)[row_N])
    place_Q = _choose(
        rng, by_token(np.asarray(rows.tokens_N), usable_N, vocabulary), pair_Px2, number
    )
    there_Q, place_Q = place_Q >= 0, np.maximum(place_Q, 0)
    tokens_QxL = _padded(rows, special, row_N[place_Q], longest)
    at_Q = np.where(there_Q, place_Q - rows.offsets[row_N[place_Q]] + 1, 1)
    other_QxL = ~np.isin(tokens_QxL, special)
    other_QxL[np.arange(len(at_Q)), at_Q] = False
    asked_Q = np.argmax(rng.random(tokens_QxL.shape) * other_QxL, axis=1)
    return tokens_QxL, at_Q, asked_Q[:, None], (there_Q & other_QxL.any(axis=1))[:, None]


def _padded(rows: Rows, special: Special, row_Q: np.ndarray, longest: int) -> np.ndarray:
    """[CLS] row [SEP] of each row, padded; Qx(longest + 2)."""
    place = np.arange(longest + 2)
    length_Q = np.minimum(rows.lengths[row_Q], longest)
    inside = (place >= 1) & (place <= length_Q[:, None])
    tokens_QxL = np.where(
        inside,
        rows.tokens_N[np.where(inside, rows.offsets[row_Q][:, None] + place - 1, 0)],
        special.pad,
    )
    tokens_QxL[:, 0] = special.cls
    np.put_along_axis(tokens_QxL, length_Q[:, None] + 1, special.sep, axis=1)
    return tokens_QxL


def _choose(
    rng: np.random.Generator, places: Sequence[np.ndarray], pair_Px2: np.ndarray, number: int
) -> np.ndarray:
    """So many places of each pair, as many of either token as there can be; -1 where there is none;
    (P·number,).
    """
    found = []
    for first, second in pair_Px2.tolist():
        half = number if first == second else number - number // 2
        wanted = [(places[first], half), (places[second], number - half)]
        if not all(len(own) or not some for own, some in wanted):  # one of the two alone occurs
            wanted = [(np.concatenate([places[first], places[second]]), number)]
        for own, some in wanted:
            found.append(np.resize(rng.permutation(own), some) if len(own) else np.full(some, -1))
    return np.concatenate(found).astype(np.int64)


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
