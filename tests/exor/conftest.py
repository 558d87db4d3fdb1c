"""Fixtures for the tests of EXor."""

import math

import numpy as np
import pytest
import xarray as xr
from made_up import BEST, exor_results

PLATEAU, BETWEEN, SOLVED = BEST["loss"] + math.log(2), BEST["loss"] + 0.5, BEST["loss"] + 0.01


@pytest.fixture
def plateau_results() -> xr.Dataset:
    """Make six seeds that leave the plateau and reach the best loss at known steps, if ever."""
    results = exor_results("tied", "untied", seeds=6).drop_dims(["eval_step", "table_step"])
    steps, never = np.arange(0, 101, 10), 1000
    left = np.array([[20, 20, 30, 40, never, never], [40, 50, 30, 60, 70, 80]])[..., None]
    best = np.array([[40, never, never, never, never, never], [50, 60, 70, 80, 90, never]])[
        ..., None
    ]
    loss = np.where(steps >= best, SOLVED, np.where(steps >= left, BETWEEN, PLATEAU))
    loss[0, 5, 3] = SOLVED  # a dip
    loss[0, 4, 6:] = np.nan
    results["train_loss"] = results["valid_loss"] = ("arm", "seed", "eval_step"), loss
    results["diverged_at"].loc[{"arm": "tied", "seed": 4}] = 55
    results["loss"] = ("arm", "seed", "step"), np.where(np.isnan(loss), np.nan, 1.0)
    return results.assign_coords(eval_step=steps)
