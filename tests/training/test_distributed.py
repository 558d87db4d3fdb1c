"""Two processes on one machine give the numbers of one, and end cleanly when one of them ends."""

import signal
import socket
import subprocess
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from commands import PATIENCE, SOON, ended, start, start_two, until_recorded
from jax.experimental import multihost_utils
from wrapped import COMPILED_QUICKLY, WITHOUT_FIGURES, after

from jaxtie.results.folder import RunFolder
from jaxtie.training import distributed
from jaxtie.training.checkpoints import opened
from jaxtie.training.distributed import PEER_LOST, Processes
from jaxtie.training.task import Chunk, Members

OPTIONS = "--record-every 2 --eval-every 20 --arms untied --checkpoint-every 1e-6 --quiet".split()
# Wide members: each is a block of its own, and soon compiled.
WIDE = """
from jaxtie import Experiment, Transformer
experiment = Experiment(model=Transformer(width=32))
"""
MAIN = "from jaxtie import Experiment; experiment = Experiment()"
# so that records come soon
MEET_OFTEN = "from jaxtie.training import distributed; distributed.MEET_SECONDS = 0.1"
PREFIX = after(COMPILED_QUICKLY, WITHOUT_FIGURES, MEET_OFTEN)


def kill_one(
    folder: Path, options: list[str], victim: int, records: int, **environment: str
) -> None:
    """Start both, kill one once there are so many records; the other one ends with a line."""
    both = start_two(folder, *options, prefix=PREFIX, **environment)
    until_recorded(both[0], folder, records)
    began = time.monotonic()
    both[victim].kill()
    status, error = ended(both[1 - victim])
    assert time.monotonic() - began < SOON
    assert status in ((2,) if victim else (2, -9))
    assert [line for line in error.splitlines() if line.startswith("jaxtie: ")] == [
        f"jaxtie: {PEER_LOST}"
    ]
    assert "Traceback" not in error and "stack trace" not in error
    ended(both[victim])
    assert RunFolder(folder).config()["finished"] is False


def reached(folder: Path) -> int:
    """Return the steps of the last checkpoint, summed over its members."""
    with opened(folder / "checkpoints") as checkpoints:
        return int(checkpoints.load(print)["untied"].steps.sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "seeds", "steps", "victims", "devices_each"),
    [
        pytest.param(WIDE, 7, 100, (1,), "1", id="the second, of a device each"),
        pytest.param(MAIN, 70, 300, (1, 0), "2", id="either, of two devices each"),
    ],
)
def test_two_processes_give_the_bits_of_one_also_after_losing_one(
    tmp_path, source, seeds, steps, victims, devices_each
):
    (tmp_path / "experiment.py").write_text(source)
    options = [str(tmp_path / "experiment.py"), *OPTIONS]
    options += ["--seeds", str(seeds), "--steps", str(steps)]
    alone = start(tmp_path / "one", *options, prefix=PREFIX, JAX_NUM_CPU_DEVICES=devices_each)
    assert ended(alone)[0] == 0
    folder, before = tmp_path / "two", 0
    # checkpoints are behind by a chunk, of 64 records at most
    for records, victim in zip((20, 100), victims):
        kill_one(folder, options, victim, records, JAX_NUM_CPU_DEVICES=devices_each)
        assert before < reached(folder) < seeds * steps
        before = reached(folder)
    both = start_two(folder, *options, prefix=PREFIX, JAX_NUM_CPU_DEVICES=devices_each)
    assert [ended(process)[0] for process in both] == [0, 0]
    one, two = (RunFolder(tmp_path / name).load().drop_attrs() for name in ("one", "two"))
    assert one.identical(two)


def test_shares_are_whole_blocks_and_make_up_all_seeds():
    seeds = tuple(range(100, 170))
    shares = [Processes(i, 3).share(seeds, 32) for i in range(3)]
    assert [len(share) for share in shares] == [32, 32, 6]
    assert sorted(sum(shares, ())) == list(seeds)
    assert Processes(3, 4).share(seeds, 32) == ()


def test_one_process_hands_chunks_on_until_it_is_stopped():
    nothing = Members(np.arange(2), np.zeros(2), np.zeros((2, 2)), {})
    chunks, stopped = [Chunk(nothing.numbers, at, None, nothing, 2) for at in range(4)], []
    found = Processes().together(iter(chunks), stopped)
    assert next(found) is chunks[0] and next(found) is chunks[1]
    stopped.append(2)
    assert list(found) == []
    assert list(Processes().together(iter(chunks), [])) == chunks


@pytest.mark.parametrize("seen_by", ["a meeting", "a program of all processes"])
def test_a_lost_process_is_reported_once(monkeypatch, seen_by):
    """The watch would report it a moment later."""

    def fail(*_: object) -> None:
        raise jax.errors.JaxRuntimeError("the other end is gone")

    def end(line: str) -> None:
        assert watch.wait(timeout=PATIENCE) == -signal.SIGKILL
        raise SystemExit(line)

    monkeypatch.setattr(multihost_utils, "process_allgather", fail)
    monkeypatch.setattr(distributed, "end_at_once", end)
    two = Processes(1, 2)
    with subprocess.Popen(["sleep", "60"]) as watch:
        two.watch = watch
        with pytest.raises(SystemExit, match=PEER_LOST):
            if seen_by == "a meeting":
                two.gather({})
            else:
                with two.watched():
                    fail()


def test_a_port_that_is_taken_is_one_line(tmp_path):
    with socket.create_server(("", 0)) as taken:
        options = ["--distributed", "--coordinator", f"127.0.0.1:{taken.getsockname()[1]}"]
        options += ["--process-count", "2", "--process-index", "0"]
        status, error = ended(start(tmp_path / "run", *options))
    assert status == 2
    assert [line[:23] for line in error.splitlines()] == ["jaxtie: --distributed: "], error
    assert not (tmp_path / "run").exists()
