"""Statistics over seeds: means, medians, correlations, orders, when a level is reached. Imports no
jax.
"""

import math

import numpy as np

BOOTSTRAP = 2000


def mean_interval(
    values: np.ndarray, axis: int = 0, error: float = 0.05
) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds and half the width of its confidence interval (Student's t); NaN values are
    left out.

    `error`: the probability that the interval misses the mean. Half the width is NaN where there is
    a single value.
    """
    from scipy.stats import t  # heavy

    count = np.sum(np.isfinite(values), axis=axis)
    total = np.nansum(values, axis=axis)
    mean = np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)
    spread = np.nansum((values - np.expand_dims(mean, axis)) ** 2, axis=axis)
    variance = np.divide(spread, count - 1, out=np.full(np.shape(total), np.nan), where=count > 1)
    return mean, t.ppf(1 - error / 2, np.maximum(count - 1, 1)) * np.sqrt(
        variance / np.maximum(count, 1)
    )


def median_interval(values: np.ndarray, error: float = 0.05) -> tuple[float, float, float]:
    """Median over seeds between the ends of its confidence interval: low, median, high. NaN values
    are left out.

    The ends are two of the values, by their rank: so many of a sample lie on either side of the
    true median as heads fall, whatever the distribution is (the interval of the sign test). One
    seed that is far off moves nothing, and it may be
    infinite: a step that it never reached.

    Args:
      values: (seeds,).
      error: the probability, at most, that the interval misses the median. The ends are NaN where
        there are too few values
        for it: fewer than 6 at 5 %.
    """
    from scipy.stats import quantile_test  # heavy

    values = np.asarray(values, np.float64)
    values = values[~np.isnan(values)]
    if not len(values):
        return math.nan, math.nan, math.nan
    low, high = quantile_test(values).confidence_interval(1 - error)
    return float(low), float(np.median(values)), float(high)


def somers_d(divergence_P: np.ndarray, distance_SxP: np.ndarray) -> np.ndarray:
    """Somers' D of distances given divergences, in [-1, 1]; one for each seed, (S,).

    Over all couples of pairs that the theory puts in an order: share in that order less share in
    the other. Couples of equal divergence do not count, so 1 can be reached. NaN where the theory
    orders no couple.
    """
    from scipy.stats import somersd  # heavy

    divergence_P = np.round(divergence_P, 9)  # rounding is not an order
    if len(np.unique(divergence_P)) < 2:
        return np.full(len(distance_SxP), np.nan)
    return np.array(
        [
            np.nan if np.isnan(own_P).any() else somersd(divergence_P, own_P).statistic
            for own_P in distance_SxP
        ]
    )


def correlation(
    x_K: np.ndarray, values_KxS: np.ndarray, *, ranks: bool, error: float = 0.05
) -> tuple[float, float, float]:
    """Correlation over all members of a setting's K values with an outcome: Pearson's, or
    Spearman's of ranks.

    Settings that are not finite, and seeds that lack an outcome at any setting, are left out.

    Returns:
      It and its interval, which misses with probability `error`: percentiles of a bootstrap over
      seeds, whose members are not independent. NaN where there are fewer than two seeds.
    """
    from scipy.stats import bootstrap, pearsonr, rankdata  # heavy

    usable_K, usable_S = np.isfinite(x_K), np.isfinite(values_KxS).all(axis=0)
    y_KxS = values_KxS[usable_K][:, usable_S].astype(np.float64)
    count = y_KxS.shape[1]
    if count < 2:
        return math.nan, math.nan, math.nan
    x_N = np.repeat(x_K[usable_K], count)

    def of_seeds(seeds_RxS: np.ndarray, axis: int = -1) -> np.ndarray:
        y_RxN = np.moveaxis(y_KxS[:, seeds_RxS], 0, -2).reshape(*seeds_RxS.shape[:-1], -1)
        pair = (rankdata(x_N), rankdata(y_RxN, axis=-1)) if ranks else (x_N, y_RxN)
        return pearsonr(np.broadcast_to(pair[0], y_RxN.shape), pair[1], axis=-1).statistic

    draws = max(BOOTSTRAP, math.ceil(10 / error))  # some beyond either end
    how = {
        "n_resamples": draws,
        "confidence_level": 1 - error,
        "method": "percentile",
        "batch": BOOTSTRAP,
    }
    found = bootstrap((np.arange(count),), of_seeds, rng=0, **how)
    low, high = map(float, found.confidence_interval)
    return float(of_seeds(np.arange(count))), low, high


def first_at_level(step_T: np.ndarray, loss_SxT: np.ndarray, level: float) -> np.ndarray:
    """When each curve is first at or below a level, straight lines between records; at least 1,
    infinity if never; (S,).
    """
    below = loss_SxT <= level
    first = below.argmax(axis=-1)
    before = np.maximum(first - 1, 0)

    def of_curve(at_S: np.ndarray) -> np.ndarray:
        return np.take_along_axis(loss_SxT, at_S[:, None], axis=-1)[:, 0].astype(np.float64)

    drop = of_curve(before) - of_curve(first)
    share = np.divide(of_curve(before) - level, drop, out=np.ones_like(drop), where=drop > 0)
    steps = step_T[before] + share * (step_T[first] - step_T[before])
    return np.where(below.any(axis=-1), np.maximum(steps, 1), np.inf)
