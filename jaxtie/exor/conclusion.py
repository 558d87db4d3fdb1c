"""Conclude a run on EXor: what tying costs, and which pairs are held apart. Imports no jax."""

import itertools
import re

import numpy as np
import xarray as xr

from jaxtie.config import names_of
from jaxtie.exor.analysis import EXCESS, distance, excess_loss, is_stuck, live_pairs
from jaxtie.exor.claims import FORCE, measured
from jaxtie.results.conclusion import (
    FEW_SEEDS,
    MOST_NAMED,
    Conclusion,
    arms_table,
    gap_of,
    gap_sentences,
    in_words,
    model_in_words,
    sweep_sentences,
    sweep_table,
    swept_in_words,
)
from jaxtie.results.statistics import median_interval
from jaxtie.results.tables import (
    Column,
    Table,
    arms_of,
    at_end,
    embeddings_of,
    format_mean,
    format_number,
    last_step,
    sweep_points,
    swept,
    tables_of,
    tied_and_untied,
)

STUCK_NOTE = "Stuck: seeds on the first plateau."
# Swept field -> its part of the description of the process.
DESCRIBED = {
    "p_X": r"p\(X\) = \S+, p\(Y\) = [\d.]+,? ?",
    "p_A": r"(, )?p\(A\) = \S+, p\(B\) = [\d.]+",
    "length": r", \d+ bits",
}


def exor_conclusion(results: xr.Dataset) -> Conclusion:
    """Return the table, the sentences and the scope of a run."""
    seeds, step, excess = results.sizes["seed"], last_step(results), excess_loss(results)
    at, scope = f"step {step:,}, {seeds:,} seed{'s' * (seeds != 1)}", _scope(results)
    too_short = (
        f"{seeds} seed{'s are' if seeds > 1 else ' is'} too few" if seeds < FEW_SEEDS else ""
    )
    stuck = is_stuck(results)
    share = stuck.mean("seed").min("arm")  # NaN where all seeds diverged
    is_plateau = share > 0.5
    if is_plateau.any() and not (share <= 0.5).any():
        too_short = "most seeds of every arm are still on the first plateau"
    if names := swept(results):
        plateaus = [values for values, own in sweep_points(is_plateau, names) if own]
        sentences = []
        if plateaus and not too_short:
            shown = "; ".join(map(in_words, plateaus[:MOST_NAMED]))
            sentences.append(
                f"At {len(plateaus)} of {is_plateau.size} sweep points most seeds of every arm are"
                f" still on the first plateau, so they are not judged: {shown}"
                f"{'; ...' * (len(plateaus) > MOST_NAMED)}."
            )
        sentences += sweep_sentences(excess, "exact training loss", at, plateaus)
        arms = names_of(arms_of(results))
        counts = [
            " / ".join(_counts(own, arm) for arm in arms) for _, own in sweep_points(stuck, names)
        ]
        title = f"{results.attrs['experiment']}: {EXCESS}, {at}"
        column = Column(f"stuck, {' / '.join(arms)}", counts)
        table = sweep_table(excess, title, [column], STUCK_NOTE)
        return Conclusion(excess, table, [*sentences, scope], too_short)
    sentences = gap_sentences(excess, "exact training loss", at, too_short)
    pair = tied_and_untied(results)
    if pair and bool(excess.sel(arm=[*pair]).notnull().any("seed").all()):
        sentences.append(_stuck_sentence(excess, stuck, *pair))
        sentences += [] if too_short else [_distance_sentence(results, pair)]
    return Conclusion(
        excess, _arm_table(results, excess, stuck, at), [*sentences, scope], too_short
    )


def _scope(results: xr.Dataset) -> str:
    """Say about which model and process a run is; swept fields with all their values."""
    names = [name.rpartition(".")[2] for name in swept(results)]
    process = str(results.attrs["process"])
    for name in {*names} & {*DESCRIBED}:
        process = re.sub(DESCRIBED[name], "", process)
    model = model_in_words(results.attrs["model"], names)
    return (
        f"Scope: {swept_in_words(results)}{model} on {process.strip('; ')}. Other models, recipes"
        " and texts may differ."
    )


def _arm_table(results: xr.Dataset, excess: xr.DataArray, stuck: xr.DataArray, at: str) -> Table:
    """Return loss, stuck seeds, distances and the paired difference of every arm."""
    arms = arms_of(results)
    columns = [Column("stuck", [_counts(stuck, arm.name) for arm in arms])]
    for pair in live_pairs(results):
        ends = {
            table: at_end(distance(results, table, pair), results).median("seed")
            for table in ("input", "output")
        }
        distances = [
            [float(ends[table].sel(arm=arm.name)) for table in tables_of(arm).values()]
            for arm in arms
        ]
        columns.append(
            Column(f"distance {pair}", distances, lambda each: " / ".join(map(format_number, each)))
        )
    note = f"Mean ± 95 %. {STUCK_NOTE} Distances: median, input / output."
    return arms_table(excess, f"{results.attrs['experiment']}: {at}", columns, note)


def _counts(stuck: xr.DataArray, arm: str) -> str:
    """Count the stuck seeds of an arm, and those that diverged if there are any."""
    own = stuck.sel(arm=arm)
    diverged = int(own.isnull().sum())
    return f"{int(own.sum()):,}" + f" ({diverged:,} diverged)" * bool(diverged)


def _stuck_sentence(excess: xr.DataArray, stuck: xr.DataArray, *arms: str) -> str:
    """Count the seeds on the first plateau; give the gap of pairs that have left it."""
    own = [stuck.sel(arm=arm) for arm in arms]
    tied, untied = (f"{int(each.sum()):,} of {int(each.count()):,}" for each in own)
    gap = gap_of(excess, *arms)[np.logical_and(*(each.values == 0 for each in own))]
    rest = ""
    if len(gap) > 1:
        rest = (
            f"; over the {len(gap):,} seeds stuck in neither (selected by outcome),"
            f" {' − '.join(arms)} = {format_mean(gap)}"
        )
    return f"{tied} tied and {untied} untied seeds are stuck on the first plateau{rest}."


def _distance_sentence(results: xr.Dataset, arms: tuple[str, str]) -> str:
    """Say which pairs are held apart or drawn together, relative to weight decay."""
    parts = []
    for (arm, label, table), pair in itertools.product(embeddings_of(results), live_pairs(results)):
        if arm in arms:
            logs = measured(results, "decay ratio", pair, table).sel(arm=arm).values
            ratio = float(np.exp(median_interval(logs)[1]))
            if ratio > FORCE or ratio < 1 / FORCE:
                verb = "held apart" if ratio > FORCE else "drawn together"
                parts.append(f"{label} {pair} {ratio:.2g} × ({verb})")
    found = ", ".join(parts) or "no pair is held apart or drawn together"
    return f"Final distances, as multiples of what weight decay alone leaves: {found}."
