"""Commit runs: condense them, then write the documents' tables and the pages of results again.

    python experiments/lab/commit.py [RUN ...]    # the folders of finished runs

Each RUN is condensed to `experiments/data/NAME.nc`. Each table of the documents stands between two
lines

    <!-- table: NAME ARGUMENT ... -->
    <!-- end of table -->

and is written from these data and the claims in the experiment files. A test fails if a table was
changed by hand. Start it in the root of the repository.
"""

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import never_targets
import pandas as pd
import xarray as xr
from condense import condense, join_seeds, write_committed
from matplotlib.figure import Figure
from models import models_table
from pages import MODELS, PRICES, answer_table, equal_sizes_table, result_pages
from roles import draw_shares
from tying_gap import draw_gaps

from jaxtie.config import UserError, natural
from jaxtie.exor.tables import distances_table
from jaxtie.options import run_command
from jaxtie.results import analysis
from jaxtie.results.claims import claims_table
from jaxtie.results.folder import RunFolder
from jaxtie.results.plots import subplots
from jaxtie.results.tables import Table
from jaxtie.run import lifecycle
from jaxtie.run.command import MAY_DIFFER
from jaxtie.run.experiment_files import load_experiment, load_experiment_and_claims

EXPERIMENTS = Path("experiments")
DOCUMENTS = ("README.md", "experiments/README.md")
MARKED = re.compile(r"(<!-- table: ([^\n]*) -->\n).*?(<!-- end of table -->)", re.DOTALL)


class Committed(Mapping[str, xr.Dataset]):
    """Committed results by the names of their experiments, each read when it is needed."""

    def __init__(self, folder: Path):
        self._paths = {path.stem: path for path in sorted(folder.glob("*.nc"))}
        self._known: dict[str, xr.Dataset] = {}

    def __getitem__(self, name: str) -> xr.Dataset:
        if name not in self._known:
            self._known[name] = xr.load_dataset(self._paths[name], engine="h5netcdf")
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


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
    condensed = condense(results, run)
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
    runs, files = Committed(experiments / "data"), _files_by_name(experiments)

    def claims(*chosen: str) -> Table:
        """Show chosen claims: NAME:NUMBER,NUMBER ..."""
        numbers = {}
        for each in chosen:
            name, _, own = each.partition(":")
            numbers[name] = {natural(number) for number in own.split(",")}
        declared = {name: load_experiment_and_claims(files[name])[1] for name in numbers}
        table = claims_table("Claims, with verdicts", runs, declared, numbers)
        kept = [i for i, label in enumerate(table.header) if label != "quantity"]
        header, *rows = (tuple(row[i] for i in kept) for row in (table.header, *table.rows))
        return dataclasses.replace(table, header=header, rows=rows)

    def conclusion(name: str) -> Table:
        """Show the conclusion of a committed run."""
        found = analysis.conclude(runs[name])
        lines = "\n".join(f"- {line}" for line in found.lines())
        return dataclasses.replace(found.table, note=f"{found.table.note}\n\n{lines}")

    prices = partial(pd.read_csv, experiments / "data" / PRICES)
    return {
        "answer": lambda *names: answer_table(runs, prices(), names),
        "claims": claims,
        "conclusion": conclusion,
        "distances": lambda name: distances_table(runs[name]),
        "models": lambda: models_table(runs, MODELS),
        "text": lambda: equal_sizes_table(prices()),
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
                f"table {found[2]}: no committed results of {error}; commit a run of it"
            ) from None
        return f"{found[1]}{table.markdown()}{found[3]}"

    return MARKED.sub(write, text)


def draw_roles(results: xr.Dataset) -> Figure:
    """Draw the output role's share of each row of the tied table."""
    figure, grid = subplots(1, 1, (5.8, 4.2))
    draw_shares(results, "tied", grid.flat[0])
    return figure


def draw_figures(experiments: Path) -> list[Path]:
    """Draw the figures of several runs from the committed data; return the files."""
    runs = Committed(experiments / "data")
    drawn = never_targets.draw_targets_only(runs, experiments)
    if "gradient-roles" in runs:
        draw = partial(draw_roles, runs["gradient-roles"])
        drawn.append(never_targets.draw_for_document(draw, experiments / "gradient_roles.png"))
    if (gaps := experiments / "data" / "tying-gap-on-text.csv").exists():
        draw = partial(draw_gaps, pd.read_csv(gaps))
        drawn.append(never_targets.draw_for_document(draw, experiments / "tying_gap_on_text.png"))
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
    for name, text in result_pages(experiments, Committed(experiments / "data")).items():
        texts[folder / name] = text
    for path, text in texts.items():
        path.write_text(text)


def _commit(runs: Sequence[Path]) -> int:
    documents = [Path(name) for name in DOCUMENTS]
    for document in documents:
        if not document.is_file():
            raise UserError(f"{document}: not found; start it where the repository is")
    data = [keep_run(run, EXPERIMENTS) for run in runs]
    figures = draw_figures(EXPERIMENTS)  # pages link to them
    rewrite(documents, EXPERIMENTS)
    print(*data, *documents, EXPERIMENTS / "results", *figures, sep="\n")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Commit the runs that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    runs = parser.parse_args(arguments).runs
    return run_command(lambda: _commit(runs))


if __name__ == "__main__":
    sys.exit(main())
