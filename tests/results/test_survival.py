"""When something happens to seeds, some of which it has not happened to: by hand, by enumeration,
by known laws.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from jaxtie.results.statistics import (
    Times,
    kaplan_meier,
    logrank_p,
    median_time,
    race,
    share_interval,
    sign_test,
    times_to_level,
)

STEPS = np.array([0, 10, 20, 30, 40])
NAN = np.nan


def times(*steps: float, censored: tuple[int, ...] = ()) -> Times:
    """Seeds that came at these steps, but for those censored, by their place."""
    return Times(np.array(steps, float), np.isin(np.arange(len(steps)), censored))


@pytest.mark.parametrize(
    ("losses", "step", "censored"),
    [
        ([9, 9, 5, 4, 4], 20, False),  # at the level is there
        (
            [9, 4, 9, 9, 4],
            40,
            True,
        ),  # a dip that one evaluation sees; and what only the last one sees
        ([9, 4, 9, 4, 4], 30, False),
        ([9, 4, 4, 9, 9], 10, False),  # it came, whatever it did then
        ([4, 4, 9, 9, 9], 0, False),
        ([9, 9, 9, 9, 9], 40, True),
        (
            [9, 9, NAN, NAN, NAN],
            40,
            True,
        ),  # it diverged: it counts to the end among those that have not come
        ([9, 4, NAN, NAN, NAN], 40, True),
        ([9, 4, 4, NAN, NAN], 10, False),
    ],
)
def test_a_curve_comes_to_a_level_when_two_evaluations_in_a_row_see_it_there(
    losses, step, censored
):
    found = times_to_level(STEPS, np.array([losses, [9] * 5], np.float32), 5.0)
    assert (found.step_S[0], found.censored_S[0]) == (step, censored)
    assert (found.step_S[1], found.censored_S[1]) == (40, True)
    np.testing.assert_array_equal(found.by(step), [not censored, False])
    assert not found.by(step - 1).any()


def test_before_a_second_evaluation_nothing_has_come():
    found = times_to_level(STEPS[:1], np.array([[4.0], [9.0]]), 5.0)
    np.testing.assert_array_equal(found, [[0, 0], [1, 1]])


def test_the_curve_is_kaplans_and_meiers_and_its_band_greenwoods_by_hand():
    """Seven seeds: one comes at 2, one is lost at 3, two come at 5, one is lost there, one comes at
    8, one never by 9.
    """
    curve = kaplan_meier(times(5, 2, 9, 3, 5, 8, 5, censored=(2, 3, 6)))
    survival = np.array(
        [1, 6 / 7, 6 / 7, 6 / 7 * 3 / 5, 6 / 7 * 3 / 5 * 1 / 2, 6 / 7 * 3 / 5 * 1 / 2]
    )
    np.testing.assert_array_equal(curve.step_T, [0, 2, 3, 5, 8, 9])
    np.testing.assert_allclose(curve.share_T, 1 - survival, atol=1e-12)
    greenwood = np.cumsum([1 / (7 * 6), 0, 2 / (5 * 3), 1 / (2 * 1), 0])
    error = 1.959963984540054 * np.sqrt(greenwood) / -np.log(survival[1:])
    for band, sign in ((curve.low_T, -1), (curve.high_T, 1)):
        assert math.isnan(band[0])  # no seed has come
        np.testing.assert_allclose(band[1:], 1 - survival[1:] ** np.exp(sign * error), rtol=1e-9)
    assert (curve.low_T[1:] < curve.share_T[1:]).all() and (
        curve.share_T[1:] < curve.high_T[1:]
    ).all()


def test_without_censoring_the_share_is_that_of_the_seeds_without_a_band_at_the_end():
    steps = np.random.default_rng(0).integers(1, 9, 20)
    curve = kaplan_meier(times(*steps))
    np.testing.assert_allclose(
        curve.share_T, [(steps <= step).mean() for step in curve.step_T], atol=1e-12
    )
    assert np.isnan(curve.low_T[-1]) and np.isnan(curve.high_T[-1])


@pytest.mark.parametrize("count", [1, 5])
def test_seeds_that_never_come_have_a_curve_of_zero_and_no_median(count):
    curve = kaplan_meier(times(*[9] * count, censored=tuple(range(count))))
    np.testing.assert_array_equal(curve.share_T, [0, 0])
    assert median_time(curve) == (np.inf, np.inf, np.inf)


def test_the_median_is_when_half_have_come_and_its_interval_where_the_band_holds_a_half():
    for count in range(2, 30):  # products of shares that are a half but for rounding
        assert median_time(kaplan_meier(times(*range(1, count + 1))))[1] == (count + 1) // 2
    curve = kaplan_meier(times(*range(1, 21)))
    assert median_time(curve) == (
        next(step for step, high in zip(curve.step_T, curve.high_T, strict=True) if high >= 0.5),
        10,
        next(step for step, low in zip(curve.step_T, curve.low_T, strict=True) if low >= 0.5),
    )
    low, middle, high = median_time(
        kaplan_meier(times(1, 2, 3, 4, 9, 9, 9, 9, censored=(4, 5, 6, 7)))
    )
    # half have come; of how many it would be half is not known
    assert low < middle == 4 and high == np.inf


def test_bands_and_medians_cover_the_known_law_of_constant_hazard():
    """Mean 100 steps, seen at every step until 150: 3 of 4 come. Intervals of 95 % from 400 runs of
    64 seeds.
    """
    rng, covered = np.random.default_rng(0), []
    for _ in range(400):
        true_S = np.ceil(rng.exponential(100, 64))
        censored_S = true_S > 150
        curve = kaplan_meier(Times(np.minimum(true_S, 150), censored_S))
        low, _, high = median_time(curve)
        at = np.searchsorted(curve.step_T, 40, side="right") - 1
        covered.append(
            (low <= 70 <= high, curve.low_T[at] <= 1 - math.exp(-0.4) <= curve.high_T[at])
        )
    assert ((np.mean(covered, axis=0) > 0.92) & (np.mean(covered, axis=0) < 0.985)).all()


def test_logrank_is_mantels_by_hand():
    """First: 1, 3, 6+; second: 3, 4+, 6."""
    first, second = times(1, 3, 6, censored=(2,)), times(3, 4, 6, censored=(1,))
    #        at risk (first, all), came (first, all) at the steps 1, 3 and 6
    risks = [(3, 6, 1, 1), (2, 5, 1, 2), (1, 2, 0, 1)]
    excess = sum(came - d * own / n for own, n, came, d in risks)
    variance = sum(d * own / n * (1 - own / n) * (n - d) / max(n - 1, 1) for own, n, _, d in risks)
    np.testing.assert_allclose(
        logrank_p(first, second), 2 * stats.norm.sf(abs(excess) / math.sqrt(variance)), rtol=1e-9
    )
    np.testing.assert_allclose(logrank_p(first, second), logrank_p(second, first), rtol=1e-9)


def test_logrank_says_nothing_where_no_seed_has_come():
    never = times(9, 9, 9, censored=(0, 1, 2))
    assert math.isnan(logrank_p(never, never))


def test_a_race_is_decided_seed_by_seed():
    # before, after, same, never, only here, only there, came when the other was last seen, unknown
    here = times(1, 5, 3, 9, 4, 9, 9, 2, censored=(3, 5, 7))
    there = times(2, 4, 3, 9, 9, 4, 9, 8, censored=(3, 4, 6))
    found, back = race(here, there), race(there, here)
    assert (found.won, found.lost) == (3, 2) == (back.lost, back.won)
    assert found.share == 0.6 and found.p == back.p == 1.0


@pytest.mark.parametrize("count", range(1, 9))
def test_its_p_is_the_share_of_all_outcomes_as_one_sided_as_the_one_seen(count):
    """If neither arm were faster, every pair would be won by a fair coin: 2^count outcomes, all
    alike.
    """
    outcomes = [sum(wins) for wins in itertools.product([0, 1], repeat=count)]
    for won in range(count + 1):
        extreme = [abs(wins - count / 2) >= abs(won - count / 2) for wins in outcomes]
        wins = np.arange(count + 2) < won  # and two pairs that nobody wins
        losses = (np.arange(count + 2) < count) & ~wins
        found = sign_test(wins, losses)
        assert (found.won, found.lost, found.share) == (won, count - won, won / count)
        np.testing.assert_allclose(found.p, np.mean(extreme), rtol=1e-9)
        assert found.low <= found.share <= found.high
    nobody = sign_test(np.zeros(count, bool), np.zeros(count, bool))
    assert nobody[:2] == (0, 0) and np.isnan(nobody[2:]).all()


def test_shares_have_exact_intervals():
    assert share_interval(np.zeros(10, bool)) == pytest.approx((0, 1 - 0.025**0.1))
    assert share_interval(np.ones(10, bool)) == pytest.approx((0.025**0.1, 1))
    low, high = share_interval(np.arange(10) < 3)
    np.testing.assert_allclose(
        [stats.binom.sf(2, 10, low), stats.binom.cdf(3, 10, high)], 0.025, rtol=1e-6
    )
