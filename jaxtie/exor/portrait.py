"""Portraits: the embeddings themselves over training, in one plane, as a figure or an animation.
Imports no jax.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from jaxtie.config import UserError, check
from jaxtie.exor.pairs import live_pairs, targets
from jaxtie.results.plots import FAILS, HOLDS, STYLE, subplots
from jaxtie.results.tables import arms_of, last_step, swept, tables_of

SYMBOLS = {  # colour, and the direction that the letter stands off in
    "X": (FAILS, (-1, 1)),
    "Y": ("#ea8fdc", (-1, -1)),
    "A": (HOLDS, (1, 1)),
    "B": ("#8ed3a8", (1, -1)),
}
PORTRAIT_TIMES = (0, 1 / 5, 1 / 2, 1)  # of the training
PORTRAIT_SHAPE = 0.7  # height to width
FRAMES = 61  # at most


def align(tables_SxTxVxD: np.ndarray, reference: int) -> np.ndarray:
    """Every seed's table over time in one plane; SxTxVx2.

    A table means the same when it is turned, and where it lies as a whole does not matter to its
    distances. So each is centred, and each seed is turned once, at all times alike, by the rotation
    or reflection that fits its last table to the reference seed's (orthogonal Procrustes). The
    plane is that of the reference's first two principal directions, its first symbol to the upper
    left. What moves in it is what moved in training; distances are seen no longer than they are.
    Where symbols lean at the start already, the end has kept something of it.
    """
    from scipy.linalg import orthogonal_procrustes  # heavy

    centred = tables_SxTxVxD - tables_SxTxVxD.mean(axis=2, keepdims=True)
    # of width 1: on a line
    centred = np.pad(centred, [(0, 0)] * 3 + [(0, max(0, 2 - centred.shape[-1]))])
    end_SxVxD, fit_to_VxD = centred[:, -1], centred[reference, -1]
    turns_SxDxD = np.stack(
        [orthogonal_procrustes(table_VxD, fit_to_VxD)[0] for table_VxD in end_SxVxD]
    )
    _, _, directions = np.linalg.svd(fit_to_VxD)
    places = centred @ (turns_SxDxD @ directions[:2].T)[:, None]
    return places * np.where(np.median(places[:, -1, 0], axis=0) * [-1, 1] < 0, -1, 1)


class _Portrait(NamedTuple):
    """One embedding over training, of the seeds that have been trained so far."""

    title: str
    places_SxTxVx2: np.ndarray
    distances: dict[str, np.ndarray]  # pair -> median over seeds, at each time, in all dimensions


def _portraits(results: xr.Dataset, steps: np.ndarray) -> list[_Portrait]:
    """A portrait of every table of every arm, at some steps; a seed whose table is not finite is
    left out.

    Raises:
      UserError: where no seed is left.
    """
    portraits, symbols = [], targets(results)
    for arm in arms_of(results):
        loss_S = results["train_loss"].sel(arm=arm.name, eval_step=steps[-1]).values
        for label, table in tables_of(arm).items():
            recorded = results[f"{table}_table"].sel(arm=arm.name, table_step=steps, symbol=symbols)
            values = recorded.transpose("seed", "table_step", "symbol", "dim").values.astype(
                np.float64
            )
            finite = np.isfinite(values).all(axis=(1, 2, 3)) & np.isfinite(loss_S)
            if not finite.any():
                continue
            distances = {}
            for pair in live_pairs(results):
                first, second = (
                    values[finite, :, symbols.index(symbol)] for symbol in pair.split("-")
                )
                distances[pair] = np.median(np.linalg.norm(first - second, axis=-1), axis=0)
            # the best seed is the reference
            places = align(values[finite], int(np.argmin(loss_S[finite])))
            portraits.append(_Portrait(f"{label} embedding", places, distances))
    if not portraits:
        raise UserError(
            f"results of {results.attrs['experiment']}: no embedding was recorded; train first"
        )
    return portraits


def _draw_places(
    axes: Axes, portrait: _Portrait, time: int, symbols: list[str], scale: float
) -> None:
    """An embedding at one time: a point a seed, a line between the two of a seed's pair, a letter
    at the median.
    """
    places_SxVx2 = portrait.places_SxTxVx2[:, time]
    seeds, faint = len(places_SxVx2), float(np.clip(16 / len(places_SxVx2), 0.03, 0.5))
    for i, (pair, distance_T) in enumerate(portrait.distances.items()):
        first, second = (symbols.index(symbol) for symbol in pair.split("-"))
        colour = SYMBOLS[symbols[first]][0]
        segments = places_SxVx2[:, [first, second]]
        axes.add_collection(
            LineCollection(list(segments), colors=colour, linewidths=0.6, alpha=0.6 * faint)
        )
        text = f"{pair.replace('-', '–')} {distance_T[time]:.2f}"
        axes.text(0.02 + 0.27 * i, 0.03, text, transform=axes.transAxes, size=8, color=colour)
    for symbol, places_Sx2 in zip(symbols, places_SxVx2.swapaxes(0, 1), strict=True):
        colour, (right, up) = SYMBOLS[symbol]
        axes.scatter(
            places_Sx2[:, 0], places_Sx2[:, 1], s=9, color=colour, alpha=2 * faint, linewidths=0
        )
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
    outside = int((np.abs(places_SxVx2) > limits).any(axis=(1, 2)).sum())
    if outside:
        text = f"{outside} of {seeds} seeds reach outside"
        axes.text(
            0.98, 0.97, text, transform=axes.transAxes, ha="right", va="top", size=6, color="grey"
        )
    axes.set(xlim=(-limits[0], limits[0]), ylim=(-limits[1], limits[1]), aspect="equal")


def _scale(portraits: list[_Portrait]) -> float:
    """Half the width of every panel at every time, so that sizes can be compared; a few points may
    lie outside.
    """
    return max(
        float(np.quantile(np.abs(each.places_SxTxVx2), 0.98, axis=(0, 2, 3)).max())
        for each in portraits
    )


def draw_portrait(results: xr.Dataset) -> Figure:
    """The embeddings at some times of training, a row each: which symbols meet, and which are held
    apart.
    """
    known = results["table_step"].values
    steps = np.unique(
        [known[np.abs(known - last_step(results) * part).argmin()] for part in PORTRAIT_TIMES]
    )
    portraits = _portraits(results, steps)
    symbols, scale = targets(results), _scale(portraits)
    size = 2.8 * len(steps) + 0.4, 2.8 * PORTRAIT_SHAPE * len(portraits) + 0.7
    figure, grid = subplots(len(portraits), len(steps), size, sharex=True, sharey=True)
    for row, portrait in zip(grid, portraits, strict=True):
        row[0].set_ylabel(portrait.title)
        for time, axes in enumerate(row):
            _draw_places(axes, portrait, time, symbols, scale)
    for axes, step in zip(grid[0], steps, strict=True):
        axes.set_title(f"step {step:,}")
    figure.suptitle(
        f"{results.attrs['experiment']}: {results.sizes['seed']:,} seeds in two principal"
        " directions, each turned so that its end fits the best one's; below: median distances",
        parse_math=False,
    )
    return figure


def animate_portrait(results: xr.Dataset, folder: Path) -> Path:
    """Write the embeddings over training as `portrait.gif`; returns its path. UserError where a run
    is a sweep.
    """
    from PIL import Image

    check(
        not swept(results),
        "--animate: expected without a sweep, whose embeddings are of many settings",
    )

    known = results["table_step"].values
    known = known[known <= last_step(results)]
    steps = known[np.unique(np.linspace(0, len(known) - 1, FRAMES).round().astype(int))]
    portraits = _portraits(results, steps)
    symbols, scale = targets(results), _scale(portraits)
    print(f"jaxtie.figures: drawing {len(steps)} frames", file=sys.stderr)
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
                _draw_places(axes, portrait, time, symbols, scale)
            title = f"{results.attrs['experiment']}, {results.sizes['seed']:,} seeds, step {step:,}"
            figure.suptitle(title, x=0.04, ha="left", parse_math=False)
            canvas.draw()
            images.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    # one for all, and no dithering: less than half the size
    palette = images[len(images) // 2].quantize(48)
    images = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "portrait.gif"
    milliseconds = [110] * (len(images) - 1) + [2500]
    images[0].save(
        path, save_all=True, append_images=images[1:], duration=milliseconds, loop=0, optimize=True
    )
    return path
