"""Tables and figures of text, on made-up results."""

import math
import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from pages import targets_only_table
from text_results import text_results

from jaxtie.config import names_of
from jaxtie.results.plots import draw_all
from jaxtie.text.plots import (
    draw_heads,
    draw_measure,
    draw_pairs,
    text_frames,
    text_panels,
    text_pictures,
)
from jaxtie.text.tables import (
    compares_heads,
    distance_table,
    head_loss_table,
    neighbour_table,
    pace_table,
    text_tables,
    validation_table,
)

FILE = Path(__file__).parents[2] / "experiments" / "head_convergence.py"
STUDY = runpy.run_path(str(FILE))["experiment"]
HEADS = names_of(STUDY.arms)
TIED, SMALL, UNTIED, PROJECTION, HALF_SWAP, SHUFFLE, SCALED = HEADS
N = 2000  # tokens of the vocabulary with heads


def some_results(duplicate: dict[str, float], loss: dict[str, float], seeds: int = 5) -> xr.Dataset:
    """Make up a run by the change of word-duplicate distances in each arm, and its loss - 4 nat."""
    rng, arms, pairs = np.random.default_rng(0), list(loss), 50
    distance = np.full((len(arms), seeds, 2, 2, pairs), 5.0)  # evaluations, kinds
    distance[:, :, 1] += 0.1 * rng.standard_normal((1, 1, 2, pairs))
    for a, arm in enumerate(arms):
        distance[a, :, 1, 0] += duplicate.get(arm, 0)
    valid_loss = np.stack([[np.full(2, 4.0 + loss[arm])] * seeds for arm in arms])
    valid_loss += 0.5 * rng.standard_normal((1, seeds, 1))
    valid_loss += 0.001 * rng.standard_normal((len(arms), seeds, 1))
    apart = np.where(np.array(arms)[:, None, None, None, None] == "tied", distance, distance + 0.01)
    return text_results(arms, valid_loss, [0, 40], ["duplicate", "random"], distance, apart)


def head_results(speed: dict, start: dict, end: dict, arms=HEADS) -> xr.Dataset:
    """Make up exponential curves: per head `start` above log n, `end`, and `speed`."""
    rng, steps, seeds = np.random.default_rng(0), np.arange(0, 3001, 25), 8
    loss = np.empty((len(arms), seeds, len(steps)))
    for a, arm in enumerate(arms):
        first, last = math.log(N) + start.get(arm, 0.4), end.get(arm, 5.0)
        curve = last + (first - last) * np.exp(-speed.get(arm, 1) * steps / 300)
        loss[a] = curve + 0.002 * rng.standard_normal((seeds, 1))
    more = {
        "loss": (("arm", "seed", "step"), loss + 0.1),
        "estimated_initial_loss": ("arm", np.full(len(arms), 8.0)),
        "token": ("token_number", np.full(N, "word")),
    }
    return text_results(arms, loss, steps, ["random"], np.ones((*loss.shape, 1, 3)), **more)


HIGH = {TIED: 8.0, SMALL: 0.7}


def starts_of(results: xr.Dataset) -> list[str]:
    """List the first word of the title of each table."""
    return [table.title.split()[0] for table in text_tables(results)]


def test_an_interrupted_run_has_tables():
    results = some_results({}, {"untied": 0}).sel(kind=["random"])
    assert starts_of(results) == ["made-up:", "Distances:", "Nearest"]
    begun = some_results({}, {"tied": 0, "untied": 0})
    begun["valid_loss"][0, :, 1] = np.nan
    assert starts_of(begun) == ["made-up:", "Distances:", "Nearest"]
    assert "step 0," in validation_table(begun).title


def test_tables_show_every_arm():
    results = some_results({"tied": -1}, {"tied": 0, "untied": 0.1, "untied@20": 0.2})
    results["diverged_at"][1, 0], results["valid_loss"][1, 0, 1] = 40, np.nan
    table = validation_table(results)
    assert table.title == "made-up: step 40, mean over 5 seeds ± 95 % confidence interval"
    paired = ("tied − untied", "untied@20 − untied")
    assert table.header == ("", "tied", "untied", "untied@20", *paired)
    *measured, parameters, diverged = table.rows
    names = ["validation loss, nat", "validation accuracy", "perplexity"]
    assert [row[0] for row in measured] == names
    assert measured[0][-2].startswith("-0.1") and measured[0][-1].startswith("0.1")
    assert parameters[1:] == ("60", "100", "100", "-40", "+0")
    assert diverged[1:] == ("0", "1", "0", "", "")
    rows = {row[0]: row[1:] for row in distance_table(results).rows}
    assert len(rows) == 2 * 5 and rows["tied, word–duplicate"][2].startswith("-0.98")
    assert rows["untied output, random pairs"][0] == "5.010 ± 0.000"
    neighbours = neighbour_table(results)
    assert neighbours.long and "a star" in neighbours.title
    assert neighbours.rows[0] == ("the", "tied", "an an*", "an*")
    assert "perplexity" not in str(validation_table(results.assign_attrs(objective="masked")))


def test_figures_show_every_curve():
    found = some_results({}, {f"untied@{step}": 0.0 for step in range(1, 10)})
    _, (measure, *pairs) = plt.subplots(1, 3)
    draw_measure(measure, found, "valid_loss")
    assert len(measure.lines) == 9
    for axes, distance, top in zip(pairs, (4.9, 5.4), (5, 5.4), strict=True):
        found["input_distance"] = found["input_distance"] * 0 + distance
        draw_pairs(axes, found, "untied@1", "input", "")
        assert axes.get_ylim()[0] == 0 and top <= axes.get_ylim()[1] < 6
        labels = [text.get_text() for text in axes.get_legend().get_texts()]
        assert labels == ["duplicate (DH holds)", "random pairs"]
    plt.close()


def test_each_table_has_a_panel_and_each_pair_a_row():
    found = some_results({}, {"tied": 0, "untied@20": 0})
    panels = text_panels(found)
    tables = ("tied", "untied@20_input", "untied@20_output")
    assert list(panels) == ["loss", "accuracy", *(f"distances_{table}" for table in tables)]
    assert panels["loss"].caption == "Validation loss of tied, untied@20 over the steps of training"
    for panel in panels.values():
        figure, axes = plt.subplots()
        panel.draw(axes)
        assert axes.get_title() and axes.lines
        plt.close(figure)
    frames = text_frames(found)
    assert frames["steps"].index.names == ["arm", "seed", "step"]
    assert frames["evaluations"].index.names == ["arm", "seed", "eval_step"]
    row = frames["distances"].loc[("tied", 0, 0, "random", 3, "first_word", "second_word")]
    assert row.to_dict() == pytest.approx({"input_distance": 5, "output_distance": 5})
    assert len(frames["distances"]) == 2 * 5 * 2 * 2 * 50


def test_the_pace_is_shown_where_all_seeds_have_reached_the_loss():
    row = HEADS.index(SMALL)
    crossing = head_results({SMALL: 1.5}, HIGH, {SMALL: 5.25})
    *_, sooner, never = pace_table(crossing).rows[row]
    assert "; × 1." in sooner and never == "8 of 8 not reached"
    assert pace_table(head_results({}, HIGH, {SMALL: 5.5})).rows[row][-1] == never


@pytest.mark.parametrize(
    ("arms", "objective", "begun"),
    [
        (HEADS, "masked", True),
        ([TIED, UNTIED], "causal", True),
        ([TIED, SMALL, PROJECTION], "causal", True),
        (HEADS, "causal", False),
    ],
    ids=["masked", "one head", "no untied", "not begun"],
)
def test_heads_are_shown_only_where_they_are_compared(arms, objective, begun):
    results = head_results({}, HIGH, {}, arms=arms).assign_attrs(objective=objective)
    if not begun:
        results["valid_loss"][:, :, 1:] = np.nan
    assert not compares_heads(results) and "heads" not in text_pictures(results)
    assert not {"Loss,", "Steps"} & {*starts_of(results)}


def test_tables_of_heads():
    results = head_results({SMALL: 0.7}, HIGH, {TIED: 5.5})
    results["estimated_initial_loss"][HEADS.index(SCALED)] = np.nan  # some heads have no estimate
    tables = text_tables(results)
    starts = [
        "made-up: step 3,000",
        "Distances",
        "Loss, nat (log n = 7.601)",
        "Steps to",
        "Nearest",
    ]
    for table, start in zip(tables, starts, strict=True):
        assert table.title.startswith(start)
    assert [table.long for table in tables] == [False] * 4 + [True]
    *_, loss, pace, _ = tables
    assert [row[0] for row in loss.rows] == [row[0] for row in pace.rows] == HEADS
    rows = {row[0]: row[1:] for row in loss.rows}
    assert rows[TIED][0].startswith("15.60") and rows[TIED][1] == "8.000" and rows[SCALED][1] == "–"
    assert rows[TIED][3].startswith("0.50") and rows[TIED][5].startswith("0.50")
    assert rows[UNTIED][3] == rows[UNTIED][5] == ""
    assert rows[UNTIED][2].startswith("5.10") and rows[UNTIED][4].startswith("5.00")
    levels = [float(column.split()[1]) for column in pace.header[1:]]
    np.testing.assert_allclose(levels, [6.3, 5.65, 5.26, 5.13], atol=0.01)
    assert pace.header[1].startswith("50%: ")


def test_members_that_diverged_are_left_out():
    results = head_results({SMALL: 0.7}, HIGH, {})
    results["valid_loss"][HEADS.index(HALF_SWAP), 0, 60:] = np.nan
    results["diverged_at"][HEADS.index(HALF_SWAP), 0] = 1500
    assert head_loss_table(results).title.endswith("1 members diverged and are left out")
    results["valid_loss"][:, :, 100:] = np.nan
    assert head_loss_table(results).title.split("; ")[1] == "the end is step 2,475"


def test_the_figure_shows_every_head(tmp_path):
    results = head_results({SMALL: 0.7}, HIGH, {TIED: 5.5})
    start, course, difference = draw_heads(results).axes
    assert [line.get_label() for line in difference.lines] == HEADS
    assert "7.60" in start.get_title() and start.get_ylim()[1] > 15
    assert course.get_ylim() == pytest.approx((4.9, math.log(N) + 0.2), abs=0.01)
    assert not difference.lines[HEADS.index(UNTIED)].get_ydata().any()
    assert difference.get_ylim()[1] > 0.5 > 0 > difference.get_ylim()[0]
    picture = text_pictures(results)["heads"]
    assert picture.main and "Heads" in picture.caption
    results["valid_loss"][:, :, 1:] = np.nan  # nothing but the start
    results["diverged_at"][:] = 25
    (path,) = draw_all({"heads": text_pictures(results)["heads"]}, tmp_path)
    assert path.stat().st_size > 10_000
    assert len(text_tables(results)) == 5
    biased = head_results({}, HIGH, {}, arms=[*HEADS, *(f"{arm}+bias" for arm in HEADS)])
    assert len(draw_heads(biased).axes) == 6  # heads with a bias have a column of their own


def test_the_gap_with_targets_only_is_shown_early_and_at_the_end():
    arms = ("tied", "untied", "tied+targets-only", "untied+targets-only")
    results = some_results({}, dict.fromkeys(arms, 0.0), seeds=3)
    results = results.assign_coords(eval_step=[0, 40])
    results["valid_loss"] += xr.DataArray(
        [[2.0, 0.5], [0.0, 0.0], [0.25, 0.75], [0.0, 0.0]], dims=("arm", "eval_step")
    )
    rows = [
        [float(cell.split(" ")[0]) for cell in row[1:]] for row in targets_only_table(results).rows
    ]
    np.testing.assert_allclose(rows, [[2, 0.25, -1.75], [0.5, 0.75, 0.25]], atol=0.01)
    later = results.assign_coords(eval_step=[100, 400])
    assert [row[0] for row in targets_only_table(later).rows] == ["400"]
