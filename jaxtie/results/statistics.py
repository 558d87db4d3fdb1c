"""Intervals over seeds. Imports no jax."""

import math
import warnings

import numpy as np


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
