"""Language models of text from the command line to figures, on a made-up corpus: what comes out, and that it survives."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from commands import ended, start, start_two, until

from jaxtie import figures, report, run, summary, sweep, text_figures, text_summary, text_training
from jaxtie.config import Corpus, TextExperiment, UserError
from jaxtie.data import text
from jaxtie.processes import GONE
from jaxtie.results import TEXT_CONSTANTS, TEXT_VARIABLES, RunFolder

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
WORDS = "the cat saw a dog and this dog ran off with some very old bread under one tall tree near my house".split()
CHEAP = "--xla_backend_optimization_level=0"
FLAGS = f"--xla_force_host_platform_device_count=2 {CHEAP}"  # as tests have it
SIZES = "layers=1, heads=2, width=16, feedforward=16"
TINY = """import dataclasses, runpy
from jaxtie import Optimiser, Transformer
full = runpy.run_path({path!r})["experiment"]
experiment = dataclasses.replace(
    full, model=Transformer({sizes}), batch=16, length=16, buckets=(8, 16), words=10, steps=40, record_every=10,
    eval_every=20, arms={arms}, optimiser=Optimiser(learning_rate=1e-2), seeds=(3,),
)
"""


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory) -> Path:
    """A folder with a corpus and cheap variants of the experiments; prepared text is kept below it."""
    place = tmp_path_factory.mktemp("place")
    rng = np.random.default_rng(7)
    sentence = lambda: " ".join(rng.choice(WORDS, rng.integers(3, 12))).capitalize() + "."
    paragraphs = ["\n".join(sentence() for _ in range(3)) for _ in range(150)]
    (place / "corpus").mkdir()
    (place / "corpus" / "a.txt").write_text("\n\n".join(paragraphs))
    for name, arms in (("text_mlm", ("tied", "untied@20")), ("text_clm", ("tied", "untied"))):
        source = TINY.format(path=str(EXPERIMENTS / f"{name}.py"), sizes=SIZES, arms=arms)
        (place / f"{name}.py").write_text(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        patch.setattr(text_training, "COMPILER", sweep.ONCE)  # compiling takes most of the time
        yield place


def command(place: Path, *options: str, name: str = "text_mlm") -> list[str]:
    return [str(place / f"{name}.py"), "--text", str(place / "corpus"), "--vocab-size", "120", "--quiet", *options]


def finished_run(place: Path, folder: Path, *options: str, name: str = "text_mlm") -> Path:
    assert run.main([*command(place, *options, name=name), "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def masked(place, tmp_path_factory) -> Path:
    return finished_run(place, tmp_path_factory.mktemp("masked") / "run")


def results(folder: Path) -> xr.Dataset:
    return RunFolder(folder).load().drop_attrs()


def test_a_masked_model_from_files_to_figures(masked, capsys):
    found = RunFolder(masked).load()
    assert set(found.data_vars) == {*TEXT_VARIABLES, *TEXT_CONSTANTS, "diverged_at"}
    assert all(np.isfinite(found[name]).all() for name in TEXT_VARIABLES)
    assert found["loss"].dims == ("arm", "seed", "step") and found.sizes["step"] == 5 and found.sizes["eval_step"] == 3
    assert (found["first_word"] + "*" == found["second_word"]).sel(kind="duplicate").all()
    different = found.sel(kind="random")
    assert (different["first_word"] != different["second_word"]).all()
    tied, untied = found.sel(arm="tied"), found.sel(arm="untied@20")
    np.testing.assert_array_equal(tied["input_distance"], tied["output_distance"])
    np.testing.assert_array_equal(untied["output_distance"].sel(eval_step=20), tied["output_distance"].sel(eval_step=20))
    assert (untied["output_distance"] != untied["input_distance"]).sel(eval_step=40).any()
    assert (found["valid_loss"].sel(eval_step=40) < found["valid_loss"].sel(eval_step=0)).all()
    config = json.loads((masked / "config.json").read_text())
    times = config["arms"]["untied@20"]
    assert config["finished"] and times["tokens"] > 40 * 16 * 4 and times["tokens_per_second"] > 0
    assert times["parameters"] == found.attrs["parameters_untied"] > found.attrs["parameters_tied"]
    assert config["text"]["report"]["files"] == 1
    names = ("overview", "accuracy", "loss", "distances_tied", "distances_untied@20_input", "distances_untied@20_output")
    for name in names:
        assert (masked / "figures" / f"{name}.png").stat().st_size > 10_000 and (masked / "figures" / f"{name}.pdf").exists()
    told = (masked / "summary.md").read_text(encoding="utf-8")
    assert "untied@20 − tied" in told and "a star marks a duplicate" in told
    assert (
        "| tied, word–duplicate | " in told and "| untied@20 output, random pairs | " in told and "A claim holds if" in told
    )


def text_results(duplicate: dict[str, float], loss: dict[str, float], seeds: int = 5) -> xr.Dataset:
    """Results of a made-up run: change of word-duplicate distances in the tables of an arm, its loss above 4 nat."""
    rng, arms, pairs = np.random.default_rng(0), list(loss), 50
    distance = np.full((len(arms), seeds, 2, 2, pairs), 5.0)  # evaluations, kinds
    distance[:, :, 1] += 0.1 * rng.standard_normal((1, 1, 2, pairs))
    for a, arm in enumerate(arms):
        distance[a, :, 1, 0] += duplicate.get(arm, 0)
    valid_loss = np.stack([[np.full(2, 4.0 + loss[arm])] * seeds for arm in arms])
    valid_loss += 0.5 * rng.standard_normal((1, seeds, 1)) + 0.001 * rng.standard_normal((len(arms), seeds, 1))
    dims = ("arm", "seed", "eval_step")
    apart = np.where(np.array(arms)[:, None, None, None, None] == "tied", distance, distance + 0.01)
    return xr.Dataset(
        {"valid_loss": (dims, valid_loss), "diverged_at": (dims[:2], np.full((len(arms), seeds), -1))}
        | {f"{table}_distance": ((*dims, "kind", "pair"), each) for table, each in (("input", distance), ("output", apart))},
        {"arm": arms, "eval_step": [0, 40], "kind": ["duplicate", "random"]},
        {"task": "causal", "parameters_tied": 60, "parameters_untied": 100},
    )


def test_figures_leave_nothing_out():
    found = text_results({}, {f"untied@{step}": 0.0 for step in range(1, 10)})
    _, (measure, *pairs) = plt.subplots(1, 3)
    text_figures.draw_measure(measure, found, "valid_loss")
    assert len(measure.lines) == 9
    for axes, distance, top in zip(pairs, (4.9, 5.4), (5, 5.4), strict=True):
        found["input_distance"] = found["input_distance"] * 0 + distance
        text_figures.draw_distances(axes, found, "untied@1", "input", "")
        assert axes.get_ylim()[0] == 0 and top <= axes.get_ylim()[1] < 6
    plt.close()


def test_verdicts_follow_the_data():
    told = lambda *made: {row[0].split()[0]: row[1] for row in text_summary.verdict_table(text_results(*made)).rows}
    draw = {"tied": -1, "untied": -1}
    assert told(draw, {"tied": 0, "untied": 0.1}) == {"a": "holds", "tied,": "holds"}
    assert told(draw, {"tied": 0.1, "untied": 0}) == {"a": "holds", "tied,": "fails"}
    apart = {"tied": -1, "untied": 1}
    assert told(apart, {"tied": 0, "untied": 0})["a"] == "holds at tied; fails at untied input, untied output"
    assert told({}, {"tied": 0, "untied": 0, "untied@20": 0.002}) == {"a": "undecided", "tied,": "holds", "untying": "holds"}
    assert told({"tied": 1}, {"tied": 0, "untied@20": 0.1}) == {
        "a": "fails at tied; undecided at untied@20 input, untied@20 output", "untying": "fails"
    }  # fmt: skip
    assert told(draw, {"tied": 0, "untied": 0.1}, 1) == {"a": "holds", "tied,": "undecided"}


def test_what_reads_results_reads_those_of_text(masked, capsys):
    before = (masked / "figures" / "overview.png").read_bytes()
    assert figures.main([str(masked), "--csv"]) == 0
    assert (masked / "figures" / "overview.png").read_bytes() == before
    lines = (masked / "csv" / "distances.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 3 * 2 * 10 and "dog*" in "".join(lines)
    capsys.readouterr()
    assert figures.main([str(masked), "--animate"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    section = report.Section("text_mlm.py", "text-mlm")
    section.read(RunFolder(masked))
    assert len(section.tables) == 4 and "tokens a second" in section.facts
    assert {image.name for image in section.images} == {path.stem for path in (masked / "figures").glob("*.png")}


def test_a_causal_model_from_files_to_figures(place, tmp_path):
    folder = finished_run(place, tmp_path / "run", name="text_clm")
    found = RunFolder(folder).load()
    assert found["kind"].values.tolist() == ["random"] and not any("*" in token for token in found["token"].values)
    np.testing.assert_allclose(found["perplexity"], np.exp(found["valid_loss"]), rtol=1e-5)
    assert (found["perplexity"].sel(eval_step=40) < 0.7 * found["perplexity"].sel(eval_step=0)).all()
    assert (folder / "figures" / "perplexity.png").exists() and "perplexity" in (folder / "summary.md").read_text()
    first, *_, neighbours = summary.every_table(found)
    assert first.title.startswith("text-clm: step 40, one seed")
    assert len({row[0] for row in neighbours.rows}) == 8 and {row[0] for row in neighbours.rows} <= {*WORDS}


def test_the_same_seed_gives_the_same_bits_another_seed_others(place, masked, tmp_path):
    both = results(finished_run(place, tmp_path / "run", "--seeds", "3,4"))
    assert both.sel(seed=[3]).identical(results(masked))
    assert (both["loss"].sel(seed=3) != both["loss"].sel(seed=4)).all()


def test_a_longer_run_goes_on_with_the_finished_one(place, masked, tmp_path, monkeypatch):
    """By the vocabulary that it kept, also where the cache is gone: training one again gives another."""
    options = "--steps", "60", "--arms", "tied,untied@20"
    grown = tmp_path / "grown"
    shutil.copytree(masked, grown)
    once = finished_run(place, tmp_path / "once", *options)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(text, "_train_vocabulary", None)
    finished_run(place, grown, *options)
    assert results(grown).identical(results(once))


def test_a_finished_run_is_not_shown_for_another_text(place, tmp_path, capsys):
    own = tmp_path / "corpus"
    shutil.copytree(place / "corpus", own)
    again = [*command(place, "--steps", "10", "--eval-every", "10", "--arms", "tied"), "--out", str(tmp_path / "run")]
    again[again.index("--text") + 1] = str(own)
    assert run.main(again) == run.main(again) == 0
    (own / "a.txt").write_text((own / "a.txt").read_text() + "One more.")
    capsys.readouterr()
    assert run.main(again) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1) and "a text that has changed since" in error
    shutil.rmtree(own)  # what came out still came out
    assert run.main(again) == 0 and "validation loss" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_stopped_at_a_random_moment_it_ends_with_the_numbers_of_one_go(place, masked, tmp_path, number):
    rng, folder = random.Random(int(number) + os.getpid()), tmp_path / "run"
    options = [option for option in command(place, "--checkpoint-every", "1e-6") if option != "--quiet"]
    process = start(folder, *options, XLA_FLAGS=FLAGS)
    until(process, "/40 steps")
    time.sleep(rng.random() * 1.5)
    process.send_signal(number)
    status, error = ended(process)
    assert "Traceback" not in error
    assert status in (0, -signal.SIGKILL if number == signal.SIGKILL else 130), error
    if status == 130:
        assert "interrupted" in error and RunFolder(folder).load()["loss"].notnull().any()
    reached = (RunFolder(folder).config() or {})["finished"]
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # a locale that knows no sign but ASCII's
    process = start(folder, *options, XLA_FLAGS=FLAGS, **plain)
    status, error = ended(process)
    assert status == 0 and (reached or "compiling" in error), error
    assert results(folder).identical(results(masked))


@pytest.fixture(scope="module")
def small(place) -> tuple[TextExperiment, text_training.Material]:
    experiment = run.load_experiment(place / "text_mlm.py")
    corpus = Corpus((str(place / "corpus"),), vocab_size=120)
    experiment = TextExperiment(**(vars(experiment) | {"corpus": corpus}))
    return experiment, text_training.load(experiment, text.prepare(corpus))


def test_the_loss_does_not_jump_where_it_is_untied(small):
    experiment, material = small
    mesh = text_training.make_mesh(experiment.batch, jax.devices()[:1])
    tied = text_training.carry_shapes(experiment, material, tied=True)
    program = {each: text_training.compile_program(experiment, material, mesh, tied=each) for each in (True, False)}
    validation = text_training.validation_batches(experiment, material)
    *_, last = text_training.run(program[True], experiment, material, validation, 3, None, 20)
    measured = []
    for is_tied, members in ((True, last.members()), (False, text_training.untie(tied, last.members()))):
        carry = text_training.load_carry(program[is_tied].shapes, members)
        params = jax.tree.map(lambda x: text_training.place(x, program[True].whole), carry.state.params)
        measured.append(text_training.evaluate(program[is_tied], experiment, params, validation)["valid_loss"])
    assert abs(measured[0] - measured[1]) < 1e-6 * measured[0]


def test_two_devices_share_a_batch(small):
    """Every mask and every mean is that of one device."""
    experiment, material = small
    found = []
    for devices in (jax.devices()[:1], jax.devices()[:2]):
        mesh = text_training.make_mesh(experiment.batch, devices)
        assert mesh.size == len(devices)
        program = text_training.compile_program(experiment, material, mesh, tied=False)
        validation = text_training.validation_batches(experiment, material)
        moments = text_training.run(program, experiment, material, validation, 3, None, 20)
        found.append([now.records["loss"].item() for now in moments if now.records])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


def test_two_processes_give_the_losses_of_one_also_after_losing_the_second(place, tmp_path):
    """They share each batch, so every number is a sum in another order: equal but for rounding, over 100 steps."""
    own = "--steps", "100", "--arms", "untied@20", "--eval-every", "50"
    one = results(finished_run(place, tmp_path / "one", *own))
    options = [each for each in command(place, *own, "--checkpoint-every", "1e-6") if each != "--quiet"]
    both = start_two(tmp_path / "two", *options, XLA_FLAGS=CHEAP)
    until(both[0], "/100 steps")
    both[1].kill()
    began, (status, error) = time.monotonic(), ended(both[0])
    assert status == 2 and time.monotonic() - began < 30
    assert [line for line in error.splitlines() if line.startswith("jaxtie: another")] == [f"jaxtie: {GONE}"], error
    assert "Traceback" not in error and "stack trace" not in error
    ended(both[1])
    both = start_two(tmp_path / "two", *options, XLA_FLAGS=CHEAP, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert [ended(process)[0] for process in both] == [0, 0]
    two = results(tmp_path / "two")
    for name in ("loss", "valid_loss", "input_distance"):
        np.testing.assert_allclose(two[name], one[name], rtol=1e-5)


def test_a_member_that_diverges_is_frozen_and_told_of(place, tmp_path, capsys):
    source = (place / "text_mlm.py").read_text().replace("learning_rate=1e-2", "learning_rate=1e30")
    (place / "wild.py").write_text(source)
    for steps in ("40", "1"):  # the last update of all is seen by the validation loss alone
        every = "--steps", steps, "--record-every", steps.replace("40", "10"), "--eval-every", steps.replace("40", "20")
        folder = finished_run(place, tmp_path / steps, "--arms", "tied", *every, name="wild")
        found = RunFolder(folder).load()
        assert found["diverged_at"].item() == int(steps.replace("40", "10"))
        assert "seeds that diverged" in (folder / "summary.md").read_text(encoding="utf-8")


BAD = {
    "no text": ["text_mlm.py"],
    "text and a data set": ["text_mlm.py", "--text", "corpus", "--tfds", "lm1b"],
    "text that is not there": ["text_mlm.py", "--text", "nowhere"],
    "an empty folder": ["text_mlm.py", "--text", "empty"],
    "a data set that is no name": ["text_mlm.py", "--tfds", "a b"],
    "a field without a data set": ["text_mlm.py", "--text", "corpus", "--tfds-field", "body"],
    "a vocabulary that is not there": ["text_mlm.py", "--text", "corpus", "--vocab", "nowhere"],
    "a vocabulary of none": ["text_mlm.py", "--text", "corpus", "--vocab-size", "0"],
    "a vocabulary too small": ["text_mlm.py", "--text", "corpus", "--vocab-size", "99"],
    "too little text": ["text_mlm.py", "--text", "short.txt"],
    "fewer words than asked": ["wordy.py", "--text", "corpus", "--vocab-size", "120"],
    "rows that fill no batch": ["broad.py", "--text", "corpus", "--vocab-size", "120"],
    "zeros": ["text_mlm.py", "--text", "corpus", "--zeros", "0.2,0.8"],
    "a sweep": ["text_mlm.py", "--text", "corpus", "--sweep", "eps=1e-8"],
    "text for what reads none": ["--text", "corpus"],
    "a vocabulary for what reads none": ["--vocab-size", "200"],
    "steps between records": ["text_mlm.py", "--text", "corpus", "--steps", "15"],
    "an unknown task": ["untasked.py", "--text", "corpus"],
}


@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line(place, monkeypatch, capsys, arguments):
    monkeypatch.chdir(place)
    source = (place / "text_mlm.py").read_text()
    changed = {"wordy": ("words=10", "words=100"), "broad": ("batch=16", "batch=4096"), "untasked": ("words=10", "task='x'")}
    for name, change in changed.items():
        (place / f"{name}.py").write_text(source.replace(*change))
    (place / "short.txt").write_text("One.\n\nTwo.")
    (place / "empty").mkdir(exist_ok=True)
    assert run.main([*arguments, "--quiet", "--out", "new"]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1) and error.startswith("jaxtie: ")
    assert not (place / "new").exists()


def test_other_text_is_not_trained_on_in_the_same_folder(place, masked, tmp_path, capsys):
    """The files have the same names; what is in them differs."""
    config = json.loads((masked / "config.json").read_text())
    config["text"]["key"] = "another"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(config | {"finished": False}))
    assert run.main([*command(place), "--out", str(tmp_path / "run")]) == 2
    assert "holds a run on a text that has changed since" in capsys.readouterr().err


def test_a_dry_run_says_what_it_takes(place, tmp_path, capsys):
    assert run.main([*command(place), "--dry-run", "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "members   2: 1 seeds x tied, untied@20, 40 steps" in out and "tokens/s" in out and "MiB on each device" in out
    assert not (tmp_path / "run").exists()


def test_all_leaves_text_out_unless_some_is_given(place, tmp_path, monkeypatch, capsys):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "text.py").write_text((place / "text_mlm.py").read_text())
    monkeypatch.chdir(tmp_path)
    assert run.main(["--all", "--quiet"]) == 0
    out, error = capsys.readouterr()
    assert "skipped, no text given" in out and "needs a text" in error
    options = ["--text", str(place / "corpus"), "--vocab-size", "120", "--seeds", "64", "--scale", "0.5"]
    assert run.main(["--all", "--quiet", *options]) == 0
    assert RunFolder(tmp_path / "runs" / "text-mlm").load().sizes["seed"] == 1


def test_experiments_that_cannot_be_meant():
    wrong = {"task": "other"}, {"words": 2}, {"length": 3}, {"buckets": (1,)}, {"data_seed": -1}, {"deviation": 0}
    for each in wrong:
        with pytest.raises(UserError):
            TextExperiment(**each)
