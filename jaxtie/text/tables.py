"""Tables of text results. Imports no jax."""

import numpy as np
import xarray as xr

from jaxtie.results.statistics import mean_interval
from jaxtie.results.tables import (
    Table,
    arm_cells,
    arm_header,
    arms_of,
    embeddings_of,
    format_estimate,
    format_mean,
    format_number,
    last_step,
    reference_arm,
)
from jaxtie.text.analysis import BASELINES, MASK_NORMS, at_last, groups_of, log_decay_ratio
from jaxtie.text.pairs import PREDICTED

MEASURES = {
    "valid_loss": "validation loss, nat",
    "valid_accuracy": "validation accuracy",
    "perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
}


def measures(results: xr.Dataset) -> dict[str, str]:
    """Return the variables measured on the validation split and their labels.

    A masked model has no perplexity; sentences have no bits per byte.
    """
    causal = results.attrs["objective"] == "causal"
    return {
        name: label
        for name, label in MEASURES.items()
        if name in results and results[name].notnull().any() and (causal or name != "perplexity")
    }


def _over_seeds(results: xr.Dataset, interval_label: str = "± 95 %") -> str:
    seeds = results.sizes["seed"]
    return f"mean over {seeds} seeds {interval_label}" if seeds > 1 else "one seed"


def validation_table(results: xr.Dataset) -> Table:
    """Show each arm at the last evaluation, and its difference to the reference, by seed."""
    step, arms, reference = last_step(results), arms_of(results), reference_arm(results)
    end, rows, blank = results.sel(eval_step=step), [], [""] * (len(arms) - 1)
    lengths = {name: own.meaning for name, own in MASK_NORMS.items() if name in results}
    for name, label in (measures(results) | lengths).items():
        rows.append((label, *arm_cells(end[name].astype(np.float64))))
    for name, label in BASELINES.items():
        if name in results:
            loss = format_number(float(results[name]))
            rows.append((f"loss of {label}, nat", *[loss] * len(arms), *blank))
    counts = {arm.name: int(results["parameters"].sel(arm=arm.name)) for arm in arms}
    own = counts[reference]
    more = [f"{count - own:+,}" for arm, count in counts.items() if arm != reference]
    rows.append(("parameters", *(f"{count:,}" for count in counts.values()), *more))
    diverged = [int((results["diverged_at"].sel(arm=arm.name) >= 0).sum()) for arm in arms]
    if any(diverged):
        rows.append(("seeds that diverged, left out of the means", *map(str, diverged), *blank))
    over = _over_seeds(results, "± 95 % confidence interval")
    title = f"{results.attrs['experiment']}: step {step:,}, {over}"
    return Table(title, ("", *arm_header(results)), rows, "Differences: paired by seed.")


def word_pairs_table(results: xr.Dataset) -> Table:
    """Show distances, and predictions where they were evaluated, of the pairs in every table."""
    rows, step = [], last_step(results)
    cells: dict[str, str] = {}
    for arm, label, table in embeddings_of(results):
        for group in groups_of(results):
            distance = group.of(results[f"{table}_distance"].sel(arm=arm, eval_step=step))
            mean, half = mean_interval(log_decay_ratio(results, group, arm, table).values)
            cells = {
                "table": label,
                "pairs": group.label,
                "distance": format_mean(distance.mean("pair").values),
                "ratio to decay alone": format_estimate(*np.exp([mean - half, mean, mean + half])),
            }
            if PREDICTED[0] in results:
                odds, deviation, swap = (
                    at_last(results, name, group, arm).values for name in PREDICTED
                )
                swapped, margin = mean_interval(swap)
                cells |= {
                    "ln of odds, nat": format_mean(odds),
                    "true": format_number(group.true_odds),
                    "its deviation": format_mean(deviation),
                    "swap divergence": f"{swapped:.4f}"
                    + f" ± {margin:.4f}" * bool(np.isfinite(margin)),
                }
            rows.append(tuple(cells.values()))
    decayed = format_number(float(results["decay_factor"].sel(step=step)))
    title = (
        f"{results.attrs['experiment']}: step {step:,}, {_over_seeds(results)}; decay alone leaves"
        f" {decayed} of every distance"
    )
    note = "Of each seed the mean over pairs, of ratios the geometric one."
    if PREDICTED[0] in results:
        note += (
            " Odds: how likely a model takes the first token of a pair beside the second where one"
            " of them stands; their deviation is over contexts. Swap divergence: total variation of"
            " predictions when the second token takes the place of the first."
        )
    return Table(title, tuple(cells), rows, note)


def text_tables(results: xr.Dataset) -> list[Table]:
    """Return all tables of a run; that of pairs if it has others than random ones."""
    has_pairs = len(groups_of(results)) > 1
    return [validation_table(results), *([word_pairs_table(results)] if has_pairs else [])]
