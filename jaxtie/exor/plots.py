"""Figures of EXor results with captions, embedding portraits, tidy frames. Imports no jax."""

import itertools
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from jaxtie.config import UserError, check, names_of, number_label
from jaxtie.exor import analysis
from jaxtie.exor.analysis import EXCESS, distance, live_pairs
from jaxtie.results.gradient_by_role import role_pictures
from jaxtie.results.plots import (
    COLOURS,
    FAILS,
    HOLDS,
    STYLE,
    Panel,
    Picture,
    by_arm,
    coloured,
    curves,
    finish_axes,
    subplots,
    with_overview,
)
from jaxtie.results.statistics import kaplan_meier, mean_interval
from jaxtie.results.tables import arms_of, embeddings_of, last_step, sweep_points, swept

MOST_ROWS = 6  # of a figure of a sweep
MEAN = "mean over seeds with its 95 % confidence band"
MEDIAN = "median over seeds with its 95 % confidence band, by ranks"


def exor_pictures(results: xr.Dataset) -> dict[str, Picture]:
    """Return file name -> figure: of a run, or of a sweep, the outcomes by each hyperparameter."""
    arms = ", ".join(names_of(arms_of(results)))
    if swept(results):
        return _sweep_pictures(results, arms)
    pictures = with_overview(
        _panels(results, arms),
        f"{_title(results)}; accuracy: mean, distances: median, with 95 % bands",
        f"All curves over the steps of training, arms {arms}; accuracy: {MEAN}; distances:"
        f" {MEDIAN}",
    )
    pictures["escape"] = Picture(
        "Share of seeds that have left the first plateau, and that have reached the best loss to"
        f" {analysis.SOLVED} nat, over the steps of training, arms {arms}: Kaplan–Meier curves"
        " with 95 % confidence bands; the legend counts seeds at the end",
        partial(draw_plateau_exit, results),
    )
    if (results["diverged_at"] < 0).any():
        pictures["portrait"] = Picture(
            "The embeddings in two principal directions at some steps, one row each: a point per"
            " seed, a line between the two symbols of a pair, a letter at the median; below, median"
            " distances of X–Y and A–B",
            partial(draw_portrait, results),
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
        "loss_distribution": Panel(
            "Distribution over seeds of the final training loss above the best reachable",
            partial(draw_loss_distribution, results),
        ),
    }


def _draw_best(axes: Axes, best: float) -> None:
    label = f"best reachable, {best:.3g}"
    axes.axhline(best, color="black", linestyle="--", linewidth=1, label=label)


def draw_accuracy(results: xr.Dataset, axes: Axes) -> None:
    """Draw the exact validation accuracy of every arm, and the best reachable."""
    curves(axes, by_arm(results["valid_accuracy"]))
    _draw_best(axes, float(results["best_accuracy"].sel(split="valid")))
    axes.set_ylim(0, 1)
    finish_axes(
        axes, "validation accuracy", "accuracy", results["eval_step"].values, loc="lower right"
    )


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
    axes.plot(steps, decayed, color="grey", linestyle=":", label="weight decay alone")
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
    axes.set_ylim(best - 0.05, 1.6)
    legend = {"loc": "upper right", "ncols": 3, "fontsize": 8}
    finish_axes(axes, "every seed's training loss", "loss, nat", steps, **legend)


def draw_loss_distribution(results: xr.Dataset, axes: Axes) -> None:
    """Draw the distribution over seeds of the final training loss above the best reachable."""
    step = last_step(results)
    best = float(results["best_loss"].sel(split="train"))
    for colour, arm in coloured(results["arm"].values):
        excess = np.sort(results["train_loss"].sel(arm=arm, eval_step=step).dropna("seed") - best)
        share = (np.arange(len(excess)) + 1) / len(excess)
        axes.step(np.maximum(excess, 1e-4), share, where="post", color=colour, label=arm)
    axes.set(
        title=f"distribution over {results.sizes['seed']:,} seeds, step {step:,}",
        xlabel="training loss above the best reachable, nat",
        ylabel="share of seeds at or below",
        xscale="log",
        xlim=(1e-4, 2),
        ylim=(0, 1.02),
    )
    axes.legend(loc="upper left")


def draw_plateau_exit(results: xr.Dataset) -> Figure:
    """Draw Kaplan-Meier curves of leaving the first plateau and of reaching the best loss."""
    figure, (row,) = subplots(1, 2, (10.4, 3.8), sharey=True)
    last = last_step(results)
    for axes, event, style in zip(row, (analysis.LEFT, analysis.AT_BEST), ("-", "--"), strict=True):
        times = analysis.exit_times(results, event)
        for colour, arm in coloured(times):
            estimate = kaplan_meier(times[arm])
            step_T = np.append(estimate.step_T, last)
            share_T, low_T, high_T = (np.append(each, each[-1]) for each in estimate[1:])
            label = f"{arm}: {int((~times[arm].censored_S).sum()):,} of {results.sizes['seed']:,}"
            axes.step(step_T, share_T, where="post", color=colour, linestyle=style, label=label)
            # `step="post"` would leave out the step before a place without a band.
            ends, band = np.repeat(step_T, 2)[1:], [np.repeat(e, 2)[:-1] for e in (low_T, high_T)]
            axes.fill_between(ends, *band, color=colour, alpha=0.15, linewidth=0)
        axes.set_ylim(-0.02, 1.02)
        title = f"{event} (loss ≤ {analysis.exit_levels(results)[event]:.3f})"
        finish_axes(axes, title, "share of seeds", np.array([0, max(last, 1)]), fontsize=8)
    figure.suptitle(_title(results), parse_math=False)
    return figure


# ----- Outcomes of a sweep.


def _sweep_pictures(results: xr.Dataset, arms: str) -> dict[str, Picture]:
    """Return the figures of the final outcomes over each swept hyperparameter."""
    ends, pictures = analysis.outcomes(results), {}
    losses = {"loss above the best reachable": by_arm(ends[EXCESS])}
    distances = {
        f"{label} embedding": {
            pair.replace("-", "–"): ends[f"distance {pair}, {table}"].sel(arm=arm)
            for pair in live_pairs(results)
        }
        for arm, label, table in embeddings_of(results)
    }
    for name in swept(results):
        of = (
            f"at the end, {arms}, by {name}; mean with its 95 % interval and a faint point per seed"
        )
        draw = partial(_draw_outcomes, results, name)
        pictures[f"excess_loss_by_{name}"] = Picture(
            f"Training loss above the best reachable {of}", partial(draw, losses, EXCESS, COLOURS)
        )
        pictures[f"distances_by_{name}"] = Picture(
            f"Distances X–Y and A–B in each embedding {of}",
            partial(draw, distances, "Euclidean distance", (FAILS, HOLDS)),
        )
    return pictures


def _draw_outcomes(
    results: xr.Dataset,
    name: str,
    panels: Mapping[str, Mapping[str, xr.DataArray]],
    ylabel: str,
    colours: Sequence[str],
) -> Figure:
    """Draw outcomes over a hyperparameter: mean with its 95 % interval, and a point per seed.

    There is a row of panels for each combination of the other hyperparameters' values, up to
    `MOST_ROWS`.
    """
    others = [other for other in swept(results) if other != name]
    points = [at for at, _ in sweep_points(results, others)][:MOST_ROWS]
    size = (4.6 * len(panels), 3.6 * len(points) + 0.3)
    figure, grid = subplots(len(points), len(panels), size, sharey=True)
    figure.suptitle(f"{_title(results)}, step {last_step(results):,}", size=10, parse_math=False)
    xlabel, x_K = analysis.abscissa(results, name)
    order = np.argsort(x_K)
    for axes, (at, (title, outcomes)) in zip(
        grid.flat, itertools.product(points, panels.items()), strict=True
    ):
        for colour, (label, values) in zip(itertools.cycle(colours), outcomes.items()):
            values_KxS = values.sel(at).transpose(name, "seed").values.astype(np.float64)[order]
            mean, half = mean_interval(values_KxS, axis=1)
            line = {"marker": "o", "markersize": 4, "capsize": 2}
            axes.errorbar(x_K[order], mean, half, color=colour, label=label, **line)
            x_KS = np.repeat(x_K[order], values_KxS.shape[1])
            axes.scatter(x_KS, values_KxS.ravel(), s=4, color=colour, alpha=0.2, linewidths=0)
        where = "".join(f", {other} {number_label(value)}" for other, value in at.items())
        axes.set(xlabel=xlabel, ylabel=ylabel, title=f"{title}{where}", ylim=(0, None))
        axes.legend()
    return figure


# ----- Portrait.

SYMBOLS = {  # colour, and the direction of the letter from the median
    "X": (FAILS, (-1, 1)),
    "Y": ("#ea8fdc", (-1, -1)),
    "A": (HOLDS, (1, 1)),
    "B": ("#8ed3a8", (1, -1)),
}
PORTRAIT_TIMES = (0, 1 / 5, 1 / 2, 1)  # parts of the training
PORTRAIT_SHAPE = 0.7  # height to width
FRAMES = 61  # at most


def align_tables(tables_SxTxVxD: np.ndarray, reference: int) -> np.ndarray:
    """Project the embeddings of all seeds and times into one plane; SxTxVx2.

    Distances do not depend on the rotation and position of a table. So each table is centred, and
    each seed is rotated or reflected once, at all times alike, to fit its last table to that of the
    reference seed (orthogonal Procrustes). The plane is spanned by the first two principal
    directions of the reference, with the first symbol at the upper left. Movement in the plane is
    movement in training, and distances in it are at most the true ones.
    """
    from scipy.linalg import orthogonal_procrustes  # heavy

    centred = tables_SxTxVxD - tables_SxTxVxD.mean(axis=2, keepdims=True)
    padding = max(0, 2 - centred.shape[-1])  # width 1: on a line
    centred = np.pad(centred, [(0, 0)] * 3 + [(0, padding)])
    end_SxVxD, fit_to_VxD = centred[:, -1], centred[reference, -1]
    turns_SxDxD = np.stack(
        [orthogonal_procrustes(table_VxD, fit_to_VxD)[0] for table_VxD in end_SxVxD]
    )
    _, _, directions = np.linalg.svd(fit_to_VxD)
    places = centred @ (turns_SxDxD @ directions[:2].T)[:, None]
    return places * np.where(np.median(places[:, -1, 0], axis=0) * [-1, 1] < 0, -1, 1)


class _Portrait(NamedTuple):
    """One embedding over training, of the seeds whose values are finite."""

    title: str
    symbols: list[str]
    places_SxTxVx2: np.ndarray
    distances: dict[str, np.ndarray]  # pair -> median over seeds, at each time, in all dimensions


def _portraits(results: xr.Dataset, steps: np.ndarray) -> tuple[list[_Portrait], float]:
    """Return a portrait of every embedding at some steps, and half the width of every panel.

    The width shows nearly all points at every time.

    Raises:
      UserError: where no seed is finite.
    """
    portraits, symbols = [], analysis.targets(results)
    for arm, label, table in embeddings_of(results):
        loss_S = results["train_loss"].sel(arm=arm, eval_step=steps[-1]).values
        recorded = results[f"{table}_table"].sel(arm=arm, table_step=steps, symbol=symbols)
        recorded = recorded.transpose("seed", "table_step", "symbol", "dim")
        values = recorded.values.astype(np.float64)
        finite = np.isfinite(values).all(axis=(1, 2, 3)) & np.isfinite(loss_S)
        if not finite.any():
            continue
        distances = {}
        for pair in live_pairs(results):
            first, second = (values[finite, :, symbols.index(symbol)] for symbol in pair.split("-"))
            distances[pair] = np.median(np.linalg.norm(first - second, axis=-1), axis=0)
        places = align_tables(values[finite], int(np.argmin(loss_S[finite])))
        portraits.append(_Portrait(f"{label} embedding", symbols, places, distances))
    if not portraits:
        raise UserError(f"results of {results.attrs['experiment']}: no seed has a finite embedding")
    reach = [np.quantile(np.abs(each.places_SxTxVx2), 0.98, axis=(0, 2, 3)) for each in portraits]
    return portraits, float(np.max(reach))


def _draw_places(axes: Axes, portrait: _Portrait, time: int, scale: float) -> None:
    """Draw an embedding at one time: points, lines within pairs, letters at the medians."""
    symbols = portrait.symbols
    places_SxVx2 = portrait.places_SxTxVx2[:, time]
    seeds, faint = len(places_SxVx2), float(np.clip(16 / len(places_SxVx2), 0.03, 0.5))
    for i, (pair, distance_T) in enumerate(portrait.distances.items()):
        first, second = (symbols.index(symbol) for symbol in pair.split("-"))
        colour, _ = SYMBOLS[symbols[first]]
        segments = list(places_SxVx2[:, [first, second]])
        axes.add_collection(
            LineCollection(segments, colors=colour, linewidths=0.6, alpha=0.6 * faint)
        )
        text = f"{pair.replace('-', '–')} {distance_T[time]:.2f}"
        axes.text(0.02 + 0.27 * i, 0.03, text, transform=axes.transAxes, size=8, color=colour)
    for symbol, places_Sx2 in zip(symbols, places_SxVx2.swapaxes(0, 1), strict=True):
        colour, (right, up) = SYMBOLS[symbol]
        x_S, y_S = places_Sx2.T
        axes.scatter(x_S, y_S, s=9, color=colour, alpha=2 * faint, linewidths=0)
        axes.annotate(
            symbol,
            np.median(places_Sx2, axis=0),
            (9 * right, 9 * up),
            textcoords="offset points",
            ha="center",
            va="center",
            color=colour,
            weight="bold",
            size=13,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )
    limits = scale * np.array([1, PORTRAIT_SHAPE])
    if outside := int((np.abs(places_SxVx2) > limits).any(axis=(1, 2)).sum()):
        text = f"{outside} of {seeds} seeds reach outside"
        axes.text(
            0.98, 0.97, text, transform=axes.transAxes, ha="right", va="top", size=6, color="grey"
        )
    axes.set(xlim=(-limits[0], limits[0]), ylim=(-limits[1], limits[1]), aspect="equal")


def draw_portrait(results: xr.Dataset) -> Figure:
    """Draw the embeddings at some times of the training, one row each."""
    known = results["table_step"].values
    steps = np.unique(
        [known[np.abs(known - last_step(results) * part).argmin()] for part in PORTRAIT_TIMES]
    )
    portraits, scale = _portraits(results, steps)
    size = 2.8 * len(steps) + 0.4, 2.8 * PORTRAIT_SHAPE * len(portraits) + 0.7
    figure, grid = subplots(len(portraits), len(steps), size, sharex=True, sharey=True)
    for row, portrait in zip(grid, portraits, strict=True):
        row[0].set_ylabel(portrait.title)
        for time, axes in enumerate(row):
            _draw_places(axes, portrait, time, scale)
    for axes, step in zip(grid[0], steps, strict=True):
        axes.set_title(f"step {step:,}")
    figure.suptitle(
        f"{_title(results)} in two principal directions, each turned so that its end fits the best"
        " one's; below: median distances",
        parse_math=False,
    )
    return figure


def animate_portrait(results: xr.Dataset, folder: Path) -> Path:
    """Write the embeddings over training as `portrait.gif`; return its path.

    Raises:
      UserError: where the run is a sweep, or no embedding was recorded.
    """
    from PIL import Image

    check(
        not swept(results),
        "--animate: expected without a sweep, which has embeddings at several points",
    )
    known = results["table_step"].values
    known = known[known <= last_step(results)]
    steps = known[np.unique(np.linspace(0, len(known) - 1, FRAMES).round().astype(int))]
    portraits, scale = _portraits(results, steps)
    print(f"jaxtie: drawing {len(steps)} frames", file=sys.stderr)
    images = []
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(2.9 * len(portraits), 2.9 * PORTRAIT_SHAPE + 0.75), dpi=90)
        canvas = FigureCanvasAgg(figure)
        (row,) = figure.subplots(1, len(portraits), squeeze=False, sharex=True, sharey=True)
        figure.subplots_adjust(0.04, 0.07, 0.99, 0.8, 0.08)
        for time, step in enumerate(steps):
            for axes, portrait in zip(row, portraits, strict=True):
                axes.clear()
                axes.set_title(portrait.title)
                _draw_places(axes, portrait, time, scale)
            title = f"{results.attrs['experiment']}, {results.sizes['seed']:,} seeds, step {step:,}"
            figure.suptitle(title, x=0.04, ha="left", parse_math=False)
            canvas.draw()
            images.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    # One palette and no dithering: less than half the size.
    palette = images[len(images) // 2].quantize(48)
    first, *others = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images)
    folder.mkdir(parents=True, exist_ok=True)
    path, milliseconds = folder / "portrait.gif", [110] * len(others) + [2500]
    first.save(
        path, save_all=True, append_images=others, duration=milliseconds, loop=0, optimize=True
    )
    return path


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
