"""Tables and figures of the experiments with softmax over targets only, by process."""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator
from models import Runs, final_loss, process_cells

from jaxtie.exor import analysis
from jaxtie.results.plots import COLOURS, STYLE, subplots
from jaxtie.results.tables import (
    Table,
    arms_of,
    at_end,
    format_estimate,
    format_mean,
    format_median,
    format_number,
    last_step,
    tables_of,
)

NO_DATA: Final = "no data yet"


def stuck_share(results: xr.Dataset, arm: str) -> tuple[int, tuple[float, float, float]]:
    """Return the number of finite seeds of an arm and the share of them that are stuck.

    The share is given between the ends of its exact 95 % interval; NaN if no seed is finite.
    """
    stuck_S = analysis.is_stuck(results).sel(arm=arm).values
    stuck_S = stuck_S[np.isfinite(stuck_S)] == 1
    if not len(stuck_S):
        return 0, (math.nan, math.nan, math.nan)
    low, high = share_interval(stuck_S)
    return len(stuck_S), (low, float(stuck_S.mean()), high)


# These seeds suggested the claims of the experiments, so their tables and figures omit them.
EXPLORATORY_SEEDS = range(64, 128)
FORMS = {"published": "", "targets only": "+targets-only"}  # suffix of the arms


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


def unseen(results: xr.Dataset) -> xr.Dataset:
    """Drop the exploratory seeds."""
    return results.sel(seed=~results["seed"].isin([*EXPLORATORY_SEEDS]))


MASK_ARMS = ("tied+untie-rows=mask", "untied+tie-rows=mask")
FREED = "freed: (tied − tied+untie-rows=mask) ÷ (tied − tied+targets-only)"
ADDED = "added: (untied+tie-rows=mask − untied) ÷ (tied − untied)"


def targets_only_gap_table(runs: Runs) -> Table:
    """Show the tying gap of every process, with the softmax over all symbols and over targets."""
    rows = []
    processes, forms = PROCESS_RUNS.items(), FORMS.items()
    for (process, place), (form, head) in itertools.product(processes, forms):
        name = place.targets_only if head else place.published
        for own in (head, f"{head}+bias"):
            arms = [f"{start}{own}" for start in ("tied", "untied")]
            label = f"{form}{', bias' * (own != head)}"
            if name in runs and {*arms} <= {*runs[name]["arm"].values}:
                rows.append((process, label, *process_cells(unseen(runs[name]), arms)))
            elif own == head:
                rows.append((process, label, NO_DATA, *[""] * 5))
    header = ("process", "form", "step", "seeds", "stuck, tied", "stuck, untied", "gap, nat")
    note = (
        "Gap: tied − untied, each seed compared with itself, mean ± 95 % (Student's t), without"
        " seeds 64 to 127, which suggested the claims. The intervals are not corrected for"
        " multiple comparisons. The last column has the seeds that are stuck in neither arm at that"
        " step: they are selected by their outcome and differ between rows."
    )
    return Table("Tying gap by process", (*header, "gap where neither is stuck, nat"), rows, note)


def stuck_table(runs: Runs, names: Sequence[str]) -> Table:
    """Show for each arm the share of stuck seeds, the final loss, and the angle of E and D."""
    rows = []
    for name in names:
        if name not in runs:
            rows.append((name, NO_DATA, *[""] * 6))
            continue
        results = unseen(runs[name])
        for arm in arms_of(results):
            count, share = stuck_share(results, arm.name)
            loss = format_mean(final_loss(results).sel(arm=arm.name).values)
            cosines = ["–", "–"]
            if "label_cosine" in results:
                cosine = at_end(results["label_cosine"], results).sel(arm=arm.name)
                for i, table in enumerate(tables_of(arm).values()):
                    cosines[i] = format_median(cosine.sel(table=table).values)
            cells = (f"{last_step(results):,}", f"{count:,}", format_estimate(*share), loss)
            rows.append((name, arm.name, *cells, *cosines))
    cosines = ["cosine of E and D, input", "cosine of E and D, output"]
    header = ("experiment", "arm", "step", "seeds", "stuck", "loss, nat", *cosines)
    note = (
        "Without seeds 64 to 127, which suggested the claims. Stuck: exact training loss above best"
        " + ln 2 − 0.05, share with its exact 95 % interval. Loss: exact, of the training split,"
        " mean ± 95 % (Student's t). Cosine of the rows of E and D: median [95 %, by ranks]."
    )
    return Table("Seeds stuck on the first plateau", header, rows, note)


def same_seeds_table(runs: Runs) -> Table:
    """Show stuck shares on the seeds that all arms have, and which part of them the mask makes."""
    columns: dict[str, dict[str, str]] = {}
    for process, place in PROCESS_RUNS.items():
        if not place.rows or not {*place} <= runs.keys():
            continue
        all_arms = [analysis.is_stuck(runs[name]) for name in dict.fromkeys(place)]
        stuck = xr.concat(all_arms, "arm", join="inner")  # of the seeds that all have
        tied, untied, without, own_mask, shared_mask = (
            stuck.sel(arm=arm).values for arm in ("tied", "untied", "tied+targets-only", *MASK_ARMS)
        )
        arms = [arm.name for arm in arms_of(stuck) if not arm.head.bias]
        columns[f"{process}, {stuck.sizes['seed']:,} seeds"] = {
            **{arm: format_number(float(stuck.sel(arm=arm).mean())) for arm in arms},
            FREED: format_estimate(*ratio_of_means(tied - own_mask, tied - without)),
            ADDED: format_estimate(*ratio_of_means(shared_mask - untied, tied - untied)),
        }
    rows = [tuple(row) for row in pd.DataFrame(columns).itertuples(name=None)]
    note = (
        "Share of seeds on the first plateau. In brackets 95 %: percentiles of a bootstrap over"
        " seeds, each with all its arms. Freed: by an output row of its own for the mask, relative"
        " to taking all never-targets out of the softmax. Added: by tying only the mask's row,"
        " relative to tying all rows."
    )
    return Table("Stuck shares on the same seeds", ("arm", *columns), rows, note)


def share_interval(is_S: np.ndarray) -> tuple[float, float]:
    """Return the exact 95 % interval (Clopper and Pearson) of a share; bool (S,), S > 0."""
    from scipy.stats import binomtest  # heavy

    low, high = binomtest(int(is_S.sum()), len(is_S)).proportion_ci(0.95, method="exact")
    return float(low), float(high)


def ratio_of_means(top_S: np.ndarray, bottom_S: np.ndarray) -> tuple[float, float, float]:
    """Return the ratio of two means over the same seeds between the ends of its 95 % interval.

    Percentiles of a bootstrap over seeds, each with both of its values.
    """
    from scipy.stats import bootstrap  # heavy

    def ratio(top_S: np.ndarray, bottom_S: np.ndarray, axis: int = -1) -> np.ndarray:
        return top_S.mean(axis) / bottom_S.mean(axis)

    both = (top_S, bottom_S)
    found = bootstrap(both, ratio, paired=True, n_resamples=20_000, method="percentile", rng=0)
    low, high = map(float, found.confidence_interval)
    return low, float(ratio(*both)), high


ROW_ARMS = [
    f"{start}={rows}"
    for start in ("tied+untie-rows", "untied+tie-rows")
    for rows in ("mask", "labels", "never-targets")
]
LINES = dict(zip(FORMS.values(), ("-", "--"), strict=True))
COLOUR = dict(zip(("tied", "untied"), COLOURS, strict=False))


def draw_stuck_over_steps(runs: Runs) -> Figure:
    """Draw the share of stuck seeds over steps with either softmax, a panel per process."""
    figure, grid = subplots(3, 2, (5.8, 8.0), sharey=True)
    *panels, legend = grid.flat
    legend.set_axis_off()
    for axes, (process, place) in zip(panels, PROCESS_RUNS.items(), strict=True):
        for i, (form, head) in enumerate(FORMS.items()):
            name = place.targets_only if head else place.published
            if name not in runs:
                axes.text(3_000, 0.1 * i, f"{form}: {NO_DATA}", color="grey", size=8)
                continue
            for start, colour in COLOUR.items():
                own = unseen(runs[name]).sel(arm=[f"{start}{head}"])
                shares = analysis.stuck_over_steps(own).mean("seed").isel(arm=0)
                axes.plot(shares["eval_step"], shares, color=colour, linestyle=LINES[head])
        axes.set(title=process, xlabel="step", ylabel="share of seeds stuck", ylim=(-0.02, 1.02))
        axes.set_xlim(0, 150_000)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    for form, head in FORMS.items():
        for start, colour in COLOUR.items():
            legend.plot([], [], color=colour, linestyle=LINES[head], label=f"{start}, {form}")
    legend.legend(loc="center")
    title = (
        "With targets only in the softmax, few tied seeds stay stuck.\n"
        "Seeds 64 to 127 suggested these claims and are left out."
    )
    figure.suptitle(title, parse_math=False)
    return figure


def draw_final_shares(runs: Runs) -> Figure:
    """Draw the final share of stuck seeds of all arms, for processes with partly tied rows."""
    wanted = {process: place for process, place in PROCESS_RUNS.items() if place.rows}
    figure, grid = subplots(len(wanted), 1, (5.8, 3.8 * len(wanted)), sharex=True)
    for axes, (process, place) in zip(grid[:, 0], wanted.items(), strict=True):
        places = {
            **dict.fromkeys(COLOUR, place.published),
            **dict.fromkeys((f"{start}+targets-only" for start in COLOUR), place.targets_only),
            **dict.fromkeys(ROW_ARMS, place.rows),
        }
        order = sorted(places, key=lambda arm: arm.partition("+")[0] != "tied")
        known = {name: unseen(runs[name]) for name in {*places.values()} & runs.keys()}
        draw_share_of_each(axes, [(arm, arm, known.get(places[arm])) for arm in order])
        xlabel = "share stuck, exact 95 % interval"
        axes.set(title=f"{process}, at the end", xlabel=xlabel, xlim=(-0.02, 0.75))
    return figure


def draw_share_of_each(axes: Axes, rows: Sequence[tuple[str, str, xr.Dataset | None]]) -> None:
    """Draw the final share of stuck seeds with its exact interval: of a label, arm and results."""
    for y, (_, arm, results) in enumerate(rows):
        if results is None:
            axes.text(0, y, NO_DATA, color="grey", va="center", size=8)
            continue
        count, (low, share, high) = stuck_share(results, arm)
        colour, ends = COLOUR[arm.partition("+")[0]], [[share - low], [high - share]]
        axes.errorbar(share, y, xerr=ends, color=colour, marker="o", capsize=2)
        text = f"{share:.3f}, {count:,} seeds"
        axes.text(np.nan_to_num(high) + 0.01, y, text, va="center", size=8)
    axes.set(yticks=range(len(rows)), yticklabels=[label for label, *_ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)


FIGURES = {"never_targets.png": draw_stuck_over_steps, "never_targets_arms.png": draw_final_shares}


def draw_for_document(draw: Callable[[], Figure], path: Path) -> Path:
    """Write a figure as one PNG, the same bytes each time; return its path."""
    with matplotlib.rc_context(STYLE):
        draw().savefig(path, metadata={"Software": None})
    return path


def draw_targets_only(runs: Runs, folder: Path) -> list[Path]:
    """Draw both figures, if there are data of a run with softmax over targets only."""
    if not any(place.targets_only in runs for place in PROCESS_RUNS.values()):
        return []
    return [draw_for_document(partial(draw, runs), folder / name) for name, draw in FIGURES.items()]
