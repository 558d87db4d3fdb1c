"""Arms at their own learning rates: which runs follow, how rates are chosen, and that the whole can be killed and kept."""

import dataclasses
from pathlib import Path

import corpora
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from jaxtie import document, runs
from jaxtie.experiment import UserError, names_of
from jaxtie.instrument import command
from jaxtie.results import plots
from jaxtie.results.kept import write_kept
from jaxtie.runs import Outcome
from jaxtie.text import tuned_results
from jaxtie.text.heads import compares_heads
from jaxtie.text.tuned import Tuning, finals, trial

FILE = Path(__file__).parents[1] / "experiments" / "tuned_heads.py"


@pytest.fixture(scope="module")
def declared():
    return runs.load_experiment(FILE)


def test_every_remedy_stands_with_and_without_a_bias_and_has_three_rates_or_more(declared):
    tuning = runs.load_benchmark(FILE)
    tuning.check_experiment(declared)
    plain, biased = names_of(declared.arms)[:8], names_of(declared.arms)[8:]
    assert [f"{arm}+bias" for arm in plain] == biased
    before = names_of(runs.load_experiment(FILE.with_name("head_convergence.py")).arms)
    assert plain == [*before, "tied+bert-head"]
    assert len(tuning.rates) >= 3 and len(declared.seeds) == 8
    with pytest.raises(UserError, match="trial_seed = 7"):
        dataclasses.replace(tuning, trial_seed=7).check_experiment(declared)
    with pytest.raises(UserError, match=r"rates = \(0.2, 0.1\): expected them to ascend"):
        Tuning((0.2, 0.1), 100)


def test_a_trial_takes_all_steps_on_what_no_verdict_sees(declared):
    run = trial(declared, 4e-3, 100, names_of(declared.arms))
    own = run.experiment
    assert (run.folder, own.seeds, own.valid_half) == ("trials/0.004", (100,), "first")
    assert own.steps == own.optimiser.half_period == declared.steps
    assert own.optimiser.learning_rate / own.optimiser.eta_min == pytest.approx(100)
    assert list(run.labels) == names_of(own.arms) == names_of(declared.arms)


def test_arms_of_one_rate_are_trained_together_on_what_verdicts_see(declared):
    own = dataclasses.replace(declared, arms=("tied", "untied", f"untied@{declared.steps // 2}"))
    labels = ("one", "two", "later")
    found = list(finals(own, {"one": 0.002, "two": 0.001, "later": 0.002}, labels))
    assert [(run.folder, run.labels) for run in found] == [("arms/0.001", ("two",)), ("arms/0.002", ("one", "later"))]
    assert names_of(found[1].experiment.arms) == ["tied", f"untied@{declared.steps // 2}"]
    for run in found:
        assert run.experiment.valid_half == "second" and run.experiment.seeds == declared.seeds
        assert run.experiment.optimiser.half_period == run.experiment.steps == declared.steps


TRIED = pd.DataFrame(
    [("a", 0.1, 3.0), ("a", 0.2, 2.0), ("a", 0.4, np.nan), ("b", 0.1, 1.0), ("b", 0.2, 1.0), ("b", 0.4, 2.0)],
    columns=tuned_results.TRIED_RATES,
)


def test_the_rate_chosen_is_of_the_lowest_loss_and_none_that_diverged():
    assert tuned_results.best_rates(TRIED) == {"a": 0.2, "b": 0.1}


def test_a_rate_at_the_end_of_what_was_tried_has_a_star():
    rows = tuned_results.tried_table(TRIED).rows
    assert rows == [("a", "3.000", "2.000", "diverged", "0.2, +1.000"), ("b", "1.000", "1.000", "2.000", "0.1*, +0.000")]


def test_rates_that_another_part_tried_are_taken_only_of_these_arms_at_these_rates(tmp_path):
    file, tuning = tmp_path / "tuned-rates.csv", Tuning((0.1, 0.2, 0.4), 100)
    TRIED.to_csv(file, index=False)
    pd.testing.assert_frame_equal(tuned_results.read_tried(file, tuning, ("a", "b")), TRIED)
    for arms, rates in ((("a",), tuning.rates), (("a", "b", "c"), tuning.rates), (("a", "b"), (0.1, 0.2))):
        with pytest.raises(UserError, match="expected a loss of each arm"):
            tuned_results.read_tried(file, Tuning(rates, 100), arms)
    words = TRIED.assign(loss="low").to_csv(index=False)
    for content in ("", "arm,loss\na,1\n", words):
        file.write_text(content)
        with pytest.raises(UserError, match=r"tuned-rates\.csv: "):
            tuned_results.read_tried(file, tuning, ("a", "b"))
    TRIED.assign(loss=TRIED["loss"].where(TRIED["arm"] == "b")).to_csv(file, index=False)
    with pytest.raises(UserError, match="a diverged at every learning rate"):
        tuned_results.read_tried(file, tuning, ("a", "b"))
    with pytest.raises(UserError, match="cannot be read"):
        tuned_results.read_tried(tmp_path / "none.csv", tuning, ("a", "b"))


TINY = """import dataclasses, runpy
from jaxtie import Optimiser, Transformer
from jaxtie.text.tuned import Tuning
full = runpy.run_path({path!r})
experiment = dataclasses.replace(
    full["experiment"], model=Transformer(layers=1, heads=2, width=8, feedforward=16), batch=8, length=16, steps=40,
    arms=("tied", "untied", "tied+projection", "tied+projection+bias"), seeds=(0, 1), record_every=10, eval_every=10,
    eval_batches=2, words=8, optimiser=Optimiser(learning_rate=1e-2, half_period=40),
    corpus=dataclasses.replace(full["experiment"].corpus, vocab_size=110),
)
benchmark = Tuning((1e-2, 3e-2), 100)
"""


@pytest.mark.slow
def test_it_goes_on_where_it_was_stopped_and_is_kept(tmp_path, monkeypatch, capsys):
    """One command; stopped after the first trial; finished, a document's data, tables and figure are made of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(plots, "save", lambda figure, folder, name: folder / f"{name}.png")
    corpora.write_corpus(tmp_path / "books", files=12)
    experiments, out, carry_out = tmp_path / "experiments", tmp_path / "out", runs.carry_out
    (experiments / "data").mkdir(parents=True)
    (experiments / "tiny.py").write_text(TINY.format(path=str(FILE)))
    options = [str(experiments / "tiny.py"), "--text", str(tmp_path / "books"), "--out", str(out), "--quiet"]
    asked = []

    def interrupted_at_second(own, folder, session):
        asked.append(folder.path)
        return Outcome.INTERRUPTED if len(asked) == 2 else carry_out(own, folder, session)

    monkeypatch.setattr(runs, "carry_out", interrupted_at_second)
    assert command.main_hypothesis(options) == 130
    assert not list(out.glob("tuned*")) and "the same command goes on" in capsys.readouterr().err
    first = (asked[0] / "results.nc").stat().st_mtime_ns
    monkeypatch.setattr(runs, "carry_out", carry_out)
    assert command.main_hypothesis(options) == 0
    assert (asked[0] / "results.nc").stat().st_mtime_ns == first
    assert "Learning rates" in capsys.readouterr().out and "Verdicts" in (out / "summary.md").read_text()
    results, tried = tuned_results.read_tuned(out)
    assert compares_heads(results) and len(tried) == 4 * 2
    chosen = tuned_results.best_rates(tried)
    for arm, rate in chosen.items():
        own = runs.load(out / "arms" / f"{rate:g}").sel(arm=arm)
        np.testing.assert_array_equal(results["valid_loss"].sel(arm=arm), own["valid_loss"])
        assert float(results["learning_rate"].sel(arm=arm)) == pytest.approx(rate)
    kept = document.keep_finished(out, experiments)
    assert [path.name for path in kept] == ["tuned-heads.nc", "tuned-heads-tuned-rates.csv", "tiny.png"]
    text = "".join(
        f"<!-- table: heads-{what} tuned-heads -->\n<!-- end of table -->\n" for what in ("rates", "verdicts", "losses")
    )
    written = document.rewritten(text, document.tables_by_name(experiments))
    assert "| tied+projection+bias |" in written and "BERT" not in written
    write_kept(results.sel(seed=[1]), kept[0])
    own = tmp_path / "on another machine"
    part = "--seeds", "0-0", "--rates", str(kept[1])
    assert command.main_hypothesis([*options[:3], *part, "--out", str(own), "--quiet"]) == 0
    assert not (own / "trials").exists() and (own / tuned_results.TUNED_FILES[1]).read_bytes() == kept[1].read_bytes()
    rates = kept[1].rename(tmp_path / "rates.csv")
    with pytest.raises(UserError, match="has no trials; report the part that tried the rates first"):
        document.keep_finished(own, experiments)
    rates.rename(kept[1])
    assert document.keep_finished(own, experiments) == kept
    joined = xr.load_dataset(kept[0], engine="h5netcdf")
    assert joined["seed"].values.tolist() == [0, 1]
    np.testing.assert_allclose(joined["valid_loss"], results["valid_loss"].transpose(*joined["valid_loss"].dims), rtol=1e-4)
    other = xr.load_dataset(out / tuned_results.TUNED_FILES[0], engine="h5netcdf").sel(seed=[0])
    other.assign(learning_rate=2 * other["learning_rate"]).to_netcdf(own / tuned_results.TUNED_FILES[0], engine="h5netcdf")
    write_kept(results.sel(seed=[1]), kept[0])
    with pytest.raises(UserError, match="these seeds cannot join its own"):
        document.keep_finished(own, experiments)
    (experiments / "tiny.py").write_text(TINY.format(path=str(FILE)).replace("batch=8", "batch=4"))
    with pytest.raises(UserError, match=r"differs from .* in batch"):
        document.keep_finished(out, experiments)
    assert command.main_hypothesis(options) == 2 and "differs in batch" in capsys.readouterr().err


def test_an_arm_that_diverges_at_every_rate_is_one_line(monkeypatch):
    from jaxtie.instrument import of_tuned

    monkeypatch.setattr(of_tuned, "_tried", lambda tried, place: [("a", 0.1, np.nan), ("b", 0.1, 1.0)])
    with pytest.raises(UserError, match="a diverged at every learning rate; declare lower ones"):
        of_tuned.tried_rates([], Path("out"))
