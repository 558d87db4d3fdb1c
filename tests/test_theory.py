"""Ceilings of accuracy and loss, against closed forms and published check values."""

import math

import numpy as np
import pytest

from jaxtie import theory
from jaxtie.data import exor

VARIANTS = {  # zeros, ones, then accuracy and loss in training (5 digits) and in validation (as published)
    "main": ((0.1, 0.9), (0.5, 0.5), (0.70150, 0.50773), (0.70, 0.5091)),
    "ndh": ((1.0, 0.0), (0.1, 0.9), (0.95038, 0.16132), (0.95, 0.1625)),
    "ydh": ((1.0, 0.0), (0.5, 0.5), (0.75188, 0.34397), (0.75, 0.3466)),
}
SPLIT = exor.split(7, False, 14)


def entropy(*probabilities: float) -> float:
    return -sum(p * math.log(p) for p in probabilities if p)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_ceilings(variant, ordered):
    zeros, ones, *published = VARIANTS[variant]
    for bits, (accuracy, loss), digits in zip((SPLIT.train, SPLIT.valid), published, (5, 4)):
        joint_CxV = exor.enumerate_contexts(bits, zeros, ones, ordered=ordered).joint_CxV
        share = np.mean(bits == 0)  # the label tells which bit is masked, so only its spelling is uncertain
        best_accuracy, best_loss = theory.best_accuracy(joint_CxV), theory.best_loss(joint_CxV)
        assert best_accuracy == pytest.approx(share * max(zeros) + (1 - share) * max(ones), abs=1e-12)
        assert best_loss == pytest.approx(share * entropy(*zeros) + (1 - share) * entropy(*ones), abs=1e-12)
        assert best_accuracy == pytest.approx(accuracy, abs=0.51 * 10**-digits)
        assert best_loss == pytest.approx(loss, abs=0.51 * 10**-digits)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_predictor_beats_the_ceilings(variant):
    joint_CxV = exor.enumerate_contexts(SPLIT.valid, *VARIANTS[variant][:2], ordered=False).joint_CxV
    context_Cx1 = joint_CxV.sum(axis=1, keepdims=True)
    loss = lambda predicted_CxV: -np.sum(joint_CxV * np.log(predicted_CxV))
    rng = np.random.default_rng(0)
    for closeness in (0, 0.5, 0.99, 0.9999):
        for _ in range(100):
            noise_CxV = rng.dirichlet(np.ones(7), len(joint_CxV))
            assert loss(closeness * joint_CxV / context_Cx1 + (1 - closeness) * noise_CxV) > theory.best_loss(joint_CxV)
            named_Cx1 = noise_CxV.argmax(axis=1)[:, None]
            assert np.take_along_axis(joint_CxV, named_Cx1, axis=1).sum() <= theory.best_accuracy(joint_CxV)
    nearly_exact_CxV = (joint_CxV / context_Cx1 + 1e-9) / (1 + 7e-9)  # it can be attained
    assert loss(nearly_exact_CxV) == pytest.approx(theory.best_loss(joint_CxV), abs=1e-7)


def test_log_odds():
    assert theory.log_odds((0.1, 0.9)) == pytest.approx(math.log(9))
    assert theory.log_odds((0.5, 0.5)) == 0
    assert math.isnan(theory.log_odds((1.0, 0.0)))
