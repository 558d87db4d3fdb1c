"""Tables of EXor results: of one run, of a sweep, and across experiments. Imports no jax."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from jaxtie.config import Arm, names_of, number_label
from jaxtie.exor import analysis
from jaxtie.exor.analysis import (
    EXCESS,
    NO_DATA,
    Runs,
    distance,
    distance_rows,
    live_pairs,
)
from jaxtie.exor.claims import measured
from jaxtie.results import statistics
from jaxtie.results.conclusion import model_in_words
from jaxtie.results.tables import (
    COURSE,
    Table,
    arm_cells,
    arm_header,
    arms_of,
    at_end,
    course_steps,
    embeddings_of,
    interval,
    last_step,
    median,
    number,
    quantiles,
    reference_arm,
    sweep_points,
    swept,
    tables_of,
    with_interval,
)

Weights = dict[str, float]  # arm -> weight in a sum of final losses

BODIES_PAIRS = ("X-Y", "A-B")
TABLE_OF_ROLE = ("output", "input")  # in the order of the columns
ADJUSTED = "decay-adjusted distance"
ADJUSTED_NOTE = (
    "Decay-adjusted: final divided by initial distance and by the decay factor, so 1 if only weight"
    " decay changed it."
)
UNTYING_TIMES = (0, 0.04, 0.2, 1)  # parts of the training that is left after the untying
MASK_ARMS = ("tied+untie-rows=mask", "untied+tie-rows=mask")
FREED = "freed: (tied − tied+untie-rows=mask) ÷ (tied − tied+targets-only)"
ADDED = "added: (untied+tie-rows=mask − untied) ÷ (tied − untied)"
MASK_STEPS = (0, 100, 500, 1_000, 2_000, 10_000)
GAP: Weights = {"tied": 1.0, "untied": -1.0}
GAP_WITH_BIAS: Weights = {"tied+bias": 1.0, "untied+bias": -1.0}
GAPS: dict[str, Weights] = {
    "tying gap": GAP,
    "tying gap with a bias": GAP_WITH_BIAS,
    "reduction by the bias": {**GAP, "tied+bias": -1.0, "untied+bias": 1.0},
}


def exor_tables(results: xr.Dataset) -> list[Table]:
    """Return all tables of a run; those of a sweep and of untying only if they have rows."""
    if len(swept(results)) > 1:
        return [sweep_table(results)]
    if swept(results):
        tables = [sweep_table(results), decay_table(results), correlation_table(results)]
        return [table for table in tables if table.rows]
    untying = untying_table(results)
    return [
        final_table(results),
        decay_table(results),
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


def final_table(results: xr.Dataset) -> Table:
    """Compare the arms at the last evaluation with the best reachable values and with each other.

    Losses and accuracies have means, everything else has medians: one outlying seed can dominate
    the mean of a distance.
    """
    end, rows = results.sel(eval_step=last_step(results)), []
    for split, name in itertools.product(("train", "valid"), ("accuracy", "loss")):
        best = number(float(results[f"best_{name}"].sel(split=split)))
        unit = ", nat" if name == "loss" else ""
        rows.append((f"{split} {name}{unit}", best, *arm_cells(end[f"{split}_{name}"])))
    for label, values in distance_rows(results).items():
        rows.append((label, "", *arm_cells(at_end(values, results), median)))
    for pair in live_pairs(results):
        first, second = pair.split("-")
        for label, name in (
            (f"ln p({second})/p({first}), nat", "log_odds"),
            ("its standard deviation over contexts", "log_odds_deviation"),
        ):
            exact = number(float(results[f"theory_{name}"].sel(pair=pair)))
            rows.append((label, exact, *arm_cells(end[name].sel(pair=pair), median)))
    seeds, blanks = f"{results.sizes['seed']:,}", ("",) * (results.sizes["arm"] - 1)
    diverged = (results["diverged_at"] >= 0).sum("seed").values
    reached = analysis.has_reached_best(results).sum("seed").values
    counts = [f"{n} of {results.sizes['seed'] - out:,}" for n, out in zip(reached, diverged)]
    rows.append((f"seeds within {analysis.SOLVED} nat of the best", "", *counts, *blanks))
    if diverged.any():
        rows.append(("seeds that diverged", "0", *map(str, diverged), *blanks))
    return Table(
        f"{_header(results)}, {seeds} seeds",
        ("", "best reachable", *arm_header(results)),
        rows,
        "Losses and accuracies: mean ± 95 % (Student's t). Other rows: median [95 %, by ranks]."
        " Differences: paired by seed.",
    )


def course_table(results: xr.Dataset) -> Table:
    """Show training loss and distances at four times of the training."""
    columns = {"training loss, nat": results["loss"], **distance_rows(results)}
    rows = []
    for arm, step in itertools.product(
        names_of(arms_of(results)), course_steps(results, COURSE[1:])
    ):
        cells = [quantiles(each.sel(arm=arm, step=step).values) for each in columns.values()]
        rows.append((arm, f"{step:,}", *cells))
    return Table("Over training: median over seeds [5 %, 95 %]", ("arm", "step", *columns), rows)


def mask_table(results: xr.Dataset) -> Table:
    """Show how likely the mask itself is predicted at the masked position, over training."""
    steps = [step for step in MASK_STEPS if step in results["eval_step"]]
    p = results["mask_probability"]
    rows = [
        (arm, *(median(p.sel(arm=arm, eval_step=step).values) for step in steps))
        for arm in names_of(arms_of(results))
    ]
    header = ("arm", *(f"step {step:,}" for step in steps))
    note = "Expected probability on the training split: median over seeds [95 %, by ranks]."
    return Table("Probability of the mask itself", header, rows, note)


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
                with_interval(
                    *statistics.median_time(statistics.kaplan_meier(each[arm])),
                    shown=lambda step: f"{step:,.0f}" if math.isfinite(step) else f"> {last:,}",
                )
                for each in (times, for_good)
            ]
            compared = ("",) * 4 if arm == reference else _compare_times(own, times[reference])
            cells = (*(f"{count:,}" for count in counts), *middles, *compared)
            rows.append((f"{event} (≤ {number(float(level))} nat)", arm, *cells))
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
        with_interval(test.low, test.share, test.high),
        *("< 0.001" if p < 0.001 else number(p) for p in p_values),
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
                "; ".join(quantiles(values.sel(arm=each.name).values) for each in compared)
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
    semantic_P, conditional_P, ratio_P = (
        results[name].sel(at).values
        for name in ("semantic_divergence", "conditional_divergence", "conditional_log_ratio")
    )
    divergences = {
        "semantic divergence": semantic_P,
        "conditional divergence": np.nan_to_num(conditional_P),
        "log ratio, nat": ratio_P,
    }
    end = results.sel(step=last_step(results))
    distances = {
        label: end[f"{table}_distance"].sel(at | {"arm": arm}).transpose("seed", "couple").values
        for arm, label, table in embeddings_of(results)
    }
    rows = [
        (
            f"{first}-{second}",
            *(number(each_P[i]) for each_P in divergences.values()),
            *(median(each_SxP[:, i]) for each_SxP in distances.values()),
        )
        for i, (first, second) in enumerate(couples)
    ]
    for name, each_P in divergences.items():
        ranked_P = np.nan_to_num(each_P[:count], nan=np.inf)
        agreement = [
            interval(statistics.somers_d(ranked_P, each_SxP[:, :count]))
            for each_SxP in distances.values()
        ]
        rows.append((f"rank agreement with {name.removesuffix(', nat')}", "", "", "", *agreement))
    note = "Distances: median over seeds [95 %, by ranks]. Agreement: mean ± 95 % (Student's t)."
    title = f"Equivalences of the process, and distances at step {last_step(results):,}"
    return Table(title, ("pair", *divergences, *distances), rows, note)


def seed_table(results: xr.Dataset) -> Table:
    """Show each seed's final training loss and the error of its log-odds."""
    end = results.sel(eval_step=last_step(results))
    columns = {"seed": map(str, results["seed"].values)}
    for arm in names_of(arms_of(results)):
        columns[f"{arm}: training loss, nat"] = map(number, end["train_loss"].sel(arm=arm).values)
        for pair in live_pairs(results):
            first, second = pair.split("-")
            exact = float(results["theory_log_odds"].sel(pair=pair))
            error_S = end["log_odds"].sel(arm=arm, pair=pair).values - exact
            label = f"{arm}: ln p({second})/p({first}) − {number(exact)}"
            columns[label] = map(number, error_S)
    rows = list(zip(*columns.values(), strict=True))
    return Table(f"Per seed at step {last_step(results):,}", (*columns,), rows, long=True)


# ----- Tables of a sweep.


def _values(at: Mapping[str, float]) -> list[str]:
    """Format the values of swept hyperparameters."""
    return [*map(number_label, at.values())]


def sweep_table(results: xr.Dataset) -> Table:
    """Show the outcomes at every sweep point, and the difference of each arm to the reference."""
    names, reference, ends = swept(results), reference_arm(results), analysis.outcomes(results)
    rows = []
    for at, here in sweep_points(results, names):
        reference_S = ends[EXCESS].sel(at | {"arm": reference}).values
        for arm in names_of(arms_of(results)):
            excess_S, *distances = (end.sel(at | {"arm": arm}).values for end in ends.values())
            more = "" if arm == reference else interval(excess_S - reference_S)
            diverged = str(int((here["diverged_at"].sel(arm=arm) >= 0).sum()))
            cells = (interval(excess_S), *map(median, distances), more, diverged)
            rows.append((*_values(at), arm, *cells))
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
            cells.append(f"{number(r)} [{number(low)}, {number(high)}]")
        rows.append((label, case, *cells))
    title = (
        f"Correlation over members [bootstrap over {results.sizes['seed']:,} seeds; simultaneous"
        " 95 % intervals]"
    )
    return Table(title, ("hyperparameter", "correlated with", "Pearson", "Spearman"), rows)


# ----- Distances and weight decay.


def _ratios(results: xr.Dataset, quantity: str, arm: str, pair: str, table: str) -> np.ndarray:
    """Return the logarithms of a ratio that claims are about, (seeds,)."""
    return measured(results, quantity, pair, table).sel(arm=arm).values


def _factor(logarithms: np.ndarray) -> str:
    """Format the median of ratios and its rank interval, from their logarithms."""
    return with_interval(*np.exp(statistics.median_interval(logarithms)))


def decay_table(results: xr.Dataset) -> Table:
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
                median(at_end(distance(here, table, pair), here).sel(arm=arm).values),
                _factor(_ratios(here, "decay ratio", arm, pair, table)),
                _factor(_ratios(here, "reference ratio", arm, pair, table)),
                with_interval(*statistics.median_interval(swap_S), shown="{:.1e}".format),
                f"{largest:.1e}",
            ]
            if cosines is not None:
                cells.insert(1, median(cosines.sel(own | {"table": table}).values))
            if biased:
                cells.append(median(bias.sel(own).values) if Arm.parse(arm).head.bias else "")
            rows.append((*_values(at), label, pair, *cells))
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


def contribution_table(results: xr.Dataset) -> Table:
    """Show the contribution of each role of an embedding to the log-distance of the pairs.

    An untied table has one role, so all that changes its distances beyond decay is that role's.
    """
    rows = []
    for arm, pair in itertools.product(arms_of(results), live_pairs(results)):
        of_tables = [
            _ratios(results, "decay ratio", arm.name, pair, each) for each in TABLE_OF_ROLE
        ]
        if arm.untied_from == 0:
            rows.append((f"{arm.name}, one table a role", pair, *map(median, of_tables), "–", "–"))
        elif arm.untied_from is None:
            output, input_ = (
                _ratios(results, f"{role} push", arm.name, pair, "input")
                for role in ("output", "input")
            )
            parts = (output, input_, output + input_, of_tables[-1])
            rows.append((arm.name, pair, *map(median, parts)))
    header = ("arm", "pair", "output role", "input role", "sum", f"ln of {ADJUSTED}")
    title = (
        f"{results.attrs['experiment']}: contribution of each role to ln of a pair's distance over"
        f" {last_step(results):,} steps"
    )
    note = (
        f"Median over {results.sizes['seed']:,} seeds [95 %, by ranks]. The sum equals the last"
        " column up to terms of second order, which noise adds whatever its direction. Untied: the"
        " last column of the output and of the input table, which their one role writes."
    )
    return Table(title, header, rows, note)


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
        cells = (f"{last_step(results):,}", interval(loss_S), reached, left)
        for label, table in tables_of(arm).items():
            ratios = [
                _ratios(results, "decay ratio", arm.name, pair, table) for pair in BODIES_PAIRS
            ]
            rows.append(
                (experiment, label, *cells, *map(_factor, (*ratios, ratios[0] - ratios[1])))
            )
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


# ----- Tying gaps.


def final_loss(results: xr.Dataset) -> xr.DataArray:
    """Return the exact final training loss, nat, (arm, seed)."""
    return at_end(results["train_loss"], results)


def _gap_cells(losses: xr.DataArray, columns: Mapping[str, Weights]) -> list[str]:
    """Format weighted sums of losses over arms, each seed compared with itself."""
    sums: Any = (
        sum(weight * losses.sel(arm=arm).values for arm, weight in weights.items())
        for weights in columns.values()
    )
    return [f"{losses.sizes['seed']:,}", *map(interval, sums)]


def gap_table(runs: Runs, names: Sequence[str]) -> Table:
    """Show the tying gap without and with an output bias, and by how much the bias reduces it."""
    columns = {arm: {arm: 1.0} for arm in (*GAP, *GAP_WITH_BIAS)} | GAPS
    rows = []
    for name in names:
        best = number(float(runs[name]["best_loss"].sel(split="train")))
        seeds, *cells = _gap_cells(final_loss(runs[name]), columns)
        rows.append((name, seeds, best, *cells))
    title = "Final training loss and tying gap, nat: mean over seeds ± 95 %"
    return Table(title, ("experiment", "seeds", "best", *columns), rows)


def models_table(runs: Runs, names: Sequence[str]) -> Table:
    """Show the tying gap of every model, and how many of its seeds are stuck."""
    rows = []
    for name in names:
        model, _, width = model_in_words(runs[name].attrs["model"]).rpartition(" and width ")
        cells = _process_cells(runs[name], ("tied", "untied"), lambda S: f"{np.nansum(S):,.0f}")
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


def targets_only_gap_table(runs: Runs) -> Table:
    """Show the tying gap of every process, with the softmax over all symbols and over targets."""
    rows = []
    processes, forms = analysis.PROCESS_RUNS.items(), analysis.FORMS.items()
    for (process, place), (form, head) in itertools.product(processes, forms):
        name = place.targets_only if head else place.published
        for own in (head, f"{head}+bias"):
            arms = [f"{start}{own}" for start in ("tied", "untied")]
            label = f"{form}{', bias' * (own != head)}"
            if name in runs and {*arms} <= {*runs[name]["arm"].values}:
                rows.append((process, label, *_process_cells(analysis.unseen(runs[name]), arms)))
            elif own == head:
                rows.append((process, label, NO_DATA, *[""] * 5))
    header = ("process", "form", "step", "seeds", "stuck, tied", "stuck, untied", "gap, nat")
    note = (
        "Gap: tied − untied, each seed compared with itself, mean ± 95 % (Student's t), without"
        " seeds 64 to 127. The intervals are not corrected for multiple comparisons. The last"
        " column has the seeds that are stuck in neither arm at that step: they are selected by"
        " their outcome and differ between rows."
    )
    return Table("Tying gap by process", (*header, "gap where neither is stuck, nat"), rows, note)


def _process_cells(
    results: xr.Dataset,
    arms: Sequence[str],
    shown: Callable[[np.ndarray], str] = lambda stuck_S: f"{np.nanmean(stuck_S):.3f}",
) -> tuple[str, ...]:
    tied_S, untied_S = (final_loss(results).sel(arm=arm).values for arm in arms)
    stuck_AxS = analysis.is_stuck(results).sel(arm=[*arms]).transpose("arm", "seed").values
    gap_S, off_S = tied_S - untied_S, (stuck_AxS == 0).all(axis=0)
    off = f"{interval(gap_S[off_S])} ({int(off_S.sum()):,} seeds)" if off_S.any() else "–"
    counts = f"{last_step(results):,}", f"{len(gap_S):,}"
    return *counts, *map(shown, stuck_AxS), interval(gap_S), off


def stuck_table(runs: Runs, names: Sequence[str]) -> Table:
    """Show for each arm the share of stuck seeds, the final loss, and the angle of E and D."""
    rows = []
    for name in names:
        if name not in runs:
            rows.append((name, NO_DATA, *[""] * 6))
            continue
        results = analysis.unseen(runs[name])
        for arm in arms_of(results):
            count, share = analysis.stuck_share(results, arm.name)
            loss = interval(final_loss(results).sel(arm=arm.name).values)
            cosines = ["–", "–"]
            if "label_cosine" in results:
                cosine = at_end(results["label_cosine"], results).sel(arm=arm.name)
                for i, table in enumerate(tables_of(arm).values()):
                    cosines[i] = median(cosine.sel(table=table).values)
            cells = (f"{last_step(results):,}", f"{count:,}", with_interval(*share), loss)
            rows.append((name, arm.name, *cells, *cosines))
    cosines = ["cosine of E and D, input", "cosine of E and D, output"]
    header = ("experiment", "arm", "step", "seeds", "stuck", "loss, nat", *cosines)
    note = (
        "Without seeds 64 to 127. Stuck: exact training loss above best + ln 2 − 0.05, share with "
        "its exact 95 % interval. Loss: exact, of the training split, mean ± 95 % (Student's t). "
        "Cosine of the rows of E and D: median [95 %, by ranks]."
    )
    return Table("Seeds stuck on the first plateau", header, rows, note)


def same_seeds_table(runs: Runs) -> Table:
    """Show stuck shares on the seeds that all arms have, and which part of them the mask makes."""
    columns: dict[str, dict[str, str]] = {}
    for process, place in analysis.PROCESS_RUNS.items():
        if not place.rows or not {*place} <= runs.keys():
            continue
        all_arms = [analysis.is_stuck(runs[name]) for name in dict.fromkeys(place)]
        stuck = xr.concat(all_arms, "arm", join="inner")  # of the seeds that all have
        tied, untied, without, own_mask, shared_mask = (
            stuck.sel(arm=arm).values for arm in ("tied", "untied", "tied+targets-only", *MASK_ARMS)
        )
        arms = [arm.name for arm in arms_of(stuck) if not arm.head.bias]
        columns[f"{process}, {stuck.sizes['seed']:,} seeds"] = {
            **{arm: number(float(stuck.sel(arm=arm).mean())) for arm in arms},
            FREED: with_interval(*statistics.ratio_of_means(tied - own_mask, tied - without)),
            ADDED: with_interval(*statistics.ratio_of_means(shared_mask - untied, tied - untied)),
        }
    rows = [tuple(row) for row in pd.DataFrame(columns).itertuples(name=None)]
    note = (
        "Share of seeds on the first plateau. In brackets 95 %: percentiles of a bootstrap over"
        " seeds, each with all its arms. Freed: by an output row of its own for the mask, relative"
        " to taking all never-targets out of the softmax. Added: by tying only the mask's row,"
        " relative to tying all rows."
    )
    return Table("Stuck shares on the same seeds", ("arm", *columns), rows, note)


# ----- Other implementations.


def published_table(results: xr.Dataset, published: pd.DataFrame) -> Table:
    """Compare distances with those of the paper's published code.

    Args:
      results: of the same experiment.
      published: a row for every arm, seed, step, table and pair, with its distance.
    """
    from scipy.stats import mannwhitneyu

    rows, p_values = [], []
    groups = published.groupby(["arm", "table", "pair", "step"], sort=False)["distance"]
    for (arm, table, pair, step), theirs_S in groups:
        ours_S = distance(results, table, pair).sel(arm=arm, step=step).values
        p_values.append(float(mannwhitneyu(ours_S, theirs_S, method="exact").pvalue))
        label = arm if arm == "tied" else f"{arm} {table}"
        theirs = ", ".join(f"{value:.3g}" for value in theirs_S)
        rows.append((label, pair, f"{step:,}", quantiles(ours_S), theirs, number(p_values[-1])))
    ours = f"ours: median of {results.sizes['seed']:,} seeds [5 %, 95 %]"
    header = ("embedding", "pair", "step", ours, "published code", "p")
    note = f"p: exact two-sided Mann–Whitney test. {_least(p_values)}"
    return Table("Distances compared with those of the published code", header, rows, note)


def pytorch_table(results: xr.Dataset, theirs: pd.DataFrame) -> Table:
    """Compare losses and distances with those of a PyTorch loop.

    Args:
      results: of the same experiment.
      theirs: of `benchmarks/pytorch_seeds.py`: a row for every arm, seed, step and quantity
        ("loss", or a table and a pair).
    """
    from scipy.stats import ks_2samp

    rows, p_values, decimals = [], [], analysis.LOSS_DECIMALS
    for (arm, quantity, step), group in theirs.groupby(["arm", "quantity", "step"], sort=False):
        theirs_S = group["value"].to_numpy()
        if quantity == "loss":  # committed losses are rounded
            recorded = results["train_loss"].sel(arm=arm, eval_step=step)
            recorded_S = recorded.values.astype(np.float64)
            ours_S, theirs_S = (np.round(each, decimals) for each in (recorded_S, theirs_S))
        else:
            ours_S = distance(results, *quantity.split()).sel(arm=arm, step=step).values
        found = ks_2samp(ours_S, theirs_S)
        p_values.append(float(found.pvalue))
        cells = (quantiles(ours_S), quantiles(theirs_S), number(found.statistic))
        rows.append((arm, quantity, f"{step:,}", *cells, number(found.pvalue)))
    sides = {"ours": results.sizes["seed"], "PyTorch": theirs["seed"].nunique()}
    columns = [f"{side}: median of {seeds} seeds [5 %, 95 %]" for side, seeds in sides.items()]
    header = ("arm", "quantity", "step", *columns, "largest gap", "p")
    note = (
        f"Loss: exact, of the training split, nat, to {decimals} decimals. Everything else:"
        " distances. Largest gap: between the two distributions over seeds, with p of the"
        f" Kolmogorov–Smirnov test. {_least(p_values)}"
    )
    return Table("Seeds of this project compared with seeds of a PyTorch loop", header, rows, note)


def _least(p_values: Sequence[float]) -> str:
    """State the smallest p-value with its Bonferroni correction."""
    corrected = number(min(1.0, min(p_values) * len(p_values)))
    return f"Smallest of {len(p_values)} p-values, Bonferroni-corrected: {corrected}."
