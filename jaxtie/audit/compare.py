"""Two tables compared, every row exactly, a block of rows at a time; and what each holds: zeros,
repeats, NaN, infinities.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Literal, NamedTuple, TypeVar

import ml_dtypes
import numpy as np

from jaxtie.audit.find import RowTable

BLOCK_BYTES = 2**25  # bytes of a table that are looked at together
TRIED = 256  # rows that tell which relation two tables may have
WORKERS = 2  # blocks at once; each takes some hundred MB
# coarsest first
PRECISION = tuple(map(np.dtype, (ml_dtypes.bfloat16, np.float16, np.float32, np.float64)))
EXPONENT = dict(zip(PRECISION, (0x7F80, 0x7C00, 0x7F80_0000, 0x7FF0_0000_0000_0000), strict=True))
Relation = Literal["bits", "cast", "scale", "different"]
Ticker = Callable[[str, int, int], None]  # what is done, rows done, rows of all
Item = TypeVar("Item")


class RowFacts(NamedTuple):
    """What rows hold, (V,) each: whether zero, a digest of the bits, and how many NaN and
    infinities are in all of them.
    """

    zero_V: np.ndarray
    digest_V: np.ndarray
    nan_V: np.ndarray
    infinite_V: np.ndarray


@dataclass(frozen=True)
class Relationship:
    """How an output table relates to an input table.

    Attributes:
      relation: that all rows have but `differing`: the same bits; the same after one is cast to the
        other's type; the same but for a factor; or none.
      scale: output = scale·input.
      transposed: whether one lies D×V and the other V×D.
      common: rows that both have.
      extra: rows that the output has more than the input; negative if it has fewer.
      differing: ids of the rows for which the relation does not hold, ascending.
      largest: the largest difference of two values in those.
    """

    relation: Relation
    scale: float
    transposed: bool
    common: int
    extra: int
    differing: np.ndarray
    largest: float

    @property
    def is_equal(self) -> bool:
        """Whether the relation holds for all common rows."""
        return self.relation != "different" and not len(self.differing)


@dataclass(frozen=True)
class Scan:
    """Both tables, and how they compare; without an output table neither facts of one nor a
    comparison.
    """

    input: RowFacts
    output: RowFacts | None
    comparison: Relationship | None


def bits_of(rows: np.ndarray) -> np.ndarray:
    """The same as unsigned integers."""
    return rows.view(f"u{rows.dtype.itemsize}")


@np.errstate(all="ignore")  # tables may hold anything, signalling NaN too
def facts_of(rows: np.ndarray) -> RowFacts:
    """What (rows, D) hold."""
    bits = bits_of(rows)
    exponent = bits.dtype.type(EXPONENT[rows.dtype])
    bad = ((bits & exponent) == exponent).any(axis=1)
    nan, infinite = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    if bad.any():
        values = rows[bad].astype(np.float64)
        nan[bad], infinite[bad] = np.isnan(values).sum(axis=1), np.isinf(values).sum(axis=1)
    zero = ~(bits << bits.dtype.type(1)).any(axis=1)  # without its sign
    digests = b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in bits)
    return RowFacts(zero, np.frombuffer(digests, np.uint64), nan, infinite)


def scan(first: RowTable, second: RowTable | None, tick: Ticker) -> Scan:
    """Every row of one table, or of both beside each other.

    Args:
      second: with the same width.
      tick: is told how far it is.
    """
    if second is None:
        alone = _by_blocks(
            first.vocabulary, first, partial(_facts_behind, first, 0), tick, "looked at"
        )
        return Scan(_joined_facts(alone), None, None)
    relation, scale = _likely(first, second)
    common = min(first.vocabulary, second.vocabulary)

    def look(at: tuple[int, int]) -> tuple[RowFacts, RowFacts, np.ndarray, float]:
        a, b = first.block(at[0], at[1]), second.block(at[0], at[1])
        equal, largest = _compare_rows(a, b, relation, scale)
        facts = facts_of(a)
        return facts, facts if relation == "bits" and equal.all() else facts_of(b), equal, largest

    parts = list(_by_blocks(common, first, look, tick, "compared"))
    of_first, of_second = [part[0] for part in parts], [part[1] for part in parts]
    for table, found in ((first, of_first), (second, of_second)):
        if table.vocabulary > common:
            rest = table.vocabulary - common
            found += _by_blocks(
                rest, table, partial(_facts_behind, table, common), tick, "looked at"
            )
    equal = np.concatenate([part[2] for part in parts])
    comparison = Relationship(
        relation if equal.any() else "different",
        scale,
        first.across != second.across,
        common,
        second.vocabulary - first.vocabulary,
        np.flatnonzero(~equal),
        max(part[3] for part in parts),
    )
    return Scan(_joined_facts(of_first), _joined_facts(of_second), comparison)


def _facts_behind(table: RowTable, start: int, at: tuple[int, int]) -> RowFacts:
    return facts_of(table.block(start + at[0], start + at[1]))


def same_rows(new: RowTable, old: RowTable, tick: Ticker) -> np.ndarray:
    """Whether each row of a table has the bits of another's of the same shape; values, where the
    types differ; (V,).
    """
    relation: Relation = "bits" if new.tensor.dtype == old.tensor.dtype else "cast"
    parts = _by_blocks(
        new.vocabulary,
        new,
        lambda at: _compare_rows(new.block(*at), old.block(*at), relation, 1.0)[0],
        tick,
        "compared with the old ones",
    )
    return np.concatenate(list(parts))


def _joined_facts(parts: Iterator[RowFacts] | list[RowFacts]) -> RowFacts:
    return RowFacts(*map(np.concatenate, zip(*parts, strict=True)))


def _by_blocks(
    count: int, table: RowTable, look: Callable[[tuple[int, int]], Item], tick: Ticker, what: str
) -> Iterator[Item]:
    """`look` at blocks of rows, some at once; what it returns, in order."""
    size = max(1, BLOCK_BYTES // (table.tensor.size // table.vocabulary))
    ends = [(start, min(start + size, count)) for start in range(0, count, size)]
    workers = min(
        WORKERS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else WORKERS
    )
    with ThreadPoolExecutor(workers) as pool:
        queue = iter(ends)  # of which only so many are begun that memory stays small
        waiting: list[tuple[int, Future]] = [
            (end[1], pool.submit(look, end)) for end in islice(queue, workers)
        ]
        while waiting:
            stop, future = waiting.pop(0)
            result = future.result()
            waiting += [(end[1], pool.submit(look, end)) for end in islice(queue, 1)]
            tick(what, stop, count)
            yield result


@np.errstate(all="ignore")
def _likely(first: RowTable, second: RowTable) -> tuple[Relation, float]:
    """The relation that most of some rows have, and the factor; rows at the end are often added
    ones, so not only those.
    """
    common = min(first.vocabulary, second.vocabulary)
    ids = np.unique(np.linspace(0, common - 1, TRIED).astype(int))
    a, b = (np.concatenate([table.block(i, i + 1) for i in ids]) for table in (first, second))
    plain: Relation = "bits" if a.dtype == b.dtype else "cast"
    if _compare_rows(a, b, plain, 1.0)[0].mean() > 0.5:
        return plain, 1.0
    x, y = (rows.astype(np.float64) for rows in (a, b))
    fine = np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1)
    own, cross = np.square(x[fine]).sum(axis=1), (x[fine] * y[fine]).sum(axis=1)
    factors = cross[own > 0] / own[own > 0]
    scale = float(np.median(factors)) if len(factors) else 1.0
    if scale and _compare_rows(a, b, "scale", scale)[0].mean() > 0.5:
        return "scale", scale
    return plain, 1.0


def _coarser(a: np.ndarray, b: np.ndarray) -> np.dtype:
    return min(a.dtype, b.dtype, key=PRECISION.index)


@np.errstate(all="ignore")
def _compare_rows(
    a: np.ndarray, b: np.ndarray, relation: Relation, scale: float
) -> tuple[np.ndarray, float]:
    """Whether each row has the relation, and the largest difference in those that have not."""
    if relation == "bits":
        equal = (bits_of(a) == bits_of(b)).all(axis=1)
    elif relation == "cast":
        coarse = _coarser(a, b)
        equal = (bits_of(a.astype(coarse)) == bits_of(b.astype(coarse))).all(axis=1)
    else:
        wanted, found = a.astype(np.float32) * np.float32(scale), b.astype(np.float32)
        room = 2 * float(ml_dtypes.finfo(_coarser(a, b)).eps)  # both were rounded
        equal = (np.abs(wanted - found) <= room * np.abs(wanted) + 1e-30).all(axis=1)
    if equal.all():
        return equal, 0.0
    gap = np.abs(a[~equal].astype(np.float32) * np.float32(scale) - b[~equal].astype(np.float32))
    return equal, float(np.max(gap, initial=0.0, where=np.isfinite(gap)))


def repeated(facts: RowFacts) -> tuple[int, int]:
    """How many rows stand more than once, zeros not counted, and how often the most frequent one
    does.
    """
    counts = np.unique(facts.digest_V[~facts.zero_V], return_counts=True)[1]
    return int(counts[counts > 1].sum()), int(counts.max(initial=0))
