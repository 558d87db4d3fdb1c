"""What the documents stand on: a run condensed to what can be committed, and tables over several of
them. Imports no jax.

A condensed run is a dataset like the run's own, of the same variables, with fewer steps: tables,
claims and figures that need no more take either.
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr
from scipy.stats import ks_2samp, mannwhitneyu

from jaxtie.exor.claims import Claim, measured
from jaxtie.exor.forces import factor
from jaxtie.exor.pairs import label_geometry
from jaxtie.exor.plateau import LOSS_DECIMALS, SOLVED, has_reached_best
from jaxtie.exor.stability import fluctuations
from jaxtie.results.claims import claimed
from jaxtie.results.gradient_by_role import at_stretches, has_roles, tied_arms
from jaxtie.results.similarity import SIMILARITIES, compare_with_untied
from jaxtie.results.tables import (
    Table,
    arms_of,
    at_end,
    course_steps,
    interval,
    last_step,
    number,
    plain_arm,
    quantiles,
    swept,
    tables_of,
)

BODIES_PAIRS = ("X-Y", "A-B")
KEPT_SYMBOLS = ["X", "Y", "A", "B"]
EVALUATED = (
    "valid_loss train_accuracy valid_accuracy log_odds log_odds_deviation swap_divergence bias_odds"
).split()
DISTANCES = ("input_distance", "output_distance")
RECORDED = ("loss", "accuracy", *DISTANCES)
EACH_SHOWN = 16  # seeds; of more a table has quartiles
# of as many the middle of the training is kept too; of more, it would make a file of several MB
COURSE_OF_SEEDS = 128
COST = {"tied": 1.0, "untied": -1.0}
COST_WITH_BIAS = {"tied+bias": 1.0, "untied+bias": -1.0}
Runs = Mapping[str, xr.Dataset]


def condense(results: xr.Dataset) -> xr.Dataset:
    """What is committed of a run: every seed's training loss at all evaluations, all else at a few
    steps and of four symbols.

    And how much distances fluctuate, which takes all records. Of very many seeds the few steps are
    the first and the last.

    It has the run's dimensions, so what is made of a run can be made of it; what is left out of the
    evaluations is NaN, as is the distance of B and A beside that of A and B.
    """
    last, here = last_step(results), course_steps(results)
    if results.sizes["seed"] > COURSE_OF_SEEDS:
        here = [here[0], last]
    once = xr.DataArray(
        np.triu(np.ones((len(KEPT_SYMBOLS),) * 2, bool), 1), dims=("symbol", "symbol2")
    )
    known = [name for name in results.data_vars if not {"seed", "arm"} & {*results[name].dims}]
    kept = results[[*known, "diverged_at", *RECORDED]].sel(
        step=here, symbol=KEPT_SYMBOLS, symbol2=KEPT_SYMBOLS
    )
    kept = kept.assign(
        {name: kept[name].where(once).transpose(*kept[name].dims) for name in DISTANCES}
    )
    evaluated = results[EVALUATED].where(results["eval_step"].isin(here))
    parts = [part.sel(eval_step=slice(0, last)) for part in (evaluated, results["train_loss"])]
    if not swept(results):
        parts.append(fluctuations(results).to_dataset())
    if {"E", "D"} <= {*results["symbol"].values} and not swept(results):
        parts.append(label_geometry(results, here))
    if "mask_logit" in results:
        parts.append(results[["mask_logit", "mask_probability"]].sel(eval_step=slice(0, last)))
    if has_roles(results):
        parts += [at_stretches(results, here), *_similarities(results, here)]
    return xr.merge([kept, *parts], join="outer").assign_attrs(
        results.attrs, width=results.sizes["dim"]
    )


def _similarities(results: xr.Dataset, steps: Sequence[int]) -> list[xr.Dataset]:
    """Tied tables beside those of the untied arm at some steps, where there is one."""
    tied, untied = tied_arms(results), plain_arm(results, tied=False)
    if untied is None or not tied:
        return []
    renamed = results[["input_table", "output_table"]].rename(
        symbol="row", input_table="input", output_table="output"
    )
    # there are no more than seven rows
    measures = [name for name in SIMILARITIES if name != "neighbours"]
    found = []
    for step in np.intersect1d(steps, results["table_step"]):
        here = renamed.sel(table_step=step, drop=True)
        compared = compare_with_untied(
            here["input"].sel(arm=tied), here.sel(arm=untied.name), measures
        )
        found.append(compared.expand_dims(eval_step=[step]))
    return [xr.concat(found, "eval_step")]


def costs_table(runs: Runs, names: Sequence[str]) -> Table:
    """What tying costs without a bias and with one, and what the bias takes off; each seed with
    itself, mean ± 95 %.
    """

    def of(results: xr.Dataset, weights: Mapping[str, float]) -> str:
        return interval(claimed(results, Claim("", "loss", weights)).values)

    both = {**COST, **{arm: -weight for arm, weight in COST_WITH_BIAS.items()}}
    rows = []
    for name in names:
        results = runs[name]
        best = number(float(results["best_loss"].sel(split="train")))
        ends = [
            interval(at_end(results["train_loss"], results).sel(arm=arm).values)
            for arm in (*COST, *COST_WITH_BIAS)
        ]
        paired = [of(results, weights) for weights in (COST, COST_WITH_BIAS, both)]
        rows.append((name, f"{results.sizes['seed']:,}", best, *ends, *paired))
    header = (
        "experiment",
        "seeds",
        "best",
        *COST,
        *COST_WITH_BIAS,
        "cost of tying",
        "with a bias",
        "the bias takes off",
    )
    return Table(
        "Training loss at the end, nat, and what tying costs: mean over seeds ± 95 %", header, rows
    )


def contrasts_table(runs: Runs, names: Sequence[str]) -> Table:
    """By how much what tying costs, and what a bias takes off, differ between processes; each seed
    with itself.
    """
    both = {**COST, **{arm: -weight for arm, weight in COST_WITH_BIAS.items()}}
    rows = []
    for one, other in itertools.combinations(names, 2):
        sums = (Claim("", "loss", weights) for weights in (COST, COST_WITH_BIAS, both))
        rows.append(
            (
                f"{one} − {other}",
                *(
                    interval((claimed(runs[one], it) - claimed(runs[other], it)).values)
                    for it in sums
                ),
            )
        )
    header = ("experiments", "cost of tying", "with a bias", "the bias takes off")
    note = (
        "Mean over seeds ± 95 % (Student's t), each seed with itself; no interval is corrected for"
        " how many there are."
    )
    return Table("Between processes, nat", header, rows, note)


def widths_table(runs: Runs, names: Sequence[str]) -> Table:
    """What tying costs at each width of the tables."""
    rows = []
    for name in names:
        results = runs[name]
        width = str(results.attrs["width"])
        ends = [
            interval(at_end(results["train_loss"], results).sel(arm=arm).values)
            for arm in ("tied", "untied", "tied+bias")
        ]
        cost, rest = (
            interval(claimed(results, Claim("", "loss", {tied: 1.0, "untied": -1.0})).values)
            for tied in ("tied", "tied+bias")
        )
        rows.append((width, f"{results.sizes['seed']:,}", *ends, cost, rest))
    header = (
        "width",
        "seeds",
        "tied",
        "untied",
        "tied+bias",
        "tied − untied",
        "tied+bias − untied",
    )
    return Table("What tying costs at each width, nat: mean ± 95 %", header, rows)


def bodies_table(runs: Runs, names: Sequence[str]) -> Table:
    """How far models of other bodies have come, and which of their distances are more or less than
    what decay leaves.
    """
    rows = []
    for name in names:
        results = runs[name]
        step, reached = last_step(results), has_reached_best(results)
        left = float(results["decay_factor"].sel(step=step))
        for arm in arms_of(results):
            loss_S = at_end(results["train_loss"], results).sel(arm=arm.name).values
            count = int(reached.sel(arm=arm.name).sum())
            cells = (f"{step:,}", interval(loss_S), f"{count} of {len(loss_S)}", f"{left:.3g}")
            for label, table in tables_of(arm).items():
                ratios_PxS = [
                    measured(results, "decay ratio", pair, table).sel(arm=arm.name).values
                    for pair in BODIES_PAIRS
                ]
                rows.append(
                    (
                        name,
                        label,
                        *cells,
                        *map(factor, ratios_PxS),
                        factor(ratios_PxS[0] - ratios_PxS[1]),
                    )
                )
                cells = ("", "", "", "")
    header = (
        "experiment",
        "table",
        "step",
        "loss, nat",
        f"seeds within {SOLVED} nat of the best",
        "decay alone leaves",
    )
    pairs = [f"{pair}, ratio to decay alone" for pair in BODIES_PAIRS]
    note = (
        "Losses: exact, of the training split, mean ± 95 % (Student's t). Ratios: what is left of"
        " the distance that a seed began with, divided by what decay alone leaves of it; median [95"
        " %, by ranks]. The last column: of the two ratios."
    )
    return Table(
        "Other models, as far as they were run",
        (*header, *pairs, f"{' : '.join(BODIES_PAIRS)}"),
        rows,
        note,
    )


def seeds_left_table(runs: Runs, names: Sequence[str]) -> Table:
    """What is left of the distance that each seed began with, beside what decay alone leaves."""
    rows = []
    for name in names:
        results = runs[name]
        left = float(results["decay_factor"].sel(step=last_step(results)))
        for arm in arms_of(results):
            for (label, table), pair in itertools.product(tables_of(arm).items(), BODIES_PAIRS):
                left_S = left * np.exp(
                    measured(results, "decay ratio", pair, table).sel(arm=arm.name).values
                )
                rows.append((name, label, pair, _left(left), _each_or_quartiles(left_S)))
    header = ("experiment", "table", "pair", "decay alone leaves", "what is left of each seed's")
    note = (
        f"In ascending order; of more than {EACH_SHOWN} seeds the least, the quartiles and the"
        " greatest."
    )
    return Table("The distance at the end beside the one at the start", header, rows, note)


def _each_or_quartiles(values: np.ndarray) -> str:
    shown = (
        np.sort(values)
        if len(values) <= EACH_SHOWN
        else np.quantile(values, (0, 0.25, 0.5, 0.75, 1))
    )
    return ", ".join(map(_left, shown))


def _left(value: float) -> str:
    """Three digits that tell, however little is left."""
    return f"{value:#.3g}"


def published_table(results: xr.Dataset, published: pd.DataFrame) -> Table:
    """Distances beside those that the paper's published code comes to, with an exact rank test of
    each.

    Args:
      published: a row for every arm, seed, step, table and pair, with its distance.
    """
    rows, least = [], 1.0
    quantities = published.groupby(["arm", "table", "pair", "step"], sort=False)["distance"]
    for (arm, table, pair, step), theirs in quantities:
        first, second = pair.split("-")
        ours_S = (
            results[f"{table}_distance"]
            .sel(arm=arm, symbol=first, symbol2=second, step=step)
            .values
        )
        p = float(mannwhitneyu(ours_S, theirs, method="exact").pvalue)
        least = min(least, p)
        told = ", ".join(f"{value:.3g}" for value in theirs)
        rows.append(
            (
                arm if arm == "tied" else f"{arm} {table}",
                pair,
                f"{step:,}",
                quantiles(ours_S),
                told,
                number(p),
            )
        )
    header = (
        "table",
        "pair",
        "step",
        f"ours: median of {results.sizes['seed']:,} seeds [5 %, 95 %]",
        "published code",
        "p",
    )
    note = (
        f"p: exact rank test of Mann and Whitney, two-sided. The least of {len(rows)}, corrected"
        f" for their number: {number(min(1.0, least * len(rows)))}."
    )
    return Table("Distances beside those of the published code", header, rows, note)


def pytorch_table(results: xr.Dataset, theirs: pd.DataFrame) -> Table:
    """Every quantity of so many seeds beside that of a PyTorch loop's seeds, with a test of two
    samples for each.

    Args:
      theirs: of `benchmarks/pytorch_seeds.py`: a row for every arm, seed, step and quantity
        ("loss", or a table and a pair).
    """
    rows, least = [], 1.0
    for (arm, quantity, step), group in theirs.groupby(["arm", "quantity", "step"], sort=False):
        theirs_S = group["value"].to_numpy()
        if quantity == "loss":  # finer on one side, it would differ by the rounding
            recorded_S = results["train_loss"].sel(arm=arm, eval_step=step).values
            ours_S, theirs_S = (
                side.astype(np.float64).round(LOSS_DECIMALS) for side in (recorded_S, theirs_S)
            )
        else:
            table, pair = quantity.split()
            first, second = pair.split("-")
            ours_S = (
                results[f"{table}_distance"]
                .sel(arm=arm, symbol=first, symbol2=second, step=step)
                .values
            )
        found = ks_2samp(ours_S, theirs_S)
        least = min(least, float(found.pvalue))
        cells = [f"{found.statistic:.3f}", number(float(found.pvalue))]
        rows.append((arm, quantity, f"{step:,}", quantiles(ours_S), quantiles(theirs_S), *cells))
    numbers_of_seeds = {"ours": results.sizes["seed"], "PyTorch": theirs["seed"].nunique()}
    sides = (
        f"{whose}: median of {seeds} seeds [5 %, 95 %]" for whose, seeds in numbers_of_seeds.items()
    )
    note = (
        f"Loss: exact, of the training split, nat, to {LOSS_DECIMALS} decimals; all else distances."
        " Largest gap: between the two distributions over seeds, with p of the test of Kolmogorov"
        f" and Smirnov. The least of {len(rows)}, corrected for their number:"
        f" {number(min(1.0, least * len(rows)))}."
    )
    header = ("arm", "quantity", "step", *sides, "largest gap", "p")
    return Table("Seeds of this project beside seeds of a PyTorch loop", header, rows, note)
