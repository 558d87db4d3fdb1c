"""Tables of text results. Imports no jax."""

import math

import numpy as np
import xarray as xr

from jaxtie.results.claims import estimate_of
from jaxtie.results.statistics import first_at_level, mean_interval
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
    plain_arm,
    reference_arm,
)
from jaxtie.text.analysis import (
    BASELINES,
    MASK_NORMS,
    at_last,
    groups_of,
    log_decay_ratio,
    of_pairs,
)
from jaxtie.text.pairs import PREDICTED

MEASURES = {
    "valid_loss": "validation loss, nat",
    "valid_accuracy": "validation accuracy",
    "perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
}
# Losses that are reached at these shares of the way from log n to the end of the untied model.
SHARES = (0.5, 0.75, 0.9, 0.95)


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
    """Show distances and predictions of every group of pairs in every table."""
    rows, step = [], last_step(results)
    for arm, label, table in embeddings_of(results):
        for group in groups_of(results):
            distance = group.of(results[f"{table}_distance"].sel(arm=arm, eval_step=step))
            odds, deviation, swap = (
                at_last(results, name, group, arm).values for name in PREDICTED
            )
            mean, half = mean_interval(log_decay_ratio(results, group, arm, table).values)
            swapped, margin = mean_interval(swap)
            cells = {
                "table": label,
                "pairs": group.label,
                "distance": format_mean(distance.mean("pair").values),
                "ratio to decay alone": format_estimate(*np.exp([mean - half, mean, mean + half])),
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
    note = (
        "Of each seed the mean over pairs, of ratios the geometric one. Odds: how likely a model"
        " takes the first token of a pair beside the second where one of them stands; their"
        " deviation is over contexts. Swap divergence: total variation of predictions when the"
        " second token takes the place of the first."
    )
    return Table(title, tuple(cells), rows, note)


def distance_table(results: xr.Dataset) -> Table:
    """Show distances at the start and the end in every table: mean and interval over pairs."""
    step, rows, groups = last_step(results), [], groups_of(results)
    for arm, label, table in embeddings_of(results):
        for group in groups:
            distance = of_pairs(results, arm, table, group)
            start, end = (distance.sel(eval_step=at).values for at in (0, step))
            cells = map(format_mean, (start, end, end - start))
            rows.append((f"{label}, {group.label}", *cells))
    numbers = " or ".join(map(str, sorted({len(group.pairs) for group in groups})))
    title = f"Distances: mean over {numbers} pairs of words ± 95 % confidence interval"
    return Table(title, ("embedding, pairs", "step 0", f"step {step:,}", "change"), rows)


def neighbour_table(results: xr.Dataset) -> Table:
    """Show the nearest neighbours of some words before and after training, for the first seed."""
    token, step = results["token"].values, last_step(results)
    rows, seed = [], int(results["seed"].values[0])
    for i, word in enumerate(results["probe_word"].values):
        for arm, label, table in embeddings_of(results):
            found = results[f"{table}_neighbour"].sel(arm=arm, seed=seed).isel(probe=i)
            cells = []
            for at in (0, step):
                numbers = found.sel(eval_step=at).values
                cells.append(" ".join(str(token[int(n)]) for n in numbers[np.isfinite(numbers)]))
            rows.append((str(word), label, *cells))
    starred = "; a star marks a duplicate" if "duplicate" in results["kind"].values else ""
    title = f"Nearest neighbours, the nearest first, seed {seed}{starred}"
    return Table(title, ("word", "embedding", "step 0", f"step {step:,}"), rows, long=True)


# ----- Heads: how causal models with different heads converge.


def compares_heads(results: xr.Dataset) -> bool:
    """Return whether trained causal arms differ in their heads and one is plain untied."""
    return (
        results.attrs["objective"] == "causal"
        and len({arm.head for arm in arms_of(results)}) > 1
        and plain_arm(results, tied=False) is not None
        and last_step(results) > 0
    )


def untied_arm(results: xr.Dataset) -> str:
    """Return the plain untied arm, which is there if heads are compared."""
    return str(plain_arm(results, tied=False))


def log_vocabulary(results: xr.Dataset) -> float:
    """Return log n, nats: the loss of a model that takes n tokens for equally likely."""
    return math.log(results["token"].size)


def reached_losses(results: xr.Dataset) -> xr.DataArray:
    """Return the validation losses at the steps that every member has reached."""
    losses = results["valid_loss"].sel(eval_step=slice(None, last_step(results)))
    return losses.transpose("arm", "seed", "eval_step")


def head_loss_table(results: xr.Dataset) -> Table:
    """Show initial loss, its estimate and the final losses, paired with the untied arm."""
    step, untied, rows = last_step(results), untied_arm(results), []
    ends = [results["loss"].sel(step=step), results["valid_loss"].sel(eval_step=step)]
    for arm in map(str, results["arm"].values):
        cells = [format_mean(results["valid_loss"].sel(arm=arm, eval_step=0).values)]
        cells.append(format_number(float(results["estimated_initial_loss"].sel(arm=arm))))
        for end in ends:
            values, others = (end.sel(arm=each).values for each in (arm, untied))
            cells += [format_mean(values), format_mean(values - others) if arm != untied else ""]
        rows.append((arm, *cells))
    title = (
        f"Loss, nat (log n = {log_vocabulary(results):.3f}): {_over_seeds(results)}; the end is"
        f" step {step:,}"
    )
    if diverged := int((results["diverged_at"] >= 0).sum()):
        title += f"; {diverged} members diverged and are left out"
    paired = f"− {untied}{', paired' if results.sizes['seed'] > 1 else ''}"
    header = ("", "start", "estimate", "training, end", paired, "validation, end", paired)
    return Table(title, header, rows)


def pace_table(results: xr.Dataset) -> Table:
    """Show steps to given validation losses: median and range over seeds, factor to untied."""
    losses, untied, rows = reached_losses(results), untied_arm(results), []
    steps_T = losses["eval_step"].values
    top, end = log_vocabulary(results), float(losses.sel(arm=untied)[:, -1].mean())
    levels = {share: top - share * (top - end) for share in SHARES}
    for arm in map(str, losses["arm"].values):
        cells = []
        for level in levels.values():
            needed, other = (
                first_at_level(steps_T, losses.sel(arm=each).values, level)
                for each in (arm, untied)
            )
            reached, never = needed[np.isfinite(needed)], int(np.isinf(needed).sum())
            cell = f"{never} of {len(needed)} not reached" if never else ""
            if len(reached):
                steps = f"{np.median(reached):,.0f} [{reached.min():,.0f}, {reached.max():,.0f}]"
                cell = f"{steps}, {cell}" if never else steps
                if arm != untied and not never and not np.isinf(other).any():
                    factor = estimate_of("×", np.log(needed / other))._replace(is_factor=True)
                    cell += f"; {factor}"
            cells.append(cell)
        rows.append((arm, *cells))
    header = ("", *(f"{share:.0%}: {level:.3f} nat" for share, level in levels.items()))
    title = (
        f"Steps to a validation loss, by share of {untied}'s way from log n: median [range over"
        f" seeds]; × {untied} [95 %]"
    )
    return Table(title, header, rows)


def text_tables(results: xr.Dataset) -> list[Table]:
    """Return all tables of a run."""
    tables = [validation_table(results)]
    if last_step(results) and PREDICTED[0] in results:
        tables.append(word_pairs_table(results))
    tables.append(distance_table(results))
    if compares_heads(results):
        tables += [head_loss_table(results), pace_table(results)]
    return [*tables, neighbour_table(results)]
