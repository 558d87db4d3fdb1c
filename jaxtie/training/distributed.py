"""Run several processes, on one machine or many, through JAX's own runtime.

Small members are divided among the processes, which train them by the same programs as a single
process, so with the same numbers; every few seconds the first process collects the chunks of all,
and it alone writes. Large members are trained by all processes together, step by step.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

import jax
import numpy as np
from flax.serialization import msgpack_restore, msgpack_serialize
from jax.experimental import multihost_utils

from jaxtie.config import UserError
from jaxtie.training.task import Chunk, Members

JOIN_SECONDS = 300  # until all processes have joined
# Between two collections: on some versions a collective waits for running programs.
MEET_SECONDS = 10.0
FAREWELL = b"."  # sent by a process that ends properly
_ending = threading.Lock()
PEER_LOST = (
    "another process of the run has ended; start all of them again by the same commands, and the"
    " run goes on"
)


class Processes:
    """All processes of the run.

    Every process calls `gather`, `broadcast`, `agree` and `together` in the same order.

    Attributes:
      index, count: of this process; of all.
      watch: subprocess that watches the first process; None on the first one.
    """

    def __init__(self, index: int = 0, count: int = 1):
        self.index, self.count = index, count
        self._others: list[socket.socket] = []  # on the first process, a connection from each
        self.watch: subprocess.Popen | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.index == 0

    def share(self, seeds: tuple[int, ...], block: int) -> tuple[int, ...]:
        """Return this process's share of the seeds, in whole blocks."""
        blocks = [seeds[i : i + block] for i in range(0, len(seeds), block)]
        return tuple(seed for each in blocks[self.index :: self.count] for seed in each)

    def gather(self, tree: dict) -> list[dict]:
        """Return the tree of every process: dicts, lists, arrays, numbers, text; bit by bit."""
        if self.count == 1:
            return [tree]
        data = np.frombuffer(msgpack_serialize(tree), np.uint8)
        try:
            sizes = multihost_utils.process_allgather(np.int32(len(data)))
            # powers of two, since each size is compiled once
            padded = np.zeros(1 << int(max(sizes)).bit_length(), np.uint8)
            padded[: len(data)] = data
            rows = multihost_utils.process_allgather(padded)
        except Exception:  # the transport raises many types when the other end is gone
            self._end_for_a_loss()
        found = zip(rows, sizes, strict=True)
        return [msgpack_restore(row[:size].tobytes()) for row, size in found]

    def broadcast(self, tree: dict) -> dict:
        """Return the tree of the first process."""
        return self.gather(tree if self.leads else {})[0]

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """End this process with one line if a program of all processes fails.

        It fails when one of them has ended.
        """
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            if self.count == 1 or "RESOURCE_EXHAUSTED" in str(error):
                raise
            self._end_for_a_loss()

    def _end_for_a_loss(self) -> NoReturn:
        if self.watch:
            self.watch.kill()  # it may be about to print the same line
        end_at_once(PEER_LOST)

    def leave(self) -> None:
        """End properly, so that the others do not report a lost process."""
        if self.watch:
            self.watch.communicate(FAREWELL)
        for connection in self._others:
            with contextlib.suppress(OSError):
                connection.sendall(FAREWELL)

    def agree(self, stopped: list) -> bool:
        """Return whether any process is `stopped`; then all of them are."""
        trees = self.gather({"stopped": bool(stopped)})
        if not stopped and any(tree["stopped"] for tree in trees):
            stopped.append(None)
        return bool(stopped)

    def together(self, chunks: Iterator[Chunk], stopped: list) -> Iterator[Chunk]:
        """Yield the chunks of all processes on the first one, and none on the others.

        Ends when all have ended or one is `stopped`. Every chunk must have its members.
        """
        if self.count == 1:
            for chunk in chunks:
                yield chunk
                if stopped:
                    break
            return
        over = False
        while not over:
            own: list[dict] = []
            ended, meeting = True, time.monotonic() + MEET_SECONDS
            for chunk in chunks:
                members = chunk.members._asdict()  # type: ignore[union-attr]  # each chunk has them
                own.append(chunk._asdict() | {"members": members})
                if stopped or time.monotonic() > meeting:
                    ended = False
                    break
            everyone = self.gather({"chunks": own, "ended": ended})
            for tree in everyone if self.leads else ():
                for each in tree["chunks"]:
                    yield Chunk(**each | {"members": Members(**each["members"])})
            over = self.agree(stopped) or all(tree["ended"] for tree in everyone)


def join(coordinator: str | None, count: int | None, index: int | None) -> Processes:
    """Join the other processes, before any device is used.

    Args:
      coordinator: HOST:PORT of the first process.
      count: number of processes.
      index: number of this process. None: JAX finds all three on SLURM, Kubernetes and TPU pods.

    Raises:
      UserError: if JAX finds nothing, or the port is taken.
    """
    late = (
        f"the processes did not join within {JOIN_SECONDS} s; is each started, with the same"
        " --process-count?"
    )
    # JAX itself would end the process later, with a stack dump.
    timer = threading.Timer(JOIN_SECONDS, end_at_once, [late])
    timer.daemon = True
    timer.start()
    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM
    # else the end of one process aborts the others
    jax.config.update("jax_enable_recoverability", True)
    try:
        if coordinator and index == 0:
            with socket.create_server(("", int(coordinator.rpartition(":")[2]))):
                pass  # JAX may crash where the port is taken
        jax.distributed.initialize(
            coordinator,
            count,
            index,
            initialization_timeout=2 * JOIN_SECONDS,
            cluster_detection_method="deactivate" if coordinator else None,
        )
    except (ValueError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"--distributed: {reason}; give --coordinator HOST:PORT, --process-count,"
            " --process-index"
        ) from None
    finally:
        timer.cancel()
    processes = Processes(jax.process_index(), jax.process_count())
    _watch(processes)
    return processes


def end_at_once(line: str) -> NoReturn:
    """Print a line and end the process; a normal exit would wait for the lost process."""
    _ending.acquire()  # another thread may be here already
    with contextlib.suppress(OSError):
        print(f"jaxtie: {line}", file=sys.stderr, flush=True)
    os._exit(2)


# A subprocess, since a thread may react too late: tracing a model holds Python's lock.
WATCH = """
import contextlib, os, select, signal, socket, sys
host, port, process, line = sys.argv[1:]
connection = socket.create_connection((host, int(port)), timeout=60)
if sys.stdin in select.select([connection, sys.stdin], [], [])[0]:
    with contextlib.suppress(OSError):
        connection.sendall(sys.stdin.buffer.read())  # nothing if the process was lost
    sys.exit()
try:
    farewell = connection.recv(1)
except OSError:
    farewell = b""
if not farewell:
    os.kill(int(process), signal.SIGKILL)
    print("jaxtie:", line, file=sys.stderr)
"""


def _watch(processes: Processes) -> None:
    """Watch the connection between the first process and each other one.

    At the end of the first, JAX would abort the others with a stack dump; at the end of another,
    the first may wait for it for ever. If the network forbids the connection, that remains.
    """
    listener = socket.create_server(("", 0)) if processes.leads else None
    own = (socket.gethostname(), listener.getsockname()[1]) if listener else ()
    address = processes.broadcast({"own": [*own]})["own"]
    if listener:

        def listen(connection: socket.socket) -> None:
            with contextlib.suppress(OSError):
                if connection.recv(1) == FAREWELL:
                    return
            end_at_once(PEER_LOST)

        def accept() -> None:
            for _ in range(processes.count - 1):
                connection, _ = listener.accept()
                processes._others.append(connection)
                threading.Thread(target=listen, args=[connection], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
    else:
        command = [sys.executable, "-S", "-c", WATCH, *map(str, (*address, os.getpid())), PEER_LOST]
        processes.watch = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
