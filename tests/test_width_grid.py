"""The price of one table over widths: which runs follow, how they are judged, and that the whole can be killed."""

import dataclasses
from pathlib import Path

import corpora
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from jaxtie import Corpus, Transformer, document, runs
from jaxtie.experiment import UserError, names_of
from jaxtie.instrument import command
from jaxtie.models.sizes import causal_parameters
from jaxtie.models.tying import count_parameters
from jaxtie.results import plots
from jaxtie.runs import Outcome
from jaxtie.text import width_grid, width_prices
from jaxtie.text.width_grid import ALL_ARMS, GridPoint

FILE = Path(__file__).parents[1] / "experiments" / "price_of_tying.py"
TEXT = Corpus(paths=("books",), vocab="vocab.txt")


@pytest.fixture(scope="module")
def grid() -> width_grid.WidthGrid:
    return runs.load_benchmark(FILE)


@pytest.fixture(scope="module")
def declared():
    return runs.load_experiment(FILE)


def test_the_grid_is_the_one_that_was_asked_for(grid, declared):
    grid.check_experiment(declared)
    assert [tuple(point) for point in grid.points] == [(v, d) for v in (2_048, 8_192) for d in (32, 64, 128, 256)]
    assert names_of(declared.arms) == ["tied", "tied+bias", "untied", f"untied@{declared.steps // 2}"]
    assert (len(declared.seeds), min(map(len, grid.rates.values())), grid.margin) == (5, 3, 0.01)
    assert {claim.arm for claim in grid.claims} == {*ALL_ARMS} - {"untied"}
    assert all(claim.low < claim.high for claim in grid.claims)
    with pytest.raises(UserError, match="trial_seed = 4"):
        dataclasses.replace(grid, trial_seed=4).check_experiment(declared)
    with pytest.raises(UserError, match="expected tied,tied"):
        grid.check_experiment(dataclasses.replace(declared, arms=("tied", "untied")))
    with pytest.raises(UserError, match=r"rates of width 64 = \(0.1, 0.01\): expected them to ascend"):
        dataclasses.replace(grid, rates=grid.rates | {64: (0.1, 0.01)})
    with pytest.raises(UserError, match="expected some of each width"):
        dataclasses.replace(grid, widths=(32, 64))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_those_that_a_model_has(layers, tied):
    """Counted on the model itself."""
    import jax

    from jaxtie.models.embedding import make_embedding
    from jaxtie.models.text_model import causal_model

    model = Transformer(layers=layers, heads=2, width=12, feedforward=20)
    ends = make_embedding(dataclasses.replace(runs.load_experiment(FILE).arms[0].head), 50, 12, tied=tied, deviation=0.1)
    own = causal_model(ends, layers=layers, heads=2, feedforward=20)
    params = jax.eval_shape(own.init, jax.random.key(0), np.zeros(4, np.int32), np.zeros(1, np.int32))["params"]
    assert causal_parameters(model, 50, tied=tied) == count_parameters(params)


@pytest.mark.parametrize("point", [GridPoint(2_048, 32), GridPoint(2_048, 256), GridPoint(8_192, 32), GridPoint(8_192, 256)])
def test_the_wider_model_has_as_many_parameters_and_fewer_steps(declared, point):
    model = dataclasses.replace(declared.model, width=point.width, feedforward=4 * point.width)
    wider = width_grid.as_large(model, point.vocabulary)
    counts = causal_parameters(model, point.vocabulary, tied=False), causal_parameters(wider, point.vocabulary, tied=True)
    assert abs(counts[0] / counts[1] - 1) < 1e-3
    assert 1.2 * point.width < wider.width <= 2 * point.width and wider.width // wider.heads % 2 == 0
    assert 2.5 < wider.feedforward / wider.width < 6
    own = dataclasses.replace(declared, model=model, corpus=Corpus(vocab_size=point.vocabulary))
    steps = width_grid.steps_at_equal_operations(own)
    assert steps % declared.record_every == 0
    # Of the tables nearly alone: as many times fewer steps as it is wider.
    if point == GridPoint(8_192, 32):
        assert steps / declared.steps == pytest.approx(point.width / wider.width, abs=0.02)


def test_rates_are_tried_on_what_no_verdict_sees(grid, declared):
    point = grid.points[1]
    tried = list(grid.trials(declared, point, TEXT))
    assert len({run.folder for run in tried}) == len(tried) == 2 * len(grid.rates[point.width])
    for run in tried:
        own = run.experiment
        assert own.seeds == (grid.trial_seed,) and own.valid_half == "first"
        assert own.steps == own.optimiser.half_period == declared.steps
        assert own.optimiser.learning_rate / own.optimiser.eta_min == pytest.approx(
            declared.optimiser.learning_rate / declared.optimiser.eta_min
        )
        assert own.corpus == dataclasses.replace(TEXT, vocab_size=point.vocabulary)
    assert tried[0].labels == ("tied", "tied+bias", "untied", "untied@half") and tried[1].labels == ("wider tied",)
    plain, wider = tried[0].experiment, tried[1].experiment
    times = wider.model.width / plain.model.width
    assert plain.optimiser.learning_rate / wider.optimiser.learning_rate == pytest.approx(times, rel=0.05)
    assert [arm.untie_at for arm in tried[0].experiment.arms] == [None, None, None, declared.steps // 2]


def test_each_arm_is_trained_at_its_own_rate_and_those_of_one_rate_together(grid, declared):
    """So that what is untied halfway can take over the tied part of the tied arm."""
    chosen = {"tied": 0.004, "tied+bias": 0.002, "untied": 0.002, "untied@half": 0.004, "wider tied": 0.002}
    finals = {run.folder: run for run in grid.finals(declared, grid.points[0], TEXT, chosen)}
    labels = {folder: run.labels for folder, run in finals.items()}
    assert labels == {
        "arms/0.002": ("tied+bias", "untied"),
        "arms/0.004": ("tied", "untied@half"),
        "wider/0.002": ("wider tied",),
        "equal-operations/0.002": ("wider tied at equal operations",),
    }
    for run in finals.values():
        assert run.experiment.valid_half == "second" and run.experiment.seeds == declared.seeds
        assert run.experiment.optimiser.half_period == run.experiment.steps
    assert finals["equal-operations/0.002"].experiment.steps < declared.steps == finals["wider/0.002"].experiment.steps


def test_rates_are_chosen_at_each_point():
    rows = [(100, 8, "tied", 0.1, 3.0), (100, 8, "tied", 0.2, 2.0), (100, 16, "tied", 0.1, 0.0), (200, 8, "tied", 0.4, 1.0)]
    rates = pd.DataFrame(rows, columns=width_prices.GRID_RATES)
    assert width_prices.chosen_rates(rates, GridPoint(100, 8)) == {"tied": 0.2}


COSTS = {"tied": 0.12, "tied+bias": 0.08, "untied@half": 0.002, "wider tied": -0.05, "wider tied at equal operations": 0.05}


def made_up(grid, cost=lambda arm, point: COSTS[arm] * 32 / point.width, points=8, noise=1e-3) -> width_prices.GridPrices:
    """Losses of five seeds that differ by more than what one table costs."""
    rng, losses, rates = np.random.default_rng(0), [], []
    for point in grid.points[:points]:
        for arm in ALL_ARMS:
            for seed in range(5):
                loss = 5 + 0.2 * seed + (cost(arm, point) if arm != "untied" else 0) + noise * rng.normal()
                losses.append((*point, arm, seed, 0.003, 1_000, 1_200, loss, 6.0, 5.5))
            rates += [(*point, arm, rate, 5 + 10 * abs(rate - 0.003)) for rate in (0.001, 0.003, 0.01) if arm in ALL_ARMS[:5]]
    return width_prices.GridPrices(
        grid,
        *(
            pd.DataFrame(rows, columns=of)
            for rows, of in ((losses, width_prices.GRID_LOSSES), (rates, width_prices.GRID_RATES))
        ),
    )


def judged(prices: width_prices.GridPrices) -> dict:
    return {claim.statement: at for claim, at in width_prices.judge_price_claims(prices).items()}


def test_claims_are_judged_at_every_place_where_they_are_looked_at(grid):
    found = judged(made_up(grid))
    verdicts = {statement: [each.verdict for each in at.values()] for statement, at in found.items()}
    assert list(map(len, verdicts.values())) == [8] * 6 + [2, 2, 4]
    assert verdicts["One table costs nothing"] == ["fails"] * 8  # 0.015 at the widest
    assert verdicts["One table with an output bias costs nothing"][:2] == ["fails"] * 2
    assert set(verdicts["Untied halfway, one table costs nothing"]) == {"holds"}
    assert set(verdicts["Of as many parameters, one wider table is better than two"]) == {"holds"}
    assert set(verdicts["Of as many parameters and operations, one wider table is better"]) == {"fails"}
    assert set(verdicts["One table costs less, the wider the model"]) == {"holds"}
    assert set(verdicts["One table costs more of the larger vocabulary"]) == {"undecided"}
    dearer = made_up(grid, lambda arm, point: COSTS[arm] * point.vocabulary / 2_048)
    found = judged(dearer)["One table costs more of the larger vocabulary"]
    assert {each.verdict for each in found.values()} == {"holds"}


def test_what_is_measured_so_far_is_judged_as_strictly_as_the_whole(grid):
    part, whole = (judged(made_up(grid, points=points)) for points in (3, 8))
    assert [*part["One table costs nothing"]] == [("2,048", "32"), ("2,048", "64"), ("2,048", "128")]
    first = part["One table costs nothing"]["2,048", "32"]
    assert first == whole["One table costs nothing"]["2,048", "32"]
    values_S = made_up(grid).less(grid.points[0], "tied")
    half = stats.t.ppf(1 - 0.05 / 8 / 2, 4) * values_S.std(ddof=1) / 5**0.5
    np.testing.assert_allclose(first.decisive[1:4], values_S.mean() + half * np.array([-1, 0, 1]))
    assert "One table costs less, the wider the model" not in part


@pytest.mark.parametrize(
    "expected, costs, noise",
    [
        ("tie", {"tied": 0.002, "tied+bias": 0.05}, 1e-4),
        ("tie, with an output bias", {"tied": 0.05, "tied+bias": 0.002}, 1e-4),
        ("tie, then untie", {"tied": 0.05, "tied+bias": 0.05, "untied@half": 0.002}, 1e-4),
        ("two tables", {"tied": 0.05, "tied+bias": 0.05, "untied@half": 0.03}, 1e-4),
        ("undecided", {"tied": 0.05, "tied+bias": 0.012}, 0.01),
    ],
)
def test_what_to_do(grid, expected, costs, noise):
    prices = made_up(grid, lambda arm, point: costs.get(arm, 0.5), points=1, noise=noise)
    assert width_prices.advice_at(prices, grid.points[0]) == expected


@pytest.mark.parametrize("points", [1, 5, 8])
def test_tables_and_the_figure_can_be_made_at_any_time(grid, points, tmp_path):
    prices = made_up(grid, points=points)
    prices.losses.loc[3, "loss"] = np.nan
    shown = {name: make(prices).markdown() for name, make in width_prices.GRID_TABLES.items()}
    assert f"{points} of 8 points" in shown["prices"] and "nan" not in "".join(shown.values())
    rows = width_prices.price_verdict_table(prices).rows
    assert {len(row) for row in rows} == {8} and len({row[0] for row in rows}) == (6 if points == 1 else 9)
    assert shown["prices"].count("some diverged") == 1 and "0.003, +0.020" in shown["rates"]
    figure = width_prices.draw_grid_prices(prices)
    assert [len(axes.containers) for axes in figure.axes] == [5, 5 * (points > 4)]
    assert plots.draw_for_document(lambda: figure, tmp_path / "prices.png").stat().st_size > 5_000


def test_points_that_were_measured_elsewhere_join(grid):
    """Whichever came first; of both, the later. What cannot be compared is refused."""
    whole = made_up(grid)
    wanted = whole.losses["vocabulary"] == 2_048
    small, large = (
        width_prices.GridPrices(grid, whole.losses[own], whole.rates[(whole.rates["vocabulary"] == 2_048) == said])
        for own, said in ((wanted, True), (~wanted, False))
    )
    for first, second in ((small, large), (large, small), (whole, small), (small, whole)):
        found = width_prices.joined_grids(first, second)
        assert found.points == whole.points and len(found.losses) == len(whole.losses)
        for point in whole.points:
            np.testing.assert_array_equal(found.less(point, "tied"), whole.less(point, "tied"))
        assert len(found.rates) == len(whole.rates)
    again = width_prices.GridPrices(grid, small.losses.assign(loss=1.0), small.rates)
    assert (width_prices.joined_grids(whole, again).of(grid.points[0], "tied") == 1).all()
    seed = whole.losses["seed"] == 3
    few, rest = (width_prices.GridPrices(grid, whole.losses[own], whole.rates) for own in (~seed, seed))
    for other, told in (
        (rest.losses.assign(unigram_loss=1.0), "in loss of frequencies alone, so in text, at 2048, 8192"),
        (rest.losses.assign(rate=1.0), "in learning rate, at"),
        (rest.losses.assign(steps=1), "in number of steps, at"),
        (rest.losses.assign(parameters=1), "in number of parameters, at"),
    ):
        with pytest.raises(ValueError, match=told):
            width_prices.joined_grids(few, width_prices.GridPrices(grid, other, whole.rates))


def test_rates_that_are_no_longer_tried_leave_with_the_losses_they_chose(grid):
    whole = made_up(grid)
    no_longer = whole.rates.assign(rate=0.5, loss=0.0)
    kept = width_prices.GridPrices(grid, whole.losses, pd.concat([whole.rates, no_longer]))
    pd.testing.assert_frame_equal(width_prices.joined_grids(kept, whole).rates, whole.rates)


def test_two_points_are_compared_by_the_seeds_that_both_have(grid):
    """What a seed has at both points, however much, is none of the difference."""
    whole = made_up(grid)
    seed, of_two = whole.losses["seed"], whole.losses["arm"] == "untied"
    kept = np.where(whole.losses["vocabulary"] == 8_192, seed >= 1, seed <= 3)
    own = whole.losses.assign(loss=whole.losses["loss"] + 100 * seed * of_two)
    plain, apart = (
        width_prices.judge_price_claims(width_prices.GridPrices(grid, losses[kept], whole.rates))
        for losses in (whole.losses, own)
    )
    of_vocabularies = [claim for claim in grid.claims if claim.at == "largest less smallest vocabulary"]
    for claim in (claim for claim in of_vocabularies if claim.other == "untied"):
        for place, judgement in plain[claim].items():
            assert apart[claim][place].verdict == judgement.verdict
            np.testing.assert_allclose(apart[claim][place].decisive[1:4], judgement.decisive[1:4], atol=1e-9)


def test_a_folder_with_other_points_or_without_its_runs_is_not_kept(grid, tmp_path):
    folder, experiments, whole = tmp_path / "out", tmp_path / "experiments", made_up(grid)
    folder.mkdir()
    experiments.mkdir()
    (experiments / FILE.name).write_text(FILE.read_text())
    for other, told in ((4_096, "has points that .* does not declare: "), (8_192, "expected a run here")):
        losses = whole.losses.replace({"vocabulary": {8_192: other}})
        for measured, name in zip((losses, whole.rates), width_prices.GRID_FILES, strict=True):
            measured.to_csv(folder / name, index=False)
        with pytest.raises(UserError, match=told):
            document.keep_grid(folder, experiments)
    assert not (experiments / "data").exists()


TINY = """import dataclasses, runpy
from jaxtie import Optimiser, Transformer
full = runpy.run_path({path!r})
experiment = dataclasses.replace(
    full["experiment"], model=Transformer(layers=1, heads=2, width=8, feedforward=16), batch=8, length=16, steps=40,
    arms=("tied", "tied+bias", "untied", "untied@20"), seeds=(0, 1), record_every=10, eval_every=40, eval_batches=2,
    optimiser=Optimiser(learning_rate=1e-2, half_period=40),
)
benchmark = dataclasses.replace(full["benchmark"], vocabularies=(110,), widths=(8,), rates={{8: (1e-2, 3e-2)}})
"""


@pytest.mark.slow
def test_a_grid_goes_on_where_it_was_stopped_and_is_kept(tmp_path, monkeypatch, capsys):
    """One command; stopped within a point; finished, a document's data, tables and figure are made of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(plots, "save", lambda figure, folder, name: folder / f"{name}.png")
    corpora.write_corpus(tmp_path / "books", files=12)
    experiments = tmp_path / "experiments"
    experiments.mkdir()
    (experiments / "data").mkdir()
    (experiments / "price.py").write_text(TINY.format(path=str(FILE)))
    out, carry_out = tmp_path / "out", runs.carry_out
    options = [str(experiments / "price.py"), "--text", str(tmp_path / "books"), "--out", str(out), "--quiet"]
    asked = []

    def interrupted_at_third(own, folder, session):
        asked.append(folder.path)
        return Outcome.INTERRUPTED if len(asked) == 3 else carry_out(own, folder, session)

    monkeypatch.setattr(runs, "carry_out", interrupted_at_third)
    assert command.main_hypothesis(options) == 130
    assert not list(out.glob("grid-*.csv")) and "the same command goes on" in capsys.readouterr().err
    (first,) = (path.stat().st_mtime_ns for path in asked[0].glob("results.nc"))
    monkeypatch.setattr(runs, "carry_out", carry_out)
    assert command.main_hypothesis(options) == 0
    assert (asked[0] / "results.nc").stat().st_mtime_ns == first
    assert "What one table costs, 1 of 1 points" in capsys.readouterr().out
    prices = width_prices.read_grid(
        runs.load_benchmark(experiments / "price.py"), *(out / n for n in width_prices.GRID_FILES)
    )
    (point,) = prices.points
    assert {len(prices.of(point, arm)) for arm in ALL_ARMS} == {2}
    chosen = width_prices.chosen_rates(prices.rates, point)
    own = runs.load(out / point.name / "arms" / f"{chosen['untied']:g}")
    assert own.attrs["experiment"] == "price-of-tying-V110-D8"
    np.testing.assert_allclose(prices.of(point, "untied"), own["valid_loss"].sel(arm="untied").isel(eval_step=-1), rtol=1e-5)
    tried = runs.load(out / point.name / "trials" / f"{chosen['untied']:g}")
    assert float(tried["unigram_loss"]) != float(own["unigram_loss"])  # of another half of the validation text
    kept = document.keep_finished(out, experiments)
    assert [path.name for path in kept] == ["price-of-tying-grid-losses.csv", "price-of-tying-grid-rates.csv", "price.png"]
    text = "<!-- table: grid-prices price-of-tying -->\n<!-- end of table -->\n"
    assert "| 110 | 8 |" in document.rewritten(text, document.tables_by_name(experiments))
    with_another_seed = TINY.format(path=str(FILE)).replace("seeds=(0, 1)", "seeds=(0, 1, 2)")
    (experiments / "price.py").write_text(with_another_seed)
    assert command.main_hypothesis(options) == 0
    more = width_prices.read_grid(prices.grid, *(out / name for name in width_prices.GRID_FILES))
    assert more.of(point, "tied")[:2].tolist() == prices.of(point, "tied").tolist() and len(more.of(point, "tied")) == 3
    (experiments / "price.py").write_text(with_another_seed.replace("batch=8", "batch=4"))
    with pytest.raises(UserError, match=r"differs from .* in batch"):
        document.keep_finished(out, experiments)
    assert command.main_hypothesis(options) == 2 and "differs in batch" in capsys.readouterr().err


def test_what_a_grid_cannot_mean_is_one_line(capsys, tmp_path):
    for options, told in (
        ([], "needs a text"),
        (["--text", str(tmp_path), "--vocab-size", "200"], "--vocab-size: no option of"),
        (["--text", str(tmp_path), "--masked"], "--masked: no option of"),
    ):
        assert command.main_hypothesis([str(FILE), *options, "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert told in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()
