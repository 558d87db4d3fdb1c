"""When seeds leave their plateaus: a table of committed runs on EXor, and its tests.

A loss curve *reaches* a level at the first evaluation at which it is at or below the level and is
so at the next evaluation too: one evaluation alone does not count, nor does the last one. The time
is the step of the first of the two. It reaches a level *for good* if it never is above it again.

A seed that has not reached the level is *censored* at the last step. So is a seed that diverged,
whenever it did: it never will reach it.
"""

import math
import warnings
from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy.stats import CensoredData, binomtest, ecdf, logrank

from jaxtie.config import names_of
from jaxtie.exor import analysis
from jaxtie.results.tables import Table, arms_of, format_estimate, format_number, last_step

CONFIDENCE = 0.95
ROUNDING = 1e-9  # a product of shares that should be a half may be a little more


class Times(NamedTuple):
    """The step at which each seed reached a level, or the last one if it is censored: (S,)."""

    step_S: np.ndarray
    censored_S: np.ndarray


def times_to_level(
    step_T: np.ndarray, loss_SxT: np.ndarray, level: float, *, for_good: bool = False
) -> Times:
    """Return when each curve reaches a level, as the module defines it. NaN is not below it.

    `for_good`: when it does so for the last time and stays there.
    """
    below_SxT: np.ndarray = np.asarray(loss_SxT) <= level
    stays_SxT = below_SxT & np.pad(below_SxT[:, 1:], ((0, 0), (0, 1)))
    if for_good:
        stays_SxT &= np.logical_and.accumulate(below_SxT[:, ::-1], axis=1)[:, ::-1]
    reached_S = stays_SxT.any(axis=1)
    return Times(np.where(reached_S, step_T[stays_SxT.argmax(axis=1)], step_T[-1]), ~reached_S)


def exit_times(results: xr.Dataset, event: str, *, for_good: bool = False) -> dict[str, Times]:
    """Return arm -> steps at which an event happens, up to the last step of all seeds.

    `for_good`: at which it has happened and is not undone later.
    """
    loss = results["train_loss"].sel(eval_step=slice(0, last_step(results)))
    steps, level = loss["eval_step"].values, float(analysis.threshold_of(results, event))
    curves = loss.transpose("arm", "seed", "eval_step")
    return {
        arm: times_to_level(steps, curves.sel(arm=arm).values, level, for_good=for_good)
        for arm in names_of(arms_of(results))
    }


def plateau_exit_table(results: xr.Dataset) -> Table:
    """Show how many seeds leave the plateaus, when, and whether before those of the first arm."""
    last = last_step(results)
    diverged = (results["diverged_at"] >= 0).sum("seed")
    reference, *_ = names_of(arms_of(results))
    rows = []
    for event, level in analysis.exit_levels(results).items():
        times, for_good = (exit_times(results, event, for_good=own) for own in (False, True))
        for arm, own in times.items():
            counts = ((~own.censored_S).sum(), own.censored_S.sum(), int(diverged.sel(arm=arm)))
            middles = [
                format_estimate(
                    *median_time(kaplan_meier(each[arm])),
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


def _compare_times(own: Times, other: Times) -> tuple[str, ...]:
    """Return the cells that compare an arm's times with another arm's."""
    test = sign_test(own, other)
    inconclusive = len(own.step_S) - test.won - test.lost
    p_values = (test.p, logrank_p(own, other))
    return (
        f"{test.won} : {test.lost} ({inconclusive})",
        format_estimate(test.low, test.share, test.high),
        *("< 0.001" if p < 0.001 else format_number(p) for p in p_values),
    )


class Curve(NamedTuple):
    """Share of seeds that have reached a level, from each of T steps on; its 95 % band or NaN."""

    step_T: np.ndarray
    share_T: np.ndarray
    low_T: np.ndarray
    high_T: np.ndarray


class SignTest(NamedTuple):
    """Pairs won and lost, the share won with its exact interval, and p; NaN if none is decided."""

    won: int
    lost: int
    share: float
    low: float
    high: float
    p: float


def median_time(curve: Curve) -> tuple[float, float, float]:
    """Return the first step by which half of the seeds have reached a level: low, median, high.

    The 95 % interval is Brookmeyer and Crowley's: the steps at which the curve's band contains a
    half. Infinite where a half is not reached.
    """

    def first(share_T: np.ndarray) -> float:
        reached_T = share_T >= 0.5 - ROUNDING
        return float(curve.step_T[reached_T.argmax()]) if reached_T.any() else np.inf

    return first(curve.high_T), first(curve.share_T), first(curve.low_T)


def logrank_p(times: Times, other: Times) -> float:
    """Return p of the log-rank test, as if the two shared no seeds; NaN without any event."""
    with np.errstate(invalid="ignore"):  # 0 / 0 without events, or all at once
        return float(logrank(for_scipy(times), for_scipy(other)).pvalue)


def sign_test(times: Times, other: Times) -> SignTest:
    """Test by signs which of the two reaches the level first, seed by seed.

    A seed that reached it in one and, for as long as it was observed, not in the other was first in
    the former. Seeds that reached it at the same evaluation in both, or in neither, do not count.
    """

    def count(one: Times, two: Times) -> int:
        later_S = (one.step_S < two.step_S) | ((one.step_S == two.step_S) & two.censored_S)
        return int(np.sum(~one.censored_S & later_S))

    won, lost = count(times, other), count(other, times)
    if not won + lost:
        return SignTest(0, 0, *[np.nan] * 4)
    test = binomtest(won, won + lost)
    low, high = test.proportion_ci(CONFIDENCE, method="exact")
    return SignTest(won, lost, *map(float, (test.statistic, low, high, test.pvalue)))


def for_scipy(times: Times) -> CensoredData:
    """Return times as SciPy's class."""
    return CensoredData.right_censored(times.step_S, times.censored_S)


def kaplan_meier(times: Times) -> Curve:
    """Estimate the share of seeds that have reached a level, from step 0 on (1 - Kaplan–Meier).

    The pointwise band is Greenwood's for ln(-ln S), which stays within 0 and 1; NaN where no seed
    has reached it, or all have.
    """
    survival = ecdf(for_scipy(times)).sf
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The confidence interval is undefined", RuntimeWarning)
        band = survival.confidence_interval(CONFIDENCE, method="log-log")
    shares = ([0.0, *(1 - each.probabilities)] for each in (survival, band.high, band.low))
    share_T, low_T, high_T = map(np.array, shares)
    low_T[0] = high_T[0] = np.nan
    return Curve(np.array([0.0, *survival.quantiles]), share_T, low_T, high_T)
