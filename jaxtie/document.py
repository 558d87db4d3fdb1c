"""Runs -> the data that are committed -> the tables of a document: `python -m jaxtie.report [RUN ...]`. Imports no jax.

Each RUN, the folder of a finished run, is condensed to `experiments/data/NAME.nc`; of a benchmark's folder the two tables of
what was measured are kept, `NAME-losses.csv` and `NAME-prices.csv`, of a blind test's `NAME-kinds.csv` and
`NAME-answers.csv`, of a grid over widths `NAME-grid-losses.csv`, `NAME-grid-rates.csv` and the figure, of arms at their own
learning rates `NAME.nc`, `NAME-tuned-rates.csv` and the figure. Then every table of
the documents that stands between two lines

    <!-- table: NAME ARGUMENT ... -->
    <!-- end of table -->

is written again, from these data and from the claims in the experiment files. So each number of such a table can be checked,
and a test fails where one was changed by hand.
"""

import dataclasses
import importlib
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import pandas as pd
import xarray as xr

from jaxtie import kinds, runs
from jaxtie.exor import evidence, forces
from jaxtie.exor.comparison import correlation_table, sweep_table
from jaxtie.exor.escape import escape_table, lead_table
from jaxtie.exor.stability import stability_table
from jaxtie.exor.tables import equivalence_table, exor_final_table
from jaxtie.experiment import Declaration, UserError
from jaxtie.hypothesis import blind, calibration, costs
from jaxtie.hypothesis.benchmark import MEASURED, Benchmark
from jaxtie.hypothesis.blind import COUNTED, BlindTest
from jaxtie.results.folder import RunFolder
from jaxtie.results.kept import joined_seeds, write_kept
from jaxtie.results.plots import draw_for_document
from jaxtie.results.roles import shares_table
from jaxtie.results.similarity import similarity_table
from jaxtie.results.tables import Table

DOCUMENTS = ("README.md", "experiments/README.md", "jaxtie/hypothesis/README.md")
Kept = TypeVar("Kept")
GIVEN = {"seeds", "corpus.paths", "corpus.tfds"}  # what a command may say beside an experiment file that a run is kept for
OF_ONE_RUN: Mapping[str, Callable[[xr.Dataset], Table]] = {
    "end": exor_final_table,
    "sweep": sweep_table,
    "correlations": correlation_table,
    "equivalences": equivalence_table,
    "escapes": escape_table,
    "leads": lead_table,
    "stability": stability_table,
    "forces": forces.forces_table,
    "shares": shares_table,
    "pushes": forces.pushes_table,
    "similarities": similarity_table,
}
OF_SEVERAL_RUNS: Mapping[str, Callable[[evidence.Runs, Sequence[str]], Table]] = {
    "costs": evidence.costs_table,
    "contrasts": evidence.contrasts_table,
    "directions": evidence.directions_table,
    "widths": evidence.widths_table,
    "bodies": evidence.bodies_table,
    "left": evidence.seeds_left_table,
}
MARKED = re.compile(r"(<!-- table: ([^\n]*) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def read_data(folder: Path) -> dict[str, xr.Dataset]:
    """Condensed runs by the names of their experiments."""
    return {path.stem: xr.load_dataset(path, engine="h5netcdf") for path in sorted(folder.glob("*.nc"))}


def keep_finished(run: Path, experiments: Path) -> list[Path]:
    """Keep a run, or what a benchmark has measured so far, beside the experiment files; returns the files.

    Raises:
      UserError: see `keep_run`, `keep_benchmark`.
    """
    if any(run.glob("grid-*.csv")):
        return keep_grid(run, experiments)
    if any(run.glob("tuned-*.csv")):
        return keep_tuned(run, experiments)
    if (run / MEASURED[0]).exists():
        return keep_benchmark(run, experiments)
    return keep_blind(run, experiments) if (run / COUNTED[0]).exists() else [keep_run(run, experiments)]


def keep_benchmark(folder: Path, experiments: Path) -> list[Path]:
    """Copy a benchmark's losses and prices to the data beside the experiment files.

    Raises:
      UserError: where no experiment file declares just this benchmark: its sources, and what was trained on each.
    """
    measured = set(pd.read_csv(folder / MEASURED[0])["data_set"])
    for name, path in _declared(experiments).items():
        benchmark, experiment = runs.load_benchmark(path), runs.load_experiment(path)
        own = [each for each in benchmark.data_sets() if each.name in measured] if isinstance(benchmark, Benchmark) else []
        if len(own) < len(measured):
            continue
        for data_set in own:
            benchmark.check_source(data_set, folder / data_set.source / "text")
            _check_as_declared(folder / data_set.name / "arms", data_set.experiment(experiment), path)
        return [shutil.copy(folder / part, _benchmark_file(experiments, name, part)) for part in MEASURED]
    raise UserError(f"{folder}: no file of {experiments} declares this benchmark")


def keep_grid(folder: Path, experiments: Path) -> list[Path]:
    """Put what a grid over widths measured to the data beside the experiment files, and draw the figure of all there.

    Points and seeds that are kept and were not measured here stay.

    Raises:
      UserError: where no experiment file declares what was trained at each point, or what is kept cannot join it.
    """
    of_grid = _of_text("width_prices")
    for name, path in _declared(experiments).items():
        grid, experiment = runs.load_benchmark(path), runs.load_experiment(path)
        if not isinstance(grid, of_grid.WidthGrid):
            continue
        prices = of_grid.read_grid(grid, *(folder / part for part in of_grid.GRID_FILES))
        if others := prices.undeclared:
            raise UserError(f"{folder}: has points that {path} does not declare: {', '.join(others)}")
        own = _of_these_seeds(experiment, prices.losses["seed"], folder)
        for place, run in of_grid.measured_runs(prices, own):
            _check_as_declared(folder / place / run.folder, run.experiment, path)
        files = [_benchmark_file(experiments, name, part) for part in of_grid.GRID_FILES]
        if all(file.exists() for file in files):
            try:
                prices = of_grid.joined_grids(of_grid.read_grid(grid, *files), prices)
            except ValueError as error:
                raise UserError(f"{files[0]}: {folder} cannot join it: {error}; remove it to keep this alone") from None
        for file, measured in zip(files, (prices.losses, prices.rates), strict=True):
            measured.to_csv(file, index=False, float_format="%.6g")
        return [*files, draw_for_document(partial(of_grid.draw_grid_prices, prices), experiments / f"{path.stem}.png")]
    raise UserError(f"{folder}: no file of {experiments} declares this grid")


def keep_tuned(folder: Path, experiments: Path) -> list[Path]:
    """Keep what arms at their own learning rates came to beside the experiment files, and draw its figures there.

    Further seeds at the same rates, none of which is kept yet, join those that are; any others take their place.

    Raises:
      UserError: where no experiment file declares just this, or further seeds were run otherwise.
    """
    of_tuned = _of_text("tuned_results")
    results, tried = of_tuned.read_tuned(folder)
    name = results.attrs["experiment"]
    if (path := _declared(experiments).get(name)) is None:
        raise UserError(f"{folder}: no file of {experiments} declares {name}")
    tuning, experiment = runs.load_benchmark(path), _of_these_seeds(runs.load_experiment(path), results["seed"], folder)
    kept, rates = experiments / "data" / f"{name}.nc", _benchmark_file(experiments, name, of_tuned.TUNED_FILES[1])
    own = folder / of_tuned.TUNED_FILES[1]
    tried_elsewhere = rates.exists() and rates.read_bytes() == own.read_bytes()
    if not tried_elsewhere and not (folder / "trials").exists():
        raise UserError(f"{folder}: has no trials; report the part that tried the rates first")
    trials = [] if tried_elsewhere else tuning.trials(experiment)
    for run in (*trials, *tuning.finals(experiment, of_tuned.best_rates(tried))):
        _check_as_declared(folder / run.folder, run.experiment, path)
    results = _with_earlier_seeds(results, kept)  # raises where a rate differs: learning rates stand in it
    write_kept(results, kept)
    files = [kept, shutil.copy(own, rates)]
    pictures = of_tuned.tuned_pictures(results).values()
    return files + [draw_for_document(picture.draw, experiments / f"{path.stem}.png") for picture in pictures]


def _of_these_seeds(experiment: Declaration, measured: Iterable[int], folder: Path) -> Declaration:
    """The experiment with some of its seeds; UserError where it has not all of these."""
    seeds = tuple(seed for seed in experiment.seeds if seed in {*map(int, measured)})
    if others := sorted({*map(int, measured)} - {*seeds}):
        raise UserError(f"{folder}: has seeds that {experiment.name} does not declare: {', '.join(map(str, others))}")
    return dataclasses.replace(experiment, seeds=seeds)


def _check_as_declared(place: Path, experiment: Declaration, path: Path) -> None:
    """UserError where a folder holds another run than what an experiment file asks for, whatever the text."""
    found = RunFolder(place)
    if (config := found.config()) is None:
        raise UserError(f"{place}: expected a run here")
    different = found.differences(experiment, config)
    if different := {each for each in different if not each.startswith("corpus")}:
        raise UserError(f"{place}: differs from {path} in {', '.join(sorted(different))}")


def keep_blind(folder: Path, experiments: Path) -> list[Path]:
    """Copy what a blind test has counted to the data beside the experiment files.

    Raises:
      UserError: where no experiment file declares just these sources.
    """
    asked = set(pd.read_csv(folder / COUNTED[1])["source"])
    for name, path in _declared(experiments).items():
        test = runs.load_benchmark(path)
        own = [each for each in test.sources if each.name in asked] if isinstance(test, BlindTest) else []
        if len(own) < len(asked):
            continue
        for source in own:
            measured = folder / source.name / "pairs.nc"
            with xr.open_dataset(measured, engine="h5netcdf") as pairs:
                if pairs.attrs["source"] != test.told(source):
                    raise UserError(f"{measured}: is of another source than {source.name} in {path}")
        return [shutil.copy(folder / part, _benchmark_file(experiments, name, part)) for part in COUNTED]
    raise UserError(f"{folder}: no file of {experiments} declares this blind test")


def _benchmark_file(experiments: Path, name: str, part: str) -> Path:
    return experiments / "data" / f"{name}-{part}"


def _read_measured(experiments: Path, path: Path, parts: Sequence[str], put_together: Callable[..., Kept]) -> Kept:
    """What was kept of the benchmark, or the blind test, of a file; KeyError where nothing was."""
    name = runs.load_experiment(path).name
    files = [_benchmark_file(experiments, name, part) for part in parts]
    if not all(file.exists() for file in files):
        raise KeyError(name)
    return put_together(runs.load_benchmark(path), *map(pd.read_csv, files))


def keep_run(run: Path, experiments: Path) -> Path:
    """Condense a run to the data beside the experiment files; returns the file.

    A run of further seeds, none of which is kept yet, joins those that are; any other takes their place.

    Raises:
      UserError: where no experiment file declares just this run, whatever its seeds and its text, it is not finished, its
        kind keeps nothing, or further seeds were run otherwise than those that are kept.
    """
    results = runs.load(run)
    name = results.attrs["experiment"]
    if name not in (declared := _declared(experiments)):
        raise UserError(f"{run}: no file of {experiments} declares {name}")
    experiment, folder = runs.load_experiment(declared[name]), RunFolder(run)
    if not (config := folder.config())["finished"]:
        raise UserError(f"{run}: is not finished; the command that began it goes on")
    if different := set(folder.differences(experiment, config)) - GIVEN:
        raise UserError(f"{run}: differs from {declared[name]} in {', '.join(sorted(different))}")
    condensed = kinds.of_results(results).condensed(results, run, experiment)
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
        raise UserError(f"{path}: these seeds cannot join its own: {error}; remove it to keep these alone") from None


def _declared(experiments: Path) -> dict[str, Path]:
    """Experiment files by the names of their experiments."""
    return {runs.load_experiment(path).name: path for path in sorted(experiments.glob("*.py"))}


def tables_by_name(experiments: Path) -> dict[str, Callable[..., Table]]:
    """What a document can ask for: functions of the arguments that stand behind the name.

    Raises:
      UserError: where an experiment file fails.
    """
    known = read_data(experiments / "data")
    declared = _declared(experiments)
    claims = {name: runs.load_claims(path) for name, path in declared.items()}
    of_exor = {
        "verdicts": lambda *names: evidence.verdicts_table(known, {name: claims[name] for name in names}),
        "published": lambda name: evidence.published_table(known[name], pd.read_csv(experiments / "data" / "published.csv")),
        "pytorch": lambda name: evidence.pytorch_table(known[name], pd.read_csv(experiments / "data" / "pytorch.csv")),
        "roundings": lambda one, other: evidence.roundings_table(known, one, other),
        "since": lambda name, *steps: forces.since_table(known[name], steps),
    }
    of_one = {what: lambda name, make=make: make(known[name]) for what, make in OF_ONE_RUN.items()}
    of_several = {what: lambda *names, make=make: make(known, names) for what, make in OF_SEVERAL_RUNS.items()}
    of_text = {
        "text-verdicts": lambda *names: _of_text("claims").text_claims_table(known, {name: claims[name] for name in names}),
        "text-end": lambda name: _of_text("tables").validation_table(known[name]),
        "text-pairs": lambda name: _of_text("groups").word_pairs_table(known[name]),
    }
    of_benchmark = {
        f"benchmark-{what}": lambda name, make=make: make(
            _read_measured(experiments, declared[name], MEASURED, costs.put_together)
        )
        for what, make in costs.COST_TABLES.items()
    }
    of_blind = {
        f"blind-{what}": lambda name, make=make: make(_read_measured(experiments, declared[name], COUNTED, blind.counted))
        for what, make in blind.BLIND_TABLES.items()
    }
    of_grid = {
        f"grid-{what}": lambda name, what=what: _grid_table(experiments, declared[name], what)
        for what in ("prices", "verdicts", "rates")
    }
    of_heads = {
        f"heads-{what}": lambda name, what=what: _heads_table(experiments, known[name], what)
        for what in ("rates", "verdicts", "losses", "paces")
    }
    of_runs = of_exor | of_one | of_several | of_text
    return of_runs | of_benchmark | of_blind | of_grid | of_heads | {"lines": calibration.lines_table}


def _heads_table(experiments: Path, results: xr.Dataset, what: str) -> Table:
    of_tuned = _of_text("tuned_results")
    tried = _benchmark_file(experiments, results.attrs["experiment"], of_tuned.TUNED_FILES[1])
    return of_tuned.tuned_tables(results, pd.read_csv(tried))[what]


def _grid_table(experiments: Path, path: Path, what: str) -> Table:
    of_grid = _of_text("width_prices")
    return of_grid.GRID_TABLES[what](_read_measured(experiments, path, of_grid.GRID_FILES, of_grid.GridPrices))


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
            raise UserError(f"table {found[2]}: no data of {error}; give the folder of its run") from None
        return f"{found[1]}{table.markdown()}{found[3]}"

    return MARKED.sub(write, text)


def rewrite(documents: Sequence[Path], experiments: Path) -> None:
    """Write the tables of documents again, from the data and the claims beside the experiment files.

    Raises:
      UserError: see `rewritten`; then no document has changed.
    """
    tables = tables_by_name(experiments)
    texts = [rewritten(document.read_text(), tables) for document in documents]
    for document, text in zip(documents, texts, strict=True):
        document.write_text(text)
