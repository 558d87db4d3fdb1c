"""Tables of committed runs on EXor, on results that are made up."""

import math

import exor_tables
import numpy as np
import pytest
import xarray as xr
from exor_tables import correlation, somers_d
from made_up import exor_results
from scipy import stats

LOG_ODDS = np.log([1, 4, 19])  # of the swept results
DIVERGENCE = np.array([0.0, 1, 1, 0, 0.5, 1])
NAN = np.nan


def swept_results(noise: float) -> xr.Dataset:
    """Make a sweep in which only the tied excess loss grows with the log-odds, by 0.2 per nat."""
    results = exor_results("tied", "untied", seeds=8, p_X=[0.5, 0.2, 0.05])
    excess = np.stack([0.2 * LOG_ODDS, np.full(3, 0.1)])[:, :, None]
    excess = excess + noise * np.random.default_rng(0).normal(size=(2, 3, 8))
    results["best_loss"][:] = np.array([0.7, 0.6, 0.45])[:, None]
    results["train_loss"].loc[{"eval_step": 100}] = excess + np.array([0.7, 0.6, 0.45])[:, None]
    return results


def test_correlation_table():
    results = swept_results(noise=0.1)
    label, x_K = exor_tables.abscissa(results, "p_X")
    assert label == "ln p(Y)/p(X)"
    np.testing.assert_allclose(x_K, LOG_ODDS, atol=1e-12)
    rows = {row[1]: row[2] for row in exor_tables.correlation_table(results).rows}
    assert float(rows["loss above the best, tied"].split()[0]) > 0.8
    low, high = rows["loss above the best, untied"].split("[")[1].rstrip("]").split(", ")
    assert float(low) < 0 < float(high)
    assert rows.keys() >= {
        f"distance X-Y, {label}" for label in ("tied", "untied input", "untied output")
    }


def test_equivalence_table():
    """A equals X in the tied embedding and in the untied input embedding."""
    symbols = ["X", "Y", "A", "E"]
    results = exor_results("tied", "untied", seeds=2).sel(symbol=symbols, symbol2=symbols)
    places = np.tile([0.0, 1, 0, 5], (2, 2, 1))  # [arm, seed, symbol]
    for name in ("input_distance", "output_distance"):
        if name == "output_distance":
            places[1] = [0, 1, 3, 5]
        distance = np.abs(places[..., :, None] - places[..., None, :])
        results[name].loc[{"step": 100}] = distance * [[[[1]], [[2]]]]
    no = np.nan
    results["semantic_divergence"][:] = [[0, 1, 0, no], [1, 0, 1, no], [0, 1, 0, no], [no] * 4]
    results["conditional_divergence"][:] = [
        [0, 0.2, 0.8, no],
        [0.2, 0, 0.6, no],
        [0.8, 0.6, 0, no],
        [no] * 4,
    ]
    ratio = np.log(9)
    results["conditional_log_ratio"][:] = [[0, ratio, no, no], [ratio, 0, no, no], *[[no] * 4] * 2]
    table = exor_tables.equivalence_table(results)
    assert table.header[-3:] == ("tied", "untied input", "untied output")
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows)[:3] == ["X-Y", "X-A", "Y-A"]
    assert rows["X-Y"][:3] == ("1.000", "0.200", "2.197")
    assert rows["X-A"][:3] == ("0.000", "0.800", "–")
    # median of d and 2d; two seeds have no interval
    assert rows["X-A"][3:] == ("0.000", "0.000", "4.500")
    assert rows["Y-A"][3:] == ("1.500", "1.500", "3.000")
    agreement = {
        name.removeprefix("rank agreement with "): [float(cell.split()[0]) for cell in cells[3:]]
        for name, cells in rows.items()
        if "rank" in name
    }
    assert agreement == {
        "semantic divergence": [1, 1, -1],  # output: 1, 2 and 3 against 1, 1 and 0
        "conditional divergence": [-0.667, -0.667, 1],
        "log ratio": [-0.5, -0.5, 1],
    }


@pytest.mark.parametrize(
    "divergence",
    [DIVERGENCE, DIVERGENCE + 1e-15 * np.arange(6), np.array([0, np.inf, np.inf, 0, 1, np.inf])],
    ids=["exact", "but for rounding", "infinite"],
)
def test_somers_d_is_1_where_every_order_is_met(divergence):
    distances = np.array([[0.1, 3, 2, 0.2, 1, 4], [-0.1, -3, -2, -0.2, -1, -4], np.full(6, NAN)])
    np.testing.assert_array_equal(somers_d(divergence, distances), [1, -1, NAN])
    assert np.isnan(somers_d(np.ones(6), distances)).all()


@pytest.mark.parametrize("ranks", [False, True])
def test_correlations_are_scipys_and_their_intervals_cover_them(ranks):
    rng, x_K = np.random.default_rng(0), np.array([0.0, 1.4, 2.9, np.inf])
    values_KxS = 0.2 * np.where(np.isfinite(x_K), x_K, 0)[:, None] + 0.1 * rng.normal(size=(4, 9))
    values_KxS[1, 8] = NAN  # a seed that diverged at one value is omitted
    reference = stats.spearmanr if ranks else stats.pearsonr
    r, low, high = correlation(x_K, values_KxS, ranks=ranks)
    pooled = np.repeat(x_K[:3], 8), values_KxS[:3, :8].ravel()
    np.testing.assert_allclose(r, reference(*pooled).statistic, atol=1e-12)
    assert low < r < high and high - low < 0.5
    unrelated = correlation(x_K, np.random.default_rng(1).normal(size=(4, 9)), ranks=ranks)
    assert unrelated[1] < 0 < unrelated[2]
    assert all(map(math.isnan, correlation(x_K, np.full((4, 8), NAN), ranks=ranks)))
