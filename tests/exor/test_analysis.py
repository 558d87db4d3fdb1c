"""Plateaus, distances, label geometry and committed form of EXor results."""

import itertools
import math

import numpy as np
import pytest
import xarray as xr
from drawing import save_small
from made_up import PROCESSES, exor_results, stuck_results

from jaxtie import Experiment, Process, run
from jaxtie.config import Layout
from jaxtie.exor import analysis, data, theory
from jaxtie.exor.analysis import condense, fluctuations, label_geometry
from jaxtie.exor.claims import Claim
from jaxtie.exor.tables import decay_table, equivalence_table, mask_table
from jaxtie.results import plots
from jaxtie.results.claims import claim_values
from jaxtie.results.committed import join_seeds, write_committed
from jaxtie.results.statistics import Times, exit_concordance


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
    left, best = (
        analysis.exit_times(plateau_results, event) for event in (analysis.LEFT, analysis.AT_BEST)
    )
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
        one, other = (analysis.exit_times(each, event)["untied"] for each in (results, kept))
        np.testing.assert_array_equal(one.step_S, other.step_S)


def test_stuck_seeds():
    made = stuck_results("a", {"tied": [0, 1, 2], "untied": [5]})
    np.testing.assert_array_equal(analysis.is_stuck(made).mean("seed"), [3 / 40, 1 / 40])
    shares = analysis.stuck_over_steps(made).sel(arm="tied").mean("seed")
    np.testing.assert_array_equal(shares, [1, 1, 3 / 40])
    made["train_loss"].loc[{"arm": "tied", "seed": 239}] = np.nan
    made["diverged_at"].loc[{"arm": "tied", "seed": 239}] = 20
    assert np.isnan(analysis.is_stuck(made).sel(arm="tied", seed=239))


def test_unseen_drops_exploratory_seeds():
    made = stuck_results("output-bias", {"tied": [], "untied": []}, range(100, 140))
    assert analysis.unseen(made)["seed"].values.tolist() == list(range(128, 140))


def test_fluctuation_of_relative_changes_late_in_training(plateau_results):
    distance = plateau_results["input_distance"]
    pair, own = {"symbol": "X", "symbol2": "Y"}, {"arm": "tied", "pair": "X-Y", "table": "input"}
    distance.loc[pair] = 2.0 ** np.arange(11)  # steady growth is none
    np.testing.assert_allclose(fluctuations(plateau_results).sel(own), 0, atol=1e-12)
    distance.loc[pair | {"step": [80, 90, 100]}] = [1.0, 1.1, 1.32]  # 10 %, 20 %
    found = fluctuations(plateau_results)
    np.testing.assert_allclose(found.sel(own), 0.1 / math.sqrt(2), rtol=1e-9)
    kept = plateau_results.assign(fluctuation=found).sel(step=[0, 50, 100])
    claimed = claim_values(kept, Claim("It moves.", "fluctuation", "tied"))
    np.testing.assert_allclose(np.exp(claimed), 0.1 / math.sqrt(2), rtol=1e-9)


def test_fluctuations_of_few_records_or_no_pairs(plateau_results):
    assert fluctuations(plateau_results.isel(pair=[])).shape == (2, 0, 2, 6)
    assert fluctuations(plateau_results.isel(step=[0, 9, 10])).isnull().all()


def test_pairs_and_targets_occur():
    assert analysis.targets(exor_results("tied")) == ["X", "Y", "A", "B"]
    results = exor_results("tied", p_X=[0.1, 1.0])
    results["theory_log_odds"].loc[{"pair": "X-Y", "p_X": 1.0}] = np.nan
    assert analysis.live_pairs(results) == ["X-Y", "A-B"]  # at one setting it does
    results["theory_log_odds"].loc[{"pair": "X-Y"}] = np.nan
    assert list(analysis.distance_rows(results)) == ["distance A-B, input", "distance A-B, output"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train tied, targets-only and partly tied arms for a few steps."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    arms = ("tied", "tied+targets-only", "tied+untie-rows=mask")
    experiment = Experiment(
        arms=arms, seeds=range(3), steps=20, record_every=10, eval_every=10, mask_logit=True
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "save", save_small)
        patch.setattr(Experiment, "layout", lambda *_: Layout((1,)))  # compiles sooner
        return run(experiment, out=folder, quiet=True)


def test_mask_logit_and_probability(trained):
    """Only a fresh model with a tied mask row predicts the mask at the mask."""
    p = trained["mask_probability"].sel(eval_step=0).mean("seed")
    assert p.sel(arm="tied") > 2 * p.sel(arm="tied+untie-rows=mask") > 0
    assert np.all(trained["mask_probability"].sel(arm="tied+targets-only") == 0)
    assert trained["mask_logit"].sel(arm="tied", eval_step=0).mean() > 0
    missing = trained["mask_logit"].isnull().all(["seed", "eval_step"])
    assert missing["arm"].values[missing].tolist() == ["tied+targets-only"]
    table = mask_table(trained)
    assert table.header == ("arm", "step 0")
    middle = float(np.median(trained["mask_probability"].sel(arm="tied", eval_step=0)))
    assert table.rows[0][:1] == ("tied",) and table.rows[0][1].startswith(f"{middle:.3f}")


def test_partly_tied_arms_differ_in_the_untied_rows(trained):
    own = trained.sel(arm="tied+untie-rows=mask", table_step=20)
    apart = (own["input_table"] != own["output_table"]).any(["seed", "dim"])
    assert apart["symbol"].values[apart].tolist() == ["mask"]
    tied = trained.sel(arm="tied", table_step=20)
    np.testing.assert_array_equal(tied["input_table"], tied["output_table"])


def test_label_geometry(trained):
    kept = condense(trained)
    at = {"arm": "tied", "seed": 1}
    table = trained["output_table"].sel(at | {"table_step": 20}).astype(float)
    even, odd = table.sel(symbol="E").values, table.sel(symbol="D").values
    found = kept.sel(at | {"table": "input", "eval_step": 20})
    assert np.isnan(kept["label_cosine"].sel(at | {"table": "output", "eval_step": 20}))
    np.testing.assert_allclose(found["label_distance"], np.linalg.norm(even - odd), rtol=1e-6)
    cosine = even @ odd / np.linalg.norm(even) / np.linalg.norm(odd)
    np.testing.assert_allclose(found["label_cosine"], cosine, rtol=1e-6)
    whole = label_geometry(trained, trained["table_step"].values)
    apart = whole["label_distance"].sel(arm="tied+untie-rows=mask")
    np.testing.assert_array_equal(apart.sel(table="input"), apart.sel(table="output"))
    row = next(row for row in equivalence_table(trained).rows if row[0] == "E-D")
    assert row[1:4] == ("1.000", "0.000", "–") and len(row) == 4 + 1 + 1 + 2


def test_cosines_of_pairs_stand_beside_their_distances(trained):
    kept = condense(trained)
    at = {"arm": "tied+untie-rows=mask", "seed": 2}
    for table, pair in (("input", "X-Y"), ("output", "A-B")):
        rows = trained[f"{table}_table"].sel(at | {"table_step": 20}).astype(float)
        first, second = (rows.sel(symbol=symbol).values for symbol in pair.split("-"))
        expected = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
        found = kept["pair_cosine"].sel(at | {"table": table, "pair": pair, "eval_step": 20})
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert decay_table(kept).rows == decay_table(trained).rows
    (place,) = (i for i, name in enumerate(decay_table(kept).header) if name == "cosine")
    tied = kept["pair_cosine"].sel(arm="tied", pair="X-Y", table="input", eval_step=20)
    assert decay_table(kept).rows[0][place].startswith(f"{float(tied.median()):.3f}")
    assert "cosine" not in decay_table(kept.drop_vars("pair_cosine")).header


def test_committed_parts_join_by_seed(trained, tmp_path):
    """Join runs of `--seeds 0-1` and `--seeds 2-2` as `python -m jaxtie.report RUN` does."""
    parts = [condense(trained.sel(seed=seeds)) for seeds in ([0, 1], [2])]
    for part, name in zip(parts, "ab", strict=True):
        write_committed(part, tmp_path / f"{name}.nc")
    kept = [xr.load_dataset(tmp_path / f"{name}.nc", engine="h5netcdf") for name in "ab"]
    together = join_seeds(*kept)
    assert together["seed"].values.tolist() == [0, 1, 2]
    whole = condense(trained)
    for name in ("label_cosine", "mask_logit", "train_loss"):
        values = together[name].transpose(*whole[name].dims)
        np.testing.assert_allclose(values, whole[name], rtol=1e-4, atol=1e-3)


def test_seeds_join_results_with_fewer_variables(trained):
    older = condense(trained.sel(seed=[0, 1])).drop_vars(["label_distance", "label_cosine"])
    together = join_seeds(older, condense(trained.sel(seed=[2])))
    assert together["seed"].values.tolist() == [0, 1, 2] and "label_cosine" not in together


def test_norm_turn_and_projection_of_the_masks_rows(trained):
    """By hand; the norm and the projection are the two factors of the mask's logit."""
    kept = condense(trained)
    at = {"arm": "tied+untie-rows=mask", "seed": 1}
    for table in ("input", "output"):
        rows = trained[f"{table}_table"].sel(at | {"symbol": "mask"}).astype(float).values
        found = kept.sel(at | {"table": table})
        norms = np.linalg.norm(rows, axis=-1)
        np.testing.assert_allclose(found["mask_norm"], norms, rtol=1e-6)
        cosines = (rows[1:] * rows[:-1]).sum(axis=-1) / norms[1:] / norms[:-1]
        turns = np.degrees(np.arccos(cosines))
        assert np.isnan(found["mask_turn"][0]) and np.all(turns > 0.01)
        np.testing.assert_allclose(found["mask_turn"][1:], turns, rtol=1e-3)
    own = kept.sel(at)
    product = own["mask_norm"].sel(table="output") * own["mask_projection"]
    np.testing.assert_allclose(product, trained["mask_logit"].sel(at), rtol=1e-6)
    missing = kept["mask_projection"].isnull().all(["seed", "eval_step"])
    assert missing["arm"].values[missing].tolist() == ["tied+targets-only"]


def test_leaving_the_plateau_for_good(plateau_results):
    """Seed 0 returns once, seed 1 is back at the last step, seed 2 never returns."""
    loss = plateau_results["train_loss"]
    loss.loc[{"arm": "untied", "seed": 0, "eval_step": 70}] = 2.0
    loss.loc[{"arm": "untied", "seed": 1, "eval_step": 100}] = 2.0
    first, last = (
        analysis.exit_times(plateau_results, analysis.LEFT, for_good=for_good)["untied"]
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
    left_at = rng.choice([30, 40, 60, 80, 100, np.inf], 12)
    norms = rng.integers(0, 5, (12, 11)).astype(float)
    censored = np.isinf(left_at)
    times = Times(np.where(censored, 100, left_at), censored)
    found = exit_concordance(steps, times, norms, horizon)
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
    claim = Claim("The shorter leave next.", "exit concordance", "untied", low=0.5)
    np.testing.assert_allclose(claim_values(results, claim), 1)
    longer = results.assign(mask_norm=-results["mask_norm"])
    np.testing.assert_allclose(claim_values(longer, claim), 0)
    results["diverged_at"].loc[{"arm": "untied", "seed": 5}] = 20_000
    assert np.isnan(claim_values(results, claim).values).tolist() == [False] * 5 + [True]
