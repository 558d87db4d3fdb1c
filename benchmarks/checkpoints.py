"""What a checkpoint costs: runs that write one every two seconds and runs that write none take turns.

    python benchmarks/checkpoints.py

The main experiment, untied, 64 seeds. Time is that of training, from `config.json`; the last checkpoint, at the end of each
run, is in both.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS, REPEATS, OFTEN, DEFAULT = 40_000, 3, 2.0, 60.0


def seconds(every: float) -> float:
    """Of training, with a checkpoint so often."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        options = ["--seeds", "64", "--steps", str(STEPS), "--arms", "untied", "--quiet", "--out", str(out)]
        command = [sys.executable, "-m", "jaxtie.run", *options, "--checkpoint-every", str(every)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads((out / "config.json").read_text())["arms"]["untied"]["train_seconds"]


def main() -> None:
    seconds(1e9)  # fills the cache of compiled programs
    pairs = []
    for i in range(REPEATS):
        print(f"\rpair {i + 1} of {REPEATS}", end="", file=sys.stderr, flush=True)
        pairs.append((seconds(OFTEN), seconds(1e9)))
    print(file=sys.stderr)
    costs = [(often - never) / (often / OFTEN) for often, never in pairs]
    middle = statistics.median(costs)
    print(f"training, s    one every {OFTEN:.0f} s / none: {', '.join(f'{a:.1f} / {b:.1f}' for a, b in pairs)}")
    print(f"a checkpoint   {middle:.2f} s [{min(costs):.2f}, {max(costs):.2f}]")
    print(f"its cost       {100 * middle / DEFAULT:.2f} % of training at the default of one every {DEFAULT:.0f} s")


if __name__ == "__main__":
    main()
