"""When something happens to a seed, where to some it has not happened by the end: survival analysis
by SciPy. No jax.

A curve *comes* to a level at the first evaluation at which it is at or below the level and is so at
the next evaluation too: a dip that one evaluation sees does not count, nor does what only the last
one sees. Time is the step of the first of the two, so it is known to one interval between
evaluations.

A seed that has not come is *censored* at the last step. So is a seed that diverged, whenever it
did: it will not come any more and counts to the end among those that have not. Shares are of all
seeds, then.
"""

import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from scipy.stats import CensoredData  # heavy

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
