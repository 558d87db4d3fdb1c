"""Runs: the files that they write; resuming, extending, refusing and overwriting."""

import contextlib
import io
import json
import os
import shutil
import signal
import tempfile
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from drawing import save_small

import jaxtie
from jaxtie import Experiment
from jaxtie.config import UserError
from jaxtie.results import plots
from jaxtie.results.folder import RUN_FORMAT, RunFolder
from jaxtie.run import command, lifecycle
from jaxtie.training.block_engine import compile_block
from jaxtie.training.devices import start_jax
from jaxtie.training.progress import Progress

OFTEN = ["--record-every", "10", "--eval-every", "20"]
TINY = ["--seeds", "3", "--steps", "40", *OFTEN]
DECLARATION = """from jaxtie import Experiment
from jaxtie.exor.claims import ExorClaim
experiment = Experiment(name="transformer-small", arms=("tied", "untied", "untied@20"), steps=40,
                        record_every=10, eval_every=20)
claims = (
    ExorClaim("There is a loss.", "loss", "tied", low=-99),
    ExorClaim("There is none.", "loss", "tied", high=-99, opposite=True),
    ExorClaim("Untying midway costs.", "loss", {"untied@20": 1, "untied": -1}, low=0),
    ExorClaim("It is as elsewhere.", "loss", {"tied": 1, "elsewhere: tied": -1}, -1e-6, 1e-6),
    ExorClaim("It is nearer.", "nearness by CKA", "tied", low=0),
)
"""


@pytest.fixture
def without_figures(monkeypatch):
    """Save time: figures, summary and report take most of a short run."""
    monkeypatch.setattr(lifecycle, "_show", lambda *_: None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, SimpleNamespace]:
    folder, out, error = tmp_path_factory.mktemp("runs") / "tiny", io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        status = command.main([*TINY, "--out", str(folder)])
    return folder, SimpleNamespace(status=status, out=out.getvalue(), error=error.getvalue())


def files(folder: Path) -> dict[Path, int]:
    """Return the files of a folder and when each was last written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def results(folder: Path) -> xr.Dataset:
    """Return the results of a run without attributes, which hold the last command."""
    return lifecycle.load(folder).drop_attrs()


def test_one_command_leaves_results_figures_and_summary(finished):
    folder, done = finished
    assert done.status == 0, done.error
    config = json.loads((folder / "config.json").read_text())
    assert (config["format"], config["finished"]) == (RUN_FORMAT, True)
    assert config["arms"]["untied"]["seed_steps"] == 120
    assert config["experiment"]["task"] == "exor"
    assert config["experiment"]["arms"] == ["tied", "untied"]
    found = lifecycle.load(folder)
    assert {"arm": 2, "seed": 3, "step": 5, "eval_step": 3}.items() <= dict(found.sizes).items()
    for name in ("loss", "train_loss", "input_distance", "output_table", "log_odds"):
        assert np.isfinite(found[name]).all(), name
    tied = found.sel(arm="tied")
    np.testing.assert_array_equal(tied["input_distance"], tied["output_distance"])
    drawn = {path.name: path.stat().st_size for path in (folder / "figures").iterdir()}
    assert {*drawn} == {"answer.png", "overview.png"}
    assert min(drawn.values()) > 5_000
    summary = (folder / "summary.md").read_text()
    assert "2.197" in summary and "decay-adjusted distance" in summary
    page = (folder / "report.html").read_text()
    assert len(done.out.splitlines()) <= 20
    for text in (summary, done.out, page):
        assert "Too short to conclude" in text and "on the first plateau" in text
    assert f"Report: {folder / 'report.html'}" in done.out
    assert not (folder / "records").exists()
    assert "seed-steps/s" in done.error and "best 0.508" in done.error


def test_a_finished_run_is_shown_and_not_run_again(finished, capsys):
    folder, _ = finished
    before = files(folder)
    assert command.main([*TINY, "--out", str(folder)]) == 0
    assert f"Report: {folder / 'report.html'}" in capsys.readouterr().out
    assert command.main([*TINY, "--json", "--out", str(folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["experiment"] == "transformer-small" and found["folder"] == str(folder)
    assert found["conclusion"][0].startswith("Too short to conclude")
    (claim,) = found["claims"]  # of the file that declares the main experiment
    assert claim["verdict"] == "inconclusive" and claim["claim"].startswith("Tied, the distance")
    assert [row[0] for row in found["table"]["rows"]] == ["tied", "untied"]
    assert files(folder) == before


def test_figures_are_made_again_from_the_results(finished, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(finished[0], tmp_path / "run")
    shutil.rmtree(folder / "figures")
    monkeypatch.setattr(plots, "save", save_small)
    assert command.main_report([str(folder), "--pdf"]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    names = "answer.png overview.png report.html"
    assert [path.name for path in written] == names.split()
    assert all(path.stat().st_size > 500 for path in written)
    pdf = {path.stem for path in (folder / "figures").glob("*.pdf")}
    assert pdf == {"answer", "overview"}


def test_a_run_ends_with_the_verdicts_that_it_can_give(finished, tmp_path, monkeypatch, capsys):
    """No verdict without an arm, a variable or the other run; a finished one next to it is read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(DECLARATION)
    line = "mine.py --arms tied,untied --seeds 3 --quiet --out runs/small".split()
    shutil.copytree(finished[0], "runs/small")
    assert command.main(line) == 0
    shown = capsys.readouterr().out
    assert (
        "Claims of transformer-small, with verdicts on a run that differs from it in arms, seeds"
        " (holds: 1, fails: 1, no data yet: 3), all in runs/small/claims.md:\n"
        "- holds: There is a loss. +"
    ) in shown
    missing = "- no data yet: 3 claims about arms, records or other runs that are not in "
    assert f"{missing}runs/small or next to it\n" in shown
    assert command.main([*line, "--json"]) == 0
    first, second, _, other, _ = json.loads(capsys.readouterr().out)["claims"]
    assert second["claim"] == "There is none. (Our hypothesis is the opposite.)"
    assert first["verdict"] == "holds" and first["claim"] == "There is a loss."
    assert first["holds_if"] == "> -99" and first["found"].startswith("+")
    assert other["verdict"] == "no data yet"
    shutil.copytree("runs/small", "runs/elsewhere")
    (tmp_path / "experiments").mkdir()
    declared = "from jaxtie import Experiment\nexperiment = Experiment(steps=3_000)\n"
    (tmp_path / "experiments/elsewhere.py").write_text(declared)
    assert command.main(line) == 0
    shown = capsys.readouterr().out
    assert "a run that differs from it in arms, elsewhere: " in shown
    assert ", elsewhere: steps, seeds (" in shown
    assert "- holds: It is as elsewhere. +0.000 [+0.000, +0.000], 3 seeds, holds if -1e-06" in shown
    written = (tmp_path / "runs/small/claims.md").read_text()
    assert written.count("**holds**") == 2 and written.count("**no data yet**") == 2
    page = (tmp_path / "runs/small/report.html").read_text()
    assert page.count('<th scope="row">holds</th>') == 2 and "It is as elsewhere." in page


def test_a_run_of_another_format_is_refused_in_one_line_and_left_alone(finished, tmp_path, capsys):
    folder = shutil.copytree(finished[0], tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"format": RUN_FORMAT + 1}))
    before = files(folder)
    for main, arguments in (
        (command.main_report, [str(folder)]),
        (command.main, [*TINY, "--out", str(folder)]),
    ):
        status, (out, error) = main(arguments), capsys.readouterr()
        assert (status, out, error.count("\n")) == (2, "", 1)
        assert (
            f"format = {RUN_FORMAT + 1}: expected {RUN_FORMAT}" in error and "--overwrite" in error
        )
    with pytest.raises(UserError, match="another version of jaxtie"):
        jaxtie.load(folder)
    assert files(folder) == before


@pytest.fixture
def stopped_at(monkeypatch, without_figures):
    """Return a function that runs a command, interrupted at a step of an arm."""
    add = Progress.add

    def start(step: int, arm: str, arguments: list[str]) -> int:
        def stop(progress: Progress, *chunk, **named) -> None:
            add(progress, *chunk, **named)
            updates = progress.before + progress.updates
            if progress.arm == arm and updates >= step * progress.members:
                os.kill(os.getpid(), signal.SIGINT)

        with monkeypatch.context() as patch:
            patch.setattr(Progress, "add", stop)
            return command.main(arguments)

    return start


def test_an_interrupted_run_keeps_its_records_and_the_same_command_goes_on(
    finished, tmp_path, stopped_at, capsys
):
    folder = tmp_path / "run"
    assert stopped_at(10, "untied", [*TINY, "--out", str(folder)]) == 130
    out, error = capsys.readouterr()
    assert out == "" and "Traceback" not in error
    assert f"interrupted; run the same command to resume; so far: {folder / 'results.nc'}" in error
    loss = results(folder)["loss"]
    assert np.isfinite(loss.sel(arm="tied")).all()
    assert np.isfinite(loss.sel(arm="untied", step=10)).all()
    assert loss.sel(arm="untied", step=40).isnull().all()
    assert json.loads((folder / "config.json").read_text())["finished"] is False
    assert command.main([*TINY, "--out", str(folder)]) == 0
    error = capsys.readouterr().err
    resumed = "jaxtie: resuming, of all steps done: tied 100%, untied 25%\n"
    assert error.startswith(f"{resumed}untied: compiling\n")
    assert "\ntied: " not in error  # that arm was finished
    assert results(folder).identical(results(finished[0]))


def test_an_interrupted_call_goes_on(finished, tmp_path, without_figures, monkeypatch, capsys):
    for name in ("temporary", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path / "here")
    experiment = Experiment(steps=40, record_every=10, eval_every=20)
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "add", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt, match="the same call goes on from mine"):
            jaxtie.run(experiment, out="mine", seeds=3)
        with pytest.raises(KeyboardInterrupt, match="without out=FOLDER nothing is kept"):
            jaxtie.run(experiment, seeds=3)
    assert not list((tmp_path / "temporary").glob("jaxtie-*")) and os.listdir() == ["mine"]
    assert RunFolder(Path("mine")).config()["finished"] is False
    again = jaxtie.run(experiment, out="mine", seeds=3)
    assert again.drop_attrs().identical(results(finished[0]))
    error = capsys.readouterr().err
    assert "tied: compiling" in error and "40/40 steps" in error


def test_a_run_that_is_interrupted_before_its_first_record_goes_on(
    finished, tmp_path, monkeypatch, without_figures, capsys
):
    start_records = RunFolder.start_records

    def stop(folder: RunFolder, *arguments) -> None:
        start_records(folder, *arguments)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "start_records", stop)
        assert command.main([*TINY, "--overwrite", "--out", str(tmp_path / "run")]) == 130
    assert results(tmp_path / "run")["loss"].isnull().all()
    hint = "interrupted; run the same command without --overwrite to resume"
    assert hint in capsys.readouterr().err
    assert command.main([*TINY, "--out", str(tmp_path / "run")]) == 0
    assert results(tmp_path / "run").identical(results(finished[0]))


# Several blocks, which grow.
@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "more"), [("5", "7")])
@pytest.mark.usefixtures("compiled_as_users_do", "without_figures")
def test_a_sweep_takes_more_seeds_and_its_members_are_those_alone(tmp_path, seeds, more):
    short = ["--arms", "untied", *OFTEN, "--steps", "40", "--quiet"]
    sweep = ["--sweep", "p_X=0.1,0.5", "--sweep", "weight_decay=0,0.1,0.3"]
    for name, count in (("once", more), ("grown", seeds), ("grown", more)):
        own = ["--seeds", count, "--out", str(tmp_path / name)]
        assert command.main([*short, *sweep, *own]) == 0
    once, grown = (results(tmp_path / name) for name in ("once", "grown"))
    assert once["loss"].dims == ("arm", "p_X", "weight_decay", "seed", "step")
    assert np.isfinite(once["loss"]).all()
    assert once.identical(grown)
    last = int(more) - 1
    at = ["--sweep", "p_X=0.5", "--sweep", "weight_decay=0.3", "--seeds", f"{last}-{last}"]
    assert command.main([*short, *at, "--out", str(tmp_path / "one")]) == 0
    assert results(tmp_path / "one").identical(once.sel(p_X=[0.5], weight_decay=[0.3], seed=[last]))


def test_dry_run_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command.main([*TINY, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "members   6: 3 seeds x tied, untied, 40 steps" in out
    assert "2 programs are compiled" in out
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_another_process_finishes_during_preparation_is_not_touched(
    finished, tmp_path, monkeypatch, without_figures, capsys
):
    """Its records are gone, its results are there."""
    folder, prepare = tmp_path / "run", Experiment.prepare

    def finish(*arguments):
        if not folder.exists():
            shutil.copytree(finished[0], folder)
        return prepare(*arguments)

    monkeypatch.setattr(Experiment, "prepare", finish)
    assert command.main([*TINY, "--out", str(folder)]) == 2
    assert "another run has just written there" in capsys.readouterr().err
    assert results(folder).identical(results(finished[0]))
    assert command.main([*TINY, "--out", str(folder)]) == 0


def test_probabilities_may_be_lists():
    process = jaxtie.Process(zeros=[0.1, 0.9], ones=[0.5, 0.5])
    assert process == jaxtie.Process() and hash(process) == hash(jaxtie.Process())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"), [("jax_threefry_partitionable", False), ("jax_default_prng_impl", "rbg")]
)
@pytest.mark.usefixtures("without_figures")
def test_random_numbers_do_not_depend_on_the_environment(finished, tmp_path, name, value):
    """JAX reads these from JAX_THREEFRY_PARTITIONABLE, ..., and a run may be resumed elsewhere."""
    before = getattr(jax.config, name)
    compile_block.cache_clear()
    try:
        jax.config.update(name, value)
        assert command.main([*TINY, "--quiet", "--out", str(tmp_path / "run")]) == 0
    finally:
        jax.config.update(name, before)
        compile_block.cache_clear()
    assert results(tmp_path / "run").identical(results(finished[0]))


def test_64_bits_are_refused_in_one_line():
    with jax.enable_x64(True), pytest.raises(UserError, match="JAX_ENABLE_X64 is set"):
        start_jax()


def test_a_command_with_bytes_that_are_not_utf_8_can_be_written():
    line = command.command_line(
        "jaxtie.run", [b"exp/\xe9.py".decode(errors="surrogateescape"), "--text", "Bücher"]
    )
    assert line.encode() and line == r"jaxtie run 'exp/\udce9.py' --text 'Bücher'"


def test_overwriting_starts_anew(finished, tmp_path, without_figures):
    folder = shutil.copytree(finished[0], tmp_path / "run")
    changed = [*TINY, "--zeros", "0.2,0.8", "--quiet", "--overwrite", "--out", str(folder)]
    assert command.main(changed) == 0
    config = json.loads((folder / "config.json").read_text())
    assert config["experiment"]["process"]["zeros"] == [0.2, 0.8]
    assert config["arms"]["tied"]["seed_steps"] == 120
    assert not results(folder).equals(results(finished[0]))
    assert not (folder / "figures").exists()  # the earlier run's
