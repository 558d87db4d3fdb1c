"""Every experiment file follows the protocol, and a cheap variant of it trains."""

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from bodies import once
from drawing import save_small

from jaxtie import LSTM, Experiment, Mixer, Optimizer, Process, Transformer
from jaxtie.config import Variant, names_of
from jaxtie.exor import config as exor
from jaxtie.exor import theory
from jaxtie.exor.task import build_contexts
from jaxtie.results import plots
from jaxtie.run.command import main, main_report
from jaxtie.run.experiment_files import load_experiment, load_experiment_and_claims
from jaxtie.training.member import make_member

FILES = {path.stem: path for path in (Path(__file__).parents[2] / "experiments").glob("*.py")}
LIKELY, FAIR, ONLY = (0.1, 0.9), (0.5, 0.5), (1.0, 0.0)
# model, zeros, ones, learning rate, steps
PROTOCOL = {
    "transformer_small": (Transformer(1, 1, 4, 4), LIKELY, FAIR, 5e-4, 150_000),
    "transformer_ndh": (Transformer(1, 1, 4, 4), ONLY, LIKELY, 5e-4, 150_000),
    "transformer_ydh": (Transformer(1, 1, 4, 4), ONLY, FAIR, 5e-4, 150_000),
    "transformer_medium": (Transformer(2, 1, 32, 32), LIKELY, FAIR, 1e-4, 300_000),
    "lstm_small": (LSTM(2, 4, 8), LIKELY, FAIR, 5e-4, 150_000),
    "lstm_medium": (LSTM(4, 32, 32), LIKELY, FAIR, 5e-4, 150_000),
    "mixer_small": (Mixer(1, 4, 4, 8), LIKELY, FAIR, 5e-4, 150_000),
    "mixer_medium": (Mixer(2, 32, 32, 32), LIKELY, FAIR, 5e-4, 300_000),
}


COSTS = "tied untied tied+bias untied+bias"
SCALED = "tied+input-gradient=5 tied+input-gradient=5+output-start"
STOPPED = "tied+input-gradient=0 tied+output-gradient=0"
OTHERS = " ".join(f"tied+input-gradient={factor}" for factor in ("2", "10", "0.5"))
# Of the conflict of norms: differences from its experiment in the main process, and the arms.
CONFLICT, HALF, EVEN = "norm_conflict", "norm_conflict_half", {"process": Process(zeros=FAIR)}
MASK, TARGETS, HELD = "tied+untie-rows=mask", "targets-only", "untied+input-norm=3"
FREED = f"tied untied {MASK} tied+gain=mask tied+input-norm=0.05 tied+minus=mask"
NORMS = {"seeds": range(8192, 9216), "record_every": 5_000, "eval_every": 5_000, "mask_logit": True}
CONFLICTS = {
    CONFLICT: (
        {},
        f"tied+{TARGETS} untied+{TARGETS} tied+{TARGETS}+gain=all untied+{TARGETS}+gain=all",
    ),
    HALF: (EVEN, ""),
    "norm_conflict_half_controls": (
        EVEN | {"seeds": range(8192, 8640)},
        f"{HELD} {HELD}+residual-only {HELD}+qkv-only {HELD}+frozen-direction"
        f" {MASK}+input-norm=3 tied+input-norm=0.05+frozen-direction tied+shared-gain=mask"
        f" tied+gain=never-targets tied+{TARGETS} tied+{TARGETS}+input-norm=3 tied+bias",
    ),
    "norm_conflict_no_decay": (
        EVEN
        | {"optimizer": Optimizer(weight_decay=0.0), "seeds": range(8192, 8704)}
        | {"steps": 290_000, "record_every": 10_000, "eval_every": 10_000},
        "tied untied untied+input-norm=0.05 untied+input-decay=0.1",
    ),
    "norm_conflict_long": (
        EVEN | {"seeds": range(8192, 8320), "steps": 290_000},
        f"tied {MASK} tied+gain=mask tied+input-norm=0.05",
    ),
    "norm_conflict_mixer": (
        EVEN | {"model": Mixer(), "seeds": range(8192, 8256)},
        f"untied {HELD}",
    ),
}
UNCLAIMED = {"skewed_zeros", *CONFLICTS} - {CONFLICT, HALF, "norm_conflict_no_decay"}
# Differences from the main experiment, and the arms.
VARIANTS = {
    "output_bias": ({}, f"{COSTS} tied+undecayed-bias"),
    "output_bias_ndh": ({"process": Process(zeros=ONLY, ones=LIKELY)}, COSTS),
    "output_bias_ydh": ({"process": Process(zeros=ONLY, ones=FAIR)}, COSTS),
    "output_bias_control": ({"process": Process(zeros_by_label=True)}, COSTS),
    "weight_decay": (
        {"sweep": {"weight_decay": (0.0, 0.001, 0.01, 0.1, 0.3)}, "eval_every": 5_000},
        "tied untied tied+bias",
    ),
    "roles": ({}, "tied tied+input-gradient=0 tied+output-gradient=0 untied"),
    "gradient_roles": (
        {"steps": 50_000, "seeds": range(64, 128), "roles": True},
        f"tied tied+output-start {SCALED} untied {STOPPED} {OTHERS}",
    ),
    **{
        f"width_{width}": ({"model": Transformer(width=width)}, "tied untied tied+bias")
        for width in (2, 3, 6, 8)
    },
    "untie_midway": ({"record_every": 100}, "tied untied untied@25000 untied@75000"),
    "untie_midway_unseen": (
        {"seeds": range(128, 1024), "record_every": 5_000, "eval_every": 5_000},
        "tied untied@25000 untied@75000 untied@100000",
    ),
    **{
        name: (NORMS | changes, f"{FREED} {arms}" if name in (CONFLICT, HALF) else arms)
        for name, (changes, arms) in CONFLICTS.items()
    },
    # evenly spaced log-odds
    "skewed_zeros": (
        {
            "sweep": {"p_X": np.round(1 / (1 + np.geomspace(1, 99, 12)), 4).tolist()},
            "seeds": range(16),
            "eval_every": 5_000,
        },
        "tied untied",
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_differ_as_named_and_have_the_claimed_arms(name):
    experiment, claims = load_experiment_and_claims(FILES[name])
    changes, arms = VARIANTS[name]
    same = {"name": name.replace("_", "-"), "claim": experiment.claim, "record_every": 1_000}
    assert experiment == Experiment(arms=tuple(arms.split()), **same | changes)
    assert bool(claims) == (name not in UNCLAIMED)
    others = {other.replace("_", "-") for other in VARIANTS}
    for claim in claims:
        for term in claim.weights:
            other, _, arm = term.rpartition(": ")
            assert arm in VARIANTS[other.replace("-", "_") or name][1].split()
        assert claim.others <= others
        assert claim.low < claim.high and (claim.low, claim.high) != (-np.inf, np.inf)
        assert all(value in dict(experiment.sweep)[at] for at, value in claim.sweep_point.items())


def test_experiments_are_those_of_the_protocol():
    others = """head_convergence tuned_heads_one_rate text_mlm text_mlm_faster text_clm
        price_of_tying duplicates_causal duplicates_masked gradient_roles_text hypothesis_known
        plateau_or_gap tying_gap_on_text norm_conflict_causal
        norm_conflict_masked tying_at_scale tying_at_scale_untied tying_at_scale_deeper
        tying_at_scale_operations tying_at_scale_between tying_at_scale_card
        tying_at_scale_equal_start tying_at_scale_one_rate
        tying_at_scale_rates tying_at_scale_rates_tied""".split()
    others += [name for name in FILES if name.startswith("never_targets")]  # test_never_targets.py
    assert FILES.keys() == {*PROTOCOL, *VARIANTS, *others}
    seeds = {"transformer_medium": range(8), "mixer_medium": range(8), "lstm_medium": range(5)}
    for name, (model, zeros, ones, learning_rate, steps) in PROTOCOL.items():
        experiment = load_experiment(FILES[name])
        expected = Experiment(
            name=name.replace("_", "-"),
            claim=experiment.claim,
            seeds=seeds.get(name, range(64)),
            process=Process(zeros=zeros, ones=ones),
            model=model,
            optimizer=Optimizer(learning_rate=learning_rate),
            steps=steps,
            eval_every=experiment.eval_every,
        )
        assert experiment == expected
        assert f"jaxtie run {name}" in FILES[name].read_text()


def test_text_is_as_published():
    masked, causal = (load_experiment(FILES[name]) for name in ("text_mlm", "text_clm"))
    optimizer = Optimizer(1e-4, eta_min=1e-5, half_period=10_000, weight_decay=0.01, eps=1e-12)
    assert (masked.model, masked.optimizer) == (Transformer(3, 4, 128, 512), optimizer)
    assert (masked.batch, masked.length, masked.words) == (128, 128, 100)
    assert (masked.init_std, masked.seeds) == (0.3, (42,))
    assert masked.steps >= 10_000 and masked.duplicates
    assert names_of(masked.arms) == ["tied", "untied"]
    faster = {
        "name": "text-mlm-faster",
        "optimizer": dataclasses.replace(optimizer, learning_rate=1e-3),
    }
    assert load_experiment(FILES["text_mlm_faster"]) == dataclasses.replace(masked, **faster)
    assert causal.objective == "causal" and not causal.duplicates
    assert names_of(causal.arms) == ["tied", "untied", f"untied@{causal.steps // 2}"]
    assert len(causal.seeds) >= 3


def test_roles_on_text_have_the_arms_of_roles_on_exor():
    path = FILES["gradient_roles_text"]
    exor, text, claims = (
        load_experiment(FILES["gradient_roles"]),
        load_experiment(path),
        load_experiment_and_claims(path)[1],
    )
    assert {*text.arms} == {*exor.arms} and text.roles
    assert (text.objective, len(text.seeds)) == ("causal", 3)
    assert claims and {arm for claim in claims for arm in claim.weights} <= {*names_of(text.arms)}


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_duplicates_hold_and_fail_in_one_run_of_all_four_arms(name):
    """Claims can be measured: their arms and probabilities are there."""
    path = FILES[f"duplicates_{name}"]
    experiment, claims = load_experiment_and_claims(path)
    assert (experiment.objective, experiment.duplicates) == (name, (0.5, 0.1))
    arms = ["tied", "tied+bias", "untied", f"untied@{experiment.steps // 2}"]
    assert (names_of(experiment.arms), len(experiment.seeds)) == (arms, 3)
    terms = [term.partition(", ") for claim in claims for term in claim.weights]
    assert {arm.split()[0] for arm, _, _ in terms} == {*arms}
    assert {pairs.rpartition(" ")[2] for _, _, pairs in terms if pairs} == {"0.5", "0.1"}
    assert all(claim.low < claim.high for claim in claims)
    assert len({claim.expression for claim in claims}) == len(claims)


@functools.cache
def training_of(experiment: Experiment) -> Callable:
    """Return a program: ten steps of one tied seed, with evaluations before and after."""
    variant = Variant(tied=True)
    member = make_member(experiment.build(variant, "cpu"))

    def train(seed, hparams):
        state, stream, before = member.start(seed, hparams)
        state, after = member.advance(state, stream, hparams, 0)
        return before, after | member.evaluate(state, hparams)

    return once(train)


@pytest.mark.parametrize("name", PROTOCOL)
def test_a_cheap_variant_trains(name):
    """One seed, ten steps, strings of five bits, one layer no wider than 4."""
    full = load_experiment(FILES[name])
    narrow = {
        field: min(size, 1 if field == "layers" else 4) for field, size in vars(full.model).items()
    }
    model, process = (
        dataclasses.replace(full.model, **narrow),
        dataclasses.replace(full.process, length=5),
    )
    short = dict.fromkeys(("steps", "record_every", "eval_every"), 10)
    cheap = dataclasses.replace(full, model=model, process=process, **short)
    own = cheap.build(Variant(tied=True), "cpu").hparams()
    before, after = training_of(cheap.program_key())(np.uint32(3), own)
    dead = [0 in probabilities for probabilities in cheap.process.pairs.values()]
    for records in (before, after):
        np.testing.assert_array_equal(np.isnan(records.pop("swap_divergence")), dead)
        assert all(np.isfinite(value).all() for value in jax.tree.leaves(records))
    assert after["diverged_at"] == -1
    assert not np.array_equal(before["input_table"], after["input_table"])
    best = theory.best_loss(build_contexts(cheap.process, ordered=False)[0].joint_CxV)
    assert best < after["train_loss"] != before["train_loss"]


@pytest.mark.slow
def test_a_wide_member_and_impossible_symbols_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(exor, "WIDE", 1)
    monkeypatch.setattr(plots, "save", save_small)
    out, options = tmp_path / "run", "--seeds 2 --steps 20 --arms tied --quiet"
    options += f" --record-every 10 --eval-every 10 --out {out}"
    assert main([str(FILES["transformer_ndh"]), *options.split()]) == 0
    files = {path.name for path in out.iterdir()}
    assert files >= {"config.json", "results.nc", "figures", "summary.md"}
    assert len(list((out / "figures").iterdir())) == 2
    assert main_report([str(out), "--pdf"]) == 0
    assert len(list((out / "figures").iterdir())) == 2 * 2
    assert json.loads((out / "config.json").read_text())["block"] == 1


def test_independent_layers_are_an_option_of_the_transformer(capsys):
    assert main([str(FILES["mixer_small"]), "--independent-layers", "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "--independent-layers: expected a transformer" in error
