"""Estimate how far two tokens are from equivalent, from two independently trained models.

Models A and B are trained on disjoint halves of a text, so their errors are independent: the
product of A's value with B's is unbiased, while the square of one model's value grows with its
errors. Products may be negative and are never clipped. README.md has the definitions.

A pair is (first, second). Values are summed by sentence before anything is estimated, because
sentences, not contexts, are independent samples. NumPy only.

Shapes: 2 models, N contexts, K distances, G sentences that contain any of the contexts, R resamples
of the sentences.
"""

from typing import NamedTuple

import numpy as np

# Below this overlap the models were hardly trained on one of the tokens in the other's contexts.
EXTRAPOLATED = 0.05


class ConditionalSums(NamedTuple):
    """Sums over the contexts of each sentence; `a` and `b` are the models' log ratios, nats."""

    contexts_G: np.ndarray
    a_G: np.ndarray
    b_G: np.ndarray
    ab_G: np.ndarray
    gap_G: np.ndarray  # a - b
    square_gap_G: np.ndarray  # (a - b)²
    overlap_G: np.ndarray


class Conditional(NamedTuple):
    """How far two tokens are from equally likely; scalars, or one value per resample."""

    # m, nats: mean log ratio ln q(second | left) - ln q(first | left) of both models; an output
    # bias can represent it.
    bias: np.ndarray
    bias_gap: np.ndarray  # m of A minus m of B, nats
    # C², nats²: variance of the log ratio over contexts, which the output rows must represent.
    divergence: np.ndarray
    disagreement: np.ndarray  # nats²: mean of the models' own squared divergences minus C²
    overlap: np.ndarray  # o: 1 if equally likely in every context, 0 if each excludes one


class SemanticSums(NamedTuple):
    """Sums over the contexts of each sentence; `a` and `b` are the models' squared divergences."""

    contexts_G: np.ndarray
    present_GxK: np.ndarray  # number of contexts that have a token at this distance
    product_GxK: np.ndarray
    excess_GxK: np.ndarray
    a_G: np.ndarray
    b_G: np.ndarray
    ab_G: np.ndarray


class Semantic(NamedTuple):
    """How much predictions change if one token replaces the other; scalars, or one per resample."""

    # S²: squared Hellinger distance of the predictions of a later token, summed over distances.
    divergence: np.ndarray
    first: np.ndarray  # the part at distance 1
    later: np.ndarray  # the part at all greater distances
    variance: np.ndarray  # of S² over contexts: large if the tokens are alike in some only
    disagreement: np.ndarray  # mean of the models' own squared divergences minus S²


def conditional_sums(
    log_first_2xN: np.ndarray, log_second_2xN: np.ndarray, sentence_N: np.ndarray
) -> ConditionalSums:
    """Sum log ratios of ln q(token | left), nats, by the sentence of each context.

    If a model excludes a token, everything but the overlap is NaN.
    """
    with np.errstate(invalid="ignore"):
        ratio_2xN = np.asarray(log_second_2xN, np.float64) - np.asarray(log_first_2xN, np.float64)
    # 4e(1 - e), with e = 1 / (1 + exp(-ratio))
    overlap_N = np.mean(np.cosh(ratio_2xN / 2) ** -2.0, axis=0)
    a_N, b_N = np.where(np.isfinite(ratio_2xN), ratio_2xN, np.nan)
    values = (np.ones(len(a_N)), a_N, b_N, a_N * b_N, a_N - b_N, (a_N - b_N) ** 2, overlap_N)
    return ConditionalSums(*(_by_sentence(value_N, sentence_N) for value_N in values))


def conditional(sums: ConditionalSums, weight: np.ndarray | None = None) -> Conditional:
    """Estimate from all sentences, or from resamples of them.

    `weight` is how often each sentence counts, (G,) or (R, G); by default once. Variances are NaN
    if all contexts are in one sentence.
    """
    weight = np.ones(len(sums.contexts_G)) if weight is None else weight
    contexts = weight @ sums.contexts_G
    a, b = weight @ sums.a_G / contexts, weight @ sums.b_G / contexts
    gap = _covariance(weight, sums.contexts_G, sums.gap_G, sums.gap_G, sums.square_gap_G)
    return Conditional(
        bias=(a + b) / 2,
        bias_gap=a - b,
        divergence=_covariance(weight, sums.contexts_G, sums.a_G, sums.b_G, sums.ab_G),
        disagreement=gap / 2,
        overlap=weight @ sums.overlap_G / contexts,
    )


def conditional_parts(sums: ConditionalSums) -> np.ndarray:
    """Return each sentence's contribution to C², (G,); it changes sign with B's factor."""
    n_G, contexts = sums.contexts_G, sums.contexts_G.sum()
    mean_a, mean_b = sums.a_G.sum() / contexts, sums.b_G.sum() / contexts
    a_G, b_G = sums.a_G - n_G * mean_a, sums.b_G - n_G * mean_b
    ab_G = sums.ab_G - mean_a * sums.b_G - mean_b * sums.a_G + n_G * mean_a * mean_b
    return _ratio((contexts - n_G) * ab_G + a_G * b_G, contexts**2 - np.sum(n_G**2))


def semantic_sums(
    cross_NxK: np.ndarray, own_2xNxK: np.ndarray, sentence_N: np.ndarray
) -> SemanticSums:
    """Sum products of prediction changes by sentence.

    With g = √q(· | ...second...) - √q(· | ...first...), ½⟨g, g⟩ is the squared Hellinger distance.
    The true text follows either token, so at distance k a model has read k - 1 true tokens.

    Args:
      cross_NxK: ½⟨g_A, g_B⟩; NaN if there is no token at this distance.
      own_2xNxK: each model's own ½⟨g, g⟩.
      sentence_N: number of the sentence of each context.
    """
    present_NxK = np.isfinite(cross_NxK)
    excess_NxK = own_2xNxK.mean(axis=0) - cross_NxK
    a_N, b_N = np.nansum(own_2xNxK, axis=-1)
    values = (
        np.ones(len(a_N)),
        present_NxK.astype(np.float64),
        np.where(present_NxK, cross_NxK, 0),
        np.where(present_NxK, excess_NxK, 0),
        a_N,
        b_N,
        a_N * b_N,
    )
    return SemanticSums(*(_by_sentence(value, sentence_N) for value in values))


def semantic(sums: SemanticSums, weight: np.ndarray | None = None) -> Semantic:
    """Estimate from all sentences, or from resamples of them; `weight` as for `conditional`.

    S² is the sum over distances of the mean over contexts; NaN if no context has a token at one of
    the distances.
    """
    weight = np.ones(len(sums.contexts_G)) if weight is None else weight
    present = weight @ sums.present_GxK
    by_distance = _ratio(weight @ sums.product_GxK, present)
    return Semantic(
        divergence=by_distance.sum(axis=-1),
        first=by_distance[..., 0],
        later=by_distance[..., 1:].sum(axis=-1),
        variance=_covariance(weight, sums.contexts_G, sums.a_G, sums.b_G, sums.ab_G),
        disagreement=_ratio(weight @ sums.excess_GxK, present).sum(axis=-1),
    )


def semantic_parts(sums: SemanticSums) -> np.ndarray:
    """Return each sentence's contribution to S², (G,); it changes sign with B's factor."""
    return _ratio(sums.product_GxK, sums.present_GxK.sum(axis=0)).sum(axis=-1)


def _by_sentence(value_N: np.ndarray, sentence_N: np.ndarray) -> np.ndarray:
    """Sum over the contexts of each sentence, in the order of the sentence numbers."""
    numbers, sentence = np.unique(sentence_N, return_inverse=True)
    sums_G = np.zeros((len(numbers), *value_N.shape[1:]))
    np.add.at(sums_G, sentence, value_N)
    return sums_G


def _covariance(
    weight: np.ndarray, n_G: np.ndarray, x_G: np.ndarray, y_G: np.ndarray, xy_G: np.ndarray
) -> np.ndarray:
    """Average ½(x - x')(y - y') over all couples of contexts of different sentences.

    With one context in each of n sentences this is the covariance with factor n / (n - 1).
    """
    contexts = weight @ n_G
    couples = contexts**2 - weight @ n_G**2
    of_all = contexts * (weight @ xy_G) - (weight @ x_G) * (weight @ y_G)
    return _ratio(of_all - weight @ (n_G * xy_G - x_G * y_G), couples)


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divide; NaN where the denominator is not above 0."""
    denominator = np.broadcast_to(denominator, np.shape(numerator))
    out = np.full(np.shape(numerator), np.nan)
    return np.divide(numerator, denominator, out=out, where=denominator > 0)
