"""Plateaus, distances, label geometry and committed form of EXor results."""

import itertools
import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from condense import write_committed
from exor_tables import targets
from made_up import PROCESSES, exor_results, stuck_results
from plateaus import exit_times

from jaxtie import Process
from jaxtie.exor import analysis, data, theory
from jaxtie.exor.analysis import fluctuations
from jaxtie.exor.claims import ExorClaim
from jaxtie.results.claims import claim_values

HALF = runpy.run_path(str(Path(__file__).parents[2] / "experiments" / "norm_conflict_half.py"))


def entropy_by_hand(own: Process, *, by_label: bool) -> float:
    """Compute H(target) or H(target | label) of the training strings, place by place."""
    law: dict[tuple, float] = {}
    for bits_n in data.split(7, False, 14).train:
        label = bits_n.sum() % 2
        for bit in bits_n:
            spelled = own.ones if bit else own.zeros
            if own.zeros_by_label and label and not bit:
                spelled = spelled[::-1]
            for symbol, p in zip("AB" if bit else "XY", spelled, strict=True):
                key = (label if by_label else None, symbol)
                law[key] = law.get(key, 0) + p / 7 / 114
    total = 0.0
    for (label, _), p in law.items():
        of_label = sum(q for (other, _), q in law.items() if other == label)
        total -= p * math.log(p / of_label) if p else 0
    return total


@pytest.mark.parametrize("name", PROCESSES)
def test_exit_level_is_below_the_loss_given_the_label(name):
    """A predictor that sees only the label pays H(target | label), computed here by hand."""
    own = PROCESSES[name]
    bits = data.split(7, False, 14).train
    law = data.enumerate_contexts(
        bits, own.zeros, own.ones, ordered=False, zeros_by_label=own.zeros_by_label
    )
    joint_CxV, of_label = law.joint_CxV, entropy_by_hand(own, by_label=True)
    without = theory.best_loss(joint_CxV.sum(axis=0, keepdims=True))
    assert without == pytest.approx(entropy_by_hand(own, by_label=False), abs=1e-12)
    results = xr.Dataset(
        {"best_loss": ("split", [theory.best_loss(joint_CxV)])}, {"split": ["train"]}
    )
    level = analysis.exit_levels(results)[analysis.LEFT]
    assert level == pytest.approx(of_label - analysis.SOLVED, abs=1e-3)
    assert theory.best_loss(joint_CxV) + math.log(2) == pytest.approx(of_label, abs=2e-4)
    assert without - of_label == pytest.approx(0.1855 if name == "control" else 0, abs=2e-4)


@pytest.mark.parametrize(("length", "all_strings"), [(7, False), (7, True), (8, False)])
def test_the_first_plateau_is_ln_2_above_the_best(length, all_strings):
    """The first plateau is H(target), the best loss is H(target | context)."""
    bits = data.split(length, all_strings, 14).train
    joint_CxV = data.enumerate_contexts(bits, (0.1, 0.9), (0.5, 0.5), ordered=False).joint_CxV
    without_context = theory.best_loss(joint_CxV.sum(axis=0, keepdims=True))
    assert without_context - theory.best_loss(joint_CxV) == pytest.approx(math.log(2), abs=0.0005)


def test_exit_times(plateau_results):
    left, best = (exit_times(plateau_results, event) for event in (analysis.LEFT, analysis.AT_BEST))
    np.testing.assert_array_equal(left["tied"].step_S, [20, 20, 30, 40, 100, 100])
    np.testing.assert_array_equal(left["tied"].censored_S, [0, 0, 0, 0, 1, 1])
    np.testing.assert_array_equal(left["untied"].step_S, [40, 50, 30, 60, 70, 80])
    np.testing.assert_array_equal(best["untied"].step_S, [50, 60, 70, 80, 90, 100])
    np.testing.assert_array_equal(best["tied"].censored_S, [0, 1, 1, 1, 1, 1])


def test_committed_losses_give_the_same_exit_times(plateau_results, tmp_path):
    """Losses differ from the level by 0.1, 0.4, -0.4 and 0.6 of the last committed decimal."""
    results = plateau_results.isel(seed=slice(4))
    close = float(analysis.exit_levels(results)[analysis.AT_BEST]) + 1e-3 * np.array(
        [[0.1], [0.4], [-0.4], [0.6]]
    )
    results["train_loss"].loc[{"arm": "untied", "eval_step": [90, 100]}] = close
    write_committed(results, tmp_path / "kept.nc")
    kept = xr.load_dataset(tmp_path / "kept.nc", engine="h5netcdf")
    for each in (results, kept):
        reached = analysis.has_reached_best(each).sel(arm="untied")
        assert reached.values.tolist() == [True, True, True, False]
    for event in (analysis.LEFT, analysis.HALFWAY, analysis.AT_BEST):
        one, other = (exit_times(each, event)["untied"] for each in (results, kept))
        np.testing.assert_array_equal(one.step_S, other.step_S)


def test_stuck_seeds():
    made = stuck_results("a", {"tied": [0, 1, 2], "untied": [5]})
    np.testing.assert_array_equal(analysis.is_stuck(made).mean("seed"), [3 / 40, 1 / 40])
    shares = analysis.stuck_over_steps(made).sel(arm="tied").mean("seed")
    np.testing.assert_array_equal(shares, [1, 1, 3 / 40])
    made["train_loss"].loc[{"arm": "tied", "seed": 239}] = np.nan
    made["diverged_at"].loc[{"arm": "tied", "seed": 239}] = 20
    assert np.isnan(analysis.is_stuck(made).sel(arm="tied", seed=239))


def test_fluctuation_of_relative_changes_late_in_training(plateau_results):
    distance = plateau_results["input_distance"]
    pair, own = {"symbol": "X", "symbol2": "Y"}, {"arm": "tied", "pair": "X-Y", "table": "input"}
    distance.loc[pair] = 2.0 ** np.arange(11)  # steady growth is none
    np.testing.assert_allclose(fluctuations(plateau_results).sel(own), 0, atol=1e-12)
    distance.loc[pair | {"step": [80, 90, 100]}] = [1.0, 1.1, 1.32]  # 10 %, 20 %
    found = fluctuations(plateau_results)
    np.testing.assert_allclose(found.sel(own), 0.1 / math.sqrt(2), rtol=1e-9)
    kept = plateau_results.assign(fluctuation=found).sel(step=[0, 50, 100])
    claimed = claim_values(kept, ExorClaim("It moves.", "fluctuation", "tied"))
    np.testing.assert_allclose(np.exp(claimed), 0.1 / math.sqrt(2), rtol=1e-9)


def test_fluctuations_of_few_records_or_no_pairs(plateau_results):
    assert fluctuations(plateau_results.isel(pair=[])).shape == (2, 0, 2, 6)
    assert fluctuations(plateau_results.isel(step=[0, 9, 10])).isnull().all()


def test_pairs_and_targets_occur():
    assert targets(exor_results("tied")) == ["X", "Y", "A", "B"]
    results = exor_results("tied", p_X=[0.1, 1.0])
    results["theory_log_odds"].loc[{"pair": "X-Y", "p_X": 1.0}] = np.nan
    assert analysis.live_pairs(results) == ["X-Y", "A-B"]  # at one setting it does
    results["theory_log_odds"].loc[{"pair": "X-Y"}] = np.nan
    assert list(analysis.distance_rows(results)) == ["distance A-B, input", "distance A-B, output"]


def test_leaving_the_plateau_for_good(plateau_results):
    """Seed 0 returns once, seed 1 is back at the last step, seed 2 never returns."""
    loss = plateau_results["train_loss"]
    loss.loc[{"arm": "untied", "seed": 0, "eval_step": 70}] = 2.0
    loss.loc[{"arm": "untied", "seed": 1, "eval_step": 100}] = 2.0
    first, last = (
        exit_times(plateau_results, analysis.LEFT, for_good=for_good)["untied"]
        for for_good in (False, True)
    )
    np.testing.assert_array_equal(first.step_S, [40, 50, 30, 60, 70, 80])
    np.testing.assert_array_equal(last.step_S, [80, 100, 30, 60, 70, 80])
    np.testing.assert_array_equal(last.censored_S, [0, 1, 0, 0, 0, 0])


def concordance(steps, left_at, norms, horizon):
    """Count couples one by one; `left_at` is infinite for seeds that never leave."""
    agreed = couples = 0
    for step, norm in zip(steps, norms.T, strict=True):
        if step + horizon > steps[-1]:
            continue
        for one, other in itertools.permutations(range(len(left_at)), 2):
            if step < left_at[one] <= step + horizon < left_at[other]:
                couples += 1
                agreed += 1.0 if norm[one] < norm[other] else 0.5 * (norm[one] == norm[other])
    return agreed / couples


def test_exit_concordance_is_a_share_of_couples_with_jackknife_values():
    rng, steps, horizon = np.random.default_rng(0), np.arange(0, 110, 10), 20
    left_at = rng.choice([30, 40, 60, 80, 90, np.inf], 12)
    norms = rng.integers(0, 5, (12, 11)).astype(float)
    found = HALF["exit_concordance"](steps, steps >= left_at[:, None], norms, horizon)
    whole = concordance(steps, left_at, norms, horizon)
    for seed in range(12):
        rest = np.arange(12) != seed
        without = concordance(steps, left_at[rest], norms[rest], horizon)
        assert found[seed] == pytest.approx(12 * whole - 11 * without)
    assert 0.1 < whole < 0.9


def test_a_claim_about_exit_concordance(plateau_results):
    """Seeds with a shorter row leave next; the jackknife's mean is 1 where all couples agree."""
    results = plateau_results.sel(eval_step=[0, 20, 40, 60, 80, 100])
    results = results.assign_coords(eval_step=np.arange(0, 120_000, 20_000))
    results = results.assign_coords(step=10_000 * np.arange(11))
    left = np.array([[1, 1, 2, 2, 9, 9], [2, 3, 2, 3, 4, 4]])
    times = np.arange(6)
    best = float(results["best_loss"].sel(split="train"))
    loss = np.where(times >= left[..., None], best, best + math.log(2))
    results["train_loss"] = results["valid_loss"] = ("arm", "seed", "eval_step"), loss
    results["diverged_at"] = xr.full_like(results["diverged_at"], -1)
    norm = np.broadcast_to(left[..., None].astype(float), (2, 2, 6, 6))
    results["mask_norm"] = ("table", "arm", "seed", "eval_step"), norm
    results = results.assign_coords(table=["input", "output"])
    claim = HALF["ExitClaim"]("The shorter leave next.", "exit concordance", "untied", low=0.5)
    np.testing.assert_allclose(claim_values(results, claim), 1)
    longer = results.assign(mask_norm=-results["mask_norm"])
    np.testing.assert_allclose(claim_values(longer, claim), 0)
    results["diverged_at"].loc[{"arm": "untied", "seed": 5}] = 20_000
    assert np.isnan(claim_values(results, claim).values).tolist() == [False] * 5 + [True]
