"""When seeds leave plateaus, and how steady they are then: planted curves with known answers; the
first plateau's loss.
"""

import math

import numpy as np
import pytest
import xarray as xr
from made_up import BEST, exor_results

from jaxtie.exor import data, plateau, theory
from jaxtie.exor.claims import Claim
from jaxtie.exor.plots import exor_pictures
from jaxtie.exor.stability import fluctuations
from jaxtie.results.claims import claimed
from jaxtie.results.committed import write_kept

PLATEAU, BETWEEN, SOLVED = BEST["loss"] + math.log(2), BEST["loss"] + 0.5, BEST["loss"] + 0.01


@pytest.fixture
def planted() -> xr.Dataset:
    """Evaluated at 0, 10, ..., 100, six seeds. Step at which a seed leaves the plateau, and at
    which it reaches the best.
    """
    results = exor_results("tied", "untied", seeds=6).drop_dims(["eval_step", "table_step"])
    steps, never = np.arange(0, 101, 10), 1000
    left = np.array([[20, 20, 30, 40, never, never], [40, 50, 30, 60, 70, 80]])[..., None]
    best = np.array([[40, never, never, never, never, never], [50, 60, 70, 80, 90, never]])[
        ..., None
    ]
    loss = np.where(steps >= best, SOLVED, np.where(steps >= left, BETWEEN, PLATEAU))
    loss[0, 5, 3] = SOLVED  # a dip
    loss[0, 4, 6:] = np.nan
    results["train_loss"] = results["valid_loss"] = ("arm", "seed", "eval_step"), loss
    results["diverged_at"].loc[{"arm": "tied", "seed": 4}] = 55
    results["loss"] = ("arm", "seed", "step"), np.where(np.isnan(loss), np.nan, 1.0)
    return results.assign_coords(eval_step=steps)


@pytest.mark.parametrize(
    ("length", "all_strings", "within"), [(7, False, 0.0005), (7, True, 0.0005), (8, False, 0.0005)]
)
def test_the_first_plateau_is_ln_2_above_the_best(length, all_strings, within):
    """Exactly: who knows only how often each symbol is drawn pays H(target), the best model
    H(target | context).
    """
    bits = data.split(length, all_strings, 14).train
    joint_CxV = data.enumerate_contexts(bits, (0.1, 0.9), (0.5, 0.5), ordered=False).joint_CxV
    without_context = theory.best_loss(joint_CxV.sum(axis=0, keepdims=True))
    assert without_context - theory.best_loss(joint_CxV) == pytest.approx(math.log(2), abs=within)


def test_planted_times_are_found(planted):
    left, best = (plateau.escape_times(planted, event) for event in (plateau.LEFT, plateau.AT_BEST))
    np.testing.assert_array_equal(left["tied"].step_S, [20, 20, 30, 40, 100, 100])
    np.testing.assert_array_equal(left["tied"].censored_S, [0, 0, 0, 0, 1, 1])
    np.testing.assert_array_equal(left["untied"].step_S, [40, 50, 30, 60, 70, 80])
    np.testing.assert_array_equal(best["untied"].step_S, [50, 60, 70, 80, 90, 100])
    np.testing.assert_array_equal(best["tied"].censored_S, [0, 1, 1, 1, 1, 1])


def test_a_run_and_what_is_kept_of_it_say_the_same(planted, tmp_path):
    """Of losses that lie 0.1 and 0.4 of the last kept decimal above the level, 0.4 below it, and
    too far above.
    """
    results = planted.isel(seed=slice(4))
    close = plateau.escape_levels(results)[plateau.AT_BEST] + 1e-3 * np.array(
        [[0.1], [0.4], [-0.4], [0.6]]
    )
    results["train_loss"].loc[{"arm": "untied", "eval_step": [90, 100]}] = close
    write_kept(results, tmp_path / "kept.nc")
    kept = xr.load_dataset(tmp_path / "kept.nc", engine="h5netcdf")
    for each in (results, kept):
        assert plateau.has_reached_best(each).sel(arm="untied").values.tolist() == [
            True,
            True,
            True,
            False,
        ]
    for event in (plateau.LEFT, plateau.HALFWAY, plateau.AT_BEST):
        one, other = (plateau.escape_times(each, event)["untied"] for each in (results, kept))
        np.testing.assert_array_equal(one.step_S, other.step_S)


def test_each_event_has_its_counts_its_median_and_its_race(planted):
    table = plateau.escape_table(planted)
    rows = {(row[0].partition(" (")[0], row[1]): row[2:] for row in table.rows}
    assert len(rows) == 6 and {len(row) for row in table.rows} == {len(table.header)}
    assert rows[plateau.LEFT, "tied"][:3] == ("4", "2", "1") and rows[plateau.LEFT, "tied"][
        3
    ].startswith("30 [20, ")
    # Seeds 0, 1 and 3 leave later untied, 2 at once, 4 and 5 only untied. Two of five or fewer: p =
    # 1.
    assert (
        rows[plateau.LEFT, "untied"][4] == "2 : 3 (1)"
        and rows[plateau.LEFT, "untied"][6] == "1.000"
    )
    assert rows[plateau.AT_BEST, "tied"][:4] == ("1", "5", "1", "> 100 [40, > 100]")
    assert (
        rows[plateau.AT_BEST, "untied"][4] == "4 : 1 (1)"
        and rows[plateau.AT_BEST, "untied"][6] == "0.375"
    )
    # Nobody is halfway who is not at the best.
    assert rows[plateau.HALFWAY, "untied"] == rows[plateau.AT_BEST, "untied"]


def test_fluctuation_is_of_relative_changes_late_in_training(planted):
    distance = planted["input_distance"]
    # steady growth is none
    distance.loc[{"arm": "tied", "symbol": "X", "symbol2": "Y"}] = 2.0 ** np.arange(11)
    np.testing.assert_allclose(
        fluctuations(planted).sel(arm="tied", pair="X-Y", table="input"), 0, atol=1e-12
    )
    # 10 %, 20 %
    distance.loc[{"arm": "tied", "symbol": "X", "symbol2": "Y", "step": [80, 90, 100]}] = [
        1.0,
        1.1,
        1.32,
    ]
    found = fluctuations(planted).sel(arm="tied", pair="X-Y", table="input")
    np.testing.assert_allclose(found, 0.1 / math.sqrt(2), rtol=1e-9)


def test_results_that_have_nothing_yet_have_tables_and_a_picture():
    results = exor_results("tied", "untied", "tied+bias")
    for last in (100, 0):
        for name in ("train_loss", "valid_loss", "loss"):
            results[name] = results[name].where(
                results[name].coords[results[name].dims[-1]] <= last
            )
        table = plateau.escape_table(results)
        assert {len(row) for row in table.rows} == {len(table.header)}
        exor_pictures(results)["escape"].draw()


def test_the_picture_has_a_curve_an_arm_for_each_of_two_events(planted):
    left, best = exor_pictures(planted)["escape"].draw().axes
    assert [text.get_text() for text in left.get_legend().get_texts()] == [
        "tied: 4 of 6",
        "untied: 6 of 6",
    ]
    assert [text.get_text() for text in best.get_legend().get_texts()] == [
        "tied: 1 of 6",
        "untied: 5 of 6",
    ]
    tied = left.lines[0]
    np.testing.assert_array_equal(tied.get_xdata(), [0, 20, 30, 40, 100, 100])
    np.testing.assert_allclose(tied.get_ydata(), np.array([0, 2, 3, 4, 4, 4]) / 6)
    assert {line.get_linestyle() for line in left.lines} == {"-"} and {
        line.get_linestyle() for line in best.lines
    } == {"--"}


def test_a_process_without_synonyms_has_no_distances():
    """Plain parity."""
    assert fluctuations(exor_results("tied", "untied").isel(pair=[])).shape == (2, 0, 2, 4)


def test_how_steady_a_seed_was_can_be_told_of_what_is_kept(planted):
    """Which has not the records that it takes."""
    planted["input_distance"].loc[{"symbol": "X", "symbol2": "Y"}] = np.where(
        np.arange(11) % 2, 1.1, 1.0
    )
    kept = planted.assign(fluctuation=fluctuations(planted)).sel(step=[0, 50, 100])
    moved = claimed(kept, Claim("It moves.", "fluctuation", "tied"))
    np.testing.assert_allclose(np.exp(moved), np.std([1.1 - 1, 1 / 1.1 - 1], ddof=1), rtol=1e-9)
