"""Figures of EXor results with captions, and tidy frames. Imports no jax."""

import itertools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from jaxtie.config import names_of, number_label
from jaxtie.exor import analysis
from jaxtie.exor.analysis import EXCESS, distance, live_pairs
from jaxtie.results.gradient_by_role import role_pictures
from jaxtie.results.plots import (
    COLOURS,
    FAILS,
    HOLDS,
    LONGEST_TITLE,
    Panel,
    Picture,
    by_arm,
    coloured,
    curves,
    draw_grid,
    finish_axes,
    legend_below,
    show_swept,
    with_overview,
)
from jaxtie.results.statistics import mean_interval
from jaxtie.results.tables import arms_of, embeddings_of, last_step, sweep_points, swept

MOST_POINTS = 6  # of the other swept fields, in a figure of a sweep
HIGHEST = 1.1  # nat above the best: of a loss axis, unless later losses are higher
MEAN = "mean over seeds with its 95 % confidence band"
MEDIAN = "median over seeds with its 95 % confidence band, by ranks"


def exor_pictures(results: xr.Dataset) -> dict[str, Picture]:
    """Return file name -> figure: of a run, or of a sweep, the outcomes by each hyperparameter."""
    arms = ", ".join(names_of(arms_of(results)))
    if swept(results):
        return _sweep_pictures(results, arms)
    pictures = with_overview(
        _panels(results, arms),
        f"{_title(results)}, 95 % bands",
        f"All curves over the steps of training, arms {arms}; accuracy: {MEAN}; distances:"
        f" {MEDIAN}; DH: the distributional hypothesis, which holds for equally likely symbols",
    )
    return pictures | role_pictures(results)


def _title(results: xr.Dataset) -> str:
    return f"{results.attrs['experiment']}: {results.sizes['seed']:,} seeds"


def _panels(results: xr.Dataset, arms: str) -> dict[str, Panel]:
    """Return file name -> diagram; each is a figure of its own and a part of the overview."""
    distances = {
        f"distances_{label.replace(' ', '_')}": Panel(
            f"Distances X–Y and A–B in the {label} embedding over the steps of training: {MEDIAN}",
            partial(draw_pair_distances, results, arm, table, f"{label} embedding"),
        )
        for arm, label, table in embeddings_of(results)
    }
    return {
        "accuracy": Panel(
            f"Exact validation accuracy of {arms} and the best reachable over the steps of"
            f" training: {MEAN}",
            partial(draw_accuracy, results),
        ),
        **distances,
        "loss_every_seed": Panel(
            f"Exact training loss of every seed over the steps of training, one line each, {arms}",
            partial(draw_every_seed, results),
        ),
        "stuck": Panel(
            f"Share of seeds on the first plateau over the steps of training, {arms}; the legend"
            " counts those at the end",
            partial(draw_stuck, results),
        ),
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
    starts = [float(values.sel(step=0).median()) for values in lines.values()]
    steps, decayed = results["step"].values, np.mean(starts) * results["decay_factor"].values
    axes.plot(steps, decayed, color="grey", linestyle=":", label="decay alone")
    axes.set_ylim(0, 4 if axes.dataLim.y1 < 5 else None)  # the paper's scale, if the curves fit
    finish_axes(axes, title, "Euclidean distance", steps)


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


def draw_stuck(results: xr.Dataset, axes: Axes) -> None:
    """Draw the share of seeds on the first plateau, which have learnt nothing of the parity."""
    stuck = analysis.stuck_over_steps(results)
    for colour, arm in coloured(stuck["arm"].values):
        own = stuck.sel(arm=arm)
        count, known = int(own.isel(eval_step=-1).sum()), int(own.isel(eval_step=-1).count())
        label = f"{arm}: {count:,} of {known:,}"
        axes.plot(own["eval_step"], own.mean("seed"), color=colour, label=label)
    axes.set_ylim(-0.02, 1.02)
    finish_axes(axes, "stuck on the first plateau", "share of seeds", stuck["eval_step"].values)


# ----- Outcomes of a sweep.


def _sweep_pictures(results: xr.Dataset, arms: str) -> dict[str, Picture]:
    """Return the figures of each swept field: training curves and final outcomes."""
    ends, pictures = analysis.outcomes(results), {}
    losses = {"training loss": by_arm(ends[EXCESS])}
    distances = {
        f"{label} embedding": {
            pair.replace("-", "–"): ends[f"distance {pair}, {table}"].sel(arm=arm)
            for pair in live_pairs(results)
        }
        for arm, label, table in embeddings_of(results)
    }
    curve = results["train_loss"] - results["best_loss"].sel(split="train", drop=True)
    curve = curve.sel(eval_step=slice(0, last_step(results)))
    later = curve.mean("seed").isel(eval_step=slice(1, None))  # a fresh model's loss is far above
    top = 1.05 * float(later.max()) if later.notnull().any() else HIGHEST
    for name in swept(results):
        of = (
            f"at the end, {arms}, by {name}; mean with its 95 % interval and a faint point per seed"
        )
        outcome = partial(_draw_outcome, results, name)
        grid = partial(_draw_by, results, name)
        pictures[f"training_loss_by_{name}"] = Picture(
            "Training loss above the best reachable over the steps of training, a curve per value"
            f" of {name}, {arms}; {MEAN}",
            partial(grid, by_arm(curve), partial(_draw_courses, name, max(top, HIGHEST))),
        )
        pictures[f"excess_loss_by_{name}"] = Picture(
            f"Training loss above the best reachable {of}",
            partial(grid, losses, partial(outcome, "loss above the best, nat", COLOURS)),
        )
        pictures[f"distances_by_{name}"] = Picture(
            f"Distances X–Y and A–B in each embedding {of}",
            partial(grid, distances, partial(outcome, "Euclidean distance", (FAILS, HOLDS))),
        )
    return pictures


def _draw_by(
    results: xr.Dataset, name: str, panels: Mapping[str, Any], draw: Callable[..., None]
) -> Figure:
    """Draw panels by a swept field at each combination of the others, up to `MOST_POINTS`."""
    others = [other for other in swept(results) if other != name]
    points = [at for at, _ in sweep_points(results, others)][:MOST_POINTS]
    drawn = []
    for at, (label, values) in itertools.product(points, panels.items()):
        where = "".join(f", {other} {number_label(value)}" for other, value in at.items())
        drawn.append(Panel("", partial(draw, at, f"{label}{where}", values)))
    title = f"{_title(results)}, step {last_step(results):,}"
    return draw_grid(drawn, title, sharey=True)


def _draw_courses(
    name: str, top: float, at: Mapping[str, float], title: str, values: xr.DataArray, axes: Axes
) -> None:
    """Draw the mean loss over steps, a curve per value of a swept field."""
    own = values.sel(at)
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, own.sizes[name]))
    lines = {f"{value:g}": own.sel({name: value}) for value in own[name].values}
    curves(axes, lines, colours=list(map(to_hex, colours)))
    axes.set_ylim(-0.05, top)
    finish_axes(axes, title, "loss above the best, nat", own["eval_step"].values)
    legend_below(axes, name.replace("_", " "))


def _draw_outcome(
    results: xr.Dataset,
    name: str,
    ylabel: str,
    colours: Sequence[str],
    at: Mapping[str, float],
    title: str,
    outcomes: Mapping[str, xr.DataArray],
    axes: Axes,
) -> None:
    """Draw outcomes over a swept field: mean with its 95 % interval, and a point per seed."""
    xlabel, x_K = analysis.abscissa(results, name)
    order = np.argsort(x_K)
    for colour, (label, values) in zip(itertools.cycle(colours), outcomes.items()):
        values_KxS = values.sel(at).transpose(name, "seed").values.astype(np.float64)[order]
        mean, half = mean_interval(values_KxS, axis=1)
        line: dict[str, Any] = {"marker": "o", "markersize": 4, "capsize": 2}
        axes.errorbar(x_K[order], mean, half, color=colour, label=label, **line)
        x_KS = np.repeat(x_K[order], values_KxS.shape[1])
        axes.scatter(x_KS, values_KxS.ravel(), s=4, color=colour, alpha=0.2, linewidths=0)
    show_swept(axes, xlabel, x_K)
    axes.set(ylabel=ylabel, ylim=(0, None))
    axes.set_title(textwrap.fill(title, LONGEST_TITLE))
    legend_below(axes)


# ----- Frames.


def exor_frames(results: xr.Dataset) -> dict[str, pd.DataFrame]:
    """Return file name -> tidy frame of records, evaluations and embeddings."""
    symbols = map(str, results["symbol"].values)
    distances = {
        f"{table}_distance_{first}_{second}": distance(results, table, f"{first}-{second}")
        for table, (first, second) in itertools.product(
            ("input", "output"), itertools.combinations(symbols, 2)
        )
    }
    odds = {
        f"{name}_{pair.replace('-', '_')}": results[name].sel(pair=pair, drop=True)
        for pair in map(str, results["pair"].values)
        for name in ("log_odds", "log_odds_deviation")
    }
    losses = results[["train_loss", "train_accuracy", "valid_loss", "valid_accuracy"]]
    frames = {
        "steps": results[["loss", "accuracy"]].assign(distances),
        "evaluations": losses.assign(odds),
        "tables": results[["input_table", "output_table"]],
    }
    return {name: frame.to_dataframe() for name, frame in frames.items()}
