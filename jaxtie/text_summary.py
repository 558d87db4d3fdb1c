"""Results of text -> tables. Imports no jax."""

import math
from collections.abc import Iterator

import numpy as np
import xarray as xr

from jaxtie import verdicts
from jaxtie.config import ARMS, untied_from
from jaxtie.tables import Table, interval, last_step, tables
from jaxtie.verdicts import Judgement, compare, judge

SAME = 0.01  # nat, 1 % of a perplexity: losses that differ by less are the same
MEASURES = {"valid_loss": "validation loss, nat", "valid_accuracy": "validation accuracy", "perplexity": "perplexity"}


def measures(results: xr.Dataset) -> dict[str, str]:
    """Variable -> label of what is measured on the validation split; a masked model has no perplexity."""
    return {name: label for name, label in MEASURES.items() if name != "perplexity" or results.attrs["task"] == "causal"}


def final_table(results: xr.Dataset) -> Table:
    """Per arm mean and 95 % interval over seeds at the last evaluation, and differences, each seed with itself."""
    step, arms = last_step(results), list(map(str, results["arm"].values))
    end, rows = results.sel(eval_step=step), []
    for name, label in measures(results).items():
        values = [end[name].sel(arm=arm).values.astype(np.float64) for arm in arms]
        differences = [interval(value - values[0]) for value in values[1:]]
        rows.append((label, *map(interval, values), *differences))
    counts = [results.attrs["parameters_tied" if untied_from(arm) is None else "parameters_untied"] for arm in arms]
    rows.append(("parameters", *(f"{count:,}" for count in counts), *(f"{count - counts[0]:+,}" for count in counts[1:])))
    diverged = [int((results["diverged_at"].sel(arm=arm) >= 0).sum()) for arm in arms]
    if any(diverged):
        rows.append(("seeds that diverged, left out of the means", *map(str, diverged), *[""] * (len(arms) - 1)))
    seeds = results.sizes["seed"]
    over = f"mean over {seeds} seeds ± 95 % confidence interval" if seeds > 1 else "one seed"
    header = ("", *arms, *(f"{arm} − {arms[0]}{', paired' if seeds > 1 else ''}" for arm in arms[1:]))
    return Table(f"{results.attrs['experiment']}: step {step:,}, {over}", header, rows)


def kinds(results: xr.Dataset) -> dict[str, str]:
    """Kind of pairs -> what to call it."""
    names = {"duplicate": "word–duplicate", "random": "random pairs"}
    return {kind: names[kind] for kind in map(str, results["kind"].values)}


def of_pairs(results: xr.Dataset, arm: str, table: str, kind: str) -> xr.DataArray:
    """Distances of a kind's pairs in a table, means over seeds: (eval_step, pair)."""
    return results[f"{table}_distance"].sel(arm=arm, kind=kind).mean("seed").transpose("eval_step", "pair")


def each_table(results: xr.Dataset) -> Iterator[tuple[str, str, str]]:
    """Arm, label and "input" or "output" of every table of every arm."""
    for arm in map(str, results["arm"].values):
        for label, table in tables(results, arm).items():
            yield arm, label, table


def change_of_pairs(results: xr.Dataset, arm: str, table: str, kind: str) -> np.ndarray:
    """How much the distances of a kind's pairs have grown from the start to the end, means over seeds; (pair,)."""
    distance = of_pairs(results, arm, table, kind)
    return (distance.sel(eval_step=last_step(results)) - distance.sel(eval_step=0)).values


def distance_table(results: xr.Dataset) -> Table:
    """Distances at the start and at the end in every table: mean and 95 % interval over pairs."""
    step, rows = last_step(results), []
    for arm, label, table in each_table(results):
        for kind, name in kinds(results).items():
            ends = [of_pairs(results, arm, table, kind).sel(eval_step=at).values for at in (0, step)]
            rows.append((f"{label}, {name}", *map(interval, ends), interval(change_of_pairs(results, arm, table, kind))))
    title = f"Distances: mean over {results.sizes['pair']} pairs of words ± 95 % confidence interval"
    return Table(title, ("embedding, pairs", "step 0", f"step {step:,}", "change"), rows)


def judgements(results: xr.Dataset) -> dict[str, dict[str, Judgement]]:
    """What is said of tying text -> where it is looked at -> judgement; as far as arms and pairs let one tell."""
    found, arms = {}, list(map(str, results["arm"].values))
    if "duplicate" in kinds(results):
        looked_at = list(each_table(results))

        def draws_together(arm: str, table: str) -> Judgement:
            own, random = (change_of_pairs(results, arm, table, kind) for kind in ("duplicate", "random"))
            both = {"change": own, "change − change of random pairs": own - random}  # as many pairs of each
            return judge([compare(name, values, 2 * len(looked_at)) for name, values in both.items()], -math.inf, 0)

        found["a word and its duplicate draw together, more than two random words do"] = {
            label: draws_together(arm, table) for arm, label, table in looked_at
        }
    end = results["valid_loss"].sel(eval_step=last_step(results))
    less = lambda arm, other: (end.sel(arm=arm) - end.sel(arm=other)).values
    if {*ARMS} <= {*arms}:
        share = 1 - results.attrs["parameters_tied"] / results.attrs["parameters_untied"]
        compared = compare("validation loss, tied − untied", less("tied", "untied"))
        found[f"tied, {100 * share:.0f} % fewer parameters give the same loss to within {SAME:g} nat, or a lower one"] = {
            "": judge([compared], -math.inf, SAME)
        }
    midway = [arm for arm in arms if untied_from(arm)]
    if "tied" in arms and midway:
        compared = [compare(f"validation loss, {arm} − tied", less(arm, "tied"), len(midway)) for arm in midway]
        found[f"untying midway changes the loss by less than {SAME:g} nat"] = {"": judge(compared, -SAME, SAME)}
    return found


def verdict_table(results: xr.Dataset) -> Table:
    """The claims, and what became of them."""
    over_pairs = "; of distances over pairs of words, as if no word were in two"
    return verdicts.table(judgements(results), "seeds" + over_pairs * ("duplicate" in kinds(results)))


def neighbour_table(results: xr.Dataset) -> Table:
    """Nearest neighbours of a few words in every table, before and after training; of the first seed."""
    token, step = results["token"].values, last_step(results)
    rows, seed = [], int(results["seed"].values[0])
    for i, word in enumerate(results["probe_word"].values):
        for arm, label, table in each_table(results):
            found = results[f"{table}_neighbour"].sel(arm=arm, seed=seed).isel(probe=i)
            cells = []
            for at in (0, step):
                numbers = found.sel(eval_step=at).values
                cells.append(" ".join(str(token[int(n)]) for n in numbers[np.isfinite(numbers)]))
            rows.append((str(word), label, *cells))
    header = ("word", "embedding", "step 0", f"step {step:,}")
    starred = "; a star marks a duplicate" if "duplicate" in kinds(results) else ""
    return Table(f"Nearest neighbours, the nearest first, seed {seed}{starred}", header, rows)


def every_table(results: xr.Dataset) -> list[Table]:
    """All tables of a run; verdicts once there is something to judge."""
    judged = [verdict_table(results)] if last_step(results) and judgements(results) else []
    return [final_table(results), distance_table(results), *judged, neighbour_table(results)]
