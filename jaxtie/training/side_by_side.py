"""Several iterators at a time, each advanced by a thread of its own; for work that does not hold
Python's lock.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

Yielded = TypeVar("Yielded")
_EXHAUSTED = object()


def side_by_side(
    iterators: Iterable[Iterator[Yielded]], count: int, stopped: Sequence[object] = ()
) -> Iterator[Yielded]:
    """The items of all iterators as they come: those of one in its order, those of several in any.

    While the caller has an item in hand, all go on to their next.

    Args:
      iterators: advanced in turn by any thread, never by two at once; one begins as soon as another
        has ended.
      count: how many are under way at a time.
      stopped: when there is something in it no other one begins; those under way are to end by
        themselves.
    """
    waiting = iter(iterators)
    with ThreadPoolExecutor(count) as pool:
        under_way: dict[Future, Iterator[Yielded]] = {}

        def advance(iterator: Iterator[Yielded]) -> None:
            under_way[pool.submit(next, iterator, _EXHAUSTED)] = iterator

        def begin_another() -> None:
            if not stopped and (iterator := next(waiting, None)) is not None:
                advance(iterator)

        for _ in range(count):
            begin_another()
        while under_way:
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                iterator = under_way.pop(future)
                if (item := future.result()) is _EXHAUSTED:
                    begin_another()
                else:
                    advance(iterator)
                    yield item
