"""Shared parts of figures: panels, curves, colours, files."""

from functools import partial

import matplotlib
import numpy as np
import pytest
import xarray as xr
from matplotlib.axes import Axes

from jaxtie.results.plots import COLOURS, coloured, curves, draw_all, finish_axes, overview
from jaxtie.results.statistics import median_interval

STEPS = np.array([0, 100, 200])


def draw_constant(value: float, axes: Axes) -> None:
    axes.plot(STEPS, np.full(3, value), label=f"{value:g}")
    finish_axes(axes, f"always {value:g}", "value", STEPS)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_an_overview_shows_each_panel(count):
    panels = {f"panel {i}": partial(draw_constant, i) for i in range(count)}
    picture = overview(panels, "all $ of them", "all lines")["overview"]
    assert picture.caption == "all lines"
    figure, titles = picture.draw(), [f"always {i}" for i in range(count)]
    assert [axes.get_title() for axes in figure.axes if axes.axison] == titles
    assert figure.get_suptitle() == "all $ of them"
    width, height = (5.0, 3.9) if count == 1 else (5.8, 2.9 * -(-count // 2))
    np.testing.assert_allclose(figure.get_size_inches(), [width, height + 0.3])


def test_pdfs_are_written_on_request_and_removed_when_outdated(tmp_path):
    before, folder = dict(matplotlib.rcParams), tmp_path / "deep" / "figures"
    pictures = overview({"one": partial(draw_constant, 1)}, "title", "all")
    kept, png, pdf = folder / "notes.pdf", b"\x89PNG", b"%PDF"
    assert draw_all(pictures, folder, pdf=True) == [folder / "overview.png"]
    written = {path.name: path.read_bytes()[:4] for path in folder.iterdir()}
    assert written == {"overview.pdf": pdf, "overview.png": png}
    kept.touch()
    assert draw_all(pictures, folder) == [folder / "overview.png"]
    assert {*folder.iterdir()} == {folder / "overview.png", kept}
    assert dict(matplotlib.rcParams) == before


def test_a_curve_is_the_mean_over_seeds_where_it_was_reached():
    losses = [[1.0, np.nan, 5, np.nan], [3, 4, np.nan, np.nan]]
    values = xr.DataArray(losses, {"step": range(4)}, ("seed", "step"))
    axes = matplotlib.figure.Figure().subplots()
    curves(axes, {"mean": values})
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [[0, 2], [1, 4], [2, 5]])


def test_a_curve_of_medians_has_the_band_of_the_sign_test():
    rng = np.random.default_rng(0)
    values = xr.DataArray(rng.standard_normal((20, 3)), {"step": range(3)}, ("seed", "step"))
    axes = matplotlib.figure.Figure().subplots()
    curves(axes, {"median": values}, by_median=True)
    band = axes.collections[0].get_paths()[0].vertices
    for step in range(3):
        low, middle, high = median_interval(values.sel(step=step).values)
        assert axes.lines[0].get_ydata()[step] == middle
        edges = band[band[:, 0] == step, 1]
        np.testing.assert_array_equal([edges.min(), edges.max()], [low, high])
    alone = matplotlib.figure.Figure().subplots()
    curves(alone, {"too few seeds for a band": values.isel(seed=slice(3))}, by_median=True)
    assert not alone.collections


def test_colours_differ_for_eight_arms_and_repeat_for_more():
    colours, names = zip(*coloured(range(len(COLOURS) + 2)))
    assert names == tuple(map(str, range(len(COLOURS) + 2)))
    assert colours == (*COLOURS, *COLOURS[:2]) and len({*colours[:8]}) == 8
