"""Best reachable loss, log-odds and equivalences of a process, in closed form. NumPy only.

A `joint_CxV` holds p(context, target) of one masked position and sums to 1 (see
`jaxtie.exor.data.enumerate_contexts`). Shapes: C contexts, L tokens, V symbols, N swaps.

Two symbols are semantically equivalent if swapping one for the other in a context changes no
prediction, and conditionally equivalent if they are equally likely in every context (paper,
section 3). VxV divergences measure how far two symbols are from equivalent: 0 up to rounding for
equivalent symbols, NaN where they are not defined. They take contexts without order, of the whole
process (`jaxtie.exor.data.enumerate_process`): a swap can lead out of a split.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


def best_accuracy(joint_CxV: np.ndarray) -> float:
    """Return the accuracy of the Bayes classifier, in [0, 1]."""
    return float(np.sum(np.max(joint_CxV, axis=1)))


def best_loss(joint_CxV: np.ndarray) -> float:
    """Return H(target | context) in nats: no model has a lower expected cross-entropy."""
    joint = np.asarray(joint_CxV, np.float64)
    context_Cx1 = joint.sum(axis=1, keepdims=True)
    conditional = np.divide(joint, context_Cx1, out=np.ones_like(joint), where=joint > 0)
    return float(-np.sum(joint * np.log(conditional)))


class LogOdds(NamedTuple):
    """Mean and standard deviation of log-odds over contexts, nats."""

    mean: float
    deviation: float


def log_odds(pair: tuple[float, float], exchanged: float = 0.0) -> LogOdds:
    """Return ln p(second) - ln p(first) over the contexts where two symbols of one bit can occur.

    A model that is exact has (output_second - output_first)·h of this value for every hidden state
    h of such a context. NaN if one of the symbols never occurs.

    Args:
      pair: probabilities of the two symbols.
      exchanged: share of the cases in which the two probabilities are exchanged.
    """
    first, second = pair
    if first == 0 or second == 0:
        return LogOdds(math.nan, math.nan)
    ratio = math.log(second / first)
    return LogOdds(
        (1 - 2 * exchanged) * ratio, 2 * math.sqrt(exchanged * (1 - exchanged)) * abs(ratio)
    )


def equivalences(tokens_CxL: np.ndarray, joint_CxV: np.ndarray) -> dict[str, np.ndarray]:
    """Return the three VxV divergences of a process by name."""
    return {
        "semantic_divergence": semantic_divergence(tokens_CxL, joint_CxV),
        "conditional_divergence": conditional_divergence(joint_CxV),
        "conditional_log_ratio": conditional_log_ratio(joint_CxV),
    }


def semantic_divergence(tokens_CxL: np.ndarray, joint_CxV: np.ndarray) -> np.ndarray:
    """Return the expected total variation of predictions when symbols are swapped, in [0, 1]; VxV.

    The expectation is over the places where the first symbol occurs, weighted by the probability of
    their context. The two directions of a swap count equally, whichever symbol is rarer. Swaps into
    contexts that never occur do not count.
    """

    def total_variation(p_NxV: np.ndarray, q_NxV: np.ndarray) -> np.ndarray:
        return np.abs(p_NxV - q_NxV).sum(axis=1) / 2

    vocabulary = joint_CxV.shape[1]
    matrix_VxV = np.empty((vocabulary, vocabulary))
    for pair in itertools.combinations_with_replacement(range(vocabulary), 2):
        divergence = mean_over_swaps(tokens_CxL, joint_CxV, pair, total_variation)
        matrix_VxV[pair] = matrix_VxV[pair[::-1]] = divergence
    return matrix_VxV


def mean_over_swaps(
    tokens_CxL: np.ndarray,
    joint_CxV: np.ndarray,
    pair: tuple[int, int],
    distance: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> float:
    """Average a distance of predictions over the swaps of a pair; NaN if no swap occurs."""
    weight_C = joint_CxV.sum(axis=1)
    prediction_CxV = joint_CxV / weight_C[:, None]
    means = []
    for first, second in (pair, pair[::-1]):
        before_N, after_N = swaps(tokens_CxL, first, second, ordered=False)
        if not len(before_N):  # then none occurs in the other direction either
            return math.nan
        distance_N = distance(prediction_CxV[before_N], prediction_CxV[after_N])
        means.append(np.average(distance_N, weights=weight_C[before_N]))
    return float(np.mean(means))


def merge_contexts(
    tokens_CxL: np.ndarray, joint_CxV: np.ndarray, *, ordered: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Add up the probabilities of equal contexts; return them in the order of their tokens.

    If order does not matter, the tokens of each context are sorted first.
    """
    merged_CxL, context = np.unique(
        tokens_CxL if ordered else np.sort(tokens_CxL, axis=1), axis=0, return_inverse=True
    )
    merged_CxV = np.zeros((len(merged_CxL), joint_CxV.shape[1]))
    np.add.at(merged_CxV, context.ravel(), joint_CxV)
    return merged_CxL, merged_CxV


def swaps(
    tokens_CxL: np.ndarray, first: int, second: int, *, ordered: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Put `second` in every place of `first`; return the indices of the contexts before and after.

    Swaps whose result is not among the contexts are left out.
    """
    base = np.int64(max(tokens_CxL.max(), second) + 1)

    def number(tokens: np.ndarray) -> np.ndarray:
        return (tokens if ordered else np.sort(tokens)) @ base ** np.arange(tokens.shape[-1])

    order_C = np.argsort(number(tokens_CxL))
    known_C = number(tokens_CxL)[order_C]
    context, place = np.nonzero(tokens_CxL == first)
    swapped = tokens_CxL[context]
    swapped[np.arange(len(place)), place] = second
    at = np.minimum(np.searchsorted(known_C, number(swapped)), len(known_C) - 1)
    occurs = known_C[at] == number(swapped)
    return context[occurs], order_C[at[occurs]]


def conditional_divergence(joint_CxV: np.ndarray) -> np.ndarray:
    """Return the expected |p(first | context) - p(second | context)|, in [0, 1]; VxV.

    It is the total variation between p(target | context) and the same distribution with the two
    symbols exchanged. NaN for symbols that are never a target.
    """
    divergence = np.abs(joint_CxV[:, :, None] - joint_CxV[:, None, :]).sum(axis=0)
    occurs_V = joint_CxV.any(axis=0)
    return np.where(np.logical_and.outer(occurs_V, occurs_V), divergence, np.nan)


def conditional_log_ratio(joint_CxV: np.ndarray) -> np.ndarray:
    """Return the expected |ln p(first | context) - ln p(second | context)|, nats; VxV.

    The expectation is over the contexts where both symbols can occur; NaN if there are none. The
    log-odds then do not constrain the output embeddings of the pair.
    """
    log_CxV = np.log(joint_CxV, out=np.full(joint_CxV.shape, np.nan), where=joint_CxV > 0)
    ratio_CxVxV = np.abs(log_CxV[:, :, None] - log_CxV[:, None, :])
    weight_CxVxV = joint_CxV.sum(axis=1)[:, None, None] * np.isfinite(ratio_CxVxV)
    total, mass = np.nansum(ratio_CxVxV * weight_CxVxV, axis=0), weight_CxVxV.sum(axis=0)
    return np.divide(total, mass, out=np.full(mass.shape, np.nan), where=mass > 0)
