"""Results -> figures and CSV; `python -m jaxtie.figures DIR` does it for a run's folder. Imports no jax."""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from jaxtie.config import UserError
from jaxtie.results import RunFolder
from jaxtie.summary import last_step, live_pairs, mean_interval

ARM_COLOURS = ("#d1495b", "#00798c", "#edae49", "#66588f", "#3d3d3d")
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


def _panels(results: xr.Dataset) -> dict[str, tuple]:
    """File name -> (function, arguments): the paper's figures, for the arms that were run."""
    panels = {"accuracy": (draw_accuracy,)}
    for arm in map(str, results["arm"].values):
        tables = {"": "input"} if arm == "tied" else {" input": "input", " output": "output"}
        for label, table in tables.items():
            title = f"{arm}{label} embedding"
            panels[f"distances_{arm}{label.replace(' ', '_')}"] = (draw_distances, arm, table, title)
    panels["loss_every_seed"] = (draw_every_seed,)
    panels["loss_distribution"] = (draw_distribution,)
    return panels


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
        figure.suptitle(f"{results.attrs['experiment']}: {results.sizes['seed']} seeds, mean and 95 % confidence band")
        written.append(_save(figure, folder, "overview"))
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
