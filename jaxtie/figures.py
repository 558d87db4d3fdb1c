"""Results -> figures and CSV; `python -m jaxtie.figures DIR` does it for a run's folder. Imports no jax."""

import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import EngFormatter

from jaxtie.config import UserError
from jaxtie.results import RunFolder
from jaxtie.summary import last_step, live_pairs, mean_interval, tables, targets

ARM_COLOURS = ("#d1495b", "#00798c", "#edae49", "#66588f", "#3d3d3d")
FAILS, HOLDS = "#b5179e", "#2a9d5c"  # pairs for which the distributional hypothesis fails, holds
SYMBOLS = {  # colour, and the direction that the letter stands off in
    "X": (FAILS, (-1, 1)),
    "Y": ("#ea8fdc", (-1, -1)),
    "A": (HOLDS, (1, 1)),
    "B": ("#8ed3a8", (1, -1)),
}
PORTRAIT_TIMES = (0, 1 / 5, 1 / 2, 1)  # of the training
PORTRAIT_SHAPE = 0.7  # height to width
FRAMES = 61  # at most
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


def _curve(axes: Axes, values: xr.DataArray, colour: str, label: str) -> None:
    """Mean over seeds with the 95 % confidence band of the mean, over the steps that were reached."""
    steps, data = values[values.dims[-1]].values, values.transpose("seed", ...).values.astype(np.float64)
    reached = np.isfinite(data).any(axis=0)
    mean, half = mean_interval(data[:, reached])
    axes.plot(steps[reached], mean, color=colour, label=label)
    axes.fill_between(steps[reached], mean - half, mean + half, color=colour, alpha=0.25, linewidth=0)


def _finish(axes: Axes, title: str, ylabel: str, steps: np.ndarray, **legend) -> None:
    axes.set(title=title, xlabel="step", ylabel=ylabel, xlim=(0, steps[-1]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.legend(**legend)


def draw_accuracy(axes: Axes, results: xr.Dataset) -> None:
    """Exact validation accuracy of every arm, and the best reachable."""
    for colour, arm in zip(ARM_COLOURS, results["arm"].values, strict=False):
        _curve(axes, results["valid_accuracy"].sel(arm=arm), colour, str(arm))
    best = float(results["best_accuracy"].sel(split="valid"))
    axes.axhline(best, color="black", linestyle="--", linewidth=1, label=f"best reachable, {best:.3g}")
    axes.set_ylim(0, 1)
    _finish(axes, "validation accuracy", "accuracy", results["eval_step"].values, loc="lower right")


def draw_distances(axes: Axes, results: xr.Dataset, arm: str, table: str, title: str) -> None:
    """Distances X-Y and A-B in one table of one arm."""
    for pair in live_pairs(results):
        holds = abs(float(results["theory_log_odds"].sel(pair=pair))) < 1e-12
        first, second = pair.split("-")
        _curve(
            axes,
            results[f"{table}_distance"].sel(arm=arm, symbol=first, symbol2=second),
            HOLDS if holds else FAILS,
            f"{first}–{second} (DH {'holds' if holds else 'fails'})",
        )
    axes.set_ylim(0, 4)
    _finish(axes, title, "Euclidean distance", results["step"].values)


def draw_every_seed(axes: Axes, results: xr.Dataset) -> None:
    """Exact training loss of every seed, a line each: who is still on a plateau, and when the others left it."""
    steps = results["eval_step"].values
    for colour, arm in zip(ARM_COLOURS, results["arm"].values, strict=False):
        lines = axes.plot(
            steps, results["train_loss"].sel(arm=arm).transpose("eval_step", "seed").values, color=colour, linewidth=0.6,
            alpha=0.5,
        )  # fmt: skip
        lines[0].set_label(str(arm))
    best = float(results["best_loss"].sel(split="train"))
    axes.axhline(best, color="black", linestyle="--", linewidth=1, label=f"best reachable, {best:.3g}")
    axes.set_ylim(best - 0.05, 1.6)
    _finish(axes, "every seed's training loss", "loss, nat", steps, loc="upper right", ncols=3, fontsize=8)


def draw_distribution(axes: Axes, results: xr.Dataset) -> None:
    """Every seed's exact training loss at the end above the best reachable, in order: the distribution over seeds."""
    step = last_step(results)
    best = float(results["best_loss"].sel(split="train"))
    for colour, arm in zip(ARM_COLOURS, results["arm"].values, strict=False):
        excess = np.sort(results["train_loss"].sel(arm=arm, eval_step=step).values - best)
        share = (np.arange(len(excess)) + 1) / len(excess)
        axes.step(np.maximum(excess, 1e-4), share, where="post", color=colour, label=str(arm))
    axes.set(
        title=f"distribution over {results.sizes['seed']} seeds, step {step:,}",
        xlabel="training loss above the best reachable, nat",
        ylabel="share of seeds at or below",
        xscale="log",
        xlim=(1e-4, 2),
        ylim=(0, 1.02),
    )
    axes.legend(loc="upper left")


def align(tables_SxTxVxD: np.ndarray, reference: int) -> np.ndarray:
    """Every seed's table over time in one plane; SxTxVx2.

    A table means the same when it is turned, and where it lies as a whole does not matter to its distances. So each is
    centred, and each seed is turned once, at all times alike, by the rotation or reflection that fits its last table to
    the reference seed's (orthogonal Procrustes). The plane is that of the reference's first two principal directions, its
    first symbol to the upper left. What moves in it is what moved in training; distances are seen no longer than they are.
    Where symbols lean at the start already, the end has kept something of it.
    """
    from scipy.linalg import orthogonal_procrustes  # heavy

    centred = tables_SxTxVxD - tables_SxTxVxD.mean(axis=2, keepdims=True)
    centred = np.pad(centred, [(0, 0)] * 3 + [(0, max(0, 2 - centred.shape[-1]))])  # of width 1: on a line
    end_SxVxD, fit_to_VxD = centred[:, -1], centred[reference, -1]
    turns_SxDxD = np.stack([orthogonal_procrustes(table_VxD, fit_to_VxD)[0] for table_VxD in end_SxVxD])
    _, _, directions = np.linalg.svd(fit_to_VxD)
    places = centred @ (turns_SxDxD @ directions[:2].T)[:, None]
    return places * np.where(np.median(places[:, -1, 0], axis=0) * [-1, 1] < 0, -1, 1)


class _Portrait(NamedTuple):
    """One embedding over training, of the seeds that have been trained so far."""

    title: str
    places_SxTxVx2: np.ndarray
    distances: dict[str, np.ndarray]  # pair -> median over seeds, at each time, in all dimensions


def _portraits(results: xr.Dataset, steps: np.ndarray) -> list[_Portrait]:
    """Of every table of every arm, at some steps; a seed whose table is not finite is left out.

    Raises:
      UserError: where no seed is left.
    """
    portraits, symbols = [], targets(results)
    for arm in map(str, results["arm"].values):
        loss_S = results["train_loss"].sel(arm=arm, eval_step=steps[-1]).values
        for label, table in tables(results, arm).items():
            values = results[f"{table}_table"].sel(arm=arm, table_step=steps, symbol=symbols)
            values = values.transpose("seed", "table_step", "symbol", "dim").values.astype(np.float64)
            finite = np.isfinite(values).all(axis=(1, 2, 3)) & np.isfinite(loss_S)
            if not finite.any():
                continue
            distances = {}
            for pair in live_pairs(results):
                first, second = (values[finite, :, symbols.index(symbol)] for symbol in pair.split("-"))
                distances[pair] = np.median(np.linalg.norm(first - second, axis=-1), axis=0)
            places = align(values[finite], int(np.argmin(loss_S[finite])))  # the best seed is the reference
            portraits.append(_Portrait(f"{label} embedding", places, distances))
    if not portraits:
        raise UserError(f"results of {results.attrs['experiment']}: no embedding was recorded; train first")
    return portraits


def _draw_places(axes: Axes, portrait: _Portrait, time: int, symbols: list[str], scale: float) -> None:
    """An embedding at one time: a point a seed, a line between the two of a seed's pair, a letter at the median."""
    places_SxVx2 = portrait.places_SxTxVx2[:, time]
    seeds, faint = len(places_SxVx2), float(np.clip(16 / len(places_SxVx2), 0.03, 0.5))
    for i, (pair, distance_T) in enumerate(portrait.distances.items()):
        first, second = (symbols.index(symbol) for symbol in pair.split("-"))
        colour = SYMBOLS[symbols[first]][0]
        segments = places_SxVx2[:, [first, second]]
        axes.add_collection(LineCollection(segments, colors=colour, linewidths=0.6, alpha=0.6 * faint))
        text = f"{pair.replace('-', '–')} {distance_T[time]:.2f}"
        axes.text(0.02 + 0.27 * i, 0.03, text, transform=axes.transAxes, size=8, color=colour)
    for symbol, places_Sx2 in zip(symbols, places_SxVx2.swapaxes(0, 1), strict=True):
        colour, direction = SYMBOLS[symbol]
        axes.scatter(*places_Sx2.T, s=9, color=colour, alpha=2 * faint, linewidths=0)
        axes.annotate(
            symbol, np.median(places_Sx2, axis=0), 9 * np.array(direction), textcoords="offset points", ha="center",
            va="center", color=colour, weight="bold", size=13, path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )  # fmt: skip
    limits = scale * np.array([1, PORTRAIT_SHAPE])
    outside = int((np.abs(places_SxVx2) > limits).any(axis=(1, 2)).sum())
    if outside:
        text = f"{outside} of {seeds} seeds reach outside"
        axes.text(0.98, 0.97, text, transform=axes.transAxes, ha="right", va="top", size=6, color="grey")
    axes.set(xlim=(-limits[0], limits[0]), ylim=(-limits[1], limits[1]), aspect="equal")


def _scale(portraits: list[_Portrait]) -> float:
    """Half the width of every panel at every time, so that sizes can be compared; a few points may lie outside."""
    return max(float(np.quantile(np.abs(each.places_SxTxVx2), 0.98, axis=(0, 2, 3)).max()) for each in portraits)


def draw_portrait(results: xr.Dataset) -> Figure:
    """The embeddings at some times of training, a row each: which symbols meet, and which are held apart."""
    known = results["table_step"].values
    steps = np.unique([known[np.abs(known - last_step(results) * part).argmin()] for part in PORTRAIT_TIMES])
    portraits = _portraits(results, steps)
    symbols, scale = targets(results), _scale(portraits)
    figure, grid = plt.subplots(
        len(portraits), len(steps), squeeze=False, sharex=True, sharey=True, layout="constrained",
        figsize=(2.8 * len(steps) + 0.4, 2.8 * PORTRAIT_SHAPE * len(portraits) + 0.7),
    )  # fmt: skip
    for row, portrait in zip(grid, portraits, strict=True):
        row[0].set_ylabel(portrait.title)
        for time, axes in enumerate(row):
            _draw_places(axes, portrait, time, symbols, scale)
    for axes, step in zip(grid[0], steps, strict=True):
        axes.set_title(f"step {step:,}")
    figure.suptitle(
        f"{results.attrs['experiment']}: {results.sizes['seed']} seeds in two principal directions, each turned so that "
        "its end fits the best one's; below: median distances",
        parse_math=False,
    )
    return figure


def animate(results: xr.Dataset, folder: Path) -> Path:
    """Write the embeddings over training as `portrait.gif`; returns its path."""
    from PIL import Image

    known = results["table_step"].values
    known = known[known <= last_step(results)]
    steps = known[np.unique(np.linspace(0, len(known) - 1, FRAMES).round().astype(int))]
    portraits = _portraits(results, steps)
    symbols, scale = targets(results), _scale(portraits)
    print(f"jaxtie.figures: drawing {len(steps)} frames", file=sys.stderr)
    images = []
    with plt.style.context(STYLE):
        size = 2.9 * len(portraits), 2.9 * PORTRAIT_SHAPE + 0.75
        figure, row = plt.subplots(1, len(portraits), squeeze=False, sharex=True, sharey=True, figsize=size, dpi=90)
        figure.subplots_adjust(0.04, 0.07, 0.99, 0.8, 0.08)
        for time, step in enumerate(steps):
            for axes, portrait in zip(row[0], portraits, strict=True):
                axes.clear()
                axes.set_title(portrait.title)
                _draw_places(axes, portrait, time, symbols, scale)
            title = f"{results.attrs['experiment']}, {results.sizes['seed']} seeds, step {step:,}"
            figure.suptitle(title, x=0.04, ha="left", parse_math=False)
            figure.canvas.draw()
            images.append(Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB"))
        plt.close(figure)
    palette = images[len(images) // 2].quantize(48)  # one for all, and no dithering: less than half the size
    images = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "portrait.gif"
    milliseconds = [110] * (len(images) - 1) + [2500]
    images[0].save(path, save_all=True, append_images=images[1:], duration=milliseconds, loop=0, optimize=True)
    return path


def _panels(results: xr.Dataset) -> dict[str, tuple]:
    """File name -> (function, arguments): the paper's figures, for the arms that were run."""
    panels = {"accuracy": (draw_accuracy,)}
    for arm in map(str, results["arm"].values):
        for label, table in tables(results, arm).items():
            panels[f"distances_{label.replace(' ', '_')}"] = (draw_distances, arm, table, f"{label} embedding")
    panels["loss_every_seed"] = (draw_every_seed,)
    panels["loss_distribution"] = (draw_distribution,)
    return panels


def captions(results: xr.Dataset) -> dict[str, str]:
    """File name -> what a figure of a run shows, in words, for a page and for those who do not see it."""
    arms = ", ".join(map(str, results["arm"].values))
    band = "mean over seeds with the 95 % confidence band of the mean"
    texts = {
        "overview": f"All curves over the steps of training, arms {arms}: {band}",
        "portrait": "The embeddings in two principal directions at some steps, a row each: a point a seed, a line between "
        "the two symbols of a seed's pair, a letter at the median; below, median distances of X–Y and A–B",
        "accuracy": f"Exact validation accuracy of {arms} over the steps of training beside the best reachable; {band}",
    }
    for arm in map(str, results["arm"].values):
        for label in tables(results, arm):
            texts[f"distances_{label.replace(' ', '_')}"] = (
                f"Distances X–Y and A–B in the {label} embedding over the steps of training; {band}"
            )
    return texts | {
        "loss_every_seed": f"Exact training loss of every seed over the steps of training, a line each, {arms}",
        "loss_distribution": "Distribution over seeds of the final training loss above the best reachable",
    }


def draw(results: xr.Dataset, folder: Path) -> list[Path]:
    """Write every figure of a run as PNG and PDF, and one overview of all of them; returns the PNG files."""
    panels = _panels(results)
    with plt.style.context(STYLE):
        written = []
        for name, (function, *arguments) in panels.items():
            figure, axes = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
            function(axes, results, *arguments)
            written.append(_save(figure, folder, name))
        columns = 3
        figure, grid = plt.subplots(
            -(-len(panels) // columns), columns, squeeze=False, layout="constrained",
            figsize=(4.4 * columns, 3.3 * -(-len(panels) // columns)),
        )  # fmt: skip
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, (function, *arguments) in zip(grid.flat, panels.values(), strict=False):
            function(axes, results, *arguments)
        title = f"{results.attrs['experiment']}: {results.sizes['seed']} seeds, mean and 95 % confidence band"
        figure.suptitle(title, parse_math=False)
        written.append(_save(figure, folder, "overview"))
        written.append(_save(draw_portrait(results), folder, "portrait"))
    return written


def _save(figure: Figure, folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.pdf")
    figure.savefig(folder / f"{name}.png")
    plt.close(figure)
    return folder / f"{name}.png"


def write_csv(results: xr.Dataset, folder: Path) -> list[Path]:
    """Tidy CSV, one row an observation: `steps.csv`, `evaluations.csv`, `tables.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = results[["loss", "accuracy"]].to_dataframe()
    symbols = [str(symbol) for symbol in results["symbol"].values]
    for table in ("input", "output"):
        for i, first in enumerate(symbols):
            for second in symbols[i + 1 :]:
                distance = results[f"{table}_distance"].sel(symbol=first, symbol2=second)
                steps[f"{table}_distance_{first}_{second}"] = distance.values.ravel()
    evaluations = results[["train_loss", "train_accuracy", "valid_loss", "valid_accuracy"]].to_dataframe()
    for pair in map(str, results["pair"].values):
        for name in ("log_odds", "log_odds_deviation"):
            evaluations[f"{name}_{pair.replace('-', '_')}"] = results[name].sel(pair=pair).values.ravel()
    frames = {
        "steps": steps,
        "evaluations": evaluations,
        "tables": results[["input_table", "output_table"]].to_dataframe(),
    }
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv")
    return [folder / f"{name}.csv" for name in frames]


def main(arguments: list[str] | None = None) -> int:
    """The command line of `python -m jaxtie.figures`."""
    from jaxtie.cli import parse_figures  # the parser is not needed where figures are drawn by a run

    try:
        options = parse_figures(sys.argv[1:] if arguments is None else arguments)
        folder = RunFolder(options.folder)
        results = folder.load()
        written = draw(results, folder.figures)
        if options.animate:
            written.append(animate(results, folder.figures))
        if options.csv:
            written += write_csv(results, folder.path / "csv")
    except UserError as error:
        print(f"jaxtie.figures: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"jaxtie.figures: {options.folder}: cannot be written ({error.strerror})", file=sys.stderr)
        return 2
    print(*written, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
