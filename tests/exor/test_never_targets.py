"""Never-targets on EXor: plateaus, claims over several experiments, tables, figures, the mask."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from made_up import exor_results

from jaxtie import Experiment, Process, run
from jaxtie.config import UserError
from jaxtie.exor import data, never_targets, plateau, theory
from jaxtie.exor.claims import Claim
from jaxtie.exor.committed import condense
from jaxtie.exor.data import ROW_SETS
from jaxtie.exor.pairs import label_geometry
from jaxtie.exor.tables import equivalence_table
from jaxtie.options import parse_seeds
from jaxtie.results.claims import claimed, claims_table, judge_claims
from jaxtie.results.committed import joined_seeds, write_kept
from jaxtie.run.lifecycle import load_claims, load_experiment

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FILES = {path.stem: path for path in EXPERIMENTS.glob("never_targets*.py")}
PROCESSES = {
    "main": Process(),
    "half": Process(zeros=(0.5, 0.5)),
    "ndh": Process(zeros=(1.0, 0.0), ones=(0.1, 0.9)),
    "ydh": Process(zeros=(1.0, 0.0)),
    "control": Process(zeros_by_label=True),
}


def entropy_by_hand(own: Process, *, by_label: bool) -> float:
    """H(target), or H(target | label), of the training strings, place by place."""
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
def test_plateaus_of_every_process(name):
    """By enumeration; the level in use is that of who sees the label and no bit."""
    own = PROCESSES[name]
    bits = data.split(7, False, 14).train
    law = data.enumerate_contexts(
        bits, own.zeros, own.ones, ordered=False, zeros_by_label=own.zeros_by_label
    )
    joint_CxV, labels = law.joint_CxV, ROW_SETS["labels"]
    without = theory.loss_without_context(joint_CxV)
    of_label = theory.loss_of_label_alone(law.tokens_CxL, joint_CxV, labels)
    assert without == pytest.approx(entropy_by_hand(own, by_label=False), abs=1e-12)
    assert of_label == pytest.approx(entropy_by_hand(own, by_label=True), abs=1e-12)
    results = xr.Dataset(
        {"best_loss": ("split", [theory.best_loss(joint_CxV)])}, {"split": ["train"]}
    )
    level = plateau.escape_levels(results)[plateau.LEFT]
    assert level == pytest.approx(of_label - plateau.SOLVED, abs=1e-3)
    assert theory.best_loss(joint_CxV) + math.log(2) == pytest.approx(of_label, abs=2e-4)
    assert without - of_label == pytest.approx(0.1855 if name == "control" else 0, abs=2e-4)


def planted(name: str, stuck: dict[str, list[int]], seeds=range(200, 240)) -> xr.Dataset:
    """Seeds of each arm that are stuck at the end, by their places; others are near the best."""
    made = exor_results(*stuck, seeds=len(seeds)).assign_coords(seed=list(seeds))
    best = float(made["best_loss"].sel(split="train"))
    made["train_loss"][:] = best + math.log(2)
    for arm, places in stuck.items():
        left = [seed for place, seed in enumerate(seeds) if place not in places]
        made["train_loss"].loc[{"arm": arm, "seed": left, "eval_step": 100}] = best + 0.1
    return made.assign_attrs(experiment=name)


def test_shares_of_seeds_that_are_stuck():
    made = planted("a", {"tied": [0, 1, 2], "untied": [5]})
    np.testing.assert_array_equal(plateau.is_stuck(made).mean("seed"), [3 / 40, 1 / 40])
    shares = plateau.stuck_shares(made)
    np.testing.assert_array_equal(shares.sel(arm="tied"), [1, 1, 3 / 40])
    made["train_loss"].loc[{"arm": "tied", "seed": 239}] = np.nan
    made["diverged_at"].loc[{"arm": "tied", "seed": 239}] = 20
    assert np.isnan(plateau.is_stuck(made).sel(arm="tied", seed=239))


def test_claims_over_several_experiments_pair_by_seed():
    """A contrast of shares, of the seeds that both have; the number of these is told."""
    published = planted("p", {"tied": [*range(20)], "untied": [0, 1]})
    own = planted("o", {"tied+targets-only": [39], "untied+targets-only": []}, range(220, 260))
    runs = {"p": published, "o": own}
    weights = {"p: tied": 1, "p: untied": -1, "tied+targets-only": -1, "untied+targets-only": 1}
    claim = Claim("They are freed.", "stuck share", weights, high=0)
    values = claimed(own, claim, runs)
    assert values["seed"].values.tolist() == list(range(220, 240))
    np.testing.assert_array_equal(values, np.zeros(20))  # stuck ones are 200 to 219 there, 259 here
    most = Claim("Most.", "stuck share", {"p: tied": 0.25, "p: untied": -0.25}, low=0)
    (_, (verdict, compared)), *_ = judge_claims([most], own, runs)
    assert compared.seeds == 40 and str(compared).endswith(", 40 seeds")
    expected = [0.0] * 2 + [0.25] * 18 + [0.0] * 20
    assert compared.middle == pytest.approx(np.mean(expected)) and verdict == "holds"
    assert judge_claims([most], own, {"o": own}) == []
    with pytest.raises(UserError, match=r"p: no arm tied\+bias, which a claim is about"):
        claimed(own, dataclasses.replace(most, arms={"p: tied+bias": 1}), runs)


def test_files_declare_what_the_claims_take():
    """22 claims, one multiplicity; every arm is there; 64 to 127 are no seeds but published."""
    experiments = {load_experiment(path).name: load_experiment(path) for path in FILES.values()}
    published = {
        load_experiment(path).name: load_experiment(path)
        for path in EXPERIMENTS.glob("output_bias*.py")
    }
    claims = load_claims(FILES["never_targets"])
    assert len(claims) == 22
    assert not any(load_claims(path) for stem, path in FILES.items() if stem != "never_targets")
    for claim in claims:
        for key, weight in claim.weights.items():
            name, _, arm = key.partition(": ")
            own = (experiments | published)[name]
            assert weight and arm in [each.name for each in own.arms] and own.steps == 150_000
        assert sum(claim.weights.values()) == pytest.approx(0)
        assert claim.quantity in ("loss", "stuck share") and claim.low < claim.high
    sizes = {name: len(own.seeds) for name, own in experiments.items()}
    assert sizes == {
        "never-targets": 960,
        "never-targets-ndh": 960,
        "never-targets-ydh": 960,
        "never-targets-control": 960,
        "never-targets-half": 1984,
        "never-targets-rows": 448,
        "never-targets-half-rows": 448,
        "never-targets-eps": 448,
        "never-targets-start": 192,
    }
    assert not any({*range(64, 128)} & {*own.seeds} for own in experiments.values())
    processes = {name.rpartition("-")[2]: own.process for name, own in experiments.items()}
    for name in ("half", "ndh", "ydh", "control"):
        assert processes[name] == PROCESSES[name]
    assert experiments["never-targets-half-rows"].process == PROCESSES["half"]
    for place in never_targets.PROCESS_RUNS.values():
        assert {*place} - {""} <= {*experiments, *published}


def made_runs() -> dict[str, xr.Dataset]:
    half = {
        arm: [*range(5 * i)]
        for i, arm in enumerate(("untied+targets-only", "untied", "tied+targets-only", "tied"))
    }
    own = planted("never-targets-half", half)
    own["label_cosine"] = ("table", "arm", "seed", "eval_step"), np.full((2, 4, 40, 3), 0.5)
    own = own.assign_coords(table=["input", "output"])
    return {
        "never-targets-half": own,
        "output-bias": planted("output-bias", {"tied": [0], "untied": []}),
    }


def test_tables_say_what_is_missing():
    runs = made_runs()
    rows = never_targets.stuck_table(runs, ["never-targets-half", "never-targets"]).rows
    assert rows[0][:4] == ("never-targets-half", "untied+targets-only", "100", "40")
    assert rows[0][4].startswith("0.000 [0.000, ") and rows[0][6] == "0.500 [0.500, 0.500]"
    assert rows[2][7] == "–" and rows[-1][:2] == ("never-targets", "no data yet")
    gaps = never_targets.gaps_table(runs).rows
    by_row = {row[:2]: row[2:] for row in gaps}
    assert by_row["ndh", "published"][0] == "no data yet"
    assert by_row["main with p(X) = 0.5", "published"][:4] == ("100", "40", "0.375", "0.125")
    assert by_row["main with p(X) = 0.5", "published"][5] == "0.000 ± 0.000 (25 seeds)"
    claims = load_claims(FILES["never_targets"])
    told = [row[-1] for row in claims_table("Claims", runs, {"never-targets": claims}).rows]
    assert told.count("**no data yet**") == 20 and len(told) == 22


def test_seeds_that_gave_the_idea_are_left_out():
    made = planted("output-bias", {"tied": [], "untied": []}, range(100, 140))
    assert never_targets.unseen(made)["seed"].values.tolist() == list(range(128, 140))


def test_figures_with_and_without_data(tmp_path):
    assert (
        never_targets.draw_never_targets({"output-bias": made_runs()["output-bias"]}, tmp_path)
        == []
    )
    files = never_targets.draw_never_targets(made_runs(), tmp_path)
    assert [path.name for path in files] == ["never_targets.png", "never_targets_arms.png"]
    assert all(path.stat().st_size > 10_000 for path in files)
    figure = never_targets.draw_stuck_over_steps(made_runs())
    texts = [
        text.get_text()
        for axes in figure.axes
        if axes.get_legend()
        for text in axes.get_legend().get_texts()
    ]
    assert texts == [
        f"{start}, {form}" for form in never_targets.FORMS for start in ("tied", "untied")
    ]
    missing = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert missing.count("targets only: no data yet") == 4
    assert missing.count("published: no data yet") == 3


def test_lists_of_ranges_of_seeds():
    assert parse_seeds("0-3,8-9") == (0, 1, 2, 3, 8, 9) and parse_seeds("0-1,5") == (0, 1, 5)
    for text in ("0-3,3", "0-1-2", "3-1,5", "0-3,", "-1"):
        with pytest.raises(ValueError, match="expected"):
            parse_seeds(text)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A few steps of arms of all sorts, with the mask's logit."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    arms = ("tied", "tied+targets-only", "tied+untie-rows=mask")
    experiment = Experiment(
        arms=arms, seeds=range(3), steps=20, record_every=10, eval_every=10, mask_logit=True
    )
    return run(experiment, out=folder, quiet=True)


def test_the_masks_own_logit_and_probability(trained):
    """Tied, a fresh model predicts its own input; with an own row it does not; excluded, never."""
    p = trained["mask_probability"].sel(eval_step=0).mean("seed")
    assert p.sel(arm="tied") > 2 * p.sel(arm="tied+untie-rows=mask") > 0
    assert np.all(trained["mask_probability"].sel(arm="tied+targets-only") == 0)
    assert trained["mask_logit"].sel(arm="tied", eval_step=0).mean() > 0


def test_labels_are_looked_at(trained):
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


def test_partly_tied_arms_have_two_tables_and_their_parameters(trained):
    own = trained.sel(arm="tied+untie-rows=mask", table_step=20)
    apart = (own["input_table"] != own["output_table"]).any(["seed", "dim"])
    assert apart["symbol"].values[apart].tolist() == ["mask"]
    tied = trained.sel(arm="tied", table_step=20)
    np.testing.assert_array_equal(tied["input_table"], tied["output_table"])


def test_parts_of_a_run_are_joined_by_seed(trained, tmp_path):
    """As `python -m jaxtie.report RUN` does with runs of `--seeds 0-1` and `--seeds 2-2`."""
    parts = [condense(trained.sel(seed=seeds)) for seeds in ([0, 1], [2])]
    for part, name in zip(parts, "ab", strict=True):
        write_kept(part, tmp_path / f"{name}.nc")
    kept = [xr.load_dataset(tmp_path / f"{name}.nc", engine="h5netcdf") for name in "ab"]
    together = joined_seeds(*kept)
    assert together["seed"].values.tolist() == [0, 1, 2]
    whole = condense(trained)
    for name in ("label_cosine", "mask_logit", "train_loss"):
        values = together[name].transpose(*whole[name].dims)
        np.testing.assert_allclose(values, whole[name], rtol=1e-4, atol=1e-3)


def test_seeds_join_data_of_a_version_that_kept_less(trained):
    older = condense(trained.sel(seed=[0, 1])).drop_vars(["label_distance", "label_cosine"])
    together = joined_seeds(older, condense(trained.sel(seed=[2])))
    assert together["seed"].values.tolist() == [0, 1, 2] and "label_cosine" not in together
