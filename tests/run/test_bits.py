"""A flipped bit of a run's files is refused in one line, and a missing `results.nc` is named."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
from drawing import save_small
from draws import draws

import jaxtie
from jaxtie.config import UserError
from jaxtie.results import plots
from jaxtie.results.folder import RunFolder
from jaxtie.run import command

pytestmark = pytest.mark.slow
TINY = "--seeds 2 --steps 40 --record-every 20 --eval-every 40 --arms untied --quiet".split()
SWEEP = ["--sweep", "layers=1,2"]
MORE = ["--seeds", "3"]


@pytest.fixture(scope="module", autouse=True)
def small_figures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "save", save_small)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> dict[str, Path]:
    """A run and a sweep."""
    folders = {name: tmp_path_factory.mktemp(name) / "run" for name in ("one", "sweep")}
    for name, folder in folders.items():
        assert command.main([*TINY, *SWEEP * (name == "sweep"), "--out", str(folder)]) == 0
    return folders


def flips(path: Path, count: int, seed: int = 0) -> Iterator[tuple[int, int]]:
    """Flip a random bit of a file, yield its place, and flip it back."""
    whole, rng = path.read_bytes(), random.Random(seed)
    for _ in range(count):
        changed, place, bit = bytearray(whole), rng.randrange(len(whole)), rng.randrange(8)
        changed[place] ^= 1 << bit
        path.write_bytes(changed)
        yield place, bit
    path.write_bytes(whole)


def check_refused(capsys, main, *arguments: str, names: Path) -> str:
    """Check that a command ends with one line that names a file or folder; return the line."""
    capsys.readouterr()
    status, (out, error) = main([*arguments]), capsys.readouterr()
    assert (status, out, error.count("\n")) == (2, "", 1), error
    assert str(names) in error
    return error


def check_all_refuse(capsys, folder: Path, named: Path, options: list[str]) -> None:
    """Check that reading, running again, extending and reporting refuse a finished run."""
    with pytest.raises(UserError, match="--overwrite") as raised:
        jaxtie.load(folder)
    assert str(named) in str(raised.value) and "\n" not in str(raised.value)
    out = ["--out", str(folder)]
    assert "--overwrite" in check_refused(capsys, command.main, *options, *out, names=named)
    assert "--overwrite" in check_refused(capsys, command.main_report, str(folder), names=named)
    if "--sweep" not in options:  # a sweep reads its points
        extended = check_refused(capsys, command.main, *options, *MORE, *out, names=named)
        assert "--overwrite" in extended


@pytest.mark.parametrize("kind", ["one", "sweep"])
def test_a_flipped_bit_of_results_is_refused(finished, tmp_path, capsys, kind):
    folder, whole = shutil.copytree(finished[kind], tmp_path / "run"), jaxtie.load(finished[kind])
    before = (folder / "config.json").read_bytes()
    for _ in flips(folder / "results.nc", draws(4)):
        check_all_refuse(capsys, folder, folder / "results.nc", TINY + SWEEP * (kind == "sweep"))
        assert (folder / "config.json").read_bytes() == before
    assert jaxtie.load(folder).identical(whole)


def test_a_flipped_bit_of_the_results_of_a_point_is_refused(finished, tmp_path, capsys):
    """Both when the sweep is extended and when it is joined after an interrupt."""
    folder = shutil.copytree(finished["sweep"], tmp_path / "run")
    point, whole = folder / "points" / "layers=1", jaxtie.load(folder)
    config = RunFolder(folder).config()
    for _ in flips(point / "results.nc", draws(3)):
        assert jaxtie.load(folder).identical(whole)
        with pytest.raises(UserError, match="--overwrite"):
            jaxtie.load(point)
        for more in ([], MORE):
            RunFolder(folder).write_config(config | {"finished": bool(more)})
            line = [*TINY, *SWEEP, *more, "--out", str(folder)]
            error = check_refused(capsys, command.main, *line, names=point / "results.nc")
            assert "--overwrite" in error


def test_a_flipped_bit_of_a_configuration_is_refused_or_changes_nothing(finished, tmp_path):
    folder = RunFolder(shutil.copytree(finished["one"], tmp_path / "run"))
    whole, refused, count = folder.config(), 0, draws(200)
    for _ in flips(tmp_path / "run" / "config.json", count):
        try:
            assert folder.config() == whole
        except UserError as error:
            assert "--overwrite" in str(error) and "\n" not in str(error)
            refused += 1
    assert refused > 0.9 * count  # in a number, e may become E


def test_a_run_with_a_damaged_configuration_can_be_overwritten(finished, tmp_path, capsys):
    """As the line says."""
    folder = shutil.copytree(finished["one"], tmp_path / "run")
    (folder / "config.json").write_text("{")
    line = [*TINY, "--out", str(folder)]
    assert "--overwrite" in check_refused(capsys, command.main, *line, names=folder)
    assert command.main([*line, "--overwrite"]) == 0
    assert jaxtie.load(folder).drop_attrs().identical(jaxtie.load(finished["one"]).drop_attrs())


def test_a_folder_of_an_older_version_is_refused_for_what_it_is(finished, tmp_path, capsys):
    """Version 1 had no checksums."""
    folder = shutil.copytree(finished["one"], tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    del config["sha256"]
    (folder / "config.json").write_text(json.dumps(config | {"format": 1}))
    content = (folder / "results.nc").read_bytes()[:-32]
    (folder / "results.nc").write_bytes(content)
    check_all_refuse(capsys, folder, folder / "config.json", TINY)
    with pytest.raises(UserError, match="another version of jaxtie wrote this run"):
        jaxtie.load(folder)


def test_other_programs_read_results_and_records(finished, tmp_path):
    """They ignore the checksum at the end; a copy without its folder's other files is verified."""
    path = shutil.copy(finished["one"] / "results.nc", tmp_path / "results.nc")
    whole = jaxtie.load(finished["one"])
    assert xr.load_dataset(path).identical(whole) and jaxtie.load(tmp_path).identical(whole)
    with h5py.File(path) as file:
        assert np.array_equal(file["loss"], whole["loss"])
    folder = RunFolder(tmp_path)
    folder.start_records({}, 20)
    folder.append("untied", 0, np.array([0, 1]), {"loss": np.ones((3, 2), np.float32)})
    with np.load(*(tmp_path / "records").iterdir()) as records:
        assert np.array_equal(records["loss"], np.ones((3, 2)))


@pytest.mark.parametrize("kind", ["one", "sweep"])
def test_where_a_finished_run_lacks_its_results_overwriting_is_named(
    finished, tmp_path, capsys, kind
):
    folder = shutil.copytree(finished[kind], tmp_path / "run")
    (folder / "results.nc").unlink()
    line = TINY + SWEEP * (kind == "sweep")
    check_all_refuse(capsys, folder, folder, line)
    assert command.main([*line, "--overwrite", "--out", str(folder)]) == 0
    assert jaxtie.load(folder).drop_attrs().identical(jaxtie.load(finished[kind]).drop_attrs())


def test_where_a_point_lacks_its_results_overwriting_is_named(finished, tmp_path, capsys):
    """The sweep's own results are shown, since they are whole."""
    folder = shutil.copytree(finished["sweep"], tmp_path / "run")
    point, line = folder / "points" / "layers=1", [*TINY, *SWEEP, "--out", str(folder)]
    (point / "results.nc").unlink()
    assert command.main(line) == 0
    assert "--overwrite" in check_refused(capsys, command.main, *line, *MORE, names=point)
    assert "--overwrite" in check_refused(capsys, command.main, *line, *MORE, names=point)


def test_where_an_unfinished_run_lacks_its_results_the_command_that_goes_on_is_named(
    finished, tmp_path
):
    folder = RunFolder(shutil.copytree(finished["one"], tmp_path / "run"))
    folder.write_config(folder.config() | {"finished": False})
    folder.results.unlink()
    with pytest.raises(UserError, match=r"holds no results\.nc; the same command goes on"):
        jaxtie.load(folder.path)
