"""From measured pairs to a verdict: noisy copies of the exact predictions of a synthetic source."""

import numpy as np
import pytest
import synthetic
from equivalence import inference, judgement
from ground_truth import noisy_sums

PLACES, DISTANCES, EACH = 12, 2, 32
PLAN = synthetic.Plan(pairs=(5, 4, 4, 4), near=2, plain=24, follow=0.9)
HOLDS = PLAN._replace(pairs=(5, 12, 0, 0), near=0, homograph=False)


def measured_source(plan: synthetic.Plan):
    """Measure pairs of a source with two models that have independent errors."""
    source, rng = synthetic.make_source(plan), np.random.default_rng(4)
    tokens_BxL = synthetic.sample_sentences(source, 5000, PLACES + DISTANCES, 1)
    count_V = np.bincount(tokens_BxL.ravel(), minlength=source.token_N.max() + 1)
    count_V[synthetic.BEGINNING] = 0
    near_Px2 = np.concatenate(
        [pairs for kind, pairs in source.pairs.items() if kind not in ("duplicate", "plain")]
    )
    random_Px2 = rng.choice(source.pairs["plain"].ravel(), (24, 2))
    random_Px2 = random_Px2[random_Px2[:, 0] != random_Px2[:, 1]]
    reason_P = np.repeat(["input", "random"], [len(near_Px2), len(random_Px2)])
    candidates = inference.CandidatePairs(np.concatenate([near_Px2, random_Px2]), reason_P)
    duplicates = source.pairs["duplicate"]
    selected = judgement.select_pairs(
        candidates,
        duplicates,
        np.full(len(duplicates), 0.5),
        [f"t{token}" for token in range(len(count_V))],
        count_V,
    )
    sums = [
        noisy_sums(source, tokens_BxL, pair, PLACES + 1, DISTANCES, EACH, 0.15, rng)[0]
        for pair in selected["token"].values.tolist()
    ]
    return source, judgement.measured_pairs(selected, sums)


@pytest.fixture(scope="module")
def fails():
    return measured_source(PLAN)


@pytest.fixture(scope="module")
def holds():
    return measured_source(HOLDS)[1]


def of_class(source, pairs, kind):
    wanted = {tuple(sorted(pair)) for pair in source.pairs[kind].tolist()}
    return pairs.isel(
        pair=[i for i, pair in enumerate(pairs["token"].values.tolist()) if tuple(pair) in wanted]
    )


def test_synthetic_duplicates_are_near_and_random_pairs_far(fails):
    source, pairs = fails
    duplicates = of_class(source, pairs, "duplicate")
    random = pairs.isel(pair=np.flatnonzero(pairs["random"].values))
    for sense in judgement.SENSES:
        relative = random[f"{sense}_relative"]
        assert np.abs(duplicates[f"{sense}_relative"]).max() < judgement.NEAR
        assert float(relative.quantile(0.1)) > judgement.NEAR
        assert judgement.auc(duplicates[sense].values, random[sense].values) == 1
        assert 0.7 < float(relative.median()) < 1.4
        assert random[f"{sense}_found"].all() and not duplicates[f"{sense}_found"].any()
        covers_P = (duplicates[f"{sense}_low"] <= 0) & (duplicates[f"{sense}_high"] >= 0)
        assert len(covers_P) == 5 and covers_P.mean() >= 0.8
    assert np.abs(duplicates["bias"]).median() < 0.2


def test_offenders_are_allomorphs_and_antonyms(fails):
    source, pairs = fails
    found = judgement.offenders(pairs)
    for numbers, kind in zip(found.values(), ("allomorph", "antonym")):
        wanted = {tuple(pair) for pair in of_class(source, pairs, kind)["token"].values.tolist()}
        assert wanted <= {tuple(pair) for pair in pairs["token"].values[numbers].tolist()}
    assert not set(found[judgement.SAME_CONSEQUENCES]) & set(found[judgement.SAME_PLACES])


def test_verdict_fails_and_holds(fails, holds):
    found = judgement.verdict(fails[1])
    assert found.word == "fails" and found.conditional_of_semantic.high < judgement.HELD
    found = judgement.verdict(holds)
    assert found.word == "holds"
    assert found.conditional_of_semantic.share == found.semantic_of_conditional.share == 1


def test_verdict_is_inconclusive_without_a_near_pair(fails):
    _, pairs = fails
    ones = pairs["semantic_relative"] * 0 + 1
    far = pairs.assign(semantic_relative=ones, conditional_relative=ones, conditional=ones)
    found = judgement.verdict(far)
    assert found.word == "inconclusive" and found.conditional_of_semantic.pairs == 0
    assert "no pair" in str(found.conditional_of_semantic)


def test_verdict_is_inconclusive_if_synthetic_duplicates_are_not_recognised(fails, holds):
    """They are recognised even where neighbours are equivalent too."""
    _, pairs = fails
    assert judgement.duplicates_auc(pairs) == judgement.duplicates_auc(holds) == 1
    rolled = pairs["semantic_relative"].roll(pair=pairs.sizes["pair"] // 2)
    bad_models = pairs.assign(semantic_relative=rolled)
    assert judgement.duplicates_auc(bad_models) < judgement.MIN_AUC
    assert judgement.verdict(bad_models).word == "inconclusive"
    without = pairs.assign(planted=pairs["planted"] * 0)
    assert np.isnan(judgement.duplicates_auc(without))
    assert judgement.verdict(without).word == "fails"


def test_shares_are_weighted_by_mass_and_resampled_by_tokens():
    token_C, mass_C = np.array([0, 0, 1, 2]), np.array([6.0, 6.0, 2.0, 1.0])
    one_C, other_C = np.array([True, True, True, False]), np.array([True, True, False, True])
    found = judgement.share_near(token_C, mass_C, one_C, other_C)
    assert found.share == pytest.approx(12 / 14) and found.pairs == 3
    assert found.low == 0 and found.high == 1  # a resample may hold one of the two tokens alone


def test_auc_counts_ties_half():
    found = judgement.auc(np.array([0.0, 1.0]), np.array([1.0, 2.0, np.nan]))
    assert found == pytest.approx((1 + 1 + 0.5 + 1) / 4)


def test_each_pair_is_selected_once():
    candidates = inference.CandidatePairs(
        np.array([[3, 1], [1, 3], [1, 2]]), np.array(["input", "output", "random"])
    )
    selected = judgement.select_pairs(
        candidates, np.array([[5, 6]]), np.array([0.1]), list("abcdefg"), np.arange(7)
    )
    expected = {
        "token": [[1, 2], [1, 3], [5, 6]],
        "near": [False, True, False],
        "random": [True, False, False],
        "planted": [0, 0, 0.1],
        "candidate": [[1, 0], [1, 1], [3, 1]],
        "first": list("bbf"),
        "second": list("cdg"),
        "mass": [1, 1, 3],
    }
    assert {name: selected[name].values.tolist() for name in expected} == expected
