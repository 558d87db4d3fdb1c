"""What the initial deviation of the tables and the scale of the logits are worth, in each arm.

    python experiments/lab/recipe.py --width 64 --text books/
    python experiments/lab/recipe.py     # the table of text_recipe.md, from data/recipe-WIDTH.csv

Decoders of two layers, half an epoch (900,000 tokens) of seventeen books, byte-level BPE of 2,048
entries. Each recipe has its own learning rate in each arm and at each width: the best of a grid of
√2 by one seed and the even validation batches; where it is at an edge, the next rate is tried. Two
more seeds are trained at the best rate, and the losses are those of the odd batches. A stopped
search goes on where it was.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
from commit import rewritten

import jaxtie
from jaxtie import Corpus, Decoder, Optimizer, TextExperiment
from jaxtie.results.folder import atomic_write
from jaxtie.results.tables import Table, format_mean

EXPERIMENTS = Path(__file__).parents[1]
DATA, PAGE = EXPERIMENTS / "data", EXPERIMENTS / "text_recipe.md"
RECIPES = {  # name -> options of the head; D: width
    "N(0, 0.02²)": "",
    "N(0, 0.02²), learned scale": "+learned-scale",
    "N(0, 1/D)": "+init-std=1-by-root-D",
    "N(0, 1), logits times 1/√D": "+init-std=1+logit-scale=1-by-root-D",
}
FIRST_RECIPE, *_ = RECIPES
ARMS = ("tied", "untied")
STEPS, SEEDS, FIRST = 3_500, 3, {64: 4, 128: 3}  # k of the first rate that is tried, see `rate_of`


def rate_of(k: int) -> float:
    return float(f"{1e-3 * 2 ** (k / 2):.4g}")


def experiment(text: list[str], width: int, arm: str, k: int, seed: int) -> TextExperiment:
    return TextExperiment(
        name="recipe",
        objective="causal",
        corpus=Corpus(tuple(text), vocab_size=2_048, documents_to_split=10**9),
        model=Decoder(layers=2, heads=width // 32, width=width),
        init_std=0.02,
        optimizer=Optimizer(
            learning_rate=rate_of(k),
            eta_min=0.0,
            half_period=STEPS,
            warmup=STEPS // 10,
            weight_decay=0.1,
            b2=0.99,
            eps=1e-8,
        ),
        arms=(arm,),
        seeds=(seed,),
        steps=STEPS,
        record_every=STEPS // 10,
        eval_every=STEPS,
        eval_batches=1_000,
        batch=4,
        length=64,
        words=8,
        duplicates=False,
    )


def search(width: int, text: list[str], out: Path) -> None:
    """Train the missing runs; write the data after each."""
    data = DATA / f"recipe-{width}.csv"
    rows = pd.read_csv(data).to_dict("records") if data.exists() else []
    first = dict.fromkeys(ARMS, FIRST[width])  # then the best of the recipe before
    for recipe, start in itertools.product(RECIPES, ARMS):
        arm = start + RECIPES[recipe]
        cell = {"width": width, "arm": start, "recipe": recipe}
        while True:
            mine = [row for row in rows if cell.items() <= row.items()]
            loss = {row["k"]: row["even"] for row in mine if row["seed"] == 0}
            k, seed = next_rate(loss, first[start]), 0
            if k is None:
                k = first[start] = min(loss, key=loss.__getitem__)
                seed = sum(row["k"] == k for row in mine)
            if seed == SEEDS:
                break
            folder = out / f"{width}-{arm}-{k}-{seed}"
            results = jaxtie.run(experiment(text, width, arm, k, seed), folder)
            end = results.isel(eval_step=-1, arm=0, seed=0)
            losses = {"counts": float(results["kneser_ney_loss"])}
            for half in ("even", "odd"):
                losses[half] = float(np.nan_to_num(end[f"valid_loss_{half}"], nan=np.inf))
            row = {**cell, "k": k, "rate": rate_of(k), "seed": seed}
            rows.append(row | {name: round(value, 5) for name, value in losses.items()})
            atomic_write(data, pd.DataFrame(rows).to_csv(index=False).encode())


def next_rate(loss: dict[int, float], first: int) -> int | None:
    """Return the k to try next; None once the best has a neighbour on both sides."""
    if not loss:
        return first
    best = min(loss, key=loss.__getitem__)
    return next((k for k in (best + 1, best - 1) if k not in loss), None)


def table(rows: pd.DataFrame) -> Table:
    """Show the loss of each recipe at its best rate, and its difference to the first."""
    cells = []
    for width in sorted(rows["width"].unique()):
        best: dict[tuple[str, str], pd.DataFrame] = {}
        for key, own in rows[rows["width"] == width].groupby(["recipe", "arm"]):
            searched = own[own["seed"] == 0]
            k = searched.loc[searched["even"].idxmin(), "k"]
            best[key] = own[own["k"] == k].set_index("seed")
        for recipe in RECIPES:
            both = [best.get((recipe, arm)) for arm in ARMS]
            if any(own is None or len(own) < SEEDS for own in both):
                continue
            tied, untied = both
            row = [f"{width}", recipe]
            for arm, own in zip(ARMS, (tied, untied)):
                less = own["odd"] - best[FIRST_RECIPE, arm]["odd"]
                change = format_mean(less.to_numpy()) if recipe != FIRST_RECIPE else ""
                row += [f"{own['odd'].mean():.3f} at {own['rate'].iloc[0]:.2g}", change]
            cells.append((*row, format_mean((tied["odd"] - untied["odd"]).to_numpy())))
    header = ("width", "tables, logits", "tied", "change", "untied", "change", "tied − untied")
    note = (
        "Validation loss, nat a token, three seeds, at the best learning rate of each cell; change:"
        " to the first recipe of the same width and arm. Differences by seed: mean ± 95 %"
        " (Student's t)."
    )
    return Table("Loss by recipe", header, cells, note)


def page() -> str:
    """Return the page with its table written again."""
    rows = pd.concat(map(pd.read_csv, sorted(DATA.glob("recipe-*.csv"))))
    return rewritten(PAGE.read_text(), {"recipe": lambda: table(rows)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, choices=FIRST)
    parser.add_argument("--text", nargs="+")
    parser.add_argument("--out", type=Path, default=Path("runs/recipe"))
    options = parser.parse_args()
    if options.width:
        search(options.width, options.text, options.out)
    PAGE.write_text(page())
    print(PAGE)


if __name__ == "__main__":
    main()
