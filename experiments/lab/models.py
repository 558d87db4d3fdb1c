"""Tables of several runs on EXor: tying gaps by model, and the effect of a bias."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from jaxtie.exor import analysis
from jaxtie.exor.tables import ADJUSTED, ADJUSTED_NOTE, factor_text, log_ratios
from jaxtie.results.conclusion import model_in_words
from jaxtie.results.tables import (
    Table,
    arms_of,
    at_end,
    format_mean,
    format_number,
    last_step,
    tables_of,
)

Runs = Mapping[str, xr.Dataset]  # committed results by the name of their experiment

Weights = dict[str, float]  # arm -> weight in a sum of final losses
BODIES_PAIRS = ("X-Y", "A-B")
GAP: Weights = {"tied": 1.0, "untied": -1.0}
GAP_WITH_BIAS: Weights = {"tied+bias": 1.0, "untied+bias": -1.0}
GAPS: dict[str, Weights] = {
    "tying gap": GAP,
    "tying gap with a bias": GAP_WITH_BIAS,
    "reduction by the bias": {**GAP, "tied+bias": -1.0, "untied+bias": 1.0},
}


def bodies_table(runs: Runs, names: Sequence[str]) -> Table:
    """Show losses and decay-adjusted distances of other models."""
    rows = []
    chosen = [(name, arm) for name in names for arm in arms_of(runs[name])]
    for experiment, arm in chosen:
        results = runs[experiment]
        loss_S = final_loss(results).sel(arm=arm.name).values
        count = int(analysis.has_reached_best(results).sel(arm=arm.name).sum())
        left = f"{float(at_end(results['decay_factor'], results)):.3g}"
        reached = f"{count} of {len(loss_S)}"
        cells = (f"{last_step(results):,}", format_mean(loss_S), reached, left)
        for label, table in tables_of(arm).items():
            logs = [
                log_ratios(results, "decay ratio", arm.name, pair, table) for pair in BODIES_PAIRS
            ]
            rows.append((experiment, label, *cells, *map(factor_text, (*logs, logs[0] - logs[1]))))
            cells = ("",) * 4
    reached = f"seeds within {analysis.SOLVED} nat of the best"
    columns = [f"{pair}, {ADJUSTED}" for pair in BODIES_PAIRS]
    columns = ["decay factor", *columns, " : ".join(BODIES_PAIRS)]
    header = ("experiment", "embedding", "step", "loss, nat", reached, *columns)
    note = (
        f"Losses: exact, of the training split, mean ± 95 % (Student's t). {ADJUSTED_NOTE} Median"
        " [95 %, by ranks]. Last column: ratio of the two."
    )
    return Table("Other models", header, rows, note)


def final_loss(results: xr.Dataset) -> xr.DataArray:
    """Return the exact final training loss, nat, (arm, seed)."""
    return at_end(results["train_loss"], results)


def _gap_cells(losses: xr.DataArray, columns: Mapping[str, Weights]) -> list[str]:
    """Format weighted sums of losses over arms, each seed compared with itself."""
    sums: Any = (
        sum(weight * losses.sel(arm=arm).values for arm, weight in weights.items())
        for weights in columns.values()
    )
    return [f"{losses.sizes['seed']:,}", *map(format_mean, sums)]


def gap_table(runs: Runs, names: Sequence[str]) -> Table:
    """Show the tying gap without and with an output bias, and by how much the bias reduces it."""
    columns = {arm: {arm: 1.0} for arm in (*GAP, *GAP_WITH_BIAS)} | GAPS
    rows = []
    for name in names:
        best = format_number(float(runs[name]["best_loss"].sel(split="train")))
        seeds, *cells = _gap_cells(final_loss(runs[name]), columns)
        rows.append((name, seeds, best, *cells))
    title = "Final training loss and tying gap, nat: mean over seeds ± 95 %"
    return Table(title, ("experiment", "seeds", "best", *columns), rows)


def count_stuck(stuck_S: np.ndarray) -> str:
    return f"{np.nansum(stuck_S):,.0f}"


def models_table(runs: Runs, names: Sequence[str]) -> Table:
    """Show the tying gap of every model, and how many of its seeds are stuck."""
    rows = []
    for name in names:
        model, _, width = model_in_words(runs[name].attrs["model"]).rpartition(" and width ")
        cells = process_cells(runs[name], ("tied", "untied"), count_stuck)
        rows.append((name, model, width, *cells))
    header = ("experiment", "model", "width", "step", "seeds", "stuck, tied", "stuck, untied")
    gaps = ("gap, nat", "gap where neither is stuck, nat")
    note = (
        "Exact training loss, tied − untied at equal width, each seed compared with itself, mean"
        " ± 95 % (Student's t), not corrected for multiple comparisons. The last column has the"
        " seeds that are stuck in neither arm: they are selected by their outcome. output-bias has"
        " the model and the seeds of transformer-small, and more seeds."
    )
    return Table("Tying gap by model, main process", (*header, *gaps), rows, note)


def process_cells(
    results: xr.Dataset,
    arms: Sequence[str],
    shown: Callable[[np.ndarray], str] = lambda stuck_S: f"{np.nanmean(stuck_S):.3f}",
) -> tuple[str, ...]:
    losses = (final_loss(results).sel(arm=arm).values for arm in arms)
    stuck_AxS = analysis.is_stuck(results).sel(arm=[*arms]).transpose("arm", "seed").values
    counts = f"{last_step(results):,}", f"{results.sizes['seed']:,}"
    return *counts, *map(shown, stuck_AxS), *gap_cells(*losses, stuck_AxS)


def gap_cells(first_S: np.ndarray, second_S: np.ndarray, stuck_2xS: np.ndarray) -> tuple[str, str]:
    """Format the paired difference of losses, over all seeds and over those stuck in neither."""
    gap_S, off_S = first_S - second_S, (stuck_2xS == 0).all(axis=0)
    off = f"{format_mean(gap_S[off_S])} ({int(off_S.sum()):,} seeds)" if off_S.any() else "–"
    return format_mean(gap_S), off
