"""Tables of EXor results, on results that are made up."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from made_up import BEST, exor_results, targets_only_runs
from scipy import stats

from jaxtie.config import Arm
from jaxtie.exor import analysis, tables
from jaxtie.exor.plots import exor_pictures
from jaxtie.results.claims import claims_table
from jaxtie.results.statistics import correlation
from jaxtie.results.tables import median, with_interval
from jaxtie.run.experiment_files import load_claims

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
NAMES, PAIR = ("input", "output"), ("symbol", "symbol2")


SYMBOLS = ["X", "Y", "A", "E"]


@pytest.fixture
def results() -> xr.Dataset:
    """Make two arms; A equals X in the tied embedding and in the untied input embedding."""
    values = np.zeros((2, 2, 2, 2, 4, 1))  # [input or output, arm, seed, time, symbol, dim]
    values[..., 0] = [0, 1, 0, 5]
    values[1, 1, ..., 0] = [0, 1, 3, 5]
    values[1, :, 1] *= 2  # the second seed
    values[0, :, 1] *= 2
    distances = np.abs(values - np.swapaxes(values, -1, -2))
    semantic = np.array(
        [[0, 1, 0, np.nan], [1, 0, 1, np.nan], [0, 1, 0, np.nan], [np.nan, np.nan, np.nan, 0]]
    )
    conditional = np.array(
        [[0, 0.2, 0.8, np.nan], [0.2, 0, 0.6, np.nan], [0.8, 0.6, 0, np.nan], [np.nan] * 4]
    )
    log_ratio = np.array(
        [[0, np.log(9), np.nan, np.nan], [np.log(9), 0, np.nan, np.nan], [np.nan] * 4, [np.nan] * 4]
    )
    matrices = {
        "semantic_divergence": semantic,
        "conditional_divergence": conditional,
        "conditional_log_ratio": log_ratio,
    }
    return xr.Dataset(
        {
            **{
                f"{name}_table": (("arm", "seed", "table_step", "symbol", "dim"), values[i])
                for i, name in enumerate(NAMES)
            },
            **{
                f"{name}_distance": (("arm", "seed", "step", *PAIR), distances[i])
                for i, name in enumerate(NAMES)
            },
            **{name: (PAIR, matrix) for name, matrix in matrices.items()},
            "valid_loss": (("arm", "seed", "eval_step"), np.ones((2, 2, 2))),
            "diverged_at": (("arm", "seed"), np.full((2, 2), -1)),
        },
        {
            "arm": ["tied", "untied"],
            "symbol": SYMBOLS,
            "symbol2": SYMBOLS,
            "step": [0, 100],
            "eval_step": [0, 100],
        },
    )


def swept_results(noise: float) -> xr.Dataset:
    """Make a sweep in which only the tied excess loss grows with the log-odds, by 0.2 per nat."""
    rng, p_X = np.random.default_rng(0), np.array([0.5, 0.2, 0.05])
    log_odds = np.log((1 - p_X) / p_X)
    excess = np.stack([0.2 * log_odds, np.full(3, 0.1)])[:, :, None, None] + noise * rng.normal(
        size=(2, 3, 8, 1)
    )
    best = np.array([0.7, 0.6, 0.45])
    distance = np.broadcast_to(np.arange(8.0)[:, None, None, None], (2, 3, 8, 1, 2, 2))
    loss = ("arm", "p_X", "seed", "eval_step"), excess + best[:, None, None]
    return xr.Dataset(
        {
            "train_loss": loss,
            "valid_loss": loss,
            "best_loss": (("p_X", "split"), best[:, None]),
            "theory_log_odds": (("p_X", "pair"), log_odds[:, None]),
            "diverged_at": (("arm", "p_X", "seed"), np.full((2, 3, 8), -1)),
            **{
                f"{name}_distance": (("arm", "p_X", "seed", "step", *PAIR), distance)
                for name in NAMES
            },
        },
        {
            "arm": ["tied", "untied"],
            "p_X": p_X,
            "step": [0],
            "eval_step": [0],
            "split": ["train"],
            "pair": ["X-Y"],
        }
        | {name: ["X", "Y"] for name in PAIR},
        {"experiment": "skewed"},
    )


def test_sweep_table():
    table = tables.sweep_table(swept_results(noise=0))
    assert table.header[:3] == ("p_X", "arm", "loss above the best, nat")
    assert [row[:2] for row in table.rows[:3]] == [
        ("0.5", "tied"),
        ("0.5", "untied"),
        ("0.2", "tied"),
    ]
    expected = (0, 0.1, 0.2 * np.log(4), 0.1, 0.2 * np.log(19), 0.1)
    assert [row[2] for row in table.rows] == [f"{x:.3f} ± 0.000" for x in expected]
    assert table.rows[5][-2] == f"{0.2 * np.log(19) - 0.1:.3f} ± 0.000"


def test_correlations_agree_with_scipy():
    results = swept_results(noise=0.1)
    excess = analysis.outcomes(results)[analysis.EXCESS].sel(arm="tied").values
    label, x_K = analysis.abscissa(results, "p_X")
    assert label == "ln p(Y)/p(X)"
    np.testing.assert_allclose(x_K, np.log([1, 4, 19]), atol=1e-12)
    pooled = np.repeat(x_K, 8), excess.ravel()
    for ranks, reference in ((False, stats.pearsonr(*pooled)), (True, stats.spearmanr(*pooled))):
        r, low, high = correlation(x_K, excess, ranks=ranks)
        np.testing.assert_allclose(r, reference.statistic, atol=1e-12)
        assert low < r < high and high - low < 0.5
    cells = {row[1]: row[2] for row in tables.correlation_table(results).rows}
    assert float(cells["loss above the best, tied"].split()[0]) > 0.8
    low, high = map(
        float, cells["loss above the best, untied"].split("[")[1].rstrip("]").split(", ")
    )
    assert low < 0 < high
    assert np.isnan(correlation(x_K, np.full((3, 8), np.nan), ranks=True)).all()
    assert cells.keys() >= {
        f"distance X-Y, {label}" for label in ("tied", "untied input", "untied output")
    }


def test_two_values_have_no_correlations():
    assert [
        len(tables.exor_tables(exor_results("tied", p_X=p_X)))
        for p_X in ([0.1, 0.2], [0.1, 0.2, 0.5])
    ] == [2, 3]


UNTIED = np.array([[1, 0.5, 0.5, 0.5], [1, 0.9, 0.6, 0.5], [1, 0.5, 0.5, 0.5], [1, 0.9, 0.6, 0.5]])


MIDWAY = np.array(
    [[1, 0.9, 0.509, 0.5], [1, 0.8, 0.7, 0.7], [1, 0.9, 0.9, 0.511], [1, 0.8, 0.7, 0.5]]
)


def test_steps_to_match_the_untied_loss():
    loss = ("arm", "seed", "eval_step"), np.stack([UNTIED, MIDWAY])
    results = xr.Dataset(
        {
            "train_loss": loss,
            "valid_loss": loss,
            "diverged_at": (("arm", "seed"), np.full((2, 4), -1)),
        },
        {"arm": ["untied", "untied@100"], "eval_step": [0, 100, 200, 300]},
    )
    arm, other = Arm.parse("untied@100"), Arm.parse("untied")
    for for_good, expected in ((False, [100, 0, np.nan, 0]), (True, [100, np.nan, np.nan, 200])):
        steps = tables.steps_to_match(results, arm, other, for_good=for_good)
        np.testing.assert_array_equal(steps, expected)


def test_untying_table():
    results = exor_results("untied@50", "untied", "untied@100", "tied+bias", "tied")
    for i, arm in enumerate(("untied@50", "tied", "untied")):
        results["train_loss"].loc[{"arm": arm, "eval_step": 50}] = 1 + i
        results["train_loss"].loc[{"arm": arm, "eval_step": 100}] = (
            1.005 if arm == "untied@50" else 1
        )
    table = tables.untying_table(results)
    assert table.title.endswith("of this arm; tied; untied")
    rows = {row[:2]: row[2] for row in table.rows}
    assert list(rows) == [
        *[
            ("untied@50", step)
            for step in (
                "50",
                "100",
                *(f"within 0.01 of untied, {x} after" for x in ("first", "for good")),
            )
        ],
        *[
            ("untied@100", step)
            for step in (
                "100",
                *(f"within 0.01 of untied, {x} after" for x in ("first", "for good")),
            )
        ],
    ]
    first, second, third = ("1.000 [1.000, 1.000]", "2.000 [2.000, 2.000]", "3.000 [3.000, 3.000]")
    assert rows["untied@50", "50"] == f"{first}; {second}; {third}"
    assert rows["untied@50", "100"] == f"1.005 [1.005, 1.005]; {first}; {first}"
    # too few for an interval
    assert rows["untied@50", "within 0.01 of untied, first after"] == "0 steps, 4 of 4 seeds"
    assert {len(row) for row in table.rows} == {len(table.header)}
    # not trained so far yet
    results["valid_loss"] = results["valid_loss"].where(results["eval_step"] < 100)
    assert {row[0] for row in tables.untying_table(results).rows} == {"untied@50"}


def test_equivalence_table(results):
    table = tables.equivalence_table(results)
    assert table.header[-3:] == ("tied", "untied input", "untied output")
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows)[:3] == ["X-Y", "X-A", "Y-A"]
    assert rows["X-Y"][:3] == ("1.000", "0.200", "2.197") and rows["X-A"][:3] == (
        "0.000",
        "0.800",
        "–",
    )
    # median of d and 2d; two seeds have no interval
    assert rows["X-A"][3:] == (
        "0.000",
        "0.000",
        "4.500",
    )
    assert [cell.split()[0] for cell in rows["Y-A"][3:]] == ["1.500", "1.500", "3.000"]
    agreement = {
        name: [float(cell.split()[0]) for cell in cells[3:]]
        for name, cells in rows.items()
        if "rank" in name
    }
    assert agreement == {
        "rank agreement with semantic divergence": [
            1,
            1,
            -1,
        ],  # output: 1, 2 and 3 against 1, 1 and 0
        "rank agreement with conditional divergence": [-0.667, -0.667, 1],
        "rank agreement with log ratio": [-0.5, -0.5, 1],
    }


def test_final_table():
    results = exor_results("tied+bias", "untied+bias", "tied", seeds=4)
    at_the_end = {"eval_step": 100}
    results["train_loss"].loc[{"arm": "tied+bias", **at_the_end}] = BEST["loss"] + np.array(
        [0.04, 0.06, 0.01, 0.3]
    )
    for arm, more in (("untied+bias", 0.5), ("tied", -0.25)):  # of each seed as much as of another
        results["train_loss"].loc[{"arm": arm, **at_the_end}] = (
            results["train_loss"].sel(arm="tied+bias", **at_the_end) + more
        )
    table = tables.final_table(results)
    assert table.header[2:] == (
        "tied+bias",
        "untied+bias",
        "tied",
        *(f"{x} − tied+bias, paired" for x in ("untied+bias", "tied")),
    )
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["train loss, nat"][0] == "0.750" and rows["train loss, nat"][-2:] == (
        "0.500 ± 0.000",
        "-0.250 ± 0.000",
    )
    assert rows["seeds within 0.05 nat of the best"] == ("", "2 of 4", "0 of 4", "4 of 4", "", "")
    assert "seeds that diverged" not in rows and {len(row) for row in table.rows} == {
        len(table.header)
    }
    results["diverged_at"].loc[{"arm": "untied+bias", "seed": [1, 3]}] = 20
    assert tables.final_table(results).rows[-1] == (
        "seeds that diverged",
        "0",
        "0",
        "2",
        "0",
        "",
        "",
    )


def test_order_and_length_of_all_tables():
    for arms, untying in (
        (("tied", "untied+half-swap"), []),
        (("tied", "untied+bias@50"), ["Untying"]),
    ):
        found = tables.exor_tables(exor_results(*arms))
        plateaus = ["When 4 seeds leave"]
        starts = [
            "made-up: step 100",
            "made-up: step 100, median",
            "Over training",
            *plateaus,
            *untying,
        ]
        starts += ["Equivalences", "Per seed at step 100"]
        assert [
            table.title.startswith(start) for table, start in zip(found, starts, strict=True)
        ] == [True] * len(starts)
        assert [table.long for table in found] == [False] * (len(starts) - 1) + [True]


def test_seed_table():
    results = exor_results("tied", "untied", seeds=3)
    results["log_odds"].loc[{"arm": "untied", "seed": 2, "eval_step": 100, "pair": "X-Y"}] = (
        np.log(9) + 0.5
    )
    table = tables.seed_table(results)
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    assert [row["seed"] for row in rows] == ["0", "1", "2"]
    assert rows[2]["untied: ln p(Y)/p(X) − 2.197"] == "0.500"
    assert (
        rows[1]["tied: training loss, nat"]
        == f"{float(results['train_loss'].sel(arm='tied', seed=1, eval_step=100)):.3f}"
    )


def test_medians_of_few_seeds_have_no_interval():
    """A rank interval at 95 % needs six seeds, and then is their range."""
    values = np.arange(1.0, 7.0)
    assert median(values[:5]) == "3.000" and median(values) == "3.500 [1.000, 6.000]"
    assert with_interval(np.nan, np.nan, np.nan, "{:.1e}".format) == "–"


def test_plateau_exit_table(plateau_results):
    table = tables.plateau_exit_table(plateau_results)
    rows = {(row[0].partition(" (")[0], row[1]): row[2:] for row in table.rows}
    assert len(rows) == 6 and {len(row) for row in table.rows} == {len(table.header)}
    assert rows[analysis.LEFT, "tied"][:3] == ("4", "2", "1") and rows[analysis.LEFT, "tied"][
        3
    ].startswith("30 [20, ")
    # Seeds 0, 1 and 3 leave later untied, 2 at once, 4 and 5 only untied. Two of five or fewer: p =
    # 1.
    assert (
        rows[analysis.LEFT, "untied"][4] == "2 : 3 (1)"
        and rows[analysis.LEFT, "untied"][6] == "1.000"
    )
    assert rows[analysis.AT_BEST, "tied"][:4] == ("1", "5", "1", "> 100 [40, > 100]")
    assert (
        rows[analysis.AT_BEST, "untied"][4] == "4 : 1 (1)"
        and rows[analysis.AT_BEST, "untied"][6] == "0.375"
    )
    # Nobody is halfway who is not at the best.
    assert rows[analysis.HALFWAY, "untied"] == rows[analysis.AT_BEST, "untied"]


def test_plateau_exit_of_unfinished_results():
    results = exor_results("tied", "untied", "tied+bias")
    for last in (100, 0):
        for name in ("train_loss", "valid_loss", "loss"):
            results[name] = results[name].where(
                results[name].coords[results[name].dims[-1]] <= last
            )
        table = tables.plateau_exit_table(results)
        assert {len(row) for row in table.rows} == {len(table.header)}
        exor_pictures(results)["escape"].draw()


def test_targets_only_tables_report_missing_data():
    runs = targets_only_runs()
    rows = tables.stuck_table(runs, ["never-targets-half", "never-targets"]).rows
    assert rows[0][:4] == ("never-targets-half", "untied+targets-only", "100", "40")
    assert rows[0][4].startswith("0.000 [0.000, ") and rows[0][6] == "0.500 [0.500, 0.500]"
    assert rows[2][7] == "–" and rows[-1][:2] == ("never-targets", "no data yet")
    gaps = tables.targets_only_gap_table(runs).rows
    by_row = {row[:2]: row[2:] for row in gaps}
    assert by_row["ndh", "published"][0] == "no data yet"
    assert by_row["main with p(X) = 0.5", "published"][:4] == ("100", "40", "0.375", "0.125")
    assert by_row["main with p(X) = 0.5", "published"][5] == "0.000 ± 0.000 (25 seeds)"
    claims = load_claims(EXPERIMENTS / "never_targets.py")
    table = claims_table("Claims", runs, {"never-targets": claims})
    verdicts = [row[-1] for row in table.rows]
    assert verdicts.count("**no data yet**") == 20 and len(verdicts) == 22
