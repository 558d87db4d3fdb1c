"""Estimate the gap of two arms, decide at a margin, plan further seeds. Imports no jax.

Losses are in nats, or in bits per byte. Seeds are along the last axis; axes before it are draws.
"""

import math
from bisect import bisect_left
from typing import NamedTuple

import numpy as np

MARGIN = 0.01  # nat: a gap that matters, unless a user says otherwise
ERROR, POWER = 0.1, 0.8  # of intervals, to miss the gap; of plans, to decide
# Deviation of a loss over seeds, nat: the geometric mean of the four comparisons in
# advise/published-comparisons.csv that state one (0.0014, 0.0025, 0.004, 0.036). Plans
# for arms of fewer than `ENOUGH` seeds give it the weight of four degrees of freedom.
DEVIATION, DEGREES, ENOUGH = 0.005, 4, 4
MOST_SEEDS, DRAWS = 1024, 1000  # of a plan
# Seeds are stuck if they end this much above the others, nat, and further than normal ones do,
# but for this probability.
LEAST_JUMP, STUCK_LEVEL = 0.05, 1e-3


class Ends(NamedTuple):
    """Losses of two arms at one step.

    Attributes:
      a, b: by seed, (..., seeds); the first `pairs` of both are of the same seeds.
      digits: size of the last printed digit of either arm.
    """

    a: np.ndarray
    b: np.ndarray
    pairs: int
    digits: tuple[float, float] = (0.0, 0.0)

    @property
    def paired(self) -> int:
        """The pairs that count: two among other seeds show no correlation."""
        is_alone = self.pairs == self.a.shape[-1] == self.b.shape[-1] > 1
        return self.pairs if self.pairs > 2 or is_alone else 0


def interval(ends: Ends) -> tuple[np.ndarray, np.ndarray]:
    """Return the gap, A − B, and half the width of its 90 % interval; NaN for one seed each.

    The t-test of partially overlapping samples (Derrick, Russ, Toher and White 2017): the paired
    test with pairs only, Welch's test without. Its degrees of freedom are those of variances drawn
    to each other: two seeds say little of theirs. An arm of one seed takes the other's deviation.

    Printed losses are wrong by their last digit: independently if seeds differ by more than a
    digit, else all seeds of an arm alike.
    """
    from scipy.special import ndtri, stdtrit  # heavy

    x, y, digits, pairs = ends.a, ends.b, ends.digits, ends.paired
    counts = m, n = x.shape[-1], y.shape[-1]
    gap = x.mean(-1) - y.mean(-1)
    if m == n == 1:
        return gap, np.full_like(gap, math.nan)
    a, b = ((own if own.shape[-1] > 1 else y if own is x else x).var(-1, ddof=1) for own in (x, y))
    df, shared = _welch(a, b, m, n), 0.0
    if pairs:
        first, second = (own[..., :pairs] - own[..., :pairs].mean(-1)[..., None] for own in (x, y))
        scale = np.sqrt((first**2).sum(-1) * (second**2).sum(-1))
        correlation = (first * second).sum(-1) / (scale + 1e-20)
        shared = 2 * correlation * np.sqrt(a * b) * pairs / (m * n)
        only = m + n - 2 * pairs
        df = pairs - 1 + (df - pairs + 1) * only / (m + n)
    half = stdtrit(df, 1 - ERROR / 2) * np.sqrt(np.maximum(a / m + b / n - shared, 0))
    single = sum(digit**2 / 12 / count for digit, count in zip(digits, counts))
    # Square of an arm's common error: 0.09 if its seeds are equal, where 1/12 would be too short
    # for the 90 % of two errors, then as its first harmonic; rounding adds 1/12 to the variance.
    common = sum(
        0.09 * digit**2 * np.exp(-((2 * math.pi) ** 2) * np.maximum(own / digit**2 - 1 / 12, 0))
        for digit, own in zip(digits, (a, b))
        if digit
    )
    z = ndtri(1 - ERROR / 2)
    return gap, np.hypot(np.maximum(half, z * np.sqrt(single)), z * np.sqrt(common))


def _welch(a: np.ndarray, b: np.ndarray, m: int, n: int) -> np.ndarray:
    """Return the degrees of freedom of Welch, of variances that one seed draws to their mean."""
    if min(m, n) == 1:
        return np.full_like(a, m + n - 2)
    pooled = ((m - 1) * a + (n - 1) * b) / (m + n - 2) + 1e-20
    a, b = (((size - 1) * own + pooled) / size**2 for own, size in ((a, m), (b, n)))
    return (a + b) ** 2 / (a**2 / (m - 1) + b**2 / (n - 1))


def decide(low: float, high: float, margin: float) -> str:
    """Classify an interval of the gap; each answer is wrong with at most 5 %."""
    if low > margin or high < -margin:
        return "larger" if low > margin else "smaller"
    return "no difference beyond the margin" if -margin < low and high < margin else "not decided"


def plan(ends: Ends, margin: float, deviation: float) -> tuple[int | None, float]:
    """Return how many more seeds of each arm decide with `POWER`, and the deviation assumed.

    Draws new seeds for a true gap of 0, adds them to the losses that there are, and judges all by
    `interval`. They are pairs if there are pairs. Deviations are those seen; in arms of fewer than
    `ENOUGH` seeds, drawn to that of published seeds, `deviation`.

    Returns:
      Seeds, those with the power nearest to `POWER`, None if over `MOST_SEEDS`; the deviation of a
      loss over seeds.
    """
    rng, (x, y, pairs, digits) = np.random.default_rng(0), ends
    few = DEGREES if min(len(x), len(y)) < ENOUGH else 0
    mean_x, mean_y = (own.mean() if len(own) else 0.0 for own in (x, y))
    df = max(len(x) + len(y) - 2, 0)
    squares = ((x - mean_x) ** 2).sum() + ((y - mean_y) ** 2).sum()
    of_loss = (squares + few * deviation**2) / (df + few)
    of_gap = 2 * of_loss
    if pairs:
        gaps, df = x[:pairs] - y[:pairs], pairs - 1
        squares = ((gaps - gaps.mean()) ** 2).sum()
        of_gap = (squares + few * 2 * deviation**2) / (df + few) if df + few else of_gap
    # Published seeds make the deviation less uncertain than the losses alone say.
    certain = (df + DEGREES) ** 2 / max(df, 1e-3)
    scale = np.sqrt(certain / rng.chisquare(certain, (DRAWS, 1)))
    known = 1 / len(x) + 1 / len(y) if len(x) and len(y) else 0.0
    level = rng.normal(size=(DRAWS, 1)) * math.sqrt(of_loss * known) / 2 + (mean_x + mean_y) / 2
    spread = math.sqrt(of_gap) / 2, math.sqrt(max(of_loss - of_gap / 4, 0))
    old = [np.broadcast_to(own, (DRAWS, len(own))) for own in (x, y)]

    def power(count: int) -> float:
        normal = (np.random.default_rng(i).normal(size=(count, DRAWS)).T for i in (1, 2))
        difference, both = (own * scale * each for own, each in zip(spread, normal))
        new = (level + both + difference, level + both - difference)  # pairs come first
        a, b = (np.hstack(own) for own in zip(new, old))
        gap, half = interval(Ends(a, b, pairs + count if pairs else 0, digits))
        return float((np.abs(gap) + half < margin).mean())

    most = next((2**i for i in range(11) if power(2**i) >= POWER), None)
    if most is None:
        return None, math.sqrt(of_loss)
    counts = range(most // 2 + 1, most + 1)
    count = counts[bisect_left(counts, True, key=lambda own: power(own) >= POWER)]
    is_nearer = count > 1 and power(count - 1) + power(count) > 2 * POWER
    return count - is_nearer, math.sqrt(of_loss)


def stuck(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which seeds of each arm are stuck: far above the others of their arm, above all else.

    The losses of an arm are split at their largest jump. Those above it are stuck if they are at
    least `LEAST_JUMP` above the mean of the others, and further than normal ones are, by Student's
    t with the deviation within the parts of both arms.
    """
    from scipy.special import stdtrit  # heavy

    cuts = [int(np.argmax(np.diff(np.sort(own)))) + 1 if len(own) > 1 else 1 for own in (a, b)]
    parts = [np.split(np.sort(own), [cut]) for own, cut in zip((a, b), cuts)]
    every = [part for own in parts for part in own if len(part)]
    df = sum(len(part) - 1 for part in every)
    deviation = math.sqrt(sum(((part - part.mean()) ** 2).sum() for part in every) / max(df, 1))
    found = []
    for own, (below, above) in zip((a, b), parts):
        error = max(deviation, 1e-6) * math.sqrt(1 + 1 / len(below))
        limit = error * stdtrit(df, 1 - STUCK_LEVEL / len(own)) if df else math.inf
        is_stuck = len(above) > 0 and above[0] > below.mean() + max(limit, LEAST_JUMP)
        found.append(own >= above[0] if is_stuck else np.zeros(len(own), bool))
    top_a, top_b = (own[~is_stuck].max() for own, is_stuck in zip((a, b), found))
    return found[0] & (a > top_b), found[1] & (b > top_a)  # others as high are kept
