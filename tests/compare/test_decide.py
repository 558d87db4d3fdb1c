"""Interval, decision and plan, judged by draws of seeds (benchmarks/compare_draws.py)."""

import sys
from pathlib import Path

import numpy as np
import pytest
from draws import draws
from scipy.stats import ttest_ind, ttest_rel

from jaxtie.compare.decide import DEVIATION, Ends, decide, interval, plan, stuck

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import compare_draws as drawn

DRAWS = draws(300)
SLACK, WRONG = 3 * np.sqrt(0.09 / DRAWS), 0.05 + 3 * np.sqrt(0.05 / DRAWS)


@pytest.mark.parametrize("design", drawn.DESIGNS)
@pytest.mark.parametrize("count", drawn.COUNTS)
def test_intervals_cover_the_gap_in_nine_of_ten_draws(design, count):
    """Where correlated pairs count as unpaired, or are few, the interval is too wide."""
    seeds = drawn.design(design, count)
    for gap, correlation in zip(drawn.GAPS, (0.0, 0.5, 0.0, 0.5)):
        inside, wrong, _ = drawn.of_ends(DRAWS, seeds, gap, correlation=correlation)
        is_wide = design == "partly paired" and correlation and count < 14
        assert 0.88 - SLACK < inside < (0.96 if is_wide else 0.92) + SLACK
        assert wrong < WRONG


@pytest.mark.parametrize("ratio", [0.5, 2])
def test_intervals_cover_the_gap_of_arms_that_deviate_otherwise(ratio):
    for seeds in ((0, 3), (0, 5), (4, 2), (3, 0), (0, 14)):
        a, b = drawn.draw(np.random.default_rng(0), 4 * DRAWS, seeds)
        gap, half = interval(Ends(3.3 + ratio * (a - 3.3), b, seeds[0]))
        assert 0.87 - SLACK < (np.abs(gap) <= half).mean() < 0.94 + SLACK, seeds


@pytest.mark.parametrize("digits", [2, 3])
@pytest.mark.parametrize("scale", [0.02, 0.3, 1.0])
def test_rounding_widens_intervals_enough(digits, scale):
    """Without the floor, two decimals and a small deviation cover the gap in under half."""
    for seeds in ((3, 0), (0, 3), (14, 0), (0, 14), (3, 2)):
        for gap in drawn.GAPS[:3]:
            how = {"digits": digits, "deviation": scale * DEVIATION}
            inside, wrong, _ = drawn.of_ends(DRAWS, seeds, gap + 0.0013, **how)
            assert inside > 0.88 - SLACK and wrong < WRONG


@pytest.mark.parametrize("seeds", [(3, 0), (3, 2), (0, 5)])
def test_curves_that_are_cut_and_arms_without_stuck_seeds_are_judged_as_well(seeds):
    for gap in drawn.GAPS[::2]:
        inside, wrong, _ = drawn.of_curves(DRAWS, seeds, gap)
        assert 0.88 - SLACK < inside < 0.92 + SLACK and wrong < WRONG
    inside, wrong, _, exact = drawn.of_stuck(DRAWS, (seeds[0], 8 - seeds[0]), 0.009)
    assert 0.88 - SLACK < inside < 0.92 + SLACK and wrong < WRONG and exact > 0.97


def test_pairs_alone_are_students_and_no_pairs_are_nearly_welchs():
    a, b = np.random.default_rng(0).normal(size=(2, 9))
    mean, half = interval(Ends(a, b, 9))
    low, high = ttest_rel(a, b).confidence_interval(0.9)
    np.testing.assert_allclose([mean - half, mean + half], [low, high])
    mean, half = interval(Ends(a, b[:7], 0))
    low, high = ttest_ind(a, b[:7], equal_var=False).confidence_interval(0.9)
    np.testing.assert_allclose([mean - half, mean + half], [low, high], rtol=0.1, atol=0.05)


def test_correlated_pairs_and_further_seeds_narrow_the_interval():
    for correlation, seeds, fewer in ((0.5, (6, 4), (0, 10)), (0.0, (10, 10), (10, 0))):
        a, b = drawn.draw(np.random.default_rng(0), 300, (seeds), correlation=correlation)
        half = interval(Ends(a, b, seeds[0]))[1].mean()
        a, b = a[:, : sum(fewer)], b[:, : sum(fewer)]
        assert half < 0.9 * interval(Ends(a, b, fewer[0]))[1].mean()


def test_one_seed_each_has_no_interval_and_one_seed_borrows_a_deviation():
    one, three = np.array([3.3]), np.array([3.2, 3.21, 3.22])
    mean, half = interval(Ends(one, one - 0.02, 0))
    assert mean == pytest.approx(0.02) and np.isnan(half)
    mean, half = interval(Ends(one, three, 0))
    assert mean == pytest.approx(0.09)
    assert half == pytest.approx(2.92 * 0.01 * np.sqrt(4 / 3), rel=1e-3)


@pytest.mark.parametrize(
    ("low", "high", "answer"),
    [
        (0.011, 0.02, "larger"),
        (-0.02, -0.011, "smaller"),
        (-0.009, 0.009, "no difference beyond the margin"),
        (0.001, 0.009, "no difference beyond the margin"),
        (0.001, 0.02, "not decided"),
        (-0.02, 0.02, "not decided"),
        (np.nan, np.nan, "not decided"),
    ],
)
def test_decisions(low, high, answer):
    assert decide(low, high, 0.01) == answer


@pytest.mark.parametrize("seeds", [(0, 2), (3, 0)])
def test_planned_seeds_decide_about_as_often_as_stated(seeds):
    assert 0.55 < drawn.of_plans(20, seeds, 0.01)[0] <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(1, 0), (0, 2), (3, 0), (0, 5)])
def test_planned_seeds_decide_in_four_of_five_draws(seeds):
    slack = 3 * 0.4 / np.sqrt(draws(200))
    assert 0.75 - slack < drawn.of_plans(draws(200), seeds, 0.005)[0] < 0.85 + slack


def test_plans_follow_the_deviation_that_was_seen_only_with_enough_seeds():
    rng = np.random.default_rng(0)
    for count, is_near in ((2, True), (8, False)):
        x = 0.0001 * rng.normal(size=(2, count))
        _, deviation = plan(Ends(*(3 + x), 0), 1e-3, DEVIATION)
        assert (deviation > DEVIATION / 2) == is_near


def test_normal_seeds_are_not_called_stuck():
    false = 0
    for a, b in zip(*drawn.draw(np.random.default_rng(0), DRAWS, (8, 0), deviation=0.015)):
        false += any(own.any() for own in stuck(a, b))
    assert false <= 0.03 * DRAWS
    few = np.array([3.3, 4.5]), np.array([3.301, 3.302, 3.303])
    assert stuck(*few)[0].tolist() == [False, True]
    assert not any(own.any() for own in stuck(np.array([3.3]), np.array([3.3, 4.5])))


@pytest.mark.slow
def test_the_tables_are_printed(capsys):
    drawn.main(["--draws", "20", "--plans", "5"])
    printed = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("| ") for line in printed) == 2 + 20 + 24 + 12 + 9 + 2 + 48
