"""Tables of EXor results, on results that are made up."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from made_up import BEST, exor_results

from jaxtie.exor import analysis, tables
from jaxtie.exor.plots import exor_pictures

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
LOG_ODDS = np.log([1, 4, 19])  # of the swept results


def swept_results(noise: float) -> xr.Dataset:
    """Make a sweep in which only the tied excess loss grows with the log-odds, by 0.2 per nat."""
    results = exor_results("tied", "untied", seeds=8, p_X=[0.5, 0.2, 0.05])
    excess = np.stack([0.2 * LOG_ODDS, np.full(3, 0.1)])[:, :, None]
    excess = excess + noise * np.random.default_rng(0).normal(size=(2, 3, 8))
    results["best_loss"][:] = np.array([0.7, 0.6, 0.45])[:, None]
    results["train_loss"].loc[{"eval_step": 100}] = excess + np.array([0.7, 0.6, 0.45])[:, None]
    return results


def test_sweep_table():
    table = tables.sweep_table(swept_results(noise=0))
    assert table.header[:3] == ("p_X", "arm", "loss above the best, nat")
    assert [row[:2] for row in table.rows[:3]] == [
        ("0.5", "tied"),
        ("0.5", "untied"),
        ("0.2", "tied"),
    ]
    expected = (0, 0.1, 0.2 * np.log(4), 0.1, 0.2 * np.log(19), 0.1)
    assert [row[2] for row in table.rows] == [f"{x:.3f} ± 0.000" for x in expected]
    assert table.header[-2] == "loss − untied's, paired" and table.rows[5][-2] == ""
    assert table.rows[4][-2] == f"{0.2 * np.log(19) - 0.1:.3f} ± 0.000"


def test_correlation_table():
    results = swept_results(noise=0.1)
    label, x_K = analysis.abscissa(results, "p_X")
    assert label == "ln p(Y)/p(X)"
    np.testing.assert_allclose(x_K, LOG_ODDS, atol=1e-12)
    rows = {row[1]: row[2] for row in tables.correlation_table(results).rows}
    assert float(rows["loss above the best, tied"].split()[0]) > 0.8
    low, high = rows["loss above the best, untied"].split("[")[1].rstrip("]").split(", ")
    assert float(low) < 0 < float(high)
    assert rows.keys() >= {
        f"distance X-Y, {label}" for label in ("tied", "untied input", "untied output")
    }


def test_two_values_have_no_correlations():
    sweeps = [0.1, 0.2], [0.1, 0.2, 0.5]
    counts = [len(tables.exor_tables(exor_results("tied", p_X=p_X))) for p_X in sweeps]
    assert counts == [2, 3]


def test_untying_table():
    results = exor_results("untied@50", "untied", "untied@100", "tied+bias", "tied")
    for i, arm in enumerate(("untied@50", "tied", "untied")):
        results["train_loss"].loc[{"arm": arm, "eval_step": 50}] = 1 + i
        results["train_loss"].loc[{"arm": arm, "eval_step": 100}] = 1
    table = tables.untying_table(results)
    assert table.title.endswith("of this arm; tied; untied")
    rows = {row[:2]: row[2] for row in table.rows}
    assert list(rows) == [("untied@50", "50"), ("untied@50", "100"), ("untied@100", "100")]
    first, second, third = (f"{x}.000 [{x}.000, {x}.000]" for x in (1, 2, 3))
    assert rows["untied@50", "50"] == f"{first}; {second}; {third}"
    assert rows["untied@50", "100"] == f"{first}; {first}; {first}"
    assert {len(row) for row in table.rows} == {len(table.header)}
    # not trained so far yet
    results["valid_loss"] = results["valid_loss"].where(results["eval_step"] < 100)
    assert {row[0] for row in tables.untying_table(results).rows} == {"untied@50"}


def test_equivalence_table():
    """A equals X in the tied embedding and in the untied input embedding."""
    symbols = ["X", "Y", "A", "E"]
    results = exor_results("tied", "untied", seeds=2).sel(symbol=symbols, symbol2=symbols)
    places = np.tile([0.0, 1, 0, 5], (2, 2, 1))  # [arm, seed, symbol]
    for name in ("input_distance", "output_distance"):
        if name == "output_distance":
            places[1] = [0, 1, 3, 5]
        distance = np.abs(places[..., :, None] - places[..., None, :])
        results[name].loc[{"step": 100}] = distance * [[[[1]], [[2]]]]
    no = np.nan
    results["semantic_divergence"][:] = [[0, 1, 0, no], [1, 0, 1, no], [0, 1, 0, no], [no] * 4]
    results["conditional_divergence"][:] = [
        [0, 0.2, 0.8, no],
        [0.2, 0, 0.6, no],
        [0.8, 0.6, 0, no],
        [no] * 4,
    ]
    ratio = np.log(9)
    results["conditional_log_ratio"][:] = [[0, ratio, no, no], [ratio, 0, no, no], *[[no] * 4] * 2]
    table = tables.equivalence_table(results)
    assert table.header[-3:] == ("tied", "untied input", "untied output")
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows)[:3] == ["X-Y", "X-A", "Y-A"]
    assert rows["X-Y"][:3] == ("1.000", "0.200", "2.197")
    assert rows["X-A"][:3] == ("0.000", "0.800", "–")
    # median of d and 2d; two seeds have no interval
    assert rows["X-A"][3:] == ("0.000", "0.000", "4.500")
    assert rows["Y-A"][3:] == ("1.500", "1.500", "3.000")
    agreement = {
        name.removeprefix("rank agreement with "): [float(cell.split()[0]) for cell in cells[3:]]
        for name, cells in rows.items()
        if "rank" in name
    }
    assert agreement == {
        "semantic divergence": [1, 1, -1],  # output: 1, 2 and 3 against 1, 1 and 0
        "conditional divergence": [-0.667, -0.667, 1],
        "log ratio": [-0.5, -0.5, 1],
    }


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


@pytest.mark.parametrize(
    ("arms", "untying"), [(("tied", "untied+half-swap"), []), (("tied", "untied@50"), ["Untying"])]
)
def test_order_and_length_of_all_tables(arms, untying):
    found = tables.exor_tables(exor_results(*arms))
    starts = ["made-up: step 100", "made-up: step 100, median", "Over training"]
    starts += ["When 4 seeds leave", *untying, "Equivalences", "Per seed at step 100"]
    for table, start in zip(found, starts, strict=True):
        assert table.title.startswith(start) and table.long == (start == starts[-1])


def test_seed_table():
    results = exor_results("tied", "untied", seeds=3)
    at = {"arm": "untied", "seed": 2, "eval_step": 100, "pair": "X-Y"}
    results["log_odds"].loc[at] = np.log(9) + 0.5
    table = tables.seed_table(results)
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    assert [row["seed"] for row in rows] == ["0", "1", "2"]
    assert rows[2]["untied: ln p(Y)/p(X) − 2.197"] == "0.500"
    loss = float(results["train_loss"].sel(arm="tied", seed=1, eval_step=100))
    assert rows[1]["tied: training loss, nat"] == f"{loss:.3f}"


def test_plateau_exit_table(plateau_results):
    table = tables.plateau_exit_table(plateau_results)
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
    table = tables.plateau_exit_table(results)
    assert {len(row) for row in table.rows} == {len(table.header)}
    exor_pictures(results)["overview"].draw()


def test_a_sweep_has_decay_factors_at_every_sweep_point():
    table = tables.distances_table(exor_results("tied", seeds=8, weight_decay=[0.0, 0.1]))
    assert table.header[0] == "weight_decay"
    assert [row[0] for row in table.rows] == ["0", "0", "0.1", "0.1"]
