"""Where predictions of pairs of tokens are looked at: places in the validation text. NumPy only.

Half of a pair's places are occurrences of its first token, half of its second. A duplicate can
stand wherever its word does; the other words of a context are spelled by one draw, for good. So
every seed and every arm is asked the same.

Shapes: K pairs of a kind, N places of a pair, Q = kinds·K·N, L tokens, M places asked about beside
a token, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxtie.text.corpus.batches import Rows, Special
from jaxtie.text.corpus.tokens import Text
from jaxtie.text.declaration import TextExperiment
from jaxtie.text.planting import Duplicates
from jaxtie.text.windows import AFTER, BEFORE, by_token, places_of, stream_of, windows_at

# what is looked at there, see `jaxtie.text.predictions`
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
    if experiment.task == "causal":
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
