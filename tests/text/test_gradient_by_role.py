"""Gradient by role on text: runs, and the table of a document."""

from pathlib import Path

import commit
import numpy as np
import pytest
import xarray as xr
from condense import trained_tables
from similarity import linear_cka
from text_fixtures import EXPERIMENTS, SIZES, TINY, finished_run

from jaxtie.results.folder import RunFolder
from jaxtie.run import lifecycle

ARMS = ("tied", "tied+output-start", "tied+input-gradient=0", "untied@20", "untied")


@pytest.fixture(scope="module")
def runs(place, tmp_path_factory) -> tuple[Path, Path]:
    """Two runs, with roles recorded and without, alike otherwise."""
    source = TINY.format(path=str(EXPERIMENTS / "text_clm.py"), sizes=SIZES, arms=ARMS)
    for roles in (True, False):
        more = (
            f'experiment = dataclasses.replace(experiment, name="roles-{roles}", roles={roles},'
            " seeds=(3, 4))\n"
        )
        (place / f"roles_{roles}.py").write_text(source + more)
    at = tmp_path_factory.mktemp("roles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle, "draw", lambda *_: [])
        return tuple(
            finished_run(place, at / str(roles), name=f"roles_{roles}") for roles in (True, False)
        )


@pytest.mark.slow
def test_recording_roles_changes_no_training(runs):
    by_role, plain = (RunFolder(folder).load() for folder in runs)
    np.testing.assert_allclose(by_role["loss"], plain["loss"], rtol=1e-3)
    untied = (own["valid_loss"].sel(arm="untied") for own in (by_role, plain))
    np.testing.assert_array_equal(*untied)
    square, product = by_role["step_square"].isel(group=slice(0, 2)), by_role["input_step_product"]
    assert square.sel(step=0).isnull().all() and square.sel(arm="untied").isnull().all()
    assert (square.sel(arm=["tied", "tied+output-start"], step=slice(1, None)) > 0).all()
    midway = square.sel(arm="untied@20")
    assert (midway.sel(step=[10, 20]) > 0).all() and midway.sel(step=[30, 40]).isnull().all()
    assert (product.sel(arm="tied+input-gradient=0", step=slice(1, None)) == 0).all()
    share = 1 - product.sum("group") / by_role["step_square"].sum("group")
    own = share.sel(arm="tied", step=10)
    assert ((own > 0.2) & (own < 1.2)).all()
    assert "step_square" not in plain


@pytest.mark.slow
def test_a_run_on_text_is_committed_with_its_experiment(place, runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "roles.py").write_text((place / "roles_True.py").read_text())
    for document in commit.DOCUMENTS:
        Path(document).write_text("No tables.\n")
    code = commit.main([str(runs[0])])
    error = capsys.readouterr().err  # the command asked for another vocabulary
    assert code == 2 and "differs from experiments/roles.py in corpus.vocab_size" in error
    source = (tmp_path / "experiments" / "roles.py").read_text()
    source += (
        "from jaxtie import Corpus\nexperiment = dataclasses.replace(experiment,"
        " corpus=Corpus(vocab_size=300))\n"
    )
    (tmp_path / "experiments" / "roles.py").write_text(source)
    assert commit.main([str(runs[0])]) == 0
    written = Path("experiments/results/roles-True.md").read_text()
    assert "| tied | 1-10 |" in written and "| neighbours | tied |" in written
    data = xr.load_dataset("experiments/data/roles-True.nc", engine="h5netcdf")
    similarity = data["similarity"].sel(eval_step=40, measure="CKA", seed=4)
    tables = trained_tables(RunFolder(runs[0]).load(), runs[0])
    untied, tied = tables["untied"], tables["tied"][0].sel(seed=4).values
    assert 50 < tied.shape[0] <= 300 and tied.shape[1] == 16
    for table, own in zip(("input", "output"), untied, strict=True):
        # five digits are kept
        expected = pytest.approx(linear_cka(own.sel(seed=4).values, tied).value, rel=1e-5)
        assert float(similarity.sel(arm="tied", table=table)) == expected
