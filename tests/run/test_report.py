"""What is committed of a run gives the tables that the run gives; a document is its data."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from made_up import exor_results, tying_costs

from jaxtie.config import UserError
from jaxtie.exor import analysis, tables
from jaxtie.exor import config as exor
from jaxtie.exor.analysis import LOSS_DECIMALS
from jaxtie.exor.claims import Claim
from jaxtie.results.claims import claims_table
from jaxtie.results.committed import write_committed
from jaxtie.run import command, lifecycle, report

HOUSE = Path(__file__).parents[2]
ARMS = ("tied", "untied", "tied+bias", "untied+bias")


@pytest.fixture
def results():
    return tying_costs(ARMS)


@pytest.mark.parametrize("many, steps", [(40, 5), (39, 2)], ids=["few seeds", "many seeds"])
def test_what_is_kept_of_a_run_gives_its_tables(results, tmp_path, monkeypatch, many, steps):
    """Written and read again, each number is the run's but for the last digit; of many seeds the
    middle is left out.
    """
    monkeypatch.setattr(analysis, "COURSE_OF_SEEDS", many)
    write_committed(analysis.condense(results), tmp_path / "made-up.nc")
    kept = report.read_data(tmp_path)["made-up"]
    assert kept["input_distance"].sizes["step"] == steps < results["input_distance"].sizes["step"]
    assert kept.nbytes < results.nbytes / 2
    claims = {
        "made-up": [
            Claim("more", "loss", {"tied": 1, "untied": -1}, low=0),
            Claim("1", "decay ratio", "tied", 0.5, 2),
        ]
    }
    for make in (
        lambda runs: claims_table("Claims", runs, claims),
        lambda runs: tables.gap_table(runs, ["made-up"]),
        lambda runs: tables.decay_table(runs["made-up"]),
        lambda runs: tables.final_table(runs["made-up"]),
        lambda runs: tables.plateau_exit_table(runs["made-up"]),
    ):
        (words, numbers), (expected_words, expected) = (
            _words_and_numbers(make({"made-up": each}).markdown()) for each in (kept, results)
        )
        assert words == expected_words
        np.testing.assert_allclose(numbers, expected, rtol=1e-5, atol=1.1e-3)


def _words_and_numbers(text: str) -> tuple[list[str], list[float]]:
    number = r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?"
    return re.split(number, text), [float(found) for found in re.findall(number, text)]


def test_what_is_written_of_a_member_has_five_digits_and_what_no_member_owns_has_all(tmp_path):
    third = xr.Dataset(
        {"own": ("seed", [1 / 3, -1e-30, np.nan, np.inf]), "theory": ("pair", [1 / 3])}
    )
    write_committed(third, tmp_path / "third.nc")
    read = xr.load_dataset(tmp_path / "third.nc", engine="h5netcdf")
    np.testing.assert_allclose(read["own"], third["own"], rtol=2.0**-17)
    assert float(read["own"][0]) * 2**18 % 1 == 0 and float(read["theory"][0]) == 1 / 3


def test_the_published_code_is_told_from_ours_where_it_is_another(results):
    """Three seeds of our own are like us; three that lie beyond all of ours are not."""
    last = int(results["step"][-1])
    ours = results["input_distance"].sel(arm="tied", symbol="X", symbol2="Y", step=last).values
    for distances, different in (
        (ours[:3] + 1e-3, False),
        (ours.max() + np.array([0.1, 0.2, 0.3]), True),
    ):
        published = pd.DataFrame(
            {"arm": "tied", "step": last, "table": "input", "pair": "X-Y", "distance": distances}
        )
        table = tables.published_table(results, published)
        (row,) = table.rows
        assert row[:3] == ("tied", "X-Y", f"{last:,}")
        assert (float(row[-1]) < 0.01) == different


def test_a_pytorch_loop_is_told_from_ours_where_it_is_another(results):
    """A distribution that is ours, a little off, is like ours; one that lies half beyond is not."""
    last = int(results["step"][-1])
    ours = results["input_distance"].sel(arm="tied", symbol="X", symbol2="Y", step=last).values
    moved = np.where(np.arange(len(ours)) % 2, ours + np.ptp(ours) + 1, ours)
    own = {"arm": "tied", "seed": range(len(ours)), "step": last}
    for distances, gap in ((ours * (1 + 1e-6), 1 / len(ours)), (moved, 0.5)):
        theirs = pd.DataFrame(own | {"quantity": "input X-Y", "value": distances})
        loss = pd.DataFrame(
            own
            | {"quantity": "loss", "value": results["train_loss"].sel(arm="tied", eval_step=last)}
        )
        # less fine than the other side
        kept = results.assign(train_loss=results["train_loss"].round(LOSS_DECIMALS))
        of_distance, of_loss = tables.pytorch_table(kept, pd.concat([theirs, loss])).rows
        assert of_distance[:3] == ("tied", "input X-Y", f"{last:,}") and of_loss[-2] == "0.000"
        assert float(of_distance[-2]) == pytest.approx(gap, abs=6e-4)
        assert (float(of_distance[-1].removeprefix("< ")) < 0.01) == (gap == 0.5)


def test_other_bodies_have_their_distances_beside_decay(results):
    """Untied, X and Y are at twice what decay alone leaves in the output table, A and B at just
    that.
    """
    first, last = results["step"].values[[0, -1]]
    for pair, factor in (("XY", 2), ("AB", 1)):
        at = {"arm": "untied", "symbol": pair[0], "symbol2": pair[1]}
        begun = results["output_distance"].sel(**at, step=first)
        results["output_distance"].loc[at | {"step": last}] = (
            begun * factor * float(results["decay_factor"][-1])
        )
    results["train_loss"].loc[{"arm": "tied", "seed": [3, 5], "eval_step": 100}] = 0.76
    rows = {row[1]: row for row in tables.bodies_table({"made-up": results}, ["made-up"]).rows}
    assert (
        rows["tied"][2] == "100"
        and rows["tied"][4] == "2 of 40"
        and rows["untied input"][4] == "0 of 40"
    )
    assert rows["untied output"][2:6] == ("",) * 4
    assert rows["untied output"][-3:] == (
        "2.000 [2.000, 2.000]",
        "1.000 [1.000, 1.000]",
        "2.000 [2.000, 2.000]",
    )
    few, many = results.isel(seed=slice(3)), results
    decayed = float(results["decay_factor"][-1])
    # each of few seeds; of many the quartiles and both ends
    for own, shown in (
        (few, 3),
        (many, 5),
    ):
        found = {
            row[1:3]: row for row in tables.remaining_table({"made-up": own}, ["made-up"]).rows
        }
        of_pair = found["untied output", "X-Y"]
        np.testing.assert_allclose(
            [float(cell) for cell in of_pair[-1].split(", ")], [2 * decayed] * shown, rtol=5e-3
        )
        np.testing.assert_allclose(float(of_pair[3]), decayed, rtol=5e-3)


def test_processes_are_compared_seed_by_seed(results):
    """Planted: a quarter less than here in tied models without a bias, of each seed as much; other
    seeds stay out.
    """
    other = results.isel(seed=slice(10, None)).copy(deep=True)
    other["train_loss"].loc[{"arm": "tied", "eval_step": 100}] -= 0.25
    (row,) = tables.gap_contrast_table({"here": results, "there": other}, ["here", "there"]).rows
    assert row == ("here − there", "0.250 ± 0.000", "0.000 ± 0.000", "0.250 ± 0.000")


def test_forces_can_be_counted_from_a_later_step(results):
    """Planted: from step 0 to 50 X and Y come to three times what decay leaves, from there on they
    fall as it makes them.
    """
    at, decayed = {"arm": "untied", "symbol": "X", "symbol2": "Y"}, results["decay_factor"]
    distance = results["output_distance"]
    for step, factor in ((50, 3), (100, 3)):
        distance.loc[at | {"step": step}] = (
            distance.sel(**at, step=0) * factor * float(decayed.sel(step=step))
        )
    rows = {row[:2]: row[2:] for row in tables.decay_since_table(results, ["0", "50"]).rows}
    assert rows["untied output", "X-Y"] == ("3.000 [3.000, 3.000]", "1.000 [1.000, 1.000]")
    assert rows["untied output", "A-B"][1] != "1.000 [1.000, 1.000]"


def test_a_sweep_has_its_forces_at_every_setting():
    table = tables.decay_table(exor_results("tied", seeds=8, weight_decay=[0.0, 0.1]))
    assert table.header[0] == "weight_decay" and [row[0] for row in table.rows] == [
        "0",
        "0",
        "0.1",
        "0.1",
    ]


def test_a_document_gets_its_tables_from_the_data(results):
    known = {"costs": lambda *names: tables.gap_table({"made-up": results}, names)}
    text = "A\n<!-- table: costs made-up -->\nold 0.123\n<!-- end of table -->\nB\n"
    written = report.rewritten(text, known)
    assert (
        "old" not in written
        and "| made-up | 40 |" in written
        and written.startswith("A\n")
        and written.endswith("B\n")
    )
    assert report.rewritten(written, known) == written
    assert report.rewritten(written.replace("| 40 |", "| 41 |"), known) == written
    for asked, reason in (
        ("forces x", "expected one of costs"),
        ("costs other", "no data of 'other'"),
    ):
        with pytest.raises(UserError, match=reason):
            report.rewritten(text.replace("costs made-up", asked), known)


def test_the_documents_are_what_the_command_writes():
    """Of the committed data and the claims of the experiment files; a digit that was changed by
    hand is found.
    """
    known = report.tables_by_name(HOUSE / "experiments")
    for page in (HOUSE / name for name in report.DOCUMENTS):
        assert report.rewritten(page.read_text(), known) == page.read_text(), page


def test_outside_of_the_repository_the_command_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command.main_report([]) == 2
    assert (
        capsys.readouterr().err
        == "jaxtie.report: README.md: not found; start it where the repository is\n"
    )


def test_a_run_is_kept_beside_its_experiment(tmp_path, monkeypatch, capsys):
    """From a run to a table by the command, its hidden states too; a run that no file declares is
    refused.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()
    declaration = "from jaxtie import Experiment, Process\n"
    declaration += (
        'experiment = Experiment(name="small", process=Process(length=5), arms=("tied+bias",), '
    )
    declaration += "steps=20, record_every=10, eval_every=10)\n"
    (tmp_path / "experiments" / "small.py").write_text(declaration)
    text = "<!-- table: forces small -->\n<!-- end of table -->\n"
    (tmp_path / "experiments" / "README.md").write_text(text)
    (tmp_path / "jaxtie" / "advise").mkdir(parents=True)
    for page in ("README.md", "jaxtie/advise/README.md"):
        (tmp_path / page).write_text("No tables.\n")
    monkeypatch.setattr(lifecycle, "draw", lambda *_: [])
    # compiling takes longer than all the rest, most of all in lanes
    monkeypatch.setattr(exor, "WIDE", 1)
    short = "--seeds 2 --quiet --out run".split()
    assert command.main(["experiments/small.py", *short]) == 0
    assert command.main_report(["run"]) == 0
    assert capsys.readouterr().out.endswith(
        "experiments/data/small.nc\n" + "\n".join(report.DOCUMENTS) + "\n"
    )
    kept = xr.load_dataset("experiments/data/small.nc")
    written = Path("experiments/README.md").read_text()
    assert "| tied+bias | A-B |" in written and "decay-adjusted distance" in written
    further, file = (
        kept.assign_coords(seed=[3, 2]).assign_attrs(claim="In other words."),
        Path("experiments/data/small.nc"),
    )
    write_committed(further, file)
    assert command.main_report(["run"]) == 0
    joined = xr.load_dataset(file)
    assert joined["seed"].values.tolist() == [0, 1, 2, 3]
    for own, seeds in ((kept, [0, 1]), (further, [3, 2])):
        xr.testing.assert_equal(joined.sel(seed=seeds), own)
    assert joined.attrs == kept.attrs
    ends = further["eval_step"].isin([0, 20])
    write_committed(
        further.sel(step=[0, 20]).assign(valid_loss=further["valid_loss"].where(ends)), file
    )
    assert command.main_report(["run"]) == 0
    without_middle = xr.load_dataset(file)  # of either: it would be there of some seeds alone
    xr.testing.assert_equal(without_middle["loss"], joined["loss"].sel(step=[0, 20]))
    xr.testing.assert_equal(without_middle["valid_loss"], joined["valid_loss"].where(ends))
    xr.testing.assert_equal(without_middle["train_loss"], joined["train_loss"])
    write_committed(further.assign_attrs(process="another"), file)
    capsys.readouterr()
    assert command.main_report(["run"]) == 2
    assert (
        "small.nc: these seeds cannot join its own: they differ in process; "
        in capsys.readouterr().err
    )
    Path("experiments/small.py").write_text(declaration.replace("length=5", "length=6"))
    assert command.main_report(["run"]) == 2
    assert (
        capsys.readouterr().err
        == "jaxtie.report: run: differs from experiments/small.py in process.length\n"
    )
    Path("experiments/small.py").unlink()
    assert command.main_report(["run"]) == 2
    assert capsys.readouterr().err == "jaxtie.report: run: no file of experiments declares small\n"
