"""Test the predictions of `jaxtie advise` on sizes and texts that it has not seen.

The rule, before the run. Eighteen targets, six on each text, are trained tied and untied by the
rules of `experiments/tying_gap_on_text.py` (own learning rates, 5 seeds, odd validation batches).
The texts: its books; the documentation in the source archive of Django 6.0 (docs/); and the Python
files in jax/_src, jax/_src/lax and jax/_src/numpy of the wheel of JAX 0.10.2, each saved as .txt.
The pilots of each are those of `jaxtie advise --minutes 10`.

Reported: how many of the measured gaps the 90 % intervals cover, widened by the standard error of
what was measured; their median width; the mean interval score (Gneiting and Raftery 2007), width +
20 times the distance of a miss; and the mean regret in nats, the loss of the recommended arm less
that of the better one (not decided counts as tied), next to always tying, never tying, and the
sign of the pilots' mean gap. Targets of one text are not independent, so there is no test. The
intervals are called sound if they cover at least 15, and useful if at least half of the targets
within four times the pilots' sizes are decided.

Changed before anything was run: four of six targets, which were too costly or are in E3 now; files
of JAX; and the prediction itself, which was a linear formula (jaxtie/text/gap_process.py).

    python experiments/scripts/advice_on_text.py --books books/ --texts django/ jax/

Data: data/advice-on-text.csv, a row per target. Time: about two hours of two cores.
"""

import argparse
from pathlib import Path

import pandas as pd
from tying_gap_on_text import Cell, Trainer

from jaxtie.advise import answer, scaling
from jaxtie.advise.command import main_advise
from jaxtie.run.experiment_files import installed_data
from jaxtie.text import gap_model
from jaxtie.text.gap_model import Size
from jaxtie.training.devices import start_jax

DATA = Path(__file__).parents[1] / "data" / "advice-on-text.csv"
CELLS = (
    Cell(48, 2048, 0.5),
    Cell(128, 4096, 0.25),
    Cell(96, 2048, 1),
    Cell(96, 8192, 0.5),
    Cell(96, 2048, 0.5, layers=4),
    Cell(192, 2048, 1),
)


def target_of(cell: Cell, members: pd.DataFrame) -> Size:
    """Return the size and budget of a trained cell."""
    return Size(cell.width, cell.layers, cell.vocabulary, float(members["tokens"].iloc[0]))


def measure(trainer: Trainer, cell: Cell) -> pd.DataFrame:
    """Return the members of a target, tied and untied."""
    for arm in ("tied", "untied"):
        trainer.search(cell, arm)
    return trainer.members(cell)


def pilots_of(text: str, out: Path) -> pd.DataFrame:
    """Run `jaxtie advise` on a text and return the gaps of its pilots."""
    status = main_advise(["--text", text, "--minutes", "10", "--out", str(out)])
    if status:
        raise SystemExit(status)
    return pd.DataFrame(pd.read_json(out / "answer.json", typ="series")["pilots"])


def row_of(text: str, cell: Cell, members: pd.DataFrame, pilots: pd.DataFrame) -> dict:
    """Predict a target from the pilots on its text; add what was measured."""
    published = pd.read_csv(installed_data("published-comparisons.csv"))
    target = target_of(cell, members)
    process = answer.process_after(pilots, scaling.committed_members(), published)
    (measured,) = gap_model.gaps(members).to_dict("records")
    (found,) = answer.predict(process, [target], pilots)
    (covering,) = answer.predict(process, [target], pilots, measured["error"])
    return {
        "text": text,
        **target._asdict(),
        **found._asdict(),
        "doubt": found.doubt,
        **dict(zip(("low", "high"), found.interval)),
        **dict(zip(("covering_low", "covering_high"), covering.interval)),
        **{name: measured[name] for name in ("gap", "error", "seeds")},
        "word": answer.recommend(found.doubt, found.factor),
        "pilots_gap": float(pilots["gap"].mean()),
    }


def main() -> None:
    """Train all targets and pilots, and write the data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--books", required=True)
    parser.add_argument("--texts", nargs=2, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/advice"))
    options = parser.parse_args()
    start_jax()
    rows = []
    for name, text in zip(("books", "django", "jax"), (options.books, *options.texts)):
        trainer = Trainer((text,), options.out / name)
        pilots = pilots_of(text, options.out / name / "advise")
        for cell in CELLS:
            rows.append(row_of(name, cell, measure(trainer, cell), pilots))
            pd.DataFrame(rows).to_csv(DATA, index=False)


if __name__ == "__main__":
    main()
