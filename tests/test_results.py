import json

import numpy as np
import pytest
import xarray as xr

from jaxtie.config import Experiment, UserError
from jaxtie.results import CONSTANTS, VARIABLES, RunFolder, differing_fields

SMALL = Experiment(steps=400, record_every=100, eval_every=300, seeds=(3, 5, 8))
LENGTHS = {"symbol": 7, "symbol2": 7, "pair": 2, "dim": 4}


def piece(first_record: int, records: int, seeds: int) -> dict[str, np.ndarray]:
    """Records whose every value tells its record and seed: 100·record + seed."""
    index = 100 * (first_record + np.arange(records))[:, None] + np.arange(seeds)[None]
    arrays = {"diverged_at": np.full((records, seeds), -1, np.int32)}
    for name, (dimensions, _, _) in VARIABLES.items():
        shape = [LENGTHS[dimension] for dimension in dimensions[1:]]
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


SEEDS = np.array(SMALL.seeds)


def assembled(folder: RunFolder) -> xr.Dataset:
    folder.assemble(SMALL, {"claim": "none"}, dict.fromkeys(CONSTANTS, xr.DataArray([0.5, 0.6], dims="split")))
    return folder.load()


def test_records_find_their_place_and_what_was_not_reached_is_missing(folder):
    folder.append("untied", 0, SEEDS, piece(0, 2, 3))
    folder.append("untied", 2, SEEDS, piece(2, 3, 3))
    folder.append("tied", 0, SEEDS[:2], piece(0, 2, 2))
    results = assembled(folder)
    assert results["loss"].dims == ("arm", "seed", "step")
    assert results["step"].values.tolist() == [0, 100, 200, 300, 400]
    assert results["eval_step"].values.tolist() == [0, 300, 400]
    np.testing.assert_array_equal(results["loss"].sel(arm="untied", seed=8), [2, 102, 202, 302, 402])
    np.testing.assert_array_equal(results["train_loss"].sel(arm="untied", seed=5), [1, 301, 401])
    np.testing.assert_array_equal(results["input_table"].sel(arm="untied", seed=5, symbol="E", dim=2), [1, 301, 401])
    np.testing.assert_array_equal(results["loss"].sel(arm="tied", seed=3), [0, 100, np.nan, np.nan, np.nan])
    assert results["loss"].sel(arm="tied", seed=8).isnull().all()
    assert (results["diverged_at"] == -1).all()
    assert results["loss"].attrs["units"] == "nat"


def test_members_are_found_by_their_seeds_in_whatever_order_and_company(folder):
    folder.append("untied", 0, SEEDS[[2, 0]], piece(0, 2, 2))
    folder.append("untied", 2, SEEDS[[2, 1]], piece(2, 3, 2))
    loss = assembled(folder)["loss"].sel(arm="untied").values
    np.testing.assert_array_equal(loss[2], [0, 100, 200, 300, 400])
    np.testing.assert_array_equal(loss[0, :3], [1, 101, np.nan])
    np.testing.assert_array_equal(loss[1, 1:], [np.nan, 201, 301, 401])


def test_records_are_cut_back_to_where_members_stand(folder):
    folder.append("untied", 0, SEEDS, piece(0, 2, 3))
    folder.append("untied", 2, SEEDS, piece(2, 3, 3))
    folder.append("tied", 0, SEEDS, piece(0, 5, 3))
    folder.start_records({"untied": dict.fromkeys(SMALL.seeds, 300)}, SMALL.record_every)
    loss = assembled(folder)["loss"]
    np.testing.assert_array_equal(loss.sel(arm="untied", seed=3), [0, 100, 200, 300, np.nan])
    assert loss.sel(arm="tied").isnull().all()


def test_results_are_unpacked_to_the_records_they_were_made_of(folder):
    for arm in SMALL.arms:
        folder.append(arm, 0, SEEDS, piece(0, 5, 3))
    before = assembled(folder)
    folder.discard_records()
    folder.unpack()
    xr.testing.assert_identical(assembled(folder), before)


def test_configuration_is_compared_field_by_field(folder):
    new = SMALL.as_dict() | {"steps": 500}
    new["process"] = new["process"] | {"zeros": (0.2, 0.8)}
    assert differing_fields(new, SMALL.as_dict()) == ["process.zeros", "steps"]
    assert folder.differences(SMALL, folder.config()) == []


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


def test_a_new_run_clears_what_an_earlier_one_left(folder):
    folder.append("tied", 0, SEEDS, piece(0, 2, 3))
    folder.summary.write_text("old")
    folder.create({"experiment": SMALL.as_dict(), "finished": False})
    assert sorted(path.name for path in folder.path.iterdir()) == [".lock", "config.json"]


@pytest.mark.parametrize("content", [None, b"", b"not a NetCDF file"])
def test_results_that_cannot_be_read_are_named(folder, content):
    if content is not None:
        folder.results.write_bytes(content)
    with pytest.raises(UserError, match=r"results\.nc"):
        folder.load()


def test_config_is_json_that_others_can_read(folder):
    config = json.loads((folder.path / "config.json").read_text())
    assert config["experiment"]["seeds"] == [3, 5, 8]
