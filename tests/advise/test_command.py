"""`python -m jaxtie.advise` on a text of known truth, by tiny models; what it refuses, by a
word of its line.
"""

import dataclasses
import itertools
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from drawing import save_small
from exact_source import exact
from known_topics import LawOfTopics, Logits, law_of_topics, write_topics
from scipy.stats import spearmanr

from jaxtie import Transformer
from jaxtie.advise import estimators, judgement, measure, models, report, swaps
from jaxtie.advise.command import main_advise
from jaxtie.advise.models import load_trained
from jaxtie.results import plots
from jaxtie.results.folder import RunFolder
from jaxtie.run.lifecycle import Session, carry_out
from jaxtie.run.page import sections_left
from jaxtie.text import engine, programs
from jaxtie.text.config import Corpus
from jaxtie.text.data import synthetic
from jaxtie.text.pairs import stream_of
from jaxtie.training.progress import Progress

TINY = Transformer(layers=1, heads=2, width=16, feedforward=32)
PLAN = synthetic.Plan(pairs=(2, 1, 2, 2), near=1, plain=12, homograph=False)
FEW = ["--tokens", "8", "--contexts", "12", "--quiet"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a text of a source, and what the command leaves of it in `out`; texts are
    prepared below it.
    """
    place = tmp_path_factory.mktemp("hypothesis")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        patch.setattr(plots, "save", save_small)
        patch.setitem(models.SIZES, "small", TINY)
        # Two devices meet in every step: on a busy machine hundreds of tiny ones may wait for each
        # other for ever.
        patch.setattr(
            engine, "make_mesh", lambda batch, devices: programs.make_mesh(batch, devices[:1])
        )
        synthetic.write_known_text(place / "text", synthetic.planted(PLAN), 7000, 16)
        yield place


def text_of(place, *options: str) -> list[str]:
    text = [
        "--text",
        str(place / "text" / "known.txt"),
        "--vocab",
        str(place / "text" / "vocab.txt"),
    ]
    return [*text, "--steps", "200", "--planted", "2", *FEW, *options]


@pytest.fixture(scope="module")
def asked(place):
    """The folder after the command, which has trained A and B."""
    out = place / "out"
    assert main_advise(text_of(place, "--out", str(out))) == 0
    return out


def error_of(capsys, *arguments: str) -> str:
    assert main_advise([*map(str, arguments)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1, shown
    return shown.err


@pytest.mark.slow
def test_a_text_is_asked_and_what_is_left_is_whole(asked, capsys):
    results = xr.load_dataset(asked / "results.nc", engine="h5netcdf")
    assert (asked / "figures" / "plane.png").stat().st_size > 0
    (section,) = sections_left(asked.parent)
    assert "distributional hypothesis" in section.claim and [
        image.name for image in section.images
    ] == ["plane"]
    summary = (asked / "summary.md").read_text()
    assert "distributional hypothesis" in summary
    assert np.isfinite(results["semantic"]).all() and (results["contexts"] <= 24).all()
    assert set(results["reason"].values) == {"input", "output", "random"}


@pytest.mark.slow
def test_the_same_command_trains_nothing_and_says_the_same(place, asked, capsys):
    before = (asked / "A" / "config.json").stat().st_mtime_ns
    summary = (asked / "summary.md").read_text()
    assert main_advise(text_of(place, "--out", str(asked), "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] in ("holds", "fails", "inconclusive")
    assert (asked / "A" / "config.json").stat().st_mtime_ns == before
    assert found["answer"][0] in summary


@pytest.mark.slow
def test_interrupted_it_goes_on_by_the_same_command(place, asked, capsys):
    """While the first model is trained: nothing of an answer is written, and in the end the answer
    is the same.
    """
    out = place / "stopped"
    command, steps = text_of(place, "--out", str(out)), itertools.count(1)

    def add(*_) -> None:
        if next(steps) == 150:  # a second signal would end it at once
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "add", add)
        assert main_advise(command) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert RunFolder(out / "A").config()["finished"] is False
    assert {path.name for path in out.iterdir()} == {"A"}
    assert main_advise(command) == 0
    once, stopped = (
        xr.load_dataset(path / "results.nc", engine="h5netcdf").drop_attrs()
        for path in (asked, out)
    )
    xr.testing.assert_identical(stopped, once)


@pytest.mark.slow
def test_two_runs_say_what_the_text_said(asked, tmp_path, capsys):
    assert (
        main_advise(
            [str(asked / "A"), "--second", str(asked / "B"), "--out", str(tmp_path / "runs"), *FEW]
        )
        == 0
    )
    assert "hypothesis" in capsys.readouterr().out
    one, other = (
        xr.load_dataset(path / "results.nc", engine="h5netcdf")
        for path in (asked, tmp_path / "runs")
    )
    np.testing.assert_allclose(one["semantic"], other["semantic"], rtol=1e-5, atol=1e-8)


@pytest.mark.slow
def test_planted_pairs_of_the_text_are_marked(asked):
    results = xr.load_dataset(asked / "results.nc", engine="h5netcdf")
    planted = results.isel(pair=np.flatnonzero(results["planted"] > 0))
    assert planted["second"].values.tolist() == [f"{word}*" for word in planted["first"].values]
    others = results["semantic"].values[results["random"].values.astype(bool)]
    assert (np.abs(planted["semantic"]) < np.median(others) / 2).all()


@pytest.mark.slow
def test_trained_models_find_the_known_divergences_of_a_sampled_text(place, tmp_path):
    """Duplicates, allomorphs and antonyms show as what they are; all pairs are ordered as by the
    exact values.
    """
    source = synthetic.planted(PLAN)
    written = synthetic.write_known_text(tmp_path, source, 20_000, 16)  # enough of the rarest token
    text = [
        "--text",
        str(written.text),
        "--vocab",
        str(written.vocabulary),
        "--planted",
        "0",
        "--steps",
        "800",
        "--quiet",
    ]
    assert main_advise([*text, "--tokens", "26", "--out", str(tmp_path / "out")]) == 0
    results = xr.load_dataset(tmp_path / "out" / "results.nc", engine="h5netcdf")
    numbers = {synthetic.word_of(token): token for token in range(source.token_N.max() + 1)}
    pair_Px2 = np.array(
        [[numbers[word] for word in results[side].values] for side in ("first", "second")]
    ).T
    conditional, semantic = exact(source, pair_Px2, places=17)
    exact_values = {
        "semantic": semantic.divergence,
        "conditional": conditional.divergence,
        "bias": conditional.bias,
    }
    for name, exact_P in exact_values.items():
        assert spearmanr(exact_P, results[name]).statistic > 0.85
    class_of = {
        frozenset(pair): kind for kind, pairs in source.pairs.items() for pair in pairs.tolist()
    }
    class_P = np.array([class_of.get(frozenset(pair), "") for pair in pair_Px2.tolist()])
    far = {
        "duplicate": (False, False),
        "skewed duplicate": (False, False),
        "allomorph": (False, True),
        "antonym": (True, False),
    }
    for kind, expected in far.items():
        own = results.isel(pair=class_P == kind)
        assert own.sizes["pair"] == len(source.pairs[kind])
        for sense, is_far in zip(judgement.SENSES, expected, strict=True):
            relative = own[f"{sense}_relative"]
            assert (
                (relative > judgement.FAR) if is_far else (np.abs(relative) < judgement.NEAR)
            ).all()


@pytest.mark.slow
def test_masked_models_are_asked(asked, tmp_path, capsys, monkeypatch):
    """On a text of topics, beside its law; a causal run beside a masked one is refused."""
    law_ZxW = law_of_topics()
    text, vocabulary = map(str, write_topics(tmp_path, law_ZxW, 20_000))
    small = {"init_std": 0.3, "learning_rate": 1e-2, "batch": 64, "length": 8, "buckets": (8,)}
    monkeypatch.setitem(models.TASKS_OF_TWO, "masked", small)
    # four words tell little of a fifth
    monkeypatch.setattr(report, "check_knows_more_than_frequencies", lambda *_: None)
    text = ["--text", text, "--vocab", vocabulary, "--steps", "600"]
    few, out = ["--tokens", "20", "--contexts", "24", "--quiet"], tmp_path / "out"
    assert (
        main_advise([*text, "--masked", "--planted", "4", *few, "--out", str(out), "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert any("by constants alone" in line for line in found["answer"])
    results = xr.load_dataset(out / "results.nc", engine="h5netcdf")
    planted_P = results["planted"].values > 0
    trained = load_trained(out / "A", lambda line: None)
    for sense, exact_P in zip(
        ("semantic", "conditional"), exact_of_topics(trained, law_ZxW, results)
    ):
        measured_P = results[sense].values
        assert np.abs(exact_P[planted_P]).max() < 1e-6 < np.median(exact_P[~planted_P])
        assert np.abs(measured_P[planted_P]).max() < np.median(measured_P[~planted_P]) / 2
        assert spearmanr(exact_P[~planted_P], measured_P[~planted_P]).statistic > 0.6
    assert "of one kind" in error_of(
        capsys, out / "A", "--second", asked / "B", *few, "--out", tmp_path / "answer"
    )


def exact_of_topics(trained, law_ZxW: np.ndarray, results: xr.Dataset) -> np.ndarray:
    """S² and C² of measured pairs, (2, P), with the law in the place of both models, at contexts of
    its own choice.
    """
    words, planted, special = (
        trained.material.vocabulary,
        trained.material.planted,
        trained.material.text.special,
    )
    law_ZxV, rng = np.zeros((len(law_ZxW), len(words))), np.random.default_rng(0)
    law_ZxV[:, [words.index(synthetic.word_of(word)) for word in range(law_ZxW.shape[1])]] = law_ZxW
    law_ZxV[:, planted.duplicates_K] = law_ZxV[:, planted.words_K] * planted.probability_K
    law_ZxV[:, planted.words_K] *= 1 - planted.probability_K
    model, pairs = LawOfTopics(Logits(), law_ZxV), results["token"].values.tolist()
    stream = stream_of(trained.material.text.valid, special.sep)
    places = swaps.places_in_rows(stream, len(words))
    windows = {
        token: swaps.masked_windows(stream, rng.permutation(places[token])[:24], special, rng)
        for token in np.unique(pairs).tolist()
    }
    others = {token: [*{sum(pair) - token for pair in pairs if token in pair}] for token in windows}
    swap = swaps.make_masked_swap((model, model), special.mask)
    found = {
        (one, other): each for one, other, each in swaps.swap_all(swap, ({}, {}), windows, others)
    }
    sums = [measure.sums_of_pair(found, windows, *pair, is_masked=True) for pair in pairs]
    semantic = [estimators.semantic(each.semantic).divergence for each in sums]
    return np.array(
        [semantic, [estimators.conditional(each.conditional).divergence for each in sums]]
    )


@pytest.fixture(scope="module")
def others(place, asked):
    """A run that has never made a step, one on the same text with another vocabulary."""
    a, _ = models.two_models(corpus(place), steps=100, planted=2)
    shutil.copytree(asked / "A", place / "untrained", ignore=shutil.ignore_patterns("checkpoints"))
    other = dataclasses.replace(a, planted=1)
    carry_out(other, RunFolder(place / "other"), Session("", quiet=True, draws=False))
    return place


def corpus(place) -> Corpus:
    return Corpus(
        paths=(str(place / "text" / "known.txt"),),
        vocab=str(place / "text" / "vocab.txt"),
        vocab_size=4096,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "options", "word"),
    [
        ("untrained", "out/B", [], "untrained"),
        ("out/A", None, [], "two are needed"),
        ("out/A", "out/A", [], "another model"),
        ("out/A", "other", [], "vocabulary"),
        ("out/A", "out/B", ["--tokens", "100000"], "--tokens 100000"),
        ("nowhere", "out/B", [], "no run"),
        ("text", "out/B", [], "no run"),
    ],
)
def test_runs_that_cannot_be_asked_are_refused(
    others, tmp_path, capsys, first, second, options, word
):
    """One line that names it, and nothing is written."""
    runs = [others / first, *(["--second", others / second] if second else [])]
    assert word in error_of(capsys, *runs, *FEW, "--out", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_tied_runs_are_asked_too(place, asked, tmp_path, capsys):
    a, b = (
        dataclasses.replace(each, arms=("tied",))
        for each in models.two_models(corpus(place), steps=200, planted=2)
    )
    for name, each in (("A", a), ("B", b)):
        carry_out(each, RunFolder(place / "both_tied" / name), Session("", quiet=True, draws=False))
    runs = [str(place / "both_tied" / "A"), "--second", str(place / "both_tied" / "B")]
    assert main_advise([*runs, *FEW, "--out", str(tmp_path / "out")]) == 0
    assert "distributional hypothesis" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "expected a text"),
        (["--second", "x"], "--second"),
        (["x", "--second", "y", "--masked"], "--masked"),
        (["a.py", "--text", "b"], "without --text"),
        (["nowhere.py"], "nowhere.py"),
        (["--text", "nowhere"], "no such file"),
        (["--tokens", "0", "--text", "x"], "positive"),
        (["--size", "huge", "--text", "x"], "--size"),
        (["--text", "x", "--tfds-field", "y"], "--tfds-field: expected with --tfds only"),
        (
            ["exact.py", "--vocab-size", "9"],
            "--vocab-size: no option of exact.py, whose answer is exact",
        ),
        (["exact.py", "--second", "x"], "--second: no option of exact.py"),
        (["x", "--second", "y", "--planted", "3"], "--planted: no option of two runs"),
    ],
)
def test_options_that_cannot_be_meant_are_named(arguments, word, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("exact.py").write_text("from jaxtie import Experiment\nexperiment = Experiment()")
    assert word in error_of(capsys, *arguments)
    assert not (tmp_path / "runs").exists()


def test_more_tokens_than_there_are_are_refused_before_anything_is_trained(place, tmp_path, capsys):
    assert "--tokens 5000" in error_of(
        capsys, *text_of(place, "--tokens", "5000", "--out", str(tmp_path / "out"))
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_model_that_knows_frequencies_only_is_refused(place, tmp_path, capsys):
    """After 100 steps of a text that has nothing but frequencies there is nothing else to be
    known.
    """
    rng = np.random.default_rng(3)
    words = np.array([synthetic.word_of(token) for token in range(1, 20)])
    text = "\n\n".join(" ".join(rng.choice(words, 16)) for _ in range(2000))
    (tmp_path / "noise.txt").write_text(text)
    options = [
        "--text",
        tmp_path / "noise.txt",
        "--vocab",
        place / "text" / "vocab.txt",
        "--steps",
        "100",
        "--planted",
        "0",
    ]
    assert "frequency only" in error_of(capsys, *options, *FEW, "--out", tmp_path / "out")
    assert (
        not (tmp_path / "out" / "results.nc").exists()
        and not (tmp_path / "out" / "summary.md").exists()
    )


@pytest.mark.slow
def test_a_text_that_has_changed_since_is_refused(place, asked, tmp_path, capsys):
    moved = tmp_path / "moved"
    shutil.copytree(place / "text", moved)
    a, b = models.two_models(
        Corpus(paths=(str(moved / "known.txt"),), vocab=str(moved / "vocab.txt")),
        steps=100,
        planted=2,
    )
    for name, each in (("A", a), ("B", b)):
        carry_out(each, RunFolder(tmp_path / "out" / name), Session("", quiet=True, draws=False))
    with (moved / "known.txt").open("a") as file:
        file.write("\n\nqab qac qad\n")
    runs = [tmp_path / "out" / "A", "--second", tmp_path / "out" / "B"]
    assert "changed" in error_of(capsys, *runs, *FEW, "--out", tmp_path / "answer")
    (moved / "known.txt").unlink()
    assert "no such file" in error_of(capsys, *runs, *FEW, "--out", tmp_path / "answer")
    assert not (tmp_path / "answer").exists()
