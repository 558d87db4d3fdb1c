"""Iterators side by side: each in its own order, at most so many at a time, and how they end.

The engine itself is tested on text, in `tests/text/test_training.py`.
"""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from jaxtie.training.row_engine import mean_over_batches
from jaxtie.training.task import side_by_side


class Counted:
    """Count how many iterators are advanced at once; two wait for each other where `pairs`."""

    def __init__(self, *, pairs: bool = False):
        self.lock, self.inside, self.most, self.begun = threading.Lock(), 0, 0, []
        self.barrier = threading.Barrier(2) if pairs else None

    def items(self, name: int, count: int) -> Iterator[tuple[int, int]]:
        self.begun.append(name)
        for i in range(count):
            with self.lock:
                self.inside += 1
                self.most = max(self.most, self.inside)
            if self.barrier:
                self.barrier.wait(10)  # raises if no other thread comes
            with self.lock:
                self.inside -= 1
            yield name, i


def test_two_are_under_way_together_and_no_more():
    counted = Counted(pairs=True)
    found = list(side_by_side([counted.items(name, 6) for name in range(4)], 2))
    assert counted.most == 2 and sorted(counted.begun) == [0, 1, 2, 3]
    for name in range(4):
        assert [i for each, i in found if each == name] == list(range(6))


def test_more_places_than_iterators_and_some_without_items():
    counted = Counted()
    iterators = [counted.items(name, count) for name, count in enumerate((0, 2, 0))]
    assert sorted(side_by_side(iterators, 8)) == [(1, 0), (1, 1)]
    assert list(side_by_side([], 2)) == []


def test_in_turns_each_gives_an_item_before_any_gives_another():
    iterators = [Counted().items(name, count) for name, count in enumerate((3, 1, 2))]
    found = list(side_by_side(iterators, 1, in_turns=True))
    assert found == [(0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (0, 2)]


def test_stopped_those_under_way_end_and_no_other_begins():
    counted, stopped, found = Counted(), [], []
    for item in side_by_side([counted.items(name, 3) for name in range(5)], 2, stopped):
        found.append(item)
        stopped.append("now")
    assert sorted(found) == [(name, i) for name in range(2) for i in range(3)]
    assert sorted(counted.begun) == [0, 1]


def test_an_error_of_one_reaches_the_caller():
    def fail() -> Iterator[tuple[int, int]]:
        yield 7, 0
        raise ValueError("in its thread")

    with pytest.raises(ValueError, match="in its thread"):
        list(side_by_side([fail(), Counted().items(0, 1)], 2))


@pytest.mark.parametrize(("weights", "expected"), [([3, 1], 1.25), (None, 1.5)])
def test_means_over_batches_are_weighted_where_there_are_weights(weights, expected):
    found = [{"loss": np.float32(1)}, {"loss": np.float32(2)}]
    for each, weight in zip(found, weights or []):
        each["weight"] = np.float32(weight)
    assert mean_over_batches(found) == {"loss": expected}
