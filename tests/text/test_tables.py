"""Tables and figures of text, on made-up results."""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from pages import targets_only_table
from text_results import text_results

from jaxtie.text.plots import draw_pairs, draw_validation, text_panels
from jaxtie.text.tables import text_tables, validation_table, word_pairs_table


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


def starts_of(results: xr.Dataset) -> list[str]:
    """List the first word of the title of each table."""
    return [table.title.split()[0] for table in text_tables(results)]


def test_an_interrupted_run_has_tables():
    results = some_results({}, {"untied": 0}).sel(kind=["random"])
    assert starts_of(results) == ["made-up:"]  # random pairs alone are no table
    begun = some_results({}, {"tied": 0, "untied": 0})
    begun["valid_loss"][0, :, 1] = np.nan
    assert starts_of(begun) == ["made-up:", "made-up:"]
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
    pairs = word_pairs_table(results)
    rows = {row[:2]: row[2:] for row in pairs.rows}
    assert pairs.header == ("table", "pairs", "distance", "ratio to decay alone")
    assert len(rows) == 2 * 5 and rows["tied", "word–duplicate"][1].startswith("0.8")
    assert rows["untied output", "random pairs"][0].startswith("5.0")
    assert "perplexity" not in str(validation_table(results.assign_attrs(objective="masked")))


def test_figures_show_every_curve():
    found = some_results({}, {f"untied@{step}": 0.0 for step in range(1, 10)})
    _, (measure, *pairs) = plt.subplots(1, 3)
    draw_validation(found, "valid_loss", measure)
    assert len(measure.lines) == 9
    for axes, distance, top in zip(pairs, (4.9, 5.4), (5, 5.4), strict=True):
        found["input_distance"] = found["input_distance"] * 0 + distance
        draw_pairs(found, "untied@1", "input", "", axes)
        assert axes.get_ylim()[0] == 0 and top <= axes.get_ylim()[1] < 6
        labels = [text.get_text() for text in axes.get_legend().get_texts()]
        assert labels == ["duplicate (DH holds)", "random pairs"]
    plt.close()


def test_each_table_has_a_panel_and_each_pair_a_row():
    found = some_results({}, {"tied": 0, "untied@20": 0})
    panels = text_panels(found)
    tables = ("tied", "untied@20 input", "untied@20 output")
    assert list(panels) == ["loss", "accuracy", *(f"distances of {table}" for table in tables)]
    for panel in panels.values():
        figure, axes = plt.subplots()
        panel(axes)
        assert axes.get_title() and axes.lines
        plt.close(figure)


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
