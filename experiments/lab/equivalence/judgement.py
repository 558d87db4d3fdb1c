"""Turn measured pairs of tokens into a verdict on the hypothesis. NumPy and xarray, no jax.

Shapes: P pairs, Q synthetic duplicates, K evaluated tokens, C candidates (an evaluated token with
one partner), R resamples.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from equivalence import estimators, inference

NEAR = 0.1  # relative to unrelated tokens; below it two tokens are near in a sense
FAR = 0.3  # minimum for an offender in the other sense
# The hypothesis holds if, of the pairs near in one sense, this share is below NOT_FAR in the other.
HELD, NOT_FAR = 0.9, 0.2
MIN_AUC = 0.95  # of synthetic duplicates against random pairs; worse models decide nothing
SENSES = ("semantic", "conditional")
SAME_CONSEQUENCES = "same consequences, other places"
SAME_PLACES = "same places, other consequences"


class Sums(NamedTuple):
    """Sums of one pair, by sentence."""

    conditional: estimators.ConditionalSums
    semantic: estimators.SemanticSums


def select_pairs(
    candidates: inference.CandidatePairs,
    duplicate_Qx2: np.ndarray,
    probability_Q: np.ndarray,
    names: Sequence[str],
    count_V: np.ndarray,
) -> xr.Dataset:
    """Merge candidates and words with their synthetic duplicates without repetition.

    Return pairs of `token`, the smaller id first, with the reasons to measure them; and
    `candidate`, an evaluated token and the number of its pair.
    """
    all_pairs = np.concatenate([candidates.pair_Px2, duplicate_Qx2])
    pair_Px2, number = np.unique(np.sort(all_pairs, axis=1), axis=0, return_inverse=True)
    of_candidate, of_duplicate = np.split(number.ravel(), [len(candidates.pair_Px2)])
    candidate_Cx2, first_of = np.unique(
        np.stack([candidates.pair_Px2[:, 0], of_candidate], axis=1), axis=0, return_index=True
    )
    is_random = candidates.reason_P == "random"
    planted_P = np.zeros(len(pair_Px2))
    planted_P[of_duplicate] = probability_Q

    def is_in(numbers: np.ndarray) -> np.ndarray:
        return np.isin(np.arange(len(pair_Px2)), numbers)

    return xr.Dataset(
        {
            "first": ("pair", np.array(names, object)[pair_Px2[:, 0]]),
            "second": ("pair", np.array(names, object)[pair_Px2[:, 1]]),
            "token": (("pair", "side"), pair_Px2),
            "count": (("pair", "side"), count_V[pair_Px2]),
            "near": ("pair", is_in(of_candidate[~is_random])),
            "random": ("pair", is_in(of_candidate[is_random])),
            "planted": ("pair", planted_P),
            "candidate": (("candidate_number", "token_and_pair"), candidate_Cx2),
            "reason": ("candidate_number", candidates.reason_P[first_of].astype(object)),
            "mass": ("candidate_number", count_V[candidate_Cx2[:, 0]]),
        }
    )


def measured_pairs(selected: xr.Dataset, sums: Sequence[Sums]) -> xr.Dataset:
    """Add both divergences of each pair with p-value, interval and relative to unrelated pairs."""
    count_Px2, random_P = selected["count"].values, selected["random"].values
    planted_P = selected["planted"].values > 0
    contexts_P = np.array([each.conditional.contexts_G.sum() for each in sums], np.int64)
    dataset = selected.assign(contexts=("pair", contexts_P))
    rarity_P = inference.rarity(count_Px2)
    semantic = {f"semantic_{name}": name for name in ("first", "later", "variance")}
    conditional = {name: name for name in ("bias", "bias_gap", "overlap")}
    for sense, estimate, parts_of, further in (
        ("semantic", estimators.semantic, estimators.semantic_parts, semantic),
        ("conditional", estimators.conditional, estimators.conditional_parts, conditional),
    ):
        own = [getattr(each, sense) for each in sums]
        parts = [parts_of(each) for each in own]
        values = [estimate(each) for each in own]
        divergence_P = np.array([value.divergence for value in values])
        level_P = inference.unrelated_level(count_Px2, divergence_P, random_P)
        p_P, ends_2xP, deviation = inference.with_shared_errors(
            divergence_P,
            np.array([np.sum(part_G**2) for part_G in parts]),
            np.array([inference.divergence_interval(estimate, each) for each in own]).T,
            rarity_P,
            planted_P,
        )
        p_P = np.fmax(p_P, inference.sign_flip_test(parts))
        found = {
            sense: divergence_P,
            f"{sense}_low": ends_2xP[0],
            f"{sense}_high": ends_2xP[1],
            f"{sense}_p": p_P,
            f"{sense}_found": inference.discoveries(np.where(planted_P, np.nan, p_P)),
            f"{sense}_level": level_P,
            f"{sense}_relative": divergence_P / level_P,
        }
        for label, name in {f"{sense}_disagreement": "disagreement", **further}.items():
            found[label] = np.array([getattr(value, name) for value in values])
        dataset = dataset.assign({label: ("pair", value_P) for label, value_P in found.items()})
        dataset.attrs[f"{sense}_shared_deviation"] = float(
            np.nanmedian(deviation * rarity_P / level_P)
        )
    dataset["extrapolated"] = dataset["overlap"] < estimators.EXTRAPOLATED
    return dataset


class Share(NamedTuple):
    """Of candidates near in one sense, the share near in the other, weighted by token frequency."""

    low: float
    share: float
    high: float
    pairs: int

    def __str__(self) -> str:
        """Format as in tables and sentences."""
        if not self.pairs:
            return "– (no pair)"
        return f"{self.share:.0%} [{self.low:.0%}, {self.high:.0%}] of {self.pairs}"


class Verdict(NamedTuple):
    """Verdict on the hypothesis: `word` is holds, fails or inconclusive."""

    word: str
    conditional_of_semantic: Share
    semantic_of_conditional: Share


def bounded(conditional: np.ndarray) -> np.ndarray:
    """Return C² on the scale of S²: 1 − exp(−C²/8).

    This is the squared Hellinger distance of two distributions with a Gaussian log ratio. S² has a
    maximum and C² has not, so a tenth of unrelated tokens' value is nearer in S than in C.
    """
    return -np.expm1(-np.asarray(conditional, np.float64) / 8)


def verdict(pairs: xr.Dataset) -> Verdict:
    """Return the answer: holds if both shares are wholly above `HELD`, fails if one is below it.

    The shares are of pairs below `NEAR` in one sense that are below `NOT_FAR` in the other, with C²
    bounded (README.md says why). Inconclusive otherwise, and if the models do not recognise
    synthetic duplicates.
    """
    bounded_P, random_P = bounded(pairs["conditional"].values), pairs["random"].values.astype(bool)
    level_P = inference.unrelated_level(pairs["count"].values, bounded_P, random_P)
    token_C, number_C = pairs["candidate"].values.T
    semantic_C = pairs["semantic_relative"].values[number_C]
    conditional_C = (bounded_P / level_P)[number_C]
    mass_C = pairs["mass"].values * (np.isfinite(semantic_C) & np.isfinite(conditional_C))
    shares = [
        share_near(token_C, mass_C, one_C < NEAR, other_C < NOT_FAR)
        for one_C, other_C in ((semantic_C, conditional_C), (conditional_C, semantic_C))
    ]
    word = "inconclusive"
    if not duplicates_auc(pairs) < MIN_AUC:  # NaN without synthetic duplicates
        if any(each.pairs and each.high < HELD for each in shares):
            word = "fails"
        elif all(each.pairs and each.low > HELD for each in shares):
            word = "holds"
    return Verdict(word, *shares)


def duplicates_auc(pairs: xr.Dataset) -> float:
    """Return the AUC of synthetic duplicates against random pairs, in the worse sense.

    NaN without synthetic duplicates. Neighbours in the tables would not do instead of random pairs:
    where the hypothesis holds, neighbours are equivalent too.
    """
    planted_P, random_P = pairs["planted"].values > 0, pairs["random"].values.astype(bool)
    relative_2xP = [pairs[f"{sense}_relative"].values for sense in SENSES]
    areas = [auc(relative_P[planted_P], relative_P[random_P]) for relative_P in relative_2xP]
    return float(np.min(areas))


def share_near(
    token_C: np.ndarray, mass_C: np.ndarray, one_C: np.ndarray, other_C: np.ndarray
) -> Share:
    """Return the share of candidates near in one sense that are near in the other.

    It is weighted by `mass_C`. Its interval is a bootstrap over tokens, not candidates.
    """
    tokens, of_token_C = np.unique(token_C, return_inverse=True)
    sums_2xK = np.zeros((2, len(tokens)))
    for sums_K, chosen_C in zip(sums_2xK, (one_C & other_C, one_C)):
        np.add.at(sums_K, of_token_C, mass_C * chosen_C)
    pairs = int(np.sum(one_C & (mass_C > 0)))
    if not pairs:
        return Share(np.nan, np.nan, np.nan, 0)
    rng = np.random.default_rng(0)
    weight_RxK = rng.multinomial(len(tokens), np.full(len(tokens), 1 / len(tokens)), size=2_000)
    above_R, below_R = (weight_RxK @ sums_2xK.T).T
    share_R = above_R[below_R > 0] / below_R[below_R > 0]
    low, high = np.quantile(share_R, [0.025, 0.975])
    return Share(float(low), float(sums_2xK[0].sum() / sums_2xK[1].sum()), float(high), pairs)


def offenders(pairs: xr.Dataset, number: int = 20) -> dict[str, np.ndarray]:
    """Return the pairs that violate the hypothesis most, by kind.

    `SAME_CONSEQUENCES` are near in S, far in C and significant there; `SAME_PLACES` the reverse.
    Pairs are sorted by divergence times the count of the rarer token, so rare words do not crowd
    out frequent ones.
    """
    found = {}
    for kind, (near, far) in ((SAME_CONSEQUENCES, SENSES), (SAME_PLACES, SENSES[::-1])):
        far_P = pairs[f"{far}_relative"].values
        is_offender_P = (pairs[f"{near}_relative"].values < NEAR) & (far_P >= FAR)
        is_offender_P &= pairs[f"{far}_found"].values
        is_offender_P &= (pairs["planted"].values == 0) & pairs["near"].values
        numbers = np.flatnonzero(is_offender_P)
        strength = far_P[numbers] * pairs["count"].values[numbers].min(axis=1)
        found[kind] = numbers[np.argsort(-strength, kind="stable")[:number]]
    return found


def auc(equivalent_N: np.ndarray, others_M: np.ndarray) -> float:
    """Return how probably an equivalent pair has the smaller divergence; ties count half."""
    from scipy.stats import mannwhitneyu  # heavy

    equivalent_N = equivalent_N[np.isfinite(equivalent_N)]
    others_M = others_M[np.isfinite(others_M)]
    if not len(equivalent_N) or not len(others_M):
        return np.nan
    smaller = mannwhitneyu(others_M, equivalent_N, method="asymptotic").statistic
    return float(smaller / (len(equivalent_N) * len(others_M)))
