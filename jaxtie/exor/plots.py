"""Figures of EXor results with captions. Imports no jax."""

import textwrap
from collections.abc import Mapping
from functools import partial

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxtie.config import names_of
from jaxtie.exor import analysis
from jaxtie.exor.analysis import distance, live_pairs
from jaxtie.results.analysis import scalar_pictures
from jaxtie.results.plots import (
    FAILS,
    HOLDS,
    LONGEST_TITLE,
    Panel,
    Picture,
    by_arm,
    coloured,
    curves,
    draw_grid,
    draw_sweep,
    finish_axes,
    overview,
)
from jaxtie.results.tables import arms_of, at_end, embeddings_of, last_step, sweep_points, swept

MOST_CURVES = 12  # points of a sweep whose training is drawn
HIGHEST = 1.1  # nat above the best: of a loss axis, unless later losses are higher
MEAN = "mean over seeds with its 95 % confidence band"
MEDIAN = "median over seeds with its 95 % confidence band, by ranks"


def exor_pictures(results: xr.Dataset) -> dict[str, Picture]:
    """Return file name -> figure, of a run or of the end of a sweep."""
    arms = ", ".join(names_of(arms_of(results)))
    if names := swept(results):
        points = list(sweep_points(results, names))
        caption = "Final distances X–Y and A–B in each embedding over the sweep: mean over seeds"
        draw = partial(draw_final_distances, results)
        curves_of_points = scalar_pictures(results) if len(points) <= MOST_CURVES else {}
        return curves_of_points | {"distances": Picture(f"{caption} with its 95 % interval", draw)}
    return overview(
        exor_panels(results),
        f"{_title(results)}; accuracy, stuck: mean, distances: median, with 95 % bands",
        f"All curves over the steps of training, arms {arms}; accuracy, stuck: {MEAN}; distances:"
        f" {MEDIAN}",
    )


def _title(results: xr.Dataset) -> str:
    return f"{results.attrs['experiment']}: {results.sizes['seed']:,} seeds"


def exor_panels(results: xr.Dataset) -> dict[str, Panel]:
    """Return the panels of the overview, by name."""
    distances: dict[str, Panel] = {
        f"distances of {label}": partial(
            draw_pair_distances, results, arm, table, f"{label} embedding"
        )
        for arm, label, table in embeddings_of(results)
    }
    return {
        "accuracy": partial(draw_accuracy, results),
        **distances,
        "stuck": partial(draw_stuck, results),
        "loss of every seed": partial(draw_every_seed, results),
    }


def _draw_best(axes: Axes, best: float) -> None:
    label = f"best {best:.3g}"
    axes.axhline(best, color="black", linestyle="--", linewidth=1, label=label)


def draw_accuracy(results: xr.Dataset, axes: Axes) -> None:
    """Draw the exact validation accuracy of every arm, and the best reachable."""
    curves(axes, by_arm(results["valid_accuracy"]))
    _draw_best(axes, float(results["best_accuracy"].sel(split="valid")))
    axes.set_ylim(0, 1)
    finish_axes(axes, "validation accuracy", "accuracy, share", results["eval_step"].values)


def draw_pair_distances(results: xr.Dataset, arm: str, table: str, title: str, axes: Axes) -> None:
    """Draw the distances of the pairs in one embedding, and what weight decay alone leaves."""
    lines = {}
    holds = {pair: analysis.equally_likely(results, pair) for pair in live_pairs(results)}
    for pair in holds:
        label = f"{pair.replace('-', '–')} (DH {'holds' if holds[pair] else 'fails'})"
        lines[label] = distance(results, table, pair).sel(arm=arm)
    colours = [HOLDS if each else FAILS for each in holds.values()]
    curves(axes, lines, by_median=True, colours=colours)
    steps, decay = results["step"].values, results["decay_factor"].values
    for colour, values in zip(colours, lines.values()):
        start = float(values.sel(step=0).median())
        axes.plot(steps, start * decay, color=colour, linestyle=":", linewidth=1)
    axes.plot([], [], color="grey", linestyle=":", linewidth=1, label="decay alone")
    axes.set_ylim(0, 4 if axes.dataLim.y1 < 5 else None)  # the paper's scale, if the curves fit
    finish_axes(axes, title, "Euclidean distance", steps)


def draw_stuck(results: xr.Dataset, axes: Axes) -> None:
    """Draw the share of seeds on the first plateau; the legend counts those at the end."""
    lines = {}
    for arm, own in by_arm(analysis.stuck_over_steps(results)).items():
        last = own.isel(eval_step=-1)
        lines[f"{arm}: {int(last.sum()):,} of {int(last.count()):,}"] = own
    curves(axes, lines)
    axes.set_ylim(-0.02, 1.02)
    level = float(analysis.exit_levels(results)[analysis.LEFT])
    title = f"stuck: loss above {level:.3f}"
    finish_axes(axes, title, "share of seeds", results["eval_step"].values)


def draw_every_seed(results: xr.Dataset, axes: Axes) -> None:
    """Draw the exact training loss of every seed, which shows the plateaus."""
    steps = results["eval_step"].values
    for colour, arm in coloured(results["arm"].values):
        loss_TxS = results["train_loss"].sel(arm=arm).transpose("eval_step", "seed").values
        lines = axes.plot(steps, loss_TxS, color=colour, linewidth=0.6, alpha=0.5)
        lines[0].set_label(arm)
    best = float(results["best_loss"].sel(split="train"))
    _draw_best(axes, best)
    last = np.nanmax(results["train_loss"].sel(eval_step=last_step(results)), initial=0)
    axes.set_ylim(best - 0.05, max(best + HIGHEST, last + 0.05))
    finish_axes(axes, "every seed's training loss", "loss, nat", steps)


# ----- The end of a sweep.


def draw_final_distances(results: xr.Dataset) -> Figure:
    """Draw the final distances of the pairs over the sweep, a panel per embedding."""
    panels: list[Panel] = []
    for arm, label, table in embeddings_of(results):
        ends = {
            pair.replace("-", "–"): at_end(distance(results, table, pair), results).sel(arm=arm)
            for pair in live_pairs(results)
        }
        panels.append(partial(_draw_ends, f"{label} embedding", ends))
    title = f"{_title(results)}, step {last_step(results):,}"
    return draw_grid(panels, title, sharey=True)


def _draw_ends(title: str, ends: Mapping[str, xr.DataArray], axes: Axes) -> None:
    draw_sweep(axes, ends, colours=(FAILS, HOLDS))
    axes.set(title=textwrap.fill(title, LONGEST_TITLE), ylabel="Euclidean distance", ylim=(0, None))
