"""From what two models say of pairs to a verdict: with models that know a source's law but for
noise of their own.
"""

import numpy as np
import pytest
import xarray as xr
from known_pairs import laws_around, noisy, occurrences

from jaxtie.advise import estimators, inference, judgement
from jaxtie.text.data import synthetic

PLACES, DISTANCES, EACH = 12, 2, 32
PLAN = synthetic.Plan(pairs=(5, 4, 4, 4), near=2, plain=24, follow=0.9)


def measured_source(plan: synthetic.Plan, noise: float = 0.15):
    """Pairs of a source as if a model A and a model B had been asked, each off by noise of its
    own.
    """
    source, rng = synthetic.planted(plan), np.random.default_rng(4)
    tokens_BxL = synthetic.sample_sentences(source, 5000, PLACES + DISTANCES, 1)
    count_V = np.bincount(tokens_BxL.ravel(), minlength=source.token_N.max() + 1)
    count_V[synthetic.BEGINNING] = 0
    near = {
        kind: found for kind, found in source.pairs.items() if kind not in ("duplicate", "plain")
    }
    near_Px2 = np.concatenate(list(near.values()))
    random_Px2 = rng.choice(source.pairs["plain"].ravel(), (24, 2))
    random_Px2 = random_Px2[random_Px2[:, 0] != random_Px2[:, 1]]
    pair_Px2 = np.concatenate([near_Px2, random_Px2])
    reason_P = np.array(["input"] * len(near_Px2) + ["random"] * len(random_Px2))
    candidates = inference.CandidatePairs(pair_Px2, reason_P)
    duplicates = source.pairs["duplicate"]
    asked = judgement.all_asked(
        candidates, duplicates, np.full(len(duplicates), 0.5), source.pairs["plain"][:4].ravel()
    )
    sums = []
    for pair in asked.pair_Px2:
        sentence_N, place_N = occurrences(tokens_BxL[:, : PLACES + 1], pair, EACH, rng)
        left_NxV, *after = laws_around(source, tokens_BxL, pair, sentence_N, place_N, DISTANCES)
        logs = np.log(np.stack([noisy(left_NxV, noise, rng)[:, pair] for _ in range(2)]))
        roots = [np.sqrt(np.stack([noisy(law, noise, rng) for _ in range(2)])) for law in after]
        conditional = estimators.conditional_sums(logs[..., 0], logs[..., 1], sentence_N)
        semantic = estimators.semantic_sums(estimators.semantic_products(*roots), sentence_N)
        sums.append(judgement.Sums(conditional, semantic))
    names = [f"t{token}" for token in range(len(count_V))]
    return source, judgement.measured_pairs(asked, sums, names, count_V)


@pytest.fixture(scope="module")
def known():
    return measured_source(PLAN)


def of_kind(source, pairs, kind):
    wanted = {tuple(sorted(pair)) for pair in source.pairs[kind].tolist()}
    return pairs.isel(
        pair=[i for i, pair in enumerate(pairs["token"].values.tolist()) if tuple(pair) in wanted]
    )


def test_planted_duplicates_are_near_and_random_pairs_far(known):
    source, pairs = known
    duplicates, random = (
        of_kind(source, pairs, "duplicate"),
        pairs.isel(pair=np.flatnonzero(pairs["random"].values)),
    )
    for sense in judgement.SENSES:
        assert (
            np.abs(duplicates[f"{sense}_relative"]).max()
            < judgement.NEAR
            < float(random[f"{sense}_relative"].quantile(0.1))
        )
        assert judgement.auc(duplicates[sense].values, random[sense].values) == 1
        assert 0.7 < float(random[f"{sense}_relative"].median()) < 1.4
        assert random[f"{sense}_found"].all() and not duplicates[f"{sense}_found"].any()
    check = judgement.check_planted(pairs, 0.5)
    assert check.pairs == 5 and min(check.covered.values()) >= 0.8 and check.bias < 0.2


def test_offenders_are_the_pairs_that_were_planted_so(known):
    source, pairs = known
    found = judgement.offenders(pairs)
    for kind, planted in zip(found.values(), ("allomorph", "antonym")):
        wanted = {tuple(pair) for pair in of_kind(source, pairs, planted)["token"].values.tolist()}
        assert wanted <= {tuple(pair) for pair in pairs["token"].values[kind].tolist()}
    assert not set(found["same consequences, other places"]) & set(
        found["same places, other consequences"]
    )


def test_the_verdict_is_that_the_hypothesis_fails_and_holds_where_it_does(known):
    _, pairs = known
    found = judgement.verdict(pairs)
    assert found.word == "fails" and found.conditional_of_semantic.high < judgement.HELD
    _, pairs = measured_source(PLAN._replace(pairs=(5, 12, 0, 0), near=0, homograph=False))
    found = judgement.verdict(pairs)
    assert (
        found.word == "holds"
        and found.conditional_of_semantic.share == found.semantic_of_conditional.share == 1
    )


def test_without_a_near_pair_nothing_is_decided(known):
    _, pairs = known
    ones = pairs["semantic_relative"] * 0 + 1
    far = pairs.assign(semantic_relative=ones, conditional_relative=ones, conditional=ones)
    found = judgement.verdict(far)
    assert found.word == "inconclusive" and found.conditional_of_semantic.pairs == 0
    assert "no pair" in str(found.conditional_of_semantic)


def test_models_that_do_not_tell_what_was_planted_decide_nothing(known):
    """Where neighbours are equivalent, too, planted words are none the less told from unrelated
    ones.
    """
    _, pairs = known
    assert judgement.told_of_planted(pairs) == 1
    _, holds = measured_source(PLAN._replace(pairs=(5, 12, 0, 0), near=0, homograph=False))
    assert judgement.told_of_planted(holds) == 1
    blind = pairs.assign(
        semantic_relative=pairs["semantic_relative"].roll(pair=pairs.sizes["pair"] // 2)
    )
    assert (
        judgement.told_of_planted(blind) < judgement.TELLING
        and judgement.verdict(blind).word == "inconclusive"
    )
    nothing = pairs.assign(planted=pairs["planted"] * 0)
    assert (
        np.isnan(judgement.told_of_planted(nothing)) and judgement.verdict(nothing).word == "fails"
    )


def test_a_share_is_weighted_by_mass_and_resampled_by_tokens():
    token_C, mass_C = np.array([0, 0, 1, 2]), np.array([6.0, 6.0, 2.0, 1.0])
    one_C, other_C = np.array([True, True, True, False]), np.array([True, True, False, True])
    found = judgement.share_near(token_C, mass_C, one_C, other_C)
    assert found.share == pytest.approx(12 / 14) and found.pairs == 3
    assert found.low == 0 and found.high == 1  # a resample may hold one of the two tokens alone


def test_auc_counts_ties_half():
    assert judgement.auc(np.array([0.0, 1.0]), np.array([1.0, 2.0, np.nan])) == pytest.approx(
        (1 + 1 + 0.5 + 1) / 4
    )


def test_each_pair_is_measured_once_whichever_way_it_was_asked_for():
    candidates = inference.CandidatePairs(
        np.array([[3, 1], [1, 3], [1, 2]]), np.array(["input", "output", "random"])
    )
    asked = judgement.all_asked(
        candidates, np.array([[5, 6]]), np.array([0.1]), np.array([1, 2, 3])
    )
    assert asked.pair_Px2.tolist() == [[1, 2], [1, 3], [2, 3], [5, 6]]
    assert asked.near_P.tolist() == [False, True, False, False]
    assert asked.random_P.tolist() == [True, False, False, False]
    assert asked.mantel_P.tolist() == [True, True, True, False]
    assert asked.planted_P.tolist() == [0, 0, 0, 0.1]
    assert asked.candidate_Cx2.tolist() == [[1, 0], [1, 1], [3, 1]]


def test_mantel_is_a_rank_correlation_over_all_pairs_of_some_tokens(known):
    _, pairs = known
    rank, p = judgement.mantel(pairs, permutations=99)
    alike = pairs.assign(conditional=pairs["semantic"] ** 3)
    assert judgement.mantel(alike, permutations=99)[0] == pytest.approx(1)
    assert -1 <= rank <= 1 and 0.01 <= p <= 1


def test_errors_that_all_sentences_share_widen_intervals_and_raise_p_values():
    """All contexts alike, so sentences tell of no error: what is known of planted pairs does, and
    covers new ones.
    """
    rng = np.random.default_rng(6)
    divergence_P = np.append(rng.normal(0, 0.01, 400), 0.2)
    planted_P, level_P, nothing_P = np.arange(401) < 200, np.ones(401), np.zeros(401)
    found = judgement.with_shared_errors(
        divergence_P, nothing_P, np.stack([divergence_P] * 2), level_P, planted_P
    )
    assert found.deviation == pytest.approx(0.01, rel=0.15)
    new = ~planted_P[:400]
    (low_P, high_P), p_P = found.ends_2xP[:, :400], found.p_P[:400]
    assert 0.9 <= np.mean((low_P <= 0)[new] & (high_P >= 0)[new]) <= 0.98
    assert 0.02 <= np.mean(p_P[new] < 0.05) <= 0.09 and found.p_P[400] < 1e-6
    unplanted = judgement.with_shared_errors(
        divergence_P, nothing_P, found.ends_2xP, level_P, np.zeros(401, bool)
    )
    assert unplanted.deviation == 0 and np.isnan(unplanted.p_P).all()


def test_shared_errors_go_with_how_rare_tokens_are():
    """Pairs of rows that were learned from few and from many occurrences: each class is covered as
    promised.
    """
    rng = np.random.default_rng(7)
    count_Px2 = rng.choice([30, 2000], (4000, 2))
    pairs = xr.Dataset({"count": (("pair", "side"), count_Px2)})
    rarity_P = judgement.rarity_of(pairs)
    # of A's rows and of B's
    error_2xPx2xD = rng.normal(size=(2, 4000, 2, 6)) / np.sqrt(count_Px2)[..., None]
    between_2xPxD = error_2xPx2xD[:, :, 0] - error_2xPx2xD[:, :, 1]
    divergence_P = np.sum(between_2xPxD[0] * between_2xPxD[1], axis=-1)
    found = judgement.with_shared_errors(
        divergence_P, np.zeros(4000), np.stack([divergence_P] * 2), rarity_P, np.arange(4000) < 60
    )
    low_P, high_P = found.ends_2xP
    for times in (2, 1, 0):  # of how many tokens of a pair are rare
        own_P = (count_Px2 == 30).sum(axis=1) == times
        assert 0.9 <= np.mean((low_P <= 0)[own_P] & (high_P >= 0)[own_P]) <= 0.99


def test_shared_deviation_leaves_out_what_sentences_tell():
    assert inference.shared_deviation(
        np.array([3.0, -3.0, np.nan]), np.array([5.0, 5.0, 5.0])
    ) == pytest.approx(2.0)
    assert (
        inference.shared_deviation(np.array([1.0]), np.array([2.0]))
        == 0
        == inference.shared_deviation(np.zeros(0), np.zeros(0))
    )
