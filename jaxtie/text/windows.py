"""Windows of a text around occurrences of a token. NumPy only.

A context is a window of the validation text: so many tokens on the left, the token, the true text
after it up to the end of its sentence.

Shapes: N tokens of a text, or windows of a token; L tokens a window, K distances, V vocabulary.
"""

from typing import NamedTuple

import numpy as np

from jaxtie.text.corpus.batches import Rows

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
