"""What a checkpoint costs: runs that write one every two seconds and runs that write none take turns.

    python benchmarks/checkpoints.py

The main experiment, untied, 64 seeds. Time is that of training, from `config.json`; the last checkpoint, at the end of each
run, is in both.
"""

import argparse
from functools import partial

from turns import Spread, run_command, take_turns

OFTEN, NEVER, DEFAULT = 2.0, 1e9, 60.0  # seconds between two


def training_seconds(steps: int, every: float) -> float:
    """Of training, with a checkpoint so often."""
    options = ["--seeds", "64", "--steps", str(steps), "--arms", "untied", "--checkpoint-every", str(every)]
    return run_command(options)["arms"]["untied"]["train_seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40_000, help="of each run (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of runs (default: %(default)s)")
    options = parser.parse_args()
    training_seconds(options.steps, NEVER)  # fills the cache of compiled programs
    sides = {name: partial(training_seconds, options.steps, every) for name, every in (("often", OFTEN), ("never", NEVER))}
    often, never = take_turns(sides, options.repeats).values()
    cost = Spread.of([(a - b) / (a / OFTEN) for a, b in zip(often, never, strict=True)])
    pairs = ", ".join(f"{a:.1f} / {b:.1f}" for a, b in zip(often, never, strict=True))
    print(f"training, s    one every {OFTEN:.0f} s / none: {pairs}")
    print(f"a checkpoint   {cost:.2f} s")
    print(f"its cost       {100 * cost.median / DEFAULT:.2f} % of training at the default of one every {DEFAULT:.0f} s")


if __name__ == "__main__":
    main()
