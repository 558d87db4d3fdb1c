"""Several iterators at a time: each in its own order, no more than so many, and what ends them."""

import threading
from collections.abc import Iterator

import pytest
from jaxtie.training.side_by_side import side_by_side


class Counted:
    """Iterators that note how many are advanced at once; two wait for each other where `pairs`."""

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
                self.barrier.wait(10)  # raises where nobody else comes
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
    assert sorted(
        side_by_side([counted.items(0, 0), counted.items(1, 2), counted.items(2, 0)], 8)
    ) == [(1, 0), (1, 1)]
    assert list(side_by_side([], 2)) == []


def test_stopped_those_under_way_come_to_their_ends_and_no_other_begins():
    counted, stopped = Counted(), []
    found = []
    for item in side_by_side([counted.items(name, 3) for name in range(5)], 2, stopped):
        found.append(item)
        stopped.append("now")
    assert sorted(found) == [(name, i) for name in range(2) for i in range(3)] and sorted(
        counted.begun
    ) == [0, 1]


def test_an_error_of_one_reaches_the_caller():
    def fails() -> Iterator[tuple[int, int]]:
        yield 7, 0
        raise ValueError("in its thread")

    counted = Counted()
    with pytest.raises(ValueError, match="in its thread"):
        list(side_by_side([fails(), counted.items(0, 1)], 2))
