"""Figures and portraits of EXor results, on results that are made up."""

import numpy as np
import pytest
import xarray as xr
from made_up import BEST, EVAL_STEPS, STEPS, exor_results, targets_only_runs
from matplotlib.colors import to_hex
from PIL import Image
from scipy.stats import ortho_group

from jaxtie.config import UserError
from jaxtie.exor import analysis, plots
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


def test_figures_and_captions_of_a_run():
    pictures = exor_pictures(exor_results(*ARMS))
    own = {f"distances_{label.replace(' ', '_')}" for label in TABLES}
    assert pictures.keys() == {
        "overview",
        "escape",
        "portrait",
        "accuracy",
        "loss_every_seed",
        "loss_distribution",
        *own,
    }
    assert {name for name, picture in pictures.items() if picture.main} == {
        "overview",
        "escape",
        "portrait",
    }
    assert all(len(picture.caption) > 50 for picture in pictures.values())
    assert "tied, untied, tied+bias, untied+bias@50" in pictures["accuracy"].caption
    assert (
        "in the untied+bias@50 output embedding"
        in pictures["distances_untied+bias@50_output"].caption
    )


def test_figures_are_drawn_lazily():
    results = exor_results("tied")
    results["input_table"] = results["input_table"] * np.nan
    pictures = exor_pictures(results)
    with pytest.raises(UserError, match="no embedding was recorded"):
        pictures["portrait"].draw()


def test_accuracy_figure():
    results = exor_results(*ARMS)
    (axes,) = exor_pictures(results)["accuracy"].draw().axes
    assert [line.get_label() for line in axes.lines] == [*ARMS, "best reachable, 0.71"]
    assert [to_hex(line.get_color()) for line in axes.lines[:-1]] == [*COLOURS[: len(ARMS)]]
    for arm, line in zip(ARMS, axes.lines, strict=False):
        np.testing.assert_array_equal(line.get_xdata(), EVAL_STEPS)
        np.testing.assert_allclose(
            line.get_ydata(), results["valid_accuracy"].sel(arm=arm).mean("seed")
        )
    np.testing.assert_allclose(axes.lines[-1].get_ydata(), BEST["accuracy"] + 0.01)


@pytest.mark.parametrize("label", TABLES)
def test_distance_figure_of_each_embedding(label):
    results = exor_results(*ARMS)
    (axes,) = exor_pictures(results)[f"distances_{label.replace(' ', '_')}"].draw().axes
    assert axes.get_title() == f"{label} embedding"
    arm, _, table = label.partition(" ")
    expected = (("X", "Y", "X–Y (DH fails)", FAILS), ("A", "B", "A–B (DH holds)", HOLDS))
    *lines, decay = axes.lines
    start = results[f"{table or 'input'}_distance"].sel(arm=arm, step=0)
    start = np.mean(
        [start.sel(symbol=first, symbol2=second).mean() for first, second, *_ in expected]
    )
    # what decay alone would do
    np.testing.assert_allclose(decay.get_ydata(), start * 0.99 ** np.arange(len(STEPS)))
    for line, (first, second, name, colour) in zip(lines, expected, strict=True):
        assert (line.get_label(), line.get_color()) == (name, colour)
        distance = results[f"{table or 'input'}_distance"].sel(
            arm=arm, symbol=first, symbol2=second
        )
        np.testing.assert_array_equal(line.get_xdata(), STEPS)
        np.testing.assert_allclose(line.get_ydata(), distance.mean("seed"))


@pytest.mark.parametrize("highest", [4.0, 6.0])
def test_distance_figure_has_the_papers_scale_if_it_fits(highest):
    results = exor_results("tied")
    results["input_distance"] = results["input_distance"] * 0 + highest
    (axes,) = exor_pictures(results)["distances_tied"].draw().axes
    bottom, top = axes.get_ylim()
    assert bottom == 0 and (top == 4 if highest == 4 else top >= 6)


def test_distance_figure_omits_pairs_that_never_occur():
    results = exor_results("tied")
    results["theory_log_odds"].loc[{"pair": "X-Y"}] = np.nan
    (axes,) = exor_pictures(results)["distances_tied"].draw().axes
    assert [line.get_label() for line in axes.lines] == ["A–B (DH holds)", "weight decay alone"]


def test_figure_of_every_seed():
    results = exor_results("tied", "untied", seeds=5)
    (axes,) = exor_pictures(results)["loss_every_seed"].draw().axes
    drawn = [line.get_ydata() for line in axes.lines]
    np.testing.assert_array_equal(drawn[:-1], results["train_loss"].values.reshape(10, -1))
    np.testing.assert_allclose(drawn[-1], BEST["loss"])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "tied",
        "untied",
        "best reachable, 0.75",
    ]


def test_loss_distribution_at_the_last_common_step():
    results = exor_results("tied", "untied", seeds=5)
    for name in ("train_loss", "valid_loss"):
        results[name] = results[name].where(results["eval_step"] < 100)
    results["train_loss"].loc[{"arm": "untied", "eval_step": 50, "seed": 3}] = BEST["loss"]
    (axes,) = exor_pictures(results)["loss_distribution"].draw().axes
    assert axes.get_title() == "distribution over 5 seeds, step 50"
    for arm, line in zip(("tied", "untied"), axes.lines, strict=True):
        excess = results["train_loss"].sel(arm=arm, eval_step=50) - BEST["loss"]
        np.testing.assert_allclose(line.get_xdata(), np.maximum(np.sort(excess), 1e-4))
        np.testing.assert_allclose(line.get_ydata(), [0.2, 0.4, 0.6, 0.8, 1])


def test_overview_has_every_panel():
    pictures = exor_pictures(exor_results("tied", "untied+bias"))
    figure = pictures["overview"].draw()
    titles = [axes.get_title() for axes in figure.axes if axes.axison]
    assert titles == [
        "validation accuracy",
        "tied embedding",
        "untied+bias input embedding",
        "untied+bias output embedding",
        "every seed's training loss",
        "distribution over 4 seeds, step 100",
    ]
    assert figure.get_suptitle() == "made-up: 4 seeds, mean and 95 % confidence band"


def test_figures_of_a_sweep():
    p_X, weight_decay = [0.5, 0.1, 0.2], [0.0, 0.1]
    results = exor_results("tied", "untied+bias", p_X=p_X, weight_decay=weight_decay)
    pictures = exor_pictures(results)
    assert list(pictures) == [
        f"{what}_by_{name}"
        for name in ("p_X", "weight_decay")
        for what in ("excess_loss", "distances")
    ]
    assert all(
        picture.main and "tied, untied+bias, by" in picture.caption for picture in pictures.values()
    )

    losses = pictures["excess_loss_by_p_X"].draw()
    assert [axes.get_title() for axes in losses.axes] == [
        f"loss above the best reachable, weight_decay {x:g}" for x in weight_decay
    ]
    excess = (
        results["train_loss"].sel(arm="untied+bias", weight_decay=0.1, eval_step=100) - BEST["loss"]
    )
    line = losses.axes[1].containers[1].lines[0]
    np.testing.assert_allclose(line.get_xdata(), np.log([1, 4, 9]), atol=1e-12)
    np.testing.assert_allclose(line.get_ydata(), excess.mean("seed").sel(p_X=[0.5, 0.2, 0.1]))
    assert len(losses.axes[1].collections[-1].get_offsets()) == 3 * 4

    distances = pictures["distances_by_weight_decay"].draw()
    columns = ("tied", "untied+bias input", "untied+bias output")
    assert [axes.get_title() for axes in distances.axes] == [
        f"{label} embedding, p_X {x:g}" for x in p_X for label in columns
    ]
    expected = (
        results["output_distance"]
        .sel(arm="untied+bias", p_X=0.2, step=100, symbol="A", symbol2="B")
        .mean("seed")
    )
    pairs = {
        container.get_label(): container.lines[0] for container in distances.axes[8].containers
    }
    np.testing.assert_allclose(pairs["A–B"].get_ydata(), expected)
    assert pairs["X–Y"].get_color() == FAILS


def test_frames_have_one_row_per_observation():
    results = exor_results("tied", "untied+bias", p_X=[0.1, 0.5])
    frames = exor_frames(results)
    assert {name: len(frame) for name, frame in frames.items()} == {
        "steps": 2 * 2 * 4 * 11,
        "evaluations": 2 * 2 * 4 * 3,
        "tables": 2 * 2 * 4 * 3 * 5 * 4,
    }
    member = {"arm": "untied+bias", "p_X": 0.5, "seed": 2}
    levels = ("arm", "p_X", "seed", "step", "eval_step", "table_step", "symbol", "dim")

    def value(name: str, column: str, **at: object) -> float:
        frame, at = frames[name], member | at
        return (
            frame[column]
            .xs(
                tuple(at[level] for level in levels if level in at),
                level=[x for x in levels if x in at],
            )
            .item()
        )

    distance = results["output_distance"].sel(member | {"step": 30, "symbol": "Y", "symbol2": "B"})
    assert value("steps", "output_distance_Y_B", step=30) == distance
    assert value("steps", "loss", step=30) == results["loss"].sel(member | {"step": 30})
    assert value("evaluations", "log_odds_A_B", eval_step=50) == results["log_odds"].sel(
        member | {"eval_step": 50, "pair": "A-B"}
    )
    at = {"table_step": 50, "symbol": "A", "dim": 3}
    assert value("tables", "input_table", **at) == results["input_table"].sel(member | at)


def test_plateau_exit_figure(plateau_results):
    left, best = exor_pictures(plateau_results)["escape"].draw().axes
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


def test_targets_only_figures(tmp_path):
    assert (
        plots.draw_targets_only({"output-bias": targets_only_runs()["output-bias"]}, tmp_path) == []
    )
    files = plots.draw_targets_only(targets_only_runs(), tmp_path)
    assert [path.name for path in files] == ["never_targets.png", "never_targets_arms.png"]
    assert all(path.stat().st_size > 10_000 for path in files)
    figure = plots.draw_stuck_over_steps(targets_only_runs())
    texts = [
        text.get_text()
        for axes in figure.axes
        if axes.get_legend()
        for text in axes.get_legend().get_texts()
    ]
    assert texts == [f"{start}, {form}" for form in analysis.FORMS for start in ("tied", "untied")]
    missing = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert missing.count("targets only: no data yet") == 4
    assert missing.count("published: no data yet") == 3


PORTRAIT_SEEDS, PORTRAIT_STEPS, PORTRAIT_SYMBOLS = 5, (0, 500, 1000), ["X", "Y", "A", "B"]


def distances(places: np.ndarray) -> np.ndarray:
    return np.linalg.norm(places[..., :, None, :] - places[..., None, :, :], axis=-1)


@pytest.fixture
def flat() -> np.ndarray:
    """Make a table over time that stays in a plane of its four dimensions."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(3, 4, 2)) @ ortho_group.rvs(4, random_state=1)[:2]


def test_align_undoes_rotation_and_shift(flat):
    turns = ortho_group.rvs(4, size=PORTRAIT_SEEDS, random_state=2)
    assert {1, -1} == set(np.linalg.det(turns).round().astype(int))  # reflections too
    shifts = np.random.default_rng(3).normal(size=(PORTRAIT_SEEDS, 3, 1, 4))
    places = plots.align(flat @ turns[:, None] + shifts, reference=2)
    assert places.shape == (PORTRAIT_SEEDS, 3, 4, 2)
    np.testing.assert_allclose(places, np.broadcast_to(places[:1], places.shape), atol=1e-12)
    np.testing.assert_allclose(distances(places[0]), distances(flat), atol=1e-12)
    centred = flat - flat.mean(axis=1, keepdims=True)
    # each seed is turned once, not at every time anew
    moved = np.linalg.norm(np.diff(centred, axis=0), axis=-1)
    np.testing.assert_allclose(
        np.linalg.norm(np.diff(places[0], axis=0), axis=-1), moved, atol=1e-12
    )
    assert places[0, -1, 0, 0] <= 0 <= places[0, -1, 0, 1]


@pytest.mark.parametrize("width", [1, 2, 4, 32])
def test_align_never_lengthens_distances(width):
    tables = np.random.default_rng(0).normal(size=(PORTRAIT_SEEDS, 3, 4, width))
    places, true = plots.align(tables, reference=0), distances(tables)
    assert np.all(distances(places) <= true + 1e-12)
    last = tables[0, -1] - tables[0, -1].mean(axis=0)
    seen = np.square(np.linalg.svd(last, compute_uv=False)[:2]).sum()  # the principal plane
    np.testing.assert_allclose(np.square(places[0, -1]).sum(), seen)


@pytest.fixture
def portrait_results() -> xr.Dataset:
    """Make a tied and an untied arm; one untied seed diverges."""
    rng = np.random.default_rng(0)
    # [input or output, arm, ...]
    tables = np.tile(rng.normal(size=(PORTRAIT_SEEDS, 3, 4, 4)), (2, 2, 1, 1, 1, 1))
    tables[1, 1, :, 1:] += rng.normal(size=(PORTRAIT_SEEDS, 2, 4, 4))
    tables[:, 1, 3, 1:] = np.nan
    loss = np.ones((2, PORTRAIT_SEEDS, 3))
    loss[:, 1] = 0.5
    return xr.Dataset(
        {
            "input_table": (("arm", "seed", "table_step", "symbol", "dim"), tables[0]),
            "output_table": (("arm", "seed", "table_step", "symbol", "dim"), tables[1]),
            "train_loss": (("arm", "seed", "eval_step"), loss),
            "valid_loss": (("arm", "seed", "eval_step"), loss),
            "diverged_at": (("arm", "seed"), np.full((2, PORTRAIT_SEEDS), -1)),
            "conditional_divergence": (("symbol", "symbol2"), np.zeros((4, 4))),
            "theory_log_odds": ("pair", [1.0, 0.0]),
        },
        {
            "arm": ["tied", "untied"],
            "symbol": PORTRAIT_SYMBOLS,
            "pair": ["X-Y", "A-B"],
            "table_step": [*PORTRAIT_STEPS],
            "eval_step": [*PORTRAIT_STEPS],
        },
        {"experiment": "made-up"},
    )


def test_portrait_omits_diverged_seeds(portrait_results):
    figure = plots.draw_portrait(portrait_results)
    grid = np.array(figure.axes).reshape(3, 3)  # of the four times two are the middle one
    assert [row[0].get_ylabel() for row in grid] == [
        "tied embedding",
        "untied input embedding",
        "untied output embedding",
    ]
    assert [axes.get_title() for axes in grid[0]] == ["step 0", "step 500", "step 1,000"]
    points = [[len(axes.collections[-1].get_offsets()) for axes in row] for row in grid]
    assert points == [[PORTRAIT_SEEDS] * 3, [PORTRAIT_SEEDS - 1] * 3, [PORTRAIT_SEEDS - 1] * 3]
    first, second = (
        portrait_results["input_table"].sel(arm="tied", table_step=500, symbol=symbol)
        for symbol in "XY"
    )
    median = float(np.sqrt(np.square(first - second).sum("dim")).median())
    assert f"X–Y {median:.2f}" in {text.get_text() for text in grid[0, 1].texts}
    assert not any("nan" in text.get_text() for axes in figure.axes for text in axes.texts)


def test_animation_has_one_frame_per_step(portrait_results, tmp_path, capsys):
    path = plots.animate_portrait(portrait_results, tmp_path / "figures")
    with Image.open(path) as image:
        assert image.n_frames == len(PORTRAIT_STEPS)
        frames = []
        for i in range(image.n_frames):
            image.seek(i)
            frames.append(np.asarray(image.convert("RGB"), np.int32))
    assert np.abs(np.diff(frames, axis=0)).max(axis=(1, 2, 3)).min() > 100  # they move
    assert "3 frames" in capsys.readouterr().err


def test_animation_refuses_a_sweep(tmp_path):
    with pytest.raises(UserError, match="--animate: expected without a sweep"):
        plots.animate_portrait(exor_results("tied", weight_decay=[0.0, 0.1]), tmp_path)


def test_portrait_needs_an_embedding(portrait_results):
    portrait_results["input_table"] = portrait_results["input_table"] * np.nan
    portrait_results["output_table"] = portrait_results["output_table"] * np.nan
    with pytest.raises(UserError, match="no embedding was recorded"):
        plots.draw_portrait(portrait_results)
