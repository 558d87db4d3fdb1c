"""Command line of `jaxtie compare`. Imports no jax."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from jaxtie.config import check
from jaxtie.options import (
    argument,
    escape,
    flag,
    option,
    parse_above_0,
    parse_command,
    parse_path,
    run_command,
)


@dataclass(frozen=True)
class CompareOptions:
    """Options of `jaxtie compare`."""

    HELP: ClassVar[str] = """
usage: jaxtie compare A B [OPTIONS]

Compare two sets of training runs by their losses, A - B, at the last common step. Trains nothing.
Exit status: 0 done, 2 a user's error.

  A, B               each a file (CSV, W&B, TensorBoard, trainer_state.json, JSON lines), a folder,
                     a quoted pattern ("runs/tied*.csv"), several of these with commas between, or
                     RUN:ARM of a run of jaxtie. PATH:NAME takes the runs, or the arm, of that name
  --column NAME      column of the loss (found by its name); several with commas between where files
                     have different ones
  --margin NAT       gap that matters, in the unit of the losses (0.01)
  --unpaired         runs of the same seed share nothing, so they are no pairs
  --out DIR          folder for comparison.png: the gap at all common steps
  --json             print the answer as JSON instead
"""
    arms: tuple[str, ...] = argument(str, ())
    column: str | None = option()
    margin: float = option(parse_above_0("a gap above 0"), 0.01)
    unpaired: bool = flag()
    out: Path | None = option(parse_path)
    json: bool = flag()


def main_compare(arguments: Sequence[str] | None = None) -> int:
    """Run `jaxtie compare` and return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: _run(parse_command(CompareOptions, "jaxtie compare", words)))


def _run(options: CompareOptions) -> int:
    from jaxtie.compare.answer import compare  # imports pandas and matplotlib
    from jaxtie.results import plots

    quote = "expected A and B; quote a pattern, as in 'runs/tied*.csv'"
    check(len(options.arms) == 2, f"{len(options.arms)} arms: {quote}")
    a, b = (arm if Path(arm).exists() else arm.split(",") for arm in options.arms)
    paired = not options.unpaired
    found = compare(a, b, column=options.column, margin=options.margin, paired=paired)
    if options.out:
        plots.draw_all({"comparison": plots.Picture("the gap", found.plot)}, options.out)
    if options.json:
        print(json.dumps(found.as_dict(), indent=1))
        return 0
    print(*map(escape, found.lines), sep="\n")
    if options.out:
        print(escape(f"Figure: {options.out / 'comparison.png'}"))
    return 0
