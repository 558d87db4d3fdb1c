"""Take turns in measuring, summarise repeats, and run commands of several checkouts."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

CHECKOUT = Path(__file__).resolve().parents[1]

Measured = TypeVar("Measured")


class Spread(NamedTuple):
    """Summary of a repeated measurement."""

    median: float
    min: float
    max: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of some values."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    @classmethod
    def of_ratios(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Spread":
        """Return the spread of a / b, each pair measured in one round."""
        return cls.of([a / b for a, b in zip(ours, theirs, strict=True)])

    def __format__(self, form: str) -> str:
        """Return "median [least, most]", each number in this format."""
        return f"{self.median:{form}} [{self.min:{form}}, {self.max:{form}}]"


def take_turns(
    sides: Mapping[str, Callable[[], Measured]], rounds: int
) -> dict[str, list[Measured]]:
    """Measure every side once a round; every second round goes backwards."""
    found: dict[str, list[Measured]] = {name: [] for name in sides}
    for i in range(rounds):
        for name in list(sides)[:: -1 if i % 2 else 1]:
            print(f"\rround {i + 1} of {rounds}: {name:40s}", end="", file=sys.stderr, flush=True)
            found[name].append(sides[name]())
    print(file=sys.stderr)
    return found


def has_torch() -> bool:
    """Whether PyTorch is installed, without importing it."""
    try:
        return bool(version("torch"))
    except PackageNotFoundError:
        return False


def run_command(
    *processes: Sequence[str], checkout: Path = CHECKOUT, **environment: str
) -> dict[str, Any]:
    """Return `config.json` after `python -m jaxtie.run` with a checkout's jaxtie.

    Args:
      processes: the options of each process except `--out`.
      checkout: folder of the repository.
      environment: additional variables.
    """
    # PYTHONSAFEPATH: else the current folder, which may hold another jaxtie, comes first
    path = os.pathsep.join([str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"} | environment
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "jaxtie.run", "--quiet", "--out", str(out)]
        started = [
            subprocess.Popen([*command, *own], env=environment, stdout=subprocess.DEVNULL)
            for own in processes
        ]
        if any([process.wait() for process in started]):
            raise SystemExit(f"{checkout}: a run failed")
        return json.loads((out / "config.json").read_text())
