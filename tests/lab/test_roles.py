"""Gradients by role and similarities in committed results, and the claims about them."""

import numpy as np
import pytest
import xarray as xr
from condense import condense_exor
from made_up import tying_costs
from roles import contribution_table, shares_table

from jaxtie.exor.claims import ExorClaim, measured
from jaxtie.results.claims import claim_values, judge_claims


@pytest.fixture
def results():
    return tying_costs(("tied", "untied", "tied+bias", "untied+bias"))


def judged(results, *claims: ExorClaim) -> list[str]:
    return [verdict for verdict, _ in judge_claims(claims, results, {})]


def with_roles(results: xr.Dataset) -> xr.Dataset:
    """Over the first record the output role writes 0.9 of the table, later 0.6, but for noise;
    pushes are ±0.1.
    """
    steps, seeds = results["step"].values, results.sizes["seed"]
    rng, dims = np.random.default_rng(4), ("arm", "seed", "step", "group")
    shape = (results.sizes["arm"], seeds, len(steps), 7)
    noise = 0.01 * rng.normal(size=shape)
    written = np.where(np.arange(len(steps)) == 1, 0.9, 0.6)[:, None] + noise
    square = rng.uniform(0.99, 1.01, shape)
    found = {"step_square": (dims, square), "input_step_product": (dims, (1 - written) * square)}
    for name in ("input_gradient_square", "output_gradient_square", "gradient_product"):
        found[name] = dims, square
    for role, push in (("input", -0.1), ("output", 0.1)):
        pushed = push + 0.001 * rng.normal(size=(*shape[:3], 2))
        found[f"{role}_push"] = (*dims[:3], "pair"), pushed
    made = results.assign(found)
    for name in found:
        made[name] = made[name].where((made["arm"] != "untied") & (made["step"] > 0))
    return made.assign_coords(group=list("XYABEDm"))


def test_shares_and_pushes_of_a_run_and_of_its_committed_results(results):
    """Committed records have different numbers of updates between them."""
    made = with_roles(results)
    claims = (
        ExorClaim("early", "output share, early", "tied", 0.89, 0.91),
        ExorClaim("more than later", "output share, early less later", "tied", 0.29, 0.31),
        ExorClaim("either arm", "output share, early", {"tied": 0.5, "tied+bias": 0.5}, 0.89, 0.91),
        ExorClaim("apart", "output push", "tied", 0.99, 1.01),
        ExorClaim("together", "input push", "tied", -1.01, -0.99),
    )
    assert claims[2].expression == "output share, early: 0.5 tied + 0.5 tied+bias"
    kept = condense_exor(made)
    assert kept["step_square"].sizes["step"] < made["step_square"].sizes["step"]
    for each in (made, kept):
        assert judged(each, *claims) == ["holds"] * 5
    for claim in claims:
        np.testing.assert_allclose(claim_values(kept, claim), claim_values(made, claim), rtol=1e-5)
    arm, rows, *cells = shares_table(kept).rows[0]
    assert (arm, rows) == ("tied", "all")
    assert cells[0].startswith("0.90") and cells[1].startswith("0.60")
    pushed = contribution_table(kept).rows[0]
    assert pushed[:2] == ("tied", "X-Y")
    assert [float(cell.split()[0]) for cell in pushed[2:4]] == pytest.approx([1, -1], abs=0.01)
    untied = next(row for row in contribution_table(kept).rows if "untied" in row[0])
    by_table = [
        np.median(measured(kept, "decay ratio", "X-Y", table).sel(arm="untied"))
        for table in ("output", "input")
    ]
    assert [float(cell.split()[0]) for cell in untied[2:4]] == pytest.approx(by_table, abs=1e-3)
    assert untied[4:] == ("–", "–")


def test_nearness_compares_with_the_untied_tables_of_the_same_seed(results):
    """The tied table ends as the untied output table, the one with a bias as the input table."""
    made = with_roles(results)
    for arm, table in (("tied", "output_table"), ("tied+bias", "input_table")):
        end = made[table].sel(arm="untied", table_step=100)
        made["input_table"].loc[{"arm": arm, "table_step": 100}] = end
    kept = condense_exor(made)
    nearer = ExorClaim("nearer", "nearness by CKA", "tied", low=0.05)
    less = ExorClaim("less", "nearness by CKA", "tied+bias", high=-0.05)
    mean = {"tied": 0.5, "tied+bias": 0.5}
    both = ExorClaim("not on the whole", "nearness by linear map", mean, -0.1, 0.1)
    assert judged(kept, nearer, less) == ["holds", "holds"] and judged(kept, both) == ["holds"]
    assert "neighbours" not in kept["measure"].values  # of seven symbols
