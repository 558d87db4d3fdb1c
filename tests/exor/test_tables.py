"""Tables of EXor results, on results that are made up."""

from pathlib import Path

import numpy as np
import pytest
from made_up import BEST, exor_results
from matplotlib.figure import Figure
from plateaus import plateau_exit_table

from jaxtie.exor import analysis, tables
from jaxtie.exor.plots import exor_panels

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_final_table():
    results = exor_results("tied+bias", "untied+bias", "tied", seeds=4)
    first = BEST["loss"] + np.array([0.04, 0.06, 0.01, 0.3])
    # of each seed as much more as of another
    for arm, more in (("tied+bias", 0), ("untied+bias", 0.5), ("tied", -0.25)):
        results["train_loss"].loc[{"arm": arm, "eval_step": 100}] = first + more
    table = tables.losses_table(results)
    assert table.header[2:] == (
        "tied+bias",
        "untied+bias",
        "tied",
        *(f"{x} − untied+bias" for x in ("tied+bias", "tied")),
    )
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["train loss, nat"][0] == "0.750"
    assert rows["train loss, nat"][-2:] == ("-0.500 ± 0.000", "-0.750 ± 0.000")
    assert rows["seeds within 0.05 nat of the best"] == ("", "2 of 4", "0 of 4", "4 of 4", "", "")
    assert "seeds that diverged" not in rows
    assert {len(row) for row in table.rows} == {len(table.header)}
    results["diverged_at"].loc[{"arm": "untied+bias", "seed": [1, 3]}] = 20
    diverged = tables.losses_table(results).rows[-1]
    assert diverged == ("seeds that diverged", "0", "0", "2", "0", "", "")


def test_order_of_all_tables():
    run, sweep = exor_results("tied", "untied@50"), exor_results("tied", p_X=[0.1, 0.2])
    starts = ["made-up: step 100, 4 seeds", "made-up: step 100, median"]
    for table, start in zip(tables.exor_tables(run), starts, strict=True):
        assert table.title.startswith(start)
    (of_sweep,) = tables.exor_tables(sweep)
    assert of_sweep.title.startswith(starts[1]) and of_sweep.header[0] == "p_X"


def test_plateau_exit_table(plateau_results):
    table = plateau_exit_table(plateau_results)
    rows = {(row[0].partition(" (")[0], row[1]): row[2:] for row in table.rows}
    assert len(rows) == 6 and {len(row) for row in table.rows} == {len(table.header)}
    left = rows[analysis.LEFT, "tied"]
    assert left[:3] == ("4", "2", "1") and left[3].startswith("30 [20, ")
    assert left[4].startswith("30 [20, ")
    # Seeds 0, 1 and 3 leave later untied, 2 at once, 4 and 5 only untied. Two of five or fewer: p =
    # 1.
    left = rows[analysis.LEFT, "untied"]
    assert (left[5], left[7]) == ("2 : 3 (1)", "1.000")
    assert rows[analysis.AT_BEST, "tied"][:4] == ("1", "5", "1", "> 100 [40, > 100]")
    at_best = rows[analysis.AT_BEST, "untied"]
    assert (at_best[5], at_best[7]) == ("4 : 1 (1)", "0.375")
    # No seed is halfway that is not at the best.
    assert rows[analysis.HALFWAY, "untied"] == at_best


@pytest.mark.parametrize("last", [100, 0])
def test_plateau_exit_of_unfinished_results(last):
    results = exor_results("tied", "untied", "tied+bias")
    for name, step in (("train_loss", "eval_step"), ("valid_loss", "eval_step"), ("loss", "step")):
        results[name] = results[name].where(results[step] <= last)
    table = plateau_exit_table(results)
    assert {len(row) for row in table.rows} == {len(table.header)}
    exor_panels(results)["stuck"](Figure().subplots())


def test_a_sweep_has_decay_factors_at_every_sweep_point():
    table = tables.distances_table(exor_results("tied", seeds=8, weight_decay=[0.0, 0.1]))
    assert table.header[0] == "weight_decay"
    assert [row[0] for row in table.rows] == ["0", "0", "0.1", "0.1"]
