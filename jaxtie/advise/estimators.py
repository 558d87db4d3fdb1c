"""How far two tokens are from equivalent, from what two independently trained models say of them.
NumPy only.

Models A and B saw disjoint halves of the text. What one of them gets wrong the other gets wrong in
another way, so products of A's finding with B's are right on average, where the square of one
model's finding grows with its errors. Products may be
negative: they are never clipped. README.md has the definitions and the reasons.

A pair is (first, second). Everything is summed by sentence before it is estimated: sentences are
what is drawn, not contexts.

Shapes: 2 models, N contexts, K distances, V vocabulary, G sentences that any of the contexts are
in, R resamples of them.
"""

from typing import NamedTuple

import numpy as np

# where the overlap is below it, what a model says of one of the pair is never put to the test
EXTRAPOLATED = 0.05


class ConditionalSums(NamedTuple):
    """Sums over the contexts of each sentence; `a` and `b` are the log ratios of the two models,
    nats.
    """

    contexts_G: np.ndarray
    a_G: np.ndarray
    b_G: np.ndarray
    ab_G: np.ndarray
    gap_G: np.ndarray  # a - b
    square_gap_G: np.ndarray  # (a - b)²
    overlap_G: np.ndarray


class Conditional(NamedTuple):
    """How far the two tokens are from equally likely; each a number, or one for each resample.

    Attributes:
      bias: m, nats: mean log ratio ln q(second | left) - ln q(first | left), of both models; what
        an output bias can carry.
      bias_gap: m of A less m of B, nats.
      divergence: C², nats²: how the log ratio varies over contexts: what the rows must carry.
        Signed.
      disagreement: nats²: by how much the mean of the two models' own squared divergences exceeds
        C².
      overlap: o in [0, 1]: 1 where both tokens are equally likely in every context, 0 where one of
        them excludes the other.
    """

    bias: np.ndarray
    bias_gap: np.ndarray
    divergence: np.ndarray
    disagreement: np.ndarray
    overlap: np.ndarray


class SemanticSums(NamedTuple):
    """Sums over the contexts of each sentence; `a` and `b` are the two models' own squared
    divergences of a context.
    """

    contexts_G: np.ndarray
    asked_GxK: np.ndarray  # how many contexts have a token at this distance
    product_GxK: np.ndarray
    excess_GxK: np.ndarray
    a_G: np.ndarray
    b_G: np.ndarray
    ab_G: np.ndarray


class Semantic(NamedTuple):
    """How far predictions move when one token stands for the other; each a number, or one for each
    resample.

    Attributes:
      divergence: S²: squared Hellinger distance between the two predictions of a token, in [0, 1]
        but for noise, summed over the distances. Signed.
      first: its part at distance 1.
      later: its part at all greater distances.
      variance: of the squared divergence over contexts: large where the tokens are alike in some
        contexts only. Signed.
      disagreement: by how much the mean of the two models' own squared divergences exceeds S².
    """

    divergence: np.ndarray
    first: np.ndarray
    later: np.ndarray
    variance: np.ndarray
    disagreement: np.ndarray


class Products(NamedTuple):
    """Of each context and distance: ½⟨g_A, g_B⟩, and each model's own ½⟨g, g⟩; NaN where there is
    no such token.
    """

    cross_NxK: np.ndarray
    own_2xNxK: np.ndarray


def conditional_sums(
    log_first_2xN: np.ndarray, log_second_2xN: np.ndarray, sentence_N: np.ndarray
) -> ConditionalSums:
    """What `conditional` needs, from ln q(first | left) and ln q(second | left) of both models at
    the same contexts.

    Args:
      log_first_2xN, log_second_2xN: nats. Where a model excludes a token, all but the overlap comes
        out as NaN.
      sentence_N: numbers of the sentences that the contexts are in.
    """
    with np.errstate(invalid="ignore"):
        ratio_2xN = np.asarray(log_second_2xN, np.float64) - np.asarray(log_first_2xN, np.float64)
    # 4e(1 - e), with e = 1 / (1 + exp(-ratio))
    overlap_N = np.mean(np.cosh(ratio_2xN / 2) ** -2.0, axis=0)
    a_N, b_N = np.where(np.isfinite(ratio_2xN), ratio_2xN, np.nan)
    values = (np.ones(len(a_N)), a_N, b_N, a_N * b_N, a_N - b_N, (a_N - b_N) ** 2, overlap_N)
    return ConditionalSums(*(_by_sentence(value_N, sentence_N) for value_N in values))


def conditional(sums: ConditionalSums, weight: np.ndarray | None = None) -> Conditional:
    """Estimates from all sentences, or from resamples of them.

    Args:
      weight: how often each sentence counts, (G,) or (R, G); without it, each once. NaN where all
        contexts are in one.
    """
    weight = np.ones(len(sums.contexts_G)) if weight is None else weight
    contexts = weight @ sums.contexts_G
    a, b = weight @ sums.a_G / contexts, weight @ sums.b_G / contexts
    return Conditional(
        bias=(a + b) / 2,
        bias_gap=a - b,
        divergence=_covariance(weight, sums.contexts_G, sums.a_G, sums.b_G, sums.ab_G),
        disagreement=_covariance(weight, sums.contexts_G, sums.gap_G, sums.gap_G, sums.square_gap_G)
        / 2,
        overlap=weight @ sums.overlap_G / contexts,
    )


def conditional_parts(sums: ConditionalSums) -> np.ndarray:
    """What each sentence adds to C², (G,): with the sign of B's factor turned in a sentence, its
    part turns its sign.
    """
    n_G, contexts = sums.contexts_G, sums.contexts_G.sum()
    mean_a, mean_b = sums.a_G.sum() / contexts, sums.b_G.sum() / contexts
    a_G, b_G = sums.a_G - n_G * mean_a, sums.b_G - n_G * mean_b
    ab_G = sums.ab_G - mean_a * sums.b_G - mean_b * sums.a_G + n_G * mean_a * mean_b
    return _ratio((contexts - n_G) * ab_G + a_G * b_G, contexts**2 - np.sum(n_G**2))


def semantic_products(root_first_2xNxKxV: np.ndarray, root_second_2xNxKxV: np.ndarray) -> Products:
    """From the square roots of both models' predictions of the next tokens after the first or the
    second of the pair.

    The true text goes on after either, so at distance k a model has read k - 1 true tokens. With
    g = √q(· | ...second...) - √q(· | ...first...), ½⟨g, g⟩ is the squared Hellinger distance.
    """
    g_A, g_B = np.subtract(root_second_2xNxKxV, root_first_2xNxKxV)

    def half_product(x_NxKxV: np.ndarray, y_NxKxV: np.ndarray) -> np.ndarray:
        return np.einsum("nkv,nkv->nk", x_NxKxV, y_NxKxV, dtype=np.float64) / 2

    return Products(
        half_product(g_A, g_B), np.stack([half_product(g_A, g_A), half_product(g_B, g_B)])
    )


def semantic_sums(products: Products, sentence_N: np.ndarray) -> SemanticSums:
    """What `semantic` needs. A distance counts in the contexts that have a token there."""
    asked_NxK = np.isfinite(products.cross_NxK)
    excess_NxK = products.own_2xNxK.mean(axis=0) - products.cross_NxK
    a_N, b_N = np.nansum(products.own_2xNxK, axis=-1)
    values = (
        np.ones(len(a_N)),
        asked_NxK.astype(np.float64),
        np.where(asked_NxK, products.cross_NxK, 0),
        np.where(asked_NxK, excess_NxK, 0),
        a_N,
        b_N,
        a_N * b_N,
    )
    return SemanticSums(*(_by_sentence(value, sentence_N) for value in values))


def semantic(sums: SemanticSums, weight: np.ndarray | None = None) -> Semantic:
    """Estimates from all sentences, or from resamples of them; `weight` as of `conditional`.

    S² is the sum over distances of the mean over contexts; NaN if no context has a token at one of
    the distances.
    """
    weight = np.ones(len(sums.contexts_G)) if weight is None else weight
    asked = weight @ sums.asked_GxK
    by_distance = _ratio(weight @ sums.product_GxK, asked)
    return Semantic(
        divergence=by_distance.sum(axis=-1),
        first=by_distance[..., 0],
        later=by_distance[..., 1:].sum(axis=-1),
        variance=_covariance(weight, sums.contexts_G, sums.a_G, sums.b_G, sums.ab_G),
        disagreement=_ratio(weight @ sums.excess_GxK, asked).sum(axis=-1),
    )


def semantic_parts(sums: SemanticSums) -> np.ndarray:
    """What each sentence adds to S², (G,): with the sign of B's factor turned in a sentence, its
    part turns its sign.
    """
    return _ratio(sums.product_GxK, sums.asked_GxK.sum(axis=0)).sum(axis=-1)


def _by_sentence(value_N: np.ndarray, sentence_N: np.ndarray) -> np.ndarray:
    """Sums over the contexts of each sentence, in the order of the sentences' numbers."""
    numbers, sentence = np.unique(sentence_N, return_inverse=True)
    sums_G = np.zeros((len(numbers), *value_N.shape[1:]))
    np.add.at(sums_G, sentence, value_N)
    return sums_G


def _covariance(
    weight: np.ndarray, n_G: np.ndarray, x_G: np.ndarray, y_G: np.ndarray, xy_G: np.ndarray
) -> np.ndarray:
    """Covariance over contexts: ½(x - x')(y - y') averaged over all couples of contexts of
    different sentences.

    With one context in each of n sentences it is the mean of (x - mean x)(y - mean y), times n / (n
    - 1).
    """
    contexts = weight @ n_G
    couples = contexts**2 - weight @ n_G**2
    of_all = contexts * (weight @ xy_G) - (weight @ x_G) * (weight @ y_G)
    return _ratio(of_all - weight @ (n_G * xy_G - x_G * y_G), couples)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """NaN where there is nothing below."""
    below = np.broadcast_to(below, np.shape(above))
    return np.divide(above, below, out=np.full(np.shape(above), np.nan), where=below > 0)
