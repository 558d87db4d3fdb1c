"""Tables of each arm at its best setting, on made-up losses."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from tuned import best_settings, decay_left, rates_table, tuned_gap_table

from jaxtie.config import Optimizer
from jaxtie.training.optimizer import decay_factors

ARMS = ("tied", "untied", "tied+targets-only", "untied+targets-only")
PLACES = [*itertools.product(ARMS, (0.1, 0.5))]
BEST = {arm: 1e-3 if arm.startswith("untied") else 5e-4 for arm in ARMS}


def grid() -> pd.DataFrame:
    rows = [
        (arm, p_X, rate, 0.5, decay, 64, 1.0 - (rate == BEST[arm]) * (1 + decay) / 10)
        for arm, p_X, rate, decay in itertools.product(
            ARMS, (0.1, 0.5), (2.5e-4, 5e-4, 1e-3), (0.0, 1.0)
        )
    ]
    rows += [(arm, p_X, 5e-4, 1.0, 1.0, 64, 2.0 - 0.1 * (arm in ARMS[1::2])) for arm, p_X in PLACES]
    names = "arm p_X learning_rate init_std table_decay seeds mean".split()
    return pd.DataFrame(rows, columns=names)


def fresh(gaps: dict[tuple[float, str], float]) -> pd.DataFrame:
    """Losses of 40 seeds at the best settings, and worse ones at another; seeds are shuffled."""
    rng = np.random.default_rng(0)
    rows = []
    for (p_X, form), gap in gaps.items():
        own_S, noise_S = rng.uniform(0, 5, 40), rng.uniform(-0.01, 0.01, 40)
        for seed in rng.permutation(40):
            tied = own_S[seed] + gap + noise_S[seed]
            rows.append((f"tied{form}", p_X, 5e-4, 0.5, 1.0, seed, tied, seed < 3))
        for seed in range(40):
            rows.append((f"untied{form}", p_X, 1e-3, 0.5, 1.0, seed, own_S[seed], seed == 5))
            rows.append((f"untied{form}", p_X, 2.5e-4, 0.5, 1.0, seed, 9.0, True))
    names = "arm p_X learning_rate init_std table_decay seed loss stuck".split()
    return pd.DataFrame(rows, columns=names)


def test_arms_are_compared_at_their_own_best_settings_seed_by_seed():
    assert best_settings(grid()).loc[(0.5, "untied")].tolist() == [1e-3, 0.5, 1.0]
    gaps = {(0.1, ""): 0.03, (0.1, "+targets-only"): 0.08, (0.5, ""): 0.05}
    table = tuned_gap_table(grid(), fresh(gaps | {(0.5, "+targets-only"): -0.5}))
    assert [row[0] for row in table.rows] == ["0.1", "0.1", "0.5", "0.5"]
    assert table.rows[0][2:4] == ("0.0005, 0.5, × 1", "0.001, 0.5, × 1")
    assert [row[7] for row in table.rows] == [
        "**an effect of the recipe**",
        "**a cost that tuning does not remove**",
        "**undecided**",
        "**an effect of the recipe**",
    ]
    assert table.rows[1][6].startswith("+0.0")
    assert {row[8:] for row in table.rows} == {("3 / 1", "0.100")}
    assert "40 fresh seeds" in table.title


def test_the_grid_shows_the_best_of_each_rate_and_the_decay_there():
    table = rates_table(grid())
    assert table.header == ("p(X), arm", "0.00025", "0.0005", "0.001")
    assert table.rows[0] == (
        "0.1, tied",
        "1.000 (0.5, × 0)",
        "0.800 (0.5, × 1)",
        "1.000 (0.5, × 0)",
    )
    assert table.rows[-1][0] == "decay × 1 leaves" and len(table.rows) == 8 + 1


@pytest.mark.parametrize(("rate", "factor"), [(1.25e-4, 1.0), (5e-4, 1.0), (2e-3, 0.1)])
def test_decay_is_that_of_the_schedule(rate, factor):
    own = Optimizer(learning_rate=rate, weight_decay=0.1 * factor)
    (expected,) = decay_factors(own, [290_000])
    assert math.log(decay_left(rate, factor)) == pytest.approx(math.log(expected), rel=2e-3)
