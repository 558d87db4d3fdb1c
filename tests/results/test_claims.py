"""Claims: the rule that judges them, the quantities they measure, and their table."""

import dataclasses
import math

import numpy as np
import pytest
from made_up import exor_results, tying_costs
from scipy import stats

from jaxtie.config import UserError
from jaxtie.exor.claims import ExorClaim
from jaxtie.results.claims import (
    Estimate,
    claim_values,
    claims_table,
    estimate_of,
    judge,
    judge_claims,
)
from jaxtie.results.tables import Table

INF, NAN = math.inf, math.nan
WITHIN, WIDE = Estimate("a", 0.1, 0.2, 0.3), Estimate("b", -1, 0.2, 2)
BEYOND, BELOW = Estimate("c", 1, 2, 3), Estimate("e", -3, -2, -1)
ONE_SEED = Estimate("d", NAN, 0.2, NAN)
OPEN, OPEN_BELOW = WITHIN._replace(high=INF), BELOW._replace(low=-INF)
COST = {"tied": 1, "untied": -1}
COST_WITH_BIAS = {"tied+bias": 1, "untied+bias": -1}


@pytest.mark.parametrize(
    "compared, bounds, verdict",
    [
        (WITHIN, (0, 0.5), "holds"),
        (WIDE, (0, 0.5), "inconclusive"),
        (BEYOND, (0, 0.5), "fails"),
        (ONE_SEED, (0, 0.5), "inconclusive"),
        (ONE_SEED, (-INF, 0.5), "inconclusive"),
        (ONE_SEED, (0, INF), "inconclusive"),
        (OPEN, (0, INF), "holds"),
        (OPEN, (0, 0.5), "inconclusive"),
        (BELOW, (0, INF), "fails"),
        (BELOW, (-INF, 0), "holds"),
        (OPEN_BELOW, (-INF, 0), "holds"),
        (WITHIN, (-INF, 0), "fails"),
    ],
)
def test_rule(compared, bounds, verdict):
    assert judge(compared, *bounds) == verdict


def test_several_means_have_wider_intervals():
    values = np.array([1.0, 2.0, 4.0])
    alone, of_three = estimate_of("a", values), estimate_of("a", values, 3)
    half = 4.302653 * values.std(ddof=1) / math.sqrt(3)  # Student's t, 2 degrees of freedom
    np.testing.assert_allclose(alone[1:4], values.mean() + half * np.array([-1, 0, 1]), rtol=1e-6)
    assert of_three.low < alone.low and of_three.high > alone.high
    assert of_three.middle == alone.middle and math.isnan(estimate_of("a", values[:1]).low)
    diverged = estimate_of("a", np.array([1.0, 2.0, NAN]))
    assert math.isnan(diverged.low) and diverged.middle == 1.5


def test_interval_of_a_median_ends_at_two_of_the_values():
    """Of ten values the second and the ninth: fewer than two heads, or more than eight, fall with
    2.1 %.
    """
    values = np.array([7.0, 1, 3, 2, 5, 4, 6, 9, 8, 1e9])
    assert estimate_of("a", values, by_median=True)[1:4] == (2, 5.5, 9)
    assert estimate_of("a", values, 20, by_median=True)[1:4] == (1, 5.5, 1e9)
    assert math.isnan(estimate_of("a", np.append(values, NAN), by_median=True).low)


def test_intervals_as_text():
    assert Estimate("a", 1, 2, 3).found == "+2.000 [+1.000, +3.000]"
    assert Estimate("b", -1, -0.5, 1, is_factor=True).found == "0.61 [0.37, 2.72]"
    assert Estimate("c", NAN, 2e-4, 0, seeds=1024).found == "+2.0e-04 [–, +0.000], 1,024 seeds"


@pytest.fixture
def results():
    return tying_costs(("tied", "untied", "tied+bias", "untied+bias"))


def judged(results, *claims: ExorClaim, others=None) -> list[str]:
    return [verdict for verdict, _ in judge_claims(claims, results, others or {})]


def test_verdicts_follow_the_interval(results):
    claims = (
        ExorClaim("more than 0", "loss", COST, low=0),
        ExorClaim("less than 0", "loss", COST, high=0),
        ExorClaim("nothing", "loss", COST_WITH_BIAS, -0.05, 0.05),
        ExorClaim("more than 0, with a bias", "loss", COST_WITH_BIAS, low=0),
        ExorClaim("less", "loss", {**COST, "tied+bias": -1, "untied+bias": 1}, low=0.15),
    )
    assert judged(results, *claims) == ["holds", "fails", "holds", "inconclusive", "holds"]


def test_intervals_are_corrected_for_the_number_of_claims(results):
    """Of ten claims each interval is Student's at 99.5 %."""
    claims = [ExorClaim(str(i), "loss", COST, low=0) for i in range(10)]
    differences = claim_values(results, claims[0]).values.astype(np.float64)
    _, compared = judge_claims(claims, results, {})[3]
    low, high = stats.t.interval(0.995, 39, differences.mean(), stats.sem(differences))
    np.testing.assert_allclose([compared.low, compared.high], [low, high])


def test_a_diverged_seed_leaves_a_claim_inconclusive(results):
    for loss in ("train_loss", "valid_loss"):
        results[loss].loc[{"arm": "tied", "seed": 3}] = NAN
    results["diverged_at"].loc[{"arm": "tied", "seed": 3}] = 50
    assert judged(results, ExorClaim("more", "loss", COST, low=0)) == ["inconclusive"]


def test_ratios_are_judged_by_the_median(results):
    """X-Y ends at 3 times what decay leaves of its start; one outlier changes no verdict."""
    place = {"arm": "tied", "symbol": "X", "symbol2": "Y"}
    distance = results["input_distance"]
    decay = float(results["decay_factor"].sel(step=100))
    assert decay == pytest.approx(0.99**10)
    noise = np.exp(0.01 * np.random.default_rng(2).normal(size=40))
    distance.loc[place | {"step": 100}] = 3 * decay * distance.sel(place | {"step": 0}) * noise
    distance.loc[place | {"step": 100, "seed": 7}] = 1e6
    three = ExorClaim("three times", "decay ratio", "tied", 2.9, 3.1)
    ((verdict, compared),) = judge_claims([three], results, {})
    assert verdict == "holds" and "3.0" in compared.found
    assert judged(results, ExorClaim("drawn together", "decay ratio", "tied", high=0.8)) == [
        "fails"
    ]
    x_a = distance.sel(arm="tied", symbol="X", symbol2="A", step=100).values
    expected = np.log(distance.sel(place | {"step": 100}).values / x_a)
    np.testing.assert_allclose(
        claim_values(results, ExorClaim("", "reference ratio", "tied")), expected
    )


def test_a_claim_against_another_experiment_pairs_seeds_and_waits_for_it(results):
    less = ExorClaim("costs more than there", "loss", COST, low=0, against="other")
    assert less.expression == "loss: tied − untied, against other"
    assert judged(results, less) == ["no data yet"]
    other = results.isel(seed=slice(10, None)).copy(deep=True)
    other["train_loss"].loc[{"arm": "tied"}] -= 0.1
    ((verdict, compared),) = judge_claims([less], results, {"other": other})
    assert verdict == "holds" and compared.middle == pytest.approx(0.1, abs=1e-6)


def test_a_missing_arm_is_a_user_error(results):
    message = r"made-up: no arm tied\+shuffle, which a claim is about: It is."
    with pytest.raises(UserError, match=message):
        judged(results, ExorClaim("It is.", "loss", "tied+shuffle", low=0))


def test_a_run_that_is_swept_gives_a_verdict_at_the_point_that_the_claim_names():
    """At no point in particular there is none; before, the values of some claims did not exist."""
    swept = exor_results("tied", "untied", learning_rate=[0.001, 0.003])
    for quantity in ("loss", "stuck share", "fluctuation"):
        claim = ExorClaim("It is.", quantity, COST, low=0)
        with pytest.raises(UserError, match="sweep of learning_rate: at no value of it is claimed"):
            claim_values(swept, claim)
        there = dataclasses.replace(claim, sweep_point={"learning_rate": 0.003})
        expected = claim_values(swept.sel(learning_rate=0.003), claim)
        np.testing.assert_array_equal(claim_values(swept, there), expected)


def test_the_table_lists_claims_of_others_first(results):
    own, theirs = (
        ExorClaim(name, "loss", "tied", low=0, source=source)
        for name, source in (("own", ""), ("theirs", "the paper"))
    )
    table = claims_table("Claims", {"made-up": results}, {"made-up": [own, theirs]})
    assert [(row[0], row[2]) for row in table.rows] == [("the paper", "theirs"), ("ours", "own")]


@pytest.mark.parametrize("note", ["", "A note | with a bar."])
def test_a_table_is_read_from_its_markdown(note):
    table = Table("A title", ("a", "b|c"), [("", "2 | 3"), ("x", "")], note)
    assert Table.read(table.markdown()) == table
    assert Table.read("") is Table.read("**no table**\n") is None


@pytest.mark.parametrize(
    "claim, expression, bounds",
    [
        (ExorClaim("", "loss", COST, low=0), "loss: tied − untied", "> 0"),
        (
            ExorClaim("", "decay ratio", {"tied": 0.5, "untied": -1}, 0.8, 1.25, table="output"),
            "decay ratio X-Y, output: 0.5 tied − untied",
            "0.8 to 1.25",
        ),
        (
            ExorClaim(
                "", "swap divergence", "p: tied", high=1, pair="A-B", sweep_point={"p_X": 0.1}
            ),
            "swap divergence A-B, p_X 0.1: p: tied",
            "< 1",
        ),
    ],
)
def test_claims_as_text(claim, expression, bounds):
    assert (claim.expression, claim.bounds) == (expression, bounds)


def test_a_claim_about_an_unknown_quantity_is_refused_at_once():
    with pytest.raises(UserError, match=r"'length': expected one of .*, loss, stuck share, "):
        ExorClaim("It is long.", "length", "tied")
