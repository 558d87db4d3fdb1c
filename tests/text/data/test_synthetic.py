"""The known source: its classes, exact values against brute force, and samples."""

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
from exact_source import exact, predictions
from known_pairs import laws_around, occurrences
from scipy import stats
from scipy.spatial.distance import pdist

from jaxtie.advise import estimators
from jaxtie.text.data import synthetic

LN9 = math.log(9)
SMALL = synthetic.Plan(pairs=(1, 1, 1, 1), near=1, plain=3)
PLACES = 33


@pytest.fixture(scope="module")
def whole():
    return synthetic.planted(synthetic.Plan())


def values(source: synthetic.KnownSource, kind: str, places: int = PLACES) -> np.ndarray:
    """Compute bias, C², overlap, S² and variance of S of all pairs of a class; Px5."""
    c, s = exact(source, source.pairs[kind], places)
    return np.stack([c.bias, c.divergence, c.overlap, s.divergence, s.variance], axis=1)


def test_the_source_has_the_planned_pairs(whole):
    assert whole.token_N.max() + 1 == 256
    assert [len(whole.pairs[kind]) for kind in synthetic.CLASSES] == [16] * 4
    tokens = np.concatenate([pairs.ravel() for pairs in whole.pairs.values()])
    homograph, expected = whole.pairs["homograph"][0, 0], np.ones(256)
    expected[[synthetic.BEGINNING, homograph]] = 0, 2
    np.testing.assert_array_equal(np.bincount(tokens, minlength=256), expected)
    assert np.bincount(whole.token_N)[homograph] == 2
    np.testing.assert_allclose(whole.transition_NxN.sum(axis=1), 1)
    assert np.all(whole.transition_NxN[:, 0] == 0)
    # the distribution of every position
    np.testing.assert_allclose(whole.share_N @ whole.transition_NxN, whole.share_N, atol=1e-12)
    again, other = synthetic.planted(synthetic.Plan()), synthetic.planted(synthetic.Plan(seed=1))
    np.testing.assert_array_equal(again.transition_NxN, whole.transition_NxN)
    assert np.abs(other.transition_NxN - whole.transition_NxN).max() > 0.1


@pytest.mark.parametrize(
    ("kind", "bias", "overlap"), [("duplicate", 0, 1), ("skewed duplicate", LN9, 0.36)]
)
def test_duplicates_have_no_divergence_but_a_bias(whole, kind, bias, overlap):
    expected = np.tile([bias, 0, overlap, 0, 0], (16, 1))
    np.testing.assert_allclose(values(whole, kind), expected, atol=1e-12)


def varied(kind: str, value: int, **shares) -> list[float]:
    """Return a value of a small source's first pair for each value of one field of its plan."""
    ((field, each),) = shares.items()
    plans = [SMALL._replace(**{field: share}) for share in each]
    return [values(synthetic.planted(plan), kind)[0, value] for plan in plans]


def test_allomorphs_are_told_by_the_left_token_alone(whole):
    found = values(whole, "allomorph")
    np.testing.assert_allclose(found[:, 3:], 0, atol=1e-12)
    odds = math.log(0.98 / 0.02)  # either way after every token: follow is 0.96
    # no first place to speak of
    endless = values(synthetic.planted(synthetic.Plan(homograph=False)), "allomorph", places=10**6)
    np.testing.assert_allclose(endless[:, 1] + endless[:, 0] ** 2, odds**2, rtol=1e-4)
    np.testing.assert_allclose(found[:, 1], odds**2, rtol=0.1)
    np.testing.assert_allclose(found[:, 2], 4 * 0.98 * 0.02, atol=0.04)
    plain = values(whole, "plain")
    assert np.median(found[:, 1]) > np.median(plain[:, 1])
    weaker = varied("allomorph", 1, follow=(0, 0.3, 0.6, 0.9))
    assert weaker[0] == pytest.approx(0, abs=1e-12) and np.all(np.diff(weaker) > 0.1)
    always = synthetic.planted(SMALL._replace(follow=1.0))
    # but for the first place, one of the two is excluded
    assert math.isnan(values(always, "allomorph")[0, 1])
    assert values(always, "allomorph")[0, 2] < estimators.EXTRAPOLATED


def test_antonyms_are_told_by_what_follows_alone(whole):
    found = values(whole, "antonym")
    np.testing.assert_allclose(found[:, :3], np.tile([0, 0, 1], (16, 1)), atol=1e-12)
    plain = values(whole, "plain")
    assert 0.8 < np.median(found[:, 3]) / np.median(plain[:, 3]) < 1.2  # as far as unrelated tokens
    weaker = varied("antonym", 3, permuted=(0, 0.1, 0.3, 1))
    assert weaker[0] == pytest.approx(0, abs=1e-12) and np.all(np.diff(weaker) > 5e-4)


def test_near_neighbours_are_near_and_not_equivalent(whole):
    found, plain = values(whole, "near neighbours"), np.median(values(whole, "plain"), axis=0)
    assert np.all(found[:, [1, 3]] > 0.02 * plain[[1, 3]])
    assert np.all(np.median(found, axis=0)[[1, 3]] < 0.2 * plain[[1, 3]])
    same = values(synthetic.planted(synthetic.Plan(apart=0.0, permuted=0.0)), "near neighbours")
    np.testing.assert_allclose(same, np.tile([0, 0, 1, 0, 0], (16, 1)), atol=1e-12)


def test_a_homograph_shows_as_variance(whole):
    """Antonyms are further apart, but equally so in every context."""
    homograph, antonym = values(whole, "homograph"), values(whole, "antonym")
    assert homograph[:, 3].max() < antonym[:, 3].min()
    assert homograph[:, 4].min() > 10 * antonym[:, 4].max()


def law_of_sentences(source: synthetic.KnownSource, length: int) -> np.ndarray:
    """Compute p(tokens), V in each dimension, summed over all paths of states."""
    states, vocabulary = len(source.token_N), source.token_N.max() + 1
    law = np.zeros((vocabulary,) * length)
    for path in itertools.product(range(1, states), repeat=length):
        steps = itertools.pairwise((0, *path))
        law[tuple(source.token_N[list(path)])] += math.prod(
            source.transition_NxN[step] for step in steps
        )
    return law


@pytest.fixture(scope="module")
def small():
    source = synthetic.planted(SMALL)
    return source, law_of_sentences(source, 4)


def next_law(law: np.ndarray, *before: int) -> np.ndarray:
    """Compute p(next token | the tokens before it)."""
    law_V = law[before].reshape(len(law), -1).sum(axis=1)
    return law_V / law_V.sum()


def occurrences_by_hand(law: np.ndarray, pair: list[int]) -> dict[tuple, float]:
    """Return how often each (left tokens, next token) occurs with the pair, at place 1 or 2."""
    shares, vocabulary = defaultdict(float), range(1, len(law))
    for token in pair:
        lefts = {(): law[token].sum(), **{(left,): law[left, token].sum() for left in vocabulary}}
        for left, p in lefts.items():
            for after in vocabulary if p else ():
                if follows := next_law(law, *left, token)[after]:
                    shares[left, after] += p * follows / sum(lefts.values()) / 2
    return shares


def hellinger_by_hand(first_V: np.ndarray, second_V: np.ndarray) -> float:
    return sum((math.sqrt(p) - math.sqrt(q)) ** 2 for p, q in zip(first_V, second_V)) / 2


@pytest.mark.parametrize("kind", ["allomorph", "antonym", "near neighbours", "homograph", "plain"])
def test_exact_values_are_those_of_brute_force(small, kind):
    """Over all sentences of four tokens: the pair at place 1 or 2, and two tokens after it."""
    source, law = small
    found_conditional, found_semantic = exact(source, source.pairs[kind], places=2)
    for row, pair in enumerate(source.pairs[kind].tolist()):
        ratio, overlap, at_1, both, shares = [], [], [], [], occurrences_by_hand(law, pair)
        for left, after in shares:
            q_first, q_second = next_law(law, *left)[pair]
            ratio.append(math.log(q_second / q_first))
            overlap.append(4 * q_first * q_second / (q_first + q_second) ** 2)
            at_1.append(hellinger_by_hand(*(next_law(law, *left, token) for token in pair)))
            at_2 = hellinger_by_hand(*(next_law(law, *left, token, after) for token in pair))
            both.append(at_1[-1] + at_2)
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


def test_predictions_are_those_of_brute_force(small):
    source, law = small
    sentences = synthetic.sample_sentences(source, 200, 3, seed=0)
    homograph = source.pairs["homograph"][0, 0]
    assert np.any(sentences[:, 2] == homograph)
    laws = predictions(source, sentences)
    for tokens, law_LxV in zip(sentences.tolist(), laws):
        for place in range(4):
            expected = next_law(law, *tokens[1 : place + 1])
            np.testing.assert_allclose(law_LxV[place], expected, atol=1e-12)


def test_samples_follow_the_law(small):
    """A χ² over the cells of three tokens that are expected ten times is near their number."""
    source, law = small
    sentences = synthetic.sample_sentences(source, 40_000, 4, seed=1)
    assert np.all(sentences[:, 0] == synthetic.BEGINNING)
    for first in (1, 2):  # the law is the same at every place
        expected = 40_000 * law.sum(axis=3)
        found = np.zeros_like(expected)
        np.add.at(found, tuple(sentences[:, first : first + 3].T), 1)
        often = expected > 10
        chi_squared = np.sum((found - expected)[often] ** 2 / expected[often])
        assert expected[often].sum() > 20_000
        assert abs(chi_squared - often.sum()) < 4 * math.sqrt(2 * often.sum())
    np.testing.assert_array_equal(sentences, synthetic.sample_sentences(source, 40_000, 4, seed=1))
    assert np.any(sentences != synthetic.sample_sentences(source, 40_000, 4, seed=2))


@pytest.mark.parametrize("kind", ["allomorph", "antonym", "near neighbours", "homograph"])
def test_estimates_from_sentences_come_to_the_exact_values(small, kind):
    """Two models without error: what is left is which sentences were drawn."""
    source, _ = small
    pair = tuple(source.pairs[kind][0].tolist())
    tokens_BxL = synthetic.sample_sentences(source, 8000, 14, seed=2)
    sentence_N, place_N = occurrences(tokens_BxL[:, :8], pair, 300, np.random.default_rng(0))
    left_NxV, first_NxKxV, second_NxKxV = laws_around(
        source, tokens_BxL, pair, sentence_N, place_N, distances=4
    )
    logs = np.repeat(np.log(left_NxV[:, pair]).T[:, None], 2, axis=1)
    roots = np.sqrt(np.repeat(np.stack([first_NxKxV, second_NxKxV])[:, None], 2, axis=1))
    conditional = estimators.conditional(estimators.conditional_sums(*logs, sentence_N))
    semantic = estimators.semantic(
        estimators.semantic_sums(estimators.semantic_products(*roots), sentence_N)
    )
    exact_conditional, exact_semantic = exact(source, np.array([pair]), places=7)
    np.testing.assert_allclose(conditional, np.ravel(exact_conditional), rtol=0.1, atol=0.05)
    np.testing.assert_allclose(semantic, np.ravel(exact_semantic), rtol=0.1, atol=0.005)
    # so nothing is missing beyond distance 2
    assert np.abs(roots[1, 0, :, 2:] - roots[0, 0, :, 2:]).max() < 1e-12


def word_laws(source: synthetic.KnownSource) -> tuple[np.ndarray, np.ndarray]:
    """Return square roots of p(next | plain token) and p(previous | plain token)."""
    plain = np.flatnonzero(np.isin(source.token_N, source.pairs["plain"].ravel()))
    joint = source.share_N[:, None] * source.transition_NxN
    after, before = joint[plain], joint[:, plain].T
    return tuple(np.sqrt(law / law.sum(axis=1, keepdims=True)) for law in (after, before))


@pytest.mark.parametrize(("aligned", "low", "high"), [(True, 0.7, 1), (False, -0.2, 0.2)])
def test_words_obey_the_hypothesis_where_they_are_aligned(aligned, low, high):
    """Those that are followed alike follow alike; else the one has nothing to do with the other."""
    only_plain = synthetic.Plan(pairs=(0, 0, 0, 0), near=0, plain=120, homograph=False)
    laws = word_laws(synthetic.planted(only_plain._replace(aligned=aligned)))
    distances = [stats.rankdata(pdist(law)) for law in laws]
    assert low < np.corrcoef(distances)[0, 1] < high


def test_allomorphs_have_as_many_sides_as_are_planned():
    """The tokens that the left tokens choose: patterns that repeat, for pairs in turn."""
    plan = synthetic.Plan(pairs=(0, 0, 16, 0), near=2, plain=40, homograph=False, sides=4)
    source = synthetic.planted(plan)
    first, second = source.pairs["allomorph"].T
    signs_NxP = np.sign(source.transition_NxN[1:, first] - source.transition_NxN[1:, second])
    assert np.all(signs_NxP != 0)
    assert len({tuple(column) for column in signs_NxP.T}) == 4
    np.testing.assert_array_equal(signs_NxP[:, :4], signs_NxP[:, 4:8])
