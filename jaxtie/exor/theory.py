"""What must come out, in closed form. NumPy only.

A `joint_CxV` is the exact law of one masked position: p(context c and target symbol v), summing to
1 (see
`jaxtie.exor.data.enumerate_contexts`).

Two symbols are semantically equivalent if swapping one for the other in a context changes no
prediction, conditionally equivalent if they are equally likely in every context (paper, section 3).
Two divergences measure by how far they fail: VxV, symmetric, 0 (but for rounding) exactly where the
symbols are equivalent, NaN where the process does not say. It is to be the whole process
(`jaxtie.exor.data.enumerate_process`): a swap leads out of a split.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np


def best_accuracy(joint_CxV: np.ndarray) -> float:
    """The accuracy of always naming the likeliest symbol (Bayes), in [0, 1]."""
    return float(np.sum(np.max(joint_CxV, axis=1)))


def best_loss(joint_CxV: np.ndarray) -> float:
    """The conditional entropy H(target | context), nats: no model has a lower expected
    cross-entropy.
    """
    joint = np.asarray(joint_CxV, np.float64)
    context_Cx1 = joint.sum(axis=1, keepdims=True)
    conditional = np.divide(joint, context_Cx1, out=np.ones_like(joint), where=joint > 0)
    return float(-np.sum(joint * np.log(conditional)))


def loss_without_context(joint_CxV: np.ndarray) -> float:
    """H(target), nats: the best loss of who knows how often each symbol is drawn and nothing
    else.
    """
    return best_loss(joint_CxV.sum(axis=0, keepdims=True))


def loss_of_label_alone(
    tokens_CxL: np.ndarray, joint_CxV: np.ndarray, labels: tuple[int, int]
) -> float:
    """H(target | label), nats: the best loss of who sees the label and no bit, so knows no parity.

    Args:
      labels: token ids, one of which stands in every context.
    """
    has_first_C = (tokens_CxL == labels[0]).any(axis=1)
    sides = [joint_CxV[has_first_C].sum(axis=0), joint_CxV[~has_first_C].sum(axis=0)]
    return best_loss(np.stack(sides))


class LogOdds(NamedTuple):
    """Of two symbols over the contexts where they can stand, nats: expectation and standard
    deviation.
    """

    mean: float
    deviation: float


def log_odds(pair: tuple[float, float], exchanged: float = 0.0) -> LogOdds:
    """ln p(second) - ln p(first) of two exchangeable symbols over the contexts where they can stand
    (ln 9 for X-Y).

    So it must be (output_second - output_first)·h for every such hidden state h. NaN where one of
    them never occurs.

    Args:
      pair: their probabilities.
      exchanged: in what share of the cases these are exchanged.
    """
    first, second = pair
    if first == 0 or second == 0:
        return LogOdds(math.nan, math.nan)
    ratio = math.log(second / first)
    return LogOdds(
        (1 - 2 * exchanged) * ratio, 2 * math.sqrt(exchanged * (1 - exchanged)) * abs(ratio)
    )


def equivalences(
    tokens_CxL: np.ndarray, joint_CxV: np.ndarray, *, ordered: bool
) -> dict[str, np.ndarray]:
    """Every measure of a process by the name of its function; arguments as of
    `semantic_divergence`.
    """
    return {
        "semantic_divergence": semantic_divergence(tokens_CxL, joint_CxV, ordered=ordered),
        "conditional_divergence": conditional_divergence(joint_CxV),
        "conditional_log_ratio": conditional_log_ratio(joint_CxV),
    }


def semantic_divergence(
    tokens_CxL: np.ndarray, joint_CxV: np.ndarray, *, ordered: bool
) -> np.ndarray:
    """By how much a prediction moves when one symbol is swapped for another in its context, in [0,
    1]; VxV.

    Draw a context, and in it one place where the first symbol stands (all such places of all
    contexts alike, but for the contexts' probabilities); put the second there. The divergence is
    the expected total variation, ½ Σ|p - p'|, between p(target | context) and p(target | swapped
    context), averaged over the two directions of the swap, whichever symbol is the rarer. Swapped
    contexts that never occur have no law and do not count; NaN where none occurs.

    Args:
      tokens_CxL: the contexts, no two alike.
      ordered: whether order matters; if not, each context's tokens are sorted.
    """
    vocabulary = joint_CxV.shape[1]
    weight_Cx1 = joint_CxV.sum(axis=1, keepdims=True)
    prediction_CxV = joint_CxV / weight_Cx1
    moved = np.full((vocabulary, vocabulary), np.nan)
    for first, second in itertools.product(range(vocabulary), repeat=2):
        before, after = swaps(tokens_CxL, first, second, ordered=ordered)
        if len(before):
            variation = np.abs(prediction_CxV[before] - prediction_CxV[after]).sum(axis=1) / 2
            moved[first, second] = np.average(variation, weights=weight_Cx1[before, 0])
    return (moved + moved.T) / 2


def merge_contexts(
    tokens_CxL: np.ndarray, joint_CxV: np.ndarray, *, ordered: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Contexts that are alike become one, in the order of their tokens; if order does not matter,
    these are sorted.
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
    """Of every place where `first` stands: the context, and the one that it becomes when `second`
    stands there.

    Returns:
      Two arrays of numbers of contexts. A place whose swap makes no context of these is left out.
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
    """Expected |p(first | context) - p(second | context)| over all contexts, in [0, 1]; VxV.

    It is the total variation between p(target | context) and the same with the two symbols
    exchanged. NaN for symbols that are never a target.
    """
    divergence = np.abs(joint_CxV[:, :, None] - joint_CxV[:, None, :]).sum(axis=0)
    occurs_V = joint_CxV.any(axis=0)
    return np.where(np.logical_and.outer(occurs_V, occurs_V), divergence, np.nan)


def conditional_log_ratio(joint_CxV: np.ndarray) -> np.ndarray:
    """Expected |ln p(first | context) - ln p(second | context)|, nats, over the contexts where both
    can stand; VxV.

    NaN where there are none: of such a pair the output embeddings are bound by no log-odds.
    """
    log_CxV = np.log(joint_CxV, out=np.full(joint_CxV.shape, np.nan), where=joint_CxV > 0)
    ratio_CxVxV = np.abs(log_CxV[:, :, None] - log_CxV[:, None, :])
    weight_CxVxV = joint_CxV.sum(axis=1)[:, None, None] * np.isfinite(ratio_CxVxV)
    total, mass = np.nansum(ratio_CxVxV * weight_CxVxV, axis=0), weight_CxVxV.sum(axis=0)
    return np.divide(total, mass, out=np.full(mass.shape, np.nan), where=mass > 0)
