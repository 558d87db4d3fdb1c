"""Estimators of divergences: their definitions, and noise."""

import itertools
import math

import numpy as np
import pytest
from equivalence import estimators
from ground_truth import estimate_both, noisy, semantic_products


def random_contexts(seed: int, sentences: int = 6, vocabulary: int = 5, distances: int = 3):
    """Log-probabilities of a pair, roots of predictions after either, and sentences, shuffled."""
    rng = np.random.default_rng(seed)
    sentence_N = rng.permutation(
        np.repeat(10 * np.arange(sentences), rng.integers(1, 4, sentences))
    )
    logs = rng.normal(size=(2, 2, len(sentence_N))) - 3
    roots = np.sqrt(rng.dirichlet(np.ones(vocabulary), (2, 2, len(sentence_N), distances)))
    roots[:, :, :2, -1] = np.nan  # near the end of a sentence
    return logs, roots, sentence_N


def covariance_by_loop(a_N: np.ndarray, b_N: np.ndarray, sentence_N: np.ndarray) -> float:
    """Average over couples of contexts of different sentences."""
    couples = itertools.permutations(range(len(a_N)), 2)
    return np.mean(
        [
            (a_N[i] - a_N[j]) * (b_N[i] - b_N[j]) / 2
            for i, j in couples
            if sentence_N[i] != sentence_N[j]
        ]
    )


@pytest.mark.parametrize("seed", range(3))
def test_conditional_matches_its_definition(seed):
    (first, second), roots, sentence_N = random_contexts(seed)
    assert len(set(sentence_N.tolist())) < len(sentence_N)  # some sentences have several contexts
    found, _ = estimate_both((first, second), roots, sentence_N)
    a, b = second - first
    assert found.bias == pytest.approx((a.mean() + b.mean()) / 2)
    assert found.bias_gap == pytest.approx(a.mean() - b.mean())
    assert found.divergence == pytest.approx(covariance_by_loop(a, b, sentence_N))
    own = sum(covariance_by_loop(x, x, sentence_N) for x in (a, b)) / 2
    assert found.disagreement == pytest.approx(own - found.divergence)
    share = np.exp(second) / (np.exp(first) + np.exp(second))
    assert found.overlap == pytest.approx(np.mean(4 * share * (1 - share)))


def test_conditional_with_one_context_per_sentence_is_the_sample_covariance():
    rng = np.random.default_rng(3)
    log_second_2xN = rng.normal(size=(2, 20))
    sums = estimators.conditional_sums(np.zeros((2, 20)), log_second_2xN, np.arange(20))
    assert estimators.conditional(sums).divergence == pytest.approx(np.cov(log_second_2xN)[0, 1])


@pytest.mark.parametrize("seed", range(3))
def test_semantic_matches_its_definition(seed):
    """Loop over contexts, distances and tokens."""
    logs, roots, sentence_N = random_contexts(seed)
    _, found = estimate_both(logs, roots, sentence_N)
    (a_first, b_first), (a_second, b_second) = roots
    contexts, distances, vocabulary = a_first.shape
    by_distance, own_by_distance, own = [], [], np.zeros((2, contexts))
    for k in range(distances):
        products, squares = [], []
        for i in range(contexts):
            if np.isnan(a_first[i, k, 0]):
                continue
            steps = [
                (a_second[i, k, v] - a_first[i, k, v], b_second[i, k, v] - b_first[i, k, v])
                for v in range(vocabulary)
            ]
            products.append(sum(x * y for x, y in steps) / 2)
            squares.append(sum(x * x + y * y for x, y in steps) / 4)
            own[:, i] += [sum(x * x for x, _ in steps) / 2, sum(y * y for _, y in steps) / 2]
        by_distance.append(np.mean(products))
        own_by_distance.append(np.mean(squares))
    assert found.first == pytest.approx(by_distance[0])
    assert found.later == pytest.approx(sum(by_distance[1:]))
    assert found.divergence == pytest.approx(sum(by_distance))
    assert found.disagreement == pytest.approx(sum(own_by_distance) - sum(by_distance))
    assert found.variance == pytest.approx(covariance_by_loop(*own, sentence_N))


def test_weights_count_copies_of_sentences():
    """Each copy is a sentence of its own; rows of weights give estimates of their own."""
    logs, roots, sentence_N = random_contexts(4)
    conditional = estimators.conditional_sums(*logs, sentence_N)
    semantic = estimators.semantic_sums(*semantic_products(*roots), sentence_N)
    weight_RxG = np.array([[1, 1, 1, 1, 1, 1], [2, 0, 1, 0, 3, 0]])
    copies = [np.flatnonzero(sentence_N == 10 * n) for n in np.repeat(range(6), weight_RxG[1])]
    index, named = np.concatenate(copies), np.repeat(range(len(copies)), list(map(len, copies)))
    expected = [
        estimate_both(logs, roots, sentence_N),
        estimate_both(logs[..., index], roots[:, :, index], named),
    ]
    found = (
        estimators.conditional(conditional, weight_RxG),
        estimators.semantic(semantic, weight_RxG),
    )
    for row, both in enumerate(expected):
        for own, wanted in zip(found, both):
            np.testing.assert_allclose([value[row] for value in own], wanted, atol=1e-12)


def test_parts_change_sign_with_a_factor_of_their_sentence():
    """Exchange B's predictions in some sentences; or negate its centered log ratios there."""
    logs, roots, sentence_N = random_contexts(5)
    sign_G = np.array([1, -1, -1, 1, -1, 1])
    negative_N = sign_G[sentence_N // 10] < 0
    conditional, semantic = estimate_both(logs, roots, sentence_N)
    parts_G = estimators.semantic_parts(
        estimators.semantic_sums(*semantic_products(*roots), sentence_N)
    )
    assert parts_G.sum() == pytest.approx(semantic.divergence)
    exchanged = roots.copy()
    exchanged[:, 1, negative_N] = roots[::-1, 1][:, negative_N]
    assert sign_G @ parts_G == pytest.approx(
        estimate_both(logs, exchanged, sentence_N)[1].divergence
    )

    parts_G = estimators.conditional_parts(estimators.conditional_sums(*logs, sentence_N))
    assert parts_G.sum() == pytest.approx(conditional.divergence)
    a, b = logs[1] - logs[0]
    a, b = a - a.mean(), np.where(negative_N, -1, 1) * (b - b.mean())
    assert sign_G @ parts_G == pytest.approx(covariance_by_loop(a, b, sentence_N))


def test_products_of_two_models_are_unbiased_where_squares_of_one_are_not():
    rng, sigma, contexts, rounds = np.random.default_rng(6), 0.5, 40, 400
    odds_N = np.where(np.arange(contexts) % 2, 1.0, -1.0)  # C² is the variance: 40/39
    first_V, second_V = rng.dirichlet(np.ones(8), 2)
    distance = 1 - np.sum(np.sqrt(first_V * second_V))
    products, squares = np.empty((rounds, 2)), np.empty((rounds, 2))
    for row in range(rounds):
        log_second = odds_N + sigma * rng.normal(size=(2, contexts))
        log_first = sigma * rng.normal(size=(2, contexts))
        roots = np.sqrt([first_V, second_V])[:, None, None, None] + 0.1 * rng.normal(
            size=(2, 2, contexts, 1, 8)
        )
        both = estimate_both((log_first, log_second), roots, np.arange(contexts))
        products[row] = [estimate.divergence for estimate in both]
        one_model = estimate_both(
            (log_first[[0, 0]], log_second[[0, 0]]), roots[:, [0, 0]], np.arange(contexts)
        )
        squares[row] = [estimate.divergence for estimate in one_model]
        assert [estimate.disagreement for estimate in one_model] == pytest.approx([0, 0])
    truth = np.array([40 / 39, distance])
    error = products.std(axis=0) / math.sqrt(rounds)
    assert np.all(np.abs(products.mean(axis=0) - truth) < 3 * error)
    assert np.all(error < 0.02 * truth)
    np.testing.assert_allclose(squares.mean(axis=0) - truth, [2 * sigma**2, 8 * 0.1**2], rtol=0.1)


@pytest.mark.parametrize("apart", [0, 1])
def test_semantic_with_noise_in_log_probabilities(apart):
    """Unbiased for equivalent tokens, 2 % too small for others; squares never are unbiased."""
    rng, sigma, rounds = np.random.default_rng(8), 0.3, 200
    q = rng.dirichlet(np.ones(64), 2)
    q = np.broadcast_to(q[[0, apart], None, None, None], (2, 2, 20, 1, 64))
    truth = 1 - np.sum(np.sqrt(q[0, 0, 0, 0] * q[1, 0, 0, 0]))
    found = np.empty((rounds, 2))
    for row in range(rounds):
        roots = np.sqrt(noisy(q, sigma, rng))
        for column, models in enumerate(([0, 1], [0, 0])):
            sums = estimators.semantic_sums(*semantic_products(*roots[:, models]), np.arange(20))
            found[row, column] = estimators.semantic(sums).divergence
    error = 3 * found.std(axis=0) / math.sqrt(rounds)
    assert np.all(error < 0.003)
    product, square = found.mean(axis=0)
    assert product == pytest.approx(truth * math.exp(-(sigma**2) / 4), abs=error[0] + 0.001)
    assert square - product == pytest.approx(sigma**2 / 4, rel=0.1)


def test_nan_without_a_second_sentence_or_without_a_distance():
    (first, second), roots, sentence_N = random_contexts(8)
    conditional, semantic = estimate_both((first, second), roots, np.zeros_like(sentence_N))
    assert math.isnan(conditional.divergence) and math.isnan(semantic.variance)
    assert math.isfinite(conditional.bias)
    roots[:, :, :, 1] = np.nan
    _, semantic = estimate_both((first, second), roots, sentence_N)
    assert math.isnan(semantic.divergence) and math.isfinite(semantic.first)
