"""Train all cells of `experiments/tying_gap_on_text.py`, one member after another.

    python experiments/scripts/tying_gap_on_text.py --text books/ --out runs/gap

Several such processes, each on a core of its own, share the work; a killed one is started again.
Each finished member is a file in OUT/members. `--gather` writes those of finished arms to
experiments/data/tying-gap-on-text.csv.
"""

import argparse
import itertools
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import filelock
import jax
import numpy as np
import pandas as pd

import jaxtie
from jaxtie.results.folder import atomic_write
from jaxtie.run.experiment_files import load_experiment
from jaxtie.text.config import TextExperiment
from jaxtie.text.data.tokens import prepare_text
from jaxtie.training.devices import describe_device, start_jax

sys.path.append(str(Path(__file__).parents[1] / "lab"))
from tying_gap import CHOOSING, SIZE, chosen_rates

DATA = Path(__file__).parents[1] / "data" / "tying-gap-on-text.csv"
DECLARED = load_experiment(Path(__file__).parents[1] / "tying_gap_on_text.py")
RECORDS = 10  # of a run; its steps are a multiple
WIDTHS = (32, 64, 128)
OTHERS = (
    "tied+half-swap",
    "tied+input-scale=root-D",
    "untied@2/3",
    "wider tied",
    "deeper tied",
    "untied+input-rate=2",
    "untied+input-rate=0.5",
)


class Cell(NamedTuple):
    """Size and budget; `epochs` of the training text."""

    width: int
    vocabulary: int = 2048
    epochs: float = 1
    layers: int = 2
    branch_scale: float | None = None


def jobs() -> Iterator[tuple[Cell, str]]:
    """Yield cells and arms, those that tell most for their time first."""
    short = [Cell(width, vocabulary, 0.25) for vocabulary in (2048, 8192) for width in WIDTHS]
    whole, larger, longer = (
        [Cell(width, *own) for width in WIDTHS] for own in ((2048, 1), (8192, 1), (2048, 4))
    )
    deeper = [Cell(width, layers=4) for width in WIDTHS[1:]]
    branches = Cell(64, branch_scale=0.01)
    first = (*short, *whole, deeper[0], larger[0], branches, larger[1], deeper[1])
    yield from itertools.product(first, ("tied", "untied"))
    yield from itertools.product((*whole, *deeper), ("tied+half-swap",))
    yield from itertools.product((larger[2], *longer), ("tied", "untied"))
    yield from itertools.product((short[1], short[2], short[4], whole[1]), OTHERS)


def matched(cell: Cell, arm: str) -> Cell:
    """Return the cell of an arm: wider or deeper, with about the parameters of the untied model."""
    if arm not in ("wider tied", "deeper tied"):
        return cell

    def parameters(width: int, layers: int, *, tied: bool) -> int:
        sizes = cell.vocabulary, width, layers
        return jaxtie.budget(*sizes, tied=tied, feedforward=3 * width, gated=True).parameters

    wanted = parameters(cell.width, cell.layers, tied=False)

    def distance(cell: Cell) -> int:
        return abs(parameters(cell.width, cell.layers, tied=True) - wanted)

    if arm == "wider tied":
        widths = range(cell.width, 3 * cell.width, 2 * max(1, cell.width // 32))
        return min((cell._replace(width=width) for width in widths), key=distance)
    depths = range(cell.layers, 20 * cell.layers)
    return min((cell._replace(layers=layers) for layers in depths), key=distance)


def rate_of(k: int) -> float:
    """Return a learning rate of the grid."""
    return float(f"{1e-3 * 2 ** (k / 2):.4g}")


class Trainer:
    """Train members, each once; the first seeds choose a learning rate, and more are judged."""

    choosing: tuple[int, ...] = CHOOSING
    judged: tuple[int, ...] = (0, 1, 2, 3, 4)

    def __init__(self, text: tuple[str, ...], out: Path):
        self.text, self.out = text, out
        (out / "members").mkdir(parents=True, exist_ok=True)

    def losses(self, cell: Cell, arm: str, k: int, seeds: tuple[int, ...]) -> pd.DataFrame:
        """Return a row for each seed; train those that have none."""
        names = {
            seed: self.out / "members" / f"{name_of(cell)}_{file_name(arm)}_{k}_{seed}.csv"
            for seed in seeds
        }
        missing = [seed for seed, path in names.items() if not path.exists()]
        if missing:
            for seed, row in self._train(cell, arm, k, missing):
                atomic_write(names[seed], pd.DataFrame([row]).to_csv(index=False).encode())
        return pd.concat([pd.read_csv(path) for path in names.values()])

    def experiment(self, cell: Cell, arm: str, k: int, seeds: list[int]) -> TextExperiment:
        """Return the experiment that trains an arm of a cell."""
        corpus = replace(DECLARED.corpus, paths=self.text, vocab_size=cell.vocabulary)
        report = prepare_text(corpus, say=lambda line: None).report
        tokens = report.tokens["train"] + report.rows["train"]  # a [SEP] ends each row
        batch = DECLARED.batch * DECLARED.length
        steps = RECORDS * max(1, round(cell.epochs * tokens / (batch * RECORDS)))
        own = matched(cell, arm)
        sizes = {"layers": own.layers, "width": own.width, "heads": max(1, cell.width // 32)}
        return replace(
            DECLARED,
            corpus=corpus,
            model=replace(DECLARED.model, **sizes, branch_scale=cell.branch_scale),
            optimizer=replace(
                DECLARED.optimizer,
                learning_rate=rate_of(k),
                half_period=steps,
                warmup=max(1, steps // 10),
            ),
            arms=(arm.split()[-1],),  # of a wider or deeper arm: tied
            seeds=tuple(seeds),
            steps=steps,
            record_every=steps // RECORDS,
            eval_every=steps,
        )

    def _train(self, cell: Cell, arm: str, k: int, seeds: list[int]) -> Iterator[tuple[int, dict]]:
        experiment = self.experiment(cell, arm, k, seeds)
        folder = self.out / f"{name_of(cell)}_{file_name(arm)}_{k}_{min(seeds)}"
        results = jaxtie.run(experiment, folder)
        for seed in seeds:
            own = results.sel(seed=seed).isel(eval_step=-1, arm=0)
            yield (
                seed,
                {
                    **cell._asdict(),
                    "arm": arm,
                    "learning_rate": rate_of(k),
                    "seed": seed,
                    "steps": experiment.steps,
                    "tokens": experiment.steps * DECLARED.batch * DECLARED.length,
                    "parameters": int(own["parameters"]),
                    "bigram": round(float(results["bigram_loss"]), 5),
                    "loss_even": round(float(own["valid_loss_even"]), 5),
                    "loss_odd": round(float(own["valid_loss_odd"]), 5),
                    "device": describe_device(jax.local_devices()[0]),
                },
            )
        shutil.rmtree(folder)

    def search(self, cell: Cell, arm: str) -> None:
        """Find the best rate by the first seeds; train the rest."""
        found: dict[int, float] = {}
        tried = self.first_guess(cell, arm) + np.arange(-1, 2)
        while True:
            for k in tried:
                if k not in found:
                    losses = self.losses(cell, arm, int(k), self.choosing)["loss_even"]
                    found[k] = losses.fillna(np.inf).mean()
            best = min(found, key=found.get)
            if min(found) < best < max(found):
                break
            tried = [best - 1, best + 1]
        self.losses(cell, arm, int(best), self.judged)

    def share(self, jobs: Iterable[tuple[Cell, str]]) -> None:
        """Train the cells and arms that no other process trains, or has trained."""
        for cell, arm in jobs:
            try:
                with filelock.FileLock(self.done(cell, arm).with_suffix(".lock"), timeout=0):
                    if not self.done(cell, arm).exists():
                        self.search(cell, arm)
                        self.done(cell, arm).touch()
            except filelock.Timeout:
                continue

    def done(self, cell: Cell, arm: str) -> Path:
        """Return the file that says that an arm is finished."""
        return self.out / f"{name_of(cell)}_{file_name(arm)}.done"

    def first_guess(self, cell: Cell, arm: str) -> int:
        """Return the best rate of the trained cell that is most alike, or 0.001·2^(5/2) at 32."""
        done = [path.stem for path in self.out.glob("*.done")]
        paths = [
            path
            for path in (self.out / "members").glob(f"{cell.width}-*.csv")
            if path.stem.rsplit("_", 2)[0] in done
        ]
        own = pd.concat(map(pd.read_csv, paths)) if paths else pd.DataFrame(columns=["layers"])
        own = own[own["layers"] == cell.layers]
        if own.empty:
            return round(5 - np.log2(cell.width / 32))
        best = chosen_rates(own).drop_duplicates([*SIZE, "arm"])
        far = np.abs(np.log2(best["vocabulary"] / cell.vocabulary))
        far += np.abs(np.log2(best["epochs"] / cell.epochs)) + (best["arm"] != arm)
        far += 9 * (best["arm"].str.startswith("untied") != arm.startswith("untied"))
        return round(2 * np.log2(best["learning_rate"].iloc[far.argmin()] / 1e-3))

    def members(self, cell: Cell) -> pd.DataFrame:
        """Return all trained members of a cell."""
        paths = sorted((self.out / "members").glob(f"{name_of(cell)}_*.csv"))
        return pd.concat([pd.read_csv(path) for path in paths])


def restore(out: Path) -> None:
    """Write the committed members to OUT, so that they are not trained again."""
    (out / "members").mkdir(parents=True, exist_ok=True)
    if not DATA.exists():
        return
    for row in pd.read_csv(DATA).to_dict("records"):
        scale = None if np.isnan(row["branch_scale"]) else row["branch_scale"]
        epochs = int(row["epochs"]) if row["epochs"] >= 1 else row["epochs"]
        cell = Cell(row["width"], row["vocabulary"], epochs, row["layers"], scale)
        arm = f"{name_of(cell)}_{file_name(row['arm'])}"
        k = round(2 * np.log2(row["learning_rate"] / 1e-3))
        path = out / "members" / f"{arm}_{k}_{row['seed']}.csv"
        if not path.exists():
            pd.DataFrame([row]).to_csv(path, index=False)
        (out / f"{arm}.done").touch()  # only finished arms are committed


def name_of(cell: Cell) -> str:
    """Return the name of a cell's files."""
    return "-".join(map(str, cell))


def file_name(arm: str) -> str:
    """Return the name of an arm in those of files."""
    return arm.replace("/", "-").replace(" ", "-")


def main() -> None:
    """Train the missing members, or gather the finished ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--text", nargs="+", default=[])
    parser.add_argument("--out", type=Path, default=Path("runs/gap"))
    parser.add_argument("--gather", action="store_true")
    options = parser.parse_args()
    if options.gather:
        finished = [path.stem for path in options.out.glob("*.done")]
        members = sorted((options.out / "members").glob("*.csv"))
        members = [path for path in members if path.stem.rsplit("_", 2)[0] in finished]
        pd.concat([pd.read_csv(path) for path in members]).to_csv(DATA, index=False)
        return
    restore(options.out)
    start_jax()
    Trainer(tuple(options.text), options.out).share(jobs())


if __name__ == "__main__":
    main()
