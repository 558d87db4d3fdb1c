"""One table for two: where it is exact, what it costs in numbers, and the rule that makes an advice of it."""

import numpy as np
import pytest

from jaxtie.hypothesis import price
from jaxtie.hypothesis.price import Price

RNG = np.random.default_rng(2)
CHEAP, DEAR, ACROSS = Price(0.001, 0.002, 0.003), Price(0.1, 0.2, 0.3), Price(0.005, 0.012, 0.02)
GAIN = Price(-0.077, -0.071, -0.064)
UNKNOWN = Price(np.nan, 0.2, np.nan)  # of one batch


def errors(shared: price.SharedTable, input_VxD, output_VxD, weight_V):
    mean_D = np.average(output_VxD, axis=0, weights=weight_V)
    return (
        np.abs(shared.table_VxD @ shared.to_input_DxD - input_VxD).max(),
        np.abs(shared.table_VxD @ shared.to_output_DxD - (output_VxD - mean_D)).max(),
    )


def test_tables_that_are_maps_of_one_are_shared_exactly():
    table_VxD, weight_V = RNG.normal(size=(30, 5)), RNG.uniform(1, 9, 30)
    table_VxD -= np.average(table_VxD, axis=0, weights=weight_V)
    input_VxD, output_VxD = table_VxD @ RNG.normal(size=(5, 5)), table_VxD @ RNG.normal(size=(5, 5)) + 3.0
    moment_DxD = np.cov(RNG.normal(size=(5, 40)))
    shared = price.best_shared_table(input_VxD, output_VxD, weight_V, moment_DxD)
    assert max(errors(shared, input_VxD, output_VxD, weight_V)) < 1e-9
    other = price.best_shared_table(RNG.normal(size=(30, 5)), output_VxD, weight_V, moment_DxD)
    assert max(errors(other, input_VxD, output_VxD, weight_V)) > 0.1


def test_no_other_table_is_nearer():
    """Against many random ones, each with its best maps, in the norm that is declared."""
    input_VxD, output_VxD, weight_V = RNG.normal(size=(20, 3)), RNG.normal(size=(20, 3)), RNG.uniform(1, 9, 20)
    moment_DxD = np.diag([1.0, 4.0, 0.25])
    root_Vx1 = np.sqrt(weight_V / weight_V.sum())[:, None]
    centred_VxD = output_VxD - np.average(output_VxD, axis=0, weights=weight_V)
    both = [root_Vx1 * input_VxD, root_Vx1 * centred_VxD @ np.sqrt(moment_DxD)]
    both = np.concatenate([each / np.linalg.norm(each) for each in both], axis=1)

    def left(table_VxD):
        basis, _ = np.linalg.qr(root_Vx1 * table_VxD)
        return np.linalg.norm(both - basis @ basis.T @ both)

    best = left(price.best_shared_table(input_VxD, output_VxD, weight_V, moment_DxD).table_VxD)
    assert best < min(left(RNG.normal(size=(20, 3))) for _ in range(50))
    assert best < min(left(input_VxD), left(output_VxD))


def test_balance_moves_the_error_to_the_other_table():
    input_VxD, output_VxD, weight_V = RNG.normal(size=(20, 3)), RNG.normal(size=(20, 3)), np.ones(20)
    found = [
        errors(price.best_shared_table(input_VxD, output_VxD, weight_V, np.eye(3), balance), input_VxD, output_VxD, weight_V)
        for balance in (0.01, 100)
    ]
    assert found[0][1] < 1e-2 < found[0][0] and found[1][0] < 1e-2 < found[1][1]


def test_a_price_is_paired_and_weighted():
    before, rise = np.array([3.0, 5.0, 4.0, 7.0]), np.array([0.1, 0.2, 0.3, 0.3])
    found = price.price_of(before, before + rise, np.array([1.0, 1.0, 2.0, 0.0]))
    assert found.rise == pytest.approx(0.225) and found.low < 0.225 < found.high
    assert found.high - found.low < 0.5  # the losses themselves differ by more
    same = price.price_of(before, before + 0.1, np.ones(4))
    assert same == pytest.approx((0.1, 0.1, 0.1))


@pytest.mark.parametrize(
    ("with_bias", "without", "rare", "word"),
    [
        (CHEAP, CHEAP, 0.0, "tie"),
        (CHEAP, DEAR, 0.0, "tie with a bias"),
        (DEAR, DEAR, 0.1, "do not tie"),
        (DEAR, DEAR, 0.3, "tie, then untie"),
        (ACROSS, DEAR, 0.3, "undecided: train both"),
        (DEAR, CHEAP, 0.0, "tie"),
        (GAIN, GAIN, 0.0, "undecided: train longer"),
        (UNKNOWN, UNKNOWN, 0.3, "undecided: give more text"),
        (DEAR, UNKNOWN, 0.0, "undecided: give more text"),
    ],
)
def test_the_rule(with_bias, without, rare, word):
    assert price.advise(with_bias, without, rare).word == word


def test_share_of_rare_tokens():
    assert price.share_of_rare(np.array([700, 99, 1, 200])) == pytest.approx(0.1)
