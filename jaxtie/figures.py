"""Results -> figures and CSV; `python -m jaxtie.figures DIR` does it for a run's folder. Imports no jax."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxtie import convergence, text_figures
from jaxtie.comparison import EXCESS, abscissa, outcomes
from jaxtie.config import UserError
from jaxtie.portrait import animate, draw_portrait
from jaxtie.results import RunFolder, is_text
from jaxtie.style import FAILS, HOLDS, STYLE, coloured, curve, finish, save
from jaxtie.tables import last_step, live_pairs, mean_interval, settings, swept, tables

MOST_ROWS = 6  # of a figure, one for each combination of the settings that it does not draw


def draw_accuracy(axes: Axes, results: xr.Dataset) -> None:
    """Exact validation accuracy of every arm, and the best reachable."""
    for colour, arm in coloured(results["arm"].values):
        curve(axes, results["valid_accuracy"].sel(arm=arm), colour, arm)
    best = float(results["best_accuracy"].sel(split="valid"))
    axes.axhline(best, color="black", linestyle="--", linewidth=1, label=f"best reachable, {best:.3g}")
    axes.set_ylim(0, 1)
    finish(axes, "validation accuracy", "accuracy", results["eval_step"].values, loc="lower right")


def draw_distances(axes: Axes, results: xr.Dataset, arm: str, table: str, title: str) -> None:
    """Distances X-Y and A-B in one table of one arm."""
    for pair in live_pairs(results):
        holds = abs(float(results["theory_log_odds"].sel(pair=pair))) < 1e-12
        first, second = pair.split("-")
        curve(
            axes,
            results[f"{table}_distance"].sel(arm=arm, symbol=first, symbol2=second),
            HOLDS if holds else FAILS,
            f"{first}–{second} (DH {'holds' if holds else 'fails'})",
        )
    axes.set_ylim(0, 4 if axes.dataLim.y1 < 5 else None)  # the paper's scale, where the curves fit
    finish(axes, title, "Euclidean distance", results["step"].values)


def draw_every_seed(axes: Axes, results: xr.Dataset) -> None:
    """Exact training loss of every seed, a line each: who is still on a plateau, and when the others left it."""
    steps = results["eval_step"].values
    for colour, arm in coloured(results["arm"].values):
        lines = axes.plot(
            steps, results["train_loss"].sel(arm=arm).transpose("eval_step", "seed").values, color=colour, linewidth=0.6,
            alpha=0.5,
        )  # fmt: skip
        lines[0].set_label(arm)
    best = float(results["best_loss"].sel(split="train"))
    axes.axhline(best, color="black", linestyle="--", linewidth=1, label=f"best reachable, {best:.3g}")
    axes.set_ylim(best - 0.05, 1.6)
    finish(axes, "every seed's training loss", "loss, nat", steps, loc="upper right", ncols=3, fontsize=8)


def draw_distribution(axes: Axes, results: xr.Dataset) -> None:
    """Every seed's exact training loss at the end above the best reachable, in order: the distribution over seeds."""
    step = last_step(results)
    best = float(results["best_loss"].sel(split="train"))
    for colour, arm in coloured(results["arm"].values):
        excess = np.sort(results["train_loss"].sel(arm=arm, eval_step=step).values - best)
        share = (np.arange(len(excess)) + 1) / len(excess)
        axes.step(np.maximum(excess, 1e-4), share, where="post", color=colour, label=arm)
    axes.set(
        title=f"distribution over {results.sizes['seed']} seeds, step {step:,}",
        xlabel="training loss above the best reachable, nat",
        ylabel="share of seeds at or below",
        xscale="log",
        xlim=(1e-4, 2),
        ylim=(0, 1.02),
    )
    axes.legend(loc="upper left")


def _panels(results: xr.Dataset) -> dict[str, tuple]:
    """File name -> (function, arguments): the paper's figures, for the arms that were run."""
    if is_text(results):
        return text_figures.panels(results)
    panels = {"accuracy": (draw_accuracy,)}
    for arm in map(str, results["arm"].values):
        for label, table in tables(results, arm).items():
            panels[f"distances_{label.replace(' ', '_')}"] = (draw_distances, arm, table, f"{label} embedding")
    panels["loss_every_seed"] = (draw_every_seed,)
    panels["loss_distribution"] = (draw_distribution,)
    return panels


def _draw_outcome(axes: Axes, x_K: np.ndarray, values: xr.DataArray, name: str, colour: str, label: str) -> None:
    """An outcome against a swept setting: mean with its 95 % interval, and a faint point a seed."""
    order = np.argsort(x_K)
    values_KxS = values.transpose(name, "seed").values.astype(np.float64)[order]
    mean, half = mean_interval(values_KxS, axis=1)
    axes.errorbar(x_K[order], mean, half, color=colour, label=label, marker="o", markersize=4, capsize=2)
    axes.scatter(np.repeat(x_K[order], values_KxS.shape[1]), values_KxS.ravel(), s=4, color=colour, alpha=0.2, linewidths=0)


def draw_sweep(results: xr.Dataset, name: str) -> dict[str, Figure]:
    """What came out as a function of a swept setting: file name -> figure, a row for each combination of the others."""
    arms, (label, x_K) = list(map(str, results["arm"].values)), abscissa(results, name)
    others = list(settings(results, [other for other in swept(results) if other != name]))[:MOST_ROWS]
    of_arms = [(arm, title, table) for arm in arms for title, table in tables(results, arm).items()]
    figures = {
        what: plt.subplots(
            len(others), columns, squeeze=False, layout="constrained", sharey=True,
            figsize=(4.6 * columns, 3.6 * len(others) + 0.3),
        )
        for what, columns in ((f"excess_loss_by_{name}", 1), (f"distances_by_{name}", len(of_arms)))
    }  # fmt: skip
    (_, losses), (_, distances) = figures.values()
    for row, (at, own) in enumerate(others):
        where = "".join(f", {other} {value:g}" for other, value in at.items())
        ends = outcomes(own)
        for colour, arm in coloured(arms):
            _draw_outcome(losses[row, 0], x_K, ends[EXCESS].sel(arm=arm), name, colour, arm)
        losses[row, 0].set(xlabel=label, ylabel=EXCESS, title=f"price of tying{where}", ylim=(0, None))
        losses[row, 0].legend()
        for axes, (arm, title, table) in zip(distances[row], of_arms, strict=True):
            for colour, pair in zip((FAILS, HOLDS), live_pairs(results), strict=False):
                values = ends[f"distance {pair}, {table}"].sel(arm=arm)
                _draw_outcome(axes, x_K, values, name, colour, pair.replace("-", "–"))
            axes.set(xlabel=label, ylabel="Euclidean distance", title=f"{title} embedding{where}", ylim=(0, None))
            axes.legend()
    title = f"{results.attrs['experiment']}: {results.sizes['seed']} seeds, step {last_step(results):,}"
    for figure, _ in figures.values():
        figure.suptitle(title, size=10, parse_math=False)
    return {what: figure for what, (figure, _) in figures.items()}


def captions(results: xr.Dataset) -> dict[str, str]:
    """File name -> what a figure of a run shows, in words, for a page and for those who do not see it."""
    if is_text(results):
        return text_figures.captions(results)
    arms = ", ".join(map(str, results["arm"].values))
    if names := swept(results):
        end, spread = f"at the end, {arms}", "mean with its 95 % interval and a faint point a seed"
        texts = {
            "excess_loss": "Training loss above the best reachable",
            "distances": "Distances X–Y and A–B in each embedding",
        }
        return {f"{file}_by_{name}": f"{text} {end}, by {name}; {spread}" for name in names for file, text in texts.items()}
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
    """Write every figure of a run as PNG and PDF, and one overview of all of them; returns the PNG files.

    Of a sweep those that show what came out as functions of each swept setting.
    """
    if swept(results):
        with plt.style.context(STYLE):
            drawn = [draw_sweep(results, name) for name in swept(results)]
            return [save(figure, folder, name) for figures in drawn for name, figure in figures.items()]
    panels = _panels(results)
    with plt.style.context(STYLE):
        written = []
        for name, (function, *arguments) in panels.items():
            figure, axes = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
            function(axes, results, *arguments)
            written.append(save(figure, folder, name))
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
        if is_text(results):
            title = text_figures.title(results)
        figure.suptitle(title, parse_math=False)
        written.append(save(figure, folder, "overview"))
        if not is_text(results):
            written.append(save(draw_portrait(results), folder, "portrait"))
    return written


def write_csv(results: xr.Dataset, folder: Path) -> list[Path]:
    """Tidy CSV, one row an observation: `steps.csv`, `evaluations.csv`, and `tables.csv` or, of text, `distances.csv`."""
    frames = text_figures.frames(results) if is_text(results) else _frames(results)
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv")
    return [folder / f"{name}.csv" for name in frames]


def _frames(results: xr.Dataset) -> dict[str, pd.DataFrame]:
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
    return {
        "steps": steps,
        "evaluations": evaluations,
        "tables": results[["input_table", "output_table"]].to_dataframe(),
    }


def main(arguments: list[str] | None = None) -> int:
    """The command line of `python -m jaxtie.figures`."""
    from jaxtie.cli import parse_figures  # the parser is not needed where figures are drawn by a run

    try:
        options = parse_figures(sys.argv[1:] if arguments is None else arguments)
        folder = RunFolder(options.folder)
        results = folder.load()
        of_heads = "head" in results.dims
        if options.animate and (of_heads or is_text(results)):
            raise UserError("--animate: expected a run of EXor, whose tables are small enough to be drawn")
        written = [convergence.draw(results, folder.figures)] if of_heads else draw(results, folder.figures)
        if options.animate:
            written.append(animate(results, folder.figures))
        if options.csv:
            written += (convergence.write_csv if of_heads else write_csv)(results, folder.path / "csv")
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
