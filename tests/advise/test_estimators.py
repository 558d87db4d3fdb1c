"""Estimators of divergences from two models, against their definitions, against exact laws of EXor,
and under noise.
"""

import itertools
import math

import numpy as np
import pytest
from exact_source import exor_pair
from known_pairs import noisy

from jaxtie.advise import estimators
from jaxtie.exor import data

LN9 = math.log(9)


def random_contexts(seed: int, sentences: int = 6, vocabulary: int = 5, distances: int = 3):
    """ln q of the pair at contexts of some sentences, predictions after either, and the sentences'
    numbers, mixed.
    """
    rng = np.random.default_rng(seed)
    sentence_N = rng.permutation(
        np.repeat(10 * np.arange(sentences), rng.integers(1, 4, sentences))
    )
    logs = rng.normal(size=(2, 2, len(sentence_N))) - 3
    roots = np.sqrt(rng.dirichlet(np.ones(vocabulary), (2, 2, len(sentence_N), distances)))
    roots[:, :, :2, -1] = np.nan  # near the end of a sentence
    return logs, roots, sentence_N


def estimate_both(logs, roots, sentence_N):
    conditional = estimators.conditional(estimators.conditional_sums(*logs, sentence_N))
    return conditional, estimators.semantic(
        estimators.semantic_sums(estimators.semantic_products(*roots), sentence_N)
    )


@pytest.mark.parametrize("seed", range(3))
def test_conditional_estimates_are_their_definitions(seed):
    """By loops over couples of contexts of different sentences."""
    (first, second), roots, sentence_N = random_contexts(seed)
    found, _ = estimate_both((first, second), roots, sentence_N)
    a, b = second - first
    couples = [
        (i, j)
        for i, j in itertools.permutations(range(len(a)), 2)
        if sentence_N[i] != sentence_N[j]
    ]
    assert len(couples) < len(a) * (len(a) - 1)  # some sentences have several contexts
    assert found.bias == pytest.approx((a.mean() + b.mean()) / 2)
    assert found.bias_gap == pytest.approx(a.mean() - b.mean())
    assert found.divergence == pytest.approx(
        np.mean([(a[i] - a[j]) * (b[i] - b[j]) / 2 for i, j in couples])
    )
    own = np.mean([((a[i] - a[j]) ** 2 + (b[i] - b[j]) ** 2) / 4 for i, j in couples])
    assert found.disagreement == pytest.approx(own - found.divergence)
    shares = [
        q_second / (q_first + q_second)
        for q_first, q_second in zip(np.exp(first).ravel(), np.exp(second).ravel())
    ]
    assert found.overlap == pytest.approx(np.mean([4 * e * (1 - e) for e in shares]))


def test_one_context_a_sentence_is_the_covariance_with_n_less_one():
    rng = np.random.default_rng(3)
    log_second_2xN = rng.normal(size=(2, 20))
    sums = estimators.conditional_sums(np.zeros((2, 20)), log_second_2xN, np.arange(20))
    assert estimators.conditional(sums).divergence == pytest.approx(np.cov(log_second_2xN)[0, 1])


@pytest.mark.parametrize("seed", range(3))
def test_semantic_estimates_are_their_definitions(seed):
    """By loops over contexts, distances and tokens."""
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
    couples = [
        (i, j) for i in range(contexts) for j in range(contexts) if sentence_N[i] != sentence_N[j]
    ]
    varied = np.mean([(own[0, i] - own[0, j]) * (own[1, i] - own[1, j]) / 2 for i, j in couples])
    assert found.variance == pytest.approx(varied)


def test_a_weight_is_a_number_of_copies():
    """Of sentences, each copy a sentence of its own; rows of weights are estimates of their own."""
    logs, roots, sentence_N = random_contexts(4)
    conditional, semantic = (
        estimators.conditional_sums(*logs, sentence_N),
        estimators.semantic_sums(estimators.semantic_products(*roots), sentence_N),
    )
    weight_RxG = np.array([[1, 1, 1, 1, 1, 1], [2, 0, 1, 0, 3, 0]])
    copies = [(number, copy) for number, times in enumerate(weight_RxG[1]) for copy in range(times)]
    index = np.concatenate([np.flatnonzero(sentence_N == 10 * number) for number, _ in copies])
    named = np.concatenate(
        [np.full(np.sum(sentence_N == 10 * n), i) for i, (n, _) in enumerate(copies)]
    )
    expected = [
        estimate_both(logs, roots, sentence_N),
        estimate_both(logs[..., index], roots[:, :, index], named),
    ]
    for row, (of_conditional, of_semantic) in enumerate(expected):
        for found, wanted in (
            (estimators.conditional(conditional, weight_RxG), of_conditional),
            (estimators.semantic(semantic, weight_RxG), of_semantic),
        ):
            np.testing.assert_allclose([value[row] for value in found], wanted, atol=1e-12)


def test_parts_turn_their_sign_with_the_factor_of_a_sentence():
    """B's predictions of the first and the second exchanged in some sentences; or its centred log
    ratios turned round.
    """
    logs, roots, sentence_N = random_contexts(5)
    turned_G = np.array([1, -1, -1, 1, -1, 1])
    turned_N = turned_G[sentence_N // 10] < 0
    conditional, semantic = estimate_both(logs, roots, sentence_N)
    parts_G = estimators.semantic_parts(
        estimators.semantic_sums(estimators.semantic_products(*roots), sentence_N)
    )
    assert parts_G.sum() == pytest.approx(semantic.divergence)
    exchanged = roots.copy()
    exchanged[:, 1, turned_N] = roots[::-1, 1][:, turned_N]
    assert turned_G @ parts_G == pytest.approx(
        estimate_both(logs, exchanged, sentence_N)[1].divergence
    )

    parts_G = estimators.conditional_parts(estimators.conditional_sums(*logs, sentence_N))
    assert parts_G.sum() == pytest.approx(conditional.divergence)
    a, b = logs[1] - logs[0]
    a, b = a - a.mean(), np.where(turned_N, -1, 1) * (b - b.mean())
    couples = [
        (i, j)
        for i, j in itertools.permutations(range(len(a)), 2)
        if sentence_N[i] != sentence_N[j]
    ]
    expected = np.mean([(a[i] - a[j]) * (b[i] - b[j]) / 2 for i, j in couples])
    assert turned_G @ parts_G == pytest.approx(expected)


def test_products_are_unbiased_where_squares_are_not():
    """Noise of A and B that is independent: the products keep the planted values, the squares of
    one model grow with it.
    """
    rng, sigma, contexts, rounds = np.random.default_rng(6), 0.5, 40, 400
    odds_N = np.where(np.arange(contexts) % 2, 1.0, -1.0)  # C² is the variance: 40/39
    law_first, law_second = rng.dirichlet(np.ones(8), 2)
    distance = 1 - np.sum(np.sqrt(law_first * law_second))
    products, squares = np.empty((rounds, 2)), np.empty((rounds, 2))
    for row in range(rounds):
        log_second = odds_N + sigma * rng.normal(size=(2, contexts))
        log_first = sigma * rng.normal(size=(2, contexts))
        roots = np.sqrt([law_first, law_second])[:, None, None, None] + 0.1 * rng.normal(
            size=(2, 2, contexts, 1, 8)
        )
        conditional, semantic = estimate_both((log_first, log_second), roots, np.arange(contexts))
        products[row] = conditional.divergence, semantic.divergence
        one_model = estimate_both(
            (log_first[[0, 0]], log_second[[0, 0]]), roots[:, [0, 0]], np.arange(contexts)
        )
        squares[row] = one_model[0].divergence, one_model[1].divergence
        assert one_model[0].disagreement == pytest.approx(0) and one_model[
            1
        ].disagreement == pytest.approx(0)
    truth = np.array([40 / 39, distance])
    error = products.std(axis=0) / math.sqrt(rounds)
    assert np.all(np.abs(products.mean(axis=0) - truth) < 3 * error)
    assert np.all(error < 0.02 * truth)
    np.testing.assert_allclose(squares.mean(axis=0) - truth, [2 * sigma**2, 8 * 0.1**2], rtol=0.1)


@pytest.mark.parametrize("apart", [0, 1])
def test_noise_in_log_probabilities(apart):
    """Of g, which is no linear function of them: right for equivalent tokens, 2 % too small for
    others; squares never are.
    """
    rng, sigma, rounds = np.random.default_rng(8), 0.3, 200
    laws = rng.dirichlet(np.ones(64), 2)
    laws = np.broadcast_to(laws[[0, apart], None, None, None], (2, 2, 20, 1, 64))
    truth = 1 - np.sum(np.sqrt(laws[0, 0, 0, 0] * laws[1, 0, 0, 0]))
    found = np.empty((rounds, 2))
    for row in range(rounds):
        roots = np.sqrt(noisy(laws, sigma, rng))
        for column, models in enumerate(([0, 1], [0, 0])):
            sums = estimators.semantic_sums(
                estimators.semantic_products(*roots[:, models]), np.arange(20)
            )
            found[row, column] = estimators.semantic(sums).divergence
    error = 3 * found.std(axis=0) / math.sqrt(rounds)
    assert np.all(error < 0.003)
    product, square = found.mean(axis=0)
    assert product == pytest.approx(truth * math.exp(-(sigma**2) / 4), abs=error[0] + 0.001)
    assert square - product == pytest.approx(sigma**2 / 4, rel=0.1)


def test_divergences_of_equivalent_tokens_have_either_sign():
    """Never clipped: half of them are below 0."""
    rng = np.random.default_rng(7)
    below = np.zeros(2)
    for _ in range(200):
        roots = np.sqrt(rng.dirichlet(np.full(6, 5), (2, 2, 20, 2)))
        both = estimate_both(rng.normal(size=(2, 2, 20)), roots, np.arange(20))
        below += [estimates.divergence < 0 for estimates in both]
    assert np.all((below > 80) & (below < 120))


@pytest.mark.parametrize(
    ("pair", "bias", "overlap"), [((0, 1), LN9, 0.36), ((2, 3), 0, 1)], ids=["X-Y", "A-B"]
)
def test_exchangeable_symbols_of_exor(pair, bias, overlap):
    conditional, semantic = exor_pair(*pair)
    assert conditional == pytest.approx((bias, 0, 0, 0, overlap), abs=1e-12)
    assert semantic == pytest.approx((0, 0, 0, 0, 0), abs=1e-12)


def test_a_zero_and_a_one_of_exor_have_no_overlap():
    """Where the one can stand the other cannot, so no log ratio tells how far they are apart; and
    they predict other bits.
    """
    conditional, semantic = exor_pair(data.X, data.A)
    assert conditional.overlap == 0 < estimators.EXTRAPOLATED
    assert math.isnan(conditional.bias) and math.isnan(conditional.divergence)
    assert semantic.divergence == pytest.approx(1)
    assert semantic.variance == pytest.approx(0, abs=1e-12)


def test_what_cannot_be_told_is_nan():
    """All contexts in one sentence: nothing varies between sentences. A distance that no context
    has.
    """
    (first, second), roots, sentence_N = random_contexts(8)
    conditional, semantic = estimate_both((first, second), roots, np.zeros_like(sentence_N))
    assert (
        math.isnan(conditional.divergence)
        and math.isnan(semantic.variance)
        and math.isfinite(conditional.bias)
    )
    roots[:, :, :, 1] = np.nan
    _, semantic = estimate_both((first, second), roots, sentence_N)
    assert math.isnan(semantic.divergence) and math.isfinite(semantic.first)
