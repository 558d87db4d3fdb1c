"""Experiments with softmax over targets only: their files, tables and figures."""

from pathlib import Path

import never_targets
import numpy as np
import pytest
from made_up import BEST, PROCESSES, stuck_results, targets_only_runs
from matplotlib.axes import Axes
from never_targets import PROCESS_RUNS, ratio_of_means, share_interval, unseen
from scipy import stats

from jaxtie import Experiment
from jaxtie.results.claims import claims_table
from jaxtie.run.experiment_files import load_experiment, load_experiment_and_claims

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FILES = {path.stem: path for path in EXPERIMENTS.glob("never_targets*.py")}
SEEDS = {  # of the experiments on EXor; the others are of text
    "never-targets": 960,
    "never-targets-ndh": 960,
    "never-targets-ydh": 960,
    "never-targets-control": 960,
    "never-targets-half": 1984,
    "never-targets-rows": 448,
    "never-targets-half-rows": 448,
    "never-targets-eps": 448,
    "never-targets-start": 192,
}


def test_experiment_files_declare_the_claimed_arms():
    """Every claimed arm exists, and only published experiments use seeds 64 to 127."""
    declared = [load_experiment(path) for path in FILES.values()]
    experiments = {own.name: own for own in declared if isinstance(own, Experiment)}
    published = [load_experiment(path) for path in EXPERIMENTS.glob("output_bias*.py")]
    every = experiments | {own.name: own for own in published}
    claims = load_experiment_and_claims(FILES["never_targets"])[1]
    assert len(claims) == 22
    for claim in claims:
        for key, weight in claim.weights.items():
            name, _, arm = key.partition(": ")
            assert weight and arm in [each.name for each in every[name].arms]
            assert every[name].steps == 150_000
        assert sum(claim.weights.values()) == pytest.approx(0)
        assert claim.quantity in ("loss", "stuck share") and claim.low < claim.high
    assert {name: len(own.seeds) for name, own in experiments.items()} == SEEDS
    assert not any({*range(64, 128)} & {*own.seeds} for own in experiments.values())
    for name in ("half", "ndh", "ydh", "control"):
        assert experiments[f"never-targets-{name}"].process == PROCESSES[name]
    assert experiments["never-targets-half-rows"].process == PROCESSES["half"]
    for place in PROCESS_RUNS.values():
        assert {*place} - {""} <= every.keys()


def test_unseen_drops_exploratory_seeds():
    made = stuck_results("output-bias", {"tied": [], "untied": []}, range(100, 140))
    assert unseen(made)["seed"].values.tolist() == list(range(128, 140))


def test_targets_only_tables_report_missing_data():
    runs = targets_only_runs()
    rows = never_targets.stuck_table(runs, ["never-targets-half", "never-targets"]).rows
    assert rows[0][:4] == ("never-targets-half", "untied+targets-only", "100", "40")
    assert rows[0][4].startswith("0.000 [0.000, ") and rows[0][6] == "0.500 [0.500, 0.500]"
    assert rows[2][7] == "–" and rows[-1][:2] == ("never-targets", "no data yet")
    gaps = {row[:2]: row[2:] for row in never_targets.targets_only_gap_table(runs).rows}
    assert gaps["ndh", "published"][0] == "no data yet"
    own = gaps["main with p(X) = 0.5", "published"]
    assert own[:4] == ("100", "40", "0.375", "0.125") and own[5] == "0.000 ± 0.000 (25 seeds)"
    claims = load_experiment_and_claims(EXPERIMENTS / "never_targets.py")[1]
    table = claims_table("Claims", runs, {"never-targets": claims})
    verdicts = [row[-1] for row in table.rows]
    assert verdicts.count("no data yet") == 20 and len(verdicts) == 22


def test_stuck_shares_are_of_the_seeds_that_all_arms_have():
    """Of 40 seeds the runs of rows have the first 20; the ratios are those of their shares."""
    share = {"tied": 18, "untied": 2, "tied+targets-only": 2, "tied+bias": 9}
    half = stuck_results("never-targets-half", {arm: [*range(n)] for arm, n in share.items()})
    half["train_loss"].loc[{"arm": "tied", "seed": slice(220, None)}] = BEST["loss"] + 0.7
    rows = {"tied+untie-rows=mask": 4, "untied+tie-rows=mask": 6}
    own = stuck_results("never-targets-half-rows", {arm: [*range(n)] for arm, n in rows.items()})
    runs = {"never-targets-half": half, "never-targets-half-rows": own.isel(seed=slice(20))}
    table = never_targets.same_seeds_table(runs)
    assert table.header == ("arm", "main with p(X) = 0.5, 20 seeds")
    found = dict(table.rows)
    assert [found[arm] for arm in ("tied", *rows)] == ["0.900", "0.200", "0.300"]
    assert "tied+bias" not in found
    assert found[never_targets.FREED].startswith(f"{(18 - 4) / (18 - 2):.3f} [")
    assert found[never_targets.ADDED].startswith(f"{(6 - 2) / (18 - 2):.3f} [")


def texts(axes: Axes) -> list[str]:
    """Return the texts of a legend."""
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_targets_only_figures(tmp_path):
    runs = targets_only_runs()
    assert never_targets.draw_targets_only({"output-bias": runs["output-bias"]}, tmp_path) == []
    files = never_targets.draw_targets_only(runs, tmp_path)
    assert [path.name for path in files] == ["never_targets.png", "never_targets_arms.png"]
    assert all(path.stat().st_size > 10_000 for path in files)
    *panels, legend = never_targets.draw_stuck_over_steps(runs).axes
    forms = never_targets.FORMS
    assert texts(legend) == [f"{start}, {form}" for form in forms for start in ("tied", "untied")]
    missing = [text.get_text() for axes in panels for text in axes.texts]
    assert missing.count("targets only: no data yet") == 4
    assert missing.count("published: no data yet") == 3


def test_shares_have_exact_intervals():
    assert share_interval(np.zeros(10, bool)) == pytest.approx((0, 1 - 0.025**0.1))
    assert share_interval(np.ones(10, bool)) == pytest.approx((0.025**0.1, 1))
    low, high = share_interval(np.arange(10) < 3)
    tails = [stats.binom.sf(2, 10, low), stats.binom.cdf(3, 10, high)]
    np.testing.assert_allclose(tails, 0.025, rtol=1e-6)


def test_a_ratio_of_means_has_the_interval_of_the_delta_method():
    """Pairs of values that are strongly correlated: resampled apart, it would be much wider."""
    rng = np.random.default_rng(0)
    bottom_S = rng.uniform(1, 3, 800)
    top_S = 0.5 * bottom_S + rng.normal(0, 0.1, 800)
    low, ratio, high = ratio_of_means(top_S, bottom_S)
    assert ratio == top_S.mean() / bottom_S.mean()
    error = np.std(top_S - ratio * bottom_S, ddof=1) / bottom_S.mean() / np.sqrt(800)
    np.testing.assert_allclose([low, high], ratio + 1.96 * error * np.array([-1, 1]), atol=2e-4)
