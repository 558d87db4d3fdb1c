"""Rows of tokens and batches of them on the host.

Batch k is a pure function of seed and k, so a run resumes exactly. Where the seed is None, batches
are in the order of the text.

Shapes: B rows of a batch, L tokens of a row, R rows, N tokens of a split.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from jaxtie.config import UserError


class Special(NamedTuple):
    """Ids of the special tokens; -1 for one that the vocabulary lacks."""

    pad: int
    unk: int
    cls: int  # begins a row of a masked model
    sep: int  # ends a row
    mask: int

    @property
    def present(self) -> list[int]:
        """Ids of those that the vocabulary has."""
        return [each for each in self if each >= 0]


class Rows(NamedTuple):
    """The rows of a split in the order of the text, without [CLS] and [SEP].

    Row r is tokens_N[offsets[r] : offsets[r + 1]].
    """

    tokens_N: np.ndarray  # may be memory-mapped
    offsets: np.ndarray  # R + 1 integers

    @property
    def count(self) -> int:  # type: ignore[override]  # in the place of tuple.count
        """Number of rows."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, at least 1."""
        return np.diff(self.offsets)

    def row(self, r: int) -> np.ndarray:
        """Return the ids of row r."""
        return self.tokens_N[self.offsets[r] : self.offsets[r + 1]]

    def padded(
        self, rows_B: np.ndarray, lengths_B: np.ndarray, length: int, special: Special
    ) -> np.ndarray:
        """Return [CLS] row [SEP] of rows, cut to `lengths_B` tokens and padded; int32[B, L]."""
        place = np.arange(length)
        inside = (place >= 1) & (place <= lengths_B[:, None])
        at = np.where(inside, self.offsets[rows_B][:, None] + place - 1, 0)
        tokens_BxL = np.where(inside, self.tokens_N[at].astype(np.int32), np.int32(special.pad))
        tokens_BxL[:, 0] = special.cls
        np.put_along_axis(tokens_BxL, lengths_B[:, None] + 1, special.sep, axis=1)
        return tokens_BxL


class PaddedRows(NamedTuple):
    """A batch of rows."""

    tokens_BxL: np.ndarray  # int32, padded with [PAD]
    lengths_B: np.ndarray  # int32, tokens that are not padding; 0: no row at all


def lengths_of(buckets: Sequence[int], max_length: int) -> tuple[int, ...]:
    """Return the row lengths of masked batches, ascending."""
    return (*(each for each in sorted(buckets) if each < max_length), max_length)


class EpochBatches:
    """Batches of one size by step, 0, 1, ...; epochs follow each other without end.

    Attributes:
      count: batches of an epoch.
    """

    def __init__(
        self,
        plan_epoch: Callable[[int], list[Any]],
        read: Callable[[Any], PaddedRows],
        size: int,
        pad: int,
        found: str,
    ):
        """Plan the first epoch; UserError, naming the rows `found`, if they do not fill a batch.

        `plan_epoch` lists the argument of `read` for each batch of an epoch. `read` returns a batch
        of at most `size` rows; rows of length 0 fill it up with the id `pad`.
        """
        self._plan, self._read, self._size, self._pad = lru_cache(2)(plan_epoch), read, size, pad
        self.count = len(self._plan(0))
        if not self.count:
            raise UserError(
                f"text: {found} do not fill one batch of {size}; give more text, or take a smaller"
                " batch"
            )

    def __getitem__(self, step: int) -> PaddedRows:
        """Return the batch of a step."""
        tokens_BxL, lengths_B = self._read(self._plan(step // self.count)[step % self.count])
        if more := self._size - len(lengths_B):
            tokens_BxL = np.pad(tokens_BxL, ((0, more), (0, 0)), constant_values=self._pad)
            lengths_B = np.pad(lengths_B, (0, more))
        return PaddedRows(tokens_BxL, lengths_B)


def masked_batches(
    rows: Rows,
    special: Special,
    batch_size: int,
    max_length: int,
    seed: int | None,
    buckets: Sequence[int],
    keep_last: bool = False,
) -> EpochBatches:
    """Batch rows of similar lengths: [CLS] row [SEP], padded to the length of the bucket.

    Every epoch visits all rows in an order of its own. The rows that do not fill a batch of their
    bucket move up to the next bucket, so an epoch leaves out at most `batch_size` - 1 rows, other
    ones each time; none if `keep_last`. A row of more than `max_length` - 2 tokens is truncated, as
    BERT does.
    """
    lengths = lengths_of(buckets, max_length)
    bucket_R = np.searchsorted(lengths, np.minimum(rows.lengths + 2, max_length)).astype(np.int8)

    def plan_epoch(epoch: int) -> list[tuple[int, np.ndarray]]:
        rng = None if seed is None else np.random.default_rng((seed, epoch))
        batches, left = [], np.empty(0, np.int64)
        for bucket, length in enumerate(lengths):
            members = np.concatenate([left, np.flatnonzero(bucket_R == bucket)])
            members = members if rng is None else rng.permutation(members)
            full = len(members) - len(members) % batch_size
            left = members[full:]
            batches += [(length, each) for each in members[:full].reshape(-1, batch_size)]
        if keep_last and len(left):
            batches.append((lengths[-1], left))
        return batches if rng is None else [batches[i] for i in rng.permutation(len(batches))]

    def read(planned: tuple[int, np.ndarray]) -> PaddedRows:
        length, rows_B = planned
        lengths_B = np.minimum(rows.offsets[rows_B + 1] - rows.offsets[rows_B], length - 2)
        tokens_BxL = rows.padded(rows_B, lengths_B, length, special)
        return PaddedRows(tokens_BxL, (lengths_B + 2).astype(np.int32))

    return EpochBatches(plan_epoch, read, batch_size, special.pad, f"{rows.count:,} sentences")


def causal_batches(
    rows: Rows,
    special: Special,
    batch_size: int,
    length: int,
    seed: int | None,
    keep_last: bool = False,
) -> EpochBatches:
    """Batch blocks of L + 1 tokens of the split as one stream, every row ended by [SEP].

    A block begins with the last token of the one before: each token but the first is predicted once
    an epoch. The order of the blocks is new each epoch. The last blocks of an epoch are left out if
    they do not fill a batch, unless `keep_last`.
    """
    ends = rows.offsets[1:] + np.arange(rows.count)  # where the [SEP] of each row is
    count = (len(rows.tokens_N) + rows.count - 1) // length
    used = count if keep_last else count - count % batch_size

    def plan_epoch(epoch: int) -> list[np.ndarray]:
        blocks = np.arange(count)
        if seed is not None:
            blocks = np.random.default_rng((seed, epoch)).permutation(blocks)
        return [blocks[first : first + batch_size] for first in range(0, used, batch_size)]

    def read(blocks_B: np.ndarray) -> PaddedRows:
        at = blocks_B[:, None] * length + np.arange(length + 1)
        row = np.searchsorted(ends, at)  # every row before has added one [SEP]
        separator = ends[row] == at
        tokens = rows.tokens_N[np.where(separator, 0, at - row)].astype(np.int32)
        lengths_B = np.full(len(at), length + 1, np.int32)
        return PaddedRows(np.where(separator, np.int32(special.sep), tokens), lengths_B)

    found = f"{count:,} blocks of {length} tokens"
    return EpochBatches(plan_epoch, read, batch_size, special.pad, found)
