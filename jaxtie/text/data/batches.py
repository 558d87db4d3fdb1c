"""Rows of tokens and batches of them on the host.

Batch k is a pure function of seed and k, so a run resumes exactly.

Shapes: B rows of a batch, L tokens of a row, R rows, N tokens of a split.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from jaxtie.config import UserError

BUCKETS = (16, 32, 64, 128)


class Special(NamedTuple):
    """Ids of the special tokens."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


class Rows(NamedTuple):
    """The rows of a split in the order of the text, without [CLS] and [SEP].

    Attributes:
      tokens_N: ids of all rows, may be memory-mapped.
      offsets: R + 1 integers: row r is tokens_N[offsets[r] : offsets[r + 1]].
    """

    tokens_N: np.ndarray
    offsets: np.ndarray

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


class RowBatch(NamedTuple):
    """A batch of rows.

    Attributes:
      tokens_BxL: int32, padded with [PAD].
      lengths_B: int32, tokens that are not padding; 0: no row at all.
    """

    tokens_BxL: np.ndarray
    lengths_B: np.ndarray


def lengths_of(buckets: Sequence[int], max_length: int) -> tuple[int, ...]:
    """Return the row lengths of masked batches, ascending."""
    return (*(each for each in sorted(buckets) if each < max_length), max_length)


class MaskedBatches:
    """Batches of rows of similar lengths: [CLS] row [SEP], padded to the length of the bucket.

    Every epoch visits all rows in an order of its own. The rows that do not fill a batch of their
    bucket move up to the next bucket, so an epoch leaves out at most `batch_size` - 1 rows, other
    ones each time. A row of more than `max_length` - 2 tokens is truncated, as BERT does.

    Attributes:
      count: batches of an epoch.
      buckets: lengths of a batch's rows, [CLS] and [SEP] included, ascending.
    """

    def __init__(
        self,
        rows: Rows,
        special: Special,
        batch_size: int,
        max_length: int = 128,
        seed: int | None = 0,
        buckets: Sequence[int] = BUCKETS,
        keep_last: bool = False,
    ):
        """Plan the first epoch.

        Args:
          rows: what is batched.
          special: ids of the special tokens.
          batch_size: B.
          max_length: L of the longest bucket.
          seed: of the order; None: the order of the text, bucket after bucket.
          buckets: other row lengths.
          keep_last: have all rows, the last batch filled up with rows of length 0.

        Raises:
          UserError: if the rows do not fill one batch.
        """
        self.rows, self.special, self.batch_size = rows, special, batch_size
        self.seed, self.keep_last = seed, keep_last
        self.buckets = lengths_of(buckets, max_length)
        lengths = np.minimum(rows.lengths + 2, max_length)
        self._bucket_R = np.searchsorted(self.buckets, lengths).astype(np.int8)
        self._plan = lru_cache(2)(self._plan_epoch)
        self.count = len(self._plan(0))
        _check_count(self, f"{rows.count:,} sentences")

    def _plan_epoch(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        """Return length and rows of every batch of an epoch, in their order."""
        rng = None if self.seed is None else np.random.default_rng((self.seed, epoch))
        batches, left = [], np.empty(0, np.int64)
        for bucket, length in enumerate(self.buckets):
            members = np.concatenate([left, np.flatnonzero(self._bucket_R == bucket)])
            members = members if rng is None else rng.permutation(members)
            full = len(members) - len(members) % self.batch_size
            left = members[full:]
            batches += [(length, each) for each in members[:full].reshape(-1, self.batch_size)]
        if self.keep_last and len(left):
            batches.append((self.buckets[-1], left))
        return batches if rng is None else [batches[i] for i in rng.permutation(len(batches))]

    def __getitem__(self, step: int) -> RowBatch:
        """Return the batch of a step, 0, 1, ...; epochs follow each other without end."""
        length, rows_B = self._plan(step // self.count)[step % self.count]
        lengths_B = np.minimum(
            self.rows.offsets[rows_B + 1] - self.rows.offsets[rows_B], length - 2
        )
        tokens_BxL = self.rows.padded(rows_B, lengths_B, length, self.special)
        batch = RowBatch(tokens_BxL, (lengths_B + 2).astype(np.int32))
        return _filled_up(batch, self.batch_size, self.special.pad)


class CausalBatches:
    """Batches of blocks of L + 1 tokens of the split as one stream, every row ended by [SEP].

    A block begins with the last token of the one before: each token but the first is predicted once
    an epoch. The order of the blocks is new each epoch.

    Attributes:
      count: batches of an epoch.
    """

    def __init__(
        self,
        rows: Rows,
        special: Special,
        batch_size: int,
        length: int,
        seed: int | None = 0,
        keep_last: bool = False,
    ):
        """Find the blocks.

        Args:
          rows: what is batched.
          special: ids of the special tokens.
          batch_size: B.
          length: L.
          seed: of the order; None: the order of the text.
          keep_last: have all blocks, the last batch filled up with rows of length 0.

        Raises:
          UserError: if the blocks do not fill one batch.
        """
        self.rows, self.special, self.batch_size = rows, special, batch_size
        self.length, self.seed = length, seed
        self._ends = rows.offsets[1:] + np.arange(rows.count)  # where the [SEP] of each row is
        self._blocks = (len(rows.tokens_N) + rows.count - 1) // length
        self.count = (self._blocks + (batch_size - 1 if keep_last else 0)) // batch_size
        self._order = lru_cache(2)(self._order_of_epoch)
        _check_count(self, f"{self._blocks:,} blocks of {length} tokens")

    def _order_of_epoch(self, epoch: int) -> np.ndarray:
        blocks = np.arange(self._blocks)
        if self.seed is None:
            return blocks
        return np.random.default_rng((self.seed, epoch)).permutation(blocks)

    def __getitem__(self, step: int) -> RowBatch:
        """Return the batch of a step, tokens_Bx(L+1); epochs follow each other without end."""
        epoch, k = divmod(step, self.count)
        blocks = self._order(epoch)[k * self.batch_size : (k + 1) * self.batch_size]
        at = blocks[:, None] * self.length + np.arange(self.length + 1)
        row = np.searchsorted(self._ends, at)  # every row before has added one [SEP]
        separator = self._ends[row] == at
        tokens = self.rows.tokens_N[np.where(separator, 0, at - row)].astype(np.int32)
        batch = RowBatch(
            np.where(separator, np.int32(self.special.sep), tokens),
            np.full(len(at), self.length + 1, np.int32),
        )
        return _filled_up(batch, self.batch_size, self.special.pad)


def _check_count(batches: MaskedBatches | CausalBatches, found: str) -> None:
    if not batches.count:
        raise UserError(
            f"text: {found} do not fill one batch of {batches.batch_size}; give more text, or take"
            " a smaller batch"
        )


def _filled_up(batch: RowBatch, size: int, pad: int) -> RowBatch:
    """Add rows of length 0, so that all batches have one size."""
    more = size - len(batch.lengths_B)
    if not more:
        return batch
    tokens_BxL = np.pad(batch.tokens_BxL, ((0, more), (0, 0)), constant_values=pad)
    return RowBatch(tokens_BxL, np.pad(batch.lengths_B, (0, more)))
