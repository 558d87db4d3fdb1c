"""Commands that tests start, in processes of their own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

# Seconds. A busy machine takes ten times as long as an idle one, so these end only what hangs, and
# tell an end from one after JAX's heartbeat of 100 s or after minutes of compiling.
PATIENCE, SOON = 3600, 90


def start(
    folder: Path, *options: str, prefix: Sequence[str] = (), **environment: str
) -> subprocess.Popen:
    """`python -m jaxtie.run` into a folder; its standard error can be read.

    It has as many CPU devices as the tests' own process, else it would find none of the programs
    that are compiled already.
    """
    command = [*prefix, sys.executable, "-m", "jaxtie.run", *options, "--out", str(folder)]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        command, **pipes, env=os.environ | {"JAX_NUM_CPU_DEVICES": "2"} | environment
    )


def start_two(folder: Path, *options: str, **environment: str) -> list[subprocess.Popen]:
    """The same run by two processes that find each other."""
    with socket.socket() as s:
        s.bind(("", 0))
        port = s.getsockname()[1]
    together = ["--distributed", "--coordinator", f"127.0.0.1:{port}", "--process-count", "2"]
    return [
        start(folder, *options, *together, "--process-index", str(i), **environment) for i in (0, 1)
    ]


def until(process: subprocess.Popen, text: str) -> None:
    """Return when a line of its standard error has the text; AssertionError if it ends before."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return
    raise AssertionError(f"no {text!r} in {''.join(lines)!r}")


def until_recorded(process: subprocess.Popen, folder: Path, records: int) -> None:
    """Return when the folder holds so many records; AssertionError if the process ends before."""
    while recorded(folder) < records:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


def recorded(folder: Path) -> int:
    """Return the records in a run's folder, summed over arms: of the members farthest on."""
    ends: dict[str, int] = {}
    for path in (folder / "records").glob("[!.]*.npz"):
        arm, first, count, *_ = path.name.rsplit(".", 4)
        ends[arm] = max(ends.get(arm, 0), int(first) + int(count))
    return sum(ends.values())


def ended(process: subprocess.Popen) -> tuple[int, str]:
    """Return exit status and rest of standard error at the end of a process."""
    error = process.communicate(timeout=PATIENCE)[1]
    return process.returncode, error
