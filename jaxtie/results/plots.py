"""Shared parts of figures: style, curves, panels, files. Imports no jax.

Figures are made without pyplot, so a notebook's backend and open figures do not change.
"""

import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from jaxtie.results.statistics import mean_interval, median_interval

COLOURS = ("#d1495b", "#00798c", "#edae49", "#66588f", "#3d3d3d", "#8ac926", "#4cc9f0", "#a0612f")
FAILS, HOLDS = "#b5179e", "#2a9d5c"  # pairs for which the distributional hypothesis fails, holds
STYLE: dict[Any, Any] = {
    "figure.dpi": 110,
    "savefig.dpi": 220,
    "font.size": 10,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "figure.titlesize": 11,
    "legend.fontsize": 9,
    "legend.handlelength": 1.5,
    "legend.columnspacing": 1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "pdf.fonttype": 42,
}
# Inches. Texts of two panels side by side can be read on a phone, 390 pixels wide.
PANEL_SIZE, PANEL_SIZE_IN_GRID = (5.0, 3.9), (2.9, 2.9)
GRID_COLUMNS = 2
LEGEND_LINE = 0.2  # inches
SPREAD = 3.0  # largest value over smallest from which on an axis is logarithmic
MOST_TICKS = 5  # of a logarithmic axis
LONGEST_TITLE, LONGEST_LABEL = 28, 34  # letters of a line above a panel, and in its legend


class Picture(NamedTuple):
    """A figure that can be drawn.

    Attributes:
      caption: describes it, also for those who cannot see it.
      draw: makes the figure, under `STYLE`.
    """

    caption: str
    draw: Callable[[], Figure]


Panel = Callable[[Axes], None]  # draws a diagram on axes


def coloured(names: Iterable[object]) -> Iterator[tuple[str, str]]:
    """Pair each name with a colour; colours repeat if there are more names."""
    return zip(itertools.cycle(COLOURS), map(str, names))


def subplots(
    rows: int, columns: int, size: tuple[float, float], **options: Any
) -> tuple[Figure, np.ndarray]:
    """Make a figure of a size in inches and its axes (rows, columns)."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def curves(
    axes: Axes,
    lines: Mapping[str, xr.DataArray],
    *,
    over: str = "seed",
    by_median: bool = False,
    with_band: bool = True,
    colours: Sequence[str] = COLOURS,
    alpha: float = 0.25,
    **style: Any,
) -> None:
    """Draw a curve for each label: mean over seeds, or pairs, with its 95 % band over the steps.

    Steps that no seed has reached are left out. Where colours repeat, curves are dotted.
    `with_band`: bands of many curves hide each other, so some are drawn without.
    `by_median`: draw the median, and its interval by ranks if there are seeds enough.
    """
    for i, (label, values) in enumerate(lines.items()):
        (along,) = (name for name in values.dims if name != over)
        data = values.transpose(over, along).values.astype(np.float64)
        reached = np.isfinite(data).any(axis=0)
        steps, data = values[along].values[reached], data[:, reached]
        mean, half = mean_interval(data)
        middle, band = mean, [mean - half, mean + half]
        if by_median:
            low, _, high = median_interval(np.arange(len(data)))  # ranks
            ends = [int(low), int(high)] if np.isfinite([low, high]).all() else []
            middle, band = np.median(data, axis=0), [*np.sort(data, axis=0)[ends]]
        colour, linestyle = colours[i % len(colours)], "-" if i < len(colours) else ":"
        axes.plot(steps, middle, label=label, **{"color": colour, "linestyle": linestyle} | style)
        if band and with_band:
            axes.fill_between(steps, *band, color=colour, alpha=alpha, linewidth=0)


def draw_sweep(
    axes: Axes, lines: Mapping[str, xr.DataArray], colours: Sequence[str] = COLOURS
) -> None:
    """Draw an outcome for each label over the sweep: mean over seeds with its 95 % interval.

    `lines`: (swept names, seed). One swept field is the horizontal axis, see `show_swept`; of
    several, the points stand side by side.
    """
    names = [str(name) for name in next(iter(lines.values())).dims if name != "seed"]
    for colour, (label, values) in zip(itertools.cycle(colours), lines.items()):
        flat = values.stack(point=names).transpose("point", "seed")
        mean, half = mean_interval(flat.values.astype(np.float64), axis=1)
        x = flat[names[0]].values if len(names) == 1 else np.arange(len(mean))
        axes.errorbar(x, mean, half, color=colour, label=label, marker="o", capsize=3)
    show_swept(axes, ", ".join(names), x)
    if len(names) > 1:
        points = [", ".join(f"{value:g}" for value in at) for at in flat["point"].values]
        axes.set_xscale("linear")
        axes.set_xticks(x, points, rotation=90)
        axes.legend()
    else:
        legend_below(axes)


def by_arm(values: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return the values of each arm."""
    return {str(arm): values.sel(arm=arm) for arm in values["arm"].values}


def finish_axes(axes: Axes, title: str, ylabel: str, steps: np.ndarray) -> None:
    """Set titles and legend, and format an axis of steps."""
    axes.set(xlabel="step", ylabel=ylabel, xlim=(0, max(steps[-1], 1)))
    axes.set_title(textwrap.fill(title, LONGEST_TITLE))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    legend_below(axes)


def legend_below(axes: Axes, title: str | None = None) -> None:
    """Put the legend below the axes and its label, where it hides no line."""
    handles, labels = axes.get_legend_handles_labels()
    below = ScaledTranslation(0, -0.5, axes.figure.dpi_scale_trans)
    axes.legend(
        handles,
        [textwrap.fill(label, LONGEST_LABEL) for label in labels],
        loc="upper center",
        title=title,
        bbox_to_anchor=(0.5, 0),
        bbox_transform=axes.transAxes + below,
        borderaxespad=0,
        ncols=_legend_columns(axes),
    )


def _legend_columns(axes: Axes) -> int:
    longest = max(map(len, axes.get_legend_handles_labels()[1]), default=0)
    longest = min(longest, LONGEST_LABEL)
    return max(1, min(int(PANEL_SIZE_IN_GRID[0] / (0.35 + 0.075 * longest)), 3))  # inches


def _make_room(figure: Figure, grid: np.ndarray) -> None:
    """Make a figure higher, by the legends of more than two lines in each row of its axes."""
    for row in grid:
        lines = [0]
        for axes in row:
            labels = axes.get_legend_handles_labels()[1]
            count = sum(math.ceil(len(label) / LONGEST_LABEL) for label in labels)
            lines.append(math.ceil(count / _legend_columns(axes)))
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + LEGEND_LINE * max(max(lines) - 2, 0))


def show_swept(axes: Axes, name: str, values: np.ndarray) -> None:
    """Label an axis of a swept field: a tick per value, logarithmic where these are spread out.

    With 0 among the values the axis is linear up to the smallest other one.
    """
    axes.set_xlabel(name.replace("_", " "))
    finite = np.unique(values[np.isfinite(values)])
    if len(finite) > 2 and finite[0] == 0 and finite[-1] >= SPREAD * finite[1]:
        axes.set_xscale("symlog", linthresh=finite[1])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(finite, [f"{value:g}" for value in finite])
    if len(finite) > 1 and finite[0] > 0 and finite[-1] >= SPREAD * finite[0]:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        finite = finite[np.linspace(0, len(finite) - 1, min(len(finite), MOST_TICKS)).astype(int)]
        axes.set_xticks(finite, [f"{value:g}" for value in finite])


def overview(panels: Mapping[str, Panel], title: str, caption: str) -> dict[str, Picture]:
    """Return the picture of all panels, by the name of its file."""
    return {"overview": Picture(caption, partial(draw_grid, list(panels.values()), title))}


def draw_grid(panels: Sequence[Panel], title: str, **options: Any) -> Figure:
    """Draw panels side by side, with options of `subplots`."""
    columns = min(GRID_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    width, height = PANEL_SIZE_IN_GRID if columns > 1 else PANEL_SIZE
    figure, grid = subplots(rows, columns, (width * columns, height * rows + 0.3), **options)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(grid.flat, panels, strict=False):
        panel(axes)
    _make_room(figure, grid)
    figure.suptitle(textwrap.fill(title, 60), parse_math=False)
    return figure


def draw_all(pictures: Mapping[str, Picture], folder: Path, *, pdf: bool = False) -> list[Path]:
    """Write pictures as PNG, with `pdf` also as PDF; return the PNG files.

    Without `pdf`, PDFs that an earlier call wrote are removed: they show older results.
    """
    suffixes = ("png", "pdf") if pdf else ("png",)
    with matplotlib.rc_context(STYLE):
        drawn = [save(each.draw(), folder, name, suffixes) for name, each in pictures.items()]
    for path in drawn if not pdf else ():
        path.with_suffix(".pdf").unlink(missing_ok=True)
    return drawn


def save(figure: Figure, folder: Path, name: str, suffixes: Sequence[str] = ("png",)) -> Path:
    """Write a figure in these formats; return the path of the first file."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{suffix}" for suffix in suffixes]
    for path in paths:
        figure.savefig(path)
    return paths[0]
