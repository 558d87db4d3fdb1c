"""End a run with one table and a few sentences. Imports no jax."""

import re
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from jaxtie.results.plots import Figure, Picture, coloured, subplots
from jaxtie.results.statistics import mean_interval
from jaxtie.results.tables import Table, arms_of, interval

FEW_SEEDS = 5  # fewer seeds decide nothing
TOO_SHORT = "Too short to conclude"


class Conclusion(NamedTuple):
    """The answer of a run.

    Attributes:
      loss: final loss, (arm, swept names, seed), with its name and unit as `long_name`.
      table: a row per arm or sweep point.
      sentences: the answer first, its scope last.
      too_short: why nothing can be concluded; "" if something can.
    """

    loss: xr.DataArray
    table: Table
    sentences: Sequence[str]
    too_short: str = ""

    def lines(self) -> list[str]:
        """Return the sentences, after a warning if the run is too short."""
        warning = f"{TOO_SHORT}: {self.too_short}."
        return [*([warning] * bool(self.too_short)), *self.sentences]


def answer_picture(conclusion: Conclusion) -> Picture:
    """Return one figure whose title is the answer: every seed's final loss, and the means."""
    loss = conclusion.loss
    names = [str(name) for name in loss.dims if name not in ("arm", "seed")]

    def draw() -> Figure:
        arms = loss["arm"].values.tolist()
        figure, ((axes,),) = subplots(1, 1, (8.0, 4.5))
        for (colour, arm), i in zip(coloured(arms), range(len(arms))):
            own = loss.sel(arm=arm)
            if names:
                flat = own.stack(point=names).transpose("point", "seed")
                means, halves = np.array([mean_interval(values) for values in flat.values]).T
                x = loss[names[0]].values if len(names) == 1 else np.arange(len(means))
                axes.errorbar(x, means, halves, color=colour, label=arm, marker="o", capsize=3)
                continue
            values = own.values[np.isfinite(own.values)]
            spread = np.linspace(-0.25, 0.25, len(values)) if len(values) > 1 else [0.0]
            axes.plot(np.sort(values), i + np.array(spread), ".", color=colour, alpha=0.4)
            mean, half = mean_interval(values)
            axes.errorbar(mean, i, xerr=half, color="k", marker="D", capsize=4, zorder=3)
        label = str(loss.attrs["long_name"])
        if names:
            axes.set(xlabel=", ".join(names).replace("_", " "), ylabel=label)
            axes.legend()
        else:
            axes.set(yticks=range(len(arms)), yticklabels=arms, xlabel=label)
            axes.invert_yaxis()
        figure.suptitle(textwrap.fill(conclusion.lines()[0], 75), x=0.02, ha="left", fontsize=12)
        return figure

    caption = "Final loss of every seed (dots) and its mean with the 95 % interval (diamonds)"
    if names:
        caption = "Final loss per arm at every sweep point: mean over seeds with its 95 % interval"
    return Picture(caption, draw)


def tied_and_untied(results: xr.Dataset | xr.DataArray) -> tuple[str, str] | None:
    """Return the first pair of arms that differ only in tying, throughout; None without one."""
    arms = [arm for arm in arms_of(results) if arm.untie_at is None and not arm.head.is_partly_tied]
    pairs = [
        (tied.name, untied.name)
        for tied in arms
        for untied in arms
        if tied.tied and not untied.tied and tied.head == untied.head
    ]
    return pairs[0] if pairs else None


def reference_arm(results: xr.Dataset) -> str:
    """Return the arm that others are compared with: the first untied one, else the first."""
    pair = tied_and_untied(results)
    return pair[1] if pair else arms_of(results)[0].name


def gap_of(loss: xr.DataArray, arm: str, reference: str) -> np.ndarray:
    """Return the paired differences of two arms, by seed."""
    return (loss.sel(arm=arm) - loss.sel(arm=reference)).values.astype(np.float64)


def gap_sentence(loss: xr.DataArray, what: str, at: str, too_short: str = "") -> str:
    """Say what tying costs at the end of a run without a sweep, with its 95 % interval.

    Args:
      loss: (arm, seed), nats.
      what: name of the loss, such as "validation loss".
      at: step and number of seeds.
      too_short: why nothing can be concluded, if so; then there is no verdict.
    """
    if not (pair := tied_and_untied(loss)):
        means = [f"{arm} {interval(loss.sel(arm=arm).values)}" for arm in loss["arm"].values]
        return f"{what.capitalize()}, nats: {', '.join(means)} ({at})."
    gap = gap_of(loss, *pair)
    mean, half = map(float, mean_interval(gap))
    difference = f"{pair[0]} − {pair[1]} = {interval(gap)} nats of {what} ({at})."
    if too_short:
        return f"So far {difference}"
    if not np.isfinite(half) or abs(mean) <= half:
        return f"Whether tying costs anything is inconclusive: {difference}"
    return f"Tying {'costs' if mean > 0 else 'saves'} loss: {difference}"


def sweep_sentence(loss: xr.DataArray, what: str, at: str) -> str:
    """Count the sweep points at which tying costs loss, by intervals that hold together at 95 %."""
    if not (pair := tied_and_untied(loss)):
        return f"{what.capitalize()} at every sweep point ({at})."
    gaps = loss.sel(arm=pair[0]) - loss.sel(arm=pair[1])
    by_point = gaps.transpose(..., "seed").values.reshape(-1, gaps.sizes["seed"])
    points = len(by_point)
    mean, half = mean_interval(by_point, axis=1, error=0.05 / points)
    costs, saves = int((mean > half).sum()), int((mean < -half).sum())
    return (
        f"{pair[0]} has a higher {what} than {pair[1]} at {costs} of {points} sweep points, a lower"
        f" one at {saves}; the others are inconclusive ({at})."
    )


def model_in_words(description: str) -> str:
    """Return a model's `repr` in words: "a Transformer of 1 layer and width 4"."""
    found = re.match(r"(\w+)\(layers=(\d+).*?width=(\d+)", description)
    if not found:
        return description
    layers = f"{found[2]} layer{'s' * (found[2] != '1')}"
    return f"{'an' if found[1] == 'LSTM' else 'a'} {found[1]} of {layers} and width {found[3]}"
