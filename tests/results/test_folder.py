"""The run folder: records become results, of any task; unreadable files are user errors."""

import dataclasses
import io
import itertools
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import xarray as xr

from jaxtie.config import Arm, TaskConfig, UserError, names_of
from jaxtie.results.folder import RunFolder, write_sealed
from jaxtie.results.netcdf import Schema, Variable, steps_of
from jaxtie.results.tables import last_step, summary_markdown, swept, tables_of


@dataclass(frozen=True)
class Toy(TaskConfig):
    """An experiment of no task that the package knows."""

    task: ClassVar[str] = "toy"
    traced: ClassVar[tuple[str, ...]] = ("a", "b")
    name: str = "toy"
    claim: str = "none"
    arms: tuple[Arm | str, ...] = ("tied", "untied")
    steps: int = 400
    record_every: int = 100
    eval_every: int = 300
    seeds: tuple[int, ...] = (3, 5, 8)
    sweep: tuple[tuple[str, tuple[float, ...]], ...] = ()
    added_later: bool = True

    def __post_init__(self):
        self.check_names_and_members()
        self.check_steps()


SMALL = Toy()
SEEDS = np.array(SMALL.seeds)
VARIABLES = {
    "loss": Variable(("step",), "nat", "training loss"),
    "valid_loss": Variable(("eval_step",), "nat", "validation loss"),
    "distance": Variable(("step", "symbol", "symbol2"), "1", "distances"),
    "table": Variable(("table_step", "symbol", "dim"), "1", "embedding"),
}
SHAPES = {"loss": (), "valid_loss": (), "distance": (2, 2), "table": (2, 3)}  # of one record
CONSTANTS = {"best_loss": xr.DataArray([0.5, 0.6], dims="split")}
ATTRIBUTES = {"kind": "toy", "experiment": "toy", "claim": "none", "command": "python"}


def schema_of(experiment: TaskConfig) -> Schema:
    """Two symbols, three dimensions; tables are recorded at the end only."""
    labels = steps_of(experiment) | {"table_step": (experiment.steps,)}
    symbols = {"symbol": ["X", "Y"], "symbol2": ["X", "Y"]}
    return Schema(VARIABLES, labels | symbols | {"dim": np.arange(3)})


def records_of(first_record: int, records: int, members: int) -> dict[str, np.ndarray]:
    """Make records whose values are 100·record + member."""
    index = 100 * (first_record + np.arange(records))[:, None] + np.arange(members)[None]
    arrays = {"diverged_at": np.full((records, members), -1, np.int32)}
    for name in VARIABLES:
        shape = SHAPES[name]
        expanded = index.reshape(*index.shape, *[1] * len(shape))
        arrays[name] = np.broadcast_to(expanded, (*index.shape, *shape)).astype(np.float32)
    return arrays


def write_npz(path: Path, **arrays: np.ndarray) -> None:
    np.savez(content := io.BytesIO(), **arrays)
    write_sealed(path, content.getvalue())


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        folder.create({"experiment": SMALL.as_dict(), "finished": False})
        folder.start_records({}, SMALL.record_every)
        yield folder


def assembled(folder: RunFolder, experiment: TaskConfig = SMALL) -> xr.Dataset:
    folder.assemble(experiment, schema_of(experiment), ATTRIBUTES, CONSTANTS)
    return folder.load()


def test_records_find_their_place_and_missing_ones_are_nan(folder):
    folder.append("untied", 0, SEEDS, records_of(0, 2, 3))
    folder.append("untied", 2, SEEDS, records_of(2, 3, 3))
    folder.append("tied", 0, SEEDS[:2], records_of(0, 2, 2))
    results = assembled(folder)
    assert results["loss"].dims == ("arm", "seed", "step")
    assert results["step"].values.tolist() == [0, 100, 200, 300, 400]
    assert results["eval_step"].values.tolist() == [0, 300, 400]
    untied, tied = results.sel(arm="untied"), results.sel(arm="tied")
    at = {"symbol": "Y", "symbol2": "X", "step": 300}
    assert untied["loss"].sel(seed=8).values.tolist() == [2, 102, 202, 302, 402]
    assert untied["valid_loss"].sel(seed=5).values.tolist() == [1, 301, 401]
    assert untied["distance"].sel(seed=8, **at) == 302
    assert untied["table"].sel(seed=5, symbol="Y", dim=2).values.tolist() == [401]
    np.testing.assert_array_equal(tied["loss"].sel(seed=3), [0, 100, *[np.nan] * 3])
    assert tied["table"].isnull().all() and tied["loss"].sel(seed=8).isnull().all()
    assert (results["diverged_at"] == -1).all()
    assert results["loss"].attrs == {"units": "nat", "long_name": "training loss"}
    assert results.attrs == ATTRIBUTES
    xr.testing.assert_equal(results["best_loss"], CONSTANTS["best_loss"])


def test_members_are_found_by_their_seeds_in_any_order_and_company(folder):
    folder.append("untied", 0, SEEDS[[2, 0]], records_of(0, 2, 2))
    folder.append("untied", 2, SEEDS[[2, 1]], records_of(2, 3, 2))
    loss = assembled(folder)["loss"].sel(arm="untied").values
    np.testing.assert_array_equal(loss[2], [0, 100, 200, 300, 400])
    np.testing.assert_array_equal(loss[0, :3], [1, 101, np.nan])
    np.testing.assert_array_equal(loss[1, 1:], [np.nan, 201, 301, 401])


def test_older_records_do_not_undo_a_divergence(folder):
    """Older records, of other blocks, may be written after newer ones."""
    later = records_of(2, 3, 2)
    later["diverged_at"][:, 1] = 300
    folder.append("untied", 2, SEEDS[:2], later)
    folder.append("untied", 0, SEEDS[1:], records_of(0, 2, 2))
    assert assembled(folder)["diverged_at"].sel(arm="untied").values.tolist() == [-1, 300, -1]


GRID = (("a", (0.5, 1.0)), ("b", (1.0, 2.0, 3.0)))


def test_members_are_found_by_their_sweep_points(folder):
    grid = dataclasses.replace(SMALL, sweep=GRID)
    numbers = np.array(grid.members)
    folder.append("untied", 0, numbers, records_of(0, 5, len(numbers)))
    results = assembled(folder, grid)
    assert results["loss"].dims == ("arm", "a", "b", "seed", "step")
    assert swept(results) == ("a", "b")
    untied = results["loss"].sel(arm="untied", step=200)
    for i, (a, b, seed) in enumerate(itertools.product(*dict(GRID).values(), grid.seeds)):
        assert untied.sel(a=a, b=b, seed=seed) == 200 + i


@pytest.mark.parametrize("sweep", [(), GRID])
def test_results_are_unpacked_to_the_records_they_were_made_of(folder, sweep):
    experiment = dataclasses.replace(SMALL, seeds=tuple(range(70, 0, -2)), sweep=sweep)
    numbers = np.array(experiment.members)
    for arm in names_of(experiment.arms):
        records = records_of(0, 5, len(numbers))
        records["diverged_at"][:, 1] = 200
        folder.append(arm, 0, numbers, records)
    before = assembled(folder, experiment)
    folder.discard_records()
    folder.unpack(schema_of(experiment))
    xr.testing.assert_identical(assembled(folder, experiment), before)


def reached(step: int) -> dict[int, int]:
    return dict.fromkeys(SMALL.seeds, step)


def test_records_are_cut_back_to_the_steps_of_members(folder):
    folder.append("untied", 0, SEEDS, records_of(0, 2, 3))
    folder.append("untied", 2, SEEDS, records_of(2, 3, 3))
    folder.append("tied", 0, SEEDS, records_of(0, 5, 3))
    folder.start_records({"untied": reached(300)}, SMALL.record_every)
    loss = assembled(folder)["loss"]
    np.testing.assert_array_equal(loss.sel(arm="untied", seed=3), [0, 100, 200, 300, np.nan])
    assert loss.sel(arm="tied").isnull().all()


def test_names_of_arms_may_hold_dots_and_numbers(folder):
    """As names of files do between their parts."""
    arms = (
        "tied+input-gradient=0.5",
        "tied+input-gradient=0.25",
        "untied+bias+logit-softcap=30.000000001@200",
        "untied+bias@200",
    )
    for i, arm in enumerate(arms):
        records = records_of(0, 5, 3)
        folder.append(arm, 0, SEEDS, records | {"loss": records["loss"] + 1000 * i})
    ends = {arm: reached(400) for arm in arms} | {arms[1]: reached(100)}
    folder.start_records(ends, SMALL.record_every)
    results = assembled(folder, dataclasses.replace(SMALL, arms=arms))
    assert results["arm"].values.tolist() == list(arms)
    loss = results["loss"].sel(seed=5)
    np.testing.assert_array_equal(loss.sel(step=100), [101, 1101, 2101, 3101])
    np.testing.assert_array_equal(loss.sel(step=400), [401, np.nan, 2401, 3401])


def test_files_of_records_keep_their_names(folder):
    """Arm, first record, number of records, first member."""
    name = "untied@200.{:09d}.{:09d}.0000000003.npz".format
    before, records = [name(0, 2), name(2, 3)], folder.path / "records"
    write_npz(records / before[0], member=SEEDS, **records_of(0, 2, 3))
    write_npz(records / before[1], member=SEEDS, **records_of(2, 3, 3))
    folder.start_records({"untied@200": reached(400)}, SMALL.record_every)
    untying = dataclasses.replace(SMALL, arms=("untied@200",))
    loss = assembled(folder, untying)["loss"].sel(seed=5)
    np.testing.assert_array_equal(loss, [[1, 101, 201, 301, 401]])
    for path in records.iterdir():
        path.unlink()
    folder.append("untied@200", 0, SEEDS, records_of(0, 2, 3))
    folder.append("untied@200", 2, SEEDS, records_of(2, 3, 3))
    assert sorted(path.name for path in records.iterdir()) == before


@pytest.mark.parametrize(("variable", "others"), [("valid_loss", 0), ("loss", 200)])
def test_last_step_is_where_all_members_are_that_have_not_diverged(folder, variable, others):
    folder.append("untied", 0, SEEDS, records_of(0, 5, 3))
    folder.append("tied", 0, SEEDS[:2], records_of(0, 5, 2))
    assert last_step(assembled(folder), variable) == 0
    diverged = records_of(0, 4, 1)
    diverged["diverged_at"][:] = 250
    for name in ("loss", "valid_loss"):
        diverged[name][3:] = np.nan
    folder.append("tied", 0, SEEDS[2:], diverged)
    results = assembled(folder)
    assert last_step(results, variable) == 400
    results["diverged_at"][:] = -1
    assert last_step(results, variable) == others


def test_an_arm_has_two_tables_if_it_is_ever_untied():
    assert tables_of(Arm.parse("tied+bias")) == {"tied+bias": "input"}
    for name in ("untied", "untied+bias@100"):
        assert tables_of(Arm.parse(name)) == {f"{name} input": "input", f"{name} output": "output"}


def test_summary_names_experiment_claim_and_command(folder):
    folder.append("untied", 0, SEEDS, records_of(0, 5, 3))
    text = "# toy\n\nClaim: none\n\n`python`\n\nIt costs.\n\n"
    assert summary_markdown(assembled(folder), ["It costs."], []).rstrip("\n") == text.rstrip("\n")


def test_configurations_are_compared_field_by_field(folder):
    assert folder.differences(SMALL, folder.config()) == []
    other = dataclasses.replace(SMALL, steps=500, arms=("tied", "untied@100"), claim="another")
    assert folder.differences(other, folder.config()) == ["arms", "steps"]
    older = folder.config()
    del older["experiment"]["added_later"]
    for value in (True, False):
        experiment = dataclasses.replace(SMALL, added_later=value)
        assert folder.differences(experiment, older) == ["added_later"]


NESTED = "[" * 100_000


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"experiment": 1}', "\x00", NESTED])
def test_an_unreadable_configuration_is_a_user_error(folder, text):
    (folder.path / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config\.json"):
        folder.config()


def test_a_pipe_is_no_configuration(folder):
    (folder.path / "config.json").unlink()
    os.mkfifo(folder.path / "config.json")
    with pytest.raises(UserError, match="is a pipe"):
        folder.config()


@pytest.mark.parametrize("change", [{"finished": True}, {"arms": []}, {"sha256": ""}], ids=str)
def test_a_configuration_that_was_edited_is_a_user_error(folder, change):
    path = folder.path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match="it has changed since a run wrote it"):
        folder.config()


@pytest.mark.parametrize("content", [None, b"", b"not a NetCDF file"])
def test_unreadable_results_are_a_user_error(folder, content):
    if content is not None:
        folder.results.write_bytes(content)
    with pytest.raises(UserError, match=r"results\.nc") as raised:
        folder.load()
    assert "\n" not in str(raised.value)


def test_a_folder_of_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="other files"), RunFolder(tmp_path).locked():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_has_one_writer(folder):
    with pytest.raises(UserError, match="another run is writing"), RunFolder(folder.path).locked():
        pass


def test_a_run_that_does_not_fit_the_disk_does_not_start(folder):
    folder.check_space(1)
    with pytest.raises(UserError, match="make room"):
        folder.check_space(2**62)


def test_a_new_run_removes_the_files_of_an_earlier_one(folder):
    folder.append("tied", 0, SEEDS, records_of(0, 2, 3))
    for name in ("points/width=4/checkpoints", "figures", "checkpoints/1"):
        (folder.path / name).mkdir(parents=True)
    for name in ("summary.md", "report.html", "results.nc", "vocab.txt", "points/width=4/x"):
        (folder.path / name).write_text("old")
    folder.create({"experiment": SMALL.as_dict(), "finished": False})
    assert sorted(path.name for path in folder.path.iterdir()) == [".lock", "config.json"]


def test_half_written_files_are_removed(folder, monkeypatch):
    folder.append("untied", 0, SEEDS, records_of(0, 2, 3))

    def die(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", die)
    with pytest.raises(OSError, match="no space"):
        folder.append("untied", 2, SEEDS, records_of(2, 3, 3))
    names = [path.name for path in (folder.path / "records").iterdir()]
    assert names == ["untied.000000000.000000002.0000000003.npz"]


OF_KILLED_RUN = "records/.untied.000000002.000000003.0000000003.npz.abcd_123"


@pytest.mark.parametrize(
    "name", [".config.json.a1b2c3d4", ".results.nc.z_9y8x7w", ".vocab.txt.abcdefgh", OF_KILLED_RUN]
)
def test_temporary_files_of_killed_runs_are_removed_on_the_next_start(folder, tmp_path, name):
    """Files of other names stay."""
    killed = RunFolder(shutil.copytree(folder.path, tmp_path / "killed"))
    foreign = [killed.path / name for name in (".hidden", "records/.DS_Store", "records/.nfs0001")]
    for path in (killed.path / name, *foreign):
        path.write_bytes(b"half")
    with killed.locked():
        assert not (killed.path / name).exists() and all(path.exists() for path in foreign)


@pytest.mark.parametrize("name", [".config.json.a1b2c3d4", ".config.json._____abc"])
def test_a_run_that_was_killed_before_it_had_a_configuration_starts_again(tmp_path, name):
    (tmp_path / name).write_bytes(b"half")
    with RunFolder(tmp_path).locked():
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("write", ["config", "records"])
def test_a_file_is_on_the_disk_before_it_gets_its_name(folder, monkeypatch, write):
    """Else it may be empty after a power failure."""
    calls, replace, fsync = [], Path.replace, os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append("fsync"), fsync(file)))
    monkeypatch.setattr(
        Path, "replace", lambda path, to: (calls.append("replace"), replace(path, to))
    )
    if write == "config":
        folder.write_config({"experiment": SMALL.as_dict()})
    else:
        folder.append("untied", 0, SEEDS, records_of(0, 2, 3))
    assert calls == ["fsync", "replace"]


FOREIGN = [
    "notes.txt",
    "tied.npz",
    "tied.x.y.z.npz",
    "tied.00000000\u00b2.000000005.0000000003.npz",
]


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files_among_the_records_are_ignored_and_stay(folder, name):
    foreign = folder.path / "records" / name
    foreign.write_bytes(b"years of work")
    folder.append("untied", 0, SEEDS, records_of(0, 5, 3))
    folder.check_records("untied", reached(400), SMALL.record_every)
    folder.start_records({"untied": reached(400)}, SMALL.record_every)
    assert np.isfinite(assembled(folder)["loss"].sel(arm="untied")).all()
    folder.discard_records()
    assert [*foreign.parent.iterdir()] == [foreign]


def write_records(folder: RunFolder, damaged: str, content: bytes | None) -> None:
    """Write the records of two groups of members in four files, and damage one of them."""
    for numbers in (SEEDS[:2], SEEDS[2:]):
        folder.append("untied", 0, numbers, records_of(0, 2, len(numbers)))
        folder.append("untied", 2, numbers, records_of(2, 3, len(numbers)))
    path = folder.path / "records" / damaged
    whole = path.read_bytes()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content.replace(b"HALF", whole[: len(whole) // 2]))


@pytest.mark.parametrize("content", [None, b"", b"HALF", b"not an archive"])
@pytest.mark.parametrize("first", ["000000000.000000002", "000000002.000000003"])
@pytest.mark.parametrize("member", ["0000000003", "0000000008"])
def test_a_missing_or_damaged_file_of_records_is_found_if_it_is_needed(
    folder, member, first, content
):
    write_records(folder, f"untied.{first}.{member}.npz", content)
    with pytest.raises(UserError, match="again from the start") as raised:
        folder.check_records("untied", reached(400), SMALL.record_every)
    assert "\n" not in str(raised.value)
    if first.startswith("000000002"):
        folder.check_records("untied", reached(100), SMALL.record_every)


@pytest.mark.parametrize("change", ["variable", "member", "count"])
def test_a_file_of_records_that_is_another_one_is_found(folder, change):
    folder.append("untied", 0, SEEDS, records_of(0, 2, 3))
    path, arrays = next((folder.path / "records").iterdir()), records_of(0, 2, 3)
    members = SEEDS[::-1] if change == "member" else SEEDS
    if change == "variable":
        folder.append("untied", 2, SEEDS, {"loss": arrays["loss"]})
    if change == "count":
        arrays = records_of(0, 3, 3)
    write_npz(path, member=members, **arrays)
    with pytest.raises(UserError, match="again from the start"):
        folder.check_records("untied", reached(300), SMALL.record_every)


def test_creating_the_object_changes_nothing(tmp_path):
    assert RunFolder(tmp_path / "none").config() is None
    assert list(tmp_path.iterdir()) == []
