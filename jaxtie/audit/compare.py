"""Compare two embedding tables row by row, exactly, and count zeros, NaN and infinities.

Tables are read a block of rows at a time.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import ml_dtypes
import numpy as np

from jaxtie.audit.find import EmbeddingTable
from jaxtie.audit.stored import StoredTensor

BLOCK_BYTES = 2**25  # of a table that are read together
SAMPLE = 256  # rows that decide which relation two tables may have
WORKERS = 2  # blocks at once; each takes some hundred MB
# Coarsest first.
PRECISION = tuple(map(np.dtype, (ml_dtypes.bfloat16, np.float16, np.float32, np.float64)))
EXPONENT = dict(zip(PRECISION, (0x7F80, 0x7C00, 0x7F80_0000, 0x7FF0_0000_0000_0000), strict=True))
# The same bits; after casting one table to the other's type; but for a factor; or none of these.
Relation = Literal["bits", "cast", "scale", "different"]
ShowProgress = Callable[[str, int, int], None]  # (unit, number done, total)
BlockFacts = TypeVar("BlockFacts")


class RowFacts(NamedTuple):
    """Facts about rows, (V,) each: zero or not, hash of the bits, number of NaN and infinities."""

    zero_V: np.ndarray
    digest_V: np.ndarray
    nan_V: np.ndarray
    infinite_V: np.ndarray


@dataclass(frozen=True)
class TableComparison:
    """How an output embedding relates to an input embedding."""

    relation: Relation  # of all rows but `differing`
    scale: float  # output = scale·input
    transposed: bool  # whether one is stored D × V and the other V × D
    common: int  # number of rows that both have
    extra: int  # number of further rows in the output; negative if it has fewer
    differing: np.ndarray  # ids of the rows for which the relation does not hold, ascending
    largest: float  # the largest difference of two values in those
    signs: int = 0  # number of equal rows in which a zero has another sign

    @property
    def is_equal(self) -> bool:
        """Whether the relation holds for all common rows."""
        return self.relation != "different" and not len(self.differing)

    @property
    def is_exact(self) -> bool:
        """Whether both have the same rows, bit by bit, so that one of them can go."""
        return self.is_equal and self.relation == "bits" and not (self.extra or self.signs)


def _bits(rows: np.ndarray) -> np.ndarray:
    return rows.view(f"u{rows.dtype.itemsize}")


@np.errstate(all="ignore")  # tables may hold anything, also signalling NaN
def row_facts(rows: np.ndarray) -> RowFacts:
    """Return the facts about rows (rows, D)."""
    bits = _bits(rows)
    exponent = bits.dtype.type(EXPONENT[rows.dtype])
    bad = ((bits & exponent) == exponent).any(axis=1)
    nan, infinite = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    if bad.any():
        values = rows[bad].astype(np.float64)
        nan[bad], infinite[bad] = np.isnan(values).sum(axis=1), np.isinf(values).sum(axis=1)
    zero = ~(bits << bits.dtype.type(1)).any(axis=1)  # without the sign
    digests = b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in bits)
    return RowFacts(zero, np.frombuffer(digests, np.uint64), nan, infinite)


def scan(
    first: EmbeddingTable, second: EmbeddingTable | None, progress: ShowProgress
) -> tuple[RowFacts, RowFacts | None, TableComparison | None]:
    """Read every row of one table, or of two of the same width, and compare those.

    Returns:
      Facts about the rows of each, and the comparison.
    """
    if second is None:
        return _joined(_facts_from(first, 0, progress)), None, None
    relation, scale = _likely_relation(first, second)
    common = min(first.vocabulary, second.vocabulary)

    def compare(start: int, stop: int) -> tuple[RowFacts, RowFacts, np.ndarray, float, int]:
        a, b = first.block(start, stop), second.block(start, stop)
        equal, signs, largest = _compare_rows(a, b, relation, scale)
        facts = row_facts(a)
        same = relation == "bits" and equal.all() and not signs
        return facts, facts if same else row_facts(b), equal, largest, signs

    blocks = _by_blocks(common, first, compare, progress, "rows compared")
    first_facts, second_facts, equals, largest, signs = zip(*blocks, strict=True)
    equal = np.concatenate(equals)
    comparison = TableComparison(
        relation if equal.any() else "different",
        scale,
        first.transposed != second.transposed,
        common,
        second.vocabulary - first.vocabulary,
        np.flatnonzero(~equal),
        max(largest),
        sum(signs),
    )
    return (
        _joined([*first_facts, *_facts_from(first, common, progress)]),
        _joined([*second_facts, *_facts_from(second, common, progress)]),
        comparison,
    )


def _facts_from(table: EmbeddingTable, begin: int, progress: ShowProgress) -> list[RowFacts]:
    def read(start: int, stop: int) -> RowFacts:
        return row_facts(table.block(begin + start, begin + stop))

    return list(_by_blocks(table.vocabulary - begin, table, read, progress, "rows scanned"))


def _joined(parts: Sequence[RowFacts]) -> RowFacts:
    return RowFacts(*map(np.concatenate, zip(*parts, strict=True)))


def same_values(new: EmbeddingTable, old: EmbeddingTable, progress: ShowProgress) -> bool:
    """Return whether two tables have the same values; True if packed values hide it."""
    if (new.vocabulary, new.width) != (old.vocabulary, old.width):
        return False
    if not (new.tensor.is_values and old.tensor.is_values):
        return True
    relation: Relation = "bits" if new.tensor.dtype == old.tensor.dtype else "cast"

    def compare(start: int, stop: int) -> np.ndarray:
        return _compare_rows(new.block(start, stop), old.block(start, stop), relation, 1.0)[0]

    blocks = _by_blocks(new.vocabulary, new, compare, progress, "rows compared")
    return all(equal.all() for equal in blocks)


def same_bytes(first: StoredTensor, second: StoredTensor, progress: ShowProgress) -> bool | None:
    """Return whether two packed tensors are equal byte for byte; None if they are packed apart."""
    kinds = [(one.shape, one.stored) for one in (first, second)]
    is_raw = all(one.dtype is not None or one.bytes_of_row for one in (first, second))
    if kinds[0] != kinds[1] or not is_raw or not first.shape:
        return None
    count = first.shape[0]
    step = max(1, BLOCK_BYTES * count // max(first.size, count * first.bytes_of_row, 1))
    for start in range(0, count, step):
        stop = min(start + step, count)
        a, b = (one.read(np.s_[start:stop]).tobytes() for one in (first, second))
        if a != b:
            return False
        progress("rows compared", stop, count)
    return True


def _by_blocks(
    count: int,
    table: EmbeddingTable,
    read: Callable[[int, int], BlockFacts],
    progress: ShowProgress,
    what: str,
) -> Iterator[BlockFacts]:
    """Call `read` with blocks of `count` rows, some at once; yield the results in order."""
    row_bytes = table.width * table.tensor.size // math.prod(table.tensor.shape)
    size = max(1, BLOCK_BYTES // row_bytes)
    starts = range(0, count, size)
    with ThreadPoolExecutor(WORKERS) as pool:
        for i in range(0, len(starts), WORKERS):  # so few at once that memory stays small
            stops = [min(start + size, count) for start in starts[i : i + WORKERS]]
            for stop, result in zip(stops, pool.map(read, starts[i:], stops)):
                progress(what, stop, count)
                yield result


@np.errstate(all="ignore")
def _likely_relation(first: EmbeddingTable, second: EmbeddingTable) -> tuple[Relation, float]:
    """Return the relation of most rows of a sample, and the factor.

    The sample is spread over the vocabulary, since the last rows are often added tokens.
    """
    common = min(first.vocabulary, second.vocabulary)
    ids = np.unique(np.linspace(0, common - 1, SAMPLE).astype(int))
    a, b = (np.concatenate([table.block(i, i + 1) for i in ids]) for table in (first, second))
    plain: Relation = "bits" if a.dtype == b.dtype else "cast"
    if _compare_rows(a, b, plain, 1.0)[0].mean() > 0.5:
        return plain, 1.0
    x, y = (rows.astype(np.float64) for rows in (a, b))
    is_finite = np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1)
    own = np.square(x[is_finite]).sum(axis=1)
    cross = (x[is_finite] * y[is_finite]).sum(axis=1)
    factors = cross[own > 0] / own[own > 0]
    scale = float(np.median(factors)) if len(factors) else 1.0
    coarse = min(a.dtype, b.dtype, key=PRECISION.index)
    is_scaled = scale and abs(scale - 1) > 4 * max(float(ml_dtypes.finfo(coarse).eps), 1e-7)
    if is_scaled and _compare_rows(a, b, "scale", scale)[0].mean() > 0.5:
        return "scale", scale
    return plain, 1.0


@np.errstate(all="ignore")
def _compare_rows(
    a: np.ndarray, b: np.ndarray, relation: Relation, scale: float
) -> tuple[np.ndarray, int, float]:
    """Return which rows have the relation, and the largest difference in the others.

    The second value is the number of rows that are equal but for the sign of a zero.
    """
    signs = 0
    coarse = min(a.dtype, b.dtype, key=PRECISION.index)
    if relation == "scale":
        expected, found = a.astype(np.float32) * np.float32(scale), b.astype(np.float32)
        tolerance = 2 * float(ml_dtypes.finfo(coarse).eps)  # both were rounded
        close = np.abs(expected - found) <= tolerance * np.abs(expected) + 1e-30
        equal = close.all(axis=1)
    else:
        cast_a, cast_b = (rows.astype(coarse, copy=False) for rows in (a, b))
        same = _bits(cast_a) == _bits(cast_b)
        equal = same.all(axis=1)
        if not equal.all():
            by_value = (same | (cast_a == cast_b)).all(axis=1)
            signs, equal = int((by_value & ~equal).sum()), by_value
    if equal.all():
        return equal, signs, 0.0
    gap = np.abs(a[~equal].astype(np.float64) * scale - b[~equal].astype(np.float64))
    return equal, signs, float(np.max(gap, initial=0.0, where=np.isfinite(gap)))
