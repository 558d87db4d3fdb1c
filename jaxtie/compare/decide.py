"""Estimate the gap of two arms, decide at a margin, plan further seeds. Imports no jax.

Losses are in nats, or in bits per byte. Seeds are along the last axis; axes before it are draws.
"""

import math
from typing import NamedTuple

import numpy as np

ERROR, POWER = 0.1, 0.8  # of intervals, to miss the gap; of plans, to decide
# Deviation of a loss over seeds, nat: the geometric mean of the four comparisons in
# experiments/data/published-comparisons.csv that state one (0.0014, 0.0025, 0.004, 0.036). Plans
# for arms of fewer than `ENOUGH` seeds give it the weight of four degrees of freedom.
DEVIATION, DEGREES, ENOUGH = 0.005, 4, 4
# Where only some seeds are in both arms, weights follow from the correlation of the pairs, which
# is drawn to 1/2 as by two further pairs.
CORRELATION, MADE_UP_PAIRS = 0.5, 2
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


def interval(ends: Ends) -> tuple[np.ndarray, np.ndarray]:
    """Return the gap, A − B, and half the width of its 90 % interval; NaN for one seed each.

    The means of the arms weight pairs and other seeds by generalised least squares. With pairs only
    this is the paired t-test, without pairs it is Welch's but for the degrees of freedom, which are
    those of variances drawn to each other: two seeds say little about theirs. Weights that are
    estimated widen the interval (Meier 1953). An arm of one seed has the deviation of the other.

    Printed losses are wrong by their last digit: independently if seeds differ by more than a
    digit, else all seeds of an arm alike. `tests/compare/test_decide.py` has the coverage.
    """
    from scipy.special import ndtri, stdtrit  # heavy

    x, y, pairs, each_digit = ends
    counts = x.shape[-1], y.shape[-1]
    variances = [own.var(-1, ddof=1) + 1e-20 if own.shape[-1] > 1 else None for own in (x, y)]
    a, b = (own if own is not None else other for own, other in zip(variances, variances[::-1]))
    if a is None or b is None:
        return x.mean(-1) - y.mean(-1), np.full(x.shape[:-1], math.nan)
    if min(counts) == 1:
        gap, variance = x.mean(-1) - y.mean(-1), a * (1 / counts[0] + 1 / counts[1])
        degrees = np.full_like(gap, max(counts) - 1)
    else:
        gap, variance, degrees = _weighted(x, y, pairs if pairs > 1 else 0, a, b)
    digits = [*zip(each_digit, (a, b), counts)]
    single = sum(digit**2 / 12 / count for digit, _, count in digits)
    # Square of an arm's common error: 0.09 if its seeds are equal, where 1/12 would be too short
    # for the 90 % of two errors, then as its first harmonic; rounding adds 1/12 to the variance.
    common = sum(
        0.09 * digit**2 * np.exp(-((2 * math.pi) ** 2) * np.maximum(own / digit**2 - 1 / 12, 0))
        for digit, own, _ in digits
        if digit
    )
    z = ndtri(1 - ERROR / 2)
    half = np.maximum(stdtrit(degrees, 1 - ERROR / 2) * np.sqrt(variance), z * np.sqrt(single))
    return gap, np.hypot(half, z * np.sqrt(common))


def _weighted(
    x: np.ndarray, y: np.ndarray, pairs: int, var_a: np.ndarray, var_b: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return gap, variance and degrees of freedom (Satterthwaite); see `interval`."""
    df_a, df_b = x.shape[-1] - 1, y.shape[-1] - 1
    only_a, only_b = x.shape[-1] - pairs, y.shape[-1] - pairs
    pooled = (df_a * var_a + df_b * var_b) / (df_a + df_b)
    likely_a, likely_b = (df_a * var_a + pooled) / (df_a + 1), (df_b * var_b + pooled) / (df_b + 1)
    known = max(pairs - 1, 0) + MADE_UP_PAIRS
    a = b = of_pairs = both = np.zeros_like(pooled)
    if pairs:
        ratio = (x[..., :pairs] - y[..., :pairs]).var(-1, ddof=1) / (2 * pooled)
        ratio = ((pairs - 1) * ratio + MADE_UP_PAIRS * (1 - CORRELATION)) / known
        correlation = 1 - np.clip(ratio, 0.02, 1.5)
        # The weights of the pairs in the mean of each arm that minimise the gap's variance.
        alone_a, alone_b, p = (1 / max(count, 1e-9) for count in (only_a, only_b, pairs))
        first, second, cross = p + alone_a, p + alone_b, correlation * p
        scale = first * second - cross**2
        a = (alone_a * second + cross * alone_b) / scale
        b = (alone_b * first + cross * alone_a) / scale
        both = correlation * np.sqrt(likely_a * likely_b)
        differences = a[..., None] * x[..., :pairs] - b[..., None] * y[..., :pairs]
        of_pairs = (differences.var(-1, ddof=1) + 1e-20) / pairs
        gap = differences.mean(-1)
    else:
        gap = np.zeros_like(pooled)
    own_a, own_b = ((1 - w) ** 2 / max(only, 1) for w, only in ((a, only_a), (b, only_b)))
    gap = gap + (1 - a) * x[..., pairs:].mean(-1) if only_a else gap
    gap = gap - (1 - b) * y[..., pairs:].mean(-1) if only_b else gap
    variance = of_pairs + own_a * var_a + own_b * var_b
    variance = variance * (1 + 2 * (a * (1 - a) + b * (1 - b)) / known)
    # That is a sum of quadratic forms: half the variance of it, where any two share the pairs.
    count = max(pairs, 2)  # of a sum that is 0 without pairs
    of_both = (a**2 * likely_a + b**2 * likely_b - 2 * a * b * both) / count
    with_a, with_b = a * likely_a - b * both, a * both - b * likely_b
    shared = pairs - pairs / (df_a + 1) - pairs / (df_b + 1) + pairs**2 / (df_a + 1) / (df_b + 1)
    half = (
        of_both**2 / (count - 1)
        + own_a * (own_a * likely_a**2 + 2 * with_a**2 / count) / df_a
        + own_b * (own_b * likely_b**2 + 2 * with_b**2 / count) / df_b
        + 2 * own_a * own_b * both**2 * shared / df_a / df_b
    )
    return gap, variance, (of_both + own_a * likely_a + own_b * likely_b) ** 2 / half


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
    # The deviation is as uncertain as the share of the losses in it makes it.
    certain = (df + few) ** 2 / max(df, 1e-3)
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

    most = 1
    while most <= MOST_SEEDS and power(most) < POWER:
        most *= 2
    if most > MOST_SEEDS:
        return None, math.sqrt(of_loss)
    least = most // 2
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if power(middle) >= POWER else (middle, most)
    nearer = least if least and power(least) + power(most) > 2 * POWER else most
    return nearer, math.sqrt(of_loss)


def stuck(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which seeds of each arm are stuck: they end far above the others of their arm.

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
    return found[0], found[1]
