"""Commands that tests start, in processes of their own."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def start(folder: Path, *options: str, prefix: Sequence[str] = (), **environment: str) -> subprocess.Popen:
    """`python -m jaxtie.run` into a folder; its standard error can be read."""
    command = [*prefix, sys.executable, "-m", "jaxtie.run", *options, "--out", str(folder)]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, env=os.environ | environment)


def start_two(folder: Path, *options: str, **environment: str) -> list[subprocess.Popen]:
    """The same run by two processes that find each other."""
    with socket.socket() as s:
        s.bind(("", 0))
        port = s.getsockname()[1]
    together = ["--distributed", "--coordinator", f"127.0.0.1:{port}", "--process-count", "2"]
    return [start(folder, *options, *together, "--process-index", str(i), **environment) for i in (0, 1)]


def until(process: subprocess.Popen, text: str) -> None:
    """Return when a line of its standard error has the text, or it has ended."""
    for line in process.stderr:
        if text in line:
            return


def ended(process: subprocess.Popen) -> tuple[int, str]:
    """Exit status and what is left of standard error, when it has come to its end; a busy machine is slow."""
    error = process.communicate(timeout=300)[1]
    return process.returncode, error
