"""Choose duplicates, matched and random pairs, and the contexts in which pairs are evaluated.

A duplicate is a second token of a word, named by the word and a star. Each occurrence of the word
is rendered as one of the two by its own draw, so the ratio of their probabilities is the same in
every context. The draws are made afresh at each step (see `jaxtie.text.masking.swap`).

Imports no jax. Shapes: V vocabulary, N tokens of a split or occurrences of a token, R rows, L
tokens of a window, K words or pairs of a kind, P pairs of all kinds, Q contexts of all pairs, M
positions evaluated per context.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxtie.text.data.batches import Rows, Special
from jaxtie.text.data.tokens import Text

if TYPE_CHECKING:
    from jaxtie.text.config import TextExperiment

BEFORE, AFTER = 40, 8  # tokens of a window on the left of its token; tokens predicted after it
PREDICTED = ("log_odds", "log_odds_deviation", "swap_divergence")  # see `jaxtie.text.task`
LONGEST = 32  # tokens of the sentences in which a masked model is evaluated
STREAM = 2  # keeps the draws of contexts apart from other draws of the same seed
NEAREST_FREQUENCIES = 3  # a matching token is drawn from this many of the nearest frequency


class Stream(NamedTuple):
    """Rows one after the other, each ended by [SEP], as a causal model is trained on them."""

    tokens_N: np.ndarray
    row_N: np.ndarray  # number of each token's row
    end_N: np.ndarray  # position of the [SEP] of each token's row


def stream_of(rows: Rows, sep: int) -> Stream:
    """Join rows to one stream, in memory."""
    ends_R = rows.offsets[1:]
    tokens_N = np.insert(np.asarray(rows.tokens_N).astype(np.int32), ends_R, sep)
    row_N = np.repeat(np.arange(rows.count), rows.lengths + 1)
    return Stream(tokens_N, row_N, (ends_R + np.arange(rows.count))[row_N])


def by_token(tokens_N: np.ndarray, usable: np.ndarray, vocabulary: int) -> list[np.ndarray]:
    """List, for each token, those of the usable positions at which it stands, ascending."""
    tokens = tokens_N[usable]
    order = usable[np.argsort(tokens, kind="stable")]
    return np.split(order, np.cumsum(np.bincount(tokens, minlength=vocabulary))[:-1])


class Duplicates(NamedTuple):
    """Words that have a duplicate: their ids, those of the duplicates and names of the duplicates.

    `probability_K` is the probability that an occurrence is rendered as the duplicate.
    """

    words_K: np.ndarray
    duplicates_K: np.ndarray
    probability_K: np.ndarray
    names: tuple[str, ...]

    def render(self, tokens: np.ndarray, uniform: np.ndarray, vocabulary: int) -> np.ndarray:
        """Replace words by their duplicates where a uniform draw is below the probability."""
        twin_V, chance_V = np.arange(vocabulary), np.zeros(vocabulary)
        twin_V[self.words_K], chance_V[self.words_K] = self.duplicates_K, self.probability_K
        return np.where(uniform < chance_V[tokens], twin_V[tokens], tokens)


def duplicates_of(
    words_K: np.ndarray, words: Sequence[str], first: int, probabilities: Sequence[float]
) -> Duplicates:
    """Give words duplicates with ids from `first` on; the probabilities, if any, go in turn."""
    number = len(words_K) if probabilities else 0
    return Duplicates(
        np.asarray(words_K)[:number],
        first + np.arange(number, dtype=np.int32),
        np.resize(np.array(probabilities, np.float64), number),
        tuple(f"{word}*" for word in words[:number]),
    )


def random_pairs(seed: int, words_K: np.ndarray, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw different unordered pairs of different words; ValueError if there are too few."""
    first, second = np.triu_indices(len(words_K), 1)
    chosen = np.random.default_rng(seed).choice(len(first), pairs, replace=False)
    return words_K[first[chosen]], words_K[second[chosen]]


def matched_pairs(
    seed: int, count_V: np.ndarray, drawn: Duplicates, special: Special
) -> tuple[np.ndarray, np.ndarray]:
    """Draw, for each word and its duplicate, two other tokens that are about as frequent.

    Each is drawn from the tokens whose counts, `count_V`, have the smallest ratio to the count of
    the token that it matches. The two are never a word and its own duplicate, nor special tokens.
    """
    rng = np.random.default_rng(seed)
    usable_V = count_V > 0
    usable_V[special.present] = False
    log_V = np.log(np.maximum(count_V, 1e-9))
    pairs = list(zip(drawn.words_K.tolist(), drawn.duplicates_K.tolist(), strict=True))
    partner = dict(pairs) | {duplicate: word for word, duplicate in pairs}

    def like(token: int, excluded: set[int]) -> int:
        apart_V = np.where(usable_V, np.abs(log_V - log_V[token]), np.inf)
        apart_V[list(excluded)] = np.inf
        return int(rng.choice(np.argsort(apart_V, kind="stable")[:NEAREST_FREQUENCIES]))

    found = []
    for own in pairs:
        first = like(own[0], {*own})
        second = like(own[1], {*own, first, partner.get(first, first)})
        found.append((first, second))
    first_K, second_K = np.array(found, np.int32).T
    return first_K, second_K


class PairContexts(NamedTuple):
    """Sequences in which a token of a pair occurs, pair after pair.

    The predictions at `predicted_QxM` are compared when the second token replaces the first.
    """

    tokens_QxL: np.ndarray  # padded, with the first token of the pair at `at_Q`
    at_Q: np.ndarray
    predicted_QxM: np.ndarray
    counts_QxM: np.ndarray  # which of these count; none if the text has no context for the pair
    first_Q: np.ndarray  # ids of the pair
    second_Q: np.ndarray
    shape: tuple[int, int, int]  # kinds, K, contexts of a pair
    mask: int | None  # id of the mask of a masked model; None for a causal one


def choose_contexts(
    experiment: "TextExperiment",
    text: Text,
    drawn: Duplicates,
    first: np.ndarray,
    second: np.ndarray,
) -> PairContexts:
    """Choose contexts in the validation text for pairs of tokens, (kinds, K) each.

    Half of a pair's contexts are occurrences of its first token, half of its second. A duplicate
    occurs wherever its word does; all other words are rendered by one draw. The draws depend on
    `data_seed` only, so every seed and arm is evaluated in the same contexts.
    """
    rng, number = np.random.default_rng((experiment.data_seed, STREAM)), experiment.contexts
    vocabulary = len(text.vocabulary) + len(drawn.words_K)
    word_V = np.arange(vocabulary)
    word_V[drawn.duplicates_K] = drawn.words_K
    pair_Px2 = word_V[np.stack([first.ravel(), second.ravel()], axis=1)]
    is_causal = experiment.objective == "causal"

    def choose(tokens_N: np.ndarray, usable: np.ndarray) -> np.ndarray:
        return _choose(rng, by_token(tokens_N, usable, vocabulary), pair_Px2, number)

    choose_in = _in_stream if is_causal else _in_rows
    tokens_QxL, at_Q, predicted_QxM, counts_QxM = choose_in(text, experiment.length, choose, rng)
    tokens_QxL = drawn.render(tokens_QxL, rng.random(tokens_QxL.shape), vocabulary)
    first_Q, second_Q = (
        np.repeat(each.ravel(), number).astype(np.int32) for each in (first, second)
    )
    tokens_QxL[np.arange(len(at_Q)), at_Q] = first_Q
    return PairContexts(
        tokens_QxL.astype(np.int32),
        at_Q.astype(np.int32),
        predicted_QxM.astype(np.int32),
        counts_QxM,
        first_Q,
        second_Q,
        (*first.shape, number),
        None if is_causal else text.special.mask,
    )


ContextArrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # the first four fields
Choose = Callable[[np.ndarray, np.ndarray], np.ndarray]  # tokens, usable positions -> positions


def _in_stream(text: Text, length: int, choose: Choose, _: np.random.Generator) -> ContextArrays:
    """Choose windows for a causal model, evaluated up to the end of the sentence."""
    before = max(1, min(BEFORE, length - AFTER))
    stream = stream_of(text.valid, text.special.sep)
    place_Q = choose(stream.tokens_N, np.arange(before, len(stream.tokens_N) - AFTER))
    at_Q, own_Qx1 = np.full(len(place_Q), before), np.maximum(place_Q, before)[:, None]
    tokens_QxL = stream.tokens_N[own_Qx1 + np.arange(-before, AFTER)]
    counts_QxM = own_Qx1 + np.arange(1, AFTER + 1) <= stream.end_N[own_Qx1]
    return tokens_QxL, at_Q, at_Q[:, None] + np.arange(AFTER), counts_QxM & (place_Q >= 0)[:, None]


def _in_rows(text: Text, length: int, choose: Choose, rng: np.random.Generator) -> ContextArrays:
    """Choose whole sentences for a masked model, evaluated at one other random token of each."""
    rows, longest = text.valid, min(LONGEST, length) - 2
    row_N = np.repeat(np.arange(rows.count), rows.lengths)
    place_Q = choose(np.asarray(rows.tokens_N), np.flatnonzero((rows.lengths <= longest)[row_N]))
    is_found_Q, place_Q = place_Q >= 0, np.maximum(place_Q, 0)
    row_Q = row_N[place_Q]
    lengths_Q = np.minimum(rows.lengths[row_Q], longest)
    tokens_QxL = rows.padded(row_Q, lengths_Q, longest + 2, text.special)
    at_Q = np.where(is_found_Q, place_Q - rows.offsets[row_Q] + 1, 1)
    other_QxL = ~np.isin(tokens_QxL, text.special)
    other_QxL[np.arange(len(at_Q)), at_Q] = False
    predicted_Q = np.argmax(rng.random(tokens_QxL.shape) * other_QxL, axis=1)
    return tokens_QxL, at_Q, predicted_Q[:, None], (is_found_Q & other_QxL.any(axis=1))[:, None]


def _choose(
    rng: np.random.Generator, places: Sequence[np.ndarray], pair_Px2: np.ndarray, number: int
) -> np.ndarray:
    """Draw `number` positions for each pair, half of them of either token; (Q,).

    All are of one token if the other never occurs, and -1 if neither does.
    """
    found = []
    for first, second in pair_Px2.tolist():
        half = number if first == second else number - number // 2
        wanted = [(places[first], half), (places[second], number - half)]
        if not all(len(own) or not some for own, some in wanted):  # only one of the two occurs
            wanted = [(np.concatenate([places[first], places[second]]), number)]
        for own, some in wanted:
            found.append(np.resize(rng.permutation(own), some) if len(own) else np.full(some, -1))
    return np.concatenate(found).astype(np.int64)
