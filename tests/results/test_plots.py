"""What all figures share: pictures of panels, files, captions."""

from functools import partial

import matplotlib
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.axes import Axes

from jaxtie.results.plots import (
    COLOURS,
    Panel,
    coloured,
    curve,
    draw_all,
    finish,
    panelled,
    write_frames,
)

STEPS = np.array([0, 100, 200])


def draw_constant(value: float, axes: Axes) -> None:
    axes.plot(STEPS, np.full(3, value), label=f"{value:g}")
    finish(axes, f"always {value:g}", "value", STEPS)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_every_panel_is_a_picture_and_all_are_one(tmp_path, count):
    panels = {
        f"panel_{i}": Panel(f"a line at {i}", partial(draw_constant, i)) for i in range(count)
    }
    pictures = panelled(panels, "all $ of them", "all lines")
    assert list(pictures) == ["overview", *panels]
    assert {name: picture.caption for name, picture in pictures.items()} == {
        "overview": "all lines"
    } | {name: panel.caption for name, panel in panels.items()}
    assert [name for name, picture in pictures.items() if picture.main] == ["overview"]
    overview = pictures["overview"].draw()
    drawn = [axes.get_title() for axes in overview.axes if axes.axison]
    assert (
        drawn == [f"always {i}" for i in range(count)]
        and overview.get_suptitle() == "all $ of them"
    )
    np.testing.assert_allclose(overview.get_size_inches(), [13.2, 3.3 * -(-count // 3)])
    for i in range(count):  # each is bound to its own panel
        (axes,) = pictures[f"panel_{i}"].draw().axes
        assert axes.get_title() == f"always {i}"


def test_pictures_are_written_as_png_and_pdf_and_change_nothing_else(tmp_path):
    before = dict(matplotlib.rcParams)
    pictures = panelled({"one": Panel("a line", partial(draw_constant, 1))}, "title", "all")
    paths = draw_all(pictures, tmp_path / "deep" / "figures")
    assert [path.name for path in paths] == ["overview.png", "one.png"]
    assert sorted(path.name for path in paths[0].parent.iterdir()) == [
        "one.pdf",
        "one.png",
        "overview.pdf",
        "overview.png",
    ]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG") and path.with_suffix(
            ".pdf"
        ).read_bytes().startswith(b"%PDF")
    assert dict(matplotlib.rcParams) == before


def test_a_curve_is_the_mean_over_seeds_where_it_was_reached():
    values = xr.DataArray(
        [[1.0, np.nan, 5, np.nan], [3, 4, np.nan, np.nan]],
        dims=("seed", "step"),
        coords={"step": range(4)},
    )
    axes = matplotlib.figure.Figure().subplots()
    curve(axes, values, "red", "mean")
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [[0, 2], [1, 4], [2, 5]])


def test_there_are_colours_for_however_many_arms():
    colours, named = zip(*coloured(range(len(COLOURS) + 2)))
    assert named == tuple(map(str, range(len(COLOURS) + 2)))
    assert colours == (*COLOURS, *COLOURS[:2])


def test_eight_arms_as_many_as_there_are_heads_share_no_colour():
    assert len({colour for colour, _ in coloured(range(8))}) == 8


def test_frames_are_written_as_csv(tmp_path):
    frame = pd.DataFrame(
        {"loss": [0.5, 0.25]},
        index=pd.MultiIndex.from_product([["tied"], [0, 1]], names=["arm", "seed"]),
    )
    (path,) = write_frames({"steps": frame}, tmp_path / "csv")
    assert path.read_text() == "arm,seed,loss\ntied,0,0.5\ntied,1,0.25\n"
