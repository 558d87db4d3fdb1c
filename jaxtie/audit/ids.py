"""Sets of token ids in words: runs, added tokens, a part of the vocabulary that one of several
devices has.
"""

from dataclasses import dataclass

import numpy as np

MOST_PARTS = 64  # devices that a vocabulary is looked for to be split over
COVERED = 0.8  # of a part must be in the set
ADDED = 0.95  # from this share of the vocabulary on ids may be added tokens
SHOWN_RUNS = 3
FRACTIONS = {2: "half", 3: "third", 4: "quarter", 8: "eighth", 16: "sixteenth"}


@dataclass(frozen=True)
class Part:
    """A part of a vocabulary split evenly, the last one shorter: which, from 0, and of how many."""

    index: int
    count: int

    @property
    def text(self) -> str:
        """`the last eighth`, `part 3 of 8`."""
        last = self.index == self.count - 1
        if last and self.count in FRACTIONS:
            return f"the last {FRACTIONS[self.count]}"
        return f"part {self.index + 1} of {self.count}"


def runs_of(ids: np.ndarray) -> list[tuple[int, int]]:
    """Ascending ids as runs, first and last of each."""
    if not len(ids):
        return []
    pieces = np.split(ids, np.flatnonzero(np.diff(ids) > 1) + 1)
    return [(int(piece[0]), int(piece[-1])) for piece in pieces]


def part_of(ids: np.ndarray, vocabulary: int) -> Part | None:
    """The part of the vocabulary that a set of ascending ids is, if one of several devices would
    have had just that.

    PyTorch and JAX give each of n devices ceil(V / n) rows, and the last one what is left.
    """
    if len(ids) < 2 or len(ids) == vocabulary:
        return None
    first, last = int(ids[0]), int(ids[-1])
    best, covered = None, COVERED
    for count in range(2, MOST_PARTS + 1):
        size = -(-vocabulary // count)
        if size < 2 * count:  # so many parts of so few rows that some would fit by chance
            break
        index = first // size
        begin, end = index * size, min((index + 1) * size, vocabulary)
        share = len(ids) / (end - begin)
        # They lie in one part; a few of its rows may be what they would be anyway. The part that
        # they fill best counts.
        if last < end and share >= covered and (best is None or share > covered):
            best, covered = Part(index, -(-vocabulary // size)), share
    return best


def shown_ids(ids: np.ndarray, vocabulary: int) -> str:
    """`only 151,643 to 151,662: perhaps added tokens`; `the last eighth, 43,981 to 50,256: a
    shard`.
    """
    if not len(ids):
        return "none"
    runs = runs_of(ids)
    part = part_of(ids, vocabulary)
    span = f"{runs[0][0]:,} to {runs[-1][1]:,}"
    if part:
        return f"{part.text}, {span}: a shard"
    if len(ids) == vocabulary:
        return "all"
    if runs[0][0] >= ADDED * vocabulary:
        return (
            f"only {span}: perhaps added tokens"
            if len(ids) > 1
            else f"only {runs[0][0]:,}: perhaps an added token"
        )
    texts = [f"{a:,} to {b:,}" if b > a else f"{a:,}" for a, b in runs[:SHOWN_RUNS]]
    more = f" and {len(runs) - SHOWN_RUNS:,} more runs" if len(runs) > SHOWN_RUNS else ""
    return f"ids {', '.join(texts)}{more}"
