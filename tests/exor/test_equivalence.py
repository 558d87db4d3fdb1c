"""Proofs about equivalences: random small distributions, and EXor."""

import itertools
import math
from collections import defaultdict

import equivalence_proofs as equivalence
import numpy as np
import pytest
from equivalence_proofs import masked_contexts
from scipy.optimize import minimize, minimize_scalar

from jaxtie.exor import data, theory

LN9 = math.log(9)
ORDERS = pytest.mark.parametrize("ordered", [False, True], ids=["bag", "ordered"])
SHAPES = [(3, 4), (4, 3), (5, 3)]  # symbols, length


def random_law(rng, symbols: int, length: int, density: float = 1.0, exchangeable=False):
    """Draw a distribution, a tensor, in which a share of the sequences occurs, or of the bags."""
    shape = (symbols,) * length
    tensor = rng.exponential(size=shape) * (rng.random(shape) < density)
    tensor[(0, *[1] * (length - 1))] += 0.1  # the first symbol occurs
    if exchangeable:
        for sequence in np.ndindex(shape):
            tensor[sequence] = tensor[tuple(sorted(sequence))]
    return tensor / tensor.sum()


def spelled(classes: np.ndarray, chance) -> dict[tuple, float]:
    """Render class 0 as symbol 0 or, with probability `chance(classes, place)`, as a new symbol."""
    count, law = len(classes), {}
    for sequence in itertools.product(range(count + 1), repeat=classes.ndim):
        meant = tuple(token % count for token in sequence)
        p = classes[meant]
        for place in np.flatnonzero(np.equal(meant, 0)) if p else ():
            p *= chance(meant, place) if sequence[place] else 1 - chance(meant, place)
        law[sequence] = p
    return law


def components(classes: np.ndarray, ordered: bool) -> dict[tuple, int]:
    """Number the connected components of the sequences of classes that occur."""
    numbers, left = {}, {sequence for sequence in np.ndindex(classes.shape) if classes[sequence]}
    for number in itertools.count():
        if not left:
            return numbers
        new = {left.pop()}
        while new:
            numbers |= dict.fromkeys(new, number)
            new = {
                near
                for near, here in itertools.product(left, new)
                if sum(a != b for a, b in zip(near, here)) == 1
                or (not ordered and sorted(near) == sorted(here))
            }
            left -= new


def violations(contexts, pair, ordered) -> tuple[float, float]:
    return (
        equivalence.conditional_violation(contexts, pair),
        equivalence.semantic_violation(contexts, pair, ordered=ordered),
    )


def constants(contexts, pair, ordered) -> np.ndarray:
    """Return the log ratio of each part, and check that it is constant there."""
    bounds_Kx2 = equivalence.log_ratios_of_parts(contexts, pair, ordered=ordered)
    np.testing.assert_allclose(bounds_Kx2[:, 0], bounds_Kx2[:, 1], atol=1e-9)
    return bounds_Kx2[:, 0]


def losses(contexts, pair) -> list[float]:
    """Return the best losses with equal output rows, without and with an output bias."""
    return [
        equivalence.loss_with_equal_output_rows(contexts, pair, bias=bias) for bias in (False, True)
    ]


@ORDERS
@pytest.mark.parametrize(("symbols", "length"), SHAPES)
def test_conditional_implies_semantic_equivalence(symbols, length, ordered):
    """A single sequence with another probability breaks conditional equivalence."""
    rng, pair = np.random.default_rng([symbols, length, ordered, 1]), (0, symbols - 1)
    for _ in range(20):
        classes = random_law(rng, symbols - 1, length, rng.choice([1, 0.5, 0.2]))
        law = spelled(classes, lambda meant, place: 0.5)
        contexts = masked_contexts(law, symbols, ordered=ordered)
        np.testing.assert_allclose(violations(contexts, pair, ordered), 0, atol=1e-12)
        law[(0, *[1] * (length - 1))] *= 1 + 1e-3
        broken = masked_contexts(law, symbols, ordered=ordered)
        assert equivalence.conditional_violation(broken, pair) > 1e-6


@ORDERS
@pytest.mark.parametrize(("symbols", "length"), SHAPES)
def test_semantic_equivalence_has_one_log_ratio_on_each_part(symbols, length, ordered):
    """Each component renders its class with other probabilities, so with its own log ratio."""
    rng, pair = np.random.default_rng([symbols, length, ordered, 2]), (0, symbols - 1)
    several = 0
    for density in np.repeat([1, 0.3, 0.15, 0.1], 6):
        classes = random_law(rng, symbols - 1, length, density, exchangeable=not ordered)
        number = components(classes, ordered)
        chance = rng.uniform(0.05, 0.45, len(number))
        law = spelled(classes, lambda meant, _, n=number, chance=chance: chance[n[meant]])
        contexts = masked_contexts(law, symbols, ordered=ordered)
        conditional, semantic = violations(contexts, pair, ordered)
        assert conditional > 1e-3 and semantic < 1e-12
        odds_K = constants(contexts, pair, ordered)
        expected = {
            math.log(chance[n] / (1 - chance[n])) for meant, n in number.items() if 0 in meant
        }
        assert sorted(set(odds_K.round(9))) == pytest.approx(sorted(expected))
        spread = equivalence.log_ratio_spread(contexts, pair)
        assert spread == pytest.approx(max(expected) - min(expected), abs=1e-9)
        lost = losses(contexts, pair)[1] - equivalence.best_loss(contexts)
        assert (lost > 1e-9) == (spread > 1e-9) == (len(expected) > 1)
        several += len(expected) > 1
        if density == 1:
            assert len(odds_K) == (length if ordered else 1)  # a mask stays where it is
    assert several > 2 or (symbols == 3 and not ordered)  # bags of two classes hardly come apart


@ORDERS
def test_one_log_ratio_on_each_part_is_semantic_equivalence(ordered):
    """Both properties agree for intact and broken distributions, also with infinite log ratios."""
    rng, seen = np.random.default_rng(3), defaultdict(int)
    for trial in range(150):
        classes = random_law(rng, 3, 3, rng.choice([0.5, 0.2]), exchangeable=not ordered)
        number = components(classes, ordered)
        chance = rng.choice([0, 0.2, 0.5, 1], len(number), p=[0.2, 0.4, 0.2, 0.2])
        law = spelled(classes, lambda meant, _, n=number, chance=chance: chance[n[meant]])
        if trial % 3:
            law[tuple(rng.integers(4, size=3).tolist())] += 0.02
        contexts = masked_contexts(law, 4, ordered=ordered)
        semantic = equivalence.semantic_violation(contexts, (0, 3), ordered=ordered)
        bounds_Kx2 = equivalence.log_ratios_of_parts(contexts, (0, 3), ordered=ordered)
        constant = bool(np.all(np.isclose(*bounds_Kx2.T, rtol=0, atol=1e-9)))
        assert constant == (math.isnan(semantic) or semantic < 1e-12)
        seen[constant, bool(np.isinf(bounds_Kx2).any())] += 1
    assert len(seen) == 4 and min(seen.values()) > 3


@ORDERS
def test_random_distributions_are_not_equivalent(ordered):
    law = dict(np.ndenumerate(random_law(np.random.default_rng(4), 4, 3)))
    contexts = masked_contexts(law, 4, ordered=ordered)
    assert min(violations(contexts, (0, 1), ordered)) > 0.01
    bounds_Kx2 = equivalence.log_ratios_of_parts(contexts, (0, 1), ordered=ordered)
    assert np.all(bounds_Kx2[:, 1] - bounds_Kx2[:, 0] > 0.1)


def test_with_positions_the_log_ratio_may_depend_on_the_place_of_the_mask():
    """A model that sees positions then needs different rows, although all sequences occur."""
    chance = (0.1, 0.4, 0.9)
    law = spelled(random_law(np.random.default_rng(5), 2, 3), lambda meant, place: chance[place])
    contexts = masked_contexts(law, 3, ordered=True)
    assert equivalence.semantic_violation(contexts, (0, 2), ordered=True) < 1e-12
    expected = [math.log(p / (1 - p)) for p in chance]
    np.testing.assert_allclose(constants(contexts, (0, 2), True), expected)
    assert losses(contexts, (0, 2))[1] > equivalence.best_loss(contexts) + 0.01
    bags = masked_contexts(law, 3, ordered=False)
    assert equivalence.semantic_violation(bags, (0, 2), ordered=False) > 0.01


def test_no_bias_fits_two_parts():
    """A zero occurs with two 1s or two 2s, rendered as 0 or 3 in ratio 1:9 or 9:1."""
    classes = np.zeros((3, 3, 3))
    for place, other in itertools.product(range(3), (1, 2)):
        classes[tuple(np.insert([other, other], place, 0))] = 1 / 6
    law = spelled(classes, lambda meant, place: 0.9 if 1 in meant else 0.1)
    contexts = masked_contexts(law, 4, ordered=False)
    assert violations(contexts, (0, 3), False) == pytest.approx((0.8, 0), abs=1e-12)
    np.testing.assert_allclose(constants(contexts, (0, 3), False), [-LN9, LN9])
    assert equivalence.log_ratio_spread(contexts, (0, 3)) == pytest.approx(2 * LN9)
    # a third of the masked tokens are zeros; all else is certain
    entropy = -sum(p * math.log(p) for p in (0.1, 0.9)) / 3
    assert equivalence.best_loss(contexts) == pytest.approx(entropy)
    _, joint_CxV = equivalence.as_arrays(contexts)

    # All that equal rows can do: any two logits of each context's own for 1 and 2, one for 0 and 3,
    # and one bias for all.
    def loss(free):
        logit_Cx3, bias = free[:-1].reshape(-1, 3), free[-1]
        logit_Cx4 = np.column_stack([logit_Cx3, logit_Cx3[:, 0] + bias])
        log_law_Cx4 = logit_Cx4 - np.log(np.exp(logit_Cx4).sum(axis=1, keepdims=True))
        return -np.sum(joint_CxV[:, :4] * log_law_Cx4)

    start = np.random.default_rng(6).normal(size=3 * len(joint_CxV) + 1)
    reached = minimize(loss, start, method="L-BFGS-B", options={"maxiter": 1000}).fun
    lost = (math.log(2) - 3 * entropy) / 3
    np.testing.assert_allclose(losses(contexts, (0, 3)), entropy + lost)
    assert reached == pytest.approx(entropy + lost, abs=1e-3)
    assert reached >= entropy + lost > entropy + 0.12


def test_loss_with_equal_output_rows_uses_the_best_bias():
    """Use random distributions, whose best bias is found numerically."""
    rng = np.random.default_rng(7)
    for _ in range(20):
        law = dict(np.ndenumerate(random_law(rng, 4, 3, 0.5)))
        contexts = masked_contexts(law, 4, ordered=False)
        _, joint_CxV = equivalence.as_arrays(contexts)
        either_C, context_C = joint_CxV[:, 1] + joint_CxV[:, 3], joint_CxV.sum(axis=1)

        def loss(bias, joint_CxV=joint_CxV, either_C=either_C, context_C=context_C):
            predicted_CxV = joint_CxV / context_C[:, None]
            for symbol, share in ((1, 1 / (1 + math.exp(bias))), (3, 1 / (1 + math.exp(-bias)))):
                predicted_CxV[:, symbol] = share * either_C / context_C
            occurs = joint_CxV > 0
            return -np.sum(joint_CxV[occurs] * np.log(predicted_CxV[occurs]))

        best = minimize_scalar(loss).fun
        np.testing.assert_allclose(losses(contexts, (1, 3)), [loss(0), best], atol=1e-9)
        assert best > equivalence.best_loss(contexts) + 1e-4


XY, AB, XA = (data.X, data.X + 1), (data.A, data.A + 1), (data.X, data.A)
SKEWED, EVENLY = (0.1, 0.9), (0.5, 0.5)
LOST = math.log(2) + 0.1 * math.log(0.1) + 0.9 * math.log(0.9)  # where zeros are a target, nat


def exor(length: int, ordered: bool, spell, ones_at_least: int = 0) -> equivalence.Contexts:
    """Return the contexts; `spell(bits)` yields (share, (p(X), p(Y)), (p(A), p(B)))."""
    law, strings = defaultdict(float), itertools.product((0, 1), repeat=length)
    strings = [bits for bits in strings if sum(bits) >= ones_at_least]
    for bits in strings:
        for share, zeros, ones in spell(bits):
            for second in itertools.product((0, 1), repeat=length):
                p = math.prod((zeros, ones)[bit][s] for bit, s in zip(bits, second))
                symbols = (2 * bit + s for bit, s in zip(bits, second))
                law[*symbols, data.EVEN + sum(bits) % 2] += share * p / len(strings)
    # the label is never masked
    return masked_contexts(law, data.MASK, ordered=ordered, places=range(length))


@ORDERS
@pytest.mark.parametrize("length", [4, 5])
def test_exor_has_many_parts_and_one_log_ratio(length, ordered):
    """Changing one bit without the label leaves the support, so many parts share one ratio."""
    contexts = exor(length, ordered, lambda bits: [(1, SKEWED, EVENLY)])
    bits = np.array(list(itertools.product([0, 1], repeat=length)))
    enumerated = data.enumerate_contexts(bits, SKEWED, EVENLY, ordered=ordered)
    tokens_CxL, joint_CxV = equivalence.as_arrays(contexts)
    np.testing.assert_array_equal(enumerated.tokens_CxL, tokens_CxL)
    np.testing.assert_allclose(enumerated.joint_CxV, joint_CxV, atol=1e-15)
    odds_K = constants(contexts, XY, ordered)
    # other bits, or how many of them are ones
    assert len(odds_K) == (length * 2 ** (length - 1) if ordered else length)
    np.testing.assert_allclose(odds_K, LN9)
    assert violations(contexts, XY, ordered) == pytest.approx((0.8, 0), abs=1e-12)
    assert violations(contexts, AB, ordered) == pytest.approx((0, 0), abs=1e-12)
    assert violations(contexts, XA, ordered)[1] == pytest.approx(1)


def test_cost_of_equal_rows_in_exor():
    """In the main process equal rows cost nothing with an output bias."""
    law = data.enumerate_process(7, SKEWED, EVENLY)
    contexts = {
        tuple(tokens): {target: p for target, p in enumerate(joint) if p}
        for tokens, joint in zip(law.tokens_CxL.tolist(), law.joint_CxV.tolist())
    }
    best = theory.best_loss(law.joint_CxV)
    assert len(constants(contexts, XY, False)) == 7
    merged = equivalence.merge_spellings(contexts, XY, ordered=False)
    assert len(merged) < len(contexts)
    assert equivalence.best_loss(merged) == pytest.approx(best)
    for each in (contexts, merged):
        np.testing.assert_allclose(losses(each, XY), [best + 0.5 * LOST, best])
    merged = equivalence.merge_spellings(contexts, XA, ordered=False)
    assert equivalence.best_loss(merged) > best + 0.1


DIALECTS = [(0.5, SKEWED, (1, 0)), (0.5, SKEWED[::-1], (0, 1))]
PARTS_OF_DIALECTS = {(4, False): 2, (4, True): 8, (5, False): 4, (5, True): 2 * 5 * (1 + 4)}


@ORDERS
@pytest.mark.parametrize("length", [4, 5])
def test_two_dialects(length, ordered):
    """Zeros are rendered 1:9 with As and 9:1 with Bs, so no bias helps."""
    contexts = exor(length, ordered, lambda bits: DIALECTS, ones_at_least=3)
    assert violations(contexts, XY, ordered) == pytest.approx((0.8, 0), abs=1e-12)
    odds_K = constants(contexts, XY, ordered)
    # two values, but two parts in one of the four cases only
    assert len(odds_K) == PARTS_OF_DIALECTS[length, ordered]
    np.testing.assert_allclose(odds_K, np.repeat([-LN9, LN9], len(odds_K) // 2))
    best = equivalence.best_loss(contexts)
    zeros = sum(targets.get(symbol, 0) for targets in contexts.values() for symbol in XY)
    np.testing.assert_allclose(losses(contexts, XY), best + zeros * LOST)
    merged = equivalence.merge_spellings(contexts, XY, ordered=ordered)
    assert equivalence.best_loss(merged) == pytest.approx(best)
    # No swap of an A for a B occurs, so nothing is said of them; and yet equal input rows hide the
    # dialect.
    assert math.isnan(equivalence.semantic_violation(contexts, AB, ordered=ordered))
    merged = equivalence.merge_spellings(contexts, AB, ordered=ordered)
    assert equivalence.best_loss(merged) > best + 0.01


@ORDERS
@pytest.mark.parametrize("length", [4, 5])
def test_zeros_rendered_by_label(length, ordered):
    """Zeros are rendered 1:9 in even strings and 9:1 in odd ones: no bias helps."""
    main = exor(length, ordered, lambda bits: [(1, SKEWED, EVENLY)])
    by_label = exor(
        length, ordered, lambda bits: [(1, SKEWED[:: -1 if sum(bits) % 2 else 1], EVENLY)]
    )
    assert main.keys() == by_label.keys()
    best = equivalence.best_loss(by_label)
    assert best == pytest.approx(equivalence.best_loss(main))
    assert violations(by_label, XY, ordered) == pytest.approx((0.8, 0), abs=1e-12)
    assert violations(by_label, AB, ordered) == pytest.approx((0, 0), abs=1e-12)
    for context, targets in by_label.items():
        if {*XY} & {*targets}:
            sign = -1 if data.EVEN + 1 in context else 1
            assert equivalence.log_ratio(targets, XY) == pytest.approx(sign * LN9)
    np.testing.assert_allclose(losses(by_label, XY), best + 0.5 * LOST)


@ORDERS
def test_unmasked_tokens_do_not_connect_parts(ordered):
    """X and Y are equivalent only if the label that sets their odds is never masked.

    If order matters, the labels can be ones, which are masked only at other places.
    """
    law, labels = {}, AB if ordered else (data.EVEN, data.EVEN + 1)
    for label, *tokens in itertools.product(labels, range(4), range(4)):
        spell = (*(SKEWED if label == labels[0] else SKEWED[::-1]), *EVENLY)
        law[*tokens, label] = math.prod(spell[token] for token in tokens) / 8
    contexts = masked_contexts(law, data.MASK, ordered=ordered)
    assert equivalence.semantic_violation(contexts, XY, ordered=ordered) > 0.1
    bounds_Kx2 = equivalence.log_ratios_of_parts(contexts, XY, ordered=ordered)
    np.testing.assert_allclose(bounds_Kx2, np.tile([-LN9, LN9], (1 + ordered, 1)))
    contexts = masked_contexts(law, data.MASK, ordered=ordered, places=(0, 1))
    assert equivalence.semantic_violation(contexts, XY, ordered=ordered) < 1e-12
    odds_K = constants(contexts, XY, ordered)
    np.testing.assert_allclose(odds_K, np.repeat([-LN9, LN9], 1 + ordered))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rank", range(5))
def test_full_rank_forces_equal_rows(rank, bias):
    """Below full rank some different rows give the same odds everywhere; at full rank none do."""
    rng = np.random.default_rng([rank, bias])
    for _ in range(20):
        hidden_NxD = rng.normal(size=(30, rank)) @ rng.normal(size=(rank, 4))
        hidden_NxD += bias * rng.normal(size=4)
        assert equivalence.rank_of_hidden_states(hidden_NxD, bias=bias) == rank
        # a bias takes up the odds of one hidden state
        bound_NxD = hidden_NxD - bias * hidden_NxD[:1]
        least, apart = np.linalg.eigh(bound_NxD.T @ bound_NxD)
        moved = np.abs(bound_NxD @ apart[:, 0]).max()
        assert moved < 1e-7 if rank < 4 else moved > 1e-3 and least[0] > 0


def test_equal_rows_cannot_give_odds_without_a_bias():
    """Rows that differ by d give log ratio c if d·h = c, so |h| is at least c / |d|."""
    rng = np.random.default_rng(9)
    free_NxD, apart_D = rng.normal(size=(50, 4)), rng.normal(size=4)
    hidden_NxD = free_NxD + np.outer((LN9 - free_NxD @ apart_D) / (apart_D @ apart_D), apart_D)
    np.testing.assert_allclose(hidden_NxD @ apart_D, LN9)
    # so these rows are the only ones
    assert equivalence.rank_of_hidden_states(hidden_NxD, bias=False) == 4
    assert equivalence.rank_of_hidden_states(hidden_NxD, bias=True) == 3
    assert np.linalg.norm(apart_D) >= LN9 / np.linalg.norm(hidden_NxD, axis=1).min()
