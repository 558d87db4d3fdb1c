"""The run folder: records become labelled results, whatever the kind of the experiment; what cannot
be read is named.
"""

import dataclasses
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import xarray as xr

from jaxtie.config import Arm, TaskConfig, UserError, names_of
from jaxtie.results.folder import RunFolder
from jaxtie.results.netcdf import Schema, Variable, steps_of
from jaxtie.results.tables import last_step, summary_markdown, swept, tables_of


@dataclass(frozen=True)
class Toy(TaskConfig):
    """An experiment of no kind: the wing must not need to know one."""

    task: ClassVar[str] = "toy"
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
CONSTANTS = {"best_loss": xr.DataArray([0.5, 0.6], dims="split")}
ATTRIBUTES = {"kind": "toy", "experiment": "toy", "claim": "none", "command": "python"}


def schema_of(experiment: TaskConfig) -> Schema:
    """Two symbols, three dimensions; tables are kept at the end alone."""
    labels = steps_of(experiment) | {"table_step": (experiment.steps,)}
    return Schema(
        VARIABLES, labels | {"symbol": ["X", "Y"], "symbol2": ["X", "Y"], "dim": np.arange(3)}
    )


def piece(first_record: int, records: int, members: int) -> dict[str, np.ndarray]:
    """Records whose every value tells its record and member: 100·record + member."""
    index = 100 * (first_record + np.arange(records))[:, None] + np.arange(members)[None]
    arrays = {"diverged_at": np.full((records, members), -1, np.int32)}
    for name in VARIABLES:
        shape = schema_of(SMALL).shape(name)
        expanded = index.reshape(*index.shape, *[1] * len(shape))
        arrays[name] = np.broadcast_to(expanded, (*index.shape, *shape)).astype(np.float32)
    return arrays


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


def test_records_find_their_place_and_what_was_not_reached_is_missing(folder):
    folder.append("untied", 0, SEEDS, piece(0, 2, 3))
    folder.append("untied", 2, SEEDS, piece(2, 3, 3))
    folder.append("tied", 0, SEEDS[:2], piece(0, 2, 2))
    results = assembled(folder)
    assert results["loss"].dims == ("arm", "seed", "step")
    assert results["step"].values.tolist() == [0, 100, 200, 300, 400]
    assert results["eval_step"].values.tolist() == [0, 300, 400]
    np.testing.assert_array_equal(
        results["loss"].sel(arm="untied", seed=8), [2, 102, 202, 302, 402]
    )
    np.testing.assert_array_equal(results["valid_loss"].sel(arm="untied", seed=5), [1, 301, 401])
    np.testing.assert_array_equal(
        results["distance"].sel(arm="untied", seed=8, symbol="Y", symbol2="X", step=300), 302
    )
    np.testing.assert_array_equal(
        results["table"].sel(arm="untied", seed=5, symbol="Y", dim=2), [401]
    )
    np.testing.assert_array_equal(
        results["loss"].sel(arm="tied", seed=3), [0, 100, np.nan, np.nan, np.nan]
    )
    assert (
        results["table"].sel(arm="tied").isnull().all()
        and results["loss"].sel(arm="tied", seed=8).isnull().all()
    )
    assert (results["diverged_at"] == -1).all()
    assert results["loss"].attrs == {"units": "nat", "long_name": "training loss"}
    assert results.attrs == ATTRIBUTES
    xr.testing.assert_equal(results["best_loss"], CONSTANTS["best_loss"])


def test_members_are_found_by_their_seeds_in_whatever_order_and_company(folder):
    folder.append("untied", 0, SEEDS[[2, 0]], piece(0, 2, 2))
    folder.append("untied", 2, SEEDS[[2, 1]], piece(2, 3, 2))
    loss = assembled(folder)["loss"].sel(arm="untied").values
    np.testing.assert_array_equal(loss[2], [0, 100, 200, 300, 400])
    np.testing.assert_array_equal(loss[0, :3], [1, 101, np.nan])
    np.testing.assert_array_equal(loss[1, 1:], [np.nan, 201, 301, 401])


def test_a_member_that_diverged_later_than_an_older_stretch_knows_has_diverged(folder):
    """Stretches are cut as blocks were, so an older one, of other company, may be filled after a
    newer one.
    """
    later = piece(2, 3, 2)
    later["diverged_at"][:, 1] = 300
    folder.append("untied", 2, SEEDS[:2], later)
    folder.append("untied", 0, SEEDS[1:], piece(0, 2, 2))
    assert assembled(folder)["diverged_at"].sel(arm="untied").values.tolist() == [-1, 300, -1]


def test_members_are_found_by_their_settings(folder):
    grid = dataclasses.replace(SMALL, sweep=(("a", (0.5, 1.0)), ("b", (1.0, 2.0, 3.0))))
    numbers = np.array(grid.members)
    folder.append("untied", 0, numbers, piece(0, 5, len(numbers)))
    results = assembled(folder, grid)
    assert results["loss"].dims == ("arm", "a", "b", "seed", "step") and swept(results) == (
        "a",
        "b",
    )
    for i, (a, b, seed) in enumerate(itertools.product((0.5, 1.0), (1.0, 2.0, 3.0), grid.seeds)):
        assert float(results["loss"].sel(arm="untied", a=a, b=b, seed=seed, step=200)) == 200 + i


@pytest.mark.parametrize("sweep", [(), (("a", (0.5, 1.0)), ("b", (1.0, 2.0, 3.0)))])
def test_results_are_unpacked_to_the_records_they_were_made_of(folder, sweep):
    experiment = dataclasses.replace(SMALL, seeds=tuple(range(70, 0, -2)), sweep=sweep)
    numbers = np.array(experiment.members)
    for arm in names_of(experiment.arms):
        records = piece(0, 5, len(numbers))
        records["diverged_at"][:, 1] = 200
        folder.append(arm, 0, numbers, records)
    before = assembled(folder, experiment)
    folder.discard_records()
    folder.unpack(schema_of(experiment))
    xr.testing.assert_identical(assembled(folder, experiment), before)


def test_records_are_cut_back_to_where_members_stand(folder):
    folder.append("untied", 0, SEEDS, piece(0, 2, 3))
    folder.append("untied", 2, SEEDS, piece(2, 3, 3))
    folder.append("tied", 0, SEEDS, piece(0, 5, 3))
    folder.start_records({"untied": dict.fromkeys(SMALL.seeds, 300)}, SMALL.record_every)
    loss = assembled(folder)["loss"]
    np.testing.assert_array_equal(loss.sel(arm="untied", seed=3), [0, 100, 200, 300, np.nan])
    assert loss.sel(arm="tied").isnull().all()


def test_arms_with_heads_keep_their_records(folder):
    """Names hold dots, signs of equality and numbers, as files' names do between their parts."""
    arms = (
        "tied+input-gradient=0.5",
        "tied+input-gradient=0.25",
        "untied+bias+logit-softcap=30.000000001@200",
        "untied+bias@200",
    )
    heads = dataclasses.replace(SMALL, arms=arms)
    for i, arm in enumerate(arms):
        records = piece(0, 5, 3)
        folder.append(arm, 0, SEEDS, records | {"loss": records["loss"] + 1000 * i})
    standing = dict.fromkeys(SMALL.seeds, 400)
    folder.start_records(
        {arm: standing for arm in arms} | {arms[1]: dict.fromkeys(SMALL.seeds, 100)},
        SMALL.record_every,
    )
    results = assembled(folder, heads)
    assert results["arm"].values.tolist() == list(arms)
    np.testing.assert_array_equal(
        results["loss"].sel(seed=5, step=100).values, [101, 1101, 2101, 3101]
    )
    np.testing.assert_array_equal(
        results["loss"].sel(seed=5, step=400).values, [401, np.nan, 2401, 3401]
    )


def test_records_of_the_version_before_are_read(folder):
    """Members by number, the arm's name first; this version writes the same."""
    untying = dataclasses.replace(SMALL, arms=("untied@200",))
    records = folder.path / "records"
    np.savez(
        records / "untied@200.000000000.000000002.0000000003.npz", member=SEEDS, **piece(0, 2, 3)
    )
    np.savez(
        records / "untied@200.000000002.000000003.0000000003.npz", member=SEEDS, **piece(2, 3, 3)
    )
    before = sorted(path.name for path in records.iterdir())
    folder.start_records({"untied@200": dict.fromkeys(SMALL.seeds, 400)}, SMALL.record_every)
    np.testing.assert_array_equal(
        assembled(folder, untying)["loss"].sel(seed=5), [[1, 101, 201, 301, 401]]
    )
    for path in records.iterdir():
        path.unlink()
    folder.append("untied@200", 0, SEEDS, piece(0, 2, 3))
    folder.append("untied@200", 2, SEEDS, piece(2, 3, 3))
    assert sorted(path.name for path in records.iterdir()) == before


@pytest.mark.parametrize(("reached", "others"), [("valid_loss", 0), ("loss", 200)])
def test_the_last_step_is_where_every_member_is_that_has_not_diverged(folder, reached, others):
    folder.append("untied", 0, SEEDS, piece(0, 5, 3))
    folder.append("tied", 0, SEEDS[:2], piece(0, 5, 2))
    assert last_step(assembled(folder), reached) == 0
    diverged = piece(0, 4, 1)
    diverged["diverged_at"][:] = 250
    for name in ("loss", "valid_loss"):
        diverged[name][3:] = np.nan
    folder.append("tied", 0, SEEDS[2:], diverged)
    results = assembled(folder)
    assert last_step(results, reached) == 400
    results["diverged_at"][:] = -1
    assert last_step(results, reached) == others


def test_an_arm_has_two_tables_if_it_is_ever_untied():
    assert tables_of(Arm.parse("tied+bias")) == {"tied+bias": "input"}
    for name in ("untied", "untied@100", "untied+bias@100"):
        assert tables_of(Arm.parse(name)) == {f"{name} input": "input", f"{name} output": "output"}


def test_a_summary_says_what_was_asked_and_how(folder):
    folder.append("untied", 0, SEEDS, piece(0, 5, 3))
    assert summary_markdown(assembled(folder), []) == "# toy\n\nnone\n\n`python`\n"


def test_configuration_is_compared_field_by_field(folder):
    assert folder.differences(SMALL, folder.config()) == []
    other = dataclasses.replace(SMALL, steps=500, arms=("tied", "untied@100"), claim="another")
    assert folder.differences(other, folder.config()) == ["arms", "steps"]
    older = folder.config()
    del older["experiment"]["added_later"]
    assert folder.differences(SMALL, older) == ["added_later"]
    assert folder.differences(dataclasses.replace(SMALL, added_later=False), older) == [
        "added_later"
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"experiment": 1}', "\x00"])
def test_a_configuration_that_cannot_be_read_is_named(folder, text):
    (folder.path / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config\.json"):
        folder.config()


def test_a_folder_of_other_things_is_left_alone(tmp_path):
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


def test_a_new_run_clears_what_an_earlier_one_left(folder):
    folder.append("tied", 0, SEEDS, piece(0, 2, 3))
    folder.summary.write_text("old")
    folder.create({"experiment": SMALL.as_dict(), "finished": False})
    assert sorted(path.name for path in folder.path.iterdir()) == [".lock", "config.json"]


def test_what_was_half_written_is_swept_away(folder, monkeypatch):
    folder.append("untied", 0, SEEDS, piece(0, 2, 3))

    def die(file, **arrays):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", die)
    with pytest.raises(OSError, match="no space"):
        folder.append("untied", 2, SEEDS, piece(2, 3, 3))
    (folder.path / "records" / ".untied.killed").write_bytes(b"half")
    folder.start_records({"untied": dict.fromkeys(SMALL.seeds, 100)}, SMALL.record_every)
    names = [path.name for path in (folder.path / "records").iterdir()]
    assert names == ["untied.000000000.000000002.0000000003.npz"]


@pytest.mark.parametrize("content", [None, b"", b"not a NetCDF file"])
def test_results_that_cannot_be_read_are_named(folder, content):
    if content is not None:
        folder.results.write_bytes(content)
    with pytest.raises(UserError, match=r"results\.nc") as raised:
        folder.load()
    assert "\n" not in str(raised.value)


def test_config_is_json_that_others_can_read(folder):
    config = json.loads((folder.path / "config.json").read_text())
    assert config["experiment"]["seeds"] == [3, 5, 8] and config["experiment"]["arms"] == [
        "tied",
        "untied",
    ]


def test_an_object_touches_nothing(tmp_path):
    assert RunFolder(tmp_path / "none").config() is None
    assert list(Path(tmp_path).iterdir()) == []
