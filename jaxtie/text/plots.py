"""Results of text -> figures, and tidy tables for CSV. Imports no jax."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxtie.config import Arm
from jaxtie.results.gradient_by_role import role_pictures
from jaxtie.results.plots import (
    COLOURS,
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
from jaxtie.results.statistics import mean_interval
from jaxtie.results.tables import arms_of
from jaxtie.text.groups import Group, groups_of
from jaxtie.text.heads import compares_heads, log_vocabulary, untied_arm, valid_curves
from jaxtie.text.pairs import PREDICTED
from jaxtie.text.tables import BASELINES, each_table, measures, of_pairs

HEADS_CAPTION = (
    "Heads of one model on real text, below those with an output bias: start, whole course,"
    " difference to untied in pairs; mean over seeds, 95 % band"
)


def colours_of(groups: list[Group]) -> list[str]:
    """Of each group its colour: as the paper has them, where the hypothesis holds and where it
    fails.
    """
    rest = iter(COLOURS[2:] * len(groups))
    first = {" (DH holds)": [HOLDS], " (DH fails)": [FAILS]}
    return [
        first[group.hypothesis].pop() if first.get(group.hypothesis) else next(rest)
        for group in groups
    ]


def draw_measure(axes: Axes, results: xr.Dataset, name: str) -> None:
    """What was measured on the validation split, every arm."""
    for colour, arm in coloured(results["arm"].values):
        curve(axes, results[name].sel(arm=arm), colour, arm)
    if name == "valid_accuracy":
        axes.set_ylim(0, None)
    if name == "perplexity":
        axes.set_yscale("log")
    if name == "valid_loss":  # a fresh tied model's is far above all later ones
        later = results[name].isel(eval_step=slice(1, None)).values
        later = later[np.isfinite(later)]
        known = [float(results[each]) for each in BASELINES if each in results]
        for loss, line in zip(known, ("--", ":")):
            axes.axhline(loss, color="black", linestyle=line, linewidth=0.8)
        later = np.append(later, known)
        if later.size:
            margin = 0.1 * np.ptp(later) + 1e-3
            axes.set_ylim(later.min() - margin, later.max() + margin)
    label = measures(results)[name]
    if name == "valid_loss" and len(known) == len(BASELINES):
        label += "; dashed: unigram, dotted: bigram"
    finish(
        axes,
        label,
        measures(results)[name].removeprefix("validation "),
        results["eval_step"].values,
    )


def draw_pairs(axes: Axes, results: xr.Dataset, arm: Arm, table: str, title: str) -> None:
    """Distances of words and their duplicates, and of other pairs: mean and 95 % interval over
    pairs.
    """
    groups = groups_of(results)
    for colour, group in zip(colours_of(groups), groups, strict=True):
        curve(
            axes,
            of_pairs(results, arm, table, group),
            colour,
            group.label + group.hypothesis,
            over="pair",
        )
    highest = max(
        float(results[f"{each}_distance"].mean(("seed", "pair")).max())
        for each in ("input", "output")
    )
    # one scale for all tables: the paper's, where the curves fit
    top = 5 if 2.5 < highest < 4.9 else 1.1 * highest
    axes.set_ylim(0, top if highest > 0 else None)
    finish(axes, title, "Euclidean distance", results["eval_step"].values)


def draw_log_odds(axes: Axes, results: xr.Dataset, group: Group) -> None:
    """How likely every arm takes words beside their duplicates; dashed: what is true."""
    for colour, arm in coloured(results["arm"].values):
        curve(axes, group.of(results["log_odds"].sel(arm=arm)).mean("pair"), colour, arm)
    axes.axhline(group.true_odds, color="black", linestyle="--", linewidth=0.8)
    finish(
        axes,
        f"odds of {group.label}",
        "ln p(word) / p(duplicate), nat",
        results["eval_step"].values,
    )


def draw_swaps(axes: Axes, results: xr.Dataset, group: Group) -> None:
    """What becomes of every arm's predictions when one token of a pair is put for the other."""
    for colour, arm in coloured(results["arm"].values):
        curve(axes, group.of(results["swap_divergence"].sel(arm=arm)).mean("pair"), colour, arm)
    axes.set_yscale("log")
    finish(axes, group.label, "swap divergence", results["eval_step"].values)


def draw_heads(results: xr.Dataset) -> Figure:
    """The start of every head, the whole course, and the difference to untied in pairs; a row with
    output biases, if any.
    """
    arms = arms_of(results)
    rows = [
        shown for bias in (False, True) if (shown := [arm for arm in arms if arm.head.bias == bias])
    ]
    figure, axes = subplots(len(rows), 3, (13, 4.2 * len(rows)))
    for own, shown in zip(axes, rows, strict=True):
        _draw_heads_row(own, results, shown)
    seeds = f"{results.sizes['seed']:,} seeds, mean and 95 % confidence band"
    figure.suptitle(f"{results.attrs['experiment']}: {seeds}", parse_math=False)
    return figure


def _draw_heads_row(row: Sequence[Axes], results: xr.Dataset, arms: Sequence[Arm]) -> None:
    (steps_T, every), log_n = valid_curves(results), log_vocabulary(results)
    untied, curves = untied_arm(results), {arm: every[arm] for arm in arms}
    paired = {arm: loss_SxT - every[untied] for arm, loss_SxT in curves.items()}
    early = steps_T <= max(steps_T[-1] // 16, steps_T[min(4, len(steps_T) - 1)])
    start, course, difference = row
    for axes, shown, at in (
        (start, curves, early),
        (course, curves, steps_T > 0),
        (difference, paired, steps_T > 0),
    ):
        for (colour, label), loss_SxT in zip(coloured(shown), shown.values(), strict=True):
            mean, half = mean_interval(loss_SxT[:, at])
            axes.plot(steps_T[at], mean, color=colour, label=label, linewidth=1.2)
            axes.fill_between(
                steps_T[at], mean - half, mean + half, color=colour, alpha=0.2, linewidth=0
            )
        axes.set(xlabel="step", ylabel="nat" if axes is difference else "validation loss, nat")
    for axes in (start, course):
        axes.axhline(log_n, color="black", linestyle="--", linewidth=0.8)
    start.set_title(f"start; dashed: log n = {log_n:.2f}")
    course.set_title("whole course")
    difference.set_title(f"difference to {untied}, in pairs")
    _, top = _span([loss_SxT[:, 1:] for loss_SxT in curves.values()])
    bottom, _ = _span([mean_interval(loss_SxT[:, -1:])[0] for loss_SxT in curves.values()])
    _show_course(course, bottom - 0.1, min(top, log_n + 0.2))
    low, high = _span(
        [mean_interval(loss_SxT[:, len(steps_T) // 8 :])[0] for loss_SxT in paired.values()]
    )
    margin = 0.1 * (high - low) + 1e-3
    _show_course(difference, low - margin, high + margin)
    start.legend(fontsize=8)


def _span(losses: list[np.ndarray]) -> tuple[float, float]:
    """The least and the greatest that is finite; NaN where nothing is."""
    values = np.concatenate([each.ravel() for each in losses])
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if values.size else (np.nan, np.nan)


def _show_course(axes: Axes, low: float, high: float) -> None:
    """Steps on a logarithmic axis, and limits of what is shown, where there is something to be
    shown.
    """
    if np.isfinite([low, high]).all():
        axes.set_xscale("log")  # of nothing it raises
    if low < high:
        axes.set_ylim(low, high)


def text_panels(results: xr.Dataset) -> dict[str, Panel]:
    """File name -> panel: what was measured, then distances in every table."""
    panels, arms = {}, ", ".join(map(str, arms_of(results)))
    for name, label in reversed(measures(results).items()):
        what = label.removesuffix(", nat")
        caption = f"{what[0].upper()}{what[1:]} of {arms} over the steps of training"
        panels[name.removeprefix("valid_")] = Panel(
            caption, partial(draw_measure, results=results, name=name)
        )
    of = " and of ".join(group.label for group in groups_of(results))
    for arm, label, table in each_table(results):
        caption = (
            f"Distances of {of} in the {label} embedding over the steps of training; mean and 95 %"
            " interval over pairs"
        )
        draw = partial(
            draw_pairs, results=results, arm=arm, table=table, title=f"{label} embedding"
        )
        panels[f"distances_{label.replace(' ', '_')}"] = Panel(caption, draw)
    return panels | _predicted_panels(results, arms)


def _predicted_panels(results: xr.Dataset, arms: str) -> dict[str, Panel]:
    """What predictions say of pairs, where that was looked at."""
    panels = {}
    for group in groups_of(results) if PREDICTED[0] in results else []:
        name = f"{group.kind}_{group.probability:g}" if group.kind != "random" else group.kind
        if group.kind == "duplicate":
            caption = (
                f"Log-odds of {group.label} by {arms} over the steps of training, beside the true"
                " ones; mean over pairs"
            )
            panels[f"odds_{name}"] = Panel(
                caption, partial(draw_log_odds, results=results, group=group)
            )
        caption = (
            f"Swap divergence of {group.label} by {arms} over the steps of training; mean over"
            " pairs"
        )
        panels[f"swaps_{name}"] = Panel(caption, partial(draw_swaps, results=results, group=group))
    return panels


def text_pictures(results: xr.Dataset) -> dict[str, Picture]:
    """File name -> figure: every panel, all of them together, and heads where some are compared."""
    arms, seeds = ", ".join(map(str, arms_of(results))), results.sizes["seed"]
    title = (
        f"{results.attrs['experiment']}: {seeds} seed{'s' * (seeds > 1)}, mean and 95 % interval"
        " over seeds or pairs"
    )
    caption = f"All curves over the steps of training, arms {arms}, with 95 % confidence bands"
    pictures = panelled(text_panels(results), title, caption)
    if compares_heads(results):
        pictures["heads"] = Picture(HEADS_CAPTION, partial(draw_heads, results))
    return pictures | role_pictures(results)


def text_frames(results: xr.Dataset) -> dict[str, pd.DataFrame]:
    """File name -> tidy table of what was found, one row an observation."""
    evaluations = results[[*measures(results)]].to_dataframe()
    distances = results[["input_distance", "output_distance"]].to_dataframe().reset_index()
    for name in ("first_word", "second_word"):
        words = results[name].to_series()
        distances[name] = words.loc[
            list(zip(distances["kind"], distances["pair"], strict=True))
        ].to_numpy()
    return {
        "steps": results[["loss", "accuracy"]].to_dataframe(),
        "evaluations": evaluations,
        "distances": distances.set_index(
            [name for name in distances if not name.endswith("_distance")]
        ),
    } | ({"predictions": results[[*PREDICTED]].to_dataframe()} if PREDICTED[0] in results else {})
