"""Swap divergence of a model, against brute force over sequences."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxtie.exor import data, theory
from jaxtie.exor.analysis import exor_constants
from jaxtie.exor.config import Experiment, Process
from jaxtie.exor.task import PAIR_IDS, build_contexts, build_swaps, swap_divergence

OWN = Process(length=4, zeros=(0.3, 0.7), ones=(0.2, 0.8))
BY_LABEL = Process(length=4, zeros=(0.3, 0.7), ones=(0.2, 0.8), zeros_by_label=True)


def logits_of_bags(tokens_CxL: np.ndarray) -> np.ndarray:
    """Return logits of a made-up model: some function of the counts of symbols in a context."""
    counts_CxV = (tokens_CxL[:, :, None] == np.arange(data.VOCABULARY)).sum(axis=1)
    return np.sin(
        counts_CxV @ np.random.default_rng(0).normal(size=(data.VOCABULARY, data.VOCABULARY)) * 2
    )


def probabilities(context: list[int]) -> np.ndarray:
    e = np.exp(logits_of_bags(np.array([context]))[0])
    return e / e.sum()


def sequences(own: Process) -> dict[tuple[int, ...], float]:
    """Return every sequence of the training split with its probability."""
    found: dict[tuple[int, ...], float] = {}
    bits = data.split(own.length, own.all_strings, own.data_seed).train
    for string in bits.tolist():
        zeros = own.zeros[::-1] if own.zeros_by_label and sum(string) % 2 else own.zeros
        for second in itertools.product((0, 1), repeat=own.length):
            p = np.prod([(zeros, own.ones)[bit][at] for bit, at in zip(string, second)]) / len(bits)
            tokens = (
                *(2 * bit + at for bit, at in zip(string, second)),
                data.EVEN + sum(string) % 2,
            )
            found[tokens] = found.get(tokens, 0) + p
    return found


def brute_force(own: Process, first: int, second: int) -> float:
    """Average total variation over masked sequences and places, separately by direction."""
    directions = []
    for here, there in ((first, second), (second, first)):
        total = mass = 0.0
        for tokens, p in sequences(own).items():
            for masked, place in itertools.permutations(range(own.length), 2):
                if tokens[place] != here:
                    continue
                context = [data.MASK if at == masked else token for at, token in enumerate(tokens)]
                swapped = [there if at == place else token for at, token in enumerate(context)]
                total += p * np.abs(probabilities(context) - probabilities(swapped)).sum() / 2
                mass += p
        directions.append(total / mass)
    return float(np.mean(directions))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("own", "pair"), [(OWN, "X-Y"), (OWN, "A-B"), (BY_LABEL, "X-Y")])
def test_swap_divergence_agrees_with_brute_force(own, pair, ordered, x64):
    contexts = build_contexts(own, ordered=ordered)[0]
    swaps = build_swaps(own, PAIR_IDS[pair], ordered=ordered)
    found = swap_divergence(
        jnp.array(logits_of_bags(contexts.tokens_CxL)), jnp.array(contexts.joint_CxV), swaps
    )
    expected = brute_force(own, *PAIR_IDS[pair])
    assert expected > 0.05
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_swap_divergence_of_a_perfect_model_and_of_a_dead_pair(x64):
    own = Process()
    contexts = build_contexts(own, ordered=False)[0]
    perfect = jnp.log(jnp.array(contexts.joint_CxV) + 1e-30)
    for pair in PAIR_IDS.values():
        assert (
            swap_divergence(perfect, contexts.joint_CxV, build_swaps(own, pair, ordered=False))
            < 1e-12
        )
    dead = Process(zeros=(1.0, 0.0))
    contexts = build_contexts(dead, ordered=False)[0]
    swaps = build_swaps(dead, PAIR_IDS["X-Y"], ordered=False)
    assert np.isnan(swap_divergence(perfect, contexts.joint_CxV, swaps))


def test_zeros_by_label_are_semantically_equivalent():
    own = Process(zeros_by_label=True)
    whole = data.enumerate_process(own.length, own.zeros, own.ones, zeros_by_label=True)
    found = theory.equivalences(whole.tokens_CxL, whole.joint_CxV)
    for pair, differ in (((0, 1), 0.3), ((2, 3), 0)):
        assert found["semantic_divergence"][pair] < 1e-12
        np.testing.assert_allclose(found["conditional_divergence"][pair], differ, atol=0.1)
    train, main = (build_contexts(each, ordered=False)[0] for each in (own, Process()))
    assert theory.best_loss(train.joint_CxV) == pytest.approx(
        theory.best_loss(main.joint_CxV), abs=1e-12
    )
    stands_C = train.joint_CxV[:, 0] > 0
    odds = np.log(train.joint_CxV[stands_C, 1] / train.joint_CxV[stands_C, 0])
    odd_C = (train.tokens_CxL[stands_C] == data.EVEN + 1).any(axis=1)
    np.testing.assert_allclose(odds, np.where(odd_C, -1, 1) * np.log(9))
    weight = train.joint_CxV[stands_C, :2].sum(axis=1)
    mean = np.average(odds, weights=weight)
    deviation = np.average((odds - mean) ** 2, weights=weight) ** 0.5
    constants = exor_constants(Experiment(process=own, steps=1000, seeds=(0,)))
    assert constants["theory_log_odds"].values == pytest.approx([mean, 0])
    assert constants["theory_log_odds_deviation"].values == pytest.approx([deviation, 0])
