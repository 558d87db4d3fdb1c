"""Proofs about equivalences: random small distributions against brute force, and EXor."""

import itertools
import math
from collections import defaultdict

import equivalence_proofs as equivalence
import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

from jaxtie.exor import data, theory

LN9 = math.log(9)
ORDERS = pytest.mark.parametrize("ordered", [False, True], ids=["bag", "ordered"])
SHAPES = [(symbols, length) for symbols in (3, 4, 5) for length in (3, 4) if symbols + length < 9]


def contexts_by_hand(
    law: dict[tuple, float], mask: int, ordered: bool, places=None
) -> dict[tuple, dict[int, float]]:
    """Return context -> target -> p(context, target), of sequence -> p(sequence)."""
    contexts = defaultdict(lambda: defaultdict(float))
    for sequence, p in law.items():
        places = places or range(len(sequence))
        for place in places if p else ():
            context = (*sequence[:place], mask, *sequence[place + 1 :])
            contexts[context if ordered else tuple(sorted(context))][sequence[place]] += p / len(
                places
            )
    return {context: dict(targets) for context, targets in sorted(contexts.items())}


def as_arrays(contexts: dict[tuple, dict[int, float]], mask: int) -> tuple[np.ndarray, np.ndarray]:
    joint = np.zeros((len(contexts), mask + 1))
    for row, targets in zip(joint, contexts.values()):
        row[list(targets)] = list(targets.values())
    return np.array(list(contexts)), joint


def as_law(tensor: np.ndarray) -> dict[tuple, float]:
    return {
        sequence: tensor[sequence]
        for sequence in itertools.product(range(len(tensor)), repeat=tensor.ndim)
    }


def swapped(context: tuple, place: int, token: int, ordered: bool) -> tuple:
    other = (*context[:place], token, *context[place + 1 :])
    return other if ordered else tuple(sorted(other))


def parts_by_hand(contexts: dict, pair: tuple[int, int], ordered: bool) -> list[set[tuple]]:
    """Find connected parts by changing one token at a time; every place is masked."""
    left = {
        context
        for context, targets in contexts.items()
        if any(targets.get(symbol) for symbol in pair)
    }
    mask, parts = max(itertools.chain(*left), default=0), []
    while left:
        part, new = set(), {left.pop()}
        while new:
            part |= new
            reached = {
                swapped(context, place, token, ordered)
                for context in new
                for place in range(len(context))
                for token in range(mask)
                if context[place] != mask
            }
            new = reached & left
            left -= new
        parts.append(part)
    return parts


def odds_by_hand(targets: dict[int, float], pair: tuple[int, int]) -> float:
    first, second = (targets.get(symbol, 0) for symbol in pair)
    return math.log(second / first) if first and second else math.inf if second else -math.inf


def measures_by_hand(contexts: dict, pair: tuple[int, int], ordered: bool) -> tuple[float, float]:
    """Compute the largest violations of both equivalences literally by their definitions."""
    given = {
        context: {symbol: p / sum(targets.values()) for symbol, p in targets.items()}
        for context, targets in contexts.items()
    }
    both = all(any(symbol in targets for targets in given.values()) for symbol in pair)
    conditional = max(
        abs(targets.get(pair[0], 0) - targets.get(pair[1], 0)) for targets in given.values()
    )
    semantic = [
        sum(
            abs(targets.get(symbol, 0) - given[other].get(symbol, 0))
            for symbol in targets | given[other]
        )
        / 2
        for context, targets in given.items()
        for place in range(len(context))
        if context[place] == pair[0]
        and (other := swapped(context, place, pair[1], ordered)) in given
    ]
    return conditional if both else math.nan, max(semantic, default=math.nan)


def random_law(
    rng: np.random.Generator,
    symbols: int,
    length: int,
    density: float = 1.0,
    exchangeable: bool = False,
) -> np.ndarray:
    """Draw a distribution in which a share of the sequences occurs, or of the bags."""
    shape = (symbols,) * length
    tensor = rng.exponential(size=shape) * (rng.random(shape) < density)
    tensor[(0, *[1] * (length - 1))] += 0.1  # the first symbol occurs
    if exchangeable:
        for sequence in itertools.product(range(symbols), repeat=length):
            tensor[sequence] = tensor[tuple(sorted(sequence))]
    return tensor / tensor.sum()


def spelled(classes: np.ndarray, chance) -> np.ndarray:
    """Render class 0 as symbol 0 or, with probability `chance(classes, place)`, as a new symbol."""
    symbols, length = len(classes) + 1, classes.ndim
    law = np.zeros((symbols,) * length)
    for sequence in itertools.product(range(symbols), repeat=length):
        meant = tuple(token % (symbols - 1) for token in sequence)
        law[sequence] = classes[meant]
        for place in range(length):
            if meant[place] == 0:
                law[sequence] *= (
                    chance(meant, place) if sequence[place] else 1 - chance(meant, place)
                )
    return law


def components(classes: np.ndarray, ordered: bool) -> dict[tuple, int]:
    """Number the connected components of the sequences of classes that occur."""
    numbers, left = {}, {sequence for sequence, p in as_law(classes).items() if p}
    for number in itertools.count():
        if not left:
            return numbers
        new = {left.pop()}
        while new:
            numbers |= dict.fromkeys(new, number)
            near = {s for s in left for t in new if sum(a != b for a, b in zip(s, t)) == 1}
            new = (
                near if ordered else near | {s for s in left for t in new if sorted(s) == sorted(t)}
            )
            left -= new


def violations(tokens_CxL, joint_CxV, pair, ordered) -> tuple[float, float]:
    return (
        equivalence.conditional_violation(joint_CxV, pair),
        equivalence.semantic_violation(tokens_CxL, joint_CxV, pair, ordered=ordered),
    )


def constants(tokens_CxL, joint_CxV, pair, ordered) -> np.ndarray:
    """Return the log ratio of each part, and check that it is constant there."""
    bounds_Kx2 = equivalence.log_ratios_of_parts(tokens_CxL, joint_CxV, pair, ordered=ordered)
    np.testing.assert_allclose(bounds_Kx2[:, 0], bounds_Kx2[:, 1], atol=1e-9)
    return bounds_Kx2[:, 0]


@ORDERS
@pytest.mark.parametrize(("symbols", "length"), SHAPES)
def test_measures_agree_with_brute_force(symbols, length, ordered):
    """Use random distributions, full and sparse."""
    rng = np.random.default_rng([symbols, length, ordered])
    counts = set()
    for density, exchangeable in itertools.product((1, 0.5, 0.2, 0.1, 0.05), (False, not ordered)):
        tensor = random_law(rng, symbols, length, density, exchangeable)
        contexts = contexts_by_hand(as_law(tensor), symbols, ordered)
        tokens_CxL, joint_CxV = equivalence.masked_contexts(tensor, ordered=ordered)
        expected_CxL, expected_CxV = as_arrays(contexts, symbols)
        np.testing.assert_array_equal(tokens_CxL, expected_CxL)
        np.testing.assert_allclose(joint_CxV, expected_CxV, atol=1e-15)
        for pair in ((0, 1), (2, 0)):
            measured = violations(tokens_CxL, joint_CxV, pair, ordered)
            np.testing.assert_allclose(
                measured, measures_by_hand(contexts, pair, ordered), atol=1e-12
            )
            part_C = equivalence.support_parts(tokens_CxL, joint_CxV, pair, ordered=ordered)
            found = [
                {tuple(tokens) for tokens in tokens_CxL[part_C == part].tolist()}
                for part in range(part_C.max() + 1)
            ]
            parts = parts_by_hand(contexts, pair, ordered)
            assert sorted(map(sorted, found)) == sorted(map(sorted, parts))
            bounds_Kx2 = equivalence.log_ratios_of_parts(
                tokens_CxL, joint_CxV, pair, ordered=ordered
            )
            odds = [[odds_by_hand(contexts[context], pair) for context in part] for part in parts]
            expected_Kx2 = sorted([min(of_part), max(of_part)] for of_part in odds)
            np.testing.assert_allclose(sorted(bounds_Kx2.tolist()), expected_Kx2, atol=1e-12)
            counts.add(len(parts))
    assert len(counts) > 1


@ORDERS
@pytest.mark.parametrize(("symbols", "length"), SHAPES)
def test_conditional_implies_semantic_equivalence(symbols, length, ordered):
    """A single sequence with another probability breaks conditional equivalence."""
    rng, pair, told = np.random.default_rng([symbols, length, ordered, 1]), (0, symbols - 1), 0
    for _ in range(20):
        classes = random_law(rng, symbols - 1, length, rng.choice([1, 0.5, 0.2]))
        law = spelled(classes, lambda meant, place: 0.5)
        conditional, semantic = violations(
            *equivalence.masked_contexts(law, ordered=ordered), pair, ordered
        )
        assert conditional < 1e-12
        assert math.isnan(semantic) or semantic < 1e-12
        told += semantic < 1e-12
        broken = law.copy()
        broken[(0, *[1] * (length - 1))] *= 1 + 1e-3
        conditional, _ = violations(
            *equivalence.masked_contexts(broken / broken.sum(), ordered=ordered), pair, ordered
        )
        assert conditional > 1e-6
    assert told == 20


@ORDERS
@pytest.mark.parametrize(("symbols", "length"), SHAPES)
def test_semantic_equivalence_has_one_log_ratio_on_each_part(symbols, length, ordered):
    """Each component renders its class with other probabilities, so with its own log ratio."""
    rng, pair = np.random.default_rng([symbols, length, ordered, 2]), (0, symbols - 1)
    several = 0
    for density in np.repeat([1, 0.3, 0.15, 0.1], 6):
        classes = random_law(rng, symbols - 1, length, density, exchangeable=not ordered)
        component = components(classes, ordered)
        chance = rng.uniform(0.05, 0.45, len(component))
        law = spelled(
            classes,
            lambda meant, place, of=component, chance=chance: (
                chance[of[meant]] if meant in of else 0
            ),
        )
        tokens_CxL, joint_CxV = equivalence.masked_contexts(law, ordered=ordered)
        conditional, semantic = violations(tokens_CxL, joint_CxV, pair, ordered)
        assert conditional > 1e-3
        assert semantic < 1e-12
        odds_K = constants(tokens_CxL, joint_CxV, pair, ordered)
        expected = {
            math.log(chance[n] / (1 - chance[n])) for meant, n in component.items() if 0 in meant
        }
        assert sorted(set(odds_K.round(9))) == pytest.approx(sorted(expected))
        spread = equivalence.log_ratio_spread(joint_CxV, pair)
        assert spread == pytest.approx(max(expected) - min(expected), abs=1e-9)
        lost = equivalence.loss_with_equal_output_rows(
            joint_CxV, pair, bias=True
        ) - theory.best_loss(joint_CxV)
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
        component = components(classes, ordered)
        chance = rng.choice([0, 0.2, 0.5, 1], len(component), p=[0.2, 0.4, 0.2, 0.2])
        law = spelled(
            classes,
            lambda meant, place, of=component, chance=chance: (
                chance[of[meant]] if meant in of else 0
            ),
        )
        if trial % 3:
            law[tuple(rng.integers(4, size=3))] += 0.02
            law /= law.sum()
        tokens_CxL, joint_CxV = equivalence.masked_contexts(law, ordered=ordered)
        semantic = equivalence.semantic_violation(tokens_CxL, joint_CxV, (0, 3), ordered=ordered)
        bounds_Kx2 = equivalence.log_ratios_of_parts(tokens_CxL, joint_CxV, (0, 3), ordered=ordered)
        constant = bool(np.all(np.isclose(*bounds_Kx2.T, rtol=0, atol=1e-9)))
        assert constant == (math.isnan(semantic) or semantic < 1e-12)
        seen[constant, bool(np.isinf(bounds_Kx2).any())] += 1
    assert len(seen) == 4 and min(seen.values()) > 3


@ORDERS
@pytest.mark.parametrize(("symbols", "length"), SHAPES)
def test_random_distributions_are_not_equivalent(symbols, length, ordered):
    rng = np.random.default_rng([symbols, length, ordered, 4])
    for _ in range(10):
        tokens_CxL, joint_CxV = equivalence.masked_contexts(
            random_law(rng, symbols, length), ordered=ordered
        )
        assert min(violations(tokens_CxL, joint_CxV, (0, 1), ordered)) > 0.01
        bounds_Kx2 = equivalence.log_ratios_of_parts(tokens_CxL, joint_CxV, (0, 1), ordered=ordered)
        assert np.all(bounds_Kx2[:, 1] - bounds_Kx2[:, 0] > 0.1)


def test_with_positions_the_log_ratio_may_depend_on_the_place_of_the_mask():
    """A model that sees positions then needs different rows, although all sequences occur."""
    chance = (0.1, 0.4, 0.9)
    law = spelled(random_law(np.random.default_rng(5), 2, 3), lambda meant, place: chance[place])
    tokens_CxL, joint_CxV = equivalence.masked_contexts(law, ordered=True)
    assert equivalence.semantic_violation(tokens_CxL, joint_CxV, (0, 2), ordered=True) < 1e-12
    assert sorted(constants(tokens_CxL, joint_CxV, (0, 2), True)) == pytest.approx(
        [math.log(p / (1 - p)) for p in chance]
    )
    assert (
        equivalence.loss_with_equal_output_rows(joint_CxV, (0, 2), bias=True)
        > theory.best_loss(joint_CxV) + 0.01
    )
    assert (
        equivalence.semantic_violation(
            *equivalence.masked_contexts(law, ordered=False), (0, 2), ordered=False
        )
        > 0.01
    )


def test_no_bias_fits_two_parts():
    """A zero occurs with two 1s or two 2s, rendered as 0 or 3 in ratio 1:9 or 9:1."""
    classes = np.zeros((3, 3, 3))
    for place, other in itertools.product(range(3), (1, 2)):
        classes[tuple(np.insert([other, other], place, 0))] = 1 / 6
    law = spelled(classes, lambda meant, place: 0.9 if 1 in meant else 0.1)
    tokens_CxL, joint_CxV = equivalence.masked_contexts(law, ordered=False)
    conditional, semantic = violations(tokens_CxL, joint_CxV, (0, 3), False)
    assert (conditional, semantic) == (pytest.approx(0.8), pytest.approx(0, abs=1e-12))
    assert sorted(constants(tokens_CxL, joint_CxV, (0, 3), False)) == pytest.approx([-LN9, LN9])
    assert equivalence.log_ratio_spread(joint_CxV, (0, 3)) == pytest.approx(2 * LN9)
    # a third of the masked tokens are zeros; all else is certain
    entropy = -sum(p * math.log(p) for p in (0.1, 0.9)) / 3
    assert theory.best_loss(joint_CxV) == pytest.approx(entropy)

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
    for bias in (True, False):
        assert equivalence.loss_with_equal_output_rows(
            joint_CxV, (0, 3), bias=bias
        ) == pytest.approx(entropy + lost)
    assert reached == pytest.approx(entropy + lost, abs=1e-3)
    assert reached >= entropy + lost > entropy + 0.12


def test_loss_with_equal_output_rows_uses_the_best_bias():
    """Use random distributions, whose best bias is found numerically."""
    rng = np.random.default_rng(7)
    for _ in range(20):
        _, joint_CxV = equivalence.masked_contexts(random_law(rng, 4, 3, 0.5), ordered=False)
        either_C = joint_CxV[:, 1] + joint_CxV[:, 3]
        context_C = joint_CxV.sum(axis=1)

        def loss(bias, joint_CxV=joint_CxV, either_C=either_C, context_C=context_C):
            predicted_CxV = joint_CxV / context_C[:, None]
            for symbol, share in ((1, 1 / (1 + math.exp(bias))), (3, 1 / (1 + math.exp(-bias)))):
                predicted_CxV[:, symbol] = share * either_C / context_C
            occurs = joint_CxV > 0
            return -np.sum(joint_CxV[occurs] * np.log(predicted_CxV[occurs]))

        best = minimize_scalar(loss).fun
        assert equivalence.loss_with_equal_output_rows(
            joint_CxV, (1, 3), bias=True
        ) == pytest.approx(best, abs=1e-9)
        assert equivalence.loss_with_equal_output_rows(
            joint_CxV, (1, 3), bias=False
        ) == pytest.approx(loss(0), abs=1e-12)
        assert best > theory.best_loss(joint_CxV) + 1e-4


def exor(length: int, spell, ones_at_least: int = 0) -> dict[tuple, float]:
    """Return sequence -> p; `spell(bits)` yields (share, (p(X), p(Y)), (p(A), p(B)))."""
    law, strings = (
        defaultdict(float),
        [b for b in itertools.product((0, 1), repeat=length) if sum(b) >= ones_at_least],
    )
    for bits in strings:
        for share, zeros, ones in spell(bits):
            for second in itertools.product((0, 1), repeat=length):
                p = math.prod((zeros, ones)[bit][s] for bit, s in zip(bits, second))
                sequence = (
                    *((data.X, data.A)[bit] + s for bit, s in zip(bits, second)),
                    data.EVEN + sum(bits) % 2,
                )
                law[sequence] += share * p / len(strings)
    return law


def exor_contexts(law: dict[tuple, float], ordered: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return contexts and joint probabilities; the label is never masked."""
    return as_arrays(
        contexts_by_hand(law, data.MASK, ordered, range(len(next(iter(law))) - 1)), data.MASK
    )


XY, AB = (data.X, data.X + 1), (data.A, data.A + 1)
SKEWED, EVENLY = (0.1, 0.9), (0.5, 0.5)


@ORDERS
@pytest.mark.parametrize("length", [4, 5])
def test_exor_has_many_parts_and_one_log_ratio(length, ordered):
    """Changing one bit without the label leaves the support, so many parts share one ratio."""
    law = exor(length, lambda bits: [(1, SKEWED, EVENLY)])
    tokens_CxL, joint_CxV = exor_contexts(law, ordered)
    bits = np.array(list(itertools.product([0, 1], repeat=length)))
    enumerated = data.enumerate_contexts(bits, SKEWED, EVENLY, ordered=ordered)
    np.testing.assert_array_equal(enumerated.tokens_CxL, tokens_CxL)
    np.testing.assert_allclose(enumerated.joint_CxV, joint_CxV, atol=1e-15)
    odds_K = constants(tokens_CxL, joint_CxV, XY, ordered)
    # other bits, or how many of them are ones
    assert len(odds_K) == (length * 2 ** (length - 1) if ordered else length)
    np.testing.assert_allclose(odds_K, LN9)
    assert violations(tokens_CxL, joint_CxV, XY, ordered) == (
        pytest.approx(0.8),
        pytest.approx(0, abs=1e-12),
    )
    assert violations(tokens_CxL, joint_CxV, AB, ordered) == pytest.approx((0, 0), abs=1e-12)
    assert violations(tokens_CxL, joint_CxV, (data.X, data.A), ordered)[1] == pytest.approx(1)


def test_cost_of_equal_rows_in_exor():
    """In the main process equal rows cost nothing with an output bias."""
    law = data.enumerate_process(7, SKEWED, EVENLY)
    tokens_CxL, joint_CxV = law.tokens_CxL, law.joint_CxV
    best = theory.best_loss(joint_CxV)
    assert len(constants(tokens_CxL, joint_CxV, XY, False)) == 7
    merged_CxL, merged_CxV = equivalence.merge_spellings(tokens_CxL, joint_CxV, XY, ordered=False)
    assert len(merged_CxL) < len(tokens_CxL) and XY[0] in merged_CxL and XY[1] not in merged_CxL
    assert theory.best_loss(merged_CxV) == pytest.approx(best)
    for joint in (joint_CxV, merged_CxV):
        assert equivalence.loss_with_equal_output_rows(joint, XY, bias=True) == pytest.approx(best)
        lost = 0.5 * (math.log(2) + 0.1 * math.log(0.1) + 0.9 * math.log(0.9))
        assert equivalence.loss_with_equal_output_rows(joint, XY, bias=False) == pytest.approx(
            best + lost
        )
    merged_CxL, merged_CxV = equivalence.merge_spellings(
        tokens_CxL, joint_CxV, (data.X, data.A), ordered=False
    )
    assert theory.best_loss(merged_CxV) > best + 0.1


DIALECTS = [(0.5, SKEWED, (1, 0)), (0.5, SKEWED[::-1], (0, 1))]
PARTS_OF_DIALECTS = {(4, False): 2, (4, True): 8, (5, False): 4, (5, True): 2 * 5 * (1 + 4)}


@ORDERS
@pytest.mark.parametrize("length", [4, 5])
def test_two_dialects(length, ordered):
    """Zeros are rendered 1:9 with As and 9:1 with Bs, so no bias helps."""
    tokens_CxL, joint_CxV = exor_contexts(
        exor(length, lambda bits: DIALECTS, ones_at_least=3), ordered
    )
    assert violations(tokens_CxL, joint_CxV, XY, ordered) == (
        pytest.approx(0.8),
        pytest.approx(0, abs=1e-12),
    )
    odds_K = constants(tokens_CxL, joint_CxV, XY, ordered)
    # two values, but two parts in one of the four cases only
    assert len(odds_K) == PARTS_OF_DIALECTS[length, ordered]
    np.testing.assert_allclose(np.sort(odds_K), np.repeat([-LN9, LN9], len(odds_K) // 2))
    best, zeros = theory.best_loss(joint_CxV), joint_CxV[:, list(XY)].sum()
    lost = zeros * (math.log(2) + 0.1 * math.log(0.1) + 0.9 * math.log(0.9))
    for bias in (True, False):
        assert equivalence.loss_with_equal_output_rows(joint_CxV, XY, bias=bias) == pytest.approx(
            best + lost
        )
    _, merged_CxV = equivalence.merge_spellings(tokens_CxL, joint_CxV, XY, ordered=ordered)
    assert theory.best_loss(merged_CxV) == pytest.approx(best)
    # No swap of an A for a B occurs, so nothing is said of them; and yet equal input rows hide the
    # dialect.
    assert math.isnan(equivalence.semantic_violation(tokens_CxL, joint_CxV, AB, ordered=ordered))
    _, merged_CxV = equivalence.merge_spellings(tokens_CxL, joint_CxV, AB, ordered=ordered)
    assert theory.best_loss(merged_CxV) > best + 0.01


@ORDERS
@pytest.mark.parametrize("length", [4, 5])
def test_zeros_rendered_by_label(length, ordered):
    """Zeros are rendered 1:9 in even strings and 9:1 in odd ones: no bias helps."""
    law = exor(length, lambda bits: [(1, SKEWED[:: -1 if sum(bits) % 2 else 1], EVENLY)])
    main_CxL, main_CxV = exor_contexts(exor(length, lambda bits: [(1, SKEWED, EVENLY)]), ordered)
    tokens_CxL, joint_CxV = exor_contexts(law, ordered)
    np.testing.assert_array_equal(tokens_CxL, main_CxL)
    best = theory.best_loss(joint_CxV)
    assert best == pytest.approx(theory.best_loss(main_CxV))
    assert theory.best_accuracy(joint_CxV) == pytest.approx(theory.best_accuracy(main_CxV))
    assert violations(tokens_CxL, joint_CxV, XY, ordered) == (
        pytest.approx(0.8),
        pytest.approx(0, abs=1e-12),
    )
    assert violations(tokens_CxL, joint_CxV, AB, ordered) == pytest.approx((0, 0), abs=1e-12)
    ratio_C, odd_C = (
        equivalence.log_ratios(joint_CxV, XY),
        (tokens_CxL == data.EVEN + 1).any(axis=1),
    )
    stands_C = joint_CxV[:, list(XY)].any(axis=1)
    np.testing.assert_allclose(ratio_C[stands_C], np.where(odd_C, -LN9, LN9)[stands_C])
    lost = 0.5 * (math.log(2) + 0.1 * math.log(0.1) + 0.9 * math.log(0.9))
    for bias in (True, False):
        assert equivalence.loss_with_equal_output_rows(joint_CxV, XY, bias=bias) == pytest.approx(
            best + lost
        )


@ORDERS
def test_unmasked_tokens_do_not_connect_parts(ordered):
    """X and Y are equivalent only if the label that sets their odds is never masked.

    If order matters, the labels can be ones, which are masked only at other places.
    """
    law, labels = {}, AB if ordered else (data.EVEN, data.EVEN + 1)
    for label, *tokens in itertools.product(labels, range(4), range(4)):
        spell = (*(SKEWED if label == labels[0] else SKEWED[::-1]), *EVENLY)
        law[*tokens, label] = math.prod(spell[token] for token in tokens) / 8
    contexts = as_arrays(contexts_by_hand(law, data.MASK, ordered), data.MASK)
    assert equivalence.semantic_violation(*contexts, XY, ordered=ordered) > 0.1
    bounds_Kx2 = equivalence.log_ratios_of_parts(*contexts, XY, ordered=ordered)
    np.testing.assert_allclose(bounds_Kx2, np.tile([-LN9, LN9], (1 + ordered, 1)))
    contexts = exor_contexts(law, ordered)
    assert equivalence.semantic_violation(*contexts, XY, ordered=ordered) < 1e-12
    odds_K = constants(*contexts, XY, ordered)
    np.testing.assert_allclose(np.sort(odds_K), np.repeat([-LN9, LN9], 1 + ordered))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rank", range(5))
def test_full_rank_forces_equal_rows(rank, bias):
    """Below full rank some different rows give the same odds everywhere; at full rank none do."""
    rng = np.random.default_rng([rank, bias])
    for _ in range(20):
        hidden_NxD = rng.normal(size=(30, rank)) @ rng.normal(size=(rank, 4)) + bias * rng.normal(
            size=4
        )
        assert equivalence.rank_of_hidden_states(hidden_NxD, bias=bias) == rank
        # a bias takes up the odds of one hidden state
        bound_NxD = hidden_NxD - bias * hidden_NxD[:1]
        least, apart = np.linalg.eigh(bound_NxD.T @ bound_NxD)
        moved = np.abs(bound_NxD @ apart[:, 0]).max()
        assert moved < 1e-7 if rank < 4 else moved > 1e-3 and least[0] > 0


def test_rank_with_and_without_a_bias():
    flat_NxD = np.column_stack([np.ones(20), np.random.default_rng(8).normal(size=(20, 2))])
    assert equivalence.rank_of_hidden_states(flat_NxD, bias=False) == 3
    # (1, 0, 0) is what a bias is
    assert equivalence.rank_of_hidden_states(flat_NxD, bias=True) == 2
    same_NxD = np.tile(flat_NxD[:1] / 3, (20, 1))
    assert equivalence.rank_of_hidden_states(same_NxD, bias=False) == 1
    # for all the rounding of the mean
    assert equivalence.rank_of_hidden_states(same_NxD, bias=True) == 0
    assert equivalence.rank_of_hidden_states(np.zeros((3, 2)), bias=False) == 0
    for scale in (1e-5, 1, 1e5):
        assert (
            equivalence.rank_of_hidden_states(
                scale * flat_NxD * [1, 1, 1e-4], bias=True, tolerance=1e-3
            )
            == 1
        )


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
