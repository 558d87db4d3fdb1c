"""Intervals over seeds, and when their losses reach a level. Imports no jax.

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

BOOTSTRAP = 2000  # resamples


def mean_interval(
    values: np.ndarray, axis: int = 0, error: float = 0.05
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over seeds and half the width of its interval (Student's t), omitting NaN.

    `error` is the probability that the interval misses the mean. Half the width is NaN for a single
    value.
    """
    from scipy.stats import t  # heavy

    count = np.sum(np.isfinite(values), axis=axis)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where there are no values, or one
        mean, deviation = np.nanmean(values, axis), np.nanstd(values, axis, ddof=1)
    half = deviation / np.sqrt(np.maximum(count, 1))
    return mean, half * t.ppf(1 - error / 2, np.maximum(count - 1, 1))


def median_interval(values: np.ndarray, error: float = 0.05) -> tuple[float, float, float]:
    """Return the median over seeds between the ends of its interval: low, median, high.

    NaN is omitted. The ends are two of the values, by rank (the interval of the sign test), so
    they hold for any distribution, and values may be infinite: a step that was never reached. The
    ends are NaN where there are too few values: fewer than 6 at 5 %. `error` is the greatest
    probability that the interval misses the median.
    """
    from scipy.stats import quantile_test  # heavy

    values = np.asarray(values, np.float64)
    values = values[~np.isnan(values)]
    if not len(values):
        return math.nan, math.nan, math.nan
    low, high = quantile_test(values).confidence_interval(1 - error)
    return float(low), float(np.median(values)), float(high)


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


def exit_concordance(
    step_T: np.ndarray, times: Times, measure_SxT: np.ndarray, horizon: int
) -> np.ndarray:
    """Return how well a small measure predicts that a seed reaches a level next: (S,).

    At step t the seeds at risk have not reached it. Those that reach it by t + `horizon` are
    compared with those that do not, at every t whose horizon ends by the last step. Concordance is
    the share of all these couples, over all t, in which the former has the smaller measure (ties:
    half): an area under the curve, stratified by time; 0.5 without any relation. Since seeds recur
    at many t, what is returned are jackknife values of seeds: their mean estimates it, and
    Student's interval of that mean accounts for the recurrence. NaN without couples, and of seeds
    whose measure or time is missing.
    """
    count = len(measure_SxT)
    agreed_S, couples_S = np.zeros(count), np.zeros(count)
    for step, measure_S in zip(step_T, measure_SxT.T, strict=True):
        if step + horizon > step_T[-1]:
            break
        at_risk_S = times.censored_S | (times.step_S > step)
        leaves_S = at_risk_S & ~times.censored_S & (times.step_S <= step + horizon)
        stays_S = at_risk_S & ~leaves_S
        couples = leaves_S[:, None] & stays_S[None]
        smaller, equal = (of(measure_S[:, None], measure_S[None]) for of in (np.less, np.equal))
        agreed = couples * (smaller + 0.5 * equal)
        for totals_S, each in ((agreed_S, agreed), (couples_S, couples)):
            totals_S += each.sum(axis=0) + each.sum(axis=1)
    # each couple counts for both of its seeds
    agreed, couples = agreed_S.sum() / 2, couples_S.sum() / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        without_S = (agreed - agreed_S) / (couples - couples_S)
        return count * agreed / couples - (count - 1) * without_S
