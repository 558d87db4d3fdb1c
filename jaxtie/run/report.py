"""The command line of `jaxtie report`. Imports no jax."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from jaxtie.config import check
from jaxtie.options import Flag, option, parse_command, parse_path, run_command
from jaxtie.results import analysis
from jaxtie.results.folder import RunFolder
from jaxtie.results.plots import write_frames
from jaxtie.run import lifecycle
from jaxtie.run.page import write_report


@dataclass(frozen=True)
class ReportOptions:
    """Draw the figures and the report of runs again, from their results alone."""

    runs: tyro.conf.Positional[tuple[Annotated[Path, option("DIR", parse_path)], ...]] = ()
    """Folders of finished runs."""
    pdf: Flag = False
    """Also draw each panel of the overview by itself, and every figure as PDF."""
    csv: Flag = False
    """Also write the results as tidy CSV, below DIR/csv."""
    animate: Flag = False
    """Also draw the embeddings over training as an animation, portrait.gif; of EXor."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `jaxtie report`; return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: _report(parse_command(ReportOptions, "jaxtie.report", words)))


def _report(options: ReportOptions) -> int:
    check(bool(options.runs), "expected the folder of a run")
    for path in options.runs:
        folder, results = RunFolder(path), lifecycle.load(path)
        animated = [analysis.animate(results, folder.figures)] if options.animate else []
        written = lifecycle.draw(folder, results, pdf=options.pdf) + animated
        written.append(write_report(folder, results.attrs["experiment"], results.attrs["claim"]))
        if options.csv:
            written += write_frames(analysis.frames(results), folder.path / "csv")
        print(*written, sep="\n")
    return 0
