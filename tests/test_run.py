"""The command line, as a user meets it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import jaxtie
from jaxtie import figures, run
from jaxtie.cli import parse_seeds
from jaxtie.results import CONSTANTS, VARIABLES, RunFolder

OFTEN = ["--record-every", "20", "--eval-every", "100"]
TINY = ["--seeds", "3", "--steps", "200", *OFTEN]


def command(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=300, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return folder, command("jaxtie.run", *TINY, "--out", str(folder))


def test_one_command_leaves_results_figures_and_summary(finished):
    folder, done = finished
    assert done.returncode == 0, done.stderr
    config = json.loads((folder / "config.json").read_text())
    assert config["finished"] is True
    assert config["arms"]["untied"]["seed_steps"] == 600
    results = RunFolder(folder).load()
    assert dict(results.sizes) | {"arm": 2, "seed": 3, "step": 11, "eval_step": 3} == dict(results.sizes)
    for name in ("loss", "train_loss", "input_distance", "output_table", "log_odds"):
        assert np.isfinite(results[name]).all(), name
    tied = results.sel(arm="tied")
    np.testing.assert_array_equal(tied["input_distance"], tied["output_distance"])
    names = ("accuracy", "distances_tied", "distances_untied_input", "distances_untied_output", "overview", "portrait")
    for name in names:
        assert (folder / "figures" / f"{name}.png").stat().st_size > 10_000
        assert (folder / "figures" / f"{name}.pdf").exists()
    summary = (folder / "summary.md").read_text()
    assert "2.197" in summary
    assert "rank agreement with semantic divergence" in summary
    assert "rank agreement with semantic divergence" in done.stdout
    assert "untied − tied, paired" in done.stdout
    assert not (folder / "records").exists()
    assert "seed-steps/s" in done.stderr
    assert "best 0.508" in done.stderr


def test_a_finished_run_is_shown_and_not_run_again(finished, capsys):
    folder, _ = finished
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert run.main([*TINY, "--out", str(folder)]) == 0
    assert "train accuracy" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_another_configuration_is_refused_by_the_names_of_the_fields(finished, capsys):
    folder, _ = finished
    assert run.main([*TINY, "--data", "shared", "--zeros", "0.2,0.8", "--out", str(folder)]) == 2
    error = capsys.readouterr().err
    assert "data, process.zeros" in error
    assert error.count("\n") == 1


def test_figures_and_csv_are_made_again_from_the_results(finished, capsys):
    folder, _ = finished
    (folder / "figures" / "accuracy.png").unlink()
    assert figures.main([str(folder), "--csv", "--animate"]) == 0
    assert (folder / "figures" / "accuracy.png").exists() and (folder / "figures" / "portrait.gif").exists()
    header, first, *_ = (folder / "csv" / "steps.csv").read_text().splitlines()
    values = dict(zip(header.split(","), first.split(","), strict=True))
    results = RunFolder(folder).load()
    expected = results["input_distance"].sel(arm="tied", seed=0, step=0, symbol="X", symbol2="Y")
    np.testing.assert_allclose(float(values["input_distance_X_Y"]), expected, rtol=1e-6)


def test_results_of_another_version_are_refused_in_one_line(finished, tmp_path, capsys):
    folder = shutil.copytree(finished[0], tmp_path / "old")
    results = xr.load_dataset(folder / "results.nc", engine="h5netcdf")
    assert set(results.data_vars) == {*VARIABLES, *CONSTANTS, "diverged_at"}  # so whatever a version adds is looked for
    results.drop_vars(["semantic_divergence", "log_odds"]).to_netcdf(folder / "results.nc", engine="h5netcdf")
    for main, arguments in ((figures.main, [str(folder)]), (run.main, [*TINY, "--out", str(folder)])):
        status, (out, error) = main(arguments), capsys.readouterr()
        assert (status, out, error.count("\n")) == (2, "", 1)
        assert "lacks log_odds, semantic_divergence" in error and "--overwrite" in error


def test_an_interrupted_run_leaves_what_was_recorded(tmp_path):
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxtie.run", "--seeds", "2", "--arms", "tied", *OFTEN, "--out", str(folder)],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in process.stderr:
        if "seed-steps/s" in line:
            process.send_signal(signal.SIGINT)
            break
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert "interrupted" in error
    loss = RunFolder(folder).load()["loss"].values
    assert np.isfinite(loss[:, :, 0]).all()
    assert np.isnan(loss[:, :, -1]).all()
    assert json.loads((folder / "config.json").read_text())["finished"] is False


def test_a_sweep_goes_on_where_it_was_stopped_and_takes_more_seeds(tmp_path, capsys):
    """Parts of the records hold members of several settings; a finished sweep is unpacked again."""
    short = "--arms untied --record-every 50 --eval-every 100 --steps 200 --quiet".split()
    sweep = ["--sweep", "p_X=0.1,0.5", "--sweep", "weight_decay=0,0.1,0.3"]
    assert run.main([*short, *sweep, "--seeds", "7", "--out", str(tmp_path / "once")]) == 0
    out = capsys.readouterr().out
    assert "loss above the" in out and "Correlation over members" in out
    assert run.main([*short, *sweep, "--seeds", "5", "--out", str(tmp_path / "grown")]) == 0
    assert run.main([*short, *sweep, "--seeds", "7", "--out", str(tmp_path / "grown")]) == 0
    once, grown = (RunFolder(tmp_path / name).load() for name in ("once", "grown"))
    assert once["loss"].dims == ("arm", "p_X", "weight_decay", "seed", "step") and np.isfinite(once["loss"]).all()
    assert once.drop_attrs().identical(grown.drop_attrs())
    alone = [*short, "--sweep", "p_X=0.5", "--sweep", "weight_decay=0.3", "--seeds", "6-6", "--out", str(tmp_path / "one")]
    assert run.main(alone) == 0
    one = RunFolder(tmp_path / "one").load()
    assert one.drop_attrs().identical(once.sel(p_X=[0.5], weight_decay=[0.3], seed=[6]).drop_attrs())
    assert (tmp_path / "once" / "figures" / "excess_loss_by_p_X.png").stat().st_size > 10_000


BAD = {
    "no seeds": ["--seeds", "0"],
    "negative seeds": ["--seeds", "-3"],
    "negative seeds, joined": ["--seeds=-3"],
    "range backwards": ["--seeds", "5-2"],
    "seeds in letters": ["--seeds", "a"],
    "seed twice": ["--seeds", "1,1"],
    "seeds empty": ["--seeds", ""],
    "seed list with a gap": ["--seeds", "1,,2"],
    "seed too large": ["--seeds", "4294967296-4294967296"],
    "no steps": ["--steps", "0"],
    "fractional steps": ["--steps", "1.5"],
    "negative steps": ["--steps=-100"],
    "steps between records": ["--steps", "150"],
    "evaluations between records": ["--eval-every", "150"],
    "unknown arm": ["--arms", "tied,knotted"],
    "untied from the start": ["--arms", "untied@0"],
    "untied from nowhere": ["--arms", "untied@"],
    "untied from a word": ["--arms", "untied@midway"],
    "untied before the start": ["--arms", "untied@-100"],
    "untied at the end": ["--arms", "untied@150000"],
    "untied between records": ["--arms", "untied@150"],
    "tied from a step": ["--arms", "tied@100"],
    "arm twice": ["--arms", "tied,tied"],
    "no arm": ["--arms", ""],
    "unknown stream": ["--data", "random"],
    "negative data seed": ["--data-seed=-1"],
    "probabilities do not sum to 1": ["--zeros", "0.1,0.8"],
    "three probabilities": ["--ones", "0.1,0.8,0.1"],
    "probability is not a number": ["--ones", "nan,nan"],
    "missing experiment": ["nowhere.py"],
    "experiment is no Python": ["README.txt"],
    "experiment raises": ["raises.py"],
    "experiment cannot be parsed": ["broken.py"],
    "experiment declares nothing": ["empty.py"],
    "experiment with bad probabilities": ["unlikely.py"],
    "experiment leaves": ["leaves.py"],
    "checkpoints never": ["--checkpoint-every", "0"],
    "checkpoints backwards": ["--checkpoint-every=-5"],
    "checkpoints at infinity": ["--checkpoint-every", "inf"],
    "checkpoints in words": ["--checkpoint-every", "often"],
    "coordinator without port": ["--distributed", "--coordinator", "here"],
    "coordinator with a port too large": ["--distributed", "--coordinator", "here:70000"],
    "coordinator alone": ["--distributed", "--coordinator", "here:4000"],
    "coordinator, not distributed": ["--coordinator", "here:4000"],
    "process index, not distributed": ["--process-index", "0"],
    "process index past the count": [
        "--distributed",
        "--coordinator",
        "here:4000",
        "--process-count",
        "2",
        "--process-index",
        "2",
    ],
    "process count of none": ["--distributed", "--process-count", "0"],
    "negative process index": ["--distributed", "--process-index=-1"],
    "seeds with a space": ["--seeds", "1, 2"],
    "seeds in another script": ["--seeds", "٣"],
    "seed range without end": ["--seeds", "5-"],
    "seed range of three": ["--seeds", "1-2-3"],
    "fractional seeds": ["--seeds", "2.5"],
    "more steps than can be counted": ["--steps", "3000000000"],
    "steps beyond ten digits": ["--steps", "99999999999"],
    "record every 0": ["--record-every", "0"],
    "evaluate every 0": ["--eval-every", "0"],
    "data seed too large": ["--data-seed", "4294967296"],
    "probability below 0": ["--zeros=-0.1,1.1"],
    "one probability": ["--zeros", "1"],
    "probabilities in words": ["--zeros", "half,half"],
    "two experiments": ["good.py", "good.py"],
    "experiment is a folder": ["other"],
    "experiment with an unknown field": ["misspelt.py"],
    "experiment with heads that do not divide": ["heads.py"],
    "experiment with a name that is a path": ["named.py"],
    "experiment of another kind": ["of_text.py"],
    "out holds a finished run with more steps": ["--out", "finished"],
    "out holds a finished run of other seeds": ["--out", "finished", "--seeds", "1-64"],
    "out holds an unfinished run with fewer steps": ["--out", "unfinished"],
    "initial loss of arms": ["loss.py", "--arms", "tied"],
    "initial loss over steps": ["loss.py", "--steps", "100"],
    "heads without text": ["convergence.py"],
    "heads on text that is not there": ["convergence.py", "--text", "nowhere"],
    "heads on a folder without text": ["convergence.py", "--text", "other"],
    "heads on too little text": ["convergence.py", "--text", "README.txt"],
    "heads of arms": ["convergence.py", "--text", "README.txt", "--arms", "tied"],
    "heads over steps between records": ["convergence.py", "--text", "README.txt", "--steps", "30"],
    "heads of a width that rotary positions do not fit": ["odd.py", "--text", "README.txt"],
    "text for an experiment that makes its own": ["--text", "README.txt"],
    "text for an initial loss": ["loss.py", "--text", "README.txt"],
    "text in no words": ["convergence.py", "--text", ""],
    "sweep of nothing": ["--sweep", ""],
    "sweep of an unknown setting": ["--sweep", "momentum=0.9"],
    "sweep of what needs another program": ["--sweep", "half_period=100,200"],
    "sweep without values": ["--sweep", "weight_decay"],
    "sweep of no value": ["--sweep", "weight_decay="],
    "sweep in words": ["--sweep", "weight_decay=none,some"],
    "sweep of a value that is no number": ["--sweep", "weight_decay=0,nan"],
    "sweep below 0": ["--sweep", "learning_rate=-1e-4,1e-4"],
    "sweep of a probability above 1": ["--sweep", "p_X=0.5,1.5"],
    "sweep of a value twice": ["--sweep", "eps=1e-8,1e-08"],
    "sweep of a setting twice": ["--sweep", "eps=1e-8", "--sweep", "eps=1e-12"],
    "sweep of what is given": ["--zeros", "0.2,0.8", "--sweep", "p_X=0.1,0.5"],
    "sweep of an initial loss": ["loss.py", "--sweep", "eps=1e-8"],
    "initial loss at a scale": ["loss.py", "--scale", "2"],
    "scale 0": ["--scale", "0"],
    "scale backwards": ["--scale=-1"],
    "scale at infinity": ["--scale", "inf"],
    "scale is not a number": ["--scale", "nan"],
    "scale in words": ["--scale", "half"],
    "scale beyond what can be counted": ["--scale", "1e300"],
    "scale that leaves two arms one": ["--scale", "1e-9", "--arms", "untied@25000,untied@75000"],
    "scale that unties at the end": ["--scale", "1e-9", "--arms", "tied,untied@75000"],
    "scale and steps": ["--scale", "0.1", "--steps", "1000"],
    "all, and one": ["--all", "good.py"],
    "all, with steps": ["--all", "--steps", "1000"],
    "all, with arms": ["--all", "--arms", "tied"],
    "all, with another process": ["--all", "--zeros", "0.2,0.8"],
    "all, over several processes": ["--all", "--distributed"],
    "all, where none are": ["--all"],
    "unknown option": ["--sedes", "3"],
    "option without value": ["--steps"],
    "out below a file": ["--out", "README.txt/run"],
    "out is a file": ["--out", "README.txt"],
    "out holds other files": ["--out", "other"],
    "out holds other files, overwrite": ["--out", "other", "--overwrite"],
    "out holds a damaged run": ["--out", "damaged"],
    "out holds another run": ["--out", "earlier"],
}


@pytest.fixture
def workplace(tmp_path, tmp_path_factory, monkeypatch) -> Path:
    """A folder with everything that can be got wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))  # for what is prepared of a text
    files = {
        "README.txt": "no Python",
        "raises.py": "1 / 0",
        "broken.py": "def :",
        "empty.py": "",
        "leaves.py": "raise SystemExit(0)",
        "unlikely.py": "import jaxtie\nexperiment = jaxtie.Experiment(process=jaxtie.Process(zeros=(0.5, 0.6)))",
        "other/thesis.tex": "years of work",
        "loss.py": "import jaxtie\nexperiment = jaxtie.InitialLoss()",
        "convergence.py": "import jaxtie\nexperiment = jaxtie.HeadConvergence()",
        "odd.py": "import jaxtie\nexperiment = jaxtie.HeadConvergence(width=18)",
        "good.py": "import jaxtie\nexperiment = jaxtie.Experiment()",
        "misspelt.py": "import jaxtie\nexperiment = jaxtie.Experiment(step=100)",
        "heads.py": "import jaxtie\nexperiment = jaxtie.Experiment(model=jaxtie.Transformer(heads=3))",
        "named.py": "import jaxtie\nexperiment = jaxtie.Experiment(name='../elsewhere')",
        "of_text.py": "experiment = 'transformer-small'",
        "finished/config.json": json.dumps({"experiment": jaxtie.Experiment(steps=200_000).as_dict(), "finished": True}),
        "unfinished/config.json": json.dumps({"experiment": jaxtie.Experiment(steps=100).as_dict(), "finished": False}),
        "damaged/config.json": "{",
        "earlier/config.json": json.dumps({"experiment": jaxtie.Experiment(data="shared").as_dict(), "finished": True}),
    }
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_status_2_and_nothing_written(workplace, capsys, arguments):
    before = {path: path.stat().st_mtime_ns for path in workplace.rglob("*")}
    assert run.main(arguments) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert error.startswith("jaxtie: ")
    assert "Traceback" not in error
    after = {path: path.stat().st_mtime_ns for path in workplace.rglob("*") if "__pycache__" not in path.parts}
    assert after == before


def test_bad_input_leaves_through_the_real_door(workplace):
    done = command("jaxtie.run", "--seeds", "5-2")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    done = command("jaxtie.figures", "nowhere")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_seeds_are_a_number_a_range_or_a_list():
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("42-46") == (42, 43, 44, 45, 46)
    assert parse_seeds("17-17") == (17,)
    assert parse_seeds("5,1,9") == (5, 1, 9)


def test_scaled_steps_are_records_and_the_schedule_stays():
    main, midway = jaxtie.Experiment(), jaxtie.Experiment(arms=("tied", "untied@25000", "untied@75000"))
    assert main.scaled(1) == main
    assert main.scaled(1e-9) == jaxtie.Experiment(steps=100)
    assert main.scaled(2.0000001).steps == 300_000
    small = midway.scaled(0.01)
    assert (small.steps, small.arms) == (1500, ("tied", "untied@200", "untied@800"))  # 250 and 750: to the even record
    assert small.optimiser == midway.optimiser and small.eval_every == midway.eval_every
    assert small.eval_steps == (0, 1000, 1500)


def test_every_experiment_file_can_be_loaded_and_listed(monkeypatch, capsys):
    monkeypatch.chdir(Path(__file__).parent.parent)
    assert run.main(["--list"]) == 0
    listed = capsys.readouterr().out
    for path in Path("experiments").glob("*.py"):
        experiment = run.load_experiment(path)
        assert experiment.claim in listed
        assert experiment.name == path.stem.replace("_", "-")


def test_help_and_version(capsys):
    assert run.main(["--version"]) == 0
    assert capsys.readouterr().out == f"jaxtie {jaxtie.__version__}\n"
    with pytest.raises(SystemExit) as stop:
        run.main(["--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "150000 in the main one" in text


def test_dry_run_writes_nothing(workplace):
    before = sorted(workplace.rglob("*"))
    done = command("jaxtie.run", *TINY, "--dry-run", cwd=workplace, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "members   6" in done.stdout
    assert sorted(workplace.rglob("*")) == before
