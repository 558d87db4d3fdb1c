"""Results of EXor -> figures with their captions, and tidy frames. Imports no jax."""

from functools import partial

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxtie.config import names_of
from jaxtie.exor.comparison import EXCESS, abscissa, outcomes
from jaxtie.exor.pairs import equally_likely, live_pairs
from jaxtie.exor.plateau import AT_BEST, LEFT, SOLVED, escape_levels, escape_times
from jaxtie.exor.portrait import draw_portrait
from jaxtie.results.gradient_by_role import role_pictures
from jaxtie.results.plots import (
    FAILS,
    HOLDS,
    Panel,
    Picture,
    coloured,
    curve,
    finish,
    panelled,
    subplots,
)
from jaxtie.results.statistics import kaplan_meier, mean_interval
from jaxtie.results.tables import arms_of, last_step, settings, swept, tables_of

MOST_ROWS = 6  # of a figure, one for each combination of the settings that it does not draw
BAND = "mean over seeds with the 95 % confidence band of the mean"


def exor_pictures(results: xr.Dataset) -> dict[str, Picture]:
    """File name -> figure: the paper's, for the arms that were run; of a sweep, what came out over
    each swept setting.
    """
    names, arms = swept(results), ", ".join(names_of(arms_of(results)))
    if names:
        return {
            file: picture
            for name in names
            for file, picture in _pictures_of_setting(results, name).items()
        }
    title = (
        f"{results.attrs['experiment']}: {results.sizes['seed']:,} seeds, mean and 95 % confidence"
        " band"
    )
    overview = f"All curves over the steps of training, arms {arms}: {BAND}"
    portrait = (
        "The embeddings in two principal directions at some steps, a row each: a point a seed, a"
        " line between the two symbols of a seed's pair, a letter at the median; below, median"
        " distances of X–Y and A–B"
    )
    escape = (
        "Share of seeds that have left the first plateau, and that have reached the best loss to"
        f" {SOLVED} nat, over the steps of training, arms {arms}: Kaplan–Meier curves with 95 %"
        " confidence bands; the legend counts seeds at the end"
    )
    return panelled(_panels(results), title, overview) | {
        "escape": Picture(escape, partial(draw_escape, results)),
        "portrait": Picture(portrait, partial(draw_portrait, results)),
        **role_pictures(results),
    }


def _panels(results: xr.Dataset) -> dict[str, Panel]:
    """File name -> what makes a figure of its own and a part of the overview."""
    arms = ", ".join(names_of(arms_of(results)))
    accuracy = (
        f"Exact validation accuracy of {arms} over the steps of training beside the best reachable;"
        f" {BAND}"
    )
    panels = {"accuracy": Panel(accuracy, partial(draw_accuracy, results=results))}
    for arm in arms_of(results):
        for label, table in tables_of(arm).items():
            panels[f"distances_{label.replace(' ', '_')}"] = Panel(
                f"Distances X–Y and A–B in the {label} embedding over the steps of training;"
                f" {BAND}",
                partial(
                    draw_pair_distances,
                    results=results,
                    arm=arm.name,
                    table=table,
                    title=f"{label} embedding",
                ),
            )
    return panels | {
        "loss_every_seed": Panel(
            f"Exact training loss of every seed over the steps of training, a line each, {arms}",
            partial(draw_every_seed, results=results),
        ),
        "loss_distribution": Panel(
            "Distribution over seeds of the final training loss above the best reachable",
            partial(draw_loss_distribution, results=results),
        ),
    }


def _pictures_of_setting(results: xr.Dataset, name: str) -> dict[str, Picture]:
    """File name -> what came out over the values of a swept setting."""
    at_the_end = f"at the end, {', '.join(names_of(arms_of(results)))}, by {name}"
    spread = "mean with its 95 % interval and a faint point a seed"
    return {
        f"excess_loss_by_{name}": Picture(
            f"Training loss above the best reachable {at_the_end}; {spread}",
            partial(draw_excess_by_setting, results, name),
        ),
        f"distances_by_{name}": Picture(
            f"Distances X–Y and A–B in each embedding {at_the_end}; {spread}",
            partial(draw_distances_by_setting, results, name),
        ),
    }


def draw_accuracy(axes: Axes, results: xr.Dataset) -> None:
    """Exact validation accuracy of every arm, and the best reachable."""
    for colour, arm in coloured(results["arm"].values):
        curve(axes, results["valid_accuracy"].sel(arm=arm), colour, arm)
    best = float(results["best_accuracy"].sel(split="valid"))
    axes.axhline(
        best, color="black", linestyle="--", linewidth=1, label=f"best reachable, {best:.3g}"
    )
    axes.set_ylim(0, 1)
    finish(axes, "validation accuracy", "accuracy", results["eval_step"].values, loc="lower right")


def draw_pair_distances(axes: Axes, results: xr.Dataset, arm: str, table: str, title: str) -> None:
    """Distances X-Y and A-B in one table, "input" or "output", of one arm, and what decay alone
    leaves of their start.
    """
    starts = []
    for pair in live_pairs(results):
        holds = equally_likely(results, pair)
        first, second = pair.split("-")
        values = results[f"{table}_distance"].sel(arm=arm, symbol=first, symbol2=second)
        curve(
            axes,
            values,
            HOLDS if holds else FAILS,
            f"{first}–{second} (DH {'holds' if holds else 'fails'})",
        )
        starts.append(float(values.sel(step=0).mean()))
    steps, decayed = results["step"].values, np.mean(starts) * results["decay_factor"].values
    axes.plot(steps, decayed, color="grey", linestyle=":", label="weight decay alone")
    axes.set_ylim(0, 4 if axes.dataLim.y1 < 5 else None)  # the paper's scale, where the curves fit
    finish(axes, title, "Euclidean distance", results["step"].values)


def draw_every_seed(axes: Axes, results: xr.Dataset) -> None:
    """Exact training loss of every seed, a line each: who is still on a plateau, and when the
    others left it.
    """
    steps = results["eval_step"].values
    for colour, arm in coloured(results["arm"].values):
        lines = axes.plot(
            steps,
            results["train_loss"].sel(arm=arm).transpose("eval_step", "seed").values,
            color=colour,
            linewidth=0.6,
            alpha=0.5,
        )
        lines[0].set_label(arm)
    best = float(results["best_loss"].sel(split="train"))
    axes.axhline(
        best, color="black", linestyle="--", linewidth=1, label=f"best reachable, {best:.3g}"
    )
    axes.set_ylim(best - 0.05, 1.6)
    finish(
        axes,
        "every seed's training loss",
        "loss, nat",
        steps,
        loc="upper right",
        ncols=3,
        fontsize=8,
    )


def draw_loss_distribution(axes: Axes, results: xr.Dataset) -> None:
    """Every seed's exact training loss at the end above the best reachable, in order: the
    distribution over seeds.
    """
    step = last_step(results)
    best = float(results["best_loss"].sel(split="train"))
    for colour, arm in coloured(results["arm"].values):
        excess = np.sort(results["train_loss"].sel(arm=arm, eval_step=step).values - best)
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


def draw_escape(results: xr.Dataset) -> Figure:
    """The share of seeds that have left the first plateau, and that have reached the best loss:
    Kaplan-Meier, 95 % bands.
    """
    figure, ((left, right),) = subplots(1, 2, (10.4, 3.8), sharey=True)
    for axes, event, style in ((left, LEFT, "-"), (right, AT_BEST, "--")):
        _draw_share(axes, results, event, style)
    figure.suptitle(
        f"{results.attrs['experiment']}: {results.sizes['seed']:,} seeds", parse_math=False
    )
    return figure


def _draw_share(axes: Axes, results: xr.Dataset, event: str, style: str) -> None:
    """One event's shares over the steps of training, every arm."""
    last = last_step(results)
    times = escape_times(results, event)
    for colour, arm in coloured(times):
        curve = kaplan_meier(times[arm])
        step_T = np.append(curve.step_T, last)
        share_T, low_T, high_T = (np.append(each, each[-1]) for each in curve[1:])
        label = f"{arm}: {int(times[arm].by(last).sum()):,} of {results.sizes['seed']:,}"
        axes.step(step_T, share_T, where="post", color=colour, linestyle=style, label=label)
        # Each step of the band with both its ends: `step="post"` leaves out the one before a place
        # without a band.
        ends = np.repeat(step_T, 2)[1:]
        axes.fill_between(
            ends,
            np.repeat(low_T, 2)[:-1],
            np.repeat(high_T, 2)[:-1],
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
    axes.set_ylim(-0.02, 1.02)
    finish(
        axes,
        f"{event} (loss ≤ {escape_levels(results)[event]:.3f})",
        "share of seeds",
        np.array([0, max(last, 1)]),
        fontsize=8,
    )


def draw_excess_by_setting(results: xr.Dataset, name: str) -> Figure:
    """The final loss of every arm above the best reachable over a swept setting, a row for each
    value of the others.
    """
    rows, (label, x_K) = _rows_over_setting(results, name), abscissa(results, name)
    figure, grid = _grid_over_setting(results, len(rows), 1)
    for (axes,), (where, ends) in zip(grid, rows, strict=True):
        for colour, arm in coloured(results["arm"].values):
            _draw_outcome(axes, x_K, ends[EXCESS].sel(arm=arm), name, colour, arm)
        axes.set(
            xlabel=label,
            ylabel=EXCESS,
            title=f"loss above the best reachable{where}",
            ylim=(0, None),
        )
        axes.legend()
    return figure


def draw_distances_by_setting(results: xr.Dataset, name: str) -> Figure:
    """Final distances over a swept setting: a column for each table, a row for each value of the
    others.
    """
    rows, (label, x_K) = _rows_over_setting(results, name), abscissa(results, name)
    columns = [
        (arm.name, title, table)
        for arm in arms_of(results)
        for title, table in tables_of(arm).items()
    ]
    figure, grid = _grid_over_setting(results, len(rows), len(columns))
    for row, (where, ends) in zip(grid, rows, strict=True):
        for axes, (arm, title, table) in zip(row, columns, strict=True):
            for colour, pair in zip((FAILS, HOLDS), live_pairs(results), strict=False):
                values = ends[f"distance {pair}, {table}"].sel(arm=arm)
                _draw_outcome(axes, x_K, values, name, colour, pair.replace("-", "–"))
            axes.set(
                xlabel=label,
                ylabel="Euclidean distance",
                title=f"{title} embedding{where}",
                ylim=(0, None),
            )
            axes.legend()
    return figure


def _rows_over_setting(results: xr.Dataset, name: str) -> list[tuple[str, dict[str, xr.DataArray]]]:
    """Every combination of the other settings' values, `MOST_ROWS` of them at most: how a title
    names it, its outcomes.
    """
    others = list(settings(results, [other for other in swept(results) if other != name]))[
        :MOST_ROWS
    ]
    return [
        ("".join(f", {other} {value:g}" for other, value in at.items()), outcomes(own))
        for at, own in others
    ]


def _grid_over_setting(results: xr.Dataset, rows: int, columns: int) -> tuple[Figure, np.ndarray]:
    """An empty figure of a sweep and its axes, (rows, columns)."""
    figure, grid = subplots(rows, columns, (4.6 * columns, 3.6 * rows + 0.3), sharey=True)
    title = (
        f"{results.attrs['experiment']}: {results.sizes['seed']:,} seeds, step"
        f" {last_step(results):,}"
    )
    figure.suptitle(title, size=10, parse_math=False)
    return figure, grid


def _draw_outcome(
    axes: Axes, x_K: np.ndarray, values: xr.DataArray, name: str, colour: str, label: str
) -> None:
    """An outcome over a swept setting: mean with its 95 % interval, and a faint point a seed."""
    order = np.argsort(x_K)
    values_KxS = values.transpose(name, "seed").values.astype(np.float64)[order]
    mean, half = mean_interval(values_KxS, axis=1)
    axes.errorbar(
        x_K[order], mean, half, color=colour, label=label, marker="o", markersize=4, capsize=2
    )
    axes.scatter(
        np.repeat(x_K[order], values_KxS.shape[1]),
        values_KxS.ravel(),
        s=4,
        color=colour,
        alpha=0.2,
        linewidths=0,
    )


def exor_frames(results: xr.Dataset) -> dict[str, pd.DataFrame]:
    """File name -> tidy frame, one row an observation: at every record, at every evaluation, and
    rows of the tables.
    """
    steps = results[["loss", "accuracy"]].to_dataframe()
    symbols = [str(symbol) for symbol in results["symbol"].values]
    for table in ("input", "output"):
        for i, first in enumerate(symbols):
            for second in symbols[i + 1 :]:
                distance = results[f"{table}_distance"].sel(symbol=first, symbol2=second)
                steps[f"{table}_distance_{first}_{second}"] = distance.values.ravel()
    evaluations = results[
        ["train_loss", "train_accuracy", "valid_loss", "valid_accuracy"]
    ].to_dataframe()
    for pair in map(str, results["pair"].values):
        for name in ("log_odds", "log_odds_deviation"):
            evaluations[f"{name}_{pair.replace('-', '_')}"] = (
                results[name].sel(pair=pair).values.ravel()
            )
    return {
        "steps": steps,
        "evaluations": evaluations,
        "tables": results[["input_table", "output_table"]].to_dataframe(),
    }
