"""`jaxtie.run` and `jaxtie.load`: a session as a user types it, interrupts, errors."""

import dataclasses
import doctest
import json
import tempfile
from pathlib import Path

import matplotlib
import pytest
import xarray as xr
from drawing import save_small

import jaxtie
from jaxtie.results import plots
from jaxtie.run import lifecycle

SESSION = Path(__file__).with_name("notebook.txt")
QUICKSTART = Path(__file__).parents[2] / "experiments" / "quickstart.ipynb"
SHORT = {"steps": 40, "record_every": 10, "eval_every": 20, "seeds": (0, 1), "arms": ("tied",)}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """An empty current folder, a folder for temporary files, a backend without windows."""
    (tmp_path / "temporary").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(plots, "save", save_small)
    matplotlib.use("agg")
    return tmp_path


@pytest.mark.slow
def test_a_session(place):
    test = doctest.DocTestParser().get_doctest(
        SESSION.read_text(), {}, SESSION.name, str(SESSION), 0
    )
    assert len(test.examples) > 20
    report = []
    doctest.DocTestRunner().run(test, out=report.append)
    assert not report, "".join(report)
    assert not list((place / "temporary").glob("jaxtie-*"))


def test_invalid_values_are_refused():
    for experiment in (3, jaxtie.Experiment):
        with pytest.raises(jaxtie.UserError, match="expected an experiment, such as"):
            jaxtie.run(experiment)
    with pytest.raises(jaxtie.UserError, match=r"seeds = 4: expected a sequence, .* range\(4\)"):
        jaxtie.Experiment(seeds=4)
    with pytest.raises(jaxtie.UserError, match=r"sweep = .*: expected names and values"):
        jaxtie.Experiment(sweep={"p_X": 0.1})
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        jaxtie.runn  # noqa: B018


def test_an_experiment_is_run_by_its_name_with_changes(monkeypatch):
    trained = []

    def train(experiment: jaxtie.TaskConfig, *_) -> xr.Dataset:
        trained.append(experiment)
        return xr.Dataset()

    monkeypatch.setattr(lifecycle, "run_in_folder", train)
    jaxtie.run("transformer_small", seeds=8, learning_rate=1e-3, width=8, sweep={"eps": (0, 1e-8)})
    expected = jaxtie.Experiment(
        seeds=range(8),
        optimizer=jaxtie.Optimizer(learning_rate=1e-3),
        model=jaxtie.Transformer(width=8),
        sweep={"eps": (0, 1e-8)},
    )
    assert trained == [dataclasses.replace(expected, claim=trained[0].claim)]
    with pytest.raises(jaxtie.UserError, match="did you mean transformer_small"):
        jaxtie.run("transformer_smal")
    with pytest.raises(jaxtie.UserError, match=r"sedes: no number .* did you mean seeds\?"):
        jaxtie.run("transformer_small", sedes=8)


@pytest.mark.slow
def test_the_quickstart_notebook_runs():
    """Its code cells, in order, of a shorter run; the outputs in the file are of the whole one."""
    notebook = json.loads(QUICKSTART.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells)
    whole, names = "seeds=range(64)", {}
    sources = ["".join(cell["source"]) for cell in cells]
    assert any(whole in source for source in sources)
    for source in sources:
        exec(source.replace(whole, "seeds=range(8), steps=1_000"), names)
    assert names["again"]["loss"].equals(names["results"]["loss"])
    assert names["conclusion"].sentences
    printed = "".join("".join(each.get("text", "")) for cell in cells for each in cell["outputs"])
    assert "Tying costs loss: tied − untied = " in printed
