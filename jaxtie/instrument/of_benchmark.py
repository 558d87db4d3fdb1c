"""The benchmark of known truth, carried out: texts are sampled, arms and two models trained on each, the price is asked.

Killed at any time and started again it goes on; what is finished is left as it is.

A folder holds, for each source, `SOURCE/text`; for each data set, `NAME/arms`, `NAME/A`, `NAME/B` (runs as any) and
`NAME/price.csv`; of all together `losses.csv`, `prices.csv` and `summary.md`.
"""

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from jaxtie import runs
from jaxtie.experiment import UserError
from jaxtie.hypothesis import costs, sources
from jaxtie.hypothesis.benchmark import MEASURED, NOTE, Benchmark, DataSet
from jaxtie.instrument import of_price
from jaxtie.instrument.known import write_known_text
from jaxtie.models.tying import count_parameters
from jaxtie.results.folder import RunFolder
from jaxtie.runs import Outcome, Session
from jaxtie.text.declaration import HALVES, Corpus, TextExperiment
from jaxtie.text.trained import batches_of, check_knows_more_than_frequencies, load_trained, losses, unigram_loss
from jaxtie.text.two_models import NAMES

FIRST_LOOK = 0.1  # of the steps, at which a first look is taken


def check_benchmark(experiment: TextExperiment) -> None:
    """UserError where the arms that are compared are not there, or no evaluation falls on a tenth of the steps."""
    names = [arm.name for arm in experiment.arms]
    if missing := [name for name in costs.CHOICES if name not in names]:
        raise UserError(f"{experiment.name}: arms {','.join(names)}: a benchmark also needs {', '.join(missing)}")
    if round(FIRST_LOOK * experiment.steps) % experiment.eval_every:
        raise UserError(
            f"{experiment.name}: eval_every = {experiment.eval_every}: expected one after {FIRST_LOOK:.0%} of the steps"
        )


def carry_out_benchmark(benchmark: Benchmark, experiment: TextExperiment, out: Path, session: Session) -> Outcome:
    """Train and ask what is not there yet.

    Args:
      experiment: what each data set's models are; its width and its corpus are the data set's.

    Raises:
      UserError: where the folder holds other sources, or runs that differ; see `check_benchmark`, too.
    """
    check_benchmark(experiment)
    every, began = list(benchmark.data_sets()), time.monotonic()
    if not session.overwrite:
        for data_set in every:
            benchmark.check_source(data_set, _text_folder(out, data_set))
    todo = [each for each in every if session.overwrite or not _price_file(out, each).exists()]
    for done, data_set in enumerate(todo):
        left = f"; about {(time.monotonic() - began) / done * (len(todo) - done) / 60:.0f} min to go" if done else ""
        session.say(f"data set {len(every) - len(todo) + done + 1} of {len(every)}: {data_set.name}{left}")
        if _train_and_ask(benchmark, experiment, data_set, out, session) is Outcome.INTERRUPTED:
            return Outcome.INTERRUPTED
        gather(benchmark, experiment, out)
    gather(benchmark, experiment, out)
    return Outcome.DONE if todo else Outcome.BEFORE


def _price_file(out: Path, data_set: DataSet) -> Path:
    return out / data_set.name / "price.csv"


def _text_folder(out: Path, data_set: DataSet) -> Path:
    return out / data_set.source / "text"


def _train_and_ask(
    benchmark: Benchmark, experiment: TextExperiment, data_set: DataSet, out: Path, session: Session
) -> Outcome:
    source, place = sources.planted(data_set.plan), _text_folder(out, data_set)
    if session.overwrite or not benchmark.check_source(data_set, place):
        write_known_text(place, source, benchmark.sentences, benchmark.length, data_set.plan.seed)
        (place / NOTE).write_text(benchmark.told(data_set))
    corpus = Corpus(paths=(str(place / "known.txt"),), vocab=str(place / "vocab.txt"))
    folder, own = out / data_set.name, dataclasses.replace(session, draws=False)
    for name, declared in _declared_for(experiment, data_set, corpus).items():
        if runs.carry_out(declared, RunFolder(folder / name), own) is Outcome.INTERRUPTED:
            return Outcome.INTERRUPTED
    prices = _priced(folder, data_set, source, session)
    temporary = folder / ".price.csv"
    prices.to_csv(temporary, index=False)
    temporary.replace(_price_file(out, data_set))
    return Outcome.DONE


def _declared_for(experiment: TextExperiment, data_set: DataSet, corpus: Corpus) -> dict[str, TextExperiment]:
    """The arms on all of the text; A and B on a half each, with seeds that no arm has."""
    arms = dataclasses.replace(data_set.experiment(experiment), corpus=corpus)
    first = max(experiment.seeds) + 1
    two = {
        name: dataclasses.replace(arms, name=f"{arms.name}-{name}", arms=(costs.UNTIED,), seeds=(first + i,), half=HALVES[i])
        for i, name in enumerate(NAMES)
    }
    return {"arms": arms} | two


def _priced(folder: Path, data_set: DataSet, source: sources.KnownSource, session: Session) -> pd.DataFrame:
    """What the two models say that one table costs; see `costs.PRICES`."""
    models = tuple(load_trained(folder / name, session.say) for name in NAMES)
    validation = batches_of(models[0], models[0].material.text.valid, of_price.VALIDATION, seed=2)
    before = tuple(losses(each, validation) for each in models)
    for each, found in zip(models, before):
        check_knows_more_than_frequencies(each, found.mean)
    priced = of_price.price_models(models, validation, before, session.say)
    unigram = float(np.mean([unigram_loss(each, each.material.text.valid) for each in models]))
    facts = (priced.loss, unigram, sources.entropy_rate(source), _share_of_tables(models[0].params))
    rows = [(data_set.name, *key, *rise, *facts) for key, rise in priced.rises.items()]
    return pd.DataFrame(rows, columns=list(costs.PRICES))


def _share_of_tables(params: dict) -> float:
    """Of all parameters of an untied model."""
    return count_parameters(params["embedding"]) / count_parameters(params)


def _losses_of(folder: Path, data_set: DataSet, steps: int) -> Iterator[tuple]:
    """Rows of `costs.LOSSES`: at the end and after a tenth of the steps, by arm and seed."""
    results = runs.load(folder / "arms")
    for arm in results["arm"].values:
        own = results.sel(arm=arm)
        for seed in results["seed"].values:
            loss, early = (float(own["valid_loss"].sel(seed=seed, eval_step=at)) for at in (steps, round(FIRST_LOOK * steps)))
            yield data_set.name, str(arm), int(seed), int(own["parameters"]), loss, early


def gather(benchmark: Benchmark, experiment: TextExperiment, out: Path) -> costs.Outcomes | None:
    """All that is finished, in two files and a summary; None where nothing is."""
    done = [each for each in benchmark.data_sets() if _price_file(out, each).exists()]
    if not done:
        return None
    rows = [row for each in done for row in _losses_of(out / each.name, each, experiment.steps)]
    found = pd.DataFrame(rows, columns=list(costs.LOSSES))
    prices = pd.concat([pd.read_csv(_price_file(out, each)) for each in done])
    for name, frame in zip(MEASURED, (found, prices)):
        frame.to_csv(out / name, index=False, float_format="%.6g")
    return costs.put_together(benchmark, *(pd.read_csv(out / name) for name in MEASURED))
