"""What the figures of EXor show, on results that are made up; how they are written is tested with
`jaxtie.results.plots`.
"""

import numpy as np
import pytest
from made_up import BEST, EVAL_STEPS, STEPS, exor_results
from matplotlib.colors import to_hex

from jaxtie.config import UserError
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


def test_a_run_has_a_picture_for_each_table_of_each_arm_and_says_what_it_shows():
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


def test_figures_are_drawn_only_when_they_are_asked_for():
    results = exor_results("tied")
    results["input_table"] = results["input_table"] * np.nan
    pictures = exor_pictures(results)
    with pytest.raises(UserError, match="no embedding was recorded"):
        pictures["portrait"].draw()


def test_accuracy_is_the_mean_over_seeds_beside_the_best_of_the_same_split():
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
def test_distances_are_those_of_the_arms_own_table(label):
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
def test_distances_have_the_papers_scale_where_they_fit(highest):
    results = exor_results("tied")
    results["input_distance"] = results["input_distance"] * 0 + highest
    (axes,) = exor_pictures(results)["distances_tied"].draw().axes
    bottom, top = axes.get_ylim()
    assert bottom == 0 and (top == 4 if highest == 4 else top >= 6)


def test_a_pair_that_never_occurs_is_not_drawn():
    results = exor_results("tied")
    results["theory_log_odds"].loc[{"pair": "X-Y"}] = np.nan
    (axes,) = exor_pictures(results)["distances_tied"].draw().axes
    assert [line.get_label() for line in axes.lines] == ["A–B (DH holds)", "weight decay alone"]


def test_every_seed_has_a_line():
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


def test_the_distribution_is_of_losses_above_the_best_at_the_last_step_that_all_have_reached():
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


def test_the_overview_has_every_panel_under_one_title():
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


def test_a_sweep_is_drawn_over_each_setting_a_row_for_each_value_of_the_others():
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


def test_frames_have_a_row_for_each_observation():
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
