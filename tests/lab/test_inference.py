"""P-values, intervals and discoveries for pairs of tokens, and which pairs are candidates."""

import itertools

import numpy as np
import pytest
import synthetic
from equivalence import estimators, inference
from ground_truth import noisy_sums
from scipy.stats import ortho_group

from jaxtie.config import UserError


@pytest.fixture(scope="module")
def equivalents():
    """Sums of both divergences of duplicates, from models with independent errors."""
    source = synthetic.make_source(synthetic.Plan(pairs=(2, 2, 1, 1), near=1, plain=8))
    tokens_BxL, rng = synthetic.sample_sentences(source, 3000, 20, seed=0), np.random.default_rng(0)
    pairs = [*source.pairs["duplicate"].tolist(), *source.pairs["skewed duplicate"].tolist()]
    return [
        sums
        for pair in pairs
        for sums in noisy_sums(source, tokens_BxL, pair, 13, 8, 32, 0.3, rng, rounds=100)
    ]


def test_95_percent_intervals_of_duplicates_cover_0_in_90_to_98_percent(equivalents):
    ends_Px2x2 = np.array(
        [
            [
                inference.divergence_interval(estimate, sums, row)
                for estimate, sums in zip((estimators.conditional, estimators.semantic), both)
            ]
            for row, both in enumerate(equivalents)
        ]
    )
    shares = np.mean((ends_Px2x2[..., 0] < 0) & (ends_Px2x2[..., 1] > 0), axis=0)
    assert np.all((shares > 0.9) & (shares < 0.98)), shares


def test_false_positives_are_5_percent(equivalents):
    """And there are hardly any discoveries at a false discovery rate of 5 %."""
    conditional, semantic = zip(*equivalents)
    for parts in (
        [estimators.conditional_parts(sums) for sums in conditional],
        [estimators.semantic_parts(sums) for sums in semantic],
    ):
        p_P = inference.sign_flip_test(parts, flips=2000)
        assert 0.03 < np.mean(p_P <= 0.05) < 0.07
        assert abs(np.mean(p_P <= 0.5) - 0.5) < 0.08
        assert inference.discoveries(p_P).sum() <= 2


def test_sign_flips_match_the_enumeration_of_all_signs():
    """For pairs with different numbers of sentences, and for one without a value."""
    rng = np.random.default_rng(1)
    parts = [rng.normal(0.4, 1, size) for size in (6, 9, 4)]
    parts[2][:] = 0  # every sign is as high
    found = inference.sign_flip_test([*parts, np.array([1, np.nan])], flips=40_000)
    for part_G, p in zip(parts, found):
        sums = [np.dot(signs, part_G) for signs in itertools.product([-1, 1], repeat=len(part_G))]
        assert p == pytest.approx(np.mean(np.array(sums) >= part_G.sum() - 1e-9), abs=0.01)
    assert found[2] == 1 and np.isnan(found[3])
    # One-sided: a divergence is not below 0.
    extremes = inference.sign_flip_test([np.ones(40), -np.ones(40)], flips=999)
    assert extremes.tolist() == [0.001, 1]


def test_sentences_are_resampled_and_not_contexts(monkeypatch):
    """Four copies of a context in its own sentence add nothing; in other sentences they do."""
    monkeypatch.setattr(inference, "RESAMPLES", 2000)
    rng = np.random.default_rng(2)
    logs = rng.normal(size=(2, 2, 40))
    once = estimators.conditional_sums(*logs, np.arange(40))
    again = estimators.conditional_sums(*np.repeat(logs, 4, axis=-1), np.repeat(np.arange(40), 4))
    other = estimators.conditional_sums(*np.repeat(logs, 4, axis=-1), np.arange(160))
    p_P = inference.sign_flip_test(
        [estimators.conditional_parts(sums) for sums in (once, again)], flips=2000
    )
    assert p_P[0] == pytest.approx(p_P[1], abs=0.01)
    widths = [
        np.ptp(inference.divergence_interval(estimators.conditional, sums))
        for sums in (once, again, other)
    ]
    assert widths[1] == pytest.approx(widths[0], rel=0.01)
    assert widths[2] == pytest.approx(widths[0] / 2, rel=0.1)


def low_rank_errors(
    rng: np.random.Generator, width: int, contexts: int
) -> estimators.ConditionalSums:
    """An equivalent pair whose output rows have random errors, the same in all contexts."""
    hidden_NxD = rng.normal(size=(contexts, width)) / np.sqrt(width)
    log_second = [hidden_NxD @ rng.normal(size=width) for _ in "AB"]
    return estimators.conditional_sums(
        np.zeros((2, contexts)), np.array(log_second), np.arange(contexts)
    )


def moments(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Divergences and their variances over sentences."""
    return np.array([part_G.sum() for part_G in parts]), np.array(
        [np.sum(part_G**2) for part_G in parts]
    )


def test_known_duplicates_show_the_errors_that_sentences_share():
    """With rows 8 wide, sentences alone give far too many false positives and narrow intervals."""
    rng = np.random.default_rng(3)
    sums = [low_rank_errors(rng, width=8, contexts=64) for _ in range(400)]
    parts = [estimators.conditional_parts(of_pair) for of_pair in sums]
    assert np.mean(inference.sign_flip_test(parts, flips=1000) <= 0.05) > 0.2
    ends_Px2 = np.array(
        [
            inference.divergence_interval(estimators.conditional, each, row)
            for row, each in enumerate(sums[:200])
        ]
    )
    assert np.mean((ends_Px2[:, 0] < 0) & (ends_Px2[:, 1] > 0)) < 0.6
    divergence_P, variance_P = moments(parts)
    deviation = inference.shared_deviation(divergence_P[:200], variance_P[:200])
    z_P = np.abs(divergence_P[200:]) / np.sqrt(deviation**2 + variance_P[200:])
    assert 0.02 < np.mean(z_P > 1.96) < 0.09
    independent = moments(
        [estimators.conditional_parts(low_rank_errors(rng, 4096, 64)) for _ in range(100)]
    )
    assert inference.shared_deviation(*independent) < 0.6 * np.sqrt(np.mean(independent[1]))


def test_shared_errors_widen_intervals_and_raise_p_values():
    """All contexts are alike, so sentences show no error; known pairs do, and cover new ones."""
    rng = np.random.default_rng(6)
    divergence_P = np.append(rng.normal(0, 0.01, 400), 0.2)
    equivalent_P, scale_P, nothing_P = np.arange(401) < 200, np.ones(401), np.zeros(401)
    p_P, ends_2xP, deviation = inference.with_shared_errors(
        divergence_P, nothing_P, np.stack([divergence_P] * 2), scale_P, equivalent_P
    )
    assert deviation == pytest.approx(0.01, rel=0.15)
    (low_P, high_P), new = ends_2xP, (np.arange(401) >= 200) & (np.arange(401) < 400)
    assert 0.9 <= np.mean((low_P <= 0)[new] & (high_P >= 0)[new]) <= 0.98
    assert 0.02 <= np.mean(p_P[new] < 0.05) <= 0.09 and p_P[400] < 1e-6
    p_P, _, deviation = inference.with_shared_errors(
        divergence_P, nothing_P, ends_2xP, scale_P, np.zeros(401, bool)
    )
    assert deviation == 0 and np.isnan(p_P).all()


def test_shared_errors_are_proportional_to_rarity():
    """Rows learned from few and from many occurrences: intervals cover pairs of each class."""
    rng = np.random.default_rng(7)
    count_Px2 = rng.choice([30, 2000], (4000, 2))
    rarity_P = inference.rarity(count_Px2)
    # of A's rows and of B's
    error_2xPx2xD = rng.normal(size=(2, 4000, 2, 6)) / np.sqrt(count_Px2)[..., None]
    between_2xPxD = error_2xPx2xD[:, :, 0] - error_2xPx2xD[:, :, 1]
    divergence_P = np.sum(between_2xPxD[0] * between_2xPxD[1], axis=-1)
    _, (low_P, high_P), _ = inference.with_shared_errors(
        divergence_P, np.zeros(4000), np.stack([divergence_P] * 2), rarity_P, np.arange(4000) < 60
    )
    for rare in (2, 1, 0):  # tokens of a pair
        own_P = (count_Px2 == 30).sum(axis=1) == rare
        assert 0.9 <= np.mean((low_P <= 0)[own_P] & (high_P >= 0)[own_P]) <= 0.99


def test_shared_deviation_excludes_the_variance_over_sentences():
    divergence_Q, variance_Q = np.array([3.0, -3.0, np.nan]), np.array([5.0, 5.0, 5.0])
    assert inference.shared_deviation(divergence_Q, variance_Q) == pytest.approx(2.0)
    assert inference.shared_deviation(np.array([1.0]), np.array([2.0])) == 0
    assert inference.shared_deviation(np.zeros(0), np.zeros(0)) == 0


def test_discoveries_match_benjamini_and_hochberg():
    """The largest k whose k-th smallest p-value is at most 5 % · k / m, without NaNs."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        p_P = np.append(rng.random(20) ** 3, np.nan)
        order = np.argsort(p_P)[:20]
        found = [k for k in range(1, 21) if p_P[order[k - 1]] <= 0.05 * k / 20]
        expected = np.isin(np.arange(21), order[: max(found, default=0)])
        np.testing.assert_array_equal(inference.discoveries(p_P), expected)
    assert not inference.discoveries(np.full(3, np.nan)).any()


def test_unrelated_level_is_the_median_of_random_pairs_of_similar_frequency(monkeypatch):
    monkeypatch.setattr(inference, "UNRELATED", 3)
    # Frequency is the geometric mean: the first three pairs, then the random ones.
    frequency = np.array([0.2, 4.4, 9, *range(10)])
    count_Px2 = np.exp(frequency[:, None] + np.array([-2, 2]))
    divergence_P = np.array([0, 0, 0, 9, 7, 8, 1, np.nan, 2, -1, -3, -2, -5.0])
    random_P = np.arange(13) >= 3
    level_P = inference.unrelated_level(count_Px2, divergence_P, random_P)
    # medians of 9 7 8, of 1 2 -1, and of -3 -2 -5: no level
    np.testing.assert_array_equal(level_P[:3], [8, 1, np.nan])
    monkeypatch.setattr(inference, "UNRELATED", 64)
    assert inference.unrelated_level(count_Px2, divergence_P, random_P)[0] == 1  # all nine
    nothing_P = np.full(13, np.nan)
    assert np.isnan(inference.unrelated_level(count_Px2, nothing_P, random_P)).all()


def test_nearest_tokens_are_invariant_to_linear_maps():
    """A body could absorb the map, which does change plain distances."""
    rng = np.random.default_rng(5)
    table_VxD, usable_V = rng.normal(size=(60, 6)), np.arange(60) % 5 > 0
    token_K = np.array([3, 10, 59])
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
        mahalanobis = [step @ inverse_DxD @ step for step in steps]
        assert nearest_N.tolist() == [others[rank] for rank in np.argsort(mahalanobis)[:5]]
        plain.append([others[rank] for rank in np.argsort(np.linalg.norm(steps, axis=1))[:5]])
    assert np.any(plain != nearest)
    # directions without variance
    flat_VxD = np.column_stack([table_VxD, table_VxD[:, :1], np.ones(60)])
    np.testing.assert_array_equal(inference.nearest_tokens(flat_VxD, token_K, usable_V), nearest)


def test_random_partners_have_similar_frequency():
    rng = np.random.default_rng(6)
    count_V = np.arange(1, 201) * 10
    usable_V, excluded = np.arange(200) % 2 == 0, np.array([98, 102])
    drawn = {
        int(token)
        for _ in range(300)
        for token in inference.random_partners(count_V, 100, usable_V, excluded, rng)
    }
    possible = set(range(0, 200, 2)) - {98, 100, 102}
    assert len(drawn) == inference.LIKE_FREQUENCY and drawn <= possible
    near, far = (
        np.abs(np.log([count_V[token] / 1010 for token in tokens]))
        for tokens in (drawn, possible - drawn)
    )
    assert near.max() <= far.min()


def test_candidate_pairs():
    rng = np.random.default_rng(7)
    input_VxD, output_VxD = rng.normal(size=(100, 4)), rng.normal(size=(100, 6))
    input_VxD[11], output_VxD[12] = input_VxD[10] + 1e-3, output_VxD[10] + 1e-3
    input_VxD[13] = output_VxD[14] = 0  # not whole words, or rare ones
    count_V, whole_V, token_K = np.full(100, 50), np.ones(100, bool), np.array([10, 40])
    whole_V[13], count_V[14] = False, 29
    pairs = inference.candidate_pairs(input_VxD, output_VxD, count_V, token_K, whole_V)
    assert pairs.pair_Px2.shape == (2 * 12, 2)
    np.testing.assert_array_equal(pairs.pair_Px2[:, 0], np.repeat(token_K, 12))
    for token in token_K:
        nearest_input, nearest_output, random = (
            pairs.pair_Px2[(pairs.pair_Px2[:, 0] == token) & (pairs.reason_P == reason), 1].tolist()
            for reason in ("input", "output", "random")
        )
        assert len(nearest_input) == len(nearest_output) == 5
        assert len(set(random) - {token, *nearest_input, *nearest_output}) == 2
        if token == 10:
            assert nearest_input[0] == 11 and nearest_output[0] == 12
    assert not np.isin(pairs.pair_Px2, [13, 14]).any()
    again = inference.candidate_pairs(input_VxD, output_VxD, count_V, token_K, whole_V)
    other = inference.candidate_pairs(input_VxD, output_VxD, count_V, token_K, whole_V, seed=1)
    np.testing.assert_array_equal(again.pair_Px2, pairs.pair_Px2)
    assert np.any(other.pair_Px2 != pairs.pair_Px2)
    with pytest.raises(UserError, match="token 14 occurs 29 times"):
        inference.candidate_pairs(input_VxD, output_VxD, count_V, np.array([10, 14]), whole_V)
    with pytest.raises(UserError, match="there must be 13"):
        inference.candidate_pairs(input_VxD, output_VxD, count_V, token_K, np.arange(100) < 12)
