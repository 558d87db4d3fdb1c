"""Sweeps over any numeric field: a run at each static value, joined; best settings."""

import numpy as np
import pytest
import xarray as xr
from drawing import save_small

import jaxtie
from jaxtie import Transformer
from jaxtie.config import UserError
from jaxtie.results import plots
from jaxtie.results.analysis import best_setting
from jaxtie.run.command import main

TINY = "--seeds 2 --steps 40 --record-every 20 --eval-every 40 --quiet".split()
SWEPT = ["--sweep", "layers=1,2", "--sweep", "weight_decay=0,0.1"]


@pytest.fixture(autouse=True)
def small_figures(monkeypatch):
    monkeypatch.setattr(plots, "save", save_small)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "save", save_small)
        assert main([*TINY, *SWEPT, "--out", str(folder)]) == 0
    return folder


def test_a_sweep_point_has_the_bits_of_a_run_of_its_own(swept, tmp_path):
    """`layers` makes a run per value, `weight_decay` is an argument of their programs."""
    results = jaxtie.load(swept)
    assert results["valid_loss"].dims == ("arm", "layers", "weight_decay", "seed", "eval_step")
    options = ["--sweep", "weight_decay=0.1", "--out", str(tmp_path / "own")]
    path = tmp_path / "deep.py"
    path.write_text(
        "import jaxtie\n"
        "experiment = jaxtie.Experiment(name='deep', model=jaxtie.Transformer(layers=2))\n"
    )
    assert main([str(path), *TINY, *options]) == 0
    own = jaxtie.load(tmp_path / "own")
    for name in ("loss", "valid_loss", "input_distance", "log_odds"):
        found = results[name].sel(layers=2, weight_decay=[0.1])
        np.testing.assert_array_equal(found.values, own[name].values, err_msg=name)
    assert (swept / "figures").is_dir() and "layers" in (swept / "summary.md").read_text()


def test_a_finished_sweep_is_shown_again_and_extended(swept):
    before = (swept / "results.nc").stat().st_mtime_ns
    assert main([*TINY, *SWEPT, "--out", str(swept)]) == 0
    assert (swept / "results.nc").stat().st_mtime_ns == before
    assert main([*TINY, *SWEPT, "--seeds", "3", "--out", str(swept)]) == 0
    assert jaxtie.load(swept).sizes["seed"] == 3


def test_feedforward_can_follow_the_width():
    assert Transformer(width=12, heads=4, feedforward="4x").hidden == 48
    with pytest.raises(UserError, match="feedforward = 'x4': expected a number, or a multiple"):
        Transformer(feedforward="x4")


def test_the_best_setting_is_chosen_on_one_half_and_reported_on_the_other():
    """At 0.1 the half that chooses is better by luck, the other one is worse."""
    even = np.array([[[0.9, 0.8], [0.5, 0.5]], [[0.4, 0.2], [0.5, 0.5]]])
    odd = np.array([[[0.7, 0.6], [0.8, 0.9]], [[0.3, 0.3], [0.6, 0.6]]])
    dims = ("arm", "learning_rate", "seed", "eval_step")
    results = xr.Dataset(
        {"valid_loss_even": (dims, even[..., None]), "valid_loss_odd": (dims, odd[..., None])},
        {"arm": ["tied", "untied"], "learning_rate": [0.01, 0.1], "seed": [0, 1]},
    )
    found = best_setting(results, "learning_rate", "valid_loss_even", "valid_loss_odd")
    assert [found[arm][0] for arm in ("tied", "untied")] == [0.1, 0.01]
    np.testing.assert_array_equal(found["tied"][1], [0.8, 0.9])
    np.testing.assert_array_equal(found["untied"][1], [0.3, 0.3])
