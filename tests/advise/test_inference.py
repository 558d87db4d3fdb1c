"""Null, intervals and discoveries for pairs of tokens, and which pairs are looked at."""

import itertools

import numpy as np
import pytest
from known_pairs import laws_around, noisy, occurrences
from scipy.stats import ortho_group

from jaxtie.advise import estimators, inference
from jaxtie.config import UserError
from jaxtie.text.data import synthetic

LN9 = np.log(9)
ROUNDS, CONTEXTS, DISTANCES = 100, 64, 8


@pytest.fixture(scope="module")
def equivalents():
    """Of duplicates, fair and skewed, two of each, seen by models with independent errors: sums of
    both divergences.
    """
    source = synthetic.planted(synthetic.Plan(pairs=(2, 2, 1, 1), near=1, plain=8))
    tokens_BxL = synthetic.sample_sentences(source, 3000, 20, seed=0)
    rng, sums = np.random.default_rng(0), []
    for kind in ("duplicate", "skewed duplicate"):
        for pair in source.pairs[kind].tolist():
            sentence_N, place_N = occurrences(tokens_BxL[:, :13], pair, CONTEXTS // 2, rng)
            left, first, second = laws_around(
                source, tokens_BxL, pair, sentence_N, place_N, DISTANCES
            )
            for _ in range(ROUNDS):
                logs = np.log([noisy(left, 0.3, rng)[:, pair] for _ in "AB"])
                roots = np.sqrt([[noisy(law, 0.3, rng) for _ in "AB"] for law in (first, second)])
                products = estimators.semantic_products(*roots)
                of_row = estimators.conditional_sums(*np.moveaxis(logs, -1, 0), sentence_N)
                sums.append((kind, of_row, estimators.semantic_sums(products, sentence_N)))
    return sums


def test_intervals_of_duplicates_cover_nothing_in_90_to_98_percent(equivalents):
    """95 % intervals, of equivalent tokens: S² and C² are 0, and the bias is what it is planted
    as.
    """
    covered = []
    for row, (kind, conditional, semantic) in enumerate(equivalents):
        low, high = inference.resampled_interval(
            estimators.conditional, conditional, row, resamples=500
        )
        low_s, high_s = inference.resampled_interval(
            estimators.semantic, semantic, row, resamples=500
        )
        bias = LN9 if kind == "skewed duplicate" else 0
        covered.append(
            [
                low.divergence < 0 < high.divergence,
                low_s.divergence < 0 < high_s.divergence,
                low.bias < bias < high.bias,
            ]
        )
    shares = np.mean(covered, axis=0)
    assert np.all((shares > 0.9) & (shares < 0.98)), shares


def test_false_positives_are_5_percent(equivalents):
    """Of equivalent tokens by themselves; and none at all where the share of false discoveries is
    held at 5 %.
    """
    for parts in (
        [estimators.conditional_parts(conditional) for _, conditional, _ in equivalents],
        [estimators.semantic_parts(semantic) for _, _, semantic in equivalents],
    ):
        p_P = inference.sign_flip_test(parts, flips=2000)
        assert 0.03 < np.mean(p_P <= 0.05) < 0.07
        assert abs(np.mean(p_P <= 0.5) - 0.5) < 0.08
        assert inference.discoveries(p_P).sum() <= 2


def test_the_null_is_that_of_all_signs():
    """Of a few sentences, by every sign that they may have; of different numbers of them at once;
    and of none with value.
    """
    rng = np.random.default_rng(1)
    parts = [rng.normal(0.4, 1, size) for size in (6, 9, 4)]
    parts[2][:] = 0  # nothing to tell: every sign is as high
    found = inference.sign_flip_test([*parts, np.array([1, np.nan])], flips=40_000)
    for part_G, p in zip(parts, found):
        sums = [np.dot(signs, part_G) for signs in itertools.product([-1, 1], repeat=len(part_G))]
        assert p == pytest.approx(np.mean(np.array(sums) >= part_G.sum() - 1e-9), abs=0.01)
    assert found[2] == 1 and np.isnan(found[3])
    assert inference.sign_flip_test([np.ones(40)], flips=999)[0] == 0.001
    # one-sided: a divergence is not below 0
    assert inference.sign_flip_test([-np.ones(40)], flips=999)[0] == 1


def test_sentences_are_drawn_and_not_contexts():
    """Each context four times in its sentence says no more than once; four times in other
    sentences, it would.
    """
    rng = np.random.default_rng(2)
    logs = rng.normal(size=(2, 2, 40))
    once = estimators.conditional_sums(*logs, np.arange(40))
    again = estimators.conditional_sums(*np.repeat(logs, 4, axis=-1), np.repeat(np.arange(40), 4))
    other = estimators.conditional_sums(*np.repeat(logs, 4, axis=-1), np.arange(160))
    p_P = inference.sign_flip_test(
        [estimators.conditional_parts(sums) for sums in (once, again)], flips=2000
    )
    assert p_P[0] == pytest.approx(p_P[1], abs=0.01)
    widths = []
    for sums in (once, again, other):
        low, high = inference.resampled_interval(estimators.conditional, sums)
        widths.append([high.bias - low.bias, high.divergence - low.divergence])
    np.testing.assert_allclose(widths[1], widths[0], rtol=0.01)
    np.testing.assert_allclose(widths[2], np.array(widths[0]) / 2, rtol=0.1)


def low_rank_errors(
    rng: np.random.Generator, width: int, contexts: int
) -> estimators.ConditionalSums:
    """Of an equivalent pair, whose output rows are off by random vectors: in all contexts by the
    same ones.
    """
    hidden_NxD = rng.normal(size=(contexts, width)) / np.sqrt(width)
    log_second = [hidden_NxD @ rng.normal(size=width) for _ in "AB"]
    return estimators.conditional_sums(
        np.zeros((2, contexts)), np.array(log_second), np.arange(contexts)
    )


def test_errors_that_sentences_share_are_seen_by_known_duplicates_alone():
    """Of rows 8 wide: by sentences five times as many false positives as asked for, and more; what
    is added is what lacks.
    """
    rng = np.random.default_rng(3)
    sums = [low_rank_errors(rng, width=8, contexts=64) for _ in range(400)]
    parts = [estimators.conditional_parts(of_pair) for of_pair in sums]
    assert np.mean(inference.sign_flip_test(parts, flips=1000) <= 0.05) > 0.2
    ends = [
        inference.resampled_interval(estimators.conditional, each, row, resamples=200)
        for row, each in enumerate(sums[:200])
    ]
    assert np.mean([low.divergence < 0 < high.divergence for low, high in ends]) < 0.6
    divergence_P = np.array([part_G.sum() for part_G in parts])
    variance_P = np.array([np.sum(part_G**2) for part_G in parts])
    deviation = inference.shared_deviation(divergence_P[:200], variance_P[:200])
    beside_P = np.abs(divergence_P[200:]) / np.sqrt(deviation**2 + variance_P[200:])
    assert 0.02 < np.mean(beside_P > 1.96) < 0.09
    independent = [
        estimators.conditional_parts(low_rank_errors(rng, width=4096, contexts=64))
        for _ in range(100)
    ]
    told = [
        np.array(each)
        for each in zip(*((part_G.sum(), np.sum(part_G**2)) for part_G in independent))
    ]
    assert inference.shared_deviation(*told) < 0.6 * np.sqrt(np.mean(told[1]))


def test_discoveries_are_those_of_benjamini_and_hochberg():
    """The largest k whose k-th least p-value is at most 5 % · k / m, by a loop; those without value
    are not counted.
    """
    rng = np.random.default_rng(4)
    for _ in range(20):
        p_P = np.append(rng.random(20) ** 3, np.nan)
        order = np.argsort(p_P)[:20]
        found = [k for k in range(1, 21) if p_P[order[k - 1]] <= 0.05 * k / 20]
        expected = np.isin(np.arange(21), order[: max(found, default=0)])
        np.testing.assert_array_equal(inference.discoveries(p_P), expected)
    assert not inference.discoveries(np.full(3, np.nan)).any()


def test_unrelated_is_the_median_of_random_pairs_that_are_as_frequent():
    count_V = np.array([10, 1000, 10, 1000, 100])
    # as the geometric mean of the counts
    np.testing.assert_allclose(
        inference.pair_frequency(count_V, np.array([[0, 1], [0, 2]])), [np.log(100), np.log(10)]
    )
    frequency_Q, divergence_Q = np.arange(10.0), np.array([9, 7, 8, 1, np.nan, 2, -1, -3, -2, -5.0])
    level_P = inference.unrelated_level(
        np.array([0.2, 4.4, 9]), frequency_Q, divergence_Q, number=3
    )
    # medians of 9 7 8, of 1 2 -1, and of -3 -2 -5: no level
    np.testing.assert_array_equal(level_P, [8, 1, np.nan])
    assert inference.unrelated_level(np.array([5.0]), frequency_Q, divergence_Q)[0] == 1  # all nine
    assert np.isnan(inference.unrelated_level(np.zeros(1), np.zeros(2), np.full(2, np.nan))).all()


def test_what_is_near_does_not_depend_on_a_linear_map():
    """That a body could absorb; it does change what is near by plain distances."""
    rng = np.random.default_rng(5)
    table_VxD, usable_V, token_K = (
        rng.normal(size=(60, 6)),
        np.arange(60) % 5 > 0,
        np.array([3, 10, 59]),
    )
    stretch = ortho_group.rvs(6, random_state=0) * np.array([30, 10, 3, 1, 0.3, 0.1])
    moved_VxD = table_VxD @ stretch + 7
    nearest = inference.nearest_tokens(table_VxD, token_K, usable_V)
    np.testing.assert_array_equal(inference.nearest_tokens(moved_VxD, token_K, usable_V), nearest)
    white_UxD = inference.whitened(moved_VxD, usable_V)[usable_V]
    np.testing.assert_allclose(white_UxD.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(white_UxD.T @ white_UxD / len(white_UxD), np.eye(6), atol=1e-9)
    inverse_DxD = np.linalg.inv(np.cov(moved_VxD[usable_V].T))
    plain = []
    for token, nearest_N in zip(token_K, nearest):
        others = [other for other in np.flatnonzero(usable_V) if other != token]
        steps = moved_VxD[others] - moved_VxD[token]
        apart = [step @ inverse_DxD @ step for step in steps]
        # Mahalanobis's distance
        assert nearest_N.tolist() == [others[rank] for rank in np.argsort(apart)[:5]]
        plain.append([others[rank] for rank in np.argsort(np.linalg.norm(steps, axis=1))[:5]])
    assert np.any(plain != nearest)
    # directions in which nothing differs
    flat_VxD = np.column_stack([table_VxD, table_VxD[:, :1], np.ones(60)])
    np.testing.assert_array_equal(inference.nearest_tokens(flat_VxD, token_K, usable_V), nearest)


def test_random_partners_are_as_frequent():
    rng = np.random.default_rng(6)
    count_V = np.arange(1, 201) * 10
    usable_V, besides = np.arange(200) % 2 == 0, np.array([98, 102])
    drawn = {
        int(token)
        for _ in range(300)
        for token in inference.random_partners(count_V, 100, usable_V, besides, 2, rng)
    }
    assert len(drawn) == inference.LIKE_FREQUENCY
    assert drawn <= set(range(0, 200, 2)) - {98, 100, 102}
    ratios = np.log([count_V[token] / 1010 for token in drawn])
    others = np.log(
        [count_V[token] / 1010 for token in set(range(0, 200, 2)) - {98, 100, 102} - drawn]
    )
    assert np.abs(ratios).max() <= np.abs(others).min()


def test_pairs_to_look_at():
    rng = np.random.default_rng(7)
    input_VxD, output_VxD = rng.normal(size=(100, 4)), rng.normal(size=(100, 6))
    input_VxD[11], output_VxD[12] = input_VxD[10] + 1e-3, output_VxD[10] + 1e-3
    input_VxD[13] = output_VxD[14] = 0  # not whole words, or rare ones
    count_V, whole_V, token_K = np.full(100, 50), np.ones(100, bool), np.array([10, 40])
    whole_V[13], count_V[14] = False, 29
    pairs = inference.pairs_to_look_at(input_VxD, output_VxD, count_V, token_K, whole_V)
    assert pairs.pair_Px2.shape == (2 * 12, 2)
    np.testing.assert_array_equal(pairs.pair_Px2[:, 0], np.repeat(token_K, 12))
    for token in token_K:
        of_token = pairs.pair_Px2[:, 0] == token
        reasons = {
            reason: pairs.pair_Px2[of_token & (pairs.reason_P == reason), 1].tolist()
            for reason in ("input", "output")
        }
        assert [len(partners) for partners in reasons.values()] == [5, 5]
        drawn = pairs.pair_Px2[of_token & (pairs.reason_P == "random"), 1]
        assert len(set(drawn.tolist()) - {token, *reasons["input"], *reasons["output"]}) == 2
        if token == 10:
            assert reasons["input"][0] == 11 and reasons["output"][0] == 12
    assert not np.isin(pairs.pair_Px2, [13, 14]).any()
    again = inference.pairs_to_look_at(input_VxD, output_VxD, count_V, token_K, whole_V)
    other = inference.pairs_to_look_at(input_VxD, output_VxD, count_V, token_K, whole_V, seed=1)
    np.testing.assert_array_equal(again.pair_Px2, pairs.pair_Px2)
    assert np.any(other.pair_Px2 != pairs.pair_Px2)
    with pytest.raises(UserError, match="token 14 occurs 29 times"):
        inference.pairs_to_look_at(input_VxD, output_VxD, count_V, np.array([10, 14]), whole_V)
    with pytest.raises(UserError, match="there must be 13"):
        inference.pairs_to_look_at(input_VxD, output_VxD, count_V, token_K, np.arange(100) < 12)
