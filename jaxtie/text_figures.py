"""Results of text -> panels of figures. Imports no jax."""

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes

from jaxtie.style import FAILS, HOLDS, coloured, curve, finish
from jaxtie.text_summary import each_table, kinds, measures, of_pairs

COLOURS = {"duplicate": HOLDS, "random": FAILS}


def draw_measure(axes: Axes, results: xr.Dataset, name: str) -> None:
    """What was measured on the validation split, every arm."""
    for colour, arm in coloured(results["arm"].values):
        curve(axes, results[name].sel(arm=arm), colour, arm)
    if name == "valid_accuracy":
        axes.set_ylim(0, None)
    if name == "perplexity":
        axes.set_yscale("log")
    if name == "valid_loss":  # a fresh tied model's is far above all later ones
        later = results[name].isel(eval_step=slice(1, None)).values
        later = later[np.isfinite(later)]
        if later.size:
            margin = 0.1 * np.ptp(later) + 1e-3
            axes.set_ylim(later.min() - margin, later.max() + margin)
    label = measures(results)[name]
    finish(axes, label, label.removeprefix("validation "), results["eval_step"].values)


def draw_distances(axes: Axes, results: xr.Dataset, arm: str, table: str, title: str) -> None:
    """Distances of words and their duplicates, and of random pairs: mean and 95 % interval over pairs."""
    for kind, name in kinds(results).items():
        holds = {"duplicate": " (DH holds)", "random": " (DH fails)"}[kind]
        curve(axes, of_pairs(results, arm, table, kind), COLOURS[kind], name + holds, over="pair")
    highest = max(float(results[f"{each}_distance"].mean(("seed", "pair")).max()) for each in ("input", "output"))
    top = 5 if 2.5 < highest < 4.9 else 1.1 * highest  # one scale for all tables: the paper's, where the curves fit
    axes.set_ylim(0, top if highest > 0 else None)
    finish(axes, title, "Euclidean distance", results["eval_step"].values)


def panels(results: xr.Dataset) -> dict[str, tuple]:
    """File name -> (function, arguments)."""
    found = {name.removeprefix("valid_"): (draw_measure, name) for name in reversed(measures(results))}
    return found | {
        f"distances_{label.replace(' ', '_')}": (draw_distances, arm, table, f"{label} embedding")
        for arm, label, table in each_table(results)
    }


def title(results: xr.Dataset) -> str:
    """Of the overview."""
    seeds = results.sizes["seed"]
    return f"{results.attrs['experiment']}: {seeds} seed{'s' * (seeds > 1)}, mean and 95 % interval over seeds or pairs"


def captions(results: xr.Dataset) -> dict[str, str]:
    """File name -> what a figure shows, in words."""
    arms = ", ".join(map(str, results["arm"].values))
    texts = {"overview": f"All curves over the steps of training, arms {arms}, with 95 % confidence bands"}
    for name, label in reversed(measures(results).items()):
        texts[name.removeprefix("valid_")] = f"{label[0].upper()}{label[1:]} of {arms} over the steps of training"
    of = " and of ".join(kinds(results).values())
    for _, label, _ in each_table(results):
        texts[f"distances_{label.replace(' ', '_')}"] = (
            f"Distances of {of} in the {label} embedding over the steps of training; mean and 95 % interval over pairs"
        )
    return texts


def frames(results: xr.Dataset) -> dict[str, pd.DataFrame]:
    """File name -> tidy table of what was found."""
    evaluations = results[[*measures(results)]].to_dataframe()
    distances = results[["input_distance", "output_distance"]].to_dataframe().reset_index()
    for name in ("first_word", "second_word"):
        words = results[name].to_series()
        distances[name] = words.loc[list(zip(distances["kind"], distances["pair"], strict=True))].to_numpy()
    return {
        "steps": results[["loss", "accuracy"]].to_dataframe(),
        "evaluations": evaluations,
        "distances": distances.set_index([name for name in distances if not name.endswith("_distance")]),
    }
