"""Figures of EXor results, on results that are made up."""

import numpy as np
import pytest
import xarray as xr
from made_up import BEST, EVAL_STEPS, STEPS, exor_results
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from jaxtie.exor.plots import exor_frames, exor_pictures
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
MAIN = ("overview",)


def draw(results: xr.Dataset, name: str) -> Axes:
    """Draw a figure of one diagram."""
    (axes,) = exor_pictures(results)[name].draw().axes
    return axes


def texts(axes: Axes) -> list[str]:
    """Return the texts of a legend."""
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_figures_and_captions_of_a_run():
    pictures = exor_pictures(exor_results(*ARMS))
    own = {f"distances_{label.replace(' ', '_')}" for label in TABLES}
    others = {"accuracy", "loss_every_seed", "stuck"}
    assert pictures.keys() == {*MAIN, *others, *own}
    assert {name for name, picture in pictures.items() if picture.main} == {*MAIN}
    assert all(len(picture.caption) > 50 for picture in pictures.values())
    assert ", ".join(ARMS) in pictures["accuracy"].caption
    caption = pictures["distances_untied+bias@50_output"].caption
    assert "in the untied+bias@50 output embedding" in caption


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
    axes = draw(results, f"distances_{label.replace(' ', '_')}")
    assert axes.get_title().replace("\n", " ") == f"{label} embedding"
    arm, _, table = label.partition(" ")
    own = results[f"{table or 'input'}_distance"].sel(arm=arm)
    *lines, decay = axes.lines
    starts = []
    for line, (first, second, name, colour) in zip(
        lines, (("X", "Y", "X–Y (DH fails)", FAILS), ("A", "B", "A–B (DH holds)", HOLDS))
    ):
        assert (line.get_label(), line.get_color()) == (name, colour)
        middle = own.sel(symbol=first, symbol2=second).median("seed")
        np.testing.assert_array_equal(line.get_xdata(), STEPS)
        np.testing.assert_allclose(line.get_ydata(), middle)
        starts.append(middle[0])
    # what decay alone would do
    np.testing.assert_allclose(decay.get_ydata(), np.mean(starts) * 0.99 ** np.arange(len(STEPS)))


@pytest.mark.parametrize("highest", [4.0, 6.0])
def test_distance_figure_has_the_papers_scale_if_it_fits(highest):
    results = exor_results("tied")
    results["input_distance"][:] = highest
    bottom, top = draw(results, "distances_tied").get_ylim()
    assert bottom == 0 and (top == 4 if highest == 4 else top >= 6)


def test_distance_figure_omits_pairs_that_never_occur():
    results = exor_results("tied")
    results["theory_log_odds"].loc[{"pair": "X-Y"}] = np.nan
    lines = draw(results, "distances_tied").lines
    assert [line.get_label() for line in lines] == ["A–B (DH holds)", "decay alone"]


def test_figure_of_every_seed():
    results = exor_results("tied", "untied", seeds=5)
    axes = draw(results, "loss_every_seed")
    drawn = [line.get_ydata() for line in axes.lines]
    np.testing.assert_array_equal(drawn[:-1], results["train_loss"].values.reshape(10, -1))
    np.testing.assert_allclose(drawn[-1], BEST["loss"])
    assert texts(axes) == ["tied", "untied", "best 0.75"]


def test_share_of_stuck_seeds_over_steps(plateau_results):
    axes = draw(plateau_results, "stuck")
    assert texts(axes) == ["tied: 1 of 5", "untied: 0 of 6"]  # one tied seed diverged
    for arm, line in zip(("tied", "untied"), axes.lines, strict=True):
        loss = plateau_results["train_loss"].sel(arm=arm)
        is_stuck = (loss > BEST["loss"] + np.log(2) - 0.05).where(loss.notnull())
        np.testing.assert_allclose(line.get_ydata(), is_stuck.mean("seed"))


@pytest.mark.parametrize("rates", [[1e-4, 1e-3, 1e-2], [0.0, 0.1], [0.2, 0.3]])
def test_an_axis_of_rates_is_logarithmic_where_they_are_spread_out(rates):
    results = exor_results("tied", learning_rate=rates)
    (axes,) = exor_pictures(results)["excess_loss_by_learning_rate"].draw().axes
    if len(rates) == 3:
        assert axes.get_xscale() == "log"
        ticks = [text.get_text() for text in axes.get_xticklabels()]
        assert ticks == ["0.0001", "0.001", "0.01"]
    else:
        assert axes.get_xscale() == "linear"


def test_training_curves_of_a_sweep():
    results = exor_results("tied", "untied", learning_rate=[1e-4, 1e-2])
    figure = exor_pictures(results)["training_loss_by_learning_rate"].draw()
    assert [axes.get_title() for axes in figure.axes] == ["tied", "untied"]
    low, high = figure.axes[1].lines
    assert [line.get_label() for line in (low, high)] == ["0.0001", "0.01"]
    mean = results["train_loss"].sel(arm="untied", learning_rate=1e-2).mean("seed")
    np.testing.assert_allclose(high.get_ydata(), mean - BEST["loss"])


def test_overview_has_every_panel():
    figure = exor_pictures(exor_results("tied", "untied+bias"))["overview"].draw()
    assert [axes.get_title() for axes in figure.axes if axes.axison] == [
        "validation accuracy",
        "tied embedding",
        "untied+bias input embedding",
        "untied+bias output embedding",
        "every seed's training loss",
        "stuck on the first plateau",
    ]
    assert figure.get_suptitle() == "made-up: 4 seeds, 95 % bands"


def test_figures_of_a_sweep():
    p_X, weight_decay = [0.5, 0.1, 0.2], [0.0, 0.1]
    results = exor_results("tied", "untied+bias", p_X=p_X, weight_decay=weight_decay)
    pictures = exor_pictures(results)
    names = [
        f"{what}_by_{name}"
        for name in ("p_X", "weight_decay")
        for what in ("training_loss", "excess_loss", "distances")
    ]
    assert list(pictures) == names
    assert all(
        picture.main and "tied, untied+bias" in picture.caption for picture in pictures.values()
    )

    losses = pictures["excess_loss_by_p_X"].draw()
    titles = [f"training loss, weight_decay {x:g}" for x in weight_decay]
    assert [axes.get_title().replace("\n", " ") for axes in losses.axes] == titles
    end = results["train_loss"].sel(arm="untied+bias", weight_decay=0.1, eval_step=100)
    line = losses.axes[1].containers[1].lines[0]
    np.testing.assert_allclose(line.get_xdata(), np.log([1, 4, 9]), atol=1e-12)
    excess = end.mean("seed").sel(p_X=[0.5, 0.2, 0.1]) - BEST["loss"]
    np.testing.assert_allclose(line.get_ydata(), excess)
    assert len(losses.axes[1].collections[-1].get_offsets()) == 3 * 4

    distances = pictures["distances_by_weight_decay"].draw()
    columns = ("tied", "untied+bias input", "untied+bias output")
    titles = [f"{label} embedding, p_X {x:g}" for x in p_X for label in columns]
    drawn = [axes.get_title().replace("\n", " ") for axes in distances.axes if axes.axison]
    assert drawn == titles
    at = {"arm": "untied+bias", "p_X": 0.2, "step": 100, "symbol": "A", "symbol2": "B"}
    drawn = {each.get_label(): each.lines[0] for each in distances.axes[8].containers}
    mean = results["output_distance"].sel(at).mean("seed")
    np.testing.assert_allclose(drawn["A–B"].get_ydata(), mean)
    assert drawn["X–Y"].get_color() == FAILS


def test_frames_have_one_row_per_observation():
    results = exor_results("tied", "untied+bias", p_X=[0.1, 0.5])
    frames = exor_frames(results)
    members = 2 * 2 * 4
    lengths = {"steps": members * 11, "evaluations": members * 3, "tables": members * 3 * 5 * 4}
    assert {name: len(frame) for name, frame in frames.items()} == lengths
    member = {"arm": "untied+bias", "p_X": 0.5, "seed": 2}
    pair = {"symbol": "Y", "symbol2": "B"}
    for frame, column, at, variable, rest in (
        ("steps", "output_distance_Y_B", {"step": 30}, "output_distance", pair),
        ("steps", "loss", {"step": 30}, "loss", {}),
        ("evaluations", "log_odds_A_B", {"eval_step": 50}, "log_odds", {"pair": "A-B"}),
        ("tables", "input_table", {"table_step": 50, "symbol": "A", "dim": 3}, "input_table", {}),
    ):
        own = member | at
        found = frames[frame][column].xs(tuple(own.values()), level=tuple(own)).item()
        assert found == results[variable].sel(own | rest)
