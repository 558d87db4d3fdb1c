"""Claims over several experiments, and the experiments of the softmax over targets only."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from made_up import PROCESSES, stuck_results

from jaxtie import Experiment
from jaxtie.config import UserError
from jaxtie.exor import analysis
from jaxtie.exor.claims import Claim
from jaxtie.results.claims import claim_values, judge_claims
from jaxtie.run.experiment_files import load_claims, load_experiment

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FILES = {path.stem: path for path in EXPERIMENTS.glob("never_targets*.py")}
SEEDS = {  # of the experiments on EXor; the others are of text
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


def test_claims_over_experiments_pair_by_seed():
    """Contrasts use the seeds that all experiments have, and report their number."""
    published = stuck_results("p", {"tied": [*range(20)], "untied": [0, 1]})
    own = stuck_results(
        "o", {"tied+targets-only": [39], "untied+targets-only": []}, range(220, 260)
    )
    runs = {"p": published, "o": own}
    weights = {"p: tied": 1, "p: untied": -1, "tied+targets-only": -1, "untied+targets-only": 1}
    claim = Claim("They are freed.", "stuck share", weights, high=0)
    values = claim_values(own, claim, runs)
    assert values["seed"].values.tolist() == list(range(220, 240))
    np.testing.assert_array_equal(values, np.zeros(20))  # stuck ones are 200 to 219 there, 259 here
    most = Claim("Most.", "stuck share", {"p: tied": 0.25, "p: untied": -0.25}, low=0)
    (_, judgement), *_ = judge_claims([most], own, runs)
    assert judgement.decisive.seeds == 40 and judgement.decisive.found.endswith(", 40 seeds")
    expected = [0.0] * 2 + [0.25] * 18 + [0.0] * 20
    assert (
        judgement.decisive.middle == pytest.approx(np.mean(expected))
        and judgement.verdict == "holds"
    )
    assert judge_claims([most], own, {"o": own}) == []
    with pytest.raises(UserError, match=r"p: no arm tied\+bias, which a claim is about"):
        claim_values(own, dataclasses.replace(most, arms={"p: tied+bias": 1}), runs)


def test_experiment_files_declare_the_claimed_arms():
    """Every claimed arm exists, and only published experiments use seeds 64 to 127."""
    declared = [load_experiment(path) for path in FILES.values()]
    experiments = {own.name: own for own in declared if isinstance(own, Experiment)}
    published = [load_experiment(path) for path in EXPERIMENTS.glob("output_bias*.py")]
    every = experiments | {own.name: own for own in published}
    claims = load_claims(FILES["never_targets"])
    assert len(claims) == 22
    for claim in claims:
        for key, weight in claim.weights.items():
            name, _, arm = key.partition(": ")
            assert weight and arm in [each.name for each in every[name].arms]
            assert every[name].steps == 150_000
        assert sum(claim.weights.values()) == pytest.approx(0)
        assert claim.quantity in ("loss", "stuck share") and claim.low < claim.high
    assert {name: len(own.seeds) for name, own in experiments.items()} == SEEDS
    assert not any({*range(64, 128)} & {*own.seeds} for own in experiments.values())
    for name in ("half", "ndh", "ydh", "control"):
        assert experiments[f"never-targets-{name}"].process == PROCESSES[name]
    assert experiments["never-targets-half-rows"].process == PROCESSES["half"]
    for place in analysis.PROCESS_RUNS.values():
        assert {*place} - {""} <= every.keys()
