"""Conclude a run on EXor: what tying costs, and which pairs are held apart. Imports no jax."""

import numpy as np
import xarray as xr

from jaxtie.exor.analysis import EXCESS, distance, is_stuck, live_pairs, outcomes
from jaxtie.exor.claims import FORCE, measured
from jaxtie.results.conclusion import (
    FEW_SEEDS,
    Conclusion,
    gap_of,
    gap_sentence,
    model_in_words,
    reference_arm,
    sweep_sentence,
    tied_and_untied,
)
from jaxtie.results.statistics import median_interval
from jaxtie.results.tables import (
    Table,
    arms_of,
    at_end,
    interval,
    last_step,
    number,
    sweep_points,
    swept,
    tables_of,
)


def exor_conclusion(results: xr.Dataset) -> Conclusion:
    """Return the table, the sentences and the scope of a run."""
    seeds, step, excess = results.sizes["seed"], last_step(results), outcomes(results)[EXCESS]
    excess.attrs["long_name"] = EXCESS
    at = f"step {step:,}, {seeds:,} seeds"
    model = model_in_words(results.attrs["model"])
    scope = (
        f"Scope: {model} on {results.attrs['process']}. Other models, recipes and texts may differ."
    )
    too_short = f"{seeds} seeds are too few" if seeds < FEW_SEEDS else ""
    if swept(results):
        sentences = [sweep_sentence(excess, "exact training loss", at), scope]
        return Conclusion(excess, _sweep_table(results, excess, at), sentences, too_short)
    stuck = is_stuck(results)
    if float(stuck.mean("seed").min()) >= 0.5:
        too_short = "most seeds of every arm are still on the first plateau"
    sentences = [gap_sentence(excess, "exact training loss", at, too_short)]
    if pair := tied_and_untied(results):
        sentences.append(_stuck_sentence(excess, stuck, *pair))
        sentences.append(_distance_sentence(results, pair))
    return Conclusion(
        excess, _arm_table(results, excess, stuck, at), [*sentences, scope], too_short
    )


def _arm_table(results: xr.Dataset, excess: xr.DataArray, stuck: xr.DataArray, at: str) -> Table:
    """Return loss, stuck seeds, distances and the paired difference of every arm."""
    reference, pairs, rows = reference_arm(results), live_pairs(results), []
    ends = {
        (pair, table): at_end(distance(results, table, pair), results).median("seed")
        for pair in pairs
        for table in ("input", "output")
    }
    for arm in arms_of(results):
        tables, loss = tables_of(arm).values(), excess.sel(arm=arm.name)
        distances = [
            " / ".join(number(float(ends[pair, table].sel(arm=arm.name))) for table in tables)
            for pair in pairs
        ]
        gap = "" if arm.name == reference else interval(gap_of(excess, arm.name, reference))
        count = f"{int(stuck.sel(arm=arm.name).sum()):,}"
        rows.append((arm.name, interval(loss.values), gap, count, *distances))
    header = ("arm", EXCESS, f"− {reference}", "stuck", *(f"distance {pair}" for pair in pairs))
    note = "Mean ± 95 %. Stuck: seeds on the first plateau. Distances: median, input / output."
    return Table(f"{results.attrs['experiment']}: {at}", header, rows, note)


def _sweep_table(results: xr.Dataset, excess: xr.DataArray, at: str) -> Table:
    """Return the loss of every arm, and its difference, at every sweep point."""
    names, reference = swept(results), reference_arm(results)
    arms = results["arm"].values.tolist()
    others = [arm for arm in arms if arm != reference]
    rows = []
    for values, _ in sweep_points(results, names):
        loss = excess.sel(values)
        losses = [interval(loss.sel(arm=arm).values) for arm in arms]
        gaps = [interval(gap_of(loss, arm, reference)) for arm in others]
        rows.append((*(f"{value:g}" for value in values.values()), *losses, *gaps))
    header = (*names, *arms, *(f"{arm} − {reference}" for arm in others))
    return Table(f"{results.attrs['experiment']}: {EXCESS}, {at}", header, rows, "Mean ± 95 %.")


def _stuck_sentence(excess: xr.DataArray, stuck: xr.DataArray, tied: str, untied: str) -> str:
    """Count the seeds on the first plateau; give the gap of pairs that have left it."""
    counts = {arm: f"{int(stuck.sel(arm=arm).sum()):,}" for arm in (tied, untied)}
    gap = gap_of(excess, tied, untied)[(stuck.sel(arm=[tied, untied]) == 0).all("arm").values]
    rest = f"; where neither arm is, the difference is {interval(gap)}" if len(gap) > 1 else ""
    return (
        f"Of {excess.sizes['seed']:,} seeds, {counts[tied]} tied and {counts[untied]} untied ones"
        f" are stuck on the first plateau{rest}."
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
