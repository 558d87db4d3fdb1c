"""The benchmark of known truth: what is declared, how prices, rules and predictions are judged, and that it can be killed."""

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from jaxtie import Optimiser, TextExperiment, Transformer, runs
from jaxtie.experiment import UserError
from jaxtie.hypothesis import benchmark, costs, sources
from jaxtie.instrument import of_benchmark
from jaxtie.runs import Outcome, Session
from jaxtie.text import engine, one_table, programs

FILE = Path(__file__).parents[1] / "experiments" / "hypothesis_known.py"
ARMS = ("tied", "tied+bias", "untied", "untied@500")


@pytest.fixture(scope="module")
def declared():
    return runs.load_benchmark(FILE)


def test_both_halves_hold_as_much_of_everything_and_share_no_source(declared):
    every = list(declared.data_sets())
    assert len({each.name for each in every}) == len(every) == 24
    halves = [{each.source for each in every if each.half == half} for half in (benchmark.CALIBRATION, benchmark.HELD_OUT)]
    assert not halves[0] & halves[1]
    for what, times in (("planted", {2, 4}), ("strength", {4}), ("width", {6})):
        assert set(Counter((each.half, getattr(each, what)) for each in every).values()) == times
    first = {(each.half, each.planted) for each in every[:8]}
    assert len(first) == 8  # whatever comes of the rest, each class is in both halves


def test_each_source_has_one_class_of_pairs_and_as_many_tokens(declared):
    for each in list(declared.data_sets())[:4]:
        source = sources.planted(each.plan)
        assert source.token_N.max() + 1 == 256
        assert [len(source.pairs[name]) > 0 for name in sources.CLASSES] == [name == each.planted for name in sources.CLASSES]


def test_what_is_trained_is_what_is_declared_at_the_data_sets_width(declared):
    experiment = runs.load_experiment(FILE)
    of_benchmark.check_benchmark(experiment)
    wide = next(each for each in declared.data_sets() if each.width == declared.widths[1])
    own = wide.experiment(experiment)
    assert own.model == Transformer(layers=1, heads=2, width=wide.width, feedforward=4 * wide.width)
    assert dataclasses.replace(own, name=experiment.name, model=experiment.model) == experiment
    with pytest.raises(UserError, match=r"also needs tied\+bias"):
        of_benchmark.check_benchmark(dataclasses.replace(experiment, arms=("tied", "untied")))
    with pytest.raises(UserError, match="eval_every = 200: expected one after 10%"):
        of_benchmark.check_benchmark(dataclasses.replace(experiment, eval_every=200))


def made_up(declared, costs_of: dict[str, float], factor: float = 4.0, noise: float = 0.001) -> costs.Outcomes:
    """Tying costs what is said of each class, more at the narrow width; a bias takes half of it off; G is a multiple."""
    rng, losses, prices = np.random.default_rng(0), [], []
    for each in declared.data_sets():
        true = costs_of[each.planted] * (2 if each.width == declared.widths[0] else 1)
        for arm, share in zip(ARMS, (1, 0.5, 0, 0.2)):
            for seed in range(8):
                loss = 3 + 0.1 * seed + true * share + noise * rng.normal()
                losses.append((each.name, arm, seed, 100, loss, loss + 0.5))
        for bias, share in (("without", 1), ("with bias", 0.5)):
            for when in ("at once", "after 300 steps"):
                rise = factor * true * share + 1e-4 * rng.random()
                prices.append((each.name, bias, when, rise - 0.01, rise, rise + 0.01, 3.0, 4.5, 2.9, 0.7))
    frames = pd.DataFrame(losses, columns=costs.LOSSES), pd.DataFrame(prices, columns=costs.PRICES)
    return costs.put_together(declared, *frames)


@pytest.fixture(scope="module")
def outcomes(declared):
    return made_up(declared, {"duplicate": 0, "skewed duplicate": 0.012, "allomorph": 0.03, "antonym": 0.06})


def test_costs_are_of_each_seed_with_itself(outcomes):
    """Seeds differ by 0.1 nat; what tying costs does not."""
    allomorph = next(each for each in outcomes.data_sets if each.planted == "allomorph")
    np.testing.assert_allclose(outcomes.cost_S(allomorph, "tied"), 0.06, atol=0.01)
    np.testing.assert_allclose(outcomes.cost_S(allomorph, "tied+bias"), 0.03, atol=0.01)


def test_regret_is_against_the_best_choice_and_two_tables_must_pay(outcomes):
    regret_3xN = costs.regrets(outcomes)
    assert np.all(regret_3xN.min(axis=0) == 0) and np.all(regret_3xN >= 0)
    by_class = {each.planted: i for i, each in enumerate(outcomes.data_sets) if each.width == outcomes.benchmark.widths[1]}
    np.testing.assert_allclose(regret_3xN[2, by_class["duplicate"]], 0.01, atol=0.002)  # as good, and a table more
    np.testing.assert_allclose(regret_3xN[:, by_class["antonym"]], [0.05, 0.02, 0], atol=0.002)
    np.testing.assert_allclose(regret_3xN[:, by_class["skewed duplicate"]], [0.006, 0, 0.004], atol=0.002)


def test_a_threshold_is_the_best_there_is_on_the_half_it_may_see(outcomes):
    """By trying very many; and the other half changes nothing."""
    regret_3xN, seen_N = costs.regrets(outcomes), outcomes.are(benchmark.CALIBRATION)
    rule = costs.rules_of(outcomes)[0]
    threshold = costs.calibrated(rule, regret_3xN, seen_N)

    def regret_at(value: float) -> float:
        return np.mean([regret_3xN[costs.chosen_by(rule, value)[i], i] for i in np.flatnonzero(seen_N)])

    tried = [regret_at(value) for value in np.linspace(-0.1, 1, 2000)]
    assert regret_at(threshold) == pytest.approx(min(tried), abs=1e-12)
    assert threshold > 0.01 and regret_at(threshold) < regret_at(0.01)  # G is four times the cost: 0.01 is too careful
    spoilt = rule._replace(scores_2xN=np.where(seen_N, rule.scores_2xN, 1e3))
    assert costs.calibrated(spoilt, regret_3xN, seen_N) == threshold


def test_a_rule_takes_a_bias_only_where_a_plain_table_is_too_dear():
    rule = costs.Rule("", np.array([[0.1, 0.3, 0.3], [0.2, 0.1, 0.4]]))
    assert costs.chosen_by(rule, 0.2).tolist() == [0, 1, 2]


def test_prices_that_go_with_costs_are_told_from_others(declared, outcomes):
    assert {each.verdict for each in costs.judge_prices(outcomes)["G goes with the cost"].values()} == {"holds"}
    backwards = outcomes._replace(prices=outcomes.prices.assign(rise=-outcomes.prices["rise"]))
    assert {each.verdict for each in costs.judge_prices(backwards)["G goes with the cost"].values()} == {"fails"}


def test_predictions_are_judged_by_class_and_as_far_as_something_is_measured(declared, outcomes):
    found = costs.judge_predictions(outcomes)
    verdicts = {sentence: {where: each.verdict for where, each in at.items()} for sentence, at in found.items()}
    assert verdicts["duplicates cost nothing, tied"] == {"": "holds"}
    assert verdicts["skewed duplicates cost tied"] == {"": "holds"}
    assert verdicts["skewed duplicates cost nothing, tied with a bias"] == {"": "fails"}  # 0.012 at the narrow width
    assert verdicts["cost tied with a bias"] == {"allomorph": "holds", "antonym": "holds"}
    assert set(verdicts["cost more, the stronger"].values()) == {"undecided"}  # no strength makes a difference
    assert set(verdicts["cost less, the wider"].values()) == {"holds"}
    narrow = outcomes._replace(data_sets=[each for each in outcomes.data_sets if each.width == declared.widths[0]])
    assert "cost less, the wider" not in costs.judge_predictions(narrow)


@pytest.mark.parametrize("number", [1, 5, 24])
def test_tables_can_be_made_at_any_time(outcomes, number):
    part = outcomes._replace(data_sets=outcomes.data_sets[:number])
    shown = {name: make(part).markdown() for name, make in costs.COST_TABLES.items()}
    held_out = [each.half for each in part.data_sets].count(benchmark.HELD_OUT)
    assert f"{number} of 24 data sets" in shown["data-sets"] and shown["data-sets"].count("| held out |") == held_out
    assert all("nan" not in table for table in shown.values())


TINY = TextExperiment(
    name="tiny",
    task="causal",
    model=Transformer(layers=1, heads=2, width=8, feedforward=16),
    deviation=0.02,
    optimiser=Optimiser(learning_rate=2e-2, half_period=100),
    arms=("tied", "tied+bias", "untied"),
    steps=100,
    seeds=(0, 1),
    record_every=10,
    eval_every=10,
    eval_batches=2,
    batch=8,
    length=16,
    words=4,
    duplicates=False,
)


@pytest.mark.slow
def test_a_benchmark_goes_on_where_it_was_stopped(declared, tmp_path, monkeypatch, capsys):
    """Stopped within a run and between two; what is finished is not touched; another source is refused."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(one_table, "ADAPTING", 10)
    monkeypatch.setattr(of_benchmark.of_price, "VALIDATION", 4)
    monkeypatch.setattr(engine, "make_mesh", lambda batch, devices: programs.make_mesh(batch, devices[:1]))
    plan = sources.Plan(pairs=(0, 0, 0, 4), near=0, plain=12, homograph=False, aligned=True)
    small = dataclasses.replace(
        declared,
        plans=tuple((name, (plan._replace(seed=i),) * 3) for i, name in enumerate(sources.CLASSES)),
        widths=(8, 16),
        sentences=600,
        length=32,
    )
    two = list(small.data_sets())[:2]
    monkeypatch.setattr(benchmark.Benchmark, "data_sets", lambda self: iter(two))
    session, out, carry_out = Session("", quiet=True), tmp_path / "out", runs.carry_out

    def interrupted_at(name: str):
        """As if a signal came as soon as a run of this name begins."""
        monkeypatch.setattr(
            runs, "carry_out", lambda own, *rest: Outcome.INTERRUPTED if own.name.endswith(name) else carry_out(own, *rest)
        )

    interrupted_at("-B")
    assert of_benchmark.carry_out_benchmark(small, TINY, out, session) is Outcome.INTERRUPTED
    assert of_benchmark.gather(small, TINY, out) is None
    interrupted_at(two[1].name)
    assert of_benchmark.carry_out_benchmark(small, TINY, out, session) is Outcome.INTERRUPTED
    first = (out / two[0].name / "price.csv").read_bytes()
    monkeypatch.setattr(runs, "carry_out", carry_out)
    assert of_benchmark.carry_out_benchmark(small, TINY, out, session) is Outcome.DONE
    assert of_benchmark.carry_out_benchmark(small, TINY, out, session) is Outcome.BEFORE
    assert (out / two[0].name / "price.csv").read_bytes() == first
    found = of_benchmark.gather(small, TINY, out)
    assert [each.name for each in found.data_sets] == [each.name for each in two]
    assert sum(map(len, found.losses.values())) == 2 * 3 * 2 and len(found.prices) == 2 * 4
    results = runs.load(out / two[1].name / "arms")
    own = results["valid_loss"].sel(arm="tied", eval_step=[10, 100]).values
    np.testing.assert_allclose(found.loss_S(two[1], "tied"), own[:, 1], rtol=1e-5)
    np.testing.assert_allclose(found.loss_S(two[1], "tied", "early_loss"), own[:, 0], rtol=1e-5)
    rate = stats.entropy(sources.planted(plan).transition_NxN[1:], axis=1) @ sources.planted(plan).share_N[1:]
    np.testing.assert_allclose(found.price_N("without", "at once", "best_loss")[0], rate, rtol=1e-5)
    other = dataclasses.replace(small, sentences=601)
    with pytest.raises(UserError, match="text of another source"):
        of_benchmark.carry_out_benchmark(other, TINY, out, session)
