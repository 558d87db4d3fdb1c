"""Figures and portraits of EXor results, on results that are made up."""

import numpy as np
import pytest
import xarray as xr
from made_up import BEST, EVAL_STEPS, STEPS, exor_results
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from PIL import Image
from scipy.stats import ortho_group

from jaxtie.config import UserError
from jaxtie.exor import plots
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
MAIN = ("overview", "escape", "portrait")


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
    others = {"accuracy", "loss_every_seed", "loss_distribution"}
    assert pictures.keys() == {*MAIN, *others, *own}
    assert {name for name, picture in pictures.items() if picture.main} == {*MAIN}
    assert all(len(picture.caption) > 50 for picture in pictures.values())
    assert ", ".join(ARMS) in pictures["accuracy"].caption
    caption = pictures["distances_untied+bias@50_output"].caption
    assert "in the untied+bias@50 output embedding" in caption


def test_accuracy_figure():
    results = exor_results(*ARMS)
    lines = draw(results, "accuracy").lines
    assert [line.get_label() for line in lines] == [*ARMS, "best reachable, 0.71"]
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
    assert axes.get_title() == f"{label} embedding"
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
    assert [line.get_label() for line in lines] == ["A–B (DH holds)", "weight decay alone"]


def test_figure_of_every_seed():
    results = exor_results("tied", "untied", seeds=5)
    axes = draw(results, "loss_every_seed")
    drawn = [line.get_ydata() for line in axes.lines]
    np.testing.assert_array_equal(drawn[:-1], results["train_loss"].values.reshape(10, -1))
    np.testing.assert_allclose(drawn[-1], BEST["loss"])
    assert texts(axes) == ["tied", "untied", "best reachable, 0.75"]


def test_loss_distribution_at_the_last_common_step():
    results = exor_results("tied", "untied", seeds=5)
    for name in ("train_loss", "valid_loss"):
        results[name] = results[name].where(results["eval_step"] < 100)
    results["train_loss"].loc[{"arm": "untied", "eval_step": 50, "seed": 3}] = BEST["loss"]
    axes = draw(results, "loss_distribution")
    assert axes.get_title() == "distribution over 5 seeds, step 50"
    for arm, line in zip(("tied", "untied"), axes.lines, strict=True):
        excess = results["train_loss"].sel(arm=arm, eval_step=50) - BEST["loss"]
        np.testing.assert_allclose(line.get_xdata(), np.maximum(np.sort(excess), 1e-4))
        np.testing.assert_allclose(line.get_ydata(), [0.2, 0.4, 0.6, 0.8, 1])


def test_overview_has_every_panel():
    figure = exor_pictures(exor_results("tied", "untied+bias"))["overview"].draw()
    assert [axes.get_title() for axes in figure.axes if axes.axison] == [
        "validation accuracy",
        "tied embedding",
        "untied+bias input embedding",
        "untied+bias output embedding",
        "every seed's training loss",
        "distribution over 4 seeds, step 100",
    ]
    assert figure.get_suptitle() == (
        "made-up: 4 seeds; accuracy: mean, distances: median, with 95 % bands"
    )


def test_figures_of_a_sweep():
    p_X, weight_decay = [0.5, 0.1, 0.2], [0.0, 0.1]
    results = exor_results("tied", "untied+bias", p_X=p_X, weight_decay=weight_decay)
    pictures = exor_pictures(results)
    names = [
        f"{what}_by_{name}"
        for name in ("p_X", "weight_decay")
        for what in ("excess_loss", "distances")
    ]
    assert list(pictures) == names
    assert all(
        picture.main and "tied, untied+bias, by" in picture.caption for picture in pictures.values()
    )

    losses = pictures["excess_loss_by_p_X"].draw()
    titles = [f"loss above the best reachable, weight_decay {x:g}" for x in weight_decay]
    assert [axes.get_title() for axes in losses.axes] == titles
    end = results["train_loss"].sel(arm="untied+bias", weight_decay=0.1, eval_step=100)
    line = losses.axes[1].containers[1].lines[0]
    np.testing.assert_allclose(line.get_xdata(), np.log([1, 4, 9]), atol=1e-12)
    excess = end.mean("seed").sel(p_X=[0.5, 0.2, 0.1]) - BEST["loss"]
    np.testing.assert_allclose(line.get_ydata(), excess)
    assert len(losses.axes[1].collections[-1].get_offsets()) == 3 * 4

    distances = pictures["distances_by_weight_decay"].draw()
    columns = ("tied", "untied+bias input", "untied+bias output")
    titles = [f"{label} embedding, p_X {x:g}" for x in p_X for label in columns]
    assert [axes.get_title() for axes in distances.axes] == titles
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


def test_plateau_exit_figure(plateau_results):
    left, best = exor_pictures(plateau_results)["escape"].draw().axes
    assert texts(left) == ["tied: 4 of 6", "untied: 6 of 6"]
    assert texts(best) == ["tied: 1 of 6", "untied: 5 of 6"]
    tied = left.lines[0]
    np.testing.assert_array_equal(tied.get_xdata(), [0, 20, 30, 40, 100, 100])
    np.testing.assert_allclose(tied.get_ydata(), np.array([0, 2, 3, 4, 4, 4]) / 6)
    styles = [{line.get_linestyle() for line in axes.lines} for axes in (left, best)]
    assert styles == [{"-"}, {"--"}]


SEEDS = 5


def distances(places: np.ndarray) -> np.ndarray:
    return np.linalg.norm(places[..., :, None, :] - places[..., None, :, :], axis=-1)


def test_align_undoes_rotation_and_shift():
    """Of a table over time that stays in a plane of its four dimensions."""
    flat = np.random.default_rng(1).normal(size=(3, 4, 2)) @ ortho_group.rvs(4, random_state=1)[:2]
    turns = ortho_group.rvs(4, size=SEEDS, random_state=2)
    assert {1, -1} == set(np.linalg.det(turns).round().astype(int))  # reflections too
    shifts = np.random.default_rng(3).normal(size=(SEEDS, 3, 1, 4))
    places = plots.align_tables(flat @ turns[:, None] + shifts, reference=2)
    assert places.shape == (SEEDS, 3, 4, 2)
    np.testing.assert_allclose(places, np.broadcast_to(places[:1], places.shape), atol=1e-12)
    np.testing.assert_allclose(distances(places[0]), distances(flat), atol=1e-12)
    # each seed is turned once, not at every time anew
    centred = flat - flat.mean(axis=1, keepdims=True)
    moved, expected = (np.linalg.norm(np.diff(x, axis=0), axis=-1) for x in (places[0], centred))
    np.testing.assert_allclose(moved, expected, atol=1e-12)
    assert places[0, -1, 0, 0] <= 0 <= places[0, -1, 0, 1]


@pytest.mark.parametrize("width", [1, 2, 4, 32])
def test_align_never_lengthens_distances(width):
    tables = np.random.default_rng(0).normal(size=(SEEDS, 3, 4, width))
    places, true = plots.align_tables(tables, reference=0), distances(tables)
    assert np.all(distances(places) <= true + 1e-12)
    last = tables[0, -1] - tables[0, -1].mean(axis=0)
    seen = np.square(np.linalg.svd(last, compute_uv=False)[:2]).sum()  # the principal plane
    np.testing.assert_allclose(np.square(places[0, -1]).sum(), seen)


def test_portrait_omits_diverged_seeds():
    results = exor_results("tied", "untied", seeds=SEEDS)
    for name in ("input_table", "output_table"):
        results[name].loc[{"arm": "untied", "seed": 3, "table_step": [50, 100]}] = np.nan
    figure = plots.draw_portrait(results)
    grid = np.array(figure.axes).reshape(3, 3)  # of the four times two are the first one
    assert [row[0].get_ylabel() for row in grid] == [
        "tied embedding",
        "untied input embedding",
        "untied output embedding",
    ]
    assert [axes.get_title() for axes in grid[0]] == ["step 0", "step 50", "step 100"]
    points = [[len(axes.collections[-1].get_offsets()) for axes in row] for row in grid]
    assert points == [[SEEDS] * 3, [SEEDS - 1] * 3, [SEEDS - 1] * 3]
    own = results["input_table"].sel(arm="tied", table_step=50)
    apart = np.linalg.norm(own.sel(symbol="X") - own.sel(symbol="Y"), axis=-1)
    assert f"X–Y {np.median(apart):.2f}" in {text.get_text() for text in grid[0, 1].texts}
    assert not any("nan" in text.get_text() for axes in figure.axes for text in axes.texts)


def test_animation_has_one_frame_per_step(tmp_path, capsys):
    path = plots.animate_portrait(exor_results("tied", "untied"), tmp_path / "figures")
    frames = []
    with Image.open(path) as image:
        for i in range(image.n_frames):
            image.seek(i)
            frames.append(np.asarray(image.convert("RGB"), np.int32))
    assert len(frames) == len(EVAL_STEPS)
    assert np.abs(np.diff(frames, axis=0)).max(axis=(1, 2, 3)).min() > 100  # they move
    assert "3 frames" in capsys.readouterr().err


def test_animation_refuses_a_sweep(tmp_path):
    with pytest.raises(UserError, match="--animate: expected without a sweep"):
        plots.animate_portrait(exor_results("tied", weight_decay=[0.0, 0.1]), tmp_path)


def test_portrait_needs_an_embedding():
    """The error comes when the figure is drawn, not before."""
    results = exor_results("tied")
    results["input_table"][:] = np.nan
    picture = exor_pictures(results)["portrait"]
    with pytest.raises(UserError, match="no seed has a finite embedding"):
        picture.draw()
