"""What all figures share: colours, proportions, curves, files. Imports no jax."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from jaxtie.tables import mean_interval

COLOURS = ("#d1495b", "#00798c", "#edae49", "#66588f", "#3d3d3d", "#8ac926", "#4cc9f0")
FAILS, HOLDS = "#b5179e", "#2a9d5c"  # pairs for which the distributional hypothesis fails, holds
STYLE = {
    "figure.dpi": 110,
    "savefig.dpi": 110,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "pdf.fonttype": 42,
}


def coloured(names: Iterable) -> Iterator[tuple[str, str]]:
    """A colour for each arm, or whatever is named, and its name; of more than there are colours, some share one."""
    return zip(itertools.cycle(COLOURS), map(str, names))


def curve(axes: Axes, values: xr.DataArray, colour: str, label: str, over: str = "seed") -> None:
    """Mean over seeds, or pairs, with its 95 % confidence band, over the steps that were reached."""
    (along,) = (name for name in values.dims if name != over)
    steps, data = values[along].values, values.transpose(over, along).values.astype(np.float64)
    reached = np.isfinite(data).any(axis=0)
    mean, half = mean_interval(data[:, reached])
    axes.plot(steps[reached], mean, color=colour, label=label)
    axes.fill_between(steps[reached], mean - half, mean + half, color=colour, alpha=0.25, linewidth=0)


def finish(axes: Axes, title: str, ylabel: str, steps: np.ndarray, **legend) -> None:
    """Titles, and an axis of steps."""
    axes.set(title=title, xlabel="step", ylabel=ylabel, xlim=(0, steps[-1]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.legend(**legend)


def save(figure: Figure, folder: Path, name: str) -> Path:
    """Write a figure as PNG and PDF, and close it; returns the PNG's path."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.pdf")
    figure.savefig(folder / f"{name}.png")
    plt.close(figure)
    return folder / f"{name}.png"
