"""Choose pairs of tokens to measure; test and bound their divergences.

NumPy and SciPy only. README.md gives the reasons.

Shapes: P pairs, G sentences, R resamples, Q pairs known to be equivalent, or random pairs, V
tokens, K evaluated tokens, D width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxtie.config import UserError

FLIPS = 20_000
FLIPS_AT_A_TIME = 1_000
RESAMPLES = 500  # of the sentences of a pair
LIKE_FREQUENCY = 20  # a random partner is one of this many tokens of similar frequency
UNRELATED = 64  # random pairs that give the level of unrelated tokens
SEEN = 30  # minimum number of occurrences of an evaluated token
NEAREST, RANDOM = 5, 2  # partners of a token: nearest in each embedding table, random ones


class CandidatePairs(NamedTuple):
    """Evaluated tokens with their partners; a pair may occur several times, from both sides."""

    pair_Px2: np.ndarray  # token ids, the evaluated token first
    reason_P: np.ndarray  # "input" or "output": the second is near in that table; or "random"


def sign_flip_test(parts: list[np.ndarray], flips: int = FLIPS) -> np.ndarray:
    """Return one-sided p-values of divergences against 0, (P,).

    If a divergence is 0, its estimate consists of errors of A times errors of B, and the sign of
    B's factor is arbitrary in each sentence.

    Args:
      parts: each sentence's contribution to the divergence of each pair
        (`estimators.conditional_parts`, `semantic_parts`). A NaN among them gives a NaN.
      flips: the smallest p-value is 1 / (flips + 1), or 2^-G with few sentences.
    """
    parts_PxG = np.zeros((len(parts), max(map(len, parts), default=0)))
    for row_G, part_G in zip(parts_PxG, parts):
        row_G[: len(part_G)] = part_G
    divergence_P = parts_PxG.sum(axis=1)
    level_P = divergence_P - 1e-12 * np.abs(parts_PxG).sum(axis=1)  # tolerate rounding
    rng, as_high_P = np.random.default_rng(0), np.zeros(len(parts))
    for start in range(0, flips, FLIPS_AT_A_TIME):
        shape = min(FLIPS_AT_A_TIME, flips - start), parts_PxG.shape[1]
        sign_RxG = rng.choice([-1.0, 1.0], shape)
        as_high_P += np.sum(parts_PxG @ sign_RxG.T >= level_P[:, None], axis=1)
    return np.where(np.isfinite(divergence_P), (as_high_P + 1) / (flips + 1), np.nan)


def discoveries(p_P: np.ndarray) -> np.ndarray:
    """Select p-values at a false discovery rate of 5 % (Benjamini-Hochberg); never NaN."""
    from scipy.stats import false_discovery_control  # heavy

    found_P, finite_P = np.zeros(len(p_P), bool), np.isfinite(p_P)
    if finite_P.any():
        found_P[finite_P] = false_discovery_control(p_P[finite_P]) <= 0.05
    return found_P


def divergence_interval(estimate: Callable[..., Any], sums: Any, seed: int = 0) -> np.ndarray:
    """Return the 95 % percentile interval of a divergence, (2,), by a bootstrap over sentences.

    `estimate` is `estimators.conditional` or `estimators.semantic`, and `sums` its argument.
    """
    sentences = len(sums.contexts_G)
    share_G = np.full(sentences, 1 / sentences)
    weight_RxG = np.random.default_rng(seed).multinomial(sentences, share_G, size=RESAMPLES)
    return np.quantile(estimate(sums, weight_RxG.astype(np.float64)).divergence, [0.025, 0.975])


def with_shared_errors(
    divergence_P: np.ndarray,
    variance_P: np.ndarray,
    ends_2xP: np.ndarray,
    scale_P: np.ndarray,
    equivalent_P: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Add the errors shared by all sentences to p-values and intervals.

    A model that is wrong about a token is wrong about it in all sentences, so neither sign flips
    nor resamples of sentences see this error. Pairs known to be equivalent show its size. It is
    added: a factor would not help where sentences hardly differ, as for S² if contexts do not
    matter. Student's t has one degree of freedom per known pair.

    Args:
      divergence_P: estimates.
      variance_P: their variance over sentences.
      ends_2xP: their intervals over sentences.
      scale_P: proportional to the shared error of each pair.
      equivalent_P: pairs known to be equivalent.

    Returns:
      P-values, NaN without known pairs; the ends of the intervals, (2, P); and the standard
      deviation of the shared error per unit of scale.
    """
    from scipy.stats import t  # heavy

    known_P = equivalent_P & np.isfinite(scale_P)
    if not known_P.any():
        return np.full(len(divergence_P), np.nan), ends_2xP, 0.0
    scale_Q = scale_P[known_P]
    deviation = shared_deviation(divergence_P[known_P] / scale_Q, variance_P[known_P] / scale_Q**2)
    shared_P, freedom = deviation * np.nan_to_num(scale_P), int(known_P.sum())
    p_P = t.sf(divergence_P / np.sqrt(variance_P + shared_P**2), freedom)
    wider_2xP = np.hypot(ends_2xP - divergence_P, t.ppf(0.975, freedom) * shared_P)
    return p_P, divergence_P + np.array([[-1.0], [1.0]]) * wider_2xP, deviation


def shared_deviation(divergence_Q: np.ndarray, variance_Q: np.ndarray) -> float:
    """Return the standard deviation of shared errors, from pairs known to be equivalent.

    Divergences are divided by the scale of each pair, variances over sentences by its square.
    """
    finite_Q = np.isfinite(divergence_Q) & np.isfinite(variance_Q)
    if not finite_Q.any():
        return 0.0
    return float(np.sqrt(max(0.0, np.mean(divergence_Q[finite_Q] ** 2 - variance_Q[finite_Q]))))


def rarity(count_Px2: np.ndarray) -> np.ndarray:
    """Return 1/n of the first token plus 1/n of the second, (P,), the scale of shared errors.

    A row learned from n occurrences has an error variance of about 1/n in A and in B. A divergence
    is a product of both errors, so its standard deviation is proportional to the sum of variances.
    """
    return (1 / count_Px2.astype(np.float64)).sum(axis=1)


def unrelated_level(
    count_Px2: np.ndarray, divergence_P: np.ndarray, random_P: np.ndarray
) -> np.ndarray:
    """Return the median divergence of the `UNRELATED` random pairs nearest in frequency, (P,).

    A divergence divided by it is 0 for equivalent and about 1 for unrelated tokens. NaN where it is
    not above 0, because such models do not distinguish tokens. The frequency of a pair is the mean
    logarithm of both counts.
    """
    frequency_P = np.log(count_Px2.astype(np.float64)).mean(axis=1)
    usable_P = random_P & np.isfinite(divergence_P)
    if not usable_P.any():
        return np.full(len(frequency_P), np.nan)
    distance_PxQ = np.abs(frequency_P[:, None] - frequency_P[usable_P])
    nearest_PxN = np.argsort(distance_PxQ, axis=1, kind="stable")[:, :UNRELATED]
    level_P = np.median(divergence_P[usable_P][nearest_PxN], axis=1)
    return np.where(level_P > 0, level_P, np.nan)


def whitened(table_VxD: np.ndarray, usable_V: np.ndarray) -> np.ndarray:
    """Map the table linearly so that its usable rows have mean 0 and variance 1 in every direction.

    Distances then agree between tables that are linear maps of each other, which the body can undo.
    Directions without variance are dropped: VxD', D' <= D.
    """
    table_VxD = np.asarray(table_VxD, np.float64)
    rows_UxD = table_VxD[usable_V]
    centered_UxD = rows_UxD - rows_UxD.mean(axis=0)
    _, scale_D, directions_DxD = np.linalg.svd(centered_UxD, full_matrices=False)
    kept_D = scale_D > 1e-6 * scale_D.max(initial=0)
    to_white_DxD = directions_DxD[kept_D].T / scale_D[kept_D] * np.sqrt(len(rows_UxD))
    return (table_VxD - rows_UxD.mean(axis=0)) @ to_white_DxD


def nearest_tokens(table_VxD: np.ndarray, token_K: np.ndarray, usable_V: np.ndarray) -> np.ndarray:
    """Return the usable tokens nearest to each token in the whitened table, nearest first; KxN."""
    table_VxD, usable_U = whitened(table_VxD, usable_V), np.flatnonzero(usable_V)
    nearest_KxN = np.empty((len(token_K), NEAREST), np.int64)
    for row_N, token in zip(nearest_KxN, token_K):
        distance_U = np.linalg.norm(table_VxD[usable_U] - table_VxD[token], axis=1)
        distance_U[usable_U == token] = np.inf
        row_N[:] = usable_U[np.argsort(distance_U, kind="stable")[:NEAREST]]
    return nearest_KxN


def random_partners(
    count_V: np.ndarray,
    token: int,
    usable_V: np.ndarray,
    excluded: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw from the `LIKE_FREQUENCY` usable tokens of the most similar log count.

    Never draw the token itself or an excluded one.
    """
    usable_U = np.setdiff1d(np.flatnonzero(usable_V), np.append(excluded, token))
    usable_U = usable_U[rng.permutation(len(usable_U))]  # break ties at random
    distance_U = np.abs(np.log(count_V[usable_U] / count_V[token]))
    closest_N = usable_U[np.argsort(distance_U, kind="stable")[:LIKE_FREQUENCY]]
    return rng.choice(closest_N, RANDOM, replace=False)


def candidate_pairs(
    input_VxD: np.ndarray,
    output_VxD: np.ndarray,
    count_V: np.ndarray,
    token_K: np.ndarray,
    whole_V: np.ndarray,
    seed: int = 0,
) -> CandidatePairs:
    """Pair each token with its nearest in both embedding tables and with random ones.

    Partners are tokens of `whole_V`, such as whole words, that occur `SEEN` times.

    Raises:
      UserError: a token is too rare, or there are too few partners.
    """
    usable_V, needed = np.asarray(whole_V, bool) & (count_V >= SEEN), 2 * NEAREST + RANDOM + 1
    for token in token_K[count_V[token_K] < SEEN]:
        raise UserError(
            f"token {token} occurs {count_V[token]} times; give tokens that occur {SEEN} times or"
            " more"
        )
    if usable_V.sum() < needed:
        raise UserError(
            f"{usable_V.sum()} tokens occur {SEEN} times or more; there must be {needed}; give more"
            " text"
        )
    rng = np.random.default_rng(seed)
    near_KxN = np.hstack(
        [nearest_tokens(table_VxD, token_K, usable_V) for table_VxD in (input_VxD, output_VxD)]
    )
    reason_N = np.repeat(["input", "output", "random"], [NEAREST, NEAREST, RANDOM])
    partner_KxN = np.empty((len(token_K), len(reason_N)), np.int64)
    for row_N, token, near_N in zip(partner_KxN, token_K, near_KxN):
        row_N[:] = *near_N, *random_partners(count_V, token, usable_V, near_N, rng)
    pair_Px2 = np.stack([np.repeat(token_K, len(reason_N)), partner_KxN.ravel()], axis=1)
    return CandidatePairs(pair_Px2, np.tile(reason_N, len(token_K)))
