"""Tables and figures of text, on made-up results."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

from jaxtie.config import Arm
from jaxtie.text.plots import draw_measure, draw_pairs, text_frames, text_panels
from jaxtie.text.tables import (
    distance_table,
    judge_text,
    neighbour_table,
    text_tables,
    text_verdict_table,
    validation_table,
)


def text_results(duplicate: dict[str, float], loss: dict[str, float], seeds: int = 5) -> xr.Dataset:
    """Results of a made-up run: change of word-duplicate distances in the tables of an arm, its
    loss above 4 nat.
    """
    rng, arms, pairs = np.random.default_rng(0), list(loss), 50
    distance = np.full((len(arms), seeds, 2, 2, pairs), 5.0)  # evaluations, kinds
    distance[:, :, 1] += 0.1 * rng.standard_normal((1, 1, 2, pairs))
    for a, arm in enumerate(arms):
        distance[a, :, 1, 0] += duplicate.get(arm, 0)
    valid_loss = np.stack([[np.full(2, 4.0 + loss[arm])] * seeds for arm in arms])
    valid_loss += 0.5 * rng.standard_normal((1, seeds, 1)) + 0.001 * rng.standard_normal(
        (len(arms), seeds, 1)
    )
    dims = ("arm", "seed", "eval_step")
    apart = np.where(np.array(arms)[:, None, None, None, None] == "tied", distance, distance + 0.01)
    # evaluations, probe, rank
    neighbour = np.tile([[1, 2], [2, np.nan]], (len(arms), seeds, 1, 1))[:, :, :, None]
    measured = {
        "valid_loss": valid_loss,
        "valid_accuracy": valid_loss / 10,
        "perplexity": np.exp(valid_loss),
    }
    found = {name: (dims, values) for name, values in measured.items()}
    found |= {name: (("arm", "seed", "step"), valid_loss) for name in ("loss", "accuracy")}
    for table, values in (("input", distance), ("output", apart)):
        found[f"{table}_distance"] = (*dims, "kind", "pair"), values
        found[f"{table}_neighbour"] = (*dims, "probe", "rank"), neighbour
    found["diverged_at"] = dims[:2], np.full((len(arms), seeds), -1)
    found["parameters"] = "arm", [60 if Arm.parse(arm).untied_from is None else 100 for arm in arms]
    found["token"], found["probe_word"] = ("token_number", ["the", "an", "an*"]), ("probe", ["the"])
    for name in ("first_word", "second_word"):
        found[name] = ("kind", "pair"), np.full((2, pairs), name)
    labels = {
        "arm": arms,
        "seed": np.arange(seeds),
        "step": [0, 40],
        "eval_step": [0, 40],
        "kind": ["duplicate", "random"],
    }
    return xr.Dataset(
        found,
        labels | {"pair": np.arange(pairs)},
        {"task": "text", "objective": "causal", "experiment": "made-up"},
    )


def told(*made) -> dict[str, str]:
    """First word of each claim -> verdict."""
    return {row[0].split()[0]: row[1] for row in text_verdict_table(text_results(*made)).rows}


def test_verdicts_follow_the_data():
    draw = {"tied": -1, "untied": -1}
    assert told(draw, {"tied": 0, "untied": 0.1}) == {"a": "holds", "tied,": "holds"}
    assert told(draw, {"tied": 0.1, "untied": 0}) == {"a": "holds", "tied,": "fails"}
    apart = {"tied": -1, "untied": 1}
    assert (
        told(apart, {"tied": 0, "untied": 0})["a"]
        == "holds at tied; fails at untied input, untied output"
    )
    assert told({}, {"tied": 0, "untied": 0, "untied@20": 0.002}) == {
        "a": "inconclusive",
        "tied,": "holds",
        "untying": "holds",
    }
    assert told({"tied": 1}, {"tied": 0, "untied@20": 0.1}) == {
        "a": "fails at tied; inconclusive at untied@20 input, untied@20 output",
        "untying": "fails",
    }
    assert told(draw, {"tied": 0, "untied": 0.1}, 1) == {"a": "holds", "tied,": "inconclusive"}


def test_claims_on_tying_compare_plain_arms():
    """A head that does better, or a head that is untied midway, says nothing of tying."""
    assert told({}, {"tied+bias": 0.1, "untied": 0}) == {"a": "inconclusive"}
    assert told({}, {"tied": 0, "untied+bias": 1, "untied+bias@20": 1}) == {"a": "inconclusive"}
    found = text_verdict_table(
        text_results({}, {"tied+bias": 9, "untied@20": 0, "untied": 0.1, "tied": 0})
    ).rows
    # the last one is of a bias
    assert [row[1] for row in found] == [
        "inconclusive",
        "holds",
        "holds",
        "fails",
    ]
    assert (
        found[1][0].startswith("tied, 40 % fewer parameters")
        and "validation loss, tied − untied " in found[1][2]
    )
    assert "shares" not in text_verdict_table(text_results({}, {"tied": 0, "untied": 0})).note


def test_nothing_is_judged_where_there_is_nothing_to_compare():
    results = text_results({}, {"untied": 0}).sel(kind=["random"])
    assert not judge_text(results)
    assert [table.title.split()[0] for table in text_tables(results)] == [
        "made-up:",
        "Distances:",
        "Nearest",
    ]
    begun = text_results({}, {"tied": 0, "untied": 0})
    begun["valid_loss"][0, :, 1] = np.nan  # a run that was interrupted
    assert [table.title.split()[0] for table in text_tables(begun)] == [
        "made-up:",
        "Distances:",
        "Nearest",
    ]
    assert "step 0," in validation_table(begun).title


def test_tables_show_every_arm():
    results = text_results({"tied": -1}, {"tied": 0, "untied": 0.1, "untied@20": 0.2})
    results["diverged_at"][1, 0], results["valid_loss"][1, 0, 1] = 40, np.nan
    table = validation_table(results)
    assert table.title == "made-up: step 40, mean over 5 seeds ± 95 % confidence interval"
    assert table.header == (
        "",
        "tied",
        "untied",
        "untied@20",
        "untied − tied, paired",
        "untied@20 − tied, paired",
    )
    *measured, parameters, diverged = table.rows
    assert [row[0] for row in measured] == [
        "validation loss, nat",
        "validation accuracy",
        "perplexity",
    ]
    assert measured[0][-1].startswith("0.2") and parameters[1:] == (
        "60",
        "100",
        "100",
        "+40",
        "+40",
    )
    assert diverged[1:] == ("0", "1", "0", "", "")
    rows = {row[0]: row[1:] for row in distance_table(results).rows}
    assert len(rows) == 2 * 5 and rows["tied, word–duplicate"][2].startswith("-0.98")
    assert rows["untied output, random pairs"][0] == "5.010 ± 0.000"
    neighbours = neighbour_table(results)
    assert (
        neighbours.long
        and neighbours.rows[0] == ("the", "tied", "an an*", "an*")
        and "a star" in neighbours.title
    )
    assert "perplexity" not in str(validation_table(results.assign_attrs(objective="masked")))


def test_figures_leave_nothing_out():
    found = text_results({}, {f"untied@{step}": 0.0 for step in range(1, 10)})
    _, (measure, *pairs) = plt.subplots(1, 3)
    draw_measure(measure, found, "valid_loss")
    assert len(measure.lines) == 9
    for axes, distance, top in zip(pairs, (4.9, 5.4), (5, 5.4), strict=True):
        found["input_distance"] = found["input_distance"] * 0 + distance
        draw_pairs(axes, found, Arm.parse("untied@1"), "input", "")
        assert axes.get_ylim()[0] == 0 and top <= axes.get_ylim()[1] < 6
        assert [text.get_text() for text in axes.get_legend().get_texts()] == [
            "word–duplicate (DH holds)",
            "random pairs",
        ]
    plt.close()


def test_each_table_has_a_panel_and_each_pair_a_row():
    found = text_results({}, {"tied": 0, "untied@20": 0})
    panels = text_panels(found)
    assert list(panels) == [
        "perplexity",
        "accuracy",
        "loss",
        "distances_tied",
        "distances_untied@20_input",
        "distances_untied@20_output",
    ]
    assert "perplexity" not in text_panels(found.assign_attrs(objective="masked"))
    assert panels["loss"].caption == "Validation loss of tied, untied@20 over the steps of training"
    for panel in panels.values():
        figure, axes = plt.subplots()
        panel.draw(axes)
        assert axes.get_title() and axes.lines
        plt.close(figure)
    frames = text_frames(found)
    assert (
        frames["steps"].index.names
        == [*frames["evaluations"].index.names[:2], "step"]
        == ["arm", "seed", "step"]
    )
    row = frames["distances"].loc[("tied", 0, 0, "random", 3, "first_word", "second_word")]
    assert row.to_dict() == pytest.approx({"input_distance": 5, "output_distance": 5})
    assert len(frames["distances"]) == 2 * 5 * 2 * 2 * 50
