"""`experiments/lab/copying.py`: kinds of targets by brute force, their losses by the run's own."""

import itertools

import numpy as np
import pandas as pd
import pytest
from copying import KINDS, copying_table, kinds_of, main
from text_fixtures import finished_run, place

from jaxtie.run import lifecycle

__all__ = ["place"]  # a fixture


def test_kinds_match_a_search_of_each_window():
    rng = np.random.default_rng(0)
    tokens_BxL, rare_V = rng.integers(0, 9, (20, 12)), np.arange(9) % 2 == 0
    found = kinds_of(tokens_BxL, rare_V)
    for row, kinds in zip(tokens_BxL.tolist(), found, strict=True):
        for at in range(1, len(row)):
            window, target = row[:at], row[at]
            pairs = {*itertools.pairwise(window)}
            if (window[-1], target) in pairs:
                expected = "pair"
            elif target in window:
                expected = "seen"
            else:
                expected = "new, rare" if rare_V[target] else "new, frequent"
            assert KINDS[kinds[at - 1]] == expected
    assert {*found.ravel()} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("lead", "spread", "verdict"),
    [(0.1, 0.01, "holds"), (0.3, 0.2, "inconclusive"), (0.9, 0.01, "fails")],
)
def test_the_rule_compares_the_lead_on_new_targets_with_that_on_pairs(lead, spread, verdict):
    def lead_of(kind, seed):
        own = lead + spread * (seed - 1)
        return dict(zip(KINDS, (1.0, 0.5, own - 0.05, own + 0.05)))[kind]

    rows = [
        (arm, seed, kind, 0.25, 3 + seed - lead_of(kind, seed) * (arm == "tied"))
        for arm in ("tied", "untied")
        for seed in range(3)
        for kind in KINDS
    ]
    found = pd.DataFrame(rows, columns=["arm", "seed", "kind", "share", "loss"])
    table = copying_table(found, "tied", "untied")
    assert f"= {lead - 0.25:+.3f} [" in table.note and f"**{verdict}**" in table.note
    assert table.rows[-1][4:6] == ("-1.000 ± 0.000", "-0.500 ± 0.000")
    gap = 0.25 * (1.0 + 0.5 + 2 * lead)
    assert table.rows[1][:4] == ("1", f"{4 - gap:.3f}", "4.000", f"{-gap:.3f}")
    few = copying_table(found[found["seed"] < 2], "tied", "untied")
    assert "2 seeds: **inconclusive**" in few.note


@pytest.mark.slow
def test_the_losses_of_a_run_are_those_of_its_last_evaluation(place, tmp_path, monkeypatch):
    run = finished_run(place, tmp_path / "run", "--seeds", "2,5", name="text_clm")
    (tmp_path / "experiments" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["copying.py", str(run)])
    assert main() == main() == 0  # a second time changes nothing
    found = pd.read_csv("experiments/data/copying.csv")
    assert len(found) == 2 * 2 * len(KINDS)
    losses = lifecycle.load(run)["valid_loss"].isel(eval_step=-1)
    for (arm, seed), own in found.groupby(["arm", "seed"]):
        assert own["share"].sum() == pytest.approx(1, abs=1e-5)
        mean = own["share"] @ own["loss"]
        assert mean == pytest.approx(float(losses.sel(arm=arm, seed=seed)), abs=2e-5)
