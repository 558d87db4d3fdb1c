"""Results of EXor -> tables. Imports no jax."""

import itertools
from collections.abc import Callable

import numpy as np
import xarray as xr

from jaxtie.config import names_of
from jaxtie.exor.comparison import correlation_table, sweep_table, untying_table
from jaxtie.exor.forces import forces_table
from jaxtie.exor.pairs import distance_rows, live_pairs, targets
from jaxtie.exor.plateau import SOLVED, escape_table, has_reached_best
from jaxtie.results.statistics import somers_d
from jaxtie.results.tables import (
    COURSE,
    Table,
    arms_of,
    course_steps,
    interval,
    last_step,
    median,
    number,
    quantiles,
    swept,
    tables_of,
)


def exor_tables(results: xr.Dataset) -> list[Table]:
    """All tables of a run; of a sweep and of untying only if there is something to say."""
    if swept(results):
        return [
            table
            for table in (sweep_table(results), forces_table(results), correlation_table(results))
            if table.rows
        ]
    untying = [table for table in [untying_table(results)] if table.rows]
    return [
        exor_final_table(results),
        forces_table(results),
        course_table(results),
        escape_table(results),
        *untying,
        equivalence_table(results),
        seed_table(results),
    ]


def exor_final_table(results: xr.Dataset) -> Table:
    """Per arm what came out at the last evaluation, what is best reachable, and paired differences,
    with 95 % intervals.

    Means of losses and accuracies; of all else medians, for a seed that is far off makes a mean of
    distances.
    """
    step, arms = last_step(results), names_of(arms_of(results))
    end = results.sel(eval_step=step, step=step)
    rows = []

    def add(
        label: str, best: str, values: xr.DataArray, typical: Callable[[np.ndarray], str] = median
    ) -> None:
        first = values.isel(arm=0)
        paired = [typical((values.isel(arm=i) - first).values) for i in range(1, len(arms))]
        rows.append((label, best, *[typical(values.sel(arm=arm).values) for arm in arms], *paired))

    for split in ("train", "valid"):
        for name in ("accuracy", "loss"):
            best = float(results[f"best_{name}"].sel(split=split))
            add(
                f"{split} {name}" + (", nat" if name == "loss" else ""),
                number(best),
                end[f"{split}_{name}"],
                interval,
            )
    for label, values in distance_rows(results).items():
        add(label, "", values.sel(step=step))
    for pair in live_pairs(results):
        first, second = pair.split("-")
        theory = float(results["theory_log_odds"].sel(pair=pair))
        add(f"ln p({second})/p({first}), nat", number(theory), end["log_odds"].sel(pair=pair))
        deviation = float(results["theory_log_odds_deviation"].sel(pair=pair))
        add(
            "its deviation over contexts",
            number(deviation),
            end["log_odds_deviation"].sel(pair=pair),
        )
    return Table(
        f"{results.attrs['experiment']}: step {step:,}, {results.sizes['seed']:,} seeds",
        ("", "reachable", *arms, *[f"{arm} − {arms[0]}, paired" for arm in arms[1:]]),
        rows + _seed_counts(results),
        "Losses and accuracies: mean ± 95 % (Student's t). All else: median [95 %, by ranks].",
    )


def _seed_counts(results: xr.Dataset) -> list[tuple[str, ...]]:
    """Rows: of how many seeds an arm came close to the best reachable loss and, if any did, how
    many diverged.
    """
    blanks = ("",) * (results.sizes["arm"] - 1)
    reached = has_reached_best(results)
    counts = [
        f"{int(reached.sel(arm=arm).sum())} of {results.sizes['seed']:,}" for arm in results["arm"]
    ]
    rows = [(f"seeds within {SOLVED} nat of the best", "", *counts, *blanks)]
    diverged = [
        str(int((results["diverged_at"].sel(arm=arm) >= 0).sum())) for arm in results["arm"]
    ]
    if any(count != "0" for count in diverged):
        rows.append(("seeds that diverged", "0", *diverged, *blanks))
    return rows


def course_table(results: xr.Dataset) -> Table:
    """Median and 5-95 % range over seeds at four times of the training."""
    times = course_steps(results, COURSE[1:])
    columns = {"training loss, nat": results["loss"], **distance_rows(results)}
    rows = [
        (
            arm,
            f"{time:,}",
            *[quantiles(column.sel(arm=arm, step=time).values) for column in columns.values()],
        )
        for arm in names_of(arms_of(results))
        for time in times
    ]
    return Table("Over training: median over seeds [5 %, 95 %]", ("arm", "step", *columns), rows)


def equivalence_table(results: xr.Dataset) -> Table:
    """How far each pair is from being equivalent, beside its distance in every table at the end;
    then their agreement.

    E and D, which are never a target, are there where their rows were recorded: p(E | context) =
    p(D | context) = 0 always, so their conditional divergence is 0. They have no part in the
    agreement.

    For the rank of the log ratio, two symbols that never share a context are further apart than any
    two that do.
    """
    measures = {
        "semantic divergence": results["semantic_divergence"],
        "conditional divergence": results["conditional_divergence"],
        "log ratio, nat": results["conditional_log_ratio"],
    }
    pairs = list(itertools.combinations(targets(results), 2))
    firsts, seconds = (xr.DataArray(list(each), dims="couple") for each in zip(*pairs))
    end = results.sel(step=last_step(results)).sel(symbol=firsts, symbol2=seconds)
    distances = {
        label: end[f"{table}_distance"]
        .sel(arm=arm.name)
        .transpose("seed", "couple")
        .values.astype(np.float64)
        for arm in arms_of(results)
        for label, table in tables_of(arm).items()
    }
    divergences = {
        name: matrix.sel(symbol=firsts, symbol2=seconds).values for name, matrix in measures.items()
    }
    rows = [
        (
            f"{first}-{second}",
            *[number(divergence[i]) for divergence in divergences.values()],
            *[median(distance[:, i]) for distance in distances.values()],
        )
        for i, (first, second) in enumerate(pairs)
    ]
    if {"E", "D"} <= {*results["symbol"].values}:
        rows.append(_labels_row(results))
    # never in one context
    divergences["log ratio, nat"] = np.nan_to_num(divergences["log ratio, nat"], nan=np.inf)
    for name, divergence in divergences.items():
        agreement = [interval(somers_d(divergence, distance)) for distance in distances.values()]
        rows.append((f"rank agreement with {name.removesuffix(', nat')}", "", "", "", *agreement))
    note = "Distances: median over seeds [95 %, by ranks]. Agreement: mean ± 95 % (Student's t)."
    title = f"Equivalences of the process, and distances at step {last_step(results):,}"
    return Table(title, ("pair", *measures, *distances), rows, note)


def _labels_row(results: xr.Dataset) -> tuple[str, ...]:
    end = results.sel(step=last_step(results), symbol="E", symbol2="D")
    distances = [
        median(end[f"{table}_distance"].sel(arm=arm.name).values)
        for arm in arms_of(results)
        for table in tables_of(arm).values()
    ]
    return (
        "E-D",
        number(float(end["semantic_divergence"])),
        number(0.0),
        number(np.nan),
        *distances,
    )


def seed_table(results: xr.Dataset) -> Table:
    """Every seed: final exact training loss, and how far its log-odds are from the process's."""
    step = last_step(results)
    end = results.sel(eval_step=step)
    header, columns = ["seed"], []
    for arm in names_of(arms_of(results)):
        header.append(f"{arm}: training loss, nat")
        columns.append(end["train_loss"].sel(arm=arm).values)
        for pair in live_pairs(results):
            first, second = pair.split("-")
            theory = float(results["theory_log_odds"].sel(pair=pair))
            header.append(f"{arm}: ln p({second})/p({first}) − {number(theory)}")
            columns.append(end["log_odds"].sel(arm=arm, pair=pair).values - theory)
    rows = [
        (str(seed), *[number(column[i]) for column in columns])
        for i, seed in enumerate(results["seed"].values)
    ]
    return Table(f"Per seed at step {step:,}", tuple(header), rows, long=True)
