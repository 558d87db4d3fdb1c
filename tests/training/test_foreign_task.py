"""A task that is none of ours: trained, swept, killed and resumed, with tables and figures."""

import dataclasses
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import start, until_recorded
from quickly import as_users
from recall import Recall, RecallTask

import jaxtie
from jaxtie.config import UserError
from jaxtie.run.command import main
from jaxtie.run.experiment_files import load_experiment
from jaxtie.training.trainer import schema_of

RECALL = Path(__file__).parents[1] / "helpers" / "recall.py"
SMALL = "--steps 400 --record-every 20 --eval-every 100 --quiet".split()


@pytest.fixture(autouse=True, scope="module")
def compiled_as_users_do():
    """Runs of this process are compared to the bit with those of a command."""
    with as_users():
        yield


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory, compiled_as_users_do):
    folder = tmp_path_factory.mktemp("recall") / "run"
    options = ["--seeds", "32", "--sweep", "learning_rate=0.001,0.01", *SMALL, "--out", str(folder)]
    assert main([str(RECALL), *options]) == 0
    return folder


@pytest.mark.slow
def test_it_trains_in_lanes_with_tables_and_figures(run_folder):
    results = jaxtie.load(run_folder)
    assert results["valid_loss"].dims == ("arm", "learning_rate", "seed", "eval_step")
    assert results.sizes["seed"] == 32 and results.sizes["learning_rate"] == 2
    end = results.isel(eval_step=-1)["valid_loss"].mean("seed")
    start_ = results.isel(eval_step=0)["valid_loss"].mean("seed")
    assert (end.sel(learning_rate=0.01) < start_.sel(learning_rate=0.01) - 0.3).all()
    assert (end.sel(learning_rate=0.01) < end.sel(learning_rate=0.001)).all()
    assert {"answer.png", "overview.png"} == {
        path.name for path in (run_folder / "figures").iterdir()
    }
    assert "tied − untied" in (run_folder / "summary.md").read_text()


@pytest.mark.slow
def test_a_seed_has_the_same_bits_alone_and_at_one_rate(run_folder, tmp_path):
    options = ["--seeds", "17-17", "--sweep", "learning_rate=0.01", *SMALL]
    assert main([str(RECALL), *options, "--out", str(tmp_path / "one")]) == 0
    one, all_ = jaxtie.load(tmp_path / "one"), jaxtie.load(run_folder)
    for name in ("loss", "valid_loss", "accuracy"):
        own = all_[name].sel(seed=[17], learning_rate=[0.01])
        np.testing.assert_array_equal(one[name].values, own.values)


@pytest.mark.slow
def test_killed_and_resumed_it_ends_with_the_same_bits(run_folder, tmp_path):
    folder = tmp_path / "run"
    options = [str(RECALL), "--seeds", "32", "--sweep", "learning_rate=0.001,0.01", *SMALL]
    process = start(folder, *options, "--checkpoint-every", "0.01")
    until_recorded(process, folder, 5)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert main([*options, "--out", str(folder)]) == 0
    resumed, whole = jaxtie.load(folder), jaxtie.load(run_folder)
    for name in whole.data_vars:
        np.testing.assert_array_equal(resumed[name].values, whole[name].values, err_msg=str(name))


@pytest.mark.slow
def test_results_of_a_task_that_is_not_imported_are_shown(run_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxtie.config.TASKS", {})
    from jaxtie.results import analysis

    (table,) = analysis.tables(jaxtie.load(run_folder))
    assert len(table.rows) == 2 * 4  # two rates, four scalars


def test_tied_it_has_one_table():
    task = load_experiment(RECALL).build(jaxtie.Variant(tied=True), "cpu")
    assert set(jax.eval_shape(task.init, jax.random.key(0), {})["embedding"]) == {"input"}


def test_the_key_of_a_program_leaves_out_what_is_traced():
    experiment = load_experiment(RECALL)
    adam = experiment.optimizer

    def key(**changes):
        optimizer = dataclasses.replace(adam, **changes)
        return dataclasses.replace(experiment, optimizer=optimizer).program_key()

    assert key(learning_rate=1e-6) == key() != key(half_period=7)
    with pytest.raises(TypeError):  # as for a task that branches on a traced value
        key().optimizer.learning_rate * 1.0


class Uneven(Recall):
    """Metrics that a run must refuse before it trains."""

    task = "uneven"

    def build(self, variant, platform):
        task = RecallTask(self, variant)
        task.evaluate = lambda params, hparams: {self.claim: jnp.zeros(1 + variant.tied)}
        return task


@pytest.mark.parametrize(
    ("metric", "words"),
    [("extra", "the same metrics of all arms"), ("seed", "dimensions of the results")],
)
def test_metrics_that_cannot_be_results_are_refused(metric, words):
    arms = ("tied", "untied") if metric == "extra" else ("tied",)
    with pytest.raises(UserError, match=words):
        schema_of(Uneven(claim=metric, arms=arms))
