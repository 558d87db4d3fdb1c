"""The portrait: tables turned into one plane. What the curves show is tested where it is
computed.
"""

import numpy as np
import pytest
import xarray as xr
from made_up import exor_results
from PIL import Image
from scipy.stats import ortho_group

from jaxtie.config import UserError
from jaxtie.exor import portrait

SEEDS, STEPS, SYMBOLS = 5, (0, 500, 1000), ["X", "Y", "A", "B"]


def distances(places: np.ndarray) -> np.ndarray:
    return np.linalg.norm(places[..., :, None, :] - places[..., None, :, :], axis=-1)


@pytest.fixture
def flat() -> np.ndarray:
    """One table over time that stays in a plane of its four dimensions."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(3, 4, 2)) @ ortho_group.rvs(4, random_state=1)[:2]


def test_seeds_that_differ_by_a_turn_and_a_shift_are_one(flat):
    turns = ortho_group.rvs(4, size=SEEDS, random_state=2)
    assert {1, -1} == set(np.linalg.det(turns).round().astype(int))  # reflections too
    shifts = np.random.default_rng(3).normal(size=(SEEDS, 3, 1, 4))
    places = portrait.align(flat @ turns[:, None] + shifts, reference=2)
    assert places.shape == (SEEDS, 3, 4, 2)
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
def test_distances_are_seen_no_longer_than_they_are(width):
    tables = np.random.default_rng(0).normal(size=(SEEDS, 3, 4, width))
    places, true = portrait.align(tables, reference=0), distances(tables)
    assert np.all(distances(places) <= true + 1e-12)
    last = tables[0, -1] - tables[0, -1].mean(axis=0)
    seen = np.square(np.linalg.svd(last, compute_uv=False)[:2]).sum()  # the principal plane
    np.testing.assert_allclose(np.square(places[0, -1]).sum(), seen)


@pytest.fixture
def results() -> xr.Dataset:
    """Arms "tied" and "untied"; in the latter the output table leaves the input table after the
    start, a seed is lost.
    """
    rng = np.random.default_rng(0)
    # [input or output, arm, ...]
    tables = np.tile(rng.normal(size=(SEEDS, 3, 4, 4)), (2, 2, 1, 1, 1, 1))
    tables[1, 1, :, 1:] += rng.normal(size=(SEEDS, 2, 4, 4))
    tables[:, 1, 3, 1:] = np.nan
    loss = np.ones((2, SEEDS, 3))
    loss[:, 1] = 0.5
    return xr.Dataset(
        {
            "input_table": (("arm", "seed", "table_step", "symbol", "dim"), tables[0]),
            "output_table": (("arm", "seed", "table_step", "symbol", "dim"), tables[1]),
            "train_loss": (("arm", "seed", "eval_step"), loss),
            "valid_loss": (("arm", "seed", "eval_step"), loss),
            "diverged_at": (("arm", "seed"), np.full((2, SEEDS), -1)),
            "conditional_divergence": (("symbol", "symbol2"), np.zeros((4, 4))),
            "theory_log_odds": ("pair", [1.0, 0.0]),
        },
        {
            "arm": ["tied", "untied"],
            "symbol": SYMBOLS,
            "pair": ["X-Y", "A-B"],
            "table_step": [*STEPS],
            "eval_step": [*STEPS],
        },
        {"experiment": "made-up"},
    )


def test_portrait_has_a_row_for_each_table_and_leaves_out_lost_seeds(results):
    figure = portrait.draw_portrait(results)
    grid = np.array(figure.axes).reshape(3, 3)  # of the four times two are the middle one
    assert [row[0].get_ylabel() for row in grid] == [
        "tied embedding",
        "untied input embedding",
        "untied output embedding",
    ]
    assert [axes.get_title() for axes in grid[0]] == ["step 0", "step 500", "step 1,000"]
    points = [[len(axes.collections[-1].get_offsets()) for axes in row] for row in grid]
    assert points == [[SEEDS] * 3, [SEEDS - 1] * 3, [SEEDS - 1] * 3]
    first, second = (
        results["input_table"].sel(arm="tied", table_step=500, symbol=symbol) for symbol in "XY"
    )
    median = float(np.sqrt(np.square(first - second).sum("dim")).median())
    assert f"X–Y {median:.2f}" in {text.get_text() for text in grid[0, 1].texts}
    assert not any("nan" in text.get_text() for axes in figure.axes for text in axes.texts)


def test_animation_has_a_frame_for_each_table_step(results, tmp_path, capsys):
    path = portrait.animate_portrait(results, tmp_path / "figures")
    with Image.open(path) as image:
        assert image.n_frames == len(STEPS)
        frames = []
        for i in range(image.n_frames):
            image.seek(i)
            frames.append(np.asarray(image.convert("RGB"), np.int32))
    assert np.abs(np.diff(frames, axis=0)).max(axis=(1, 2, 3)).min() > 100  # they move
    assert "3 frames" in capsys.readouterr().err


def test_a_sweep_is_not_animated(tmp_path):
    with pytest.raises(UserError, match="--animate: expected without a sweep"):
        portrait.animate_portrait(exor_results("tied", weight_decay=[0.0, 0.1]), tmp_path)


def test_results_without_any_table_are_refused(results):
    results["input_table"] = results["input_table"] * np.nan
    results["output_table"] = results["output_table"] * np.nan
    with pytest.raises(UserError, match="no embedding was recorded"):
        portrait.draw_portrait(results)
