"""Which pairs to look at, which of their divergences are more than noise, and how large they are
beside unrelated tokens'.

NumPy and SciPy only. README.md has the reasons.

Shapes: P pairs, G sentences, R resamples, Q random pairs, V tokens, K tokens that are asked about,
D width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxtie.config import UserError
from jaxtie.results.statistics import BOOTSTRAP

FLIPS = 20_000
FLIPS_AT_A_TIME = 1_000
LIKE_FREQUENCY = 20  # a random partner is one of so many tokens that are as frequent
UNRELATED = 64  # random pairs that a divergence is held against
SEEN = 30  # occurrences below which nothing is said of a token


class CandidatePairs(NamedTuple):
    """Pairs to look at, each from the point of view of its first token.

    A pair may be there several times, for several reasons or from both sides: measure it once.

    Attributes:
      pair_Px2: token ids.
      reason_P: "input" or "output", the table in which the second is one of the nearest; or
        "random".
    """

    pair_Px2: np.ndarray
    reason_P: np.ndarray


def sign_flip_test(parts: list[np.ndarray], seed: int = 0, flips: int = FLIPS) -> np.ndarray:
    """How probable it is that a divergence comes out as high if it is 0: one p-value for each pair,
    (P,).

    If it is 0, the errors of A and of B are all there is, and the sign of B's factor in a sentence
    is as good as the other.

    Args:
      parts: of each pair, what each sentence adds to its divergence
        (`estimators.conditional_parts`, `semantic_parts`). NaN where there is one without value.
      flips: the least p-value is 1 / (flips + 1), or 2^-G where there are few sentences.
    """
    parts_PxG = np.zeros((len(parts), max(map(len, parts), default=0)))
    for row_G, part_G in zip(parts_PxG, parts):
        row_G[: len(part_G)] = part_G
    divergence_P = parts_PxG.sum(axis=1)
    level_P = divergence_P - 1e-12 * np.abs(parts_PxG).sum(axis=1)  # rounding makes nothing higher
    rng, as_high_P = np.random.default_rng(seed), np.zeros(len(parts))
    for start in range(0, flips, FLIPS_AT_A_TIME):
        sign_RxG = rng.choice(
            [-1.0, 1.0], (min(FLIPS_AT_A_TIME, flips - start), parts_PxG.shape[1])
        )
        as_high_P += np.sum(parts_PxG @ sign_RxG.T >= level_P[:, None], axis=1)
    return np.where(np.isfinite(divergence_P), (as_high_P + 1) / (flips + 1), np.nan)


def shared_deviation(divergence_Q: np.ndarray, variance_Q: np.ndarray) -> float:
    """Standard deviation of what is wrong with a divergence in all sentences alike, from pairs
    known to be equivalent.

    A model that is wrong about a token is wrong about it in all sentences. That A and B are wrong
    in like ways by chance is then no matter of sentences, and neither flips nor resamples of them
    see it. Duplicates that are planted in the text do. It is added, for no factor helps where
    sentences tell next to nothing, as of S² where contexts do not matter.

    Args:
      divergence_Q, variance_Q: of the known pairs: divergences, and what sentences tell of their
        variance. In units in which pairs of any frequency are wrong alike, see
        `judgement.rarity_of`.
    """
    known_Q = np.isfinite(divergence_Q) & np.isfinite(variance_Q)
    if not known_Q.any():
        return 0.0
    return float(np.sqrt(max(0.0, np.mean(divergence_Q[known_Q] ** 2 - variance_Q[known_Q]))))


def discoveries(p_P: np.ndarray, rate: float = 0.05) -> np.ndarray:
    """Which pairs are told from 0, so that of all that are at most this share is not
    (Benjamini-Hochberg); bool, (P,).

    Pairs whose p-value is NaN are not asked, and not found.
    """
    from scipy.stats import false_discovery_control  # heavy

    found_P, asked_P = np.zeros(len(p_P), bool), np.isfinite(p_P)
    if asked_P.any():
        found_P[asked_P] = false_discovery_control(p_P[asked_P]) <= rate
    return found_P


def resampled_interval(
    estimate: Callable[..., Any],
    sums: Any,
    seed: int = 0,
    resamples: int = BOOTSTRAP,
    error: float = 0.05,
) -> tuple[Any, Any]:
    """Confidence intervals of all estimates of a pair: percentiles of a bootstrap over sentences.

    Args:
      estimate: `estimators.conditional` or `estimators.semantic`.
      sums: its argument, sums by sentence.
      error: the probability that an interval misses.

    Returns:
      The lower and the upper ends, each as `estimate` returns its estimates. NaN where an estimate
      is NaN.
    """
    sentences = len(sums.contexts_G)
    rng = np.random.default_rng(seed)
    weight_RxG = rng.multinomial(
        sentences, np.full(sentences, 1 / sentences), size=resamples
    ).astype(np.float64)
    resampled = estimate(sums, weight_RxG)
    low, high = (
        type(resampled)(*(np.quantile(value_R, at) for value_R in resampled))
        for at in (error / 2, 1 - error / 2)
    )
    return low, high


def pair_frequency(count_V: np.ndarray, pair_Px2: np.ndarray) -> np.ndarray:
    """Mean logarithm of the two tokens' counts, (P,): by it pairs are as frequent as others."""
    return np.log(np.asarray(count_V, np.float64)[pair_Px2]).mean(axis=1)


def unrelated_level(
    frequency_P: np.ndarray,
    frequency_Q: np.ndarray,
    divergence_Q: np.ndarray,
    number: int = UNRELATED,
) -> np.ndarray:
    """The median divergence of the random pairs that are as frequent as each pair, (P,); divide by
    it.

    Then 0 is equivalent, and 1 is unrelated. NaN where it is not above 0: there the models tell no
    token from another.

    Args:
      frequency_P, frequency_Q: `pair_frequency` of the pairs and of the random ones.
      divergence_Q: of the random pairs; those without value are left out.
      number: of random pairs that each is held against, or all, if there are fewer.
    """
    usable_Q = np.isfinite(divergence_Q)
    if not usable_Q.any():
        return np.full(len(frequency_P), np.nan)
    apart_PxQ = np.abs(frequency_P[:, None] - frequency_Q[usable_Q])
    nearest_PxN = np.argsort(apart_PxQ, axis=1, kind="stable")[:, :number]
    level_P = np.median(divergence_Q[usable_Q][nearest_PxN], axis=1)
    return np.where(level_P > 0, level_P, np.nan)


def whitened(table_VxD: np.ndarray, usable_V: np.ndarray) -> np.ndarray:
    """The table after the linear map that makes its usable rows of mean 0 and of variance 1 in
    every direction.

    Distances in it are the same for any two tables that are linear maps of each other, as the body
    can make them. Directions in which the rows do not differ, but for rounding, are left out: VxD',
    D' <= D.
    """
    table_VxD = np.asarray(table_VxD, np.float64)
    rows_UxD = table_VxD[usable_V]
    _, scale_D, directions_DxD = np.linalg.svd(
        rows_UxD - rows_UxD.mean(axis=0), full_matrices=False
    )
    kept_D = scale_D > 1e-6 * scale_D.max(initial=0)
    to_white_DxD = directions_DxD[kept_D].T / scale_D[kept_D] * np.sqrt(len(rows_UxD))
    return (table_VxD - rows_UxD.mean(axis=0)) @ to_white_DxD


def nearest_tokens(
    table_VxD: np.ndarray, token_K: np.ndarray, usable_V: np.ndarray, number: int = 5
) -> np.ndarray:
    """The usable tokens whose rows of a whitened table are nearest to each token's, nearest first;
    (K, number).
    """
    table_VxD, usable_U = whitened(table_VxD, usable_V), np.flatnonzero(usable_V)
    nearest_KxN = np.empty((len(token_K), number), np.int64)
    for row_N, token in zip(nearest_KxN, token_K):
        distance_U = np.linalg.norm(table_VxD[usable_U] - table_VxD[token], axis=1)
        distance_U[usable_U == token] = np.inf
        row_N[:] = usable_U[np.argsort(distance_U, kind="stable")[:number]]
    return nearest_KxN


def random_partners(
    count_V: np.ndarray,
    token: int,
    usable_V: np.ndarray,
    besides: np.ndarray,
    number: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Random tokens of like frequency: from the `LIKE_FREQUENCY` usable ones whose count is nearest
    on a log scale.

    Args:
      besides: tokens that are not to be drawn, beside the token itself.
    """
    usable_U = np.setdiff1d(np.flatnonzero(usable_V), np.append(besides, token))
    apart_U = np.abs(np.log(count_V[usable_U] / count_V[token]))
    # of equal ones, any
    apart_U, usable_U = (
        apart_U[order := rng.permutation(len(usable_U))],
        usable_U[order],
    )
    return rng.choice(
        usable_U[np.argsort(apart_U, kind="stable")[:LIKE_FREQUENCY]], number, replace=False
    )


def pairs_to_look_at(
    input_VxD: np.ndarray,
    output_VxD: np.ndarray,
    count_V: np.ndarray,
    token_K: np.ndarray,
    whole_V: np.ndarray,
    seed: int = 0,
    near: int = 5,
    random: int = 2,
) -> CandidatePairs:
    """Each token with its nearest in the input table, its nearest in the output table, and random
    ones of like frequency.

    Args:
      input_VxD, output_VxD: tables of an untied model; their widths may differ.
      count_V: how often each token occurs.
      token_K: tokens that are asked about; each occurs `SEEN` times or more.
      whole_V: which tokens may be partners: whole words, say. Those seen fewer than `SEEN` times
        are left out.

    Raises:
      UserError: a token is too rare, or there are too few others.
    """
    usable_V, least = np.asarray(whole_V, bool) & (count_V >= SEEN), 2 * near + random + 1
    for token in token_K[count_V[token_K] < SEEN]:
        raise UserError(
            f"token {token} occurs {count_V[token]} times; give tokens that occur {SEEN} times or"
            " more"
        )
    if usable_V.sum() < least:
        raise UserError(
            f"{usable_V.sum()} tokens occur {SEEN} times or more; there must be {least}; give more"
            " text"
        )
    rng = np.random.default_rng(seed)
    of_input_KxN = nearest_tokens(input_VxD, token_K, usable_V, near)
    of_output_KxN = nearest_tokens(output_VxD, token_K, usable_V, near)
    near_KxN = np.concatenate([of_input_KxN, of_output_KxN], axis=1)
    random_KxN = np.array(
        [
            random_partners(count_V, token, usable_V, near_N, random, rng)
            for token, near_N in zip(token_K, near_KxN)
        ],
        np.int64,
    ).reshape(len(token_K), random)
    partner_KxN = np.concatenate([near_KxN, random_KxN], axis=1)
    reason_N = np.repeat(["input", "output", "random"], [near, near, random])
    pair_Px2 = np.stack([np.repeat(token_K, partner_KxN.shape[1]), partner_KxN.ravel()], axis=1)
    return CandidatePairs(pair_Px2, np.tile(reason_N, len(token_K)))
