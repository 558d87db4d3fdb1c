"""Tables of EXor results: of one run, and of a sweep. Imports no jax."""

import dataclasses
import itertools
import math

import numpy as np
import xarray as xr

from jaxtie.config import Arm, names_of, number_label
from jaxtie.exor import analysis
from jaxtie.exor.analysis import EXCESS, distance, distance_rows, live_pairs
from jaxtie.exor.claims import measured
from jaxtie.results import statistics
from jaxtie.results.tables import (
    COURSE,
    Column,
    Table,
    arm_cells,
    arm_header,
    arms_of,
    at_end,
    course_steps,
    embeddings_of,
    format_estimate,
    format_mean,
    format_median,
    format_number,
    format_quantiles,
    last_step,
    reference_arm,
    sweep_points,
    swept,
)

ADJUSTED = "decay-adjusted distance"
ADJUSTED_NOTE = (
    "Decay-adjusted: final divided by initial distance and by the decay factor, so 1 if only weight"
    " decay changed it."
)
UNTYING_TIMES = (0, 0.04, 0.2, 1)  # parts of the training that is left after the untying
MASK_STEPS = (0, 100, 500, 1_000, 2_000, 10_000)


def exor_tables(results: xr.Dataset) -> list[Table]:
    """Return all tables of a run; those of a sweep and of untying only if they have rows."""
    if len(swept(results)) > 1:
        return [sweep_table(results)]
    if swept(results):
        tables = [sweep_table(results), distances_table(results), correlation_table(results)]
        return [table for table in tables if table.rows]
    untying = untying_table(results)
    return [
        losses_table(results),
        distances_table(results),
        course_table(results),
        plateau_exit_table(results),
        *([mask_table(results)] if "mask_logit" in results else []),
        *([untying] if untying.rows else []),
        equivalence_table(results),
        seed_table(results),
    ]


def _header(results: xr.Dataset) -> str:
    """Return how the title of a table of one run begins."""
    return f"{results.attrs['experiment']}: step {last_step(results):,}"


# ----- Tables of one run.


def losses_table(results: xr.Dataset) -> Table:
    """Compare the arms at the last evaluation with the best reachable values and with each other.

    Losses and accuracies have means, everything else has medians: one outlying seed can dominate
    the mean of a distance.
    """
    end, rows = results.sel(eval_step=last_step(results)), []
    for split, name in itertools.product(("train", "valid"), ("accuracy", "loss")):
        best = format_number(float(results[f"best_{name}"].sel(split=split)))
        label = f"{split} {name}{', nat' * (name == 'loss')}"
        rows.append((label, best, *arm_cells(end[f"{split}_{name}"])))
    for label, values in distance_rows(results).items():
        rows.append((label, "", *arm_cells(at_end(values, results), format_median)))
    for pair in live_pairs(results):
        labels = {odds_label(pair) + ", nat": "log_odds"}
        labels["its standard deviation over contexts"] = "log_odds_deviation"
        for label, name in labels.items():
            exact = format_number(float(results[f"theory_{name}"].sel(pair=pair)))
            rows.append((label, exact, *arm_cells(end[name].sel(pair=pair), format_median)))
    seeds, blanks = results.sizes["seed"], ("",) * (results.sizes["arm"] - 1)
    diverged = (results["diverged_at"] >= 0).sum("seed").values
    reached = analysis.has_reached_best(results).sum("seed").values
    counts = [f"{n} of {seeds - out:,}" for n, out in zip(reached, diverged)]
    rows.append((f"seeds within {analysis.SOLVED} nat of the best", "", *counts, *blanks))
    if diverged.any():
        rows.append(("seeds that diverged", "0", *map(str, diverged), *blanks))
    return Table(
        f"{_header(results)}, {seeds:,} seeds",
        ("", "best reachable", *arm_header(results)),
        rows,
        "Losses and accuracies: mean ± 95 % (Student's t). Other rows: median [95 %, by ranks]."
        " Differences: paired by seed.",
    )


def odds_label(pair: str) -> str:
    """Name the log-odds of a pair ("X-Y")."""
    first, second = pair.split("-")
    return f"ln p({second})/p({first})"


def course_table(results: xr.Dataset) -> Table:
    """Show training loss and distances at four times of the training."""
    variables = {"training loss, nat": results["loss"], **distance_rows(results)}
    steps = course_steps(results, COURSE[1:])
    places = list(itertools.product(names_of(arms_of(results)), steps))
    columns = [
        Column("arm", [arm for arm, _ in places]),
        Column("step", [step for _, step in places], "{:,}".format),
    ]
    for label, values in variables.items():
        own = [values.sel(arm=arm, step=step).values for arm, step in places]
        columns.append(Column(label, own, format_quantiles))
    return Table.of("Over training: median over seeds [5 %, 95 %]", columns)


def mask_table(results: xr.Dataset) -> Table:
    """Show how likely the mask itself is predicted at the masked position, over training."""
    p, arms = results["mask_probability"], names_of(arms_of(results))
    columns = [Column("arm", arms)]
    for step in MASK_STEPS:
        if step in results["eval_step"]:
            values = [p.sel(arm=arm, eval_step=step).values for arm in arms]
            columns.append(Column(f"step {step:,}", values, format_median))
    note = "Expected probability on the training split: median over seeds [95 %, by ranks]."
    return Table.of("Probability of the mask itself", columns, note)


def plateau_exit_table(results: xr.Dataset) -> Table:
    """Show how many seeds leave the plateaus, when, and whether before those of the first arm."""
    last = last_step(results)
    diverged = (results["diverged_at"] >= 0).sum("seed")
    reference, *_ = names_of(arms_of(results))
    rows = []
    for event, level in analysis.exit_levels(results).items():
        times, for_good = (
            analysis.exit_times(results, event, for_good=own) for own in (False, True)
        )
        for arm, own in times.items():
            counts = ((~own.censored_S).sum(), own.censored_S.sum(), int(diverged.sel(arm=arm)))
            middles = [
                format_estimate(
                    *statistics.median_time(statistics.kaplan_meier(each[arm])),
                    shown=lambda step: f"{step:,.0f}" if math.isfinite(step) else f"> {last:,}",
                )
                for each in (times, for_good)
            ]
            compared = ("",) * 4 if arm == reference else _compare_times(own, times[reference])
            cells = (*(f"{count:,}" for count in counts), *middles, *compared)
            rows.append((f"{event} (≤ {format_number(float(level))} nat)", arm, *cells))
    medians = ("median step [95 %]", "for good")
    before = f"before : after {reference} (inconclusive)"
    header = ("", "arm", "seeds there", "not yet", "diverged", *medians, before)
    title = (
        f"When {results.sizes['seed']:,} seeds leave the first plateau and reach the best loss, by"
        f" step {last:,}"
    )
    note = (
        "Events: the first evaluation with an exact training loss at or below the level, if the"
        " next one is, too. Seeds without the event, including those that diverged, are censored at"
        " the end. Median: Kaplan–Meier, with the interval of Brookmeyer and Crowley; for good: of"
        " the evaluation from which on the loss stays at or below the level. Before :"
        f" after: each seed compared with itself in {reference}; inconclusive if neither has the"
        " event, or both at the same evaluation; share of the conclusive ones with its exact 95 %"
        " interval, and p of the sign test. The log-rank test treats the arms' seeds as"
        " independent. The p-values are not corrected for multiple comparisons."
    )
    return Table(title, (*header, "share before", "p, sign", "p, log-rank"), rows, note)


def _compare_times(own: statistics.Times, other: statistics.Times) -> tuple[str, ...]:
    """Return the cells that compare an arm's times with another arm's."""
    test = statistics.sign_test(own, other)
    inconclusive = len(own.step_S) - test.won - test.lost
    p_values = (test.p, statistics.logrank_p(own, other))
    return (
        f"{test.won} : {test.lost} ({inconclusive})",
        format_estimate(test.low, test.share, test.high),
        *("< 0.001" if p < 0.001 else format_number(p) for p in p_values),
    )


def untying_table(results: xr.Dataset) -> Table:
    """Compare arms that untie midway with the arms of the same head that never change."""
    arms, last = arms_of(results), last_step(results)
    known = results["eval_step"].values[results["eval_step"].values <= last]
    rows, of_head = [], ""
    others: dict[str, None] = {}
    for arm in arms:
        if arm.untie_at is None or arm.untie_at > last:
            continue
        same = [other for other in arms if other.head == arm.head and other.untie_at is None]
        compared = (arm, *sorted(same, key=lambda other: not other.tied))
        others |= {"tied" if other.tied else "untied": None for other in compared[1:]}
        of_head = of_head or ("" if arm.is_plain else ", with its head")
        wanted_T = arm.untie_at + (last - arm.untie_at) * np.array(UNTYING_TIMES)
        for step in np.unique(known[np.abs(known - wanted_T[:, None]).argmin(axis=1)]):
            here = results.sel(step=step, eval_step=step)
            cells = [
                "; ".join(format_quantiles(values.sel(arm=each.name).values) for each in compared)
                for values in (here["train_loss"], *distance_rows(here).values())
            ]
            rows.append((arm.name, f"{step:,}", *cells))
    title = f"Untying: median over seeds [5 %, 95 %] of {'; '.join(('this arm', *others))}{of_head}"
    return Table(title, ("arm", "step", "training loss, nat", *distance_rows(results)), rows)


def equivalence_table(results: xr.Dataset) -> Table:
    """Compare how far pairs are from equivalent with their final distances; add rank agreements.

    The labels E and D, if their rows were recorded, have a row but no part in the agreements: they
    are never a target, so their conditional divergence is 0. In the rank of the log ratio, symbols
    that never share a context come last.
    """
    couples = list(itertools.combinations(analysis.targets(results), 2))
    count = len(couples)
    if {"E", "D"} <= {*results["symbol"].values}:
        couples.append(("E", "D"))
    firsts, seconds = (xr.DataArray(list(each), dims="couple") for each in zip(*couples))
    at = {"symbol": firsts, "symbol2": seconds}
    names = {
        "semantic divergence": "semantic_divergence",
        "conditional divergence": "conditional_divergence",
        "log ratio, nat": "conditional_log_ratio",
    }
    divergences = {label: results[name].sel(at).values for label, name in names.items()}
    divergences["conditional divergence"] = np.nan_to_num(divergences["conditional divergence"])
    end = results.sel(step=last_step(results))
    distances = {
        label: end[f"{table}_distance"].sel(at | {"arm": arm}).transpose("couple", "seed").values
        for arm, label, table in embeddings_of(results)
    }
    columns = [
        Column("pair", map("-".join, couples)),
        *(Column(label, each_P, format_number) for label, each_P in divergences.items()),
        *(Column(label, each_PxS, format_median) for label, each_PxS in distances.items()),
    ]
    note = "Distances: median over seeds [95 %, by ranks]. Agreement: mean ± 95 % (Student's t)."
    title = f"Equivalences of the process, and distances at step {last_step(results):,}"
    table, rows = Table.of(title, columns, note), []
    for label, each_P in divergences.items():
        ranked_P = np.nan_to_num(each_P[:count], nan=np.inf)
        agreement = [
            format_mean(statistics.somers_d(ranked_P, each_PxS[:count].T))
            for each_PxS in distances.values()
        ]
        name = f"rank agreement with {label.removesuffix(', nat')}"
        rows.append((name, *[""] * len(divergences), *agreement))
    return dataclasses.replace(table, rows=[*table.rows, *rows])


def seed_table(results: xr.Dataset) -> Table:
    """Show each seed's final training loss and the error of its log-odds."""
    end = results.sel(eval_step=last_step(results))
    columns = [Column("seed", results["seed"].values)]
    for arm in names_of(arms_of(results)):
        own = end.sel(arm=arm)
        label = f"{arm}: training loss, nat"
        columns.append(Column(label, own["train_loss"].values, format_number))
        for pair in live_pairs(results):
            exact = float(results["theory_log_odds"].sel(pair=pair))
            error_S = own["log_odds"].sel(pair=pair).values - exact
            label = f"{arm}: {odds_label(pair)} − {format_number(exact)}"
            columns.append(Column(label, error_S, format_number))
    table = Table.of(f"Per seed at step {last_step(results):,}", columns)
    return dataclasses.replace(table, long=True)


# ----- Tables of a sweep.


def sweep_table(results: xr.Dataset) -> Table:
    """Show the outcomes at every sweep point, and the difference of each arm to the reference."""
    names, reference, ends = swept(results), reference_arm(results), analysis.outcomes(results)
    rows = []
    for at, here in sweep_points(results, names):
        reference_S = ends[EXCESS].sel(at | {"arm": reference}).values
        for arm in names_of(arms_of(results)):
            excess_S, *distances = (end.sel(at | {"arm": arm}).values for end in ends.values())
            more = "" if arm == reference else format_mean(excess_S - reference_S)
            diverged = str(int((here["diverged_at"].sel(arm=arm) >= 0).sum()))
            cells = (format_mean(excess_S), *map(format_median, distances), more, diverged)
            rows.append((*map(number_label, at.values()), arm, *cells))
    header = (*names, "arm", *ends, f"loss − {reference}'s, paired", "diverged")
    note = "Losses: mean ± 95 % (Student's t). Distances: median [95 %, by ranks]."
    return Table(f"{_header(results)}, {results.sizes['seed']:,} seeds", header, rows, note)


def correlation_table(results: xr.Dataset) -> Table:
    """Correlate excess losses, their differences between arms, and distances with the swept value.

    The results must have one swept hyperparameter.
    """
    arms, ends = names_of(arms_of(results)), analysis.outcomes(results)
    excess = ends[EXCESS]
    cases = {f"{EXCESS.removesuffix(', nat')}, {arm}": excess.sel(arm=arm) for arm in arms}
    reference = reference_arm(results)
    for arm in arms:
        if arm != reference:
            difference = excess.sel(arm=arm) - excess.sel(arm=reference)
            cases[f"loss, {arm} − {reference}, paired"] = difference
    for (arm, label, table), pair in itertools.product(embeddings_of(results), live_pairs(results)):
        cases[f"distance {pair}, {label}"] = ends[f"distance {pair}, {table}"].sel(arm=arm)
    (name,) = swept(results)
    label, x_K = analysis.abscissa(results, name)
    rows, error = [], 0.05 / (2 * len(cases))
    for case, values in cases.items() if np.isfinite(x_K).sum() >= 3 else ():
        values_KxS = values.transpose(name, "seed").values
        cells = []
        for ranks in (False, True):
            r, low, high = statistics.correlation(x_K, values_KxS, ranks=ranks, error=error)
            cells.append(f"{format_number(r)} [{format_number(low)}, {format_number(high)}]")
        rows.append((label, case, *cells))
    title = (
        f"Correlation over members [bootstrap over {results.sizes['seed']:,} seeds; simultaneous"
        " 95 % intervals]"
    )
    return Table(title, ("hyperparameter", "correlated with", "Pearson", "Spearman"), rows)


# ----- Distances and weight decay.


def log_ratios(results: xr.Dataset, quantity: str, arm: str, pair: str, table: str) -> np.ndarray:
    """Return the logarithms of a ratio that claims are about, (seeds,)."""
    return measured(results, quantity, pair, table).sel(arm=arm).values


def factor_text(logarithms: np.ndarray) -> str:
    """Format the median of ratios and its rank interval, from their logarithms."""
    return format_estimate(*np.exp(statistics.median_interval(logarithms)))


def distances_table(results: xr.Dataset) -> Table:
    """Show final distances relative to decay and to X-A, and the effect of swaps."""
    names, biased = swept(results), any(arm.head.bias for arm in arms_of(results))
    embeddings, pairs = embeddings_of(results), live_pairs(results)
    rows, cosines = [], None
    for at, here in sweep_points(results, names):
        swap, bias = (at_end(here[name], here) for name in ("swap_divergence", "bias_odds"))
        cosines = _final_cosines(here)
        for (arm, label, table), pair in itertools.product(embeddings, pairs):
            own = {"arm": arm, "pair": pair}
            swap_S = swap.sel(own).values
            largest = np.nanquantile(swap_S, 0.95) if np.isfinite(swap_S).any() else np.nan
            cells = [
                format_median(at_end(distance(here, table, pair), here).sel(arm=arm).values),
                factor_text(log_ratios(here, "decay ratio", arm, pair, table)),
                factor_text(log_ratios(here, "reference ratio", arm, pair, table)),
                format_estimate(*statistics.median_interval(swap_S), shown="{:.1e}".format),
                f"{largest:.1e}",
            ]
            if cosines is not None:
                cells.insert(1, format_median(cosines.sel(own | {"table": table}).values))
            if biased:
                cells.append(
                    format_median(bias.sel(own).values) if Arm.parse(arm).head.bias else ""
                )
            rows.append((*map(number_label, at.values()), label, pair, *cells))
    cosine = ["cosine"] * (cosines is not None)
    header = (*names, "embedding", "pair", "distance", *cosine, ADJUSTED, "ratio to X–A")
    header = (*header, "swap divergence", "its 95th percentile", *["bias, nat"] * biased)
    title = f"{_header(results)}, median over {results.sizes['seed']:,} seeds [95 %, ranks]"
    if not names:
        title += f"; decay factor {float(at_end(results['decay_factor'], results)):.3g}"
    return Table(title, header, rows, ADJUSTED_NOTE)


def _final_cosines(results: xr.Dataset) -> xr.DataArray | None:
    """Return the cosine of the rows of each pair at the end, where it is known."""
    if "pair_cosine" in results:
        return at_end(results["pair_cosine"], results)
    if "input_table" not in results:
        return None
    last = last_step(results)
    if last not in results["table_step"]:
        return None
    return analysis.pair_cosines(results, [last]).isel(eval_step=0, drop=True)
