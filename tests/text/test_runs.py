"""Language models of text from the command line to figures, and through kills and bad input."""

import json
import os
import random
import shlex
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from commands import SOON, ended, recorded, start, start_two, until_recorded
from corpora import WORDS
from drawing import save_small
from text_fixtures import command, finished_run
from wrapped import COMPILED_QUICKLY, SAVED_SLOWLY, WITHOUT_FIGURES, after

from jaxtie.results import plots
from jaxtie.results.analysis import conclude
from jaxtie.results.folder import RunFolder
from jaxtie.run import command as cli
from jaxtie.run import lifecycle
from jaxtie.text.analysis import TEXT_VARIABLES
from jaxtie.text.data import tokens
from jaxtie.text.pairs import PREDICTED
from jaxtie.text.tables import text_tables
from jaxtie.training.distributed import PEER_LOST

# as the tests compile, so that programs are found where these left them
WRAPPED = (COMPILED_QUICKLY, WITHOUT_FIGURES)
PREFIX = after(*WRAPPED)
DRAW = lifecycle.draw
CONSTANTS = (
    "first_word second_word token scheduled_learning_rate parameters"
    " decay_factor duplicate_probability unigram_loss bigram_loss kneser_ney_loss"
).split()
FIGURES = "answer overview"


@pytest.fixture(scope="module")
def masked(place, tmp_path_factory) -> Path:
    """A finished run, with all its figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "save", save_small)
        return finished_run(place, tmp_path_factory.mktemp("masked") / "run")


@pytest.fixture(autouse=True)
def without_figures(monkeypatch):
    """They take most of the time of a short run; module fixtures have drawn theirs before."""
    monkeypatch.setattr(lifecycle, "draw", lambda *_, **__: [])


def results(folder: Path) -> xr.Dataset:
    return RunFolder(folder).load().drop_attrs()


def test_a_masked_model_from_files_to_figures(masked):
    found = RunFolder(masked).load()
    assert set(found.data_vars) == {*TEXT_VARIABLES, *PREDICTED, *CONSTANTS, "diverged_at"}
    assert all(np.isfinite(found[name]).all() for name in (*TEXT_VARIABLES, *PREDICTED))
    for name in ("unigram_loss", "bigram_loss", "kneser_ney_loss"):
        assert 2 < found[name] < np.log(found.sizes["token_number"])
    assert (found["duplicate_probability"] == 0.5).all()
    assert found["loss"].dims == ("arm", "seed", "step")
    assert (found.sizes["step"], found.sizes["eval_step"]) == (5, 3)
    assert (found["first_word"] + "*" == found["second_word"]).sel(kind="duplicate").all()
    different = found.sel(kind="random")
    assert (different["first_word"] != different["second_word"]).all()
    tied, untied = found.sel(arm="tied"), found.sel(arm="untied@20")
    np.testing.assert_array_equal(tied["input_distance"], tied["output_distance"])
    output, shared = (own["output_distance"].sel(eval_step=20) for own in (untied, tied))
    np.testing.assert_array_equal(output, shared)
    assert (untied["output_distance"] != untied["input_distance"]).sel(eval_step=40).any()
    assert (found["valid_loss"].sel(eval_step=40) < found["valid_loss"].sel(eval_step=0)).all()
    config = json.loads((masked / "config.json").read_text())
    times = config["arms"]["untied@20"]
    assert config["finished"] and times["tokens"] > 40 * 16 * 4 and times["tokens_per_second"] > 0
    counts = found["parameters"]
    assert times["parameters"] == counts.sel(arm="untied@20") > counts.sel(arm="tied")
    assert config["text"]["report"]["files"] == 1
    for name in ("answer", "overview"):
        assert (masked / "figures" / f"{name}.png").stat().st_size > 2_000
    summary = (masked / "summary.md").read_text(encoding="utf-8")
    for expected in ("untied@20 − tied", "| tied | word–duplicate | "):
        assert expected in summary


def test_figures_and_report_of_a_finished_run(masked, monkeypatch):
    monkeypatch.setattr(lifecycle, "draw", DRAW)
    monkeypatch.setattr(plots, "save", save_small)
    before = (masked / "figures" / "overview.png").read_bytes()
    assert cli.main_report([str(masked), "--pdf"]) == 0
    assert (masked / "figures" / "overview.png").read_bytes() == before
    assert {path.stem for path in (masked / "figures").glob("*.pdf")} == {*FIGURES.split()}
    page = (masked / "report.html").read_text(encoding="utf-8")
    assert "tokens a second" in page and page.count("<img") == 2


@pytest.mark.slow
def test_a_sweep_over_learning_rate_and_vocabulary(place, tmp_path):
    """A run per point; the halves of the validation batches choose and report."""
    sweep = "--sweep learning_rate=1e-3,1e-2 --sweep vocab_size=280,300".split()
    folder = finished_run(place, tmp_path / "run", *sweep, name="text_clm")
    results = lifecycle.load(folder)
    dims = ("arm", "learning_rate", "vocab_size", "seed", "eval_step")
    assert results["valid_loss"].dims == dims and np.isfinite(results["valid_loss"]).all()
    one = results.sel(vocab_size=300)
    (best,) = (line for line in conclude(one).lines() if "own best point" in line)
    assert "chosen on one half of the data, reported on the other (validation loss, nats)" in best
    assert best.count(" at learning_rate = 0.01") == one.sizes["arm"]
    point = lifecycle.load(folder / "points" / "learning_rate=0.01,vocab_size=300")
    own = one.sel(learning_rate=0.01)
    np.testing.assert_array_equal(own["valid_loss"].values, point["valid_loss"].values)
    assert "token" in point


def test_a_causal_model_from_files_to_figures(place, tmp_path, monkeypatch):
    monkeypatch.setattr(lifecycle, "draw", DRAW)
    monkeypatch.setattr(plots, "save", save_small)
    folder = finished_run(place, tmp_path / "run", "--arms", "tied", name="text_clm")
    found = RunFolder(folder).load()
    assert found["kind"].values.tolist() == ["random"]
    perplexity = found["perplexity"]
    np.testing.assert_allclose(perplexity, np.exp(found["valid_loss"]), rtol=1e-5)
    assert (perplexity.sel(eval_step=40) < 0.7 * perplexity.sel(eval_step=0)).all()
    assert "perplexity" in (folder / "summary.md").read_text()
    (first,) = text_tables(found)
    assert first.title.startswith("text-clm: step 40, one seed")
    assert "bits per byte" in (folder / "summary.md").read_text()
    text = RunFolder(folder).config()["text"]["report"]
    predicted = text["tokens"]["valid"] + text["rows"]["valid"]
    bits = found["valid_loss"] / np.log(2) * predicted / text["bytes"]["valid"]
    np.testing.assert_allclose(found["bits_per_byte"], bits, rtol=1e-6)
    assert (folder / "tokenizer.json").exists() and not (folder / "vocab.txt").exists()


def test_the_same_seed_gives_the_same_bits_another_seed_others(place, masked, tmp_path):
    both = results(finished_run(place, tmp_path / "run", "--seeds", "3,4"))
    assert both.sel(seed=[3]).identical(results(masked))
    assert (both["loss"].sel(seed=3) != both["loss"].sel(seed=4)).all()


def test_a_longer_run_goes_on_with_the_finished_one(place, masked, tmp_path, monkeypatch):
    """With its own vocabulary, even without the cache: another version may train another one."""
    folder = shutil.copytree(masked, tmp_path / "grown")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tokens, "train_vocabulary", None)
    grown, short = results(finished_run(place, folder, "--steps", "60")), results(masked)
    up_to_40 = {"step": slice(40), "eval_step": slice(40)}
    assert grown.sel(up_to_40).identical(short)
    loss = grown["valid_loss"]
    assert (loss.sel(eval_step=60) < loss.sel(eval_step=40)).all()


def test_a_finished_run_is_not_shown_for_another_text(place, tmp_path, capsys):
    own = tmp_path / "corpus"
    shutil.copytree(place / "corpus", own)
    again = command(place, *"--steps 10 --eval-every 10 --arms tied --out".split())
    again += [str(tmp_path / "run")]
    again[again.index("--text") + 1] = str(own)
    assert cli.main(again) == cli.main(again) == 0
    (own / "a.txt").write_text((own / "a.txt").read_text() + "One more.")
    capsys.readouterr()
    assert cli.main(again) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1) and "a text that has changed since" in error
    shutil.rmtree(own)  # the results still hold
    assert cli.main(again) == 0 and "validation loss" in capsys.readouterr().out


@pytest.mark.slow
def test_killed_then_interrupted_at_random_moments_it_ends_with_the_numbers_of_one_go(
    place, masked, tmp_path
):
    """Each step takes as long as a slow checkpoint, so signals come before all 10 records."""
    rng, folder = random.Random(os.getpid()), tmp_path / "run"
    options = command(place, "--checkpoint-every", "1e-6")
    options.remove("--quiet")
    slowly = {"prefix": after(SAVED_SLOWLY, *WRAPPED), "JAX_NUM_CPU_DEVICES": "2"}
    # the second comes once the run has gone on: the first may have left more than it waited for
    for number, more in ((signal.SIGKILL, rng.randint(2, 4)), (signal.SIGINT, 1)):
        target = recorded(folder) + more
        process = start(folder, *options, **slowly)
        until_recorded(process, folder, target)
        process.send_signal(number)
        status, error = ended(process)
        assert status == (-signal.SIGKILL if number == signal.SIGKILL else 130), error
        assert "compiling" in error and "Traceback" not in error
        assert RunFolder(folder).config()["finished"] is False
    assert "interrupted" in error
    loss = RunFolder(folder).load()["loss"]
    assert loss.notnull().any() and loss.isnull().any()
    # a locale that knows ASCII alone
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    process = start(folder, *options, prefix=PREFIX, JAX_NUM_CPU_DEVICES="2", **plain)
    status, error = ended(process)
    assert status == 0 and "compiling" in error, error
    assert results(folder).identical(results(masked))


@pytest.mark.slow
def test_two_processes_give_the_losses_of_one_also_after_losing_the_second(place, tmp_path):
    """They share each batch, so sums come in another order: equal but for rounding."""
    own = "--steps", "100", "--arms", "untied@20", "--eval-every", "50"
    one = results(finished_run(place, tmp_path / "one", *own))
    options = command(place, *own, "--checkpoint-every", "1e-6")
    both = start_two(tmp_path / "two", *options, prefix=PREFIX)
    until_recorded(both[0], tmp_path / "two", 4)
    both[1].kill()
    began, (status, error) = time.monotonic(), ended(both[0])
    ended(both[1])
    assert status == 2 and time.monotonic() - began < SOON, error
    lines = [line for line in error.splitlines() if line.startswith("jaxtie: another")]
    assert lines == [f"jaxtie: {PEER_LOST}"], error
    assert "Traceback" not in error and "stack trace" not in error
    assert RunFolder(tmp_path / "two").config()["finished"] is False
    own_cache = str(tmp_path / "cache")
    both = start_two(tmp_path / "two", *options, prefix=PREFIX, XDG_CACHE_HOME=own_cache)
    assert [ended(process)[0] for process in both] == [0, 0]
    two = results(tmp_path / "two")
    for name in ("loss", "valid_loss", "input_distance"):
        np.testing.assert_allclose(two[name], one[name], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "record_every", "eval_every"),
    # the last update of all is seen by the validation loss alone
    [("40", "10", "20"), ("1", "1", "1")],
)
def test_a_member_that_diverges_is_frozen_and_reported(
    place, tmp_path, capsys, steps, record_every, eval_every
):
    """Extended, it stays so, and its missing records are not taken for lost ones."""
    source = (place / "text_mlm.py").read_text().replace("learning_rate=1e-2", "learning_rate=1e30")
    (place / "wild.py").write_text(source)
    every = ["--steps", steps, "--record-every", record_every, "--eval-every", eval_every]
    folder = finished_run(place, tmp_path / "run", "--arms", "tied", *every, name="wild")
    assert RunFolder(folder).load()["diverged_at"].item() == int(record_every)
    assert "seeds that diverged" in (folder / "summary.md").read_text(encoding="utf-8")
    finished_run(place, folder, "--arms", "tied", *every, "--steps", "80", name="wild")
    assert "from the start" not in capsys.readouterr().err
    assert RunFolder(folder).load()["diverged_at"].item() == int(record_every)


CHANGED = {  # name of a file -> what differs from `text_mlm.py`
    "wordy": ("words=10", "words=100"),
    "broad": ("batch=16", "batch=4096"),
    "certain": ("words=10", "words=10, duplicates=(0.5, 1.0)"),
    "parted": ("words=10", "words=10, corpus=Corpus(documents_to_split=1)"),
}
ON_CORPUS = "text_mlm.py --text corpus"
BAD = [  # the command line, and words of the one line of error
    ("text_mlm.py", "needs a text"),
    ("text_mlm.py --text nowhere", "nowhere: no such file"),
    (f"{ON_CORPUS} --text-field body", "--text-field body: corpus/a.txt: text files have no"),
    (f"{ON_CORPUS} --vocab-size 0", "--vocab-size"),
    (f"{ON_CORPUS} --vocab plain.txt", "--vocab plain.txt: cannot tokenise an unknown word"),
    ("wordy.py --text corpus --vocab-size 120", "100 are needed"),
    ("broad.py --text corpus --vocab-size 120", "do not fill one batch"),
    ("certain.py --text corpus", "certain.py:4: duplicates = (0.5, 1.0): expected"),
    ("parted.py --text corpus", "1 different documents are too little for three splits"),
    (f"{ON_CORPUS} --zeros 0.2,0.8", "--zeros: not an option"),
    (f"{ON_CORPUS} --sweep p_X=0.1", "p_X: no number of the experiment; expected one of"),
    ("--text corpus", "--text: not an option"),
    ("--vocab-size 200", "--vocab-size: not an option"),
    (f"{ON_CORPUS} --steps 15", "steps = 15"),
]


@pytest.mark.parametrize(("arguments", "word"), BAD)
def test_bad_input_is_one_line_that_names_it(place, monkeypatch, capsys, arguments, word):
    monkeypatch.chdir(place)
    source = (place / "text_mlm.py").read_text()
    for name, change in CHANGED.items():
        (place / f"{name}.py").write_text(source.replace(*change))
    (place / "plain.txt").write_text("\n".join(WORDS))
    assert cli.main([*shlex.split(arguments), "--quiet", "--out", "new"]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1) and error.startswith("jaxtie: ") and word in error
    assert not (place / "new").exists()


def test_other_text_is_not_trained_on_in_the_same_folder(place, masked, tmp_path, capsys):
    """The files have the same names and other contents."""
    config = RunFolder(masked).config()
    config["text"]["key"] = "another"
    (tmp_path / "run").mkdir()
    RunFolder(tmp_path / "run").write_config(config | {"finished": False})
    assert cli.main([*command(place), "--out", str(tmp_path / "run")]) == 2
    assert "holds a run on a text that has changed since" in capsys.readouterr().err


def test_a_flipped_bit_of_the_prepared_text_is_reported(place, masked, tmp_path, capsys):
    key = RunFolder(masked).config()["text"]["key"]
    (path,) = (place / "cache").rglob(f"{key}/train.tokens")
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1, *whole[1:]]))
    line = [each for each in command(place, "--dry-run") if each != "--quiet"]
    assert cli.main([*line, "--out", str(tmp_path / "run")]) == 0
    error = capsys.readouterr().err
    assert f"{path.parent} cannot be used (damaged: train.tokens); preparing it again" in error
    assert path.read_bytes() == whole


@pytest.mark.slow
def test_each_text_has_its_own_folder(place, tmp_path, monkeypatch, capsys):
    """Also texts of the same name, and one whose documents are other ones."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "other"):
        shutil.copytree(place / "corpus", name + "/books")
    short = "--steps 10 --eval-every 10 --record-every 10 --arms tied --vocab-size 120 --quiet"
    for name in ("one/books", "other/books", "one/books/", "other/books --document line"):
        arguments = shlex.split(f"{place / 'text_mlm.py'} --text {name} {short}")
        assert cli.main(arguments) == 0, capsys.readouterr().err
    found = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert len(found) == 3 and all(name.startswith("text-mlm-books-") for name in found)


def test_a_dry_run_estimates_time_and_memory(place, tmp_path, capsys):
    assert cli.main([*command(place), "--dry-run", "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    members = "members   2: 1 seeds x tied, untied@20, 40 steps"
    assert all(each in out for each in (members, "tokens/s", "MiB on the devices", "2 programs"))
    assert not (tmp_path / "run").exists()
