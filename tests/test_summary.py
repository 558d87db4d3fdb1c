"""What the tables say, on results that are made up."""

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from jaxtie import comparison, summary, tables

NAMES, PAIR = ("input", "output"), ("symbol", "symbol2")
SYMBOLS = ["X", "Y", "A", "E"]
DIVERGENCE = np.array([0.0, 1, 1, 0, 0.5, 1])


def test_rank_agreement_is_somers_d():
    distances = np.random.default_rng(0).normal(size=(20, 6)).round(1)
    ours = summary.rank_agreement(DIVERGENCE, distances)
    np.testing.assert_allclose(ours, [stats.somersd(DIVERGENCE, distance).statistic for distance in distances], atol=1e-12)
    assert np.ptp(ours) > 0.5


def test_rank_agreement_is_1_where_every_order_is_met_and_asks_for_no_more():
    distances = np.array([[0.1, 3, 2, 0.2, 1, 4], [-0.1, -3, -2, -0.2, -1, -4], np.full(6, np.nan)])
    np.testing.assert_array_equal(summary.rank_agreement(DIVERGENCE, distances), [1, -1, np.nan])
    nearly_equal = DIVERGENCE + 1e-15 * np.arange(6)
    np.testing.assert_array_equal(summary.rank_agreement(nearly_equal, distances), [1, -1, np.nan])
    infinite = np.array([0, np.inf, np.inf, 0, 1, np.inf])
    np.testing.assert_array_equal(summary.rank_agreement(infinite, distances), [1, -1, np.nan])
    assert np.isnan(summary.rank_agreement(np.ones(6), distances)).all()


@pytest.fixture
def results() -> xr.Dataset:
    """Two arms, two seeds; in the tied one A is where X is, in the untied one only as an input. E is never a target."""
    values = np.zeros((2, 2, 2, 2, 4, 1))  # [input or output, arm, seed, time, symbol, dim]
    values[..., 0] = [0, 1, 0, 5]
    values[1, 1, ..., 0] = [0, 1, 3, 5]
    values[1, :, 1] *= 2  # the second seed
    values[0, :, 1] *= 2
    distances = np.abs(values - np.swapaxes(values, -1, -2))
    semantic = np.array([[0, 1, 0, np.nan], [1, 0, 1, np.nan], [0, 1, 0, np.nan], [np.nan, np.nan, np.nan, 0]])
    conditional = np.array([[0, 0.2, 0.8, np.nan], [0.2, 0, 0.6, np.nan], [0.8, 0.6, 0, np.nan], [np.nan] * 4])
    log_ratio = np.array([[0, np.log(9), np.nan, np.nan], [np.log(9), 0, np.nan, np.nan], [np.nan] * 4, [np.nan] * 4])
    matrices = {"semantic_divergence": semantic, "conditional_divergence": conditional, "conditional_log_ratio": log_ratio}
    return xr.Dataset(
        {
            **{f"{name}_table": (("arm", "seed", "table_step", "symbol", "dim"), values[i]) for i, name in enumerate(NAMES)},
            **{f"{name}_distance": (("arm", "seed", "step", *PAIR), distances[i]) for i, name in enumerate(NAMES)},
            **{name: (PAIR, matrix) for name, matrix in matrices.items()},
            "train_loss": (("arm", "seed", "eval_step"), np.ones((2, 2, 2))),
        },
        {"arm": ["tied", "freed"], "symbol": SYMBOLS, "symbol2": SYMBOLS, "step": [0, 100], "eval_step": [0, 100]},
    )


def swept_results(noise: float) -> xr.Dataset:
    """Loss above the best reachable grows by 0.2 a unit of the log-odds when tied, not at all untied."""
    rng, p_X = np.random.default_rng(0), np.array([0.5, 0.2, 0.05])
    log_odds = np.log((1 - p_X) / p_X)
    excess = np.stack([0.2 * log_odds, np.full(3, 0.1)])[:, :, None, None] + noise * rng.normal(size=(2, 3, 8, 1))
    best = np.array([0.7, 0.6, 0.45])
    distance = np.broadcast_to(np.arange(8.0)[:, None, None, None], (2, 3, 8, 1, 2, 2))
    table = np.zeros((2, 3, 8, 1))
    return xr.Dataset(
        {
            "train_loss": (("arm", "p_X", "seed", "eval_step"), excess + best[:, None, None]),
            "best_loss": (("p_X", "split"), best[:, None]),
            "theory_log_odds": (("p_X", "pair"), log_odds[:, None]),
            "diverged_at": (("arm", "p_X", "seed"), np.full((2, 3, 8), -1)),
            **{f"{name}_distance": (("arm", "p_X", "seed", "step", *PAIR), distance) for name in NAMES},
            **{f"{name}_table": (("arm", "p_X", "seed", "table_step"), table) for name in NAMES},
        },
        {"arm": ["tied", "untied"], "p_X": p_X, "step": [0], "eval_step": [0], "split": ["train"], "pair": ["X-Y"]}
        | {name: ["X", "Y"] for name in PAIR},
        {"experiment": "skewed"},
    )


def test_every_setting_of_a_sweep_stands_beside_its_own_ceiling():
    table = comparison.sweep_table(swept_results(noise=0))
    assert table.header[:3] == ("p_X", "arm", "loss above the best, nat")
    assert [row[:2] for row in table.rows[:3]] == [("0.5", "tied"), ("0.5", "untied"), ("0.2", "tied")]
    expected = (0, 0.1, 0.2 * np.log(4), 0.1, 0.2 * np.log(19), 0.1)
    assert [row[2] for row in table.rows] == [f"{x:.3f} ± 0.000" for x in expected]
    assert table.rows[5][-2] == f"{0.2 * np.log(19) - 0.1:.3f} ± 0.000"


def test_correlations_with_log_odds_are_scipys_and_their_intervals_cover_them():
    results = swept_results(noise=0.1)
    excess = comparison.outcomes(results)[comparison.EXCESS].sel(arm="tied").values
    label, x_K = comparison.abscissa(results, "p_X")
    assert label == "ln p(Y)/p(X)"
    np.testing.assert_allclose(x_K, np.log([1, 4, 19]), atol=1e-12)
    pooled = np.repeat(x_K, 8), excess.ravel()
    for ranks, reference in ((False, stats.pearsonr(*pooled)), (True, stats.spearmanr(*pooled))):
        r, low, high = comparison.correlation(x_K, excess, ranks=ranks)
        np.testing.assert_allclose(r, reference.statistic, atol=1e-12)
        assert low < r < high and high - low < 0.5
    cells = {row[1]: row[2] for row in comparison.correlation_table(results).rows}
    assert float(cells["loss above the best, tied"].split()[0]) > 0.8
    low, high = map(float, cells["loss above the best, untied"].split("[")[1].rstrip("]").split(", "))
    assert low < 0 < high
    assert np.isnan(comparison.correlation(x_K, np.full((3, 8), np.nan), ranks=True)).all()


def test_steps_to_reach_the_untied_loss_are_counted_from_the_untying_seed_by_seed():
    untied = np.array([[1, 0.5, 0.5, 0.5], [1, 0.9, 0.6, 0.5], [1, 0.5, 0.5, 0.5], [1, 0.9, 0.6, 0.5]])
    midway = np.array([[1, 0.9, 0.509, 0.5], [1, 0.8, 0.7, 0.7], [1, 0.9, 0.9, 0.511], [1, 0.8, 0.7, 0.5]])
    results = xr.Dataset(
        {"train_loss": (("arm", "seed", "eval_step"), np.stack([untied, midway]))},
        {"arm": ["untied", "untied@100"], "eval_step": [0, 100, 200, 300]},
    )
    for for_good, expected in ((False, [100, 0, np.nan, 0]), (True, [100, np.nan, np.nan, 200])):
        steps = comparison.steps_to_reach(results, "untied@100", "untied", for_good=for_good)
        np.testing.assert_array_equal(steps, expected)


def test_an_arm_has_as_many_tables_as_differ(results):
    assert tables.tables(results, "tied") == {"tied": "input"}
    assert tables.tables(results, "freed") == {"freed input": "input", "freed output": "output"}


def test_equivalences_stand_beside_distances(results):
    table = summary.equivalence_table(results)
    assert table.header[-3:] == ("tied", "freed input", "freed output")
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows)[:3] == ["X-Y", "X-A", "Y-A"]
    assert rows["X-Y"][:3] == ("1.000", "0.200", "2.197") and rows["X-A"][:3] == ("0.000", "0.800", "–")
    # Mean of d and 2d, and the interval that Student's t (1 degree of freedom, 12.706) gives for two seeds.
    assert rows["X-A"][3:] == ("0.000 ± 0.000", "0.000 ± 0.000", "4.500 ± 19.059")
    assert [cell.split()[0] for cell in rows["Y-A"][3:]] == ["1.500", "1.500", "3.000"]
    agreement = {name: [float(cell.split()[0]) for cell in cells[3:]] for name, cells in rows.items() if "rank" in name}
    assert agreement == {
        "rank agreement with semantic divergence": [1, 1, -1],  # output: 1, 2 and 3 against 1, 1 and 0
        "rank agreement with conditional divergence": [-0.667, -0.667, 1],
        "rank agreement with log ratio": [-0.5, -0.5, 1],
    }
