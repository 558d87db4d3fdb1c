"""Statistics over seeds: against SciPy, by hand, by enumeration, by known distributions."""

import math

import numpy as np
import pytest
from plateaus import Times, kaplan_meier, logrank_p, median_time, sign_test, times_to_level
from scipy import stats

from jaxtie.results.statistics import mean_interval, median_interval
from jaxtie.results.tables import format_estimate, format_median

STEPS = np.array([0, 10, 20, 30, 40])
NAN = np.nan


def test_mean_intervals_are_students_and_omit_missing_values():
    values = np.random.default_rng(0).normal(size=(5, 3))
    for error in (0.05, 0.01):
        mean, half = mean_interval(values, error=error)
        low, high = stats.t.interval(1 - error, 4, values.mean(axis=0), stats.sem(values, axis=0))
        np.testing.assert_allclose([mean - half, mean + half], [low, high], rtol=1e-12)
    holed = np.vstack([values, np.full(3, NAN)])
    np.testing.assert_array_equal(mean_interval(holed), mean_interval(values))
    np.testing.assert_array_equal(mean_interval(holed.T, axis=1), mean_interval(values))
    mean, half = mean_interval(np.array([[1.0, NAN], [NAN, NAN]]))
    np.testing.assert_array_equal([mean, half], [[1, NAN], [NAN, NAN]])


def test_median_intervals_end_at_two_of_the_values_by_the_binomial_distribution():
    rng = np.random.default_rng(0)
    for count in range(1, 40):
        values = rng.permutation(count) + 1.0  # each its own rank
        low, middle, high = median_interval(values)
        assert middle == np.median(values)
        if 2 * 0.5**count > 0.05:
            assert math.isnan(low) and math.isnan(high) and count < 6
            continue
        # `low - 1` of the values on one side of the true median are too few to believe, `low` are
        # not.
        coins = [math.comb(count, heads) / 2**count for heads in range(count + 1)]
        assert sum(coins[: int(low)]) <= 0.025 < sum(coins[: int(low) + 1])
        assert high == count + 1 - low
    assert median_interval(np.arange(1, 65))[::2] == (24, 41)
    assert median_interval(np.arange(1, 7), error=0.01)[1] == 3.5
    assert math.isnan(median_interval(np.arange(6), error=0.01)[0])


def test_outliers_move_no_median():
    values = np.arange(1.0, 21)
    assert median_interval(values) == (6, 10.5, 15)
    for far in (1e9, np.inf):
        assert median_interval(np.where(values == 20, far, values)) == (6, 10.5, 15)
    assert median_interval(np.append(values, [NAN] * 5)) == (6, 10.5, 15)
    assert median_interval(np.where(values > 8, np.inf, values)) == (6, np.inf, np.inf)
    assert all(map(math.isnan, median_interval(np.full(9, NAN))))


def test_medians_as_text():
    """A rank interval at 95 % needs six seeds, and then is their range."""
    values = np.arange(1.0, 7.0)
    assert format_median(values[:5]) == "3.000" and format_median(values) == "3.500 [1.000, 6.000]"
    assert format_estimate(NAN, NAN, NAN, "{:.1e}".format) == "–"


def times(*steps: float, censored: tuple[int, ...] = ()) -> Times:
    """Seeds that reach a level at these steps; by their place, those that are censored."""
    return Times(np.array(steps, float), np.isin(np.arange(len(steps)), censored))


@pytest.mark.parametrize(
    ("losses", "step", "censored"),
    [
        ([9, 9, 5, 4, 4], 20, False),  # equal to the level
        ([9, 4, 9, 9, 4], 40, True),  # one evaluation alone, and the last one
        ([9, 4, 9, 4, 4], 30, False),
        ([9, 4, 4, 9, 9], 10, False),  # the rest does not count
        ([4, 4, 9, 9, 9], 0, False),
        ([9, 9, 9, 9, 9], 40, True),
        ([9, 9, NAN, NAN, NAN], 40, True),  # diverged
        ([9, 4, NAN, NAN, NAN], 40, True),
        ([9, 4, 4, NAN, NAN], 10, False),
    ],
)
def test_a_curve_reaches_a_level_at_two_evaluations_in_a_row(losses, step, censored):
    found = times_to_level(STEPS, np.array([losses, [9] * 5], np.float32), 5.0)
    np.testing.assert_array_equal(found, [[step, 40], [censored, True]])


@pytest.mark.parametrize(
    ("losses", "step", "censored"),
    [
        ([9, 4, 4, 9, 9], 40, True),
        ([4, 4, 9, 5, 4], 30, False),
        ([9, 9, 4, 4, 4], 20, False),
        ([4, 4, 9, 9, 4], 40, True),  # the last evaluation alone
        ([9, 4, 4, NAN, NAN], 40, True),
    ],
)
def test_a_curve_reaches_a_level_for_good_if_it_never_is_above_it_later(losses, step, censored):
    found = times_to_level(STEPS, np.array([losses, [4] * 5], np.float32), 5.0, for_good=True)
    np.testing.assert_array_equal(found, [[step, 0], [censored, False]])


def test_no_curve_reaches_a_level_before_a_second_evaluation():
    found = times_to_level(STEPS[:1], np.array([[4.0], [9.0]]), 5.0)
    np.testing.assert_array_equal(found, [[0, 0], [1, 1]])


def test_curve_is_kaplan_meiers_and_its_band_greenwoods_by_hand():
    """Seven seeds: an event at 2, two at 5, one at 8; censored at 3, 5 and 9."""
    curve = kaplan_meier(times(5, 2, 9, 3, 5, 8, 5, censored=(2, 3, 6)))
    survival = np.cumprod([1, 6 / 7, 1, 3 / 5, 1 / 2, 1])
    np.testing.assert_array_equal(curve.step_T, [0, 2, 3, 5, 8, 9])
    np.testing.assert_allclose(curve.share_T, 1 - survival, atol=1e-12)
    greenwood = np.cumsum([1 / (7 * 6), 0, 2 / (5 * 3), 1 / (2 * 1), 0])
    error = 1.959963984540054 * np.sqrt(greenwood) / -np.log(survival[1:])
    for band, sign in ((curve.low_T, -1), (curve.high_T, 1)):
        assert math.isnan(band[0])  # no event yet
        np.testing.assert_allclose(band[1:], 1 - survival[1:] ** np.exp(sign * error), rtol=1e-9)
    assert (curve.low_T[1:] < curve.share_T[1:]).all()
    assert (curve.share_T[1:] < curve.high_T[1:]).all()


def test_without_censoring_the_curve_is_the_share_of_seeds():
    steps = np.random.default_rng(0).integers(1, 9, 20)
    curve = kaplan_meier(times(*steps))
    shares = [(steps <= step).mean() for step in curve.step_T]
    np.testing.assert_allclose(curve.share_T, shares, atol=1e-12)
    assert np.isnan(curve.low_T[-1]) and np.isnan(curve.high_T[-1])


@pytest.mark.parametrize("count", [1, 5])
def test_without_events_the_curve_is_zero_and_there_is_no_median(count):
    never = times(*[9] * count, censored=tuple(range(count)))
    curve = kaplan_meier(never)
    np.testing.assert_array_equal(curve.share_T, [0, 0])
    assert median_time(curve) == (np.inf, np.inf, np.inf) and math.isnan(logrank_p(never, never))


def test_median_time_is_where_the_curve_reaches_a_half_and_its_interval_where_the_band_does():
    for count in range(2, 30):  # products of shares that are a half but for rounding
        assert median_time(kaplan_meier(times(*range(1, count + 1))))[1] == (count + 1) // 2
    curve = kaplan_meier(times(*range(1, 21)))
    low, high = (curve.step_T[np.argmax(band >= 0.5)] for band in (curve.high_T, curve.low_T))
    assert median_time(curve) == (low, 10, high)
    half = kaplan_meier(times(1, 2, 3, 4, 9, 9, 9, 9, censored=(4, 5, 6, 7)))
    low, middle, high = median_time(half)
    assert low < middle == 4 and high == np.inf


def test_bands_and_medians_cover_a_constant_hazard():
    """Mean 100 steps, observed until 150: 3 of 4 have an event. 400 runs of 64 seeds."""
    rng, covered = np.random.default_rng(0), []
    for _ in range(400):
        true_S = np.ceil(rng.exponential(100, 64))
        curve = kaplan_meier(Times(np.minimum(true_S, 150), true_S > 150))
        low, _, high = median_time(curve)
        at = np.searchsorted(curve.step_T, 40, side="right") - 1
        band = curve.low_T[at] <= 1 - math.exp(-0.4) <= curve.high_T[at]
        covered.append((low <= 70 <= high, band))
    shares = np.mean(covered, axis=0)
    assert ((shares > 0.92) & (shares < 0.985)).all()


def test_logrank_is_mantels_by_hand():
    """First: 1, 3, 6+; second: 3, 4+, 6."""
    first, second = times(1, 3, 6, censored=(2,)), times(3, 4, 6, censored=(1,))
    #        at risk (first, all), came (first, all) at the steps 1, 3 and 6
    risks = [(3, 6, 1, 1), (2, 5, 1, 2), (1, 2, 0, 1)]
    excess = sum(came - d * own / n for own, n, came, d in risks)
    variance = sum(d * own / n * (1 - own / n) * (n - d) / max(n - 1, 1) for own, n, _, d in risks)
    expected = 2 * stats.norm.sf(abs(excess) / math.sqrt(variance))
    np.testing.assert_allclose(logrank_p(first, second), expected, rtol=1e-9)
    np.testing.assert_allclose(logrank_p(second, first), expected, rtol=1e-9)


def test_a_race_is_decided_seed_by_seed():
    # before, after, same, never, only here, only there, when the other was last seen, unknown
    here = times(1, 5, 3, 9, 4, 9, 9, 2, censored=(3, 5, 7))
    there = times(2, 4, 3, 9, 9, 4, 9, 8, censored=(3, 4, 6))
    found, back = sign_test(here, there), sign_test(there, here)
    assert (found.won, found.lost) == (3, 2) == (back.lost, back.won)
    assert found.share == 0.6 and found.p == back.p == 1.0
    least = sign_test(times(*[1] * 6), times(*[2] * 6))  # six heads or six tails
    assert least.won == 6 and least.p == pytest.approx(2 / 2**6)
    assert (least.low, least.high) == pytest.approx((0.025 ** (1 / 6), 1))
    undecided = sign_test(here, here)
    assert undecided[:2] == (0, 0) and np.isnan(undecided[2:]).all()
