"""Committed results give the tables that the run gives; a document is its data."""

import contextlib
import io
import re
import shutil
from pathlib import Path

import commit
import condense
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from condense import write_committed
from made_up import BEST, exor_results, tying_costs
from models import bodies_table, gap_table, models_table
from other_code import published_table, pytorch_table
from pages import result_pages
from plateaus import plateau_exit_table

from jaxtie.config import UserError
from jaxtie.exor import config as exor
from jaxtie.exor import tables
from jaxtie.exor.analysis import LOSS_DECIMALS
from jaxtie.exor.claims import ExorClaim
from jaxtie.results.claims import claims_table
from jaxtie.run import command, lifecycle

ROOT = Path(__file__).parents[2]
ARMS = ("tied", "untied", "tied+bias", "untied+bias")
EXPERIMENT, COMMITTED = Path("experiments/small.py"), Path("experiments/data/small.nc")
DECLARATION = """from jaxtie import Experiment, Process
experiment = Experiment(name="small", process=Process(length=4), arms=("tied+bias",), steps=20,
                        record_every=10, eval_every=10)
"""


@pytest.fixture
def results():
    return tying_costs(ARMS)


@pytest.mark.parametrize("many, steps", [(40, 5), (39, 2)], ids=["few seeds", "many seeds"])
def test_committed_results_give_the_tables_of_the_run(results, tmp_path, monkeypatch, many, steps):
    """But for the last digit; of many seeds the middle is left out."""
    monkeypatch.setattr(condense, "COURSE_OF_SEEDS", many)
    write_committed(condense.condense_exor(results), tmp_path / "made-up.nc")
    kept = commit.Committed(tmp_path)["made-up"]
    assert kept["input_distance"].sizes["step"] == steps < results["input_distance"].sizes["step"]
    assert kept.nbytes < results.nbytes / 2
    claims = {
        "made-up": [
            ExorClaim("more", "loss", {"tied": 1, "untied": -1}, low=0),
            ExorClaim("1", "decay ratio", "tied", 0.5, 2),
        ]
    }
    for make in (
        lambda runs: claims_table("Claims", runs, claims),
        lambda runs: gap_table(runs, ["made-up"]),
        lambda runs: tables.distances_table(runs["made-up"]),
        lambda runs: tables.losses_table(runs["made-up"]),
        lambda runs: plateau_exit_table(runs["made-up"]),
    ):
        (words, numbers), (expected_words, expected) = (
            _words_and_numbers(make({"made-up": each}).markdown()) for each in (kept, results)
        )
        assert words == expected_words
        np.testing.assert_allclose(numbers, expected, rtol=1e-5, atol=1.1e-3)


def _words_and_numbers(text: str) -> tuple[list[str], list[float]]:
    number = r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?"
    return re.split(number, text), [float(found) for found in re.findall(number, text)]


def test_values_of_members_are_written_with_five_digits_and_others_with_all(tmp_path):
    third = xr.Dataset(
        {"own": ("seed", [1 / 3, -1e-30, np.nan, np.inf]), "theory": ("pair", [1 / 3])}
    )
    write_committed(third, tmp_path / "third.nc")
    read = xr.load_dataset(tmp_path / "third.nc", engine="h5netcdf")
    np.testing.assert_allclose(read["own"], third["own"], rtol=2.0**-17)
    assert float(read["own"][0]) * 2**18 % 1 == 0 and float(read["theory"][0]) == 1 / 3


def test_the_published_code_is_distinguished_from_ours_if_it_differs(results):
    """Three seeds of our own are like us; three beyond all of ours are not."""
    last = int(results["step"][-1])
    ours = results["input_distance"].sel(arm="tied", symbol="X", symbol2="Y", step=last).values
    own = {"arm": "tied", "step": last, "table": "input", "pair": "X-Y"}
    for distances, different in (
        (ours[:3] + 1e-3, False),
        (ours.max() + np.array([0.1, 0.2, 0.3]), True),
    ):
        (row,) = published_table(results, pd.DataFrame(own | {"distance": distances})).rows
        assert row[:3] == ("tied", "X-Y", f"{last:,}")
        assert (float(row[-1]) < 0.01) == different


def test_a_pytorch_loop_is_distinguished_from_ours_if_it_differs(results):
    """A distribution that is ours, a little off, is like ours; one that lies half beyond is not."""
    last = int(results["step"][-1])
    ours = results["input_distance"].sel(arm="tied", symbol="X", symbol2="Y", step=last).values
    moved = np.where(np.arange(len(ours)) % 2, ours + np.ptp(ours) + 1, ours)
    own = {"arm": "tied", "seed": range(len(ours)), "step": last}
    loss = own | {
        "quantity": "loss",
        "value": results["train_loss"].sel(arm="tied", eval_step=last),
    }
    # less fine than the other side
    kept = results.assign(train_loss=results["train_loss"].round(LOSS_DECIMALS))
    for distances, gap in ((ours * (1 + 1e-6), 1 / len(ours)), (moved, 0.5)):
        theirs = own | {"quantity": "input X-Y", "value": distances}
        both = pd.concat(map(pd.DataFrame, (theirs, loss)))
        of_distance, of_loss = pytorch_table(kept, both).rows
        assert of_distance[:3] == ("tied", "input X-Y", f"{last:,}") and of_loss[-2] == "0.000"
        assert float(of_distance[-2]) == pytest.approx(gap, abs=6e-4)
        assert (float(of_distance[-1].removeprefix("< ")) < 0.01) == (gap == 0.5)


def test_other_bodies_have_their_distances_relative_to_decay(results):
    """Untied, X and Y are at twice what decay leaves in the output table, A and B at just that."""
    first, last = results["step"].values[[0, -1]]
    decayed = float(results["decay_factor"][-1])
    for pair, factor in (("XY", 2), ("AB", 1)):
        at = {"arm": "untied", "symbol": pair[0], "symbol2": pair[1]}
        start = results["output_distance"].sel(**at, step=first)
        results["output_distance"].loc[at | {"step": last}] = start * factor * decayed
    results["train_loss"].loc[{"arm": "tied", "seed": [3, 5], "eval_step": 100}] = 0.76
    rows = {row[1]: row for row in bodies_table({"made-up": results}, ["made-up"]).rows}
    assert (rows["tied"][2], rows["tied"][4]) == ("100", "2 of 40")
    assert rows["untied input"][4] == "0 of 40"
    assert rows["untied output"][2:6] == ("",) * 4
    two, one = "2.000 [2.000, 2.000]", "1.000 [1.000, 1.000]"
    assert rows["untied output"][-3:] == (two, one, two)


def test_a_document_gets_its_tables_from_the_data(results):
    known = {"costs": lambda *names: gap_table({"made-up": results}, names)}
    text = "A\n<!-- table: costs made-up -->\nold 0.123\n<!-- end of table -->\nB\n"
    written = commit.rewritten(text, known)
    assert written.startswith("A\n") and written.endswith("B\n")
    assert "old" not in written and "| made-up | 40 |" in written
    assert commit.rewritten(written, known) == written
    assert commit.rewritten(written.replace("| 40 |", "| 41 |"), known) == written
    for named, reason in (
        ("forces x", "expected one of costs"),
        ("costs other", "no committed results of 'other'"),
    ):
        with pytest.raises(UserError, match=reason):
            commit.rewritten(text.replace("costs made-up", named), known)


@pytest.mark.slow
def test_the_documents_are_what_the_command_writes():
    """Of the committed data and the claims of the experiment files."""
    known = commit.tables_by_name(ROOT / "experiments")
    for page in (ROOT / name for name in commit.DOCUMENTS):
        assert commit.rewritten(page.read_text(), known) == page.read_text(), page
    experiments = ROOT / "experiments"
    pages = result_pages(experiments, commit.Committed(experiments / "data"))
    assert pages.keys() == {path.name for path in (experiments / "results").iterdir()}
    for name, text in pages.items():
        assert (experiments / "results" / name).read_text() == text, name


def test_outside_of_the_repository_the_command_fails_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert commit.main([]) == 2
    line = "jaxtie: README.md: not found; start it where the repository is\n"
    assert capsys.readouterr().err == line


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Make a folder with an experiment that was run and committed."""
    folder = tmp_path_factory.mktemp("repository")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("experiments").mkdir()
        EXPERIMENT.write_text(DECLARATION)
        text = "<!-- table: distances small -->\n<!-- end of table -->\n"
        Path("experiments/README.md").write_text(text)
        Path("README.md").write_text("No tables.\n")
        patch.setattr(lifecycle, "draw", lambda *_: [])
        # compiling takes longer than all the rest, most of all in lanes
        patch.setattr(exor, "WIDE", 1)
        assert command.main([str(EXPERIMENT), *"--seeds 2 --quiet --out run".split()]) == 0
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert commit.main(["run"]) == 0
    pages = "\n".join((*commit.DOCUMENTS, "experiments/results"))
    assert out.getvalue().endswith(f"{COMMITTED}\n{pages}\n")
    return folder


@pytest.fixture
def repository(finished, tmp_path, monkeypatch) -> xr.Dataset:
    """Work in a copy of that folder; return the committed results."""
    monkeypatch.chdir(shutil.copytree(finished, tmp_path / "repository"))
    return xr.load_dataset(COMMITTED)


def test_a_committed_run_is_in_the_tables_and_is_joined_by_further_seeds(repository):
    written = Path("experiments/README.md").read_text()
    assert "| tied+bias | A-B |" in written and "decay-adjusted distance" in written
    assert "| tied+bias | A-B |" in Path("experiments/results/small.md").read_text()
    further = repository.assign_coords(seed=[3, 2]).assign_attrs(claim="In other words.")
    write_committed(further, COMMITTED)
    assert commit.main(["run"]) == 0
    joined = xr.load_dataset(COMMITTED)
    assert joined["seed"].values.tolist() == [0, 1, 2, 3]
    for own, seeds in ((repository, [0, 1]), (further, [3, 2])):
        xr.testing.assert_equal(joined.sel(seed=seeds), own)
    assert joined.attrs == repository.attrs
    ends = further["eval_step"].isin([0, 20])
    without = further.sel(step=[0, 20]).assign(valid_loss=further["valid_loss"].where(ends))
    write_committed(without, COMMITTED)
    assert commit.main(["run"]) == 0
    without_middle = xr.load_dataset(COMMITTED)  # of either: only some seeds would have it
    xr.testing.assert_equal(without_middle["loss"], joined["loss"].sel(step=[0, 20]))
    xr.testing.assert_equal(without_middle["valid_loss"], joined["valid_loss"].where(ends))
    xr.testing.assert_equal(without_middle["train_loss"], joined["train_loss"])


def test_a_run_that_differs_or_that_no_file_declares_is_refused(repository, capsys):
    write_committed(
        repository.assign_coords(seed=[3, 2]).assign_attrs(process="another"), COMMITTED
    )
    assert commit.main(["run"]) == 2
    line = "small.nc: these seeds cannot join its own: they differ in process; "
    assert line in capsys.readouterr().err
    EXPERIMENT.write_text(DECLARATION.replace("length=4", "length=5"))
    assert commit.main(["run"]) == 2
    line = f"jaxtie: run: differs from {EXPERIMENT} in process.length\n"
    assert capsys.readouterr().err == line
    EXPERIMENT.unlink()
    assert commit.main(["run"]) == 2
    assert capsys.readouterr().err == "jaxtie: run: no file of experiments declares small\n"


def test_models_are_compared_by_gap_and_by_counts_of_stuck_seeds():
    """Seeds 0 to 2 are stuck tied, and 2 and 3 untied; of the others the gap is 0.1."""
    results = exor_results("tied", "untied", seeds=8)
    stuck = {"tied": [0, 1, 2], "untied": [2, 3]}
    for arm, more in (("tied", 0.2), ("untied", 0.1)):
        end = {"arm": arm, "eval_step": 100}
        results["train_loss"].loc[end] = BEST["loss"] + more
        results["train_loss"].loc[end | {"seed": stuck[arm]}] = BEST["loss"] + 0.7
    results.attrs["model"] = "LSTM(layers=2, width=4, hidden=8)"
    (row,) = models_table({"made-up": results}, ["made-up"]).rows
    assert row[:7] == ("made-up", "an LSTM of 2 layers", "4", "100", "8", "3", "2")
    assert row[8] == "0.100 ± 0.000 (4 seeds)"
    gaps = np.array([0.6, 0.6, 0, -0.5, *[0.1] * 4])
    assert float(row[7].split(" ± ")[0]) == pytest.approx(gaps.mean(), abs=6e-4)
