"""Claims over several experiments."""

import dataclasses

import numpy as np
import pytest
from made_up import stuck_results

from jaxtie.config import UserError
from jaxtie.exor.claims import ExorClaim
from jaxtie.results.claims import claim_values, judge_claims


def test_claims_over_experiments_pair_by_seed():
    """Contrasts use the seeds that all experiments have, and report their number."""
    published = stuck_results("p", {"tied": [*range(20)], "untied": [0, 1]})
    own = stuck_results(
        "o", {"tied+targets-only": [39], "untied+targets-only": []}, range(220, 260)
    )
    runs = {"p": published, "o": own}
    weights = {"p: tied": 1, "p: untied": -1, "tied+targets-only": -1, "untied+targets-only": 1}
    claim = ExorClaim("They are freed.", "stuck share", weights, high=0)
    values = claim_values(own, claim, runs)
    assert values["seed"].values.tolist() == list(range(220, 240))
    np.testing.assert_array_equal(values, np.zeros(20))  # stuck ones are 200 to 219 there, 259 here
    most = ExorClaim("Most.", "stuck share", {"p: tied": 0.25, "p: untied": -0.25}, low=0)
    ((verdict, found),) = judge_claims([most], own, runs)
    assert found.seeds == 40 and found.found.endswith(", 40 seeds")
    expected = [0.0] * 2 + [0.25] * 18 + [0.0] * 20
    assert found.middle == pytest.approx(np.mean(expected)) and verdict == "holds"
    ((verdict, _),) = judge_claims([most], own, {"o": own})
    assert verdict == "no data yet"
    with pytest.raises(UserError, match=r"p: no arm tied\+bias, which a claim is about"):
        claim_values(own, dataclasses.replace(most, arms={"p: tied+bias": 1}), runs)
