"""`token_pairs.py` on texts with ground truth, by tiny models; and its refusals."""

import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import synthetic
import xarray as xr
from drawing import save_small
from equivalence import judgement, measure, models
from equivalence import trained as trained_models
from equivalence.trained import Trained, load_trained
from ground_truth import Logits, PerfectTopics, exact, topic_probabilities, write_topics
from scipy.stats import spearmanr
from token_pairs import main

from jaxtie import Experiment, Transformer
from jaxtie.config import UserError
from jaxtie.results import plots
from jaxtie.results.folder import RunFolder
from jaxtie.run.lifecycle import Session, run_in_folder
from jaxtie.text.data.config import Corpus
from jaxtie.training import row_engine
from jaxtie.training.progress import Progress
from jaxtie.training.row_engine import make_mesh

LAB = Path(__file__).parents[2] / "experiments" / "lab"
TINY = Transformer(layers=1, heads=2, width=16, feedforward=32)
PLAN = synthetic.Plan(pairs=(2, 1, 2, 2), near=1, plain=12, homograph=False)
FEW = ["--words", "8", "--contexts", "12", "--quiet"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a sampled text; prepared corpora are below it."""
    place = tmp_path_factory.mktemp("advise")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        patch.setattr(plots, "save", save_small)
        patch.setitem(models.SIZES, "small", TINY)
        # Two devices meet in every step: on a busy machine hundreds of tiny ones may wait for each
        # other for ever.
        patch.setattr(row_engine, "make_mesh", lambda batch, devices: make_mesh(batch, devices[:1]))
        synthetic.write_sampled_text(place / "text", synthetic.make_source(PLAN), 7000, 16)
        yield place


def text_options(folder: Path, *options: str) -> list[str]:
    return ["--text", str(folder / "known.txt"), "--vocab", str(folder / "vocab.txt"), *options]


def train_command(place: Path, out: Path, *options: str) -> list[str]:
    own = ["--steps", "200", "--synthetic-duplicates", "2", *FEW, "--out", str(out)]
    return text_options(place / "text", *own, *options)


@pytest.fixture(scope="module")
def trained(place):
    """The folder after the command, which has trained A and B."""
    assert main(train_command(place, place / "out")) == 0
    return place / "out"


def load(out: Path) -> xr.Dataset:
    return xr.load_dataset(out / "results.nc", engine="h5netcdf")


def error_of(capsys, *arguments: str | Path) -> str:
    assert main([*map(str, arguments)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1, shown
    return shown.err


@pytest.mark.slow
def test_results_figure_and_summary_are_written(trained):
    results = load(trained)
    assert (trained / "figures" / "plane.png").stat().st_size > 0
    assert "distributional hypothesis" in (trained / "summary.md").read_text()
    assert np.isfinite(results["semantic"]).all() and (results["contexts"] <= 24).all()
    assert set(results["reason"].values) == {"input", "output", "random"}


@pytest.mark.slow
def test_repeated_command_trains_nothing_and_gives_the_same_answer(place, trained, capsys):
    before = (trained / "A" / "config.json").stat().st_mtime_ns
    summary = (trained / "summary.md").read_text()
    assert main(train_command(place, trained, "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] in ("holds", "fails", "inconclusive")
    assert (trained / "A" / "config.json").stat().st_mtime_ns == before
    assert found["answer"][0] in summary


@pytest.mark.slow
def test_interrupted_command_resumes_to_the_same_answer(place, trained, capsys):
    """Interrupted while the first model trains: no answer is written yet."""
    out = place / "stopped"
    command, steps = train_command(place, out), itertools.count(1)

    def add(*_) -> None:
        if next(steps) == 150:  # a second signal would end it at once
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "add", add)
        assert main(command) == 130
    assert "run the same command to resume" in capsys.readouterr().err
    assert RunFolder(out / "A").config()["finished"] is False
    assert {path.name for path in out.iterdir()} == {"A"}
    assert main(command) == 0
    xr.testing.assert_identical(load(out).drop_attrs(), load(trained).drop_attrs())


@pytest.mark.slow
def test_two_runs_give_the_answer_of_the_text(trained, tmp_path, capsys):
    runs = [str(trained / "A"), "--second", str(trained / "B")]
    assert main([*runs, "--out", str(tmp_path / "runs"), *FEW]) == 0
    assert "hypothesis" in capsys.readouterr().out
    tables = [
        each[["first", "second", "semantic"]].to_dataframe()
        for each in (load(trained), load(tmp_path / "runs"))
    ]
    both = tables[0].merge(tables[1], on=["first", "second"], suffixes=("_one", "_other"))
    # of two runs the first chooses the pairs, of a text a third model
    assert 0.3 * len(tables[0]) < len(both) < len(tables[0])
    assert spearmanr(both["semantic_one"], both["semantic_other"]).statistic > 0.9


@pytest.mark.slow
def test_synthetic_duplicates_are_marked_and_near(trained):
    results = load(trained)
    duplicates = results.isel(pair=np.flatnonzero(results["planted"] > 0))
    assert duplicates["second"].values.tolist() == [
        f"{word}*" for word in duplicates["first"].values
    ]
    others = results["semantic"].values[results["random"].values.astype(bool)]
    assert (np.abs(duplicates["semantic"]) < np.median(others) / 2).all()


@pytest.mark.slow
def test_trained_models_find_the_divergences_of_a_sampled_text(place, tmp_path):
    """Duplicates, allomorphs and antonyms are recognised; pairs are ordered by exact values."""
    source = synthetic.make_source(PLAN)
    synthetic.write_sampled_text(tmp_path, source, 20_000, 16)  # enough of the rarest token
    own = ["--synthetic-duplicates", "0", "--steps", "800", "--words", "26", "--quiet"]
    assert main(text_options(tmp_path, *own, "--out", str(tmp_path / "out"))) == 0
    results = load(tmp_path / "out")
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
            is_right = relative > judgement.FAR if is_far else np.abs(relative) < judgement.NEAR
            assert is_right.all()


@pytest.mark.slow
def test_masked_models_on_a_text_of_topics(trained, tmp_path, capsys, monkeypatch):
    """They order pairs by exact values; a causal run next to a masked one is refused."""
    p_ZxW = topic_probabilities()
    text, vocabulary = map(str, write_topics(tmp_path, p_ZxW, 20_000))
    small = {"init_std": 0.3, "learning_rate": 1e-2, "batch": 64, "length": 8, "buckets": (8,)}
    monkeypatch.setitem(models.OBJECTIVES, "masked", small)
    # four words say little about a fifth
    monkeypatch.setattr(measure, "check_gain", lambda *_: None)
    out, few = tmp_path / "out", ["--words", "20", "--contexts", "24", "--quiet"]
    command = ["--text", text, "--vocab", vocabulary, "--steps", "600", "--masked", *few]
    command += ["--synthetic-duplicates", "4", "--out", str(out), "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert any("by constants alone" in line for line in found["answer"])
    results = load(out)
    planted_P = results["planted"].values > 0
    measured, chooser = (load_trained(out / name, lambda line: None) for name in ("A", "C"))
    expected = exact_of_topics(measured, chooser, p_ZxW)
    np.testing.assert_array_equal(expected["token"], results["token"])
    for sense in judgement.SENSES:
        measured_P, exact_P = results[sense].values, expected[sense].values
        assert np.abs(exact_P[planted_P]).max() < 1e-6 < np.median(exact_P[~planted_P])
        assert np.abs(measured_P[planted_P]).max() < np.median(measured_P[~planted_P]) / 2
        assert spearmanr(exact_P[~planted_P], measured_P[~planted_P]).statistic > 0.6
    runs = [out / "A", "--second", trained / "B"]
    assert "of one kind" in error_of(capsys, *runs, *few, "--out", tmp_path / "answer")


def exact_of_topics(trained: Trained, chooser: Trained, p_ZxW: np.ndarray) -> xr.Dataset:
    """Measure the pairs that a model chose with two perfect models, at more places."""
    words, planted = trained.corpus.vocabulary, trained.corpus.planted
    p_ZxV = np.zeros((len(p_ZxW), len(words)))
    p_ZxV[:, [words.index(synthetic.word_of(word)) for word in range(p_ZxW.shape[1])]] = p_ZxW
    p_ZxV[:, planted.duplicates_K] = p_ZxV[:, planted.words_K] * planted.probability_K
    p_ZxV[:, planted.words_K] *= 1 - planted.probability_K
    perfect = trained._replace(model=PerfectTopics(Logits(), p_ZxV))
    return measure.measure_text(perfect, perfect, chooser, 20, 96, lambda line: None).pairs


def train(out: Path, steps: int, folder: Path, **changes) -> list[str | Path]:
    """Train A and B without the command; return the arguments that name them."""
    vocabulary = str(folder / "vocab.txt")
    corpus = Corpus(paths=(str(folder / "known.txt"),), vocab=vocabulary, vocab_size=4096)
    for name, each in zip("AB", models.declare_models(corpus, steps=steps, duplicates=2)):
        session = Session("", quiet=True, draws=False)
        run_in_folder(dataclasses.replace(each, **changes), RunFolder(out / name), session)
    return [out / "A", "--second", out / "B"]


@pytest.fixture(scope="module")
def others(place, trained):
    """A run without a step, and one on the same text with another vocabulary."""
    shutil.copytree(
        trained / "A", place / "untrained", ignore=shutil.ignore_patterns("checkpoints")
    )
    train(place / "other", 100, place / "text", planted=1)
    return place


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "options", "word"),
    [
        ("untrained", "out/B", [], "untrained"),
        ("out/A", None, [], "two are needed"),
        ("out/A", "out/A", [], "another model"),
        ("out/A", "other/B", [], "vocabulary"),
        ("out/A", "out/B", ["--words", "100000"], "--words 100000"),
        ("nowhere", "out/B", [], "no run"),
        ("text", "out/B", [], "no run"),
    ],
)
def test_unsuitable_runs_are_refused(others, tmp_path, capsys, first, second, options, word):
    runs = [others / first, *(["--second", others / second] if second else [])]
    assert word in error_of(capsys, *runs, *FEW, "--out", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_tied_runs_are_evaluated(place, tmp_path, capsys):
    runs = train(place / "both_tied", 200, place / "text", arms=("tied",))
    assert main([*map(str, runs), *FEW, "--out", str(tmp_path / "out")]) == 0
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
        (["--words", "0", "--text", "x"], "positive"),
        (["--size", "huge", "--text", "x"], "--size"),
        (["--text", "exact.txt", "--text-field", "y"], "--text-field y: exact.txt: text files"),
        (["--text", "exact.py"], "exact.py: is no text by its name"),
        (["--text", "pipe"], "--text: pipe: is a pipe, a device or a socket"),
        (["pipe", "--second", "x"], "pipe: is a pipe, a device or a socket"),
        (["--text", "nowhere", "--out", "run"], "--out run: holds a run"),
        (
            ["exact.py", "--vocab-size", "9"],
            "--vocab-size: no option of exact.py, whose answer is exact",
        ),
        (["exact.py", "--second", "x"], "--second: no option of exact.py"),
        (
            ["x", "--second", "y", "--synthetic-duplicates", "3"],
            "--synthetic-duplicates: no option of two runs",
        ),
    ],
)
def test_invalid_combinations_of_options_are_refused(
    arguments, word, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("exact.py").write_text("from jaxtie import Experiment\nexperiment = Experiment()")
    Path("exact.txt").write_text("One. Two.")
    os.mkfifo("pipe")
    Path("run").mkdir()
    config = {"experiment": Experiment().as_dict(), "finished": True}
    RunFolder(Path("run")).write_config(config)
    assert word in error_of(capsys, *arguments)
    assert not (tmp_path / "runs").exists()


def test_too_many_tokens_are_refused_before_anything_is_trained(place, tmp_path, capsys):
    command = train_command(place, tmp_path / "out", "--words", "5000")
    assert "--words 5000" in error_of(capsys, *command)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rows", "tokens", "objective", "steps"),
    [
        (10_000, 250_000, "causal", 600),  # 122 steps are an epoch
        (50_000, 1_310_000, "causal", 3_200),
        (10**6, 10**8, "causal", 4_000),
        (100, 2_000, "causal", 100),
        (12_800, 10**8, "masked", 500),
    ],
)
def test_a_short_text_is_read_five_times_unless_asked(rows, tokens, objective, steps):
    assert models.default_steps(rows, tokens, objective) == steps


@pytest.mark.parametrize(
    ("on_training", "words"),
    [(3.0, "overfits: its loss is 3.000 on the training text, 9.200 on"), (6.2, "train it longer")],
)
def test_an_overfitted_model_and_an_undertrained_one_get_different_advice(
    monkeypatch, on_training, words
):
    monkeypatch.setattr(trained_models, "unigram_loss", lambda *_: 6.24)
    monkeypatch.setattr(trained_models, "batches_of", lambda *_, **__: [])
    monkeypatch.setattr(trained_models, "mean_loss", lambda *_: on_training)
    model = SimpleNamespace(
        folder="A", corpus=SimpleNamespace(text=SimpleNamespace(train=None, valid=None))
    )
    trained_models.check_gain(model, 5.9, 1)
    with pytest.raises(UserError, match=words):
        trained_models.check_gain(model, 9.2, 1)


@pytest.mark.slow
def test_models_that_know_frequencies_only_are_refused(place, tmp_path, capsys):
    """The words of the text are independent, so there is nothing else to know."""
    rng = np.random.default_rng(3)
    words = np.array([synthetic.word_of(token) for token in range(1, 20)])
    text = "\n\n".join(" ".join(rng.choice(words, 16)) for _ in range(2000))
    (tmp_path / "known.txt").write_text(text)
    shutil.copy(place / "text" / "vocab.txt", tmp_path)
    out = tmp_path / "out"
    options = ["--steps", "100", "--synthetic-duplicates", "0", *FEW, "--out", str(out)]
    assert "frequency only" in error_of(capsys, *text_options(tmp_path, *options))
    assert not (out / "results.nc").exists() and not (out / "summary.md").exists()


@pytest.mark.slow
def test_changed_texts_are_refused(place, tmp_path, capsys):
    moved = tmp_path / "moved"
    shutil.copytree(place / "text", moved)
    runs = train(tmp_path / "out", 100, moved)
    with (moved / "known.txt").open("a") as file:
        file.write("\n\nqab qac qad\n")
    assert "changed" in error_of(capsys, *runs, *FEW, "--out", tmp_path / "answer")
    (moved / "known.txt").unlink()
    assert "no such file" in error_of(capsys, *runs, *FEW, "--out", tmp_path / "answer")
    assert not (tmp_path / "answer").exists()


def test_command_and_report_need_no_jax():
    code = "import sys, token_pairs, equivalence.report; print('jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=LAB
    )
    assert done.stdout.strip() == "False"
