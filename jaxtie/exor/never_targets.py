"""Symbols that are never a target, in the softmax or not: how many seeds are stuck, and what tying
costs off the plateau.

Tables and figures over several condensed runs; where one has no data yet, they say so. Imports no
jax.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from jaxtie.config import Arm
from jaxtie.exor.committed import Runs
from jaxtie.exor.plateau import is_stuck, stuck_shares
from jaxtie.results.plots import COLOURS, draw_for_document, subplots
from jaxtie.results.statistics import share_interval
from jaxtie.results.tables import Table, arms_of, at_end, interval, last_step, median

NO_DATA = "no data yet"
# Exploratory: these seeds gave the idea, so they are left out everywhere here.
SEEDS_SEEN = range(64, 128)


class ProcessRuns(NamedTuple):
    """Names of the experiments that hold the arms of a process."""

    published: str
    targets_only: str
    rows: str = ""


PROCESS_RUNS = {
    "main": ProcessRuns("output-bias", "never-targets", "never-targets-rows"),
    "main with p(X) = 0.5": ProcessRuns(
        "never-targets-half", "never-targets-half", "never-targets-half-rows"
    ),
    "ndh": ProcessRuns("output-bias-ndh", "never-targets-ndh"),
    "ydh": ProcessRuns("output-bias-ydh", "never-targets-ydh"),
    "control": ProcessRuns("output-bias-control", "never-targets-control"),
}
FORMS = {"published": "", "targets only": "+targets-only"}
ROW_ARMS = [
    f"{start}={rows}"
    for start in ("tied+untie-rows", "untied+tie-rows")
    for rows in ("mask", "labels", "never-targets")
]
LINES = dict(zip(FORMS.values(), ("-", "--"), strict=True))
COLOUR = dict(zip(("tied", "untied"), COLOURS, strict=False))


def unseen(results: xr.Dataset) -> xr.Dataset:
    """Drop the exploratory seeds."""
    return results.sel(seed=~results["seed"].isin([*SEEDS_SEEN]))


def stuck_table(runs: Runs, names: Sequence[str]) -> Table:
    """Of every arm of these experiments: seeds stuck at the end, its loss, the angle of E and D."""
    rows = []
    for name in names:
        if name not in runs:
            rows.append((name, NO_DATA, *[""] * 6))
            continue
        results = unseen(runs[name])
        step, stuck = last_step(results), is_stuck(results)
        losses = at_end(results["train_loss"], results)
        for arm in arms_of(results):
            own = {"arm": arm.name}
            cosines = [_label_cosine(results, arm, table, step) for table in ("input", "output")]
            share = _stuck_share(stuck.sel(own).values)
            rows.append(
                (name, arm.name, f"{step:,}", *share, interval(losses.sel(own).values), *cosines)
            )
    header = ("experiment", "arm", "step", "seeds", "stuck", "loss, nat")
    note = (
        "Without seeds 64 to 127. Stuck: exact training loss above best + ln 2 − 0.05, share with "
        "its exact 95 % interval. Loss: exact, of the training split, mean ± 95 % (Student's t). "
        "Cosine of the rows of E and D: median [95 %, by ranks]."
    )
    of_labels = ("cosine of E and D, input", "cosine of E and D, output")
    return Table("Seeds that know nothing of the parity", (*header, *of_labels), rows, note)


def _stuck_share(stuck_S: np.ndarray) -> tuple[str, str]:
    known_S = stuck_S[np.isfinite(stuck_S)] == 1
    if not len(known_S):
        return "0", "–"
    low, high = share_interval(known_S)
    return f"{len(known_S):,}", f"{known_S.mean():.3f} [{low:.3f}, {high:.3f}]"


def _label_cosine(results: xr.Dataset, arm: Arm, table: str, step: int) -> str:
    if "label_cosine" not in results or (table == "output" and arm.untied_from is None):
        return "–"
    return median(results["label_cosine"].sel(arm=arm.name, table=table, eval_step=step).values)


def gaps_table(runs: Runs) -> Table:
    """What tying costs in every process, published and with targets only, and off the plateau."""
    rows = []
    for process, place in PROCESS_RUNS.items():
        for form, head in FORMS.items():
            name = place.targets_only if head else place.published
            for own in (head, f"{head}+bias"):
                arms = [f"{start}{own}" for start in ("tied", "untied")]
                label = f"{form}{', bias' * (own != head)}"
                if name in runs and {*arms} <= {*runs[name]["arm"].values}:
                    rows.append((process, label, *_gap_cells(unseen(runs[name]), arms)))
                elif own == head:
                    rows.append((process, label, NO_DATA, *[""] * 5))
    header = ("process", "form", "step", "seeds", "stuck, tied", "stuck, untied", "gap, nat")
    note = (
        "Gap: tied − untied, each seed with itself, mean ± 95 % (Student's t), without seeds 64 to "
        "127; no interval is corrected for how many there are. The last column is of the seeds of "
        "which neither arm is stuck at that step: chosen by the outcome, other seeds in each row."
    )
    return Table("What tying costs", (*header, "gap where neither is stuck, nat"), rows, note)


def _gap_cells(results: xr.Dataset, arms: Sequence[str]) -> tuple[str, ...]:
    stuck = is_stuck(results).sel(arm=list(arms)).transpose("arm", "seed").values
    tied_S, untied_S = (
        at_end(results["train_loss"], results).sel(arm=list(arms)).transpose("arm", "seed").values
    )
    off_S = (stuck == 0).all(axis=0)
    shares = [f"{np.nanmean(each_S):.3f}" for each_S in stuck]
    gap_S = tied_S - untied_S
    off = f"{interval(gap_S[off_S])} ({int(off_S.sum()):,} seeds)" if off_S.any() else "–"
    return f"{last_step(results):,}", f"{len(gap_S):,}", *shares, interval(gap_S), off


def draw_stuck_over_steps(runs: Runs) -> Figure:
    """The share of seeds stuck over steps, published and targets only, a panel a process."""
    figure, grid = subplots(2, 3, (12.6, 6.8), sharey=True)
    for axes, (process, place) in zip(grid.flat, PROCESS_RUNS.items(), strict=False):
        for i, (form, head) in enumerate(FORMS.items()):
            name = place.targets_only if head else place.published
            if name in runs:
                _draw_shares(axes, unseen(runs[name]), head)
            else:
                axes.text(3_000, 0.1 * i, f"{form}: {NO_DATA}", color="grey", size=8)
        axes.set(title=process, xlabel="step", ylabel="share of seeds stuck", ylim=(-0.02, 1.02))
        axes.set_xlim(0, 150_000)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    legend = grid.flat[-1]
    legend.set_axis_off()
    for form, head in FORMS.items():
        for start, colour in COLOUR.items():
            legend.plot([], [], color=colour, linestyle=LINES[head], label=f"{start}, {form}")
    legend.legend(loc="center")
    title = "Seeds that know nothing of the parity, without seeds 64 to 127"
    figure.suptitle(title, parse_math=False)
    return figure


def _draw_shares(axes: Axes, results: xr.Dataset, head: str) -> None:
    for start, colour in COLOUR.items():
        shares = stuck_shares(results.sel(arm=[f"{start}{head}"])).isel(arm=0)
        axes.plot(shares["eval_step"], shares, color=colour, linestyle=LINES[head])


def draw_final_shares(runs: Runs) -> Figure:
    """The share of seeds stuck at the end, of all arms of the processes with rows."""
    wanted = {process: place for process, place in PROCESS_RUNS.items() if place.rows}
    figure, (row,) = subplots(1, len(wanted), (11.0, 4.4), sharey=True)
    for axes, (process, place) in zip(row, wanted.items(), strict=True):
        places = {
            **dict.fromkeys(("tied", "untied"), place.published),
            **dict.fromkeys(("tied+targets-only", "untied+targets-only"), place.targets_only),
            **dict.fromkeys(ROW_ARMS, place.rows),
        }
        order = sorted(places, key=lambda arm: arm.partition("+")[0] != "tied")
        for i, arm in enumerate(order):
            _draw_final(axes, i, arm, runs.get(places[arm]))
        axes.set(
            title=f"{process}, at the end",
            xlabel="share of seeds stuck, with its exact 95 % interval",
            xlim=(-0.02, 1.02),
            yticks=range(len(order)),
            yticklabels=order,
            ylim=(len(order) - 0.5, -0.5),
        )
    return figure


def _draw_final(axes: Axes, place: int, arm: str, results: xr.Dataset | None) -> None:
    if results is None:
        axes.text(0, place, NO_DATA, color="grey", va="center", size=8)
        return
    stuck_S = is_stuck(unseen(results)).sel(arm=arm).values
    known_S = stuck_S[np.isfinite(stuck_S)] == 1
    if not len(known_S):
        axes.text(0, place, "no seed is finite", color="grey", va="center", size=8)
        return
    share, ends = known_S.mean(), share_interval(known_S)
    colour = COLOUR[arm.partition("+")[0]]
    axes.errorbar(
        share,
        place,
        xerr=np.abs(np.array(ends) - share)[:, None],
        color=colour,
        marker="o",
        capsize=2,
    )
    axes.text(ends[1] + 0.01, place, f"{share:.3f}, {len(known_S):,} seeds", va="center", size=8)


FIGURES = {"never_targets.png": draw_stuck_over_steps, "never_targets_arms.png": draw_final_shares}


def draw_never_targets(runs: Runs, folder: Path) -> list[Path]:
    """Draw both figures from the data; none before any run with targets only is there."""
    if not any(place.targets_only in runs for place in PROCESS_RUNS.values()):
        return []
    return [draw_for_document(partial(draw, runs), folder / name) for name, draw in FIGURES.items()]
