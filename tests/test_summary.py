"""What the tables say, on results that are made up."""

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from jaxtie import summary

SYMBOLS = ["X", "Y", "A", "E"]
DIVERGENCE = np.array([0.0, 1, 1, 0, 0.5, 1])


def test_rank_agreement_is_somers_d():
    distances = np.random.default_rng(0).normal(size=(20, 6)).round(1)
    ours = summary.rank_agreement(DIVERGENCE, distances)
    np.testing.assert_allclose(ours, [stats.somersd(DIVERGENCE, distance).statistic for distance in distances], atol=1e-12)
    assert np.ptp(ours) > 0.5


def test_rank_agreement_is_1_where_every_order_is_met_and_asks_for_no_more():
    distances = np.array([[0.1, 3, 2, 0.2, 1, 4], [-0.1, -3, -2, -0.2, -1, -4], np.full(6, np.nan)])
    np.testing.assert_array_equal(summary.rank_agreement(DIVERGENCE, distances), [1, -1, np.nan])
    nearly_equal = DIVERGENCE + 1e-15 * np.arange(6)
    np.testing.assert_array_equal(summary.rank_agreement(nearly_equal, distances), [1, -1, np.nan])
    infinite = np.array([0, np.inf, np.inf, 0, 1, np.inf])
    np.testing.assert_array_equal(summary.rank_agreement(infinite, distances), [1, -1, np.nan])
    assert np.isnan(summary.rank_agreement(np.ones(6), distances)).all()


@pytest.fixture
def results() -> xr.Dataset:
    """Two arms, two seeds; in the tied one A is where X is, in the untied one only as an input. E is never a target."""
    tables = np.zeros((2, 2, 2, 2, 4, 1))  # [input or output, arm, seed, time, symbol, dim]
    tables[..., 0] = [0, 1, 0, 5]
    tables[1, 1, ..., 0] = [0, 1, 3, 5]
    tables[1, :, 1] *= 2  # the second seed
    tables[0, :, 1] *= 2
    distances = np.abs(tables - np.swapaxes(tables, -1, -2))
    semantic = np.array([[0, 1, 0, np.nan], [1, 0, 1, np.nan], [0, 1, 0, np.nan], [np.nan, np.nan, np.nan, 0]])
    conditional = np.array([[0, 0.2, 0.8, np.nan], [0.2, 0, 0.6, np.nan], [0.8, 0.6, 0, np.nan], [np.nan] * 4])
    log_ratio = np.array([[0, np.log(9), np.nan, np.nan], [np.log(9), 0, np.nan, np.nan], [np.nan] * 4, [np.nan] * 4])
    matrices = {"semantic_divergence": semantic, "conditional_divergence": conditional, "conditional_log_ratio": log_ratio}
    return xr.Dataset(
        {
            **{f"{name}_table": (("arm", "seed", "table_step", "symbol", "dim"), tables[i]) for i, name in enumerate(NAMES)},
            **{f"{name}_distance": (("arm", "seed", "step", *PAIR), distances[i]) for i, name in enumerate(NAMES)},
            **{name: (PAIR, matrix) for name, matrix in matrices.items()},
            "train_loss": (("arm", "seed", "eval_step"), np.ones((2, 2, 2))),
        },
        {"arm": ["tied", "freed"], "symbol": SYMBOLS, "symbol2": SYMBOLS, "step": [0, 100], "eval_step": [0, 100]},
    )


NAMES, PAIR = ("input", "output"), ("symbol", "symbol2")


def test_an_arm_has_as_many_tables_as_differ(results):
    assert summary.tables(results, "tied") == {"tied": "input"}
    assert summary.tables(results, "freed") == {"freed input": "input", "freed output": "output"}


def test_equivalences_stand_beside_distances(results):
    table = summary.equivalence_table(results)
    assert table.header[-3:] == ("tied", "freed input", "freed output")
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows)[:3] == ["X-Y", "X-A", "Y-A"]
    assert rows["X-Y"][:3] == ("1.000", "0.200", "2.197") and rows["X-A"][:3] == ("0.000", "0.800", "–")
    # Mean of d and 2d, and the interval that Student's t (1 degree of freedom, 12.706) gives for two seeds.
    assert rows["X-A"][3:] == ("0.000 ± 0.000", "0.000 ± 0.000", "4.500 ± 19.059")
    assert [cell.split()[0] for cell in rows["Y-A"][3:]] == ["1.500", "1.500", "3.000"]
    agreement = {name: [float(cell.split()[0]) for cell in cells[3:]] for name, cells in rows.items() if "rank" in name}
    assert agreement == {
        "rank agreement with semantic divergence": [1, 1, -1],  # output: 1, 2 and 3 against 1, 1 and 0
        "rank agreement with conditional divergence": [-0.667, -0.667, 1],
        "rank agreement with log ratio": [-0.5, -0.5, 1],
    }
