"""Similarities of tables, computed in other ways; their nulls, by all permutations."""

import itertools

import numpy as np
import pytest
import xarray as xr
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr
from similarity import (
    FEWEST_ROWS,
    NEIGHBOUR_COUNT,
    SIMILARITIES,
    compare_with_untied,
    distance_order,
    linear_cka,
    linear_map,
    neighbours,
    similarity_table,
)

FEW = ("CKA", "order of distances", "linear map")


def tables(
    rows: int, width: int = 3, other: int = 2, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x_NxD = rng.normal(size=(rows, width)) + 1
    return x_NxD, x_NxD[:, :other] * [1.0, 3.0][:other] + 0.7 * rng.normal(size=(rows, other)) - 2


@pytest.mark.parametrize("name", FEW)
def test_the_null_is_the_mean_over_all_permutations(name):
    """120 of five rows."""
    x_NxD, y_NxE = tables(5, width=2)
    found = SIMILARITIES[name](x_NxD, y_NxE)
    permuted = [
        SIMILARITIES[name](x_NxD, y_NxE[list(order)]).value
        for order in itertools.permutations(range(5))
    ]
    assert found.null == pytest.approx(np.mean(permuted), abs=1e-12)
    assert found.value > found.null + 0.1


def test_the_null_of_neighbours_is_the_mean_over_permutations():
    x_NxD, y_NxE = tables(FEWEST_ROWS + 10)
    rng, found = np.random.default_rng(1), neighbours(x_NxD, y_NxE)
    permuted = [neighbours(x_NxD, rng.permutation(y_NxE)).value for _ in range(200)]
    assert found.null == pytest.approx(np.mean(permuted), abs=4 * np.std(permuted) / np.sqrt(200))
    assert found.value > found.null + 0.1
    assert np.isnan(neighbours(x_NxD[: FEWEST_ROWS - 1], y_NxE[: FEWEST_ROWS - 1]).value)


def test_measures_are_those_of_the_literature():
    """CKA by Gram matrices, R² by least squares, Spearman by SciPy, neighbours by a tree."""
    x_NxD, y_NxE = tables(70)
    centre = np.eye(70) - 1 / 70
    x_NxN, y_NxN = (centre @ table @ table.T @ centre for table in (x_NxD, y_NxE))
    cka = np.sum(x_NxN * y_NxN) / np.sqrt(np.sum(x_NxN**2) * np.sum(y_NxN**2))
    assert linear_cka(x_NxD, y_NxE).value == pytest.approx(cka)
    affine = np.column_stack([x_NxD, np.ones(70)])
    left = y_NxE - affine @ np.linalg.lstsq(affine, y_NxE)[0]
    total = np.square(y_NxE - y_NxE.mean(axis=0)).sum()
    assert linear_map(x_NxD, y_NxE).value == pytest.approx(1 - np.square(left).sum() / total)
    spearman = spearmanr(pdist(x_NxD), pdist(y_NxE)).statistic
    assert distance_order(x_NxD, y_NxE).value == pytest.approx(spearman)
    near = [cKDTree(table).query(table, NEIGHBOUR_COUNT + 1)[1][:, 1:] for table in (x_NxD, y_NxE)]
    shared = [len(set(a) & set(b)) for a, b in zip(*near, strict=True)]
    assert neighbours(x_NxD, y_NxE).value == pytest.approx(np.mean(shared) / NEIGHBOUR_COUNT)


def test_rotation_scale_and_shift_change_no_measure():
    """Any linear map leaves R², but not CKA."""
    x_NxD, _ = tables(70)
    turn = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
    stretch = np.diag([1.0, 10.0, 0.1])
    for measure in SIMILARITIES.values():
        assert measure(x_NxD, 5 * x_NxD @ turn - 3).value == pytest.approx(1)
    assert linear_map(x_NxD, x_NxD @ stretch).value == pytest.approx(1)
    assert linear_cka(x_NxD, x_NxD @ stretch).value < 0.95


def test_a_table_of_lower_rank_explains_as_much_as_its_directions():
    x_NxD, y_NxE = tables(70)
    doubled = np.column_stack([x_NxD, x_NxD])  # six columns, three directions
    assert linear_map(doubled, y_NxE).value == pytest.approx(linear_map(x_NxD, y_NxE).value)
    assert linear_map(doubled, y_NxE).null == pytest.approx(3 / 69)


def test_tied_tables_are_compared_with_those_of_their_own_seed():
    """The tied table is the output table, rotated, with a little noise."""
    rng = np.random.default_rng(3)
    common, turn = rng.normal(size=(20, 4)), np.linalg.qr(rng.normal(size=(4, 4)))[0]
    output = common + 0.5 * rng.normal(size=(3, 20, 4))
    dims, labels = ("seed", "row", "dim"), {"seed": [4, 5, 6]}
    untied = xr.Dataset(
        {"input": (dims, rng.normal(size=(3, 20, 4))), "output": (dims, output)}, labels
    )
    noisy = (output @ turn + 0.01 * rng.normal(size=(3, 20, 4)))[None]
    tied = xr.DataArray(noisy, {"arm": ["tied"], **labels}, ("arm", *dims))
    found = compare_with_untied(tied, untied, FEW)
    to_input, to_output = (found["similarity"].sel(table=table) for table in ("input", "output"))
    assert (to_output > 0.99).all() and (to_input < 0.6).all()
    ceiling = found["similarity_ceiling"].sel(table="output", measure="CKA")
    np.testing.assert_allclose(ceiling.sel(seed=6), linear_cka(output[2], output[0]).value)
    assert (ceiling > 0.6).all()
    alone = compare_with_untied(tied.isel(seed=[0]), untied.isel(seed=[0]), FEW)
    assert alone["similarity_ceiling"].isnull().all()
    at_end = found.expand_dims(eval_step=[100]).assign_attrs(experiment="made-up")
    rows = similarity_table(at_end).rows
    assert [row[:2] for row in rows] == [(measure, "tied") for measure in FEW]
    nearer = (to_output - to_input).sel(measure="CKA")
    assert rows[0][4].startswith(f"{float(nearer.mean()):.3f} ±")
