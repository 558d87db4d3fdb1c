"""Intervals, rank statistics and survival analysis over seeds.

Statistics over seeds: means, medians, correlations, orders, when a level is reached. Imports no
jax.

When something happens to a seed, where to some it has not happened by the end: survival analysis
by SciPy. No jax.

A curve *comes* to a level at the first evaluation at which it is at or below the level and is so at
the next evaluation too: a dip that one evaluation sees does not count, nor does what only the last
one sees. Time is the step of the first of the two, so it is known to one interval between
evaluations.

A seed that has not come is *censored* at the last step. So is a seed that diverged, whenever it
did: it will not come any more and counts to the end among those that have not. Shares are of all
seeds, then.
"""

import math
import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from scipy.stats import CensoredData  # heavy


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


CONFIDENCE = 0.95
ROUNDING = 1e-9  # a product of shares that should be a half may be a little more


class Times(NamedTuple):
    """Of every seed (S,) the step at which it came, or the last step, and whether it had not come
    by then.
    """

    step_S: np.ndarray
    censored_S: np.ndarray

    def by(self, step: float) -> np.ndarray:
        """Which seeds had come at a step, bool (S,)."""
        return ~self.censored_S & (self.step_S <= step)

    def scipys(self) -> "CensoredData":
        """The same for SciPy."""
        from scipy.stats import CensoredData

        return CensoredData.right_censored(self.step_S, self.censored_S)


class Curve(NamedTuple):
    """Share of the seeds that have come, a step function, from each of T steps on; its 95 % band,
    NaN where there is none.
    """

    step_T: np.ndarray
    share_T: np.ndarray
    low_T: np.ndarray
    high_T: np.ndarray


class SignTest(NamedTuple):
    """Of the pairs that were decided: how many each side won; the first side's share with its exact
    interval, and p.
    """

    won: int
    lost: int
    share: float
    low: float
    high: float
    p: float


def times_to_level(step_T: np.ndarray, loss_SxT: np.ndarray, level: float) -> Times:
    """When each curve comes to a level; see above. Values that are NaN are not below it."""
    below_SxT: np.ndarray = np.asarray(loss_SxT) <= level
    stays_SxT = below_SxT[:, :-1] & below_SxT[:, 1:]
    came_S = stays_SxT.any(axis=1)
    first_S = stays_SxT.argmax(axis=1) if stays_SxT.shape[1] else np.zeros(len(came_S), int)
    return Times(np.where(came_S, step_T[first_S], step_T[-1]), ~came_S)


def kaplan_meier(times: Times) -> Curve:
    """The share of seeds that have come: 1 - the estimate of Kaplan and Meier, from step 0 on.

    Its pointwise band is Greenwood's for ln(-ln S): it stays within 0 and 1; none where no seed has
    come, or all have.
    """
    from scipy.stats import ecdf

    survival = ecdf(times.scipys()).sf
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The confidence interval is undefined", RuntimeWarning)
        band = survival.confidence_interval(CONFIDENCE, method="log-log")
    shares = ([0.0, *(1 - each.probabilities)] for each in (survival, band.high, band.low))
    share_T, low_T, high_T = map(np.array, shares)
    low_T[0] = high_T[0] = np.nan
    return Curve(np.array([0.0, *survival.quantiles]), share_T, low_T, high_T)


def median_time(curve: Curve) -> tuple[float, float, float]:
    """The first step by which half of the seeds have come, between the ends of its 95 % interval:
    low, median, high.

    The interval of Brookmeyer and Crowley: the steps at which the band of the curve holds a half.
    Infinity where a half is not reached.
    """

    def first(share_T: np.ndarray) -> float:
        reached_T = share_T >= 0.5 - ROUNDING
        return float(curve.step_T[reached_T.argmax()]) if reached_T.any() else np.inf

    return first(curve.high_T), first(curve.share_T), first(curve.low_T)


def logrank_p(times: Times, other: Times) -> float:
    """The log-rank test's p: do the two come at the same rate? As if they shared no seeds. NaN
    where none has come.
    """
    from scipy.stats import logrank

    with np.errstate(invalid="ignore"):  # where no seed has come, or all at once, there is 0 / 0
        return float(logrank(times.scipys(), other.scipys()).pvalue)


def sign_test(won_S: np.ndarray, lost_S: np.ndarray) -> SignTest:
    """Exact binomial test of which side wins a pair; which pairs either side won, bool (S,). NaN
    where no pair is decided.
    """
    from scipy.stats import binomtest

    won, lost = int(np.sum(won_S)), int(np.sum(lost_S))
    if not won + lost:
        return SignTest(0, 0, *[np.nan] * 4)
    result = binomtest(won, won + lost)
    low, high = result.proportion_ci(CONFIDENCE, method="exact")
    return SignTest(
        won, lost, float(result.statistic), float(low), float(high), float(result.pvalue)
    )


def race(times: Times, other: Times) -> SignTest:
    """Which of the two comes first, seed by seed.

    A seed that came in one and not in the other, for as long as it was seen there, came first where
    it came. Seeds that came at the same evaluation in both, or in neither, decide nothing.
    """

    def is_before(one: Times, two: Times) -> np.ndarray:
        later_S = (one.step_S < two.step_S) | ((one.step_S == two.step_S) & two.censored_S)
        return ~one.censored_S & later_S

    return sign_test(is_before(times, other), is_before(other, times))


def share_interval(came_S: np.ndarray) -> tuple[float, float]:
    """The exact 95 % interval (Clopper and Pearson) of the share of seeds that have come; bool
    (S,), S > 0.
    """
    from scipy.stats import binomtest

    low, high = binomtest(int(came_S.sum()), len(came_S)).proportion_ci(CONFIDENCE, method="exact")
    return float(low), float(high)
