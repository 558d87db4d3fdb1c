"""Compiling beside other work, in a thread that nobody need wait for."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

NAME = "jaxtie: compiles"  # of such a thread
Worked = TypeVar("Worked")


def in_background(work: Callable[[], Worked]) -> Future[Worked]:
    """What `work` will return. JAX's contexts (`jax.enable_x64`, ...) are of a thread: the caller's
    do not reach it.
    """
    result: Future[Worked] = Future()

    def do() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=do, name=NAME, daemon=True).start()
    return result


def is_something_abandoned() -> bool:
    """Whether such a thread is still at work, so that this process should not tidy up."""
    return any(thread.name == NAME for thread in threading.enumerate())
