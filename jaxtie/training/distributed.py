"""Several processes of one run, on one machine or many, through JAX's own runtime.

Where members are small each process trains a share of them, by the same programs as one process
alone would, so with the same numbers; now and then all processes meet, and the first gets what the
others have: it alone writes. Where members are large all processes train each of them together,
step by step.
"""

import contextlib
import io
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.experimental import multihost_utils

from jaxtie.config import UserError
from jaxtie.training.task import Chunk, Members

JOIN_SECONDS = 300  # for all processes to come together
# between two meetings: on some versions a collective waits for the programs that are under way
MEET_SECONDS = 10.0
GONE = (
    "another process of the run has ended; start all of them again by the same commands, and the"
    " run goes on"
)


class Processes:
    """All processes of the run; `index` is this one's. `gather` is called by all of them, in the
    same order.
    """

    def __init__(self, index: int = 0, count: int = 1):
        self.index, self.count = index, count
        self._others: list[socket.socket] = []  # on the first process, a connection from each
        self.watch: subprocess.Popen | None = None  # on the others

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.index == 0

    def share(self, seeds: tuple[int, ...], block: int) -> tuple[int, ...]:
        """This process's own seeds: every so many-th block."""
        blocks = [seeds[i : i + block] for i in range(0, len(seeds), block)]
        return tuple(seed for each in blocks[self.index :: self.count] for seed in each)

    def gather(self, tree: dict) -> list[dict]:
        """What each process gives: nested dicts of arrays. They travel as bytes, so every bit of
        them arrives.
        """
        if self.count == 1:
            return [tree]
        data = np.frombuffer(_pack(tree), np.uint8)
        try:
            sizes = multihost_utils.process_allgather(np.int32(len(data)))
            # few sizes: each is compiled once
            padded = np.zeros(1 << int(max(sizes)).bit_length(), np.uint8)
            padded[: len(data)] = data
            rows = multihost_utils.process_allgather(padded)
        except Exception:  # whatever the transport raises when the other end is gone
            self._end_for_a_loss()
        return [_unpack(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]

    def broadcast(self, tree: dict) -> dict:
        """What the first process gives."""
        return self.gather(tree if self.leads else {})[0]

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Within, a program of all processes that fails, as it does when one of them is gone, ends
        this one with a line.
        """
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            if self.count == 1 or "RESOURCE_EXHAUSTED" in str(error):
                raise
            self._end_for_a_loss()

    def _end_for_a_loss(self) -> NoReturn:
        if self.watch:
            self.watch.kill()  # it may have seen the loss too, and would say the same
        end_at_once(GONE)

    def leave(self) -> None:
        """Call at the end: the others shall not take this one's end for a loss."""
        if self.watch:
            self.watch.communicate()
        for connection in self._others:
            with contextlib.suppress(OSError):
                connection.sendall(b".")

    def agree(self, stopped: list) -> bool:
        """Whether any of them is `stopped`; then all are."""
        if (
            any(tree["stopped"] for tree in self.gather({"stopped": np.bool(bool(stopped))}))
            and not stopped
        ):
            stopped.append(None)
        return bool(stopped)

    def together(self, pieces: Iterator[Chunk], stopped: list) -> Iterator[Chunk]:
        """On the first process the pieces of all, on the others none, until all have ended or one
        is `stopped`.

        Each piece has its records and its members.
        """
        if self.count == 1:
            for piece in pieces:
                yield piece
                if stopped:
                    return
        over = self.count == 1
        while not over:
            own: dict[str, dict] = {}
            ended, meeting = True, time.monotonic() + MEET_SECONDS
            for piece in pieces:
                members = piece.members._asdict()  # type: ignore[union-attr]  # each piece has them
                own[str(len(own))] = piece._asdict() | {"members": members}
                if stopped or time.monotonic() > meeting:
                    ended = False
                    break
            everyone = self.gather({"pieces": own, "ended": np.bool(ended)})
            for tree in everyone if self.leads else ():
                for piece in tree.get("pieces", {}).values():
                    yield _piece_of(piece)
            over = self.agree(stopped) or all(tree["ended"] for tree in everyone)


def join(coordinator: str | None, count: int | None, index: int | None) -> Processes:
    """Come together with the others, before any device is used; SLURM, Kubernetes and TPU pods are
    found by JAX.

    Args:
      coordinator, count, index: HOST:PORT of the first process, how many there are, which this is;
        None: found.

    Raises:
      UserError: where there is nothing to find, or the port is taken.
    """
    late = (
        f"the processes did not come together within {JOIN_SECONDS} s; is each started, with the"
        " same --process-count?"
    )
    # before JAX itself ends the process, with a stack dump
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
    """End the process with a line: waiting at exit for what is gone would hang."""
    with contextlib.suppress(OSError):
        print(f"jaxtie: {line}", file=sys.stderr, flush=True)
    os._exit(2)


# Told of the end of the first process, a thread may come too late: Python's lock is held while a
# model is traced.
WATCH = """
import os, select, signal, socket, sys
host, port, process, line = sys.argv[1:]
connection = socket.create_connection((host, int(port)), timeout=60)
if sys.stdin in select.select([connection, sys.stdin], [], [])[0]:
    sys.exit()  # who started this has ended
try:
    told = connection.recv(1)
except OSError:
    told = b""
if not told:
    os.kill(int(process), signal.SIGKILL)
    print("jaxtie:", line, file=sys.stderr)
"""


def _watch(processes: Processes) -> None:
    """See the end of the first process by a connection to it: JAX would abort this one, with a
    stack dump.

    Where the network forbids it, so it ends.
    """
    listener = socket.create_server(("", 0)) if processes.leads else None
    address = (
        {"host": np.str_(socket.gethostname()), "port": np.int32(listener.getsockname()[1])}
        if listener
        else {}
    )
    address = processes.broadcast(address)
    if listener:

        def accept() -> None:
            processes._others += [listener.accept()[0] for _ in range(processes.count - 1)]

        threading.Thread(target=accept, daemon=True).start()
    else:
        command = [
            sys.executable,
            "-S",
            "-c",
            WATCH,
            str(address["host"]),
            str(address["port"]),
            str(os.getpid()),
            GONE,
        ]
        processes.watch = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _piece_of(tree: dict[str, Any]) -> Chunk:
    """A piece that has travelled as nested dicts of arrays, of which empty ones are lost."""
    members = Members(**{"states": {}} | tree["members"])
    numbers = {name: int(tree[name]) for name in ("first_record", "updates", "tokens")}
    return Chunk(
        tree["numbers"],
        records=tree["records"],
        members=members,
        evaluating=float(tree["evaluating"]),
        **numbers,
    )


def _pack(tree: dict) -> bytes:
    file = io.BytesIO()
    np.savez(file, **{"/".join(path): leaf for path, leaf in flatten_dict(tree).items()})
    return file.getvalue()


def _unpack(data: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return unflatten_dict({tuple(name.split("/")): file[name] for name in file.files})
