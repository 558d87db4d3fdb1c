"""`jaxtie compare`: arguments, runs of jaxtie, matching, the answer's lines, JSON and figure."""

import json
import math
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import xarray as xr
from draws import draws

import jaxtie
from jaxtie.__main__ import main as jaxtie_main
from jaxtie.compare.command import main_compare
from jaxtie.config import UserError
from jaxtie.results.conclusion import TOO_SHORT
from jaxtie.results.folder import RunFolder, write_sealed


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def finals(losses, first=0):
    return "seed,step,loss\n" + "".join(f"{first + s},9,{loss}\n" for s, loss in enumerate(losses))


@pytest.fixture
def arms(tmp_path, monkeypatch):
    """Two files of four seeds; tied is 0.03 above untied."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "tied.csv", finals((3.332, 3.341, 3.353, 3.339)))
    write(tmp_path / "untied.csv", finals((3.302, 3.311, 3.322, 3.310)))
    return tmp_path


def run(*words):
    return main_compare([*map(str, words)])


def error_of(capsys, *words):
    """Return the one line on standard error that refuses these words."""
    assert run(*words) == 2
    printed = capsys.readouterr()
    assert not printed.out and printed.err.count("\n") == 1
    return printed.err


def test_the_answer_says_gap_interval_decision_and_seeds(arms, capsys):
    assert run("tied.csv", "untied.csv") == 0
    gap, decision, seeds = capsys.readouterr().out.splitlines()
    assert gap.startswith("tied − untied = +0.0300 nat of loss at step 9 (90 % interval +0.02")
    assert gap.endswith("tied is worse.")
    assert decision.startswith("Against a margin of 0.01 nat: larger (tied is worse than untied")
    assert seeds.startswith("Seeds: 4 of tied, 4 of untied; paired 4 (0, 1, 2, 3), by name (")


def test_the_sign_is_that_of_the_first_arm_less_the_second(arms, capsys):
    assert run("untied.csv", "tied.csv") == 0
    gap, decision, _ = capsys.readouterr().out.splitlines()
    assert "untied − tied = -0.0300" in gap and "untied is better." in gap
    assert "smaller (untied is better than tied by more" in decision


@pytest.mark.parametrize(
    ("margin", "decision"),
    [("0.5", "no difference beyond the margin"), ("0.0301", "not decided"), ("0.02", "larger")],
)
def test_the_margin_decides(arms, capsys, margin, decision):
    assert run("tied.csv", "untied.csv", "--margin", margin, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["decision"] == decision
    assert (found["more_seeds"] == 0) == (decision != "not decided")


def test_json_and_python_are_the_same_answer(arms, capsys):
    assert run("tied.csv", "untied.csv", "--json", "--out", "out") == 0
    printed = json.loads(capsys.readouterr().out)
    found = jaxtie.compare("tied.csv", "untied.csv")
    assert [path.name for path in (arms / "out").iterdir()] == ["comparison.png"]
    assert printed == json.loads(json.dumps(found.as_dict()))
    assert (
        printed["gap"]["mean"] == pytest.approx(0.03) and printed["arms"][0]["losses"]["1"] == 3.341
    )


def test_the_figure_has_the_gap_at_all_common_steps(tmp_path):
    a = write(tmp_path / "a.csv", "step,0,1\n100,5,5\n200,4,4\n300,3,3.5\n400,2,2\n")
    b = write(tmp_path / "b.csv", "step,0,1\n100,5,6\n300,3,3\n")
    found = jaxtie.compare(a, b)
    axes = found.plot().axes[0]
    assert axes.lines[0].get_xydata().tolist() == [[100, -0.5], [300, 0.25]]
    low, _, high = found.gap
    (bar,) = axes.collections[0].get_segments()
    assert bar == pytest.approx(np.array([[300, low], [300, high]]))
    lowest, highest = axes.get_ylim()
    assert lowest < low and highest > high and axes.get_ylabel() == "a − b, nat"


def test_the_figure_without_steps_has_every_loss(tmp_path):
    a, b = (
        write(tmp_path / "a.csv", "loss\n3.1\n3.2\n"),
        write(tmp_path / "b.csv", "loss\n3.3\n3\n"),
    )
    axes = jaxtie.compare(a, b).plot().axes[0]
    assert [line.get_ydata().tolist() for line in axes.lines] == [[3.1, 3.2], [3.3, 3]]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("tied.csv",), "1 arms: expected A and B"),
        (("tied.csv", "untied.csv", "x.csv"), "3 arms: expected A and B; quote a pattern"),
        (("nowhere.csv", "untied.csv"), "nowhere.csv: no such file or folder"),
        (("x*.csv", "untied.csv"), "x*.csv: no such file or folder, and no file matches it"),
        (("tied.csv", "tied.csv"), "have equal losses; give two sets of runs"),
        (("tied.csv", "copy.csv"), "have equal losses; give two sets of runs"),
        (("tied.csv", "empty"), "empty: has no file .csv"),
        (("tied.csv", "pipe"), "is a pipe"),
        (("tied.csv:x", "untied.csv"), "tied.csv: has no run or arm x"),
        (("tied.csv", "untied.csv", "--column", "val"), "has no column val; --column: one of loss"),
        (("tied.csv", "untied.csv", "--margin", "0"), "expected a gap above 0"),
        (("tied.csv", "untied.csv", "--margin", "nan"), "--margin"),
        (("tied.csv", "untied.csv", "--out", "tied.csv/x"), "tied.csv/x"),
        (("", "untied.csv"), "no such file"),
    ],
)
def test_other_arguments_are_refused_in_one_line(arms, capsys, words, expected):
    write(arms / "copy.csv", (arms / "tied.csv").read_text())
    (arms / "empty").mkdir()
    os.mkfifo(arms / "pipe")
    before = sorted(arms.rglob("*"))
    assert expected in error_of(capsys, *words)
    assert sorted(arms.rglob("*")) == before


@pytest.mark.parametrize("margin", [0, -1, math.nan, "0.01", True, math.inf])
def test_margins_that_are_no_gap_are_refused(arms, margin):
    with pytest.raises(UserError, match=r"margin .*: expected above 0"):
        jaxtie.compare("tied.csv", "untied.csv", margin=margin)


def test_arms_are_patterns_lists_or_folders(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arm, base in (("tied", 3.32), ("untied", 3.30)):
        for seed in range(3):
            text = f"step,loss\n9,{base + 0.01 * seed:.3f}\n"
            write(tmp_path / f"runs/{arm}-seed{seed}.csv", text)
            write(tmp_path / f"folders/{arm}/seed{seed}/log.csv", text)
    listed = [",".join(f"runs/{arm}-seed{s}.csv" for s in range(3)) for arm in ("tied", "untied")]
    answers = []
    for words in (
        ("runs/tied*.csv", "runs/untied*.csv"),
        listed,
        ("folders/tied", "folders/untied"),
    ):
        assert run(*words, "--json") == 0
        answers.append(json.loads(capsys.readouterr().out)["gap"])
    assert answers[0] == answers[1] == answers[2]
    found = jaxtie.compare([f"runs/tied-seed{s}.csv" for s in range(3)], "runs/untied*.csv")
    assert dict(zip(("low", "mean", "high"), found.gap)) == answers[0] and found.ends.paired == 3


# ----- Matching and omitted seeds.


def test_arms_are_never_compared_at_different_steps(tmp_path):
    """Both follow one curve; the first goes on for longer. At their ends they differ by 0.22."""
    texts = []
    for last in (1900, 1000):
        steps = range(0, last + 1, 100)
        rows = [(s, t, 3.3 + 0.001 * s + 3 * math.exp(-t / 400)) for s in range(3) for t in steps]
        shift = 0.0005 * (last == 1000)
        texts.append("seed,step,loss\n" + "".join(f"{s},{t},{x + shift:.5f}\n" for s, t, x in rows))
    a, b = (write(tmp_path / f"{i}.csv", text) for i, text in enumerate(texts))
    found = jaxtie.compare(a, b)
    assert found.at == 1000 and found.gap[1] == pytest.approx(-0.0005, abs=1e-5)
    assert "0 ends at 1,900 and 1 ends at 1,000: compared at 1,000" in found.lines[3]


def test_the_newest_row_may_be_first(tmp_path):
    texts = []
    for gap in (0.02, 0.0):
        rows = [(s, t) for s in range(3) for t in range(1900, -1, -100)]
        loss = (3.3 + 0.001 * s + 3 * math.exp(-t / 400) + gap * t / 1900 for s, t in rows)
        texts.append(
            "seed,step,loss\n" + "".join(f"{s},{t},{x:.5f}\n" for (s, t), x in zip(rows, loss))
        )
    a, b = (write(tmp_path / f"{i}.csv", text) for i, text in enumerate(texts))
    found = jaxtie.compare(a, b)
    assert found.at == 1900 and found.gap[1] == pytest.approx(0.02, abs=1e-5)


def test_steps_of_other_batch_sizes_are_refused(tmp_path):
    a = write(tmp_path / "a.csv", "step,tokens,loss\n100,1000,3.3\n")
    b = write(tmp_path / "b.csv", "step,tokens,loss\n100,2000,3.2\n")
    with pytest.raises(
        UserError, match=r"step 100 is after other tokens, 1000 in .* and 2000 in .*drop one"
    ):
        jaxtie.compare(a, b)


def test_steps_of_other_epochs_are_refused(tmp_path):
    a = write(tmp_path / "a.csv", "step,epoch,loss\n1000,1.0,3.3\n")
    b = write(tmp_path / "b.csv", "step,epoch,loss\n1000,2.0,3.2\n")
    with pytest.raises(UserError, match=r"step 1000 is after other epoch, 1 in .* and 2 in .*"):
        jaxtie.compare(a, b)


@pytest.mark.parametrize("name", ["tied_accuracy_s0.csv", "acc-s0.csv"])
def test_a_download_of_accuracies_from_tensorboard_is_refused(tmp_path, name):
    b = write(tmp_path / "loss_s0.csv", "Wall time,Step,Value\n1,100,3.3\n")
    a = write(tmp_path / name, "Wall time,Step,Value\n1,100,0.4\n")
    with pytest.raises(UserError, match="holds no loss by its name"):
        jaxtie.compare(a, b)


def test_a_chosen_column_of_an_unknown_unit_is_not_in_nats(tmp_path):
    texts = [finals(own).replace("loss", "bpc") for own in ((1.32, 1.33), (1.30, 1.31))]
    a, b = (write(tmp_path / f"{i}.csv", text) for i, text in enumerate(texts))
    assert " = +0.0200 units of bpc at step 9" in jaxtie.compare(a, b, column="bpc").lines[0]


def test_a_seed_no_higher_than_others_that_train_is_not_stuck(tmp_path):
    """One arm has two levels and a seed in between, the other one a level alone."""
    high = 3.30 + 0.002 * np.arange(6)
    low = np.r_[3.0 + 0.002 * np.arange(10), high[:3]]
    a, b = write(tmp_path / "a.csv", finals(high)), write(tmp_path / "b.csv", finals(low))
    found = jaxtie.compare(a, b)
    assert not found.arms[0].stuck and not found.arms[1].stuck
    assert found.gap[1] == pytest.approx(high.mean() - low.mean())


def test_two_runs_of_one_seed_are_not_merged(tmp_path):
    """They are logged at other steps, so that only some steps have two losses."""
    for rate, every in (("1e-3", 100), ("3e-3", 250)):
        rows = "".join(
            f"{t},{3 + 1 / (t + 1) + len(rate) * every / 1e5}\n" for t in range(0, 1001, every)
        )
        write(tmp_path / f"tied-{rate}-seed0.csv", "step,loss\n" + rows)
    b = write(tmp_path / "untied-seed0.csv", "step,loss\n0,4\n1000,3\n")
    with pytest.raises(UserError, match=r"1e-3-seed0.* and .*3e-3-seed0.* both look like seed 0"):
        jaxtie.compare(str(tmp_path / "tied*"), b)


def test_stuck_seeds_are_named_with_the_gap_with_and_without_them(tmp_path):
    rng = np.random.default_rng(0)
    losses = rng.normal(3.3, 0.001, (2, 8))
    losses[0, :3] += 1.2
    a, b = (write(tmp_path / f"{i}.csv", finals(own.round(4))) for i, own in enumerate(losses))
    found = jaxtie.compare(a, b)
    assert (
        abs(found.gap[1]) < 0.002
        and found.arms[0].stuck == ["0", "1", "2"]
        and not found.arms[1].stuck
    )
    (line,) = (line for line in found.lines if "stuck" in line)
    assert line.startswith("3 of 8 seeds of 0 are stuck far above the others (0, 1, 2)")
    with_them = losses[0].mean() - losses[1].mean()
    assert f"conditional: it leaves them out; with the stuck ones it is {with_them:+.3f}" in line
    assert "among the seeds that train" in found.lines[1]
    assert found.ends.paired == 5 and len(found.ends.b) == 8


def test_a_seed_that_diverges_after_the_common_step_counts(tmp_path):
    a = write(tmp_path / "a.csv", "seed,step,loss\n0,1,3.1\n1,1,3.2\n0,2,3.0\n1,2,nan\n")
    b = write(tmp_path / "b.csv", "seed,step,loss\n0,1,3.0\n1,1,3.11\n")
    found = jaxtie.compare(a, b)
    assert found.at == 1 and found.ends.paired == 2 and not found.arms[0].missing


def test_one_seed_each_has_a_plan_from_published_seeds(tmp_path):
    a, b = (write(tmp_path / f"{i}.csv", finals([loss])) for i, loss in enumerate((3.32, 3.3)))
    found = jaxtie.compare(a, b)
    assert math.isnan(found.gap[0]) and found.decision == "not decided"
    assert found.as_dict()["gap"]["low"] is None
    assert "no interval: one seed each" in found.lines[0]
    assert "deviation over seeds of 0.005 nat, of published ones" in found.lines[3]
    assert 3 <= found.more <= 10


def test_bits_per_byte_stay_and_their_margin_too(tmp_path):
    texts = [finals(own).replace("loss", "val_bpb") for own in ((1.346, 1.347), (1.3275, 1.328))]
    a, b = (write(tmp_path / f"{i}.csv", text) for i, text in enumerate(texts))
    found = jaxtie.compare(a, b)
    assert found.gap[1] == pytest.approx(0.01875) and "bit per byte" in found.lines[1]


@pytest.mark.slow
def test_intervals_of_curves_cut_at_other_steps_cover_the_gap(tmp_path):
    """Noise is correlated over steps (0.9); each seed stops somewhere; the gap is constant."""
    rng, total, inside = np.random.default_rng(0), draws(100), 0
    steps = np.arange(0, 2001, 100)
    for i in range(total):
        files = []
        for arm, gap in (("a", 0.009), ("b", 0.0)):
            text = "seed,step,loss\n"
            for seed in range(4):
                noise, value = [], rng.normal()
                for _ in steps:
                    value = 0.9 * value + math.sqrt(1 - 0.81) * rng.normal()
                    noise.append(0.005 * value)
                last = rng.integers(10, len(steps) + 1)
                losses = 3.3 + gap + 3 * np.exp(-steps / 300) + noise
                order = rng.permutation(last) if seed == 1 else range(last)
                text += "".join(f"{seed},{steps[t]},{losses[t]:.5f}\n" for t in order)
            files.append(write(tmp_path / f"{arm}{i}.csv", text))
        low, _, high = jaxtie.compare(*files).gap
        inside += low <= 0.009 <= high
    slack = 3 * 0.3 / math.sqrt(total)
    assert 0.88 - slack < inside / total < 0.92 + slack


# ----- Runs of jaxtie.


@pytest.fixture
def folder(tmp_path):
    """A run of two arms and two seeds, of which one untied diverged at step 15."""
    loss = [[[9.0, 3.32, 3.22], [9.0, 3.34, 3.23]], [[9.0, 3.30, 3.20], [9.0, 3.31, 3.0]]]
    dims = ("arm", "seed", "eval_step")
    results = xr.Dataset(
        {
            "valid_loss": (dims, loss, {"units": "nat"}),
            "valid_accuracy": (dims, loss, {"units": "1"}),
            "diverged_at": (("arm", "seed"), [[-1, -1], [-1, 15]]),
        },
        {"arm": ["tied", "untied"], "seed": [4, 5], "eval_step": [0, 10, 20]},
        {"experiment": "two-arms"},
    )
    content = results.to_netcdf(engine="h5netcdf")
    write_sealed(RunFolder(tmp_path).results, bytes(content))
    return tmp_path


def test_seeds_of_one_name_are_pairs_unless_they_share_nothing(tmp_path, capsys):
    """The losses of a reader who had independent seeds: pairing doubled the interval."""
    losses = {"tied": (3.312, 3.301, 3.309), "untied": (3.298, 3.302, 3.296)}
    for arm, values in losses.items():
        for seed, loss in enumerate(values):
            write(tmp_path / arm / f"seed{seed}.csv", f"step,val_loss\n5000,{loss}\n")
    arms = [str(tmp_path / arm) for arm in losses]
    paired = jaxtie.compare(*arms)
    unpaired = jaxtie.compare(*arms, paired=False)
    assert (paired.ends.paired, unpaired.ends.paired) == (3, 0)
    assert paired.gap[1] == unpaired.gap[1] and paired.gap[2] > unpaired.gap[2]
    assert "paired 3 (0, 1, 2), by name (--unpaired if" in paired.lines[2]
    assert "above half of the margin" in paired.lines[3]
    assert run(*arms, "--unpaired") == 0
    assert capsys.readouterr().out.splitlines() == unpaired.lines


def test_a_run_is_compared_by_its_arms(folder, capsys):
    both = f"{folder}:tied", f"{folder}:untied"
    assert run(*both) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tied − untied = ") and "at step 20" in lines[0]
    assert any("1 of 2 seeds of untied diverged" in line for line in lines)
    RunFolder(folder).summary.write_text(f"# two-arms\n\n{TOO_SHORT}: all stuck.\n")
    assert run(*both) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"The summary of {folder} says: {TOO_SHORT}: all stuck."
    found = jaxtie.compare(f"{folder}:untied", f"{folder}:tied")
    assert found.arms[0].missing == ["5"] and found.gap[1] == pytest.approx(3.20 - 3.225)


def test_an_interrupted_run_is_compared_as_far_as_it_got(folder):
    """A step that is not reached is none at which seeds diverged."""
    results = RunFolder(folder).load()
    results["valid_loss"].loc[{"arm": "tied", "eval_step": 20}] = np.nan
    results["diverged_at"][:] = -1
    write_sealed(RunFolder(folder).results, bytes(results.to_netcdf(engine="h5netcdf")))
    found = jaxtie.compare(f"{folder}:tied", f"{folder}:untied")
    assert found.at == 10 and found.gap[1] == pytest.approx(0.025)
    assert not found.arms[0].missing and not found.arms[1].missing


def test_a_run_is_compared_with_files(folder, tmp_path):
    path = write(tmp_path / "files" / "mine.csv", "seed,step,val_loss\n4,20,3.25\n5,20,3.27\n")
    found = jaxtie.compare(path, f"{folder}:tied")
    assert found.gap[1] == pytest.approx(0.035) and found.ends.paired == 2
    assert "mine has val_loss, tied has valid_loss of two-arms: check" in " ".join(found.lines)


@pytest.mark.parametrize(
    ("arm", "column", "words"),
    [
        (":x", None, "expected one of its arms, tied, untied"),
        ("", None, "expected one of its arms, tied, untied"),
        (":tied", "nll", "has no nll; --column: one of valid_loss"),
        (":tied", "valid_accuracy", "has no valid_accuracy; --column: one of valid_loss"),
    ],
)
def test_other_parts_of_a_run_are_refused(folder, arm, column, words):
    with pytest.raises(UserError, match=words):
        jaxtie.compare(f"{folder}{arm}", f"{folder}:untied", column=column)


def test_a_damaged_run_is_refused_in_one_line(folder, capsys):
    path = RunFolder(folder).results
    path.write_bytes(path.read_bytes()[:-40] + b"x" * 40)
    assert "is damaged" in error_of(capsys, f"{folder}:tied", f"{folder}:untied")


# ----- The command.


def test_help_is_fast_and_imports_nothing_heavy():
    code = (
        "import sys; from jaxtie.compare.command import main_compare\n"
        "try: main_compare(['--help'])\nexcept SystemExit: pass\n"
        "print([name for name in ('jax', 'pandas', 'scipy', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("[]\n") and "--margin NAT" in done.stdout


def test_the_command_is_one_of_jaxtie(arms, capsys):
    with pytest.raises(SystemExit) as stop:
        jaxtie_main(["compare", "tied.csv", "untied.csv"])
    assert stop.value.code == 0 and "tied − untied" in capsys.readouterr().out


def test_large_files_take_seconds(tmp_path):
    rows = "".join(f"{s},{t},{3 + 1 / (t + 1):.6f}\n" for s in range(4) for t in range(5_000))
    a = write(tmp_path / "a.csv", "seed,step,loss\n" + rows)
    b = write(tmp_path / "b.csv", "seed,step,loss\n" + rows.replace(",3.", ",2."))
    start = time.process_time()
    assert jaxtie.compare(a, b).gap[1] == pytest.approx(1)
    assert time.process_time() - start < 10
