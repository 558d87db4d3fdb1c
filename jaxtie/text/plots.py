"""Figures of text results. Imports no jax."""

from functools import partial

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from jaxtie.results.plots import (
    COLOURS,
    FAILS,
    HOLDS,
    Panel,
    Picture,
    by_arm,
    curves,
    finish_axes,
    overview,
)
from jaxtie.results.tables import arms_of, embeddings_of
from jaxtie.text.analysis import Group, groups_of
from jaxtie.text.tables import measures

COUNT_LINES = {"unigram": "dashed", "bigram": "dotted", "kneser_ney": "dashdot"}


def _colours_of(groups: list[Group]) -> list[str]:
    """Colour groups: the paper's colours for the first that holds and the first that fails."""
    rest = iter(COLOURS[2:] * len(groups))
    first = {" (DH holds)": HOLDS, " (DH fails)": FAILS}
    return [first.pop(group.hypothesis, "") or next(rest) for group in groups]


def draw_validation(results: xr.Dataset, name: str, axes: Axes) -> None:
    """Draw a measure of the validation split, a curve an arm."""
    title = measures(results)[name]
    label = title.removeprefix("validation ")
    curves(axes, by_arm(results[name]))
    if name == "valid_accuracy":
        label += ", share"
        axes.set_ylim(0, None)
    if name == "valid_loss":  # a fresh tied model's is far above all later ones
        lines = [(each, line) for each, line in COUNT_LINES.items() if f"{each}_loss" in results]
        known = [float(results[f"{each}_loss"]) for each, _ in lines]
        for loss, (each, line) in zip(known, lines):
            label_of = each.replace("_", "-")
            axes.axhline(loss, color="black", linestyle=line, linewidth=0.8, label=label_of)
        later = np.append(results[name].isel(eval_step=slice(1, None)).values, known)
        later = later[np.isfinite(later)]
        if later.size:
            margin = 0.1 * float(np.ptp(later)) + 1e-3
            axes.set_ylim(later.min() - margin, later.max() + margin)
    finish_axes(axes, title, label, results["eval_step"].values)


def draw_pairs(results: xr.Dataset, arm: str, table: str, title: str, axes: Axes) -> None:
    """Draw the distances of every group of pairs: mean and 95 % interval over pairs."""
    groups = groups_of(results)
    distances = results[f"{table}_distance"].sel(arm=arm).mean("seed")
    lines = {
        group.label.replace("word–", "") + group.hypothesis: group.of(distances) for group in groups
    }
    curves(axes, lines, over="pair", colours=_colours_of(groups))
    highest = max(
        float(results[f"{each}_distance"].mean("seed").quantile(0.9, "pair").max())
        for each in ("input", "output")
    )
    # one scale for all tables: the paper's, where the curves fit
    top = 5 if 2.5 < highest < 4.9 else 1.1 * highest
    axes.set_ylim(0, top if highest > 0 else None)
    finish_axes(axes, title, "Euclidean distance", results["eval_step"].values)


def text_panels(results: xr.Dataset) -> dict[str, Panel]:
    """Return the panels of measures, and of distances in every table, by name."""
    panels: dict[str, Panel] = {}
    for name in ("valid_loss", "valid_accuracy"):  # perplexity and bits per byte show the loss
        if name in measures(results):
            panels[name.removeprefix("valid_")] = partial(draw_validation, results, name)
    for arm, label, table in embeddings_of(results) if len(groups_of(results)) > 1 else []:
        title = f"{label} embedding"
        panels[f"distances of {label}"] = partial(draw_pairs, results, arm, table, title)
    return panels


def text_pictures(results: xr.Dataset) -> dict[str, Picture]:
    """Return the figure of all panels, by the name of its file."""
    arms, seeds = ", ".join(map(str, arms_of(results))), results.sizes["seed"]
    title = (
        f"{results.attrs['experiment']}: {seeds} seed{'s' * (seeds > 1)}, mean and 95 % interval"
        " over seeds or pairs"
    )
    caption = f"All curves over the steps of training, arms {arms}, with 95 % confidence bands"
    return overview(text_panels(results), title, caption)
