"""The rule by which measurements judge a claim, and how it is told."""

import math

import numpy as np

from jaxtie.results.claims import Comparison, compare, compare_median, judge, verdict_table


def test_the_rule():
    within, wide, beyond = (
        Comparison("a", 0.1, 0.2, 0.3),
        Comparison("b", -1, 0.2, 2),
        Comparison("c", 1, 2, 3),
    )
    alone = Comparison("d", math.nan, 0.2, math.nan)  # one seed
    assert judge([within], 0, 0.5) == ("holds", within)
    assert judge([within, wide], 0, 0.5) == ("inconclusive", wide)
    assert judge([within, beyond, wide], 0, 0.5) == ("fails", beyond)
    for low, high in ((0, 0.5), (-math.inf, 0.5), (0, math.inf)):
        assert judge([within, alone], low, high) == ("inconclusive", alone)
    assert judge([beyond, within._replace(high=math.inf)], 0, math.inf)[0] == "holds"
    assert judge([within._replace(high=math.inf)], 0, 0.5)[0] == "inconclusive"
    assert judge([Comparison("e", -3, -2, -1)], 0, math.inf)[0] == "fails"
    assert judge([Comparison("e", -3, -2, -1)], -math.inf, 0)[0] == "holds"
    assert judge([Comparison("f", -math.inf, -2, -1)], -math.inf, 0)[0] == "holds"
    assert judge([within], -math.inf, 0)[0] == "fails"


def test_intervals_are_wider_where_several_must_be_right():
    values = np.array([1.0, 2.0, 4.0])
    alone, of_three = compare("a", values), compare("a", values, 3)
    half = 4.302653 * values.std(ddof=1) / math.sqrt(3)  # Student's t, 2 degrees of freedom
    np.testing.assert_allclose(alone[1:4], values.mean() + half * np.array([-1, 0, 1]), rtol=1e-6)
    assert (
        of_three.low < alone.low and of_three.high > alone.high and of_three.middle == alone.middle
    )
    assert math.isnan(compare("a", values[:1]).low)
    # a seed that diverged: of the others nothing follows
    missing = compare("a", np.array([1.0, 2.0, math.nan]))
    assert math.isnan(missing.low) and missing.middle == 1.5


def test_a_verdict_tells_where():
    here, there = (
        judge([Comparison("a", 1, 2, 3)], 0, 4),
        judge([Comparison("b", -1, -0.5, 1, is_factor=True)], 0, 4),
    )
    rows = verdict_table({"one": {"": here}, "two": {"x": here, "y": there}}, "seeds").rows
    assert rows[0] == ("one", "holds", "a +2.000 [+1.000, +3.000]")
    assert rows[1][1:] == (
        "holds at x; inconclusive at y",
        "x: a +2.000 [+1.000, +3.000]; y: b 0.61 [0.37, 2.72]",
    )


def test_a_median_lies_between_two_of_the_values_by_rank():
    """Of ten values, the second and the ninth: fewer than two heads, or more than eight, fall with
    2.1 %.
    """
    values = np.array([7.0, 1, 3, 2, 5, 4, 6, 9, 8, 1e9])
    assert compare_median("a", values)[1:4] == (2, 5.5, 9)
    assert compare_median("a", values, 20)[1:4] == (1, 5.5, 1e9)
    assert math.isnan(compare_median("a", np.append(values, np.nan)).low)
