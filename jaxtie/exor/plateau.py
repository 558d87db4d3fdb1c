"""When seeds leave the first plateau and reach the best loss. Imports no jax.

Who knows how often each symbol is drawn, and nothing else, cannot tell the masked bit: the context
does, and without it the bit is 0 or 1, as good as equally often. So on the first plateau the loss
is ln 2 above the best reachable (that is H(target) - H(target | context) = H(bit), to 0.0001 nat in
the published split). Below it there are others.

Each process's level, by `jaxtie.exor.theory`: a predictor that knows nothing of the parity sees the
label and not the bits, and pays `loss_of_label_alone`, H(target | label). That is ln 2 above the
best in every process of the protocol, to 0.0002 nat, and the next plateaus are more than 0.05 below
it, so a seed is stuck on it while its loss is above best + ln 2 - 0.05. Where the label does not
tell how zeros are spelled, it is the first plateau, `loss_without_context`, H(target). Where it
does (`zeros_by_label`, the control), H(target) is 0.185 higher, another plateau: all published
seeds have left that one by step 20,000, so nothing can be claimed of it at the end, and stuck means
the second one there as well.
"""

import math

import xarray as xr

from jaxtie.config import names_of
from jaxtie.results.committed import DECIMALS
from jaxtie.results.statistics import (
    Times,
    kaplan_meier,
    logrank_p,
    median_time,
    race,
    times_to_level,
)
from jaxtie.results.tables import Table, arms_of, last_step, number

# nat: nearer to the best reachable loss it is reached, further below the first plateau that is left
SOLVED = 0.05
# levels and losses are compared as they are kept: a run and its data say the same
LOSS_DECIMALS = DECIMALS["train_loss"]
LEFT, HALFWAY, AT_BEST = "left the first plateau", "halfway to the best", "reached the best"


def escape_levels(results: xr.Dataset) -> dict[str, float]:
    """What can happen to a seed -> the exact training loss, nat, that it comes to then, to
    `LOSS_DECIMALS`.
    """
    best = float(results["best_loss"].sel(split="train"))
    plateau = best + math.log(2)
    levels = {LEFT: plateau - SOLVED, HALFWAY: (plateau + best) / 2, AT_BEST: best + SOLVED}
    return {event: round(level, LOSS_DECIMALS) for event, level in levels.items()}


def is_stuck(results: xr.Dataset) -> xr.DataArray:
    """1 for a seed that at the last step knows nothing of the parity, else 0, (arm, seed); NaN
    where it diverged.
    """
    return _above_plateau(
        results, results["train_loss"].sel(eval_step=last_step(results), drop=True)
    )


def stuck_shares(results: xr.Dataset) -> xr.DataArray:
    """The share of the seeds that know nothing of the parity, (arm, eval_step)."""
    seen = results["train_loss"].sel(eval_step=slice(0, last_step(results)))
    return _above_plateau(results, seen).mean("seed")


def _above_plateau(results: xr.Dataset, loss: xr.DataArray) -> xr.DataArray:
    level = _rounds_to_at_most(escape_levels(results)[LEFT])
    return (loss > level).where(loss.notnull()).astype(float)


def has_reached_best(results: xr.Dataset) -> xr.DataArray:
    """Whether a seed stands near the best reachable loss at the last step, (arm, seed)."""
    end = results["train_loss"].sel(eval_step=last_step(results), drop=True)
    return end <= _rounds_to_at_most(escape_levels(results)[AT_BEST])


def _rounds_to_at_most(level: float) -> float:
    return level + 0.5 * 10.0**-LOSS_DECIMALS


def escape_times(results: xr.Dataset, event: str) -> dict[str, Times]:
    """Arm -> when this happens to its seeds, up to the last step that all have reached."""
    seen = results["train_loss"].sel(eval_step=slice(0, last_step(results)))
    steps, level = seen["eval_step"].values, _rounds_to_at_most(escape_levels(results)[event])
    return {
        arm: times_to_level(steps, seen.sel(arm=arm).transpose("seed", "eval_step").values, level)
        for arm in names_of(arms_of(results))
    }


def escape_table(results: xr.Dataset) -> Table:
    """Of each event and arm: to how many seeds it happens, when, and before or after it does in the
    first arm.
    """
    arms, last = names_of(arms_of(results)), last_step(results)
    diverged = (results["diverged_at"] >= 0).sum("seed")
    rows = []
    for event, level in escape_levels(results).items():
        times = escape_times(results, event)
        first = times[arms[0]]
        for arm, own in times.items():
            counts = [
                f"{int(count):,}"
                for count in (own.by(last).sum(), own.censored_S.sum(), diverged.sel(arm=arm))
            ]
            cells = [
                f"{event} (≤ {number(level)} nat)",
                arm,
                *counts,
                steps_between(median_time(kaplan_meier(own)), last),
            ]
            if arm == arms[0]:
                rows.append((*cells, *[""] * 4))
                continue
            ahead = race(own, first)
            inconclusive = len(own.step_S) - ahead.won - ahead.lost
            share = (
                f"{number(ahead.share)} [{number(ahead.low)}, {number(ahead.high)}]"
                if ahead.won + ahead.lost
                else "–"
            )
            decided = f"{ahead.won} : {ahead.lost} ({inconclusive})"
            rows.append(
                (*cells, decided, share, probability(ahead.p), probability(logrank_p(own, first)))
            )
    header = (
        "",
        "arm",
        "seeds there",
        "not yet",
        "diverged",
        "median step [95 %]",
        f"before : after {arms[0]} (inconclusive)",
    )
    title = (
        f"When {results.sizes['seed']:,} seeds leave the first plateau and reach the best loss, by"
        f" step {last:,}"
    )
    note = (
        "At the first evaluation with an exact training loss at or below the level, if the next"
        " one is too. Seeds not yet there are censored at the end, those that diverged among them."
        " Median: Kaplan–Meier, with the interval of Brookmeyer and Crowley. Before : after: seed"
        f" by seed against {arms[0]}; inconclusive: neither came, or both at one evaluation; share"
        " of the decided ones with its exact 95 % interval, and p of the sign test. The log-rank"
        " test takes the arms' seeds for independent. No p is corrected for how many there are."
    )
    return Table(title, (*header, "share before", "p, sign", "p, log-rank"), rows, note)


def steps_between(between: tuple[float, float, float], last: int) -> str:
    """A median step between the ends of its interval; what is not reached is beyond the last
    step.
    """
    low, middle, high = (
        f"{step:,.0f}" if math.isfinite(step) else f"> {last:,}" for step in between
    )
    return f"{middle} [{low}, {high}]" if math.isfinite(between[0]) else middle


def probability(p: float) -> str:
    """A p-value in a table."""
    return "< 0.001" if p < 0.001 else number(p)
