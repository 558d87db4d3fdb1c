"""The command line of `jaxtie report`; committed data and the documents' tables. Imports no jax.

`jaxtie report --commit [RUN ...]` condenses each RUN, the folder of a finished run, to
`experiments/data/NAME.nc`. Then it writes each table of the documents, between two lines

    <!-- table: NAME ARGUMENT ... -->
    <!-- end of table -->

from these data and the claims in the experiment files. A test fails if a table was changed by hand.
"""

import dataclasses
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import pandas as pd
import tyro
import xarray as xr

from jaxtie.config import UserError, check, natural
from jaxtie.exor import plots
from jaxtie.exor.tables import decay_table, models_table
from jaxtie.options import Flag, option, parse_command, parse_path, run_command
from jaxtie.results import analysis
from jaxtie.results.claims import claims_table
from jaxtie.results.committed import join_seeds, write_committed
from jaxtie.results.folder import RunFolder
from jaxtie.results.plots import draw_for_document, write_frames
from jaxtie.results.tables import Table
from jaxtie.run import lifecycle
from jaxtie.run.experiment_files import load_claims, load_experiment
from jaxtie.run.page import write_report
from jaxtie.run.pages import MODELS, PRICES, equal_sizes_table, result_pages
from jaxtie.text.gap_tables import draw_gaps

EXPERIMENTS = Path("experiments")
DOCUMENTS = ("README.md", "experiments/README.md")
# Fields of an experiment that the command of a committed run may change.
MAY_DIFFER = {"seeds", "corpus.paths", "corpus.tfds"}
MARKED = re.compile(r"(<!-- table: ([^\n]*) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def read_data(folder: Path) -> dict[str, xr.Dataset]:
    """Return the committed results by the names of their experiments."""
    paths = sorted(folder.glob("*.nc"))
    return {path.stem: xr.load_dataset(path, engine="h5netcdf") for path in paths}


def keep_run(run: Path, experiments: Path) -> Path:
    """Condense a run to a file of committed data and return the file.

    A run whose seeds are all new joins the committed ones; any other run replaces them.

    Raises:
      UserError: if the run is not finished, no experiment file declares it (apart from seeds and
        text), its task commits nothing, or its seeds were run otherwise than the committed ones.
    """
    results, folder = lifecycle.load(run), RunFolder(run)
    name = results.attrs["experiment"]
    if name not in (files := _files_by_name(experiments)):
        raise UserError(f"{run}: no file of {experiments} declares {name}")
    if not (config := folder.config()) or not config.get("finished"):
        raise UserError(f"{run}: is not finished; the command that began it goes on")
    if different := {*folder.differences(load_experiment(files[name]), config)} - MAY_DIFFER:
        raise UserError(f"{run}: differs from {files[name]} in {', '.join(sorted(different))}")
    condensed = analysis.commit(results, run)
    path = experiments / "data" / f"{name}.nc"
    path.parent.mkdir(exist_ok=True)
    write_committed(_with_committed_seeds(condensed, path), path)
    return path


def _with_committed_seeds(condensed: xr.Dataset, path: Path) -> xr.Dataset:
    """Join the committed seeds of a file with those of a run, unless the run has any of them."""
    if not path.exists():
        return condensed
    committed_ones = xr.load_dataset(path, engine="h5netcdf")
    if {*committed_ones["seed"].values} & {*condensed["seed"].values}:
        return condensed
    try:
        return join_seeds(committed_ones, condensed)
    except ValueError as error:
        raise UserError(
            f"{path}: these seeds cannot join its own: {error}; remove it to keep these alone"
        ) from None


def _files_by_name(experiments: Path) -> dict[str, Path]:
    """Return the experiment files by the names of their experiments."""
    return {load_experiment(path).name: path for path in sorted(experiments.glob("*.py"))}


def tables_by_name(experiments: Path) -> dict[str, Callable[..., Table]]:
    """Return the tables that documents can ask for, as functions of the arguments after the name.

    Raises:
      UserError: if an experiment file fails.
    """
    runs, files = read_data(experiments / "data"), _files_by_name(experiments)

    def claims(*chosen: str) -> Table:
        """Show chosen claims: NAME:NUMBER,NUMBER ..."""
        numbers = {}
        for each in chosen:
            name, _, own = each.partition(":")
            numbers[name] = {natural(number) for number in own.split(",")}
        declared = {name: load_claims(files[name]) for name in numbers}
        return claims_table("Claims, with verdicts", runs, declared, numbers)

    def conclusion(name: str) -> Table:
        """Show the conclusion of a committed run."""
        found = analysis.conclude(runs[name])
        lines = "\n".join(f"- {line}" for line in found.lines())
        return dataclasses.replace(found.table, note=f"{found.table.note}\n\n{lines}")

    return {
        "claims": claims,
        "conclusion": conclusion,
        "distances": lambda name: decay_table(runs[name]),
        "models": lambda: models_table(runs, MODELS),
        "text": lambda: equal_sizes_table(pd.read_csv(experiments / "data" / PRICES)),
    }


def rewritten(text: str, tables: Mapping[str, Callable[..., Table]]) -> str:
    """Return a document with its tables written again.

    Raises:
      UserError: if it asks for an unknown table, or for data that are not committed.
    """

    def write(found: re.Match) -> str:
        name, *arguments = found[2].split()
        if name not in tables:
            raise UserError(f"table {name}: expected one of {', '.join(tables)}")
        try:
            table = tables[name](*arguments)
        except KeyError as error:
            raise UserError(
                f"table {found[2]}: no committed results of {error}; run jaxtie report --commit DIR"
            ) from None
        return f"{found[1]}{table.markdown()}{found[3]}"

    return MARKED.sub(write, text)


def draw_figures(experiments: Path) -> list[Path]:
    """Draw the figures of several runs from the committed data; return the files."""
    drawn = plots.draw_targets_only(read_data(experiments / "data"), experiments)
    if (gaps := experiments / "data" / "tying-gap-on-text.csv").exists():
        draw = partial(draw_gaps, pd.read_csv(gaps))
        drawn.append(draw_for_document(draw, experiments / "tying_gap_on_text.png"))
    return drawn


def rewrite(documents: Sequence[Path], experiments: Path) -> None:
    """Write the tables of documents, and the pages of results, again.

    Raises:
      UserError: see `rewritten`; then nothing has changed.
    """
    tables = tables_by_name(experiments)
    texts = {document: rewritten(document.read_text(), tables) for document in documents}
    folder = experiments / "results"
    folder.mkdir(exist_ok=True)
    for name, text in result_pages(experiments, read_data(experiments / "data")).items():
        texts[folder / name] = text
    for path, text in texts.items():
        path.write_text(text)


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
    commit: Flag = False
    """Instead condense the runs to experiments/data and write the documents' tables again. Start it
    in the root of the repository."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `jaxtie report`; return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: _report(parse_command(ReportOptions, "jaxtie.report", words)))


def _report(options: ReportOptions) -> int:
    check(bool(options.runs) or options.commit, "expected the folder of a run, or --commit")
    draws = options.pdf or options.csv or options.animate
    check(not (options.commit and draws), "--commit: expected without --pdf, --csv and --animate")
    written = _commit(options.runs) if options.commit else _draw_again(options)
    print(*written, sep="\n")
    return 0


def _draw_again(options: ReportOptions) -> list[Path]:
    written = []
    for path in options.runs:
        folder, results = RunFolder(path), lifecycle.load(path)
        animated = [analysis.animate(results, folder.figures)] if options.animate else []
        written += lifecycle.draw(folder, results, pdf=options.pdf) + animated
        written.append(write_report(folder, results.attrs["experiment"], results.attrs["claim"]))
        if options.csv:
            written += write_frames(analysis.frames(results), folder.path / "csv")
    return written


def _commit(runs: Sequence[Path]) -> list[Path]:
    documents = [Path(name) for name in DOCUMENTS]
    for document in documents:
        if not document.is_file():
            raise UserError(f"{document}: not found; start it where the repository is")
    data = [keep_run(run, EXPERIMENTS) for run in runs]
    figures = draw_figures(EXPERIMENTS)  # pages link to them
    rewrite(documents, EXPERIMENTS)
    return [*data, *documents, EXPERIMENTS / "results", *figures]
