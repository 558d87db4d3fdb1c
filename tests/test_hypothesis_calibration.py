"""What lines say of sources whose law is known: exact values of all pairs, and what the lines were chosen by."""

import math

import numpy as np
import pytest

from jaxtie.hypothesis import calibration, judgement, sources

SMALL = sources.Plan((2, 2, 2, 2), near=0, plain=10, homograph=False)


def test_exact_values_of_all_pairs_are_those_of_the_source():
    source, every = sources.planted(SMALL), calibration.every_pair(SMALL)
    pair_Px2 = np.array(np.triu_indices(source.token_N.max(), 1)).T + 1
    conditional, semantic = sources.exact(source, pair_Px2, calibration.FIRST)
    np.testing.assert_allclose(every.semantic_P, semantic.divergence, atol=1e-12)
    np.testing.assert_allclose(every.conditional_P, conditional.divergence, rtol=1e-9, atol=1e-9)


def test_a_bounded_divergence_is_the_hellinger_distance_of_laws_with_gaussian_log_ratios():
    """By quadrature: r is N(−σ²/2, σ²) under the one law, so that the other one sums to 1."""
    deviation = 1.3
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    ratio = -(deviation**2) / 2 + deviation * nodes
    affinity = np.sum(weights * np.exp(ratio / 2)) / math.sqrt(2 * math.pi)
    assert judgement.bounded(deviation**2) == pytest.approx(1 - affinity)
    assert judgement.bounded(-0.01) == pytest.approx(-0.01 / 8, rel=1e-2)  # signed: nothing is clipped


def test_words_that_obey_are_told_from_words_that_do_not():
    shares = {
        name: calibration.shares_of(calibration.every_pair(plan._replace(seed=2002)), bounded=True, beside=judgement.BESIDE)
        for name, plan in calibration.KINDS_OF_SOURCE.items()
    }
    obey, partly, no_relation = (min(found[:2]) for found in shares.values())
    assert obey > judgement.HELD > 0.75 > partly > 0.3 > no_relation
