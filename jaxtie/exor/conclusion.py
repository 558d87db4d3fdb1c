"""Conclude a run on EXor: what tying costs, and which pairs are held apart. Imports no jax."""

import re
from functools import partial

import numpy as np
import xarray as xr

from jaxtie.config import names_of, number_label
from jaxtie.exor.analysis import EXCESS, distance, is_stuck, live_pairs, outcomes
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
    swept_in_words,
)
from jaxtie.results.statistics import median_interval
from jaxtie.results.tables import (
    Table,
    arm_cells,
    arm_header,
    arms_of,
    at_end,
    interval,
    last_step,
    number,
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
    seeds, step, excess = results.sizes["seed"], last_step(results), outcomes(results)[EXCESS]
    excess.attrs["long_name"] = EXCESS
    at, scope = f"step {step:,}, {seeds:,} seeds", _scope(results)
    too_short = f"{seeds} seeds are too few" if seeds < FEW_SEEDS else ""
    stuck = is_stuck(results)
    share = stuck.mean("seed").min("arm")  # NaN where all seeds diverged
    is_plateau = share >= 0.5
    if is_plateau.any() and not (share < 0.5).any():
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
        table = _sweep_table(results, excess, stuck, at)
        return Conclusion(excess, table, [*sentences, scope], too_short)
    sentences = gap_sentences(excess, "exact training loss", at, too_short)
    pair = tied_and_untied(results)
    if pair and bool(excess.sel(arm=[*pair]).notnull().any("seed").all()):
        sentences.append(_stuck_sentence(excess, stuck, *pair))
        sentences.append(_distance_sentence(results, pair))
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
    pairs = live_pairs(results)
    tables = {arm.name: tables_of(arm).values() for arm in arms_of(results)}
    ends = {
        (pair, table): at_end(distance(results, table, pair), results).median("seed")
        for pair in pairs
        for table in ("input", "output")
    }

    def distances(pair: str, arm: str) -> str:
        return " / ".join(number(float(ends[pair, each].sel(arm=arm))) for each in tables[arm])

    columns = {
        "stuck": partial(_counts, stuck),
        **{f"distance {pair}": partial(distances, pair) for pair in pairs},
    }
    note = f"Mean ± 95 %. {STUCK_NOTE} Distances: median, input / output."
    return arms_table(excess, f"{results.attrs['experiment']}: {at}", columns, note)


def _sweep_table(results: xr.Dataset, excess: xr.DataArray, stuck: xr.DataArray, at: str) -> Table:
    """Return the loss of every arm, its difference and stuck seeds at every sweep point."""
    names, arms, rows = swept(results), names_of(arms_of(results)), []
    for values, loss in sweep_points(excess, names):
        counts = " / ".join(_counts(stuck.sel(values), arm) for arm in arms)
        rows.append((*map(number_label, values.values()), *arm_cells(loss), counts))
    header = (*names, *arm_header(results), f"stuck, {' / '.join(arms)}")
    note = f"Mean ± 95 %. {STUCK_NOTE}"
    return Table(f"{results.attrs['experiment']}: {EXCESS}, {at}", header, rows, note)


def _counts(stuck: xr.DataArray, arm: str) -> str:
    """Count the stuck seeds of an arm, and those that diverged if there are any."""
    own = stuck.sel(arm=arm)
    diverged = int(own.isnull().sum())
    return f"{int(own.sum()):,}" + f" ({diverged:,} diverged)" * bool(diverged)


def _stuck_sentence(excess: xr.DataArray, stuck: xr.DataArray, tied: str, untied: str) -> str:
    """Count the seeds on the first plateau; give the gap of pairs that have left it."""
    counts = {
        arm: f"{int(stuck.sel(arm=arm).sum()):,} of {int(stuck.sel(arm=arm).notnull().sum()):,}"
        for arm in (tied, untied)
    }
    gap = gap_of(excess, tied, untied)[(stuck.sel(arm=[tied, untied]) == 0).all("arm").values]
    rest = (
        f"; over the {len(gap):,} seeds stuck in neither (selected by outcome), {tied} − {untied} ="
        f" {interval(gap)}"
    )
    return (
        f"{counts[tied]} tied and {counts[untied]} untied seeds are stuck on the first"
        f" plateau{rest * (len(gap) > 1)}."
    )


def _distance_sentence(results: xr.Dataset, arms: tuple[str, str]) -> str:
    """Say which pairs are held apart or drawn together, relative to weight decay."""
    parts = []
    for arm in arms_of(results):
        if arm.name not in arms:
            continue
        for label, table in tables_of(arm).items():
            for pair in live_pairs(results):
                logs = measured(results, "decay ratio", pair, table).sel(arm=arm.name).values
                ratio = float(np.exp(median_interval(logs)[1]))
                if ratio > FORCE or ratio < 1 / FORCE:
                    verb = "held apart" if ratio > FORCE else "drawn together"
                    parts.append(f"{label} {pair} {ratio:.2g} × ({verb})")
    found = ", ".join(parts) or "no pair is held apart or drawn together"
    return f"Final distances, as multiples of what weight decay alone leaves: {found}."
