"""From what two models say of many pairs of tokens to a verdict on the hypothesis. NumPy and
xarray; imports no jax.

Shapes: P pairs, G sentences, K tokens asked about, C candidates: a token asked about with one
partner, R resamples.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from jaxtie.advise import estimators, inference
from jaxtie.results.statistics import BOOTSTRAP

NEAR = 0.1  # of what unrelated tokens have: below it two tokens are near in a sense
FAR = 0.3  # of an offender, in the other sense
# Where the hypothesis holds, of the pairs near in one sense this share is not beyond BESIDE in the
# other, C² bounded.
HELD, BESIDE = 0.9, 0.2
# AUC of planted pairs against unrelated ones; models that tell them worse measure their own errors
TELLING = 0.95
RESAMPLES = 500  # of the sentences of a pair
SENSES = ("semantic", "conditional")


class AskedPairs(NamedTuple):
    """Which pairs are measured, each once, and why.

    Attributes:
      pair_Px2: token ids, the smaller one first.
      near_P, random_P, mantel_P: whether it was asked for as near in a table, as a random pair, for
        the Mantel correlation.
      planted_P: how often a word is spelled as its duplicate, of pairs that are known to be
        equivalent; 0 of all others.
      candidate_Cx2: a token asked about, and the number of its pair.
      reason_C: as `inference.CandidatePairs.reason_P`.
    """

    pair_Px2: np.ndarray
    near_P: np.ndarray
    random_P: np.ndarray
    mantel_P: np.ndarray
    planted_P: np.ndarray
    candidate_Cx2: np.ndarray
    reason_C: np.ndarray


class Sums(NamedTuple):
    """Of one pair, by sentence."""

    conditional: estimators.ConditionalSums
    semantic: estimators.SemanticSums


def all_asked(
    candidates: inference.CandidatePairs,
    planted_Qx2: np.ndarray,
    chance_Q: np.ndarray,
    mantel_T: np.ndarray,
) -> AskedPairs:
    """Candidates, planted pairs and all pairs of some tokens, as pairs that are measured once.

    Args:
      planted_Qx2, chance_Q: words and their duplicates, and how often these stand.
      mantel_T: tokens, all pairs of which are measured.
    """
    first, second = np.triu_indices(len(mantel_T), 1)
    mantel_Nx2 = np.stack([mantel_T[first], mantel_T[second]], axis=1).reshape(-1, 2)
    every = np.concatenate([candidates.pair_Px2, planted_Qx2.reshape(-1, 2), mantel_Nx2])
    every = np.sort(every, axis=1)
    pair_Px2, number = np.unique(every, axis=0, return_inverse=True)
    number = number.ravel()
    ends = np.cumsum([len(candidates.pair_Px2), len(planted_Qx2)])
    of_candidate, of_planted, of_mantel = np.split(number, ends)

    def marked(which: np.ndarray) -> np.ndarray:
        return np.isin(np.arange(len(pair_Px2)), which)

    is_random = candidates.reason_P == "random"
    planted_P = np.zeros(len(pair_Px2))
    planted_P[of_planted] = chance_Q
    candidate_Cx2, first_of = np.unique(
        np.stack([candidates.pair_Px2[:, 0], of_candidate], axis=1), axis=0, return_index=True
    )
    near_P, random_P = marked(of_candidate[~is_random]), marked(of_candidate[is_random])
    return AskedPairs(
        pair_Px2,
        near_P,
        random_P,
        marked(of_mantel),
        planted_P,
        candidate_Cx2,
        candidates.reason_P[first_of],
    )


def measured_pairs(
    asked: AskedPairs,
    sums: Sequence[Sums],
    names: Sequence[str],
    count_V: np.ndarray,
    seed: int = 0,
) -> xr.Dataset:
    """Both divergences of each pair with null, interval and what it is beside unrelated pairs.

    Args:
      sums: of each pair.
      names: of all tokens.
      count_V: how often each occurs in the text that is measured on.
    """
    pair_Px2, planted = asked.pair_Px2, asked.planted_P > 0
    found = {
        "first": ("pair", np.array(names, object)[pair_Px2[:, 0]]),
        "second": ("pair", np.array(names, object)[pair_Px2[:, 1]]),
        "token": (("pair", "side"), pair_Px2),
        "count": (("pair", "side"), count_V[pair_Px2]),
        "contexts": (
            "pair",
            np.array([each.conditional.contexts_G.sum() for each in sums], np.int64),
        ),
        "near": ("pair", asked.near_P),
        "random": ("pair", asked.random_P),
        "mantel": ("pair", asked.mantel_P),
        "planted": ("pair", asked.planted_P),
        "candidate": (("candidate_number", "token_and_pair"), asked.candidate_Cx2),
        "reason": ("candidate_number", asked.reason_C.astype(object)),
        "mass": ("candidate_number", count_V[asked.candidate_Cx2[:, 0]]),
    }
    dataset = xr.Dataset(found)
    frequency_P = inference.pair_frequency(count_V, pair_Px2)
    for sense, estimate, parts_of in (
        ("semantic", estimators.semantic, estimators.semantic_parts),
        ("conditional", estimators.conditional, estimators.conditional_parts),
    ):
        own = [getattr(each, sense) for each in sums]
        parts = [parts_of(each) for each in own]
        ends = [inference.resampled_interval(estimate, each, seed, RESAMPLES) for each in own]
        values = [estimate(each) for each in own]
        divergence_P = np.array([value.divergence for value in values])
        level_P = inference.unrelated_level(
            frequency_P, frequency_P[asked.random_P], divergence_P[asked.random_P]
        )
        ends_2xP = np.array([[low.divergence, high.divergence] for low, high in ends]).T
        variance_P = np.array([np.sum(part_G**2) for part_G in parts])
        null = with_shared_errors(divergence_P, variance_P, ends_2xP, rarity_of(dataset), planted)
        p_P = np.fmax(null.p_P, inference.sign_flip_test(parts, seed))
        dataset[sense] = ("pair", divergence_P)
        dataset[f"{sense}_low"], dataset[f"{sense}_high"] = (
            ("pair", end_P) for end_P in null.ends_2xP
        )
        dataset[f"{sense}_p"] = ("pair", p_P)
        dataset[f"{sense}_found"] = ("pair", inference.discoveries(np.where(planted, np.nan, p_P)))
        dataset[f"{sense}_level"] = ("pair", level_P)
        dataset[f"{sense}_relative"] = ("pair", divergence_P / level_P)
        dataset[f"{sense}_disagreement"] = (
            "pair",
            np.array([value.disagreement for value in values]),
        )
        dataset.attrs[f"{sense}_shared_deviation"] = float(
            np.nanmedian(null.deviation * rarity_of(dataset) / level_P)
        )
        names_of_rest = (
            ("bias", "bias_gap", "overlap")
            if sense == "conditional"
            else ("first", "later", "variance")
        )
        for name in names_of_rest:
            label = name if sense == "conditional" else f"semantic_{name}"
            dataset[label] = ("pair", np.array([getattr(value, name) for value in values]))
    dataset["extrapolated"] = dataset["overlap"] < estimators.EXTRAPOLATED
    return dataset


class Null(NamedTuple):
    """With the errors that all sentences share: p-values, ends of intervals, and the errors'
    deviation per unit of scale.
    """

    p_P: np.ndarray
    ends_2xP: np.ndarray
    deviation: float


def rarity_of(pairs: xr.Dataset) -> np.ndarray:
    """1/n of the first token plus 1/n of the second, (P,): what shared errors are in proportion to.

    A row that was learned from n occurrences is wrong by a variance of about 1/n, in A as in B; a
    divergence is a product of what is wrong in A and in B, so its deviation goes with the sum of
    these variances.
    """
    return (1 / pairs["count"].values.astype(np.float64)).sum(axis=1)


def with_shared_errors(
    divergence_P: np.ndarray,
    variance_P: np.ndarray,
    ends_2xP: np.ndarray,
    scale_P: np.ndarray,
    planted_P: np.ndarray,
) -> Null:
    """Nulls and intervals that sentences tell, and what planted pairs tell besides.

    Its size comes from as many pairs as are planted: hence Student's t with so many degrees of
    freedom. NaN p-values without.

    Args:
      scale_P: what the shared error of each pair is in proportion to.
    """
    from scipy.stats import t  # heavy

    known_P = planted_P & np.isfinite(scale_P)
    if not known_P.any():
        return Null(np.full(len(divergence_P), np.nan), ends_2xP, 0.0)
    deviation = inference.shared_deviation(
        (divergence_P / scale_P)[known_P], (variance_P / scale_P**2)[known_P]
    )
    shared_P, freedom = deviation * np.nan_to_num(scale_P), int(known_P.sum())
    p_P = t.sf(divergence_P / np.sqrt(variance_P + shared_P**2), freedom)
    wider_2xP = np.hypot(ends_2xP - divergence_P, t.ppf(0.975, freedom) * shared_P)
    return Null(p_P, divergence_P + np.array([[-1.0], [1.0]]) * wider_2xP, deviation)


class Share(NamedTuple):
    """Of candidates that are near in one sense, the share that is near in the other, weighted by
    their tokens' mass.
    """

    low: float
    share: float
    high: float
    pairs: int

    def __str__(self) -> str:
        if not self.pairs:
            return "– (no pair)"
        return f"{self.share:.0%} [{self.low:.0%}, {self.high:.0%}] of {self.pairs}"


class Verdict(NamedTuple):
    """What becomes of the hypothesis: `word` is holds, fails, or inconclusive."""

    word: str
    conditional_of_semantic: Share
    semantic_of_conditional: Share


def bounded(conditional: np.ndarray) -> np.ndarray:
    """C² on the scale of S²: 1 − exp(−C²/8), the squared Hellinger distance of two laws with a
    Gaussian log ratio.

    S² has a greatest value, and C² has not; so a tenth of what unrelated tokens have is nearer in S
    than in C.
    """
    return -np.expm1(-np.asarray(conditional, np.float64) / 8)


def bounded_relative(pairs: xr.Dataset) -> np.ndarray:
    """Bounded C² beside that of unrelated pairs of like frequency, (P,)."""
    frequency_P = np.log(pairs["count"].values.astype(np.float64)).mean(axis=1)
    bounded_P, random_P = bounded(pairs["conditional"].values), pairs["random"].values.astype(bool)
    return bounded_P / inference.unrelated_level(
        frequency_P, frequency_P[random_P], bounded_P[random_P]
    )


def verdict(pairs: xr.Dataset, seed: int = 0) -> Verdict:
    """The answer: it holds if both shares are wholly above `HELD`, fails if one is wholly below,
    else it is inconclusive.

    Shares of the pairs below `NEAR` in one sense that are below `BESIDE` in the other; C² bounded.
    README.md says why.
    It is inconclusive, too, where the models do not tell what is known of the text.
    """
    found = _judged(pairs, bounded_relative(pairs), BESIDE, seed)
    return found._replace(word="inconclusive") if told_of_planted(pairs) < TELLING else found


def told_of_planted(pairs: xr.Dataset) -> float:
    """AUC of words planted twice against unrelated pairs, in the sense that tells them worse; NaN
    where none are planted.

    Such words are equivalent in both senses. Against neighbours in the tables it would be no
    measure of the models: where the hypothesis holds, neighbours are as equivalent.
    """
    planted_P, random_P = pairs["planted"].values > 0, pairs["random"].values.astype(bool)
    relative_2xP = [pairs[f"{sense}_relative"].values for sense in SENSES]
    return float(
        np.min([auc(relative_P[planted_P], relative_P[random_P]) for relative_P in relative_2xP])
    )


def near_in_both(pairs: xr.Dataset, seed: int = 0) -> Verdict:
    """The same with one line, `NEAR`, for both, and C² as it is: so strict that it fails where the
    hypothesis holds.
    """
    return _judged(pairs, pairs["conditional_relative"].values, NEAR, seed)


def _judged(pairs: xr.Dataset, conditional_P: np.ndarray, beside: float, seed: int) -> Verdict:
    token_C, number_C = pairs["candidate"].values.T
    far_2xC = np.array([pairs["semantic_relative"].values, conditional_P])[:, number_C]
    mass_C = pairs["mass"].values * np.isfinite(far_2xC).all(axis=0)
    ways = (far_2xC, far_2xC[::-1])
    shares = [
        share_near(token_C, mass_C, one_C < NEAR, other_C < beside, seed=seed)
        for one_C, other_C in ways
    ]
    if any(each.pairs and each.high < HELD for each in shares):
        return Verdict("fails", *shares)
    return Verdict(
        "holds" if all(each.pairs and each.low > HELD for each in shares) else "inconclusive",
        *shares,
    )


def share_near(
    token_C: np.ndarray, mass_C: np.ndarray, one_C: np.ndarray, other_C: np.ndarray, seed: int = 0
) -> Share:
    """Of the candidates near in the one sense, the share near in the other; a bootstrap over
    tokens, not candidates.
    """
    tokens, of_token_C = np.unique(token_C, return_inverse=True)
    sums_2xK = np.zeros((2, len(tokens)))
    for sums_K, chosen_C in zip(sums_2xK, (one_C & other_C, one_C)):
        np.add.at(sums_K, of_token_C, mass_C * chosen_C)
    pairs = int(np.sum(one_C & (mass_C > 0)))
    if not pairs:
        return Share(np.nan, np.nan, np.nan, 0)
    rng = np.random.default_rng(seed)
    weight_RxK = rng.multinomial(len(tokens), np.full(len(tokens), 1 / len(tokens)), size=BOOTSTRAP)
    above_R, below_R = (weight_RxK @ sums_2xK.T).T
    share_R = above_R[below_R > 0] / below_R[below_R > 0]
    low, high = np.quantile(share_R, [0.025, 0.975])
    return Share(float(low), float(sums_2xK[0].sum() / sums_2xK[1].sum()), float(high), pairs)


def offenders(pairs: xr.Dataset, number: int = 20) -> dict[str, np.ndarray]:
    """The pairs that break the hypothesis most: near in one sense, far and told from 0 in the
    other.

    The strongest come first: of the largest divergence times the count of the rarer token, so rare
    words do not crowd out frequent ones.

    Returns:
      "same consequences, other places" (S near, C far) and "same places, other consequences" (C
      near, S far): their numbers.
    """
    kinds = {
        "same consequences, other places": SENSES,
        "same places, other consequences": SENSES[::-1],
    }
    found = {}
    for kind, (near, far) in kinds.items():
        far_P = pairs[f"{far}_relative"].values
        chosen_P = (
            (pairs[f"{near}_relative"].values < NEAR)
            & (far_P >= FAR)
            & pairs[f"{far}_found"].values
        )
        chosen_P &= (pairs["planted"].values == 0) & pairs["near"].values
        numbers = np.flatnonzero(chosen_P)
        strength = far_P[numbers] * pairs["count"].values[numbers].min(axis=1)
        found[kind] = numbers[np.argsort(-strength, kind="stable")[:number]]
    return found


def auc(known_N: np.ndarray, others_M: np.ndarray) -> float:
    """How probable it is that a known equivalent pair has a smaller divergence than another one;
    ties count half.
    """
    from scipy.stats import mannwhitneyu  # heavy

    known_N, others_M = known_N[np.isfinite(known_N)], others_M[np.isfinite(others_M)]
    if not len(known_N) or not len(others_M):
        return np.nan
    smaller = mannwhitneyu(others_M, known_N, method="asymptotic").statistic
    return float(smaller / (len(known_N) * len(others_M)))


class Check(NamedTuple):
    """What the instrument makes of words that were planted twice: how many, and of each sense
    coverage of 0 and AUC.
    """

    pairs: int
    covered: dict[str, float]
    auc: dict[str, float]
    bias: float


def check_planted(pairs: xr.Dataset, chance: float) -> Check:
    """Of planted pairs of one chance: share of intervals that cover 0; AUC against near pairs that
    were not planted.
    """
    known_P = pairs["planted"].values == chance
    others_P = (pairs["planted"].values == 0) & pairs["near"].values
    covered, areas = {}, {}
    for sense in SENSES:
        low_P, high_P = pairs[f"{sense}_low"].values, pairs[f"{sense}_high"].values
        covered[sense] = (
            float(np.mean((low_P <= 0)[known_P] & (high_P >= 0)[known_P]))
            if known_P.any()
            else np.nan
        )
        relative_P = pairs[f"{sense}_relative"].values
        areas[sense] = auc(relative_P[known_P], relative_P[others_P])
    bias = float(np.median(np.abs(pairs["bias"].values[known_P]))) if known_P.any() else np.nan
    return Check(int(known_P.sum()), covered, areas, bias)


def mantel(pairs: xr.Dataset, seed: int = 0, permutations: int = 2000) -> tuple[float, float]:
    """Rank correlation of S² and C² over all pairs of some tokens, and how probable it is as high
    if tokens are shuffled.
    """
    from scipy.stats import permutation_test, rankdata  # heavy

    chosen = pairs.isel(pair=np.flatnonzero(pairs["mantel"].values))
    tokens, place = np.unique(chosen["token"].values, return_inverse=True)
    place = place.reshape(-1, 2)
    known = np.isfinite(chosen["semantic"].values) & np.isfinite(chosen["conditional"].values)
    if known.sum() < 3:
        return np.nan, np.nan
    square_2xTxT = np.full((2, len(tokens), len(tokens)), np.nan)
    for square_TxT, sense in zip(square_2xTxT, SENSES):
        rank_P = rankdata(np.where(known, chosen[sense].values, np.nan), nan_policy="omit")
        square_TxT[place[:, 0], place[:, 1]] = square_TxT[place[:, 1], place[:, 0]] = rank_P
    upper = np.triu_indices(len(tokens), 1)

    def correlation(order_T: np.ndarray) -> float:
        x, y = square_2xTxT[0][upper], square_2xTxT[1][np.ix_(order_T, order_T)][upper]
        both = np.isfinite(x) & np.isfinite(y)
        return float(np.corrcoef(x[both], y[both])[0, 1])

    found = permutation_test(
        (np.arange(len(tokens)),),
        correlation,
        permutation_type="pairings",
        alternative="greater",
        n_resamples=permutations,
        vectorized=False,
        rng=seed,
    )
    return float(found.statistic), float(found.pvalue)
