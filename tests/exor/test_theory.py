"""Best accuracy and loss, and divergences, against closed forms and published values."""

import itertools
import math

import numpy as np
import pytest

from jaxtie.exor import data, theory

# zeros, ones, then accuracy and loss in training (5 digits) and in validation (as published)
VARIANTS = {
    "main": ((0.1, 0.9), (0.5, 0.5), (0.70150, 0.50773), (0.70, 0.5091)),
    "ndh": ((1.0, 0.0), (0.1, 0.9), (0.95038, 0.16132), (0.95, 0.1625)),
    "ydh": ((1.0, 0.0), (0.5, 0.5), (0.75188, 0.34397), (0.75, 0.3466)),
}
SPLIT = data.split(7, False, 14)


def entropy(*probabilities: float) -> float:
    return -sum(p * math.log(p) for p in probabilities if p)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_best_accuracy_and_loss(variant, ordered):
    zeros, ones, *published = VARIANTS[variant]
    for bits, (accuracy, loss), digits in zip((SPLIT.train, SPLIT.valid), published, (5, 4)):
        joint_CxV = data.enumerate_contexts(bits, zeros, ones, ordered=ordered).joint_CxV
        # the label tells which bit is masked, so only its spelling is uncertain
        share = np.mean(bits == 0)
        best_accuracy, best_loss = theory.best_accuracy(joint_CxV), theory.best_loss(joint_CxV)
        assert best_accuracy == pytest.approx(
            share * max(zeros) + (1 - share) * max(ones), abs=1e-12
        )
        assert best_loss == pytest.approx(
            share * entropy(*zeros) + (1 - share) * entropy(*ones), abs=1e-12
        )
        assert best_accuracy == pytest.approx(accuracy, abs=0.51 * 10**-digits)
        assert best_loss == pytest.approx(loss, abs=0.51 * 10**-digits)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_predictor_beats_the_best_values(variant):
    joint_CxV = data.enumerate_contexts(
        SPLIT.valid, *VARIANTS[variant][:2], ordered=False
    ).joint_CxV
    joint_CxV = joint_CxV[joint_CxV.any(axis=1)]
    context_Cx1 = joint_CxV.sum(axis=1, keepdims=True)

    def loss(predicted_CxV):
        return -np.sum(joint_CxV * np.log(predicted_CxV))

    rng, exact_CxV = np.random.default_rng(0), joint_CxV / context_Cx1
    best_loss, best_accuracy = theory.best_loss(joint_CxV), theory.best_accuracy(joint_CxV)
    for closeness in np.repeat((0, 0.5, 0.99, 0.9999), 100):
        noise_CxV = rng.dirichlet(np.ones(7), len(joint_CxV))
        assert loss(closeness * exact_CxV + (1 - closeness) * noise_CxV) > best_loss
        named_Cx1 = noise_CxV.argmax(axis=1)[:, None]
        assert np.take_along_axis(joint_CxV, named_Cx1, axis=1).sum() <= best_accuracy
    nearly_exact_CxV = (exact_CxV + 1e-9) / (1 + 7e-9)  # it can be attained
    assert loss(nearly_exact_CxV) == pytest.approx(best_loss, abs=1e-7)


def test_log_odds():
    assert theory.log_odds((0.1, 0.9)) == pytest.approx((math.log(9), 0))
    assert theory.log_odds((0.5, 0.5)) == (0, 0)
    assert all(map(math.isnan, theory.log_odds((1.0, 0.0))))


NO, LN9 = math.nan, math.log(9)
EQUIVALENCES = {  # over X-Y, X-A, X-B, Y-A, Y-B, A-B
    "main": {
        "semantic_divergence": (0, 1, 1, 1, 1, 0),
        "conditional_divergence": (0.4, 0.3, 0.3, 0.7, 0.7, 0),
        "conditional_log_ratio": (LN9, NO, NO, NO, NO, 0),
    },
    "ndh": {
        "semantic_divergence": (NO, 1, 1, NO, NO, 0),
        "conditional_divergence": (NO, 0.55, 0.95, NO, NO, 0.4),
        "conditional_log_ratio": (NO, NO, NO, NO, NO, LN9),
    },
    "ydh": {
        "semantic_divergence": (NO, 1, 1, NO, NO, 0),
        "conditional_divergence": (NO, 0.75, 0.75, NO, NO, 0),
        "conditional_log_ratio": (NO, NO, NO, NO, NO, 0),
    },
}


@pytest.mark.parametrize("variant", EQUIVALENCES)
def test_divergences_of_the_processes(variant):
    """Half of the masked bits are zeros, and swapping X for A always flips the masked bit."""
    law = data.enumerate_process(7, *VARIANTS[variant][:2])
    measures = theory.equivalences(law.tokens_CxL, law.joint_CxV)
    for name, expected in EQUIVALENCES[variant].items():
        np.testing.assert_allclose(
            measures[name][np.triu_indices(4, 1)], expected, atol=1e-12, err_msg=name
        )
        np.testing.assert_array_equal(measures[name], measures[name].T)
    semantic, conditional = measures["semantic_divergence"], measures["conditional_divergence"]
    assert semantic[data.EVEN, data.EVEN + 1] == 1  # the label is as good as a bit
    assert (
        np.isnan(semantic[data.MASK, : data.MASK]).all()
        and np.isnan(conditional[data.EVEN :]).all()
    )


def brute_force(law: dict[tuple, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute the definitions literally from context -> p(context and target)."""
    symbols = range(len(next(iter(law.values()))))
    given = {context: joint / sum(joint) for context, joint in law.items()}
    semantic, divergence, ratio = np.full((3, len(symbols), len(symbols)), np.nan)
    for pair in itertools.product(symbols, repeat=2):
        directions = []
        for first, second in (pair, pair[::-1]):
            moved = []
            for context, joint in law.items():
                for place in range(len(context)):
                    swapped = tuple(sorted((*context[:place], second, *context[place + 1 :])))
                    if context[place] == first and swapped in law:
                        excess = np.maximum(0, given[context] - given[swapped])
                        moved.append((sum(joint), sum(excess)))
            p = sum(p for p, _ in moved)
            directions.append(sum(p * d for p, d in moved) / p if moved else np.nan)
        semantic[pair] = sum(directions) / 2
        if all(sum(joint[symbol] for joint in law.values()) > 0 for symbol in pair):
            odds = [(sum(law[each]), *given[each][list(pair)]) for each in law]
            divergence[pair] = sum(p * abs(a - b) for p, a, b in odds)
            both = [(p, abs(math.log(a / b))) for p, a, b in odds if a > 0 and b > 0]
            ratio[pair] = sum(p * r for p, r in both) / sum(p for p, _ in both) if both else np.nan
    return {
        "semantic_divergence": semantic,
        "conditional_divergence": divergence,
        "conditional_log_ratio": ratio,
    }


@pytest.mark.parametrize("seed", range(4))
def test_divergences_agree_with_brute_force(seed):
    """Use random distributions with missing contexts and a symbol that is never a target."""
    rng = np.random.default_rng(seed)
    every = itertools.combinations_with_replacement(range(4), 3)
    tokens_CxL = np.array([tokens for tokens in every if rng.random() < 0.7])
    size = len(tokens_CxL), 4
    joint_CxV = rng.exponential(size=size) * (rng.random(size) < 0.6) * [1, 1, 1, 0]
    joint_CxV[:, 0] += 1e-3  # no context without a target
    joint_CxV /= joint_CxV.sum()
    expected = brute_force(dict(zip(map(tuple, tokens_CxL.tolist()), joint_CxV)))
    for name, matrix in theory.equivalences(tokens_CxL, joint_CxV).items():
        np.testing.assert_allclose(matrix, expected[name], atol=1e-12, err_msg=name)
