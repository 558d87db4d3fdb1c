"""A user's own task needs `build` and three functions: it trains, sweeps, goes on and is drawn."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawing import save_small
from quickly import as_users

import jaxtie
from jaxtie.config import Arm, Declaration, Optimizer, Sweep
from jaxtie.results import analysis, plots
from jaxtie.results.folder import RunFolder
from jaxtie.training.task import Task, key_at


@dataclass(frozen=True)
class Copying(Declaration):
    """Predict a token from itself, without a body: what a tied table does well."""

    task: ClassVar[str] = "copying"
    name: str = "copying"
    claim: str = "none"
    arms: tuple[Arm | str, ...] = ("tied", "untied@20")
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 40
    record_every: int = 10
    eval_every: int = 20
    optimizer: Optimizer = Optimizer(learning_rate=3e-2)  # noqa: RUF009, it is frozen
    roles: bool = False
    data_seed: int = 14
    sweep: Sweep = ()

    def __post_init__(self):
        self.check_names_and_members()
        self.check_steps()

    def build(self, variant, platform):
        return CopyingTask(self, variant)


class CopyingTask(Task):
    def init(self, key, hparams):
        names = ("input",) if self.variant.tied else ("input", "output")
        keys = dict(zip(("input", "output"), jax.random.split(key), strict=True))
        return {"embedding": {name: jax.random.normal(keys[name], (5, 4)) / 2 for name in names}}

    def batch(self, stream, hparams, step, rows):
        return jax.random.randint(key_at(stream, step), (16,), 0, 5)

    def loss(self, params, batch):
        table = params["embedding"]
        logits = table["input"][batch] @ table.get("output", table["input"]).T
        chosen = jnp.take_along_axis(logits, batch[:, None], axis=1)[:, 0]
        loss = jnp.mean(jax.nn.logsumexp(logits, axis=1) - chosen)
        return loss, {"loss": loss, "first": jnp.mean(batch == 0, dtype=jnp.float32)}

    def measure(self, params):
        return {"size": jnp.sqrt(jnp.sum(params["embedding"]["input"] ** 2))}

    def evaluate(self, params, hparams):
        return {"rows": params["embedding"]["input"]}


@pytest.fixture(autouse=True)
def small_figures(monkeypatch):
    """Figures are drawn quickly; programs of several sizes round alike."""
    monkeypatch.setattr(plots, "save", save_small)
    with as_users():
        yield


def test_an_own_task_is_trained_extended_swept_and_drawn(tmp_path):
    config = Copying(sweep=(("learning_rate", (1e-2, 3e-2)),))
    short = dataclasses.replace(config, steps=30, seeds=(2, 1))
    jaxtie.run(short, tmp_path / "run", quiet=True)
    found = jaxtie.run(config, tmp_path / "run", quiet=True)
    once = jaxtie.run(config, quiet=True)
    assert found.drop_attrs().identical(once.drop_attrs())
    assert found["loss"].dims == ("arm", "learning_rate", "seed", "step")
    assert found["size"].dims == found["loss"].dims
    assert found["rows"].dims == ("arm", "learning_rate", "seed", "eval_step", "rows_0", "rows_1")
    assert (found["loss"].isel(step=-1) < found["loss"].isel(step=0)).all()
    assert (found["diverged_at"] == -1).all() and found.attrs["task"] == "copying"
    # the arms have the same batches, and are one until they are untied
    tied, untied = found.sel(arm="tied"), found.sel(arm="untied@20")
    np.testing.assert_array_equal(tied["first"], untied["first"])
    np.testing.assert_array_equal(tied["loss"][..., :3], untied["loss"][..., :3])
    assert (tied["loss"][..., 3:] != untied["loss"][..., 3:]).all()
    (table,) = analysis.tables(found)
    assert [row[:2] for row in table.rows[::3]] == [
        ("learning_rate = 0.01", "first"),
        ("learning_rate = 0.03", "first"),
    ]
    assert {"steps"} == set(analysis.frames(found))
    assert set(analysis.commit(found, tmp_path)) == {"loss", "first", "size"}
    folder = RunFolder(tmp_path / "run")
    assert "untied@20 − tied, paired" in folder.summary.read_text(encoding="utf-8")
    drawn = {path.stem for path in folder.figures.glob("*.png")}
    assert {"loss", "first", "size"} <= drawn


def test_a_seed_of_an_own_task_gives_its_bits_alone(tmp_path):
    config = Copying(arms=("untied",))
    many = jaxtie.run(config, quiet=True)
    alone = jaxtie.run(dataclasses.replace(config, seeds=(1,)), quiet=True)
    for name in ("loss", "size", "rows"):
        np.testing.assert_array_equal(alone[name].sel(seed=1), many[name].sel(seed=1))
