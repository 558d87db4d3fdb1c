"""Statistics over seeds, against scipy's and by hand."""

import math

import numpy as np
from scipy import stats

from jaxtie.results.statistics import (
    correlation,
    first_at_level,
    mean_interval,
    median_interval,
    somers_d,
)

DIVERGENCE = np.array([0.0, 1, 1, 0, 0.5, 1])


def test_intervals_are_students_and_leave_out_what_is_missing():
    values = np.random.default_rng(0).normal(size=(5, 3))
    for error in (0.05, 0.01):
        mean, half = mean_interval(values, error=error)
        low, high = stats.t.interval(1 - error, 4, values.mean(axis=0), stats.sem(values, axis=0))
        np.testing.assert_allclose([mean - half, mean + half], [low, high], rtol=1e-12)
    holed = np.vstack([values, np.full(3, np.nan)])
    np.testing.assert_array_equal(mean_interval(holed), mean_interval(values))
    np.testing.assert_array_equal(mean_interval(holed.T, axis=1), mean_interval(values))
    mean, half = mean_interval(np.array([[1.0, np.nan], [np.nan, np.nan]]))
    np.testing.assert_array_equal([mean, half], [[1, np.nan], [np.nan, np.nan]])


def test_medians_lie_between_two_of_the_values_by_the_law_of_fair_coins():
    rng = np.random.default_rng(0)
    for count in range(1, 40):
        values = rng.permutation(count) + 1.0  # each its own rank
        low, middle, high = median_interval(values)
        assert middle == np.median(values)
        if 2 * 0.5**count > 0.05:
            assert math.isnan(low) and math.isnan(high) and count < 6
            continue
        # As many as `low - 1` of the values on one side of the true median are too few to believe,
        # `low` are not.
        coins = [math.comb(count, heads) / 2**count for heads in range(count + 1)]
        assert sum(coins[: int(low)]) <= 0.025 < sum(coins[: int(low) + 1])
        assert high == count + 1 - low
    assert median_interval(np.arange(1, 65))[::2] == (24, 41)
    assert median_interval(np.arange(1, 7), error=0.01)[1] == 3.5 and math.isnan(
        median_interval(np.arange(6), error=0.01)[0]
    )


def test_one_seed_that_is_far_off_moves_no_median():
    values = np.arange(1.0, 21)
    for far in (1e9, np.inf):
        assert (
            median_interval(np.where(values == 20, far, values))
            == median_interval(values)
            == (6, 10.5, 15)
        )
    assert median_interval(np.append(values, [np.nan] * 5)) == median_interval(values)
    assert median_interval(np.where(values > 8, np.inf, values)) == (6, np.inf, np.inf)
    assert all(map(math.isnan, median_interval(np.full(9, np.nan))))


def test_medians_are_covered_whatever_the_distribution():
    rng = np.random.default_rng(0)
    for true, sample in ((math.log(2), rng.exponential), (0, rng.standard_cauchy)):
        ends = np.array([median_interval(sample(size=25)) for _ in range(400)])
        assert 0.93 < np.mean((ends[:, 0] <= true) & (true <= ends[:, 2])) < 0.99


def test_somers_d_is_scipys():
    distances = np.random.default_rng(0).normal(size=(20, 6)).round(1)
    ours = somers_d(DIVERGENCE, distances)
    np.testing.assert_allclose(
        ours, [stats.somersd(DIVERGENCE, distance).statistic for distance in distances], atol=1e-12
    )
    assert np.ptp(ours) > 0.5


def test_somers_d_is_1_where_every_order_is_met_and_asks_for_no_more():
    distances = np.array([[0.1, 3, 2, 0.2, 1, 4], [-0.1, -3, -2, -0.2, -1, -4], np.full(6, np.nan)])
    np.testing.assert_array_equal(somers_d(DIVERGENCE, distances), [1, -1, np.nan])
    nearly_equal = DIVERGENCE + 1e-15 * np.arange(6)
    np.testing.assert_array_equal(somers_d(nearly_equal, distances), [1, -1, np.nan])
    infinite = np.array([0, np.inf, np.inf, 0, 1, np.inf])
    np.testing.assert_array_equal(somers_d(infinite, distances), [1, -1, np.nan])
    assert np.isnan(somers_d(np.ones(6), distances)).all()


def test_correlations_are_scipys_and_their_intervals_cover_them():
    rng, x_K = np.random.default_rng(0), np.array([0.0, 1.4, 2.9, np.inf])
    values_KxS = 0.2 * np.where(np.isfinite(x_K), x_K, 0)[:, None] + 0.1 * rng.normal(size=(4, 9))
    values_KxS[1, 8] = np.nan  # a seed that diverged at one setting is left out at all
    pooled = np.repeat(x_K[:3], 8), values_KxS[:3, :8].ravel()
    for ranks, reference in ((False, stats.pearsonr(*pooled)), (True, stats.spearmanr(*pooled))):
        r, low, high = correlation(x_K, values_KxS, ranks=ranks)
        np.testing.assert_allclose(r, reference.statistic, atol=1e-12)
        assert low < r < high and high - low < 0.5
        unrelated = correlation(x_K, np.random.default_rng(1).normal(size=(4, 9)), ranks=ranks)
        assert unrelated[1] < 0 < unrelated[2]
        assert all(map(math.isnan, correlation(x_K, np.full((4, 8), np.nan), ranks=ranks)))


def test_first_at_level():
    steps = np.array([0, 10, 20, 30])
    losses = [
        [8, 6, 4, 2],
        [8, 4, 6, 3],
        [8, 8, 8, 8],
        [2, 2, 2, 2],
        [8, 6, np.nan, np.nan],
        [9, 5, 5, 1],
    ]
    found = first_at_level(steps, np.array(losses, np.float32), 5.0)
    np.testing.assert_allclose(found, [15, 7.5, np.inf, 1, np.inf, 10])
