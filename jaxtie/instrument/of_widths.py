"""The price of one table over widths and vocabularies, carried out: rates are tried, each arm is trained at its own.

Killed at any time and started again it goes on; what is finished is left as it is. A folder holds `vocab-N.txt` of each
vocabulary, and of each point `NAME/trials/RATE`, `NAME/arms/RATE` and so on (runs as any) and two files of what was measured;
of all together `grid-losses.csv`, `grid-rates.csv`, `figures/prices` and `summary.md`.
"""

import dataclasses
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd
import xarray as xr

from jaxtie import runs
from jaxtie.instrument.of_tuned import in_vocabulary, keep_vocabulary, train_all, tried_rates, write_whole
from jaxtie.results.folder import RunFolder
from jaxtie.results.plots import draw_all
from jaxtie.runs import Outcome, Session
from jaxtie.text.declaration import Corpus, TextExperiment
from jaxtie.text.tuned import TunedRun
from jaxtie.text.width_grid import GridPoint, WidthGrid
from jaxtie.text.width_prices import (
    GRID_FILES,
    GRID_LOSSES,
    GRID_RATES,
    GridPrices,
    chosen_rates,
    grid_pictures,
    read_grid,
)

LOSSES_FILE, RATES_FILE = GRID_FILES


def carry_out_widths(grid: WidthGrid, experiment: TextExperiment, corpus: Corpus, out: Path, session: Session) -> Outcome:
    """Train what is not there yet.

    Args:
      experiment: what is trained at each point, but for its sizes, its learning rate and its text.
      corpus: the text, whose vocabularies are trained.

    Raises:
      UserError: where the folder holds runs that differ; see `WidthGrid.check_experiment`, too.
    """
    grid.check_experiment(experiment)
    for point in grid.points:  # before anything is prepared
        for run in grid.trials(experiment, point, _in_vocabulary(corpus, point, out)):
            runs.found_in(run.experiment, RunFolder(out / point.name / run.folder), session.overwrite)
    todo = [point for point in grid.points if session.overwrite or not _is_finished(out / point.name, experiment)]
    began = time.monotonic()
    for done, point in enumerate(todo):
        left = f"; {(time.monotonic() - began) / 60:.0f} min so far" if done else ""
        session.say(f"point {len(grid.points) - len(todo) + done + 1} of {len(grid.points)}: {point.name}{left}")
        if _carry_out_point(grid, experiment, point, corpus, out, session) is Outcome.INTERRUPTED:
            return Outcome.INTERRUPTED
        gather_widths(grid, out)
    gather_widths(grid, out)
    return Outcome.DONE if todo else Outcome.BEFORE


def _is_finished(place: Path, experiment: TextExperiment) -> bool:
    """Whether a point has all the seeds that are asked for: with more of them it is extended, as any run."""
    measured = place / LOSSES_FILE
    return measured.exists() and {*experiment.seeds} <= {*pd.read_csv(measured)["seed"]}


def _in_vocabulary(corpus: Corpus, point: GridPoint, out: Path) -> Corpus:
    """The text in a point's vocabulary, as its runs name it."""
    own = dataclasses.replace(corpus, vocab_size=point.vocabulary)
    return in_vocabulary(own, out / f"vocab-{point.vocabulary}.txt")


def _carry_out_point(
    grid: WidthGrid, experiment: TextExperiment, point: GridPoint, corpus: Corpus, out: Path, session: Session
) -> Outcome:
    own, place = _in_vocabulary(corpus, point, out), out / point.name
    keep_vocabulary(own, session)
    tried = list(grid.trials(experiment, point, own))
    if train_all(tried, place, session) is Outcome.INTERRUPTED:
        return Outcome.INTERRUPTED
    rates = tried_rates(tried, place).assign(**point._asdict())[list(GRID_RATES)]
    finals = list(grid.finals(experiment, point, own, chosen_rates(rates, point)))
    if train_all(finals, place, session) is Outcome.INTERRUPTED:
        return Outcome.INTERRUPTED
    losses = pd.DataFrame(_rows_of_runs(finals, place, point), columns=list(GRID_LOSSES))
    for name, frame in ((RATES_FILE, rates), (LOSSES_FILE, losses)):  # the last one says that the point is finished
        write_whole(place / name, frame.to_csv(index=False, float_format="%.6g").encode())
    return Outcome.DONE


def _rows_of_runs(finished: Iterable[TunedRun], place: Path, point: GridPoint) -> Iterator[tuple]:
    """Rows of `GRID_LOSSES`, of runs that are finished; one that diverged has no loss."""
    for run in finished:
        results: xr.Dataset = runs.load(place / run.folder)
        baselines = tuple(float(results[f"{name}_loss"]) for name in ("unigram", "bigram"))
        rate, steps = run.experiment.optimiser.learning_rate, run.experiment.steps
        for arm, label in zip(results["arm"].values, run.labels):
            own = results.sel(arm=arm)
            for seed in results["seed"].values:
                loss = float(own["valid_loss"].sel(seed=seed, eval_step=steps))
                yield *point, label, int(seed), rate, int(own["parameters"]), steps, loss, *baselines


def gather_widths(grid: WidthGrid, out: Path) -> GridPrices | None:
    """All points that are finished, in two files and a figure; None where none is."""
    places = [out / point.name for point in grid.points if (out / point.name / LOSSES_FILE).exists()]
    if not places:
        return None
    for name in GRID_FILES:
        pd.concat([pd.read_csv(place / name) for place in places]).to_csv(out / name, index=False, float_format="%.6g")
    prices = read_grid(grid, *(out / name for name in GRID_FILES))
    draw_all(grid_pictures(prices), out / "figures")
    return prices
