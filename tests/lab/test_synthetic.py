"""The synthetic source: its classes, and exact values against brute force and samples."""

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
import synthetic
from equivalence import estimators
from ground_truth import estimate_both, exact, occurrences, predictions, predictions_around
from scipy import stats
from scipy.spatial.distance import pdist

LN9 = math.log(9)
SMALL = synthetic.Plan(pairs=(1, 1, 1, 1), near=1, plain=3)
PLACES = 33


@pytest.fixture(scope="module")
def whole():
    return synthetic.make_source(synthetic.Plan())


def values(source: synthetic.Source, kind: str, places: int = PLACES) -> np.ndarray:
    """Bias, C², overlap, S² and variance of S of all pairs of a class; Px5."""
    conditional, semantic = exact(source, source.pairs[kind], places)
    of_conditional = conditional.bias, conditional.divergence, conditional.overlap
    return np.stack([*of_conditional, semantic.divergence, semantic.variance], axis=1)


def values_of_plan(kind: str, **plan) -> np.ndarray:
    return values(synthetic.make_source(SMALL._replace(**plan)), kind)


def test_source_of_the_default_plan(whole):
    assert whole.token_N.max() + 1 == 256
    assert [len(whole.pairs[kind]) for kind in synthetic.CLASSES] == [16] * 4
    tokens = np.concatenate([whole.pairs[kind].ravel() for kind in whole.pairs])
    times = np.bincount(tokens, minlength=256)
    homograph = whole.pairs["homograph"][0, 0]
    assert times[synthetic.BEGINNING] == 0 and times[homograph] == 2
    assert np.all(np.delete(times, [0, homograph]) == 1)
    assert np.bincount(whole.token_N)[homograph] == 2
    np.testing.assert_allclose(whole.transition_NxN.sum(axis=1), 1)
    assert np.all(whole.transition_NxN[:, 0] == 0)
    # The distribution is the same at every place.
    first_N = whole.transition_NxN[0]
    np.testing.assert_allclose(first_N @ whole.transition_NxN, first_N, atol=1e-12)
    again = synthetic.make_source(synthetic.Plan())
    other = synthetic.make_source(synthetic.Plan(seed=1))
    np.testing.assert_array_equal(again.transition_NxN, whole.transition_NxN)
    assert np.abs(other.transition_NxN - whole.transition_NxN).max() > 0.1


@pytest.mark.parametrize(
    ("kind", "bias", "overlap"), [("duplicate", 0, 1), ("skewed duplicate", LN9, 0.36)]
)
def test_duplicates_have_no_divergence_but_a_bias(whole, kind, bias, overlap):
    expected = np.tile([bias, 0, overlap, 0, 0], (16, 1))
    np.testing.assert_allclose(values(whole, kind), expected, atol=1e-12)


def test_allomorphs_differ_in_the_left_token_only(whole):
    found = values(whole, "allomorph")
    np.testing.assert_allclose(found[:, 3:], 0, atol=1e-12)
    odds = math.log(0.98 / 0.02)  # either way after every token: follow is 0.96
    # In an endless sentence the first place does not matter.
    endless = synthetic.make_source(synthetic.Plan(homograph=False))
    endless = values(endless, "allomorph", places=10**6)
    np.testing.assert_allclose(endless[:, 1] + endless[:, 0] ** 2, odds**2, rtol=1e-4)
    np.testing.assert_allclose(found[:, 1], odds**2, rtol=0.1)
    np.testing.assert_allclose(found[:, 2], 4 * 0.98 * 0.02, atol=0.04)
    assert np.median(found[:, 1]) > np.median(values(whole, "plain")[:, 1])
    weaker = [values_of_plan("allomorph", follow=follow)[0, 1] for follow in (0, 0.3, 0.6, 0.9)]
    assert weaker[0] == pytest.approx(0, abs=1e-12) and np.all(np.diff(weaker) > 0.1)
    # Except at the first place, one of the two is excluded.
    _, divergence, overlap, *_ = values_of_plan("allomorph", follow=1.0)[0]
    assert math.isnan(divergence) and overlap < estimators.EXTRAPOLATED


def test_antonyms_differ_in_the_next_words_only(whole):
    found = values(whole, "antonym")
    np.testing.assert_allclose(found[:, :3], np.tile([0, 0, 1], (16, 1)), atol=1e-12)
    plain = values(whole, "plain")
    assert 0.8 < np.median(found[:, 3]) / np.median(plain[:, 3]) < 1.2  # as unrelated tokens
    weaker = [values_of_plan("antonym", permuted=share)[0, 3] for share in (0, 0.1, 0.3, 1)]
    assert weaker[0] == pytest.approx(0, abs=1e-12) and np.all(np.diff(weaker) > 5e-4)


def test_near_neighbours_are_near_and_not_equivalent(whole):
    found, plain = values(whole, "near neighbours"), np.median(values(whole, "plain"), axis=0)
    assert np.all(found[:, [1, 3]] > 0.02 * plain[[1, 3]])
    assert np.all(np.median(found, axis=0)[[1, 3]] < 0.2 * plain[[1, 3]])
    same = synthetic.make_source(synthetic.Plan(apart=0.0, permuted=0.0))
    expected = np.tile([0, 0, 1, 0, 0], (16, 1))
    np.testing.assert_allclose(values(same, "near neighbours"), expected, atol=1e-12)


def test_homographs_have_a_large_variance(whole):
    """Antonyms are further apart, but equally so in every context."""
    homograph, antonym = values(whole, "homograph"), values(whole, "antonym")
    assert homograph[:, 3].max() < antonym[:, 3].min()
    assert homograph[:, 4].min() > 10 * antonym[:, 4].max()


def distribution_of_sentences(source: synthetic.Source, length: int) -> np.ndarray:
    """Return p(tokens), V in each dimension, summed over all paths of states."""
    states, vocabulary = len(source.token_N), source.token_N.max() + 1
    p_VxVx = np.zeros((vocabulary,) * length)
    for path in itertools.product(range(1, states), repeat=length):
        steps = itertools.pairwise((0, *path))
        p = math.prod(source.transition_NxN[before, after] for before, after in steps)
        p_VxVx[tuple(source.token_N[list(path)])] += p
    return p_VxVx


@pytest.fixture(scope="module")
def small():
    source = synthetic.make_source(SMALL)
    return source, distribution_of_sentences(source, 4)


def next_token(p_VxVx: np.ndarray, *before: int) -> np.ndarray:
    """Return p(next token | the tokens before it)."""
    p_V = p_VxVx[before].reshape(len(p_VxVx), -1).sum(axis=1)
    return p_V / p_V.sum()


def contexts_by_hand(p_VxVx: np.ndarray, pair: list[int]) -> dict[tuple, float]:
    """Return (tokens on the left, next token) -> probability, at the first and second place.

    Both tokens of the pair occur equally often.
    """
    shares, vocabulary = defaultdict(float), range(1, len(p_VxVx))
    for token in pair:
        lefts = {(): p_VxVx[token].sum()}
        lefts |= {(left,): p_VxVx[left, token].sum() for left in vocabulary}
        for left, p in lefts.items():
            for after in vocabulary if p else ():
                if follows := next_token(p_VxVx, *left, token)[after]:
                    shares[left, after] += p * follows / sum(lefts.values()) / 2
    return shares


def hellinger_by_hand(first_V: np.ndarray, second_V: np.ndarray) -> float:
    return sum((math.sqrt(p) - math.sqrt(q)) ** 2 for p, q in zip(first_V, second_V)) / 2


@pytest.mark.parametrize("kind", ["allomorph", "antonym", "near neighbours", "homograph", "plain"])
def test_exact_values_match_brute_force(small, kind):
    """Apply the definitions to all sentences of four tokens: two places and two tokens after."""
    source, p_VxVx = small
    found_conditional, found_semantic = exact(source, source.pairs[kind], places=2)
    for row, pair in enumerate(source.pairs[kind].tolist()):
        ratio, overlap, at_1, both, shares = [], [], [], [], contexts_by_hand(p_VxVx, pair)
        for left, after in shares:
            q_first, q_second = next_token(p_VxVx, *left)[pair]
            ratio.append(math.log(q_second / q_first))
            overlap.append(4 * q_first * q_second / (q_first + q_second) ** 2)
            at_1.append(hellinger_by_hand(*(next_token(p_VxVx, *left, token) for token in pair)))
            at_2 = (next_token(p_VxVx, *left, token, after) for token in pair)
            both.append(at_1[-1] + hellinger_by_hand(*at_2))
        weights = list(shares.values())
        assert sum(weights) == pytest.approx(1)

        def mean(numbers, weights=weights):
            return np.average(numbers, weights=weights)

        bias, _, divergence, _, overlapping = (value[row] for value in found_conditional)
        assert (bias, overlapping) == pytest.approx((mean(ratio), mean(overlap)), abs=1e-12)
        assert divergence == pytest.approx(mean(np.square(ratio - mean(ratio))), abs=1e-12)
        divergence, first, later, variance, _ = (value[row] for value in found_semantic)
        assert (first, later) == pytest.approx((mean(at_1), mean(both) - mean(at_1)), abs=1e-12)
        assert divergence == pytest.approx(mean(both), abs=1e-12)
        assert variance == pytest.approx(mean(np.square(both - mean(both))), abs=1e-12)
        assert later > 1e-9 or kind in ("allomorph", "homograph")


def test_predictions_match_brute_force(small):
    source, p_VxVx = small
    sentences = synthetic.sample_sentences(source, 200, 3, seed=0)
    assert np.any(sentences[:, 2] == source.pairs["homograph"][0, 0])
    for tokens, found_LxV in zip(sentences.tolist(), predictions(source, sentences)):
        for place in range(4):
            expected_V = next_token(p_VxVx, *tokens[1 : place + 1])
            np.testing.assert_allclose(found_LxV[place], expected_V, atol=1e-12)


def test_samples_follow_the_distribution(small):
    """χ² over the triples that are expected ten times is near their number."""
    source, p_VxVx = small
    sentences = synthetic.sample_sentences(source, 40_000, 4, seed=1)
    assert np.all(sentences[:, 0] == synthetic.BEGINNING)
    for first in (1, 2):  # the distribution is the same at every place
        expected = 40_000 * p_VxVx.sum(axis=3)
        found = np.zeros_like(expected)
        np.add.at(found, tuple(sentences[:, first : first + 3].T), 1)
        often = expected > 10
        chi_squared = np.sum((found - expected)[often] ** 2 / expected[often])
        assert expected[often].sum() > 20_000
        assert abs(chi_squared - often.sum()) < 4 * math.sqrt(2 * often.sum())
    np.testing.assert_array_equal(sentences, synthetic.sample_sentences(source, 40_000, 4, seed=1))
    assert np.any(sentences != synthetic.sample_sentences(source, 40_000, 4, seed=2))


@pytest.mark.parametrize("kind", ["allomorph", "antonym", "near neighbours", "homograph"])
def test_estimates_from_sentences_approach_the_exact_values(small, kind):
    """Two perfect models; the only error is which sentences were drawn."""
    source, _ = small
    pair = tuple(source.pairs[kind][0].tolist())
    tokens_BxL = synthetic.sample_sentences(source, 8000, 14, seed=2)
    sentence_N, place_N = occurrences(tokens_BxL[:, :8], pair, 300, np.random.default_rng(0))
    left_NxV, *after = predictions_around(
        source, tokens_BxL, pair, sentence_N, place_N, distances=4
    )
    logs = np.repeat(np.log(left_NxV[:, pair]).T[:, None], 2, axis=1)
    roots = np.sqrt(np.repeat(np.stack(after)[:, None], 2, axis=1))
    conditional, semantic = estimate_both(logs, roots, sentence_N)
    exact_conditional, exact_semantic = exact(source, np.array([pair]), places=7)
    np.testing.assert_allclose(conditional, np.ravel(exact_conditional), rtol=0.1, atol=0.05)
    np.testing.assert_allclose(semantic, np.ravel(exact_semantic), rtol=0.1, atol=0.005)
    # Nothing is missing beyond distance 2.
    assert np.abs(roots[1, 0, :, 2:] - roots[0, 0, :, 2:]).max() < 1e-12


@pytest.mark.parametrize(("aligned", "low", "high"), [(True, 0.7, 1), (False, -0.2, 0.2)])
def test_words_satisfy_the_hypothesis_if_aligned(aligned, low, high):
    """Similarities of the next and the previous words agree; otherwise they are independent."""
    nothing = synthetic.Plan(pairs=(0, 0, 0, 0), near=0, plain=120, homograph=False)
    source = synthetic.make_source(nothing._replace(aligned=aligned))
    plain = np.flatnonzero(np.isin(source.token_N, source.pairs["plain"].ravel()))
    joint = source.transition_NxN[0][:, None] * source.transition_NxN
    distances = [
        stats.rankdata(pdist(np.sqrt(own / own.sum(axis=1, keepdims=True))))
        for own in (joint[plain], joint[:, plain].T)
    ]
    assert low < np.corrcoef(distances)[0, 1] < high
