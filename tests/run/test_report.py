"""`jaxtie report` draws runs again, and names what is none."""

from pathlib import Path

import pytest
import xarray as xr

from jaxtie.results.folder import write_sealed
from jaxtie.run import command


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder.mkdir(), "it: holds no results.nc; give the folder of a run"),
        (
            lambda folder: (folder / "A").mkdir(parents=True) or (folder / "A/results.nc").touch(),
            "it: holds no results.nc; give one of its folders, such as A",
        ),
        (
            lambda folder: write_as(folder, answer="Yes."),
            "it/results.nc: is of token_pairs.py; see summary.md",
        ),
        (
            lambda folder: folder.mkdir() or (folder / "results.nc").write_bytes(b"CDF"),
            "it/results.nc: is damaged, or no run wrote it",
        ),
    ],
    ids=["empty", "folder of runs", "of the advisor", "foreign"],
)
def test_a_folder_that_is_no_run_is_named_for_what_it_is(tmp_path, capsys, make, words):
    make(tmp_path / "it")
    assert command.main_report([str(tmp_path / "it")]) == 2
    error = capsys.readouterr().err
    assert error.endswith(words + "\n") and error.count("\n") == 1
    assert "--overwrite" not in error


def write_as(folder: Path, **attributes: str) -> None:
    folder.mkdir()
    content = xr.Dataset({"loss": 1.0}, attrs=attributes).to_netcdf(engine="h5netcdf")
    write_sealed(folder / "results.nc", content)
