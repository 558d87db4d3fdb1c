"""Figures of EXor results, on results that are made up."""

import math

import numpy as np
import pytest
import xarray as xr
from made_up import BEST, EVAL_STEPS, STEPS, exor_results
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from jaxtie.exor.analysis import is_stuck
from jaxtie.exor.plots import exor_panels, exor_pictures
from jaxtie.results.plots import COLOURS, FAILS, HOLDS

ARMS = ("tied", "untied", "tied+bias", "untied+bias@50")
TABLES = (
    "tied",
    "untied input",
    "untied output",
    "tied+bias",
    "untied+bias@50 input",
    "untied+bias@50 output",
)


def draw(results: xr.Dataset, name: str) -> Axes:
    """Draw a panel."""
    axes = Figure().subplots()
    exor_panels(results)[name](axes)
    return axes


def texts(axes: Axes) -> list[str]:
    """Return the texts of a legend."""
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_figures_and_captions_of_a_run():
    pictures = exor_pictures(exor_results(*ARMS))
    assert [*pictures] == ["overview"] and ", ".join(ARMS) in pictures["overview"].caption
    own = [f"distances of {label}" for label in TABLES]
    assert [*exor_panels(exor_results(*ARMS))] == ["accuracy", *own, "stuck", "loss of every seed"]


def test_accuracy_figure():
    results = exor_results(*ARMS)
    lines = draw(results, "accuracy").lines
    assert [line.get_label() for line in lines] == [*ARMS, "best 0.71"]
    assert [to_hex(line.get_color()) for line in lines[:-1]] == [*COLOURS[: len(ARMS)]]
    for arm, line in zip(ARMS, lines, strict=False):
        np.testing.assert_array_equal(line.get_xdata(), EVAL_STEPS)
        mean = results["valid_accuracy"].sel(arm=arm).mean("seed")
        np.testing.assert_allclose(line.get_ydata(), mean)
    np.testing.assert_allclose(lines[-1].get_ydata(), BEST["accuracy"] + 0.01)


@pytest.mark.parametrize("label", TABLES)
def test_distance_figure_of_each_embedding(label):
    results = exor_results(*ARMS)
    axes = draw(results, f"distances of {label}")
    assert axes.get_title().replace("\n", " ") == f"{label} embedding"
    arm, _, table = label.partition(" ")
    own = results[f"{table or 'input'}_distance"].sel(arm=arm)
    lines, decays = axes.lines[:2], axes.lines[2:4]
    for line, decay, (first, second, name, colour) in zip(
        lines, decays, (("X", "Y", "X–Y (DH fails)", FAILS), ("A", "B", "A–B (DH holds)", HOLDS))
    ):
        assert (line.get_label(), line.get_color()) == (name, colour)
        middle = own.sel(symbol=first, symbol2=second).median("seed")
        np.testing.assert_array_equal(line.get_xdata(), STEPS)
        np.testing.assert_allclose(line.get_ydata(), middle)
        alone = float(middle[0]) * 0.99 ** np.arange(len(STEPS))  # what decay would do
        np.testing.assert_allclose(decay.get_ydata(), alone)
        assert decay.get_color() == colour and decay.get_linestyle() == ":"
    assert texts(axes) == ["X–Y (DH fails)", "A–B (DH holds)", "decay alone"]


@pytest.mark.parametrize("highest", [4.0, 6.0])
def test_distance_figure_has_the_papers_scale_if_it_fits(highest):
    results = exor_results("tied")
    results["input_distance"][:] = highest
    bottom, top = draw(results, "distances of tied").get_ylim()
    assert bottom == 0 and (top == 4 if highest == 4 else top >= 6)


def test_distance_figure_omits_pairs_that_never_occur():
    results = exor_results("tied")
    results["theory_log_odds"].loc[{"pair": "X-Y"}] = np.nan
    assert texts(draw(results, "distances of tied")) == ["A–B (DH holds)", "decay alone"]


def test_figure_of_every_seed():
    results = exor_results("tied", "untied", seeds=5)
    axes = draw(results, "loss of every seed")
    drawn = [line.get_ydata() for line in axes.lines]
    np.testing.assert_array_equal(drawn[:-1], results["train_loss"].values.reshape(10, -1))
    np.testing.assert_allclose(drawn[-1], BEST["loss"])
    assert texts(axes) == ["tied", "untied", "best 0.75"]


def test_overview_has_every_panel():
    figure = exor_pictures(exor_results("tied", "untied+bias"))["overview"].draw()
    assert [axes.get_title() for axes in figure.axes if axes.axison] == [
        "validation accuracy",
        "tied embedding",
        "untied+bias input embedding",
        "untied+bias output embedding",
        f"stuck: loss above {BEST['loss'] + math.log(2) - 0.05:.3f}",
        "every seed's training loss",
    ]
    assert figure.get_suptitle().replace("\n", " ") == (
        "made-up: 4 seeds; accuracy, stuck: mean, distances: median, with 95 % bands"
    )


def test_figure_of_stuck_seeds(plateau_results):
    axes = draw(plateau_results, "stuck")
    assert axes.get_title().startswith("stuck: loss above ") and texts(axes) == [
        "tied: 1 of 5",  # one tied seed diverged
        "untied: 0 of 6",
    ]
    stuck = is_stuck(plateau_results).mean("seed")
    ends = [line.get_ydata()[-1] for line in axes.lines]
    np.testing.assert_allclose(ends, stuck)
    assert axes.lines[0].get_ydata()[0] == 1 and ends[1] < ends[0]


def test_figure_of_a_sweep():
    results = exor_results("tied", "untied+bias", weight_decay=[0.01, 0.1, 0.3])
    pictures = exor_pictures(results)
    assert {*pictures} == {"overview", "distances"}
    courses = pictures["overview"].draw()
    titles = {axes.get_title().partition(",")[0] for axes in courses.axes if axes.axison}
    assert titles == {"valid_loss"}
    assert all(len(axes.lines) == 3 for axes in courses.axes if axes.axison)
    figure = pictures["distances"].draw()
    columns = ("tied", "untied+bias input", "untied+bias output")
    drawn = [axes.get_title().replace("\n", " ") for axes in figure.axes if axes.axison]
    assert drawn == [f"{each} embedding" for each in columns]
    assert figure.axes[0].get_xscale() == "log"
    at = {"arm": "untied+bias", "step": 100, "symbol": "A", "symbol2": "B"}
    drawn = {each.get_label(): each.lines[0] for each in figure.axes[2].containers}
    np.testing.assert_allclose(drawn["A–B"].get_xdata(), [0.01, 0.1, 0.3])
    mean = results["output_distance"].sel(at).mean("seed")
    np.testing.assert_allclose(drawn["A–B"].get_ydata(), mean)
    assert drawn["X–Y"].get_color() == FAILS


def test_points_of_a_sweep_of_two_fields_stand_side_by_side():
    results = exor_results("tied", p_X=[0.5, 0.1], weight_decay=[0.0, 0.1])
    (axes,) = exor_pictures(results)["distances"].draw().axes
    labels = [text.get_text() for text in axes.get_xticklabels()]
    assert labels == ["0.5, 0", "0.5, 0.1", "0.1, 0", "0.1, 0.1"]
    assert axes.get_xlabel() == "p X, weight decay"
