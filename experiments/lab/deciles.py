"""Loss by how frequent the target is: ten equal parts of the validation targets.

    python experiments/lab/deciles.py runs/tying-at-scale-*   # the folders of finished runs
    python experiments/lab/deciles.py    # the table, from data/tying-at-scale-deciles.csv

Targets are put in the order of their token's frequency in the training text, the rarest first. All
targets of a token are in one part: that of the middle one of them. The losses are those of all
validation batches at the end of training; runs with new seeds join the data.
"""

import argparse
import dataclasses
import itertools
import operator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from jaxtie.config import Variant
from jaxtie.results.folder import RunFolder
from jaxtie.results.tables import Table, format_mean
from jaxtie.run.experiment_files import load_experiment
from jaxtie.text.config import TextExperiment
from jaxtie.text.corpus import make_batches, token_counts
from jaxtie.text.task import TextTask, make_targets
from jaxtie.training.checkpoints import opened
from jaxtie.training.distributed import Processes
from jaxtie.training.row_engine import carry_shapes, load_carry

EXPERIMENTS = Path(__file__).parents[1]
DATA = EXPERIMENTS / "data" / "tying-at-scale-deciles.csv"
PARTS = 10


def parts_of(known_V: np.ndarray, predicted_V: np.ndarray) -> np.ndarray:
    """Return the part of each token, from counts in training text and among the targets; V."""
    order = np.argsort(known_V, kind="stable")
    upto = np.cumsum(predicted_V[order])
    middle = upto - predicted_V[order] / 2
    found = np.empty(len(known_V), int)
    found[order] = np.minimum(middle / upto[-1] * PARTS, PARTS - 1).astype(int)
    return found


def losses(run: Path) -> list[dict]:
    """Return a row for each arm, seed and part of a finished run."""
    folder = RunFolder(run)
    config = folder.config()
    declared = load_experiment(EXPERIMENTS / f"{config['experiment']['name'].replace('-', '_')}.py")
    corpus = dataclasses.replace(
        declared.corpus, paths=tuple(config["experiment"]["corpus"]["paths"])
    )
    seeds = tuple(config["experiment"]["seeds"])
    experiment = dataclasses.replace(declared, corpus=corpus, seeds=seeds)
    experiment = experiment.prepare(folder, config, Processes(), print)
    prepared = experiment.prepared
    known_V, predicted_V = (
        token_counts(prepared, rows) for rows in (prepared.text.train, prepared.text.valid)
    )
    part_V = jnp.asarray(parts_of(known_V, predicted_V))
    with opened(folder.checkpoints, to_read=True) as checkpoints:
        states = checkpoints.load(print)
    rows = []
    for arm, i in itertools.product(experiment.arms, range(len(seeds))):
        variant = Variant(arm.untied_from is None, arm.head)
        task = TextTask(experiment, variant, jax.default_backend())
        members = states[arm.name]
        if int(members.steps[i]) < experiment.steps:
            raise SystemExit(f"{run}: {arm} is not finished")
        own = jax.tree.map(operator.itemgetter(slice(i, i + 1)), members)
        params = task.effective(load_carry(carry_shapes(experiment, variant), own).state.params)
        total = sum_losses(experiment, task, params, part_V)
        print(f"{run.name} {arm} {seeds[i]}: {total[0].sum() / total[1].sum():.4f}", flush=True)
        rows += [
            {"experiment": experiment.name, "arm": arm.name, "seed": seeds[i], "part": part + 1}
            | {"targets": int(count), "loss": round(loss / count, 6)}
            for part, (loss, count) in enumerate(total.T.tolist())
        ]
    return rows


def sum_losses(
    experiment: TextExperiment, task: TextTask, params: dict, part_V: jax.Array
) -> np.ndarray:
    """Return the sums of losses and the numbers of targets in each part, 2 by parts."""

    @jax.jit
    def of_batch(params: dict, tokens_BxL: jax.Array) -> jax.Array:
        targets = make_targets(experiment, jax.random.key(0), tokens_BxL)
        inputs = {"params": params}, targets.tokens_BxL, targets.at_P
        h_PxD = task.model.apply(*inputs, method="hidden")
        embedding = {"params": params["embedding"]}
        logits_PxV = task.model.embedding.apply(embedding, h_PxD, method="logits")
        log_p_PxV = jax.nn.log_softmax(logits_PxV.astype(jnp.float32))
        loss_P = -jnp.take_along_axis(log_p_PxV, targets.target_P[:, None], 1)[:, 0]
        part_P = part_V[targets.target_P]
        return jnp.stack(
            [
                jax.ops.segment_sum(value_P * targets.weight_P, part_P, PARTS)
                for value_P in (loss_P, jnp.ones_like(loss_P))
            ]
        )

    rows = experiment.prepared.text.valid
    batches = make_batches(experiment, experiment.prepared, rows, None, keep_last=True)
    found = [of_batch(params, batches[k].tokens_BxL) for k in range(batches.count)]
    return np.sum(np.array(jax.device_get(found), np.float64), axis=0)


def table(rows: pd.DataFrame, first: str = "tied", second: str = "untied") -> Table:
    """Show the difference of two arms in each part."""
    rows = rows[rows["experiment"] == "tying-at-scale"]
    wide = rows.pivot(index=["part", "seed"], columns="arm", values="loss")
    cells = [
        (f"{part}", f"{own[second].mean():.3f}", format_mean((own[first] - own[second]).to_numpy()))
        for part, own in wide.groupby("part")
    ]
    header = ("part, rarest first", f"loss, {second}", f"{first} − {second}")
    note = "Nat a token; differences by seed: mean ± 95 % (Student's t)."
    return Table("The gap by frequency of the target", header, cells, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path)
    runs = parser.parse_args().runs
    rows = pd.read_csv(DATA) if DATA.exists() else pd.DataFrame()
    for run in runs:
        rows = pd.concat([rows, pd.DataFrame(losses(run))])
        rows = rows.drop_duplicates(["experiment", "arm", "seed", "part"], keep="last")
        rows.to_csv(DATA, index=False)
    print(table(rows))


if __name__ == "__main__":
    main()
