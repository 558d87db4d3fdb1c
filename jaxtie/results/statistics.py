"""Statistics over seeds: means, medians, correlations, orders, when a level is reached. NumPy alone; imports no jax."""

import math

import numpy as np

BOOTSTRAP = 2000


def mean_interval(values: np.ndarray, axis: int = 0, error: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds and half the width of its confidence interval (Student's t); NaN values are left out.

    `error`: the probability that the interval misses the mean. Half the width is NaN where there is a single value.
    """
    from scipy.stats import t  # heavy

    count = np.sum(np.isfinite(values), axis=axis)
    total = np.nansum(values, axis=axis)
    mean = np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)
    spread = np.nansum((values - np.expand_dims(mean, axis)) ** 2, axis=axis)
    variance = np.divide(spread, count - 1, out=np.full(np.shape(total), np.nan), where=count > 1)
    return mean, t.ppf(1 - error / 2, np.maximum(count - 1, 1)) * np.sqrt(variance / np.maximum(count, 1))


def median_interval(values: np.ndarray, error: float = 0.05) -> tuple[float, float, float]:
    """Median over seeds between the ends of its confidence interval: low, median, high. NaN values are left out.

    The ends are two of the values, by their rank: so many of a sample lie on either side of the true median as heads fall,
    whatever the distribution is (the interval of the sign test). One seed that is far off moves nothing, and it may be
    infinite: a step that it never reached.

    Args:
      values: (seeds,).
      error: the probability, at most, that the interval misses the median. The ends are NaN where there are too few values
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

    Over all couples of pairs that the theory puts in an order: share in that order less share in the other. It is
    Kendall's tau but for couples of equal divergence, of which the theory says nothing: so 1 can be reached. NaN where the
    theory orders no couple.
    """
    divergence_P = np.round(divergence_P, 9)  # rounding is not an order
    expected_PxP = (divergence_P[:, None] > divergence_P).astype(int) - (divergence_P[:, None] < divergence_P)
    found_SxPxP = np.sign(distance_SxP[:, :, None] - distance_SxP[:, None, :])
    couples = np.abs(expected_PxP).sum()
    return (expected_PxP * found_SxPxP).sum(axis=(1, 2)) / couples if couples else np.full(len(distance_SxP), np.nan)


def correlation(x_K: np.ndarray, values_KxS: np.ndarray, *, ranks: bool, error: float = 0.05) -> tuple[float, float, float]:
    """Correlation over all members of a setting's K values with an outcome: Pearson's, or Spearman's of ranks.

    Settings that are not finite, and seeds that lack an outcome at any setting, are left out.

    Returns:
      It and its interval, which misses with probability `error`: percentiles of a bootstrap over seeds, whose
      members are not independent. NaN where there are fewer than two seeds.
    """
    from scipy.stats import rankdata  # heavy

    usable_S = np.isfinite(values_KxS).all(axis=0)
    usable_K = np.isfinite(x_K)
    y_KxS, count = values_KxS[usable_K][:, usable_S].astype(np.float64), usable_S.sum()
    if count < 2:
        return math.nan, math.nan, math.nan
    draws = max(BOOTSTRAP, math.ceil(10 / error))  # some beyond either end
    draws_RxS = np.random.default_rng(0).integers(count, size=(draws, count))
    sampled_RxN = y_KxS[:, np.concatenate([np.arange(count)[None], draws_RxS])].swapaxes(0, 1).reshape(1 + draws, -1)
    x_N = np.repeat(x_K[usable_K], count)
    if ranks:
        sampled_RxN, x_N = rankdata(sampled_RxN, axis=1), rankdata(x_N)
    sampled_RxN = sampled_RxN - sampled_RxN.mean(axis=1, keepdims=True)
    x_N = x_N - x_N.mean()
    r_R = sampled_RxN @ x_N / np.sqrt(np.square(sampled_RxN).sum(axis=1) * np.square(x_N).sum())
    return r_R[0], *np.quantile(r_R[1:], [error / 2, 1 - error / 2])


def first_at_level(step_T: np.ndarray, loss_SxT: np.ndarray, level: float) -> np.ndarray:
    """When each curve is first at or below a level, straight lines between records; at least 1, infinity if never; (S,)."""
    below = loss_SxT <= level
    first = below.argmax(axis=-1)
    before = np.maximum(first - 1, 0)

    def of_curve(at_S: np.ndarray) -> np.ndarray:
        return np.take_along_axis(loss_SxT, at_S[:, None], axis=-1)[:, 0].astype(np.float64)

    drop = of_curve(before) - of_curve(first)
    share = np.divide(of_curve(before) - level, drop, out=np.ones_like(drop), where=drop > 0)
    steps = step_T[before] + share * (step_T[first] - step_T[before])
    return np.where(below.any(axis=-1), np.maximum(steps, 1), np.inf)


def rank_correlation(x_N: np.ndarray, y_N: np.ndarray, error: float = 0.05) -> tuple[float, float, float]:
    """Spearman's rank correlation of independent pairs, and its interval, which misses with probability `error`.

    The interval is Bonett and Wright's (Psychometrika 65, 2000): atanh(r) ± z·√((1 + r²/2) / (N − 3)). Of one order alone it
    would be a point, so there it is that of the value next to it, of two neighbours that changed places. NaN where there are
    fewer than four pairs, or one side is constant.
    """
    from scipy.stats import norm, rankdata  # heavy

    ranks = [rankdata(values) - (len(x_N) + 1) / 2 for values in (x_N, y_N)]
    sizes = [np.sqrt(np.sum(rank_N**2)) for rank_N in ranks]
    if len(x_N) < 4 or not all(sizes):
        return math.nan, math.nan, math.nan
    r = float(np.clip(ranks[0] @ ranks[1] / (sizes[0] * sizes[1]), -1, 1))
    half = norm.ppf(1 - error / 2) * math.sqrt((1 + r**2 / 2) / (len(x_N) - 3))
    most = 1 - 12 / (len(x_N) * (len(x_N) ** 2 - 1))
    middle = np.arctanh(np.clip(r, -most, most))
    return r, float(np.tanh(middle - half)), float(np.tanh(middle + half))
