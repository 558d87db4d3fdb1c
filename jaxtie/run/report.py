"""The command line of `jaxtie report`. Imports no jax."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from jaxtie.config import check
from jaxtie.options import argument, flag, parse_command, parse_path, run_command
from jaxtie.results.folder import RunFolder
from jaxtie.run import lifecycle
from jaxtie.run.page import write_report


@dataclass(frozen=True)
class ReportOptions:
    """Options of `jaxtie report`."""

    HELP: ClassVar[str] = """
usage: jaxtie report DIR ... [OPTIONS]

Draw the figures and the report of runs again, from their results alone.

  DIR ...            folders of finished runs
  --pdf              also draw each panel of the overview by itself, and every figure as PDF
"""
    runs: tuple[Path, ...] = argument(parse_path, ())
    pdf: bool = flag()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `jaxtie report`; return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: _report(parse_command(ReportOptions, "jaxtie report", words)))


def _report(options: ReportOptions) -> int:
    check(bool(options.runs), "expected the folder of a run")
    for path in options.runs:
        folder, results = RunFolder(path), lifecycle.load(path)
        written = lifecycle.draw(folder, results, pdf=options.pdf)
        written.append(write_report(folder, results))
        print(*written, sep="\n")
    return 0
