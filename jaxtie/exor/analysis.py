"""Variables of EXor results, and quantities computed from them.

Imports jax only to compute constants and exact divergences.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from jaxtie.config import Arm
from jaxtie.results.gradient_by_role import PUSH_VARIABLES, ROLE_VARIABLES
from jaxtie.results.netcdf import Schema, Variable, steps_of
from jaxtie.results.tables import at_end, last_step

if TYPE_CHECKING:
    from jaxtie.exor.config import Experiment

EVAL = ("eval_step",)
EVAL_PAIRS = ("eval_step", "pair")
MATRIX = ("step", "symbol", "symbol2")
TABLE_ROWS = ("table_step", "symbol", "dim")
# Losses and accuracies of training are means since the previous record; `train_` and `valid_` are
# exact expectations over a split, and so are predictions, over the contexts of the training split.
VARIABLES = {
    "loss": Variable(("step",), "nat", "training loss"),
    "accuracy": Variable(("step",), "1", "training accuracy"),
    "train_loss": Variable(EVAL, "nat", "exact training loss"),
    "train_accuracy": Variable(EVAL, "1", "exact training accuracy"),
    "valid_loss": Variable(EVAL, "nat", "exact validation loss"),
    "valid_accuracy": Variable(EVAL, "1", "exact validation accuracy"),
    "log_odds": Variable(EVAL_PAIRS, "nat", "ln p(second) - ln p(first)"),
    "log_odds_deviation": Variable(EVAL_PAIRS, "nat", "log-odds, std over contexts"),
    "swap_divergence": Variable(EVAL_PAIRS, "1", "swap divergence"),
    "bias_odds": Variable(EVAL_PAIRS, "nat", "output bias, second - first"),
    "input_distance": Variable(MATRIX, "1", "distance, input embedding"),
    "output_distance": Variable(MATRIX, "1", "distance, output embedding"),
    "input_table": Variable(TABLE_ROWS, "1", "input embedding"),
    "output_table": Variable(TABLE_ROWS, "1", "output embedding"),
}
MASK_LOGITS = {  # recorded with `Experiment.mask_logit`; expectations, training split
    "mask_logit": Variable(EVAL, "1", "logit of the mask"),
    "mask_probability": Variable(EVAL, "1", "probability of the mask"),
}


def exor_schema(experiment: "Experiment") -> Schema:
    """Return the variables and coordinates of an experiment's results."""
    symbols = list(experiment.process.symbols)
    labels: dict[str, Sequence[Any]] = {
        "table_step": experiment.eval_steps,
        "symbol": symbols,
        "symbol2": symbols,
        "pair": list(experiment.process.pairs),
        "dim": list(range(experiment.model.width)),
    }
    variables = VARIABLES | (MASK_LOGITS if experiment.mask_logit else {})
    if experiment.roles:
        variables = variables | ROLE_VARIABLES | PUSH_VARIABLES
        labels["group"] = symbols
    return Schema(variables, steps_of(experiment) | labels)


def exor_constants(experiment: "Experiment") -> dict[str, xr.DataArray]:
    """Compute the variables without members, with one dimension per swept hyperparameter."""
    points = [_constants_of_point(point) for point in experiment.traced_points]
    for name, values in reversed(experiment.swept.items()):  # the last one varies fastest
        index = xr.DataArray(list(values), dims=name, name=name)
        points = [
            xr.concat(points[i : i + len(values)], index)
            for i in range(0, len(points), len(values))
        ]
    return {str(name): values for name, values in points[0].data_vars.items()}


def _constants_of_point(point: "Experiment") -> xr.Dataset:
    from jaxtie.exor import data, theory
    from jaxtie.exor.task import build_contexts
    from jaxtie.training.optimizer import decay_factors, schedule_table

    own = point.process
    joints = [contexts.joint_CxV for contexts in build_contexts(own, ordered=False)]
    rates = schedule_table(point.optimizer, point.record_steps)
    whole = data.enumerate_process(
        own.length, own.zeros, own.ones, zeros_by_label=own.zeros_by_label
    )
    bits = data.split(own.length, own.all_strings, own.data_seed).train
    exchanged = data.share_of_odd_zeros(bits) if own.zeros_by_label else 0.0
    odds = [theory.log_odds(own.zeros, exchanged), theory.log_odds(own.ones)]
    divergences = theory.equivalences(whole.tokens_CxL, whole.joint_CxV)
    arms = list(map(Arm.parse, point.arms))
    of_tables = dataclasses.replace(
        point.optimizer, weight_decay=point.optimizer.weight_decay * point.table_decay
    )
    return xr.Dataset(
        {
            "best_accuracy": ("split", list(map(theory.best_accuracy, joints))),
            "best_loss": ("split", list(map(theory.best_loss, joints))),
            "theory_log_odds": ("pair", [each.mean for each in odds]),
            "theory_log_odds_deviation": ("pair", [each.deviation for each in odds]),
            "scheduled_learning_rate": (
                ("arm", "step"),
                np.broadcast_to(rates, (len(point.arms), len(rates))),
            ),
            "decay_factor": ("step", decay_factors(of_tables, point.record_steps, arms)),
            **{name: (("symbol", "symbol2"), matrix) for name, matrix in divergences.items()},
        },
        {"split": ["train", "valid"]},
    )


def exor_attributes(experiment: "Experiment") -> dict[str, str | int]:
    """Describe the process and the model."""
    own = experiment.process
    pairs = ", ".join(
        f"p({symbol}) = {p:g}"
        for pair, odds in own.pairs.items()
        for symbol, p in zip(pair.split("-"), odds, strict=True)
    )
    return {"process": f"EXor, {own.length} bits; {pairs}", "model": repr(experiment.model)}


# ----- Pairs of symbols and their distances.


def live_pairs(results: xr.Dataset) -> list[str]:
    """Return the pairs whose two symbols both occur at some sweep point."""
    log_odds = results["theory_log_odds"]
    return [
        str(pair) for pair in results["pair"].values if np.isfinite(log_odds.sel(pair=pair)).any()
    ]


def equally_likely(results: xr.Dataset, pair: str) -> bool:
    """Return whether a pair's symbols are equally likely in every context.

    If so, the distributional hypothesis holds for them.
    """
    odds = (
        results[name].sel(pair=pair) for name in ("theory_log_odds", "theory_log_odds_deviation")
    )
    return all(float(abs(each)) < 1e-12 for each in odds)


def distance(results: xr.Dataset, table: str, pair: str) -> xr.DataArray:
    """Return the distance of a pair ("X-Y") in the "input" or "output" embedding."""
    first, second = pair.split("-")
    return results[f"{table}_distance"].sel(symbol=first, symbol2=second, drop=True)


def distance_rows(results: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return label -> distance, (arm, ..., seed, step), of all live pairs in both embeddings."""
    return {
        f"distance {pair}, {table}": distance(results, table, pair)
        for table in ("input", "output")
        for pair in live_pairs(results)
    }


def _of_both_tables(results: xr.Dataset, quantity: str) -> xr.DataArray:
    """Return a quantity of the input and the output embedding along the dimension `table`."""
    tables = xr.DataArray(["input", "output"], dims="table", name="table")
    both = [results[f"{table}_{quantity}"] for table in tables.values]
    return xr.concat(both, tables).astype(np.float64)


def pair_cosines(results: xr.Dataset, steps: Sequence[int]) -> xr.DataArray:
    """Return the cosine of the rows of each pair: (pair, table, arm, seed, eval_step)."""
    rows, pairs = rows_at(results, steps), live_pairs(results)
    cosines = [
        cosine_of(*(rows.sel(symbol=symbol, drop=True) for symbol in pair.split("-")))
        for pair in pairs
    ]
    return xr.concat(cosines, xr.DataArray(pairs, dims="pair", name="pair"))


def rows_at(results: xr.Dataset, steps: Sequence[int]) -> xr.DataArray:
    """Return both embeddings at those of the steps at which they were recorded."""
    known = np.intersect1d(steps, results["table_step"])
    return _of_both_tables(results.sel(table_step=known), "table").rename(table_step="eval_step")


def norm_of(rows: xr.DataArray) -> xr.DataArray:
    """Return the Euclidean norms of rows."""
    return xr.apply_ufunc(np.sqrt, (rows**2).sum("dim", skipna=False))


def cosine_of(first: xr.DataArray, second: xr.DataArray) -> xr.DataArray:
    """Return the cosines of rows, pair by pair."""
    return (first * second).sum("dim", skipna=False) / (norm_of(first) * norm_of(second))


def fluctuations(results: xr.Dataset) -> xr.DataArray:
    """Return how much each distance fluctuates late in training: (table, pair, arm, seed).

    It is the standard deviation, over the last quarter of training, of the relative change from one
    record to the next; NaN for seeds that diverged and with fewer than two changes. The results
    must be of a run without a sweep.
    """
    pairs, last = live_pairs(results), last_step(results)
    firsts, seconds = (
        xr.DataArray(np.array([pair.split("-")[i] for pair in pairs], str), {"pair": pairs}, "pair")
        for i in (0, 1)
    )
    late = _of_both_tables(results.sel(step=slice(0.75 * last, last)), "distance")
    late = late.sel(symbol=firsts, symbol2=seconds).drop_vars(["symbol", "symbol2"])
    late = late.transpose("table", "pair", "arm", "seed", "step")
    with np.errstate(divide="ignore", invalid="ignore"):  # a distance may be 0
        change = late.values[..., 1:] / late.values[..., :-1] - 1
    few = change.shape[-1] < 2
    spread = np.full(late.shape[:-1], np.nan) if few else change.std(axis=-1, ddof=1)
    return late.isel(step=0, drop=True).copy(data=spread).drop_attrs().rename("fluctuation")


# ----- Plateaus.
#
# A predictor that sees the label but no bit knows nothing of the parity and pays H(target | label).
# That is ln 2 above the best loss in every process of the protocol, to 0.0002 nat, and the next
# plateau is more than 0.05 nat lower. A seed is stuck while its loss is above best + ln 2 - 0.05.
# This is the first plateau, H(target), unless zeros depend on the label (`zeros_by_label`): there
# H(target) is 0.185 nat higher, and all published seeds have left it by step 20,000.

EXCESS = "loss above the best, nat"
SOLVED = 0.05  # nat: largest distance from the best loss that counts as reaching it
LOSS_DECIMALS = 3  # of committed losses; levels are rounded alike
LEFT, HALFWAY, AT_BEST = "left the first plateau", "halfway to the best", "reached the best"


def excess_loss(results: xr.Dataset) -> xr.DataArray:
    """Return the final training loss above the best reachable: (arm, swept names, seed)."""
    best = results["best_loss"].sel(split="train", drop=True)
    excess = at_end(results["train_loss"], results) - best
    return excess.transpose(*results["diverged_at"].dims).assign_attrs(long_name=EXCESS)


def exit_levels(results: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return event -> exact training loss at which it has happened, nat, to `LOSS_DECIMALS`.

    It has the swept dimensions on which the best loss depends.
    """
    best = results["best_loss"].sel(split="train", drop=True)
    plateau = best + math.log(2)
    levels = {LEFT: plateau - SOLVED, HALFWAY: (plateau + best) / 2, AT_BEST: best + SOLVED}
    return {event: level.round(LOSS_DECIMALS) for event, level in levels.items()}


def threshold_of(results: xr.Dataset, event: str) -> xr.DataArray:
    """Return the highest loss that rounds to the level of an event."""
    return exit_levels(results)[event] + 0.5 * 10.0**-LOSS_DECIMALS


def stuck_over_steps(results: xr.Dataset) -> xr.DataArray:
    """Return 1 for seeds on the first plateau, else 0, (arm, seed, eval_step); NaN if diverged."""
    loss = results["train_loss"].sel(eval_step=slice(0, last_step(results)))
    return (loss > threshold_of(results, LEFT)).where(loss.notnull()).astype(float)


def is_stuck(results: xr.Dataset) -> xr.DataArray:
    """Return 1 for seeds on the first plateau at the last step, else 0; NaN if diverged."""
    return stuck_over_steps(results).isel(eval_step=-1, drop=True)


def has_reached_best(results: xr.Dataset) -> xr.DataArray:
    """Return whether a seed is within `SOLVED` of the best loss at the last step, (arm, seed)."""
    return at_end(results["train_loss"], results) <= threshold_of(results, AT_BEST)
