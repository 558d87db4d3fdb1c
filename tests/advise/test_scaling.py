"""`jaxtie advise` by pilots: plans, targets, losses of one's own, the command on a sampled text."""

import itertools
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import synthetic
from drawing import save_small
from scipy.stats import norm, t

import jaxtie
from jaxtie.advise import answer, pilots, scaling
from jaxtie.advise.answer import Prediction
from jaxtie.advise.command import main_advise
from jaxtie.advise.pilots import Cost, Pilot, Plan, Rates, make_plan
from jaxtie.config import UserError
from jaxtie.results import plots
from jaxtie.run.experiment_files import installed_data
from jaxtie.text.gap_model import Size
from jaxtie.text.gap_process import GapProcess
from jaxtie.training import row_engine
from jaxtie.training.progress import Progress
from jaxtie.training.row_engine import make_mesh

SHOWN = {"tie": "tie", "do not tie": "do not tie", "not decided": "undecided; "}
COSTS = {32: Cost(0.002, 0.2), 64: Cost(0.003, 0.2), 128: Cost(0.006, 0.3)}


@pytest.mark.parametrize(
    ("epoch_steps", "minutes", "seeds", "epochs"),
    [
        (6_000, 15, 4, None),  # as long as the minutes allow
        (6_000, 6, 2, None),
        (300, 30, 8, 4),  # a short text is read four times, with more seeds
        (10**6, 600, 4, None),
    ],
)
def test_plans_take_the_time_that_was_given(epoch_steps, minutes, seeds, epochs):
    plan = make_plan(COSTS, epoch_steps, minutes)
    assert plan.seeds == seeds and plan.seconds(COSTS) <= 60 * minutes
    if epochs is None:
        assert plan.seconds(COSTS) > 0.97 * 60 * minutes
        assert plan.steps <= 4 * epoch_steps
    else:
        assert plan.steps == epochs * epoch_steps


def test_more_minutes_never_train_less():
    for epoch in (300, 1_000, 6_000, 10**6):
        plans = [make_plan(COSTS, epoch, minutes) for minutes in (6, 15, 60, 240)]
        totals = [plan.steps * plan.seeds for plan in plans]
        assert totals == sorted(totals)
        assert all(a.seeds <= b.seeds for a, b in itertools.pairwise(plans))


@pytest.mark.parametrize(
    ("epoch_steps", "minutes", "words"),
    [
        (150, 15, "too small for a pilot, which needs 51,200"),
        (6_000, 1.5, "pilots need at least 5"),
    ],
)
def test_a_small_text_and_few_minutes_are_refused_in_one_line(epoch_steps, minutes, words):
    with pytest.raises(UserError, match=words):
        make_plan(COSTS, epoch_steps, minutes)


def test_pilots_are_three_widths_of_one_budget():
    plan = Plan(steps=2_000, seeds=2)
    assert plan.pilots[0] == Pilot(128, 2, 2_000)
    assert {pilot.width for pilot in plan.pilots} == {32, 64, 128}
    assert {pilot.steps for pilot in plan.pilots} == {2_000}


def test_learning_rates_follow_the_best_ones_of_committed_cells():
    cells = pd.DataFrame(
        [
            {
                "width": width,
                "vocabulary": 2048,
                "epochs": steps / 100,
                "layers": 2,
                "branch_scale": np.nan,
                "tokens": 256 * steps,
                "steps": steps,
                "arm": arm,
                "learning_rate": factor * 0.1 / np.sqrt(width) * steps**-0.25 * away,
                "seed": seed,
                "loss_even": 3 + abs(np.log(away)),
                "loss_odd": 3.0,
            }
            for width in (32, 64, 128)
            for steps in (400, 1_600)
            for arm, factor in (("tied", 2), ("untied", 1))
            for away in (0.7, 1.0, 1.4)
            for seed in range(2)
        ]
    )
    rates = Rates.fit(cells)
    for arm, factor in (("tied", 2), ("untied", 1)):
        expected = factor * 0.1 / np.sqrt(100) * 900**-0.25
        assert rates.of(arm, Pilot(100, 2, 900)) == pytest.approx(expected, rel=5e-3)


def write(path, text: str):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "seed,loss\n0,3.1\n1,3.2\n2,3.3\n",
        "loss,lr,seed\n3.1,1,0\n3.2,1,1\n3.3,1,2\n",
        "step,seed,loss\n0,0,9\n0,1,9\n0,2,9\n5,0,3.1\n5,1,3.2\n5,2,3.3\n",
        "step,0,1,2\n0,9,9,9\n5,3.1,3.2,3.3\n",
        "step,_runtime,0,1,2\n5,77,3.1,3.2,3.3\n",
        "Step,Seed,Loss\n5,0,3.1\n5,1,3.2\n5,2,3.3\n",
    ],
)
def test_last_losses_are_read_by_seed(tmp_path, text):
    losses = scaling.read_losses(write(tmp_path / "tied.csv", text))
    np.testing.assert_allclose(losses.to_numpy(), [3.1, 3.2, 3.3])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "loss\nx\n",
        "step\n3\n",
        "a,b\n1,\n",
        "\x00\xff",
        "loss\n\n",
        "loss\n3.1\n3.2\n",  # no seeds
        "seed,loss\n0,3.1,2000\n1,3.2,2000\n",  # more fields than the header
        "0,3.10\n1,3.20\n",  # no header
        "seed,loss\n",
        "seed,loss\n0,1e308\n",
    ],
)
def test_files_without_losses_are_refused_in_one_line(tmp_path, capsys, text):
    path, good = write(tmp_path / "a.csv", text), write(tmp_path / "b.csv", "loss\n3.0\n")
    assert main_advise(["--from-logs", f"{path},{good}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "a.csv" in error


@pytest.mark.parametrize(
    ("tied", "untied", "words"),
    [
        ("3.10 3.11 3.12", "3.05 3.06 3.07", "do not tie"),
        ("3.10 3.11 3.12", "3.15 3.16 3.17", "tie the embeddings"),
        ("3.10 3.18 3.12", "3.09 3.11 3.15", "not decided; train more seeds"),
        ("3.10", "3.05", "not decided"),
    ],
)
def test_losses_of_ones_own_are_compared_by_seed(tmp_path, capsys, tied, untied, words):
    files = [
        write(
            tmp_path / f"{i}.csv", "seed,loss\n" + "\n".join(f"{s},{x}" for s, x in enumerate(each))
        )
        for i, each in enumerate((tied.split(), untied.split()))
    ]
    assert main_advise(["--from-logs", ",".join(map(str, files))]) == 0
    assert f"Recommendation: {words}" in capsys.readouterr().out


def test_differences_are_paired_students_or_welchs():
    """Against the formulas."""
    a, b = pd.Series([3.1, 3.3, 3.2], index=[0, 1, 2]), pd.Series([3.0, 3.05], index=[7, 8])
    parts = np.array([a.var() / 3, b.var() / 2])
    degrees = parts.sum() ** 2 / (parts**2 / [2, 1]).sum()
    found = scaling.difference(a, b)
    np.testing.assert_allclose(
        found.interval(0.9),
        np.multiply(t(degrees).interval(0.9), np.sqrt(parts.sum())) + a.mean() - b.mean(),
    )
    other = pd.Series([3.0, 3.1, 3.15])
    own = (a - other).std() / np.sqrt(3)
    assert scaling.difference(a, other).sf(0.01) == pytest.approx(
        t(2).sf((0.01 - (a - other).mean()) / own)
    )
    assert scaling.difference(a[:1], b) is None


def test_logs_are_paired_whatever_the_order_and_form_of_their_seeds(tmp_path, capsys):
    """Paired, the difference is 0.05 exactly; the seeds differ by more."""
    files = [
        write(tmp_path / "a.csv", "seed,loss\n2,3.45\n0,3.15\n1,3.25\n"),
        write(tmp_path / "b.csv", "step,0,1,2\n9,3.1,3.2,3.4\n"),
    ]
    assert main_advise(["--from-logs", ",".join(map(str, files))]) == 0
    printed = capsys.readouterr().out
    assert "+0.0500 to +0.0500" in printed and "paired by seed" in printed


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 9}, (8, 2, 9)),
        ({"n_embd": 8, "n_layer": 2, "vocab_size": 9}, (8, 2, 9)),
        ({"d_model": 8, "num_layers": 2, "vocab_size": 9}, (8, 2, 9)),
        (
            {"text_config": {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 9}},
            (8, 2, 9),
        ),
    ],
)
def test_a_models_configuration_gives_the_target(tmp_path, config, expected):
    path = write(tmp_path / "config.json", json.dumps(config))
    assert target(path) == dict(zip(("width", "layers", "vocabulary"), expected))
    own = {"width": 16, "layers": expected[1], "vocabulary": expected[2], "tokens": 5.0}
    assert target(path, width=16, tokens=5.0) == own


def target(config=None, **given) -> dict[str, float]:
    options = dict.fromkeys(Size._fields) | given
    return scaling.read_target(SimpleNamespace(config=config, **options))


def test_an_option_stands_in_for_what_a_configuration_lacks(tmp_path):
    path = write(tmp_path / "config.json", '{"hidden_size": 8, "num_layers": 2}')
    assert target(path, vocabulary=9) == {"width": 8, "layers": 2, "vocabulary": 9}
    with pytest.raises(UserError, match="has no vocab_size; give --vocabulary N"):
        target(path)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"hidden_size": 8.0}',
        '{"hidden_size": 8}',
        '{"hidden_size": true, "vocab_size": 1}',
        "[" * 9_999,
    ],
)
def test_other_configurations_are_refused(tmp_path, text):
    with pytest.raises(UserError, match=r"--config .*config\.json"):
        target(write(tmp_path / "config.json", text))


def made(mean: float, std: float, factor: float) -> answer.Answer:
    pilot = {"width": 768 / factor, "layers": 12, "vocabulary": 32_000, "tokens": 2e9 / factor}
    pilot |= {"gap": 0.1, "half": 0.02, "seeds": 2, "bigram": 4.0, "untied": 3.9}
    target, own = Size(768, 12, 32_000, 2e9), pd.DataFrame([pilot])
    known = own.assign(source=["yours"], error=0.01)
    process = GapProcess(pd.concat([known, known.assign(source="published")]))
    prediction = Prediction(mean, std, factor)
    published = pd.DataFrame({"source": ["published"]})
    return answer.Answer(target, prediction, own, process, published, "jaxtie advise", Path())


@pytest.mark.parametrize(
    ("mean", "std", "factor", "word", "after"),
    [
        (-0.03, 0.04, 2, "tie", "train it tied."),  # one deviation below the margin: 16 %
        (-0.03, 0.04, 50, "tie", "a tenth"),
        (0.05, 0.04, 2, "do not tie", "train it untied."),
        (0.05, 0.04, 50, "not decided", "a tenth"),  # far away, never "do not tie"
        (-0.02, 0.04, 2, "not decided", "jaxtie advise"),
    ],
)
def test_the_recommendation_follows_from_probability_and_distance(mean, std, factor, word, after):
    found = made(mean, std, factor)
    assert found.recommendation == word
    recommendation, why, confidence, following = found.sentences
    half = 1.645 * std
    assert after in following and f"90 % interval {mean - half:+.3f} to {mean + half:+.3f})" in why
    risk = f"costs more than 0.01 with probability {100 * found.prediction.risk:.0f} %, untying"
    assert f"loss by {mean:+.3f} nat" in why and risk in why
    assert recommendation.startswith(f"Recommendation: {SHOWN[word]}")
    assert f"{factor} times the width" in confidence and "times the vocabulary" not in confidence
    assert ("Without the 1 published gaps" in confidence) == (factor > 4)
    assert ("farther away it was not tested" in confidence) == (factor > 4)
    assert (
        "of 5 measured gaps agreed with the 90 % interval (earlier versions: 19 of 28)"
        in confidence
    )
    assert "109.5 of 134.1 million parameters and saves the size of 3.5 layers" in why
    assert found.prediction.risk_of_untying == pytest.approx(norm.cdf(-0.01, mean, std))


@pytest.mark.parametrize("size", ["layers", "vocabulary", "width", "tokens"])
def test_a_target_is_as_far_as_its_farthest_size(size):
    largest = Size(64, 2, 2048, 1e6)
    own = pd.DataFrame([largest, Size(32, 2, 2048, 1e5)])
    targets = [
        largest._replace(**{size: times * getattr(largest, size)}) for times in (1, 9, 1 / 9)
    ]
    less = 9 if size == "vocabulary" else 1  # a pilot's other sizes are the largest ones
    assert answer.distances(targets, own).max(axis=1) == pytest.approx([1, 9, less])


def pilot_members(gaps: dict[int, tuple[float, ...]]) -> pd.DataFrame:
    size = {"layers": 2, "vocabulary": 9, "tokens": 9, "bigram": 4.0}
    rows = [
        {**size, "width": width, "seed": seed, "arm": arm, "loss": loss}
        for width, own in gaps.items()
        for seed, gap in enumerate(own)
        for arm, loss in (("tied", 3 + gap), ("untied", 3.0))
    ]
    return pd.DataFrame(rows)


def test_the_deviation_of_gaps_is_pooled_over_sizes():
    found = answer.pilot_gaps(pilot_members({32: (0.1, 0.3), 64: (0.2, 0.2)}))
    np.testing.assert_allclose(found["gap"], [0.2, 0.2])
    own, prior = 0.02, answer.PRIOR_DEGREES * answer.PRIOR_DEVIATION**2  # sums of squares
    variance = (own + prior) / (2 + answer.PRIOR_DEGREES)
    np.testing.assert_allclose(found["error"], np.sqrt(variance / 2))
    np.testing.assert_allclose(found["tied"] - found["untied"], found["gap"])


@pytest.mark.parametrize(
    ("best", "highest", "tried", "found"),
    [
        (1.0, 99, {0.5, 1, 2}, 1),
        (3.0, 99, {0.5, 1, 2, 4, 8}, 4),
        (0.3, 99, {0.125, 0.25, 0.5, 1, 2}, 0.25),
        (99.0, 99, {0.5, 1, 2, 4, 8}, 8),
        (99.0, 3, {0.5, 1, 2, 4}, 2),
    ],
)
def test_pilots_take_the_best_learning_rate(best, highest, tried, found):
    """The loss is a parabola in ln(rate); above the highest one, one of two seeds diverges."""
    seen = []

    def train(factor):
        seen.append(factor)
        loss = np.log(factor / best) ** 2
        return pd.DataFrame({"loss_even": [loss, loss if factor < highest else np.nan]}), factor

    members, factor = pilots.tuned(train, "width 8")
    assert factor == found and members["loss_even"][0] == np.log(found / best) ** 2
    assert {*seen} == tried and len(seen) == len(tried)


def test_pilots_that_always_diverge_are_an_error():
    with pytest.raises(UserError, match="width 8: diverges at all learning rates"):
        pilots.tuned(lambda factor: (pd.DataFrame({"loss_even": [1.0, np.nan]}), 0), "width 8")


def test_published_comparisons_are_complete_and_consistent():
    """Gaps in nats follow from the losses or perplexities; each row can be looked up."""
    published = pd.read_csv(installed_data("published-comparisons.csv"))
    assert len(published) >= 15 and not published.duplicated().any()
    assert published["url"].str.startswith("https://").all() and published["quote"].notna().all()
    tied, untied, gap = (published[name] for name in ("tied", "untied", "gap_nats"))
    in_nats = published["metric"].str.contains("loss in nats")
    perplexity = published["metric"].str.contains("perplexity")
    np.testing.assert_allclose(gap[in_nats], (tied - untied)[in_nats], atol=2e-4)
    np.testing.assert_allclose(gap[perplexity], np.log(tied / untied)[perplexity], atol=2e-4)


def test_the_nearest_published_comparison_is_of_like_size():
    published = pd.read_csv(installed_data("published-comparisons.csv"))
    target = Size(640, 12, 32_000, 2e9)
    found = answer.nearest_published(published, target)
    assert found.iloc[0][["width", "vocabulary"]].tolist() == [640, 32_000]
    assert (found["objective"] == "causal").all() and found["gap_nats"].notna().all()
    assert "640" in answer.published_table(published, target).markdown()


# ----- The command.


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a sampled text; pilots are tiny."""
    place = tmp_path_factory.mktemp("advise")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        patch.setattr(plots, "save", save_small)
        patch.setattr(pilots, "WIDTHS", (8, 16))
        patch.setattr(pilots, "FEWEST", 40)
        patch.setattr(pilots, "HEAD_WIDTH", 8)
        patch.setattr(pilots, "EVALUATED", 8)
        patch.setattr(pilots, "FACTORS", (1.0, 2.0))
        patch.setattr(pilots, "MOST_FACTOR", 2.0)
        patch.setattr(pilots, "measure_costs", measured)
        patch.setattr(scaling, "committed_members", committed)
        patch.setattr(row_engine, "make_mesh", lambda batch, devices: make_mesh(batch, devices[:1]))
        plan = synthetic.Plan(pairs=(2, 1, 2, 2), near=1, plain=12, homograph=False)
        synthetic.write_sampled_text(place / "text", synthetic.make_source(plan), 3000, 16)
        yield place


def measured(_corpus, _rates, folder, _session, seen=set()) -> dict[int, Cost]:  # noqa: B006
    """Another speed when a command is resumed: it keeps its plan."""
    slower = folder not in seen
    seen.add(folder)
    return dict.fromkeys((8, 16), Cost(0.1 if slower else 0.05, 0.0))


def committed() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    cells = itertools.product((32, 64, 128), (2048, 8192), (100, 400), (2, 4))
    return pd.DataFrame(
        [
            {
                "width": width,
                "vocabulary": vocabulary,
                "epochs": 1.0,
                "layers": layers,
                "branch_scale": np.nan,
                "tokens": vocabulary * each,
                "steps": vocabulary * each // 256,
                "arm": arm,
                "learning_rate": 0.003,
                "seed": seed,
                "loss_even": 4.0,
                "loss_odd": 4.0 + 0.05 * (arm == "tied") + 0.01 * rng.standard_normal(),
            }
            for width, vocabulary, each, layers in cells
            for arm in ("tied", "untied")
            for seed in range(3)
        ]
    )


def command(place, out, *options: str) -> list[str]:
    text = [
        "--text",
        str(place / "text" / "known.txt"),
        "--vocab",
        str(place / "text" / "vocab.txt"),
    ]
    return [*text, "--minutes", "3", "--quiet", "--out", str(out), *options]


@pytest.fixture(scope="module")
def answered(place):
    assert main_advise(command(place, place / "out", "--width", "512", "--json")) == 0
    return place / "out"


@pytest.mark.slow
def test_the_answer_figure_and_summary_are_written(answered):
    found = json.loads((answered / "answer.json").read_text())
    assert found["target"]["width"] == 512 and len(found["pilots"]) == 2
    assert found["answer"][0].startswith(f"Recommendation: {SHOWN[found['recommendation']]}")
    assert (answered / "figures" / "answer.png").stat().st_size > 0
    assert found["answer"][0] in (answered / "summary.md").read_text()


@pytest.mark.slow
def test_another_target_trains_nothing(place, answered, capsys):
    before = {path: path.stat().st_mtime_ns for path in answered.rglob("config.json")}
    assert main_advise(command(place, answered, "--tokens", "1e6")) == 0
    assert "Recommendation" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in answered.rglob("config.json")}
    assert main_advise(command(place, answered, "--width", "512")) == 0  # as `answered` was


@pytest.mark.slow
def test_a_notebook_has_the_same_answer(place, answered):
    vocab = place / "text" / "vocab.txt"
    found = jaxtie.advise(
        place / "text" / "known.txt", vocab=vocab, minutes=3, quiet=True, out=answered, width=512
    )
    written = json.loads((answered / "answer.json").read_text())
    assert (
        found.sentences == written["answer"] and found.recommendation == written["recommendation"]
    )
    assert found.sentences[0] in found._repr_markdown_()
    assert found.plot().axes[0].get_title() in found.sentences[0]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ((), {}, "expected a text"),
        (("nowhere",), {}, "nowhere: no such file"),
        (("books",), {"width": "x"}, "--width"),
        (("nowhere",), {"minutes": 1, "overwrite": False}, "nowhere: no such file"),
        (("books",), {"seeds": 0}, "--seeds"),
        (("books",), {"dry_run": True}, "--dry-run"),
    ],
)
def test_other_calls_are_refused_in_one_line(text, options, words):
    with pytest.raises(UserError, match=words):
        jaxtie.advise(*text, **options)


@pytest.mark.slow
def test_a_command_interrupted_twice_resumes_to_the_same_answer(place, answered, capsys):
    """In the first model, then after some are complete."""
    out = place / "stopped"
    for at in (5, 90):
        steps = itertools.count(1)

        def add(*_, steps=steps, at=at) -> None:
            if next(steps) == at:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Progress, "add", add)
            assert main_advise(command(place, out, "--width", "512")) == 130
        assert "run the same command to resume" in capsys.readouterr().err
        assert not (out / "answer.json").exists()
    assert len([*out.glob("pilots/*/*/results.nc")]) > 1
    assert main_advise(command(place, out, "--width", "512")) == 0
    one, other = (json.loads((each / "answer.json").read_text()) for each in (out, answered))
    assert one["pilots"] == other["pilots"] and one["gap"] == other["gap"]


@pytest.mark.slow
def test_pilots_of_other_minutes_are_not_mixed(place, answered, capsys):
    assert main_advise([*command(place, answered), "--minutes", "9"]) == 2
    assert "holds pilots of 3 minutes" in capsys.readouterr().err
    without = [each for each in command(place, answered) if each not in ("--minutes", "3")]
    assert main_advise([*without, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("plan: 4 models of 2 seeds, each at its best")


@pytest.mark.slow
@pytest.mark.parametrize("size", ["width", "tokens"])
def test_a_target_below_the_smallest_pilot_is_refused_in_one_line(place, answered, size, capsys):
    assert main_advise(command(place, answered, f"--{size}", "2")) == 2
    error = capsys.readouterr().err
    assert f"--{size} 2: the smallest pilot has" in error and error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan", ["{", "[]", '{"plan": {"steps": "x", "seeds": 2}, "minutes": 3, "tokens": 9}']
)
def test_a_damaged_plan_is_refused_in_one_line(place, tmp_path, plan, capsys):
    write(tmp_path / "plan.json", plan)
    assert main_advise(command(place, tmp_path)) == 2
    assert "plan.json: cannot be read as a plan; remove it" in capsys.readouterr().err


@pytest.mark.slow
def test_overfitting_shortens_the_pilots(place, monkeypatch, capsys):
    """The validation loss of the widest model is made to have a minimum at six tenths."""
    real, longest = pilots._train, []

    def train(experiment, *rest):
        rows, best = real(experiment, *rest)
        if experiment.eval_every == experiment.steps:
            return rows, best
        longest.append(experiment.steps)
        return rows, 6 if experiment.steps == longest[0] else 10

    monkeypatch.setattr(pilots, "_train", train)
    assert main_advise(command(place, place / "over", "--json", "--minutes", "6")) == 0
    found = json.loads(capsys.readouterr().out)
    most = max(each["tokens"] for each in found["pilots"]) // (pilots.BATCH * pilots.LENGTH)
    assert most == longest[-1] == longest[0] * 6 // 100 * 10 < longest[0]
