"""Runs -> the data that are committed -> the tables of a document: `python -m jaxtie.report [RUN
...]`. Imports no jax.

Each RUN, the folder of a finished run, is condensed to `experiments/data/NAME.nc`. Then every table
of the documents that stands between two lines

    <!-- table: NAME ARGUMENT ... -->
    <!-- end of table -->

is written again, from these data and from the claims in the experiment files. So each number of
such a table can be checked, and a test fails where one was changed by hand.
"""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pandas as pd
import xarray as xr

from jaxtie.config import UserError
from jaxtie.exor import committed, forces, never_targets
from jaxtie.exor.comparison import correlation_table, sweep_table
from jaxtie.exor.plateau import escape_table
from jaxtie.exor.tables import equivalence_table, exor_final_table
from jaxtie.results import analysis
from jaxtie.results.committed import joined_seeds, write_kept
from jaxtie.results.folder import RunFolder
from jaxtie.results.gradient_by_role import shares_table
from jaxtie.results.similarity import similarity_table
from jaxtie.results.tables import Table
from jaxtie.run import lifecycle

DOCUMENTS = ("README.md", "experiments/README.md", "jaxtie/advise/README.md")
# what a command may say beside an experiment file that a run is kept for
GIVEN = {
    "seeds",
    "corpus.paths",
    "corpus.tfds",
}
OF_ONE_RUN: Mapping[str, Callable[[xr.Dataset], Table]] = {
    "end": exor_final_table,
    "sweep": sweep_table,
    "correlations": correlation_table,
    "equivalences": equivalence_table,
    "escapes": escape_table,
    "forces": forces.forces_table,
    "shares": shares_table,
    "pushes": forces.pushes_table,
    "similarities": similarity_table,
}
OF_SEVERAL_RUNS: Mapping[str, Callable[[committed.Runs, Sequence[str]], Table]] = {
    "costs": committed.costs_table,
    "contrasts": committed.contrasts_table,
    "widths": committed.widths_table,
    "bodies": committed.bodies_table,
    "left": committed.seeds_left_table,
    "stuck": never_targets.stuck_table,
}
MARKED = re.compile(r"(<!-- table: ([^\n]*) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def read_data(folder: Path) -> dict[str, xr.Dataset]:
    """Condensed runs by the names of their experiments."""
    return {
        path.stem: xr.load_dataset(path, engine="h5netcdf") for path in sorted(folder.glob("*.nc"))
    }


def keep_run(run: Path, experiments: Path) -> Path:
    """Condense a run to the data beside the experiment files; returns the file.

    A run of further seeds, none of which is kept yet, joins those that are; any other takes their
    place.

    Raises:
      UserError: where no experiment file declares just this run, whatever its seeds and its text,
        it is not finished, its kind keeps nothing, or further seeds were run otherwise than those
        that are kept.
    """
    results = lifecycle.load(run)
    name = results.attrs["experiment"]
    if name not in (declared := _declared(experiments)):
        raise UserError(f"{run}: no file of {experiments} declares {name}")
    experiment, folder = lifecycle.load_experiment(declared[name]), RunFolder(run)
    if not (config := folder.config()) or not config["finished"]:
        raise UserError(f"{run}: is not finished; the command that began it goes on")
    if different := set(folder.differences(experiment, config)) - GIVEN:
        raise UserError(f"{run}: differs from {declared[name]} in {', '.join(sorted(different))}")
    condensed = analysis.commit(results, run)
    path = experiments / "data" / f"{name}.nc"
    path.parent.mkdir(exist_ok=True)
    write_kept(_with_earlier_seeds(condensed, path), path)
    return path


def _with_earlier_seeds(condensed: xr.Dataset, path: Path) -> xr.Dataset:
    """With the seeds that are kept in a file, where a run has none of them."""
    if not path.exists():
        return condensed
    kept = xr.load_dataset(path, engine="h5netcdf")
    if {*kept["seed"].values} & {*condensed["seed"].values}:
        return condensed
    try:
        return joined_seeds(kept, condensed)
    except ValueError as error:
        raise UserError(
            f"{path}: these seeds cannot join its own: {error}; remove it to keep these alone"
        ) from None


def _declared(experiments: Path) -> dict[str, Path]:
    """Experiment files by the names of their experiments."""
    return {lifecycle.load_experiment(path).name: path for path in sorted(experiments.glob("*.py"))}


def tables_by_name(experiments: Path) -> dict[str, Callable[..., Table]]:
    """What a document can ask for: functions of the arguments that stand behind the name.

    Raises:
      UserError: where an experiment file fails.
    """
    known = read_data(experiments / "data")
    declared = _declared(experiments)
    claims = {name: lifecycle.load_claims(path) for name, path in declared.items()}
    of_exor: dict[str, Callable[..., Table]] = {
        "verdicts": lambda *names: committed.verdicts_table(
            known, {name: claims[name] for name in names}
        ),
        "published": lambda name: committed.published_table(
            known[name], pd.read_csv(experiments / "data" / "published.csv")
        ),
        "pytorch": lambda name: committed.pytorch_table(
            known[name], pd.read_csv(experiments / "data" / "pytorch.csv")
        ),
        "since": lambda name, *steps: forces.since_table(known[name], steps),
        "gaps": lambda: never_targets.gaps_table(known),
    }
    of_one = {what: lambda name, make=make: make(known[name]) for what, make in OF_ONE_RUN.items()}
    of_several = {
        what: lambda *names, make=make: make(known, names) for what, make in OF_SEVERAL_RUNS.items()
    }
    of_text = {
        "text-verdicts": lambda *names: _of_text("claims").text_claims_table(
            known, {name: claims[name] for name in names}
        ),
        "text-end": lambda name: _of_text("tables").validation_table(known[name]),
        "text-pairs": lambda name: _of_text("groups").word_pairs_table(known[name]),
    }
    return of_exor | of_one | of_several | of_text


def _of_text(module: str) -> ModuleType:
    """A module of the room of text, which another house may lack."""
    return importlib.import_module(f"jaxtie.text.{module}")


def rewritten(text: str, tables: Mapping[str, Callable[..., Table]]) -> str:
    """A document with its tables written again.

    Raises:
      UserError: where it asks for a table that there is not, or for data that are not there.
    """

    def write(found: re.Match) -> str:
        name, *arguments = found[2].split()
        if name not in tables:
            raise UserError(f"table {name}: expected one of {', '.join(tables)}")
        try:
            table = tables[name](*arguments)
        except KeyError as error:
            raise UserError(
                f"table {found[2]}: no data of {error}; give the folder of its run"
            ) from None
        return f"{found[1]}{table.markdown()}{found[3]}"

    return MARKED.sub(write, text)


def draw_figures(experiments: Path) -> list[Path]:
    """Draw the figures over several runs from the data beside the experiment files; returns the
    files.
    """
    return never_targets.draw_never_targets(read_data(experiments / "data"), experiments)


def rewrite(documents: Sequence[Path], experiments: Path) -> None:
    """Write the tables of documents again, from the data and the claims beside the experiment
    files.

    Raises:
      UserError: see `rewritten`; then no document has changed.
    """
    tables = tables_by_name(experiments)
    texts = [rewritten(document.read_text(), tables) for document in documents]
    for document, text in zip(documents, texts, strict=True):
        document.write_text(text)
