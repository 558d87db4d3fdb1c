"""End a run with one table and a few sentences. Imports no jax."""

import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import xarray as xr

from jaxtie.config import number_label
from jaxtie.results.plots import Axes, Figure, Picture, by_arm, coloured, draw_sweep, subplots
from jaxtie.results.statistics import mean_interval
from jaxtie.results.tables import (
    Column,
    Table,
    arm_cells,
    arm_header,
    format_mean,
    format_number,
    reference_arm,
    sweep_points,
    swept,
    tied_and_untied,
)

FEW_SEEDS = 5  # fewer seeds decide nothing
NEGLIGIBLE = 0.02  # nat: a tying gap that is shown to be no larger does not matter
INCONCLUSIVE = "inconclusive"
MOST_NAMED = 3  # sweep points that a sentence names
# Swept fields of the data: losses at their values are of different tasks, so none is the best.
DATA_FIELDS = frozenset("p_X p_A length data_seed split_seed vocab_size".split())
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
    caption = (
        "Final loss, and its difference by seed: every seed (dots, in order of their size), mean"
        " and 95 % interval (diamond)"
    )
    if swept_names(conclusion.loss):
        caption = "Final loss per arm at every sweep point: mean over seeds with its 95 % interval"
    return Picture(caption, partial(_draw_answer, conclusion))


def _draw_answer(conclusion: Conclusion) -> Figure:
    loss, pair = conclusion.loss, tied_and_untied(conclusion.loss)
    arms, label = loss["arm"].values.tolist(), str(loss.attrs["long_name"])
    if swept_names(loss):
        figure, ((axes,),) = subplots(1, 1, (8.0, 4.5))
        draw_sweep(axes, by_arm(loss))
        axes.set_ylabel(label)
    else:
        gaps = [("k", " − ".join(pair), gap_of(loss, *pair))] if pair else []
        sizes = {"height_ratios": [len(arms), 1]} if gaps else {}
        figure, ((axes,), *rest) = subplots(1 + len(gaps), 1, (8.0, 4.5), **sizes)
        values = [(colour, arm, loss.sel(arm=arm).values) for colour, arm in coloured(arms)]
        _draw_seeds(axes, values, label)
        for (below,) in rest:
            _draw_seeds(below, gaps, "difference by seed, nat")
            below.axvline(0, color="k", linestyle=":", linewidth=1)
    figure.suptitle(textwrap.fill(conclusion.lines()[0], 70), x=0.02, ha="left")
    return figure


def _draw_seeds(axes: Axes, rows: Sequence[tuple[str, str, np.ndarray]], label: str) -> None:
    """Draw a row of dots per colour, name and values of seeds, with their mean and interval."""
    for i, (colour, _, values) in enumerate(rows):
        own = np.sort(values[np.isfinite(values)])
        if not len(own):
            continue
        spread = np.linspace(-0.25, 0.25, len(own)) if len(own) > 1 else 0.0
        axes.plot(own, i + np.zeros(len(own)) + spread, ".", color=colour, alpha=0.4)
        mean, half = mean_interval(own)
        axes.errorbar(mean, i, xerr=half, color="k", marker="D", capsize=4, zorder=3)
    axes.set(yticks=range(len(rows)), yticklabels=[name for _, name, _ in rows], xlabel=label)
    axes.set_ylim(len(rows) - 0.5, -0.5)


def swept_names(loss: xr.DataArray) -> list[str]:
    """Return the swept names of a final loss, see `Conclusion`."""
    return [str(name) for name in loss.dims if name not in ("arm", "seed")]


def gap_of(loss: xr.DataArray, arm: str, reference: str) -> np.ndarray:
    """Return the paired differences of two arms, arm − reference, by seed; NaN if one diverged."""
    return (loss.sel(arm=arm) - loss.sel(arm=reference)).values.astype(np.float64)


def arms_table(loss: xr.DataArray, title: str, columns: Sequence[Column], note: str) -> Table:
    """Return a row per arm: its loss, the difference to the reference, and further columns.

    `loss`: see `Conclusion`, of no sweep.
    """
    reference, arms = reference_arm(loss), list(map(str, loss["arm"].values))
    gaps = [None if arm == reference else gap_of(loss, arm, reference) for arm in arms]
    losses = [loss.sel(arm=arm).values for arm in arms]
    first = Column("arm", arms), Column(str(loss.attrs["long_name"]), losses, format_mean)
    difference = Column(f"− {reference}", gaps, format_mean)
    return Table.of(title, [*first, difference, *columns], note)


def sweep_table(
    loss: xr.DataArray, title: str, columns: Sequence[Column] = (), note: str = ""
) -> Table:
    """Return a row per sweep point: every arm's loss, the differences, and further columns.

    `loss`: see `Conclusion`, of a sweep.
    """
    names = swept_names(loss)
    rows = [
        (*map(number_label, values.values()), *arm_cells(own))
        for values, own in sweep_points(loss, names)
    ]
    own = map(Column, (*names, *arm_header(loss)), zip(*rows))
    return Table.of(title, [*own, *columns], f"Mean ± 95 %. {note}".rstrip())


def verdict(gap_S: np.ndarray, error: float = 0.05) -> str:
    """Say what paired differences of losses show: "higher", "lower", or how large they can be.

    An interval that contains 0 shows "no difference above X" if X, its end farther from 0, is at
    most `NEGLIGIBLE`, else it is "inconclusive". It misses the mean with probability `error`.
    """
    mean, half = map(float, mean_interval(gap_S, error=error))
    if abs(mean) > half:
        return "higher" if mean > 0 else "lower"
    bound = math.ceil((abs(mean) + half) * 1000) / 1000 if np.isfinite(half) else math.inf
    return f"no difference above {format_number(bound)}" if bound <= NEGLIGIBLE else INCONCLUSIVE


def compare_arms(
    loss: xr.DataArray, arm: str, reference: str, error: float = 0.05, unit: str = ""
) -> tuple[str, str]:
    """Return the verdict on arm − reference, and the difference with its interval in words.

    The verdict is "" where a seed diverged in either arm, since the other seeds are selected by
    their outcome. `loss`: (arm, seed), NaN of members that diverged.
    """
    gap_S = gap_of(loss, arm, reference)
    count, seeds = int(np.isfinite(gap_S).sum()), f"{len(gap_S):,} seeds that diverged in neither"
    shown = f"{arm} − {reference} = {format_mean(gap_S, error)}{unit}"
    if count == len(gap_S):
        return verdict(gap_S, error), shown
    return "", f"{shown} over the {count:,} of {seeds} (selected by outcome)"


def diverged_counts(loss: xr.DataArray) -> str:
    """Say how many seeds of each arm diverged; "" if none did. `loss`: (arm, seed)."""
    missing, seeds = loss.isnull().sum("seed"), f"{loss.sizes['seed']:,}"
    counts = [f"{int(missing.sel(arm=arm)):,} of {seeds} {arm}" for arm in loss["arm"].values]
    return " and ".join(counts) if missing.any() else ""


def gap_sentences(loss: xr.DataArray, what: str, at: str, too_short: str = "") -> list[str]:
    """Say how the arms differ at the end of a run without a sweep, by 95 % intervals.

    First the seeds that diverged, then tied − untied, then each further arm against both; without
    such a pair each arm against the first.

    Args:
      loss: (arm, seed), nats; NaN of members that diverged.
      what: name of the loss, such as "validation loss".
      at: step and number of seeds.
      too_short: why nothing can be concluded, if so; then there is no verdict.
    """
    arms, pair = list(map(str, loss["arm"].values)), tied_and_untied(loss)
    counts = diverged_counts(loss)
    sentences = [f"{counts} seeds diverged."] if counts else []
    if pair and not np.isfinite(gap_of(loss, *pair)).any():
        sentences.append(f"No seed has both {pair[0]} and {pair[1]} to compare ({at}).")
    elif pair:
        found, shown = compare_arms(loss, *pair, unit=f" nats of {what}")
        begin = {
            "higher": "Tying costs loss: ",
            "lower": "Tying saves loss: ",
            INCONCLUSIVE: "Whether tying costs anything is inconclusive: ",
            "": "",
        }
        outcome = "So far " if too_short else begin.get(found, f"Tying makes {found} nats: ")
        sentences.append(f"{outcome}{shown} ({at}).")
    else:
        means = [f"{arm} {format_mean(loss.sel(arm=arm).values)}" for arm in arms]
        sentences.append(f"{what.capitalize()}, nats: {', '.join(means)} ({at}).")
    references = pair or arms[:1]
    others = [arm for arm in arms if arm not in references]
    count = len(others) * len(references)
    for arm in others:
        parts = [compare_arms(loss, arm, reference, 0.05 / count) for reference in references]
        if not too_short:
            parts = [(found, f"{shown} ({found})" if found else shown) for found, shown in parts]
        sentences.append(f"{'; '.join(shown for _, shown in parts)}.")
    if count > 1:
        sentences[-1] += f" The intervals of these {count} differences hold together at 95 %."
    return sentences


def sweep_sentences(
    loss: xr.DataArray,
    what: str,
    at: str,
    undecided: Sequence[Mapping[str, float]] = (),
    halves: tuple[xr.DataArray, xr.DataArray] | None = None,
) -> list[str]:
    """Say how the arms differ over a sweep, and each at its own best point.

    Args:
      loss: (arm, swept names, seed), nats; NaN of members that diverged.
      what: name of the loss.
      at: step and number of seeds.
      undecided: sweep points that decide nothing, which are not judged.
      halves: the loss on either half of the data: an arm's best point is chosen on the first and
        reported on the second, so that the choice does not flatter itself.
    """
    names = swept_names(loss)
    points = list(sweep_points(loss, names))
    lost = {in_words(values): counts for values, own in points if (counts := diverged_counts(own))}
    sentences = []
    if lost:
        shown = "; ".join(f"{point}: {counts}" for point, counts in [*lost.items()][:MOST_NAMED])
        more = "; ..." * (len(lost) > MOST_NAMED)
        sentences.append(
            f"Seeds diverged at {len(lost)} of {len(points)} sweep points, where their arms are not"
            f" judged ({shown}{more})."
        )
    pair = tied_and_untied(loss)
    judged = [
        own
        for values, own in points
        if pair and own.sel(arm=[*pair]).notnull().all() and values not in undecided
    ]
    if pair and judged:
        error = 0.05 / len(judged)
        verdicts = Counter(verdict(gap_of(own, *pair), error).split(" ")[0] for own in judged)
        counted = {
            "is higher": verdicts["higher"],
            "is lower": verdicts["lower"],
            f"differs by at most {NEGLIGIBLE} nats": verdicts["no"],
            "is inconclusive": verdicts[INCONCLUSIVE],
        }
        shown = ", ".join(f"{outcome} at {count}" for outcome, count in counted.items() if count)
        sentences.append(
            f"At {len(judged)} sweep point{'s' * (len(judged) > 1)}, the {what} of {pair[0]}"
            f" compared with {pair[1]} {shown} ({at}; intervals hold together at 95 %)."
        )
    if not DATA_FIELDS & {name.rpartition(".")[2] for name in names}:
        how = "chosen by these seeds"
        if halves:
            how = "chosen on one half of the data, reported on the other"
        title = f"Each arm at its own best point, {how} ({what}, nats)"
        sentences += _best_points(*(halves or (loss, loss)), names, title)
    return sentences


def _best_points(
    choose: xr.DataArray, loss: xr.DataArray, names: Sequence[str], title: str
) -> list[str]:
    """Compare the arms, each at the point of its lowest mean of `choose`; warn of edges."""
    best, shown, edges = {}, [], []
    for arm in map(str, loss["arm"].values):
        # NaN, so not the best, where a seed diverged
        mean = choose.sel(arm=arm).mean("seed", skipna=False)
        if mean.isnull().all():
            continue
        lowest = mean.isel(mean.argmin(...))
        at = {name: float(lowest[name]) for name in names}
        best[arm] = loss.sel(at | {"arm": arm}).drop_vars(names)
        shown.append(f"{arm} {format_mean(best[arm].values)} at {in_words(at)}")
        ends = {name: (loss[name].min(), loss[name].max()) for name in names}
        at_edge = [name for name in names if loss.sizes[name] > 1 and at[name] in ends[name]]
        edges += [f"{arm} ({', '.join(at_edge)})"] * bool(at_edge)
    if not best:
        return ["Seeds of every arm diverged at every sweep point."]
    reference = reference_arm(loss)
    if reference in best:
        together = xr.concat(best.values(), "arm")
        others = [arm for arm in best if arm != reference]
        shown += [compare_arms(together, arm, reference)[1] for arm in others]
    sentences = [f"{title}: {'; '.join(shown)}."]
    if edges:
        sentences.append(
            f"The best point is at the edge of the sweep for {', '.join(edges)}: a wider sweep may"
            " find a better one."
        )
    return sentences


def in_words(values: Mapping[str, float]) -> str:
    """Return a sweep point in words: "width = 4, eps = 1e-08"."""
    return ", ".join(f"{name} = {number_label(value)}" for name, value in values.items())


def swept_in_words(results: xr.Dataset) -> str:
    """Return the swept values for the scope of a run: "width = 4, 8; "; "" without a sweep."""
    shown = ""
    for name in swept(results):
        values = [number_label(float(value)) for value in results[name].values]
        listed = ", ".join(values)
        if len(values) > MOST_NAMED + 1:
            listed = f"{values[0]} to {values[-1]} ({len(values)} values)"
        shown += f"{name} = {listed}; "
    return shown


def model_in_words(description: str, swept: Iterable[str] = ()) -> str:
    """Return a model's `repr` in words, as "a Mixer of 1 layer and width 4"; no swept sizes."""
    found = re.match(r"(\w+)\(layers=(\d+).*?width=(\d+)", description)
    if not found:
        return description
    sizes = {"layers": f"{found[2]} layer{'s' * (found[2] != '1')}", "width": f"width {found[3]}"}
    shown = " and ".join(words for name, words in sizes.items() if name not in swept)
    return f"{'an' if found[1] == 'LSTM' else 'a'} {found[1]}{f' of {shown}' * bool(shown)}"
