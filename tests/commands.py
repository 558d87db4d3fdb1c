"""Commands that tests start, in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def start(folder: Path, *options: str, prefix: Sequence[str] = (), **environment: str) -> subprocess.Popen:
    """`python -m jaxtie.run` into a folder; its standard error can be read."""
    command = [*prefix, sys.executable, "-m", "jaxtie.run", *options, "--out", str(folder)]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, env=os.environ | environment)


def until(process: subprocess.Popen, text: str) -> None:
    """Return when a line of its standard error has the text, or it has ended."""
    for line in process.stderr:
        if text in line:
            return


def ended(process: subprocess.Popen) -> tuple[int, str]:
    """Exit status and what is left of standard error, when it has come to its end; a busy machine is slow."""
    error = process.communicate(timeout=300)[1]
    return process.returncode, error
