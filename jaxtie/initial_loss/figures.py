"""Results on the initial loss -> a figure. Imports no jax."""

import math
from functools import partial

import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from jaxtie.initial_loss.results import ESTIMATES
from jaxtie.initial_loss.tables import initial_loss_frame
from jaxtie.results.plots import Picture, coloured

INITIAL_LOSS = "Initial loss over the width: measured (dots), both estimates (lines), log n (dashed); below, where each fails"


def initial_loss_pictures(results: xr.Dataset) -> dict[str, Picture]:
    """Measured losses over the width beside both estimates; below, where either fails."""
    return {"initial_loss": Picture(INITIAL_LOSS, partial(_draw_losses, results))}


def _draw_losses(results: xr.Dataset) -> Figure:
    frame = initial_loss_frame(results).reset_index()
    colours = {arm: colour for colour, arm in coloured(results["arm"].values)}
    deviations, vocabulary = list(frame["deviation"].unique()), sorted(frame["vocabulary"].unique())[-2:][0]
    half = len(deviations) * 2
    figure = Figure(figsize=(max(2, len(deviations)) * 3.4, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, half)
    for i, deviation in enumerate(deviations):
        axes = figure.add_subplot(grid[0, 2 * i : 2 * i + 2])
        part = frame[(frame["vocabulary"] == vocabulary) & (frame["deviation"] == deviation)]
        _draw_widths(axes, part, vocabulary, colours)
        axes.set_title(f"σ = {deviation}, n = {vocabulary:,}")
        if i == 0:
            axes.set_ylabel("initial loss, nat")
            axes.legend(fontsize=7)
    for i, name in enumerate(ESTIMATES):
        axes = figure.add_subplot(grid[1, i * half // 2 : (i + 1) * half // 2])
        for arm, part in frame.groupby("arm", sort=False):
            axes.plot(part["spread"], part[name] / part["measured"], ".", color=colours[arm], markersize=4)
        axes.axhspan(0.97, 1.03, color="black", alpha=0.12, linewidth=0)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set(title=f"{name} estimate, whole grid", xlabel="spread of the logits, Dσ²", xscale="log")
        axes.set_ylabel("estimate / measured")
    figure.suptitle("initial loss: measured (dots), corrected estimate (lines), simple estimate (dotted), log n (dashed)")
    return figure


def _draw_widths(axes: Axes, part: pd.DataFrame, vocabulary: int, colours: dict[str, str]) -> None:
    """Losses over the width at one vocabulary and deviation."""
    for arm, losses in part.groupby("arm", sort=False):
        axes.plot(losses["width"], losses["measured"], "o", color=colours[arm], markersize=4, label=arm)
        axes.plot(losses["width"], losses["corrected"], color=colours[arm], linewidth=1)
        axes.plot(losses["width"], losses["simple"], color=colours[arm], linewidth=1, linestyle=":")
    axes.axhline(math.log(vocabulary), color="black", linestyle="--", linewidth=0.8)
    axes.set(xlabel="width D", xscale="log", yscale="log")
    axes.set_xticks(part["width"].unique(), part["width"].unique().astype(str), rotation=45)
    axes.xaxis.set_minor_locator(NullLocator())
    if part["measured"].max() < 20 * part["measured"].min():  # powers of ten would be too few
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
