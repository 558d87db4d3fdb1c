"""An experiment whose arms each have their own learning rate, carried out: rates are tried, then all seeds are trained.

Killed at any time and started again it goes on; what is finished is left as it is. A folder holds `vocab.txt`, `trials/RATE`
and `arms/RATE` (runs as any), and of all together `tuned-rates.csv`, `tuned.nc`, figures and `summary.md`.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd
import xarray as xr

from jaxtie import runs
from jaxtie.experiment import names_of
from jaxtie.results.folder import RunFolder
from jaxtie.results.plots import draw_all
from jaxtie.runs import Outcome, Session
from jaxtie.text.corpus.tokens import prepare_text
from jaxtie.text.corpus.vocabulary import vocabulary_file
from jaxtie.text.declaration import Corpus, TextExperiment
from jaxtie.text.tuned import TunedRun, Tuning
from jaxtie.text.tuned_results import TRIED_RATES, TUNED_FILES, best_rates, none_lost, together, tuned_pictures


def carry_out_tuned(
    tuning: Tuning,
    experiment: TextExperiment,
    corpus: Corpus,
    out: Path,
    session: Session,
    tried_before: pd.DataFrame | None = None,
) -> Outcome:
    """Train what is not there yet.

    Args:
      experiment: what is trained, but for its text.
      corpus: the text, whose vocabulary is trained.
      tried_before: `TRIED_RATES`, of another part; then nothing is tried here.

    Raises:
      UserError: where the folder holds runs that differ; see `Tuning.check_experiment`, too.
    """
    tuning.check_experiment(experiment)
    own = dataclasses.replace(experiment, corpus=in_vocabulary(corpus, out / "vocab.txt"))
    tried = tuning.trials(own) if tried_before is None else []
    for run in tried:  # before anything is prepared
        runs.found_in(run.experiment, RunFolder(out / run.folder), session.overwrite)
    keep_vocabulary(own.corpus, session)
    if train_all(tried, out, session) is Outcome.INTERRUPTED:
        return Outcome.INTERRUPTED
    rates = tried_rates(tried, out) if tried_before is None else tried_before
    if train_all(finals := tuning.finals(own, best_rates(rates)), out, session) is Outcome.INTERRUPTED:
        return Outcome.INTERRUPTED
    gather_tuned(experiment, rates, [out / run.folder for run in finals], out)
    return Outcome.DONE


def gather_tuned(experiment: TextExperiment, tried: pd.DataFrame, finished: Sequence[Path], out: Path) -> None:
    """All arms together, in two files and figures."""
    results_file, rates_file = (out / name for name in TUNED_FILES)
    results = together([runs.load(run) for run in finished], names_of(experiment.arms), experiment.name)
    results.to_netcdf(results_file, engine="h5netcdf")
    write_whole(rates_file, tried.to_csv(index=False, float_format="%.6g").encode())  # it says that the other one is there
    draw_all(tuned_pictures(results), out / "figures")


def in_vocabulary(corpus: Corpus, kept: Path) -> Corpus:
    """The text in a vocabulary that a folder keeps: another version might train another."""
    return dataclasses.replace(corpus, vocab=str(kept))


def keep_vocabulary(corpus: Corpus, session: Session) -> None:
    """Train the vocabulary that a corpus names, where it is not there yet."""
    if not (kept := Path(corpus.vocab)).exists():
        trained = prepare_text(dataclasses.replace(corpus, vocab=None), say=session.say).vocabulary
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, vocabulary_file(trained))


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, all or nothing."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_bytes(content)
    temporary.replace(path)


def train_all(wanted: Iterable[TunedRun], place: Path, session: Session) -> Outcome:
    """Train what is not there yet, below a folder."""
    own = dataclasses.replace(session, draws=False)
    for run in wanted:
        if runs.carry_out(run.experiment, RunFolder(place / run.folder), own) is Outcome.INTERRUPTED:
            return Outcome.INTERRUPTED
    return Outcome.DONE


def tried_rates(tried: Iterable[TunedRun], place: Path) -> pd.DataFrame:
    """What finished trials came to, `TRIED_RATES`.

    Raises:
      UserError: where an arm diverged at every rate.
    """
    return none_lost(pd.DataFrame(_tried(tried, place), columns=list(TRIED_RATES)), place)


def _tried(tried: Iterable[TunedRun], place: Path) -> Iterator[tuple[str, float, float]]:
    for run in tried:
        results: xr.Dataset = runs.load(place / run.folder)
        loss = results["valid_loss"].sel(eval_step=run.experiment.steps).squeeze("seed")
        for arm, label in zip(results["arm"].values, run.labels, strict=True):
            yield label, run.experiment.optimiser.learning_rate, float(loss.sel(arm=arm))
