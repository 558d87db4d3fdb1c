"""Results of text -> tables. Imports no jax."""

import math
from collections.abc import Iterator

import numpy as np
import xarray as xr

from jaxtie.config import Arm
from jaxtie.results.claims import Comparison, Judgement, compare, judge, verdict_table
from jaxtie.results.tables import Table, arms_of, interval, last_step, number, plain_arm, tables_of
from jaxtie.text.groups import AS_LIKELY, Group, groups_of, word_pairs_table
from jaxtie.text.heads import SEVERAL_SHARES, compares_heads, head_tables, judge_heads
from jaxtie.text.pairs import PREDICTED

SAME_LOSS = 0.01  # nat, 1 % of a perplexity: losses that differ by less are the same
BASELINES = {
    "unigram_loss": "frequencies alone (unigram)",
    "bigram_loss": "the token on the left alone (bigram)",
}
MEASURES = {
    "valid_loss": "validation loss, nat",
    "valid_accuracy": "validation accuracy",
    "perplexity": "perplexity",
}


def measures(results: xr.Dataset) -> dict[str, str]:
    """Variable -> label of what is measured on the validation split; a masked model has no
    perplexity.
    """
    return {
        name: label
        for name, label in MEASURES.items()
        if name != "perplexity" or results.attrs["objective"] == "causal"
    }


def validation_table(results: xr.Dataset) -> Table:
    """Per arm mean and 95 % interval over seeds at the last evaluation, and differences, each seed
    with itself.
    """
    step, (first, *others) = last_step(results), arms_of(results)
    arms, end, rows = [first, *others], results.sel(eval_step=step), []
    for name, label in measures(results).items():
        values = [end[name].sel(arm=arm.name).values.astype(np.float64) for arm in arms]
        differences = [interval(value - values[0]) for value in values[1:]]
        rows.append((label, *map(interval, values), *differences))
    for name in BASELINES:
        if name in results:
            rows.append(
                (
                    f"loss of {BASELINES[name]}, nat",
                    *[number(float(results[name]))] * len(arms),
                    *[""] * len(others),
                )
            )
    counts = [int(results["parameters"].sel(arm=arm.name)) for arm in arms]
    rows.append(
        (
            "parameters",
            *(f"{count:,}" for count in counts),
            *(f"{count - counts[0]:+,}" for count in counts[1:]),
        )
    )
    diverged = [int((results["diverged_at"].sel(arm=arm.name) >= 0).sum()) for arm in arms]
    if any(diverged):
        rows.append(
            ("seeds that diverged, left out of the means", *map(str, diverged), *[""] * len(others))
        )
    seeds = results.sizes["seed"]
    over = f"mean over {seeds} seeds ± 95 % confidence interval" if seeds > 1 else "one seed"
    header = (
        "",
        *map(str, arms),
        *(f"{arm} − {first}{', paired' if seeds > 1 else ''}" for arm in others),
    )
    return Table(f"{results.attrs['experiment']}: step {step:,}, {over}", header, rows)


def of_pairs(results: xr.Dataset, arm: Arm, table: str, group: Group) -> xr.DataArray:
    """Distances of a group's pairs in a table, means over seeds: (eval_step, pair)."""
    return (
        group.of(results[f"{table}_distance"].sel(arm=arm.name))
        .mean("seed")
        .transpose("eval_step", "pair")
    )


def each_table(results: xr.Dataset) -> Iterator[tuple[Arm, str, str]]:
    """Arm, label and "input" or "output" of every table of every arm."""
    for arm in arms_of(results):
        for label, table in tables_of(arm).items():
            yield arm, label, table


def change_of_pairs(results: xr.Dataset, arm: Arm, table: str, group: Group) -> np.ndarray:
    """How much the distances of a group's pairs have grown from the start to the end, means over
    seeds; (pair,).
    """
    distance = of_pairs(results, arm, table, group)
    return (distance.sel(eval_step=last_step(results)) - distance.sel(eval_step=0)).values


def distance_table(results: xr.Dataset) -> Table:
    """Distances at the start and at the end in every table: mean and 95 % interval over pairs."""
    step, rows = last_step(results), []
    for arm, label, table in each_table(results):
        for group in groups_of(results):
            ends = [
                of_pairs(results, arm, table, group).sel(eval_step=at).values for at in (0, step)
            ]
            rows.append(
                (
                    f"{label}, {group.label}",
                    *map(interval, ends),
                    interval(change_of_pairs(results, arm, table, group)),
                )
            )
    numbers = sorted({len(group.pairs) for group in groups_of(results)})
    title = (
        f"Distances: mean over {' or '.join(map(str, numbers))} pairs of words ± 95 % confidence"
        " interval"
    )
    return Table(title, ("embedding, pairs", "step 0", f"step {step:,}", "change"), rows)


def equivalent_in_both_senses(results: xr.Dataset) -> tuple[Group, Group] | None:
    """Duplicates as likely as their words, and as many other pairs: of their frequencies, or random
    ones; None without.
    """
    found = {group.kind: group for group in groups_of(results) if group.probability == AS_LIKELY}
    if "duplicate" not in found:
        return None
    own, random = found["duplicate"], groups_of(results)[-1]
    return own, found.get("matched", random._replace(pairs=own.pairs))


def judge_duplicates(results: xr.Dataset, own: Group, others: Group) -> dict[str, Judgement]:
    """Label of each table -> whether words and duplicates draw together there, more than as many
    other pairs do.
    """
    looked_at, found = list(each_table(results)), {}
    for arm, label, table in looked_at:
        of_own, of_others = (change_of_pairs(results, arm, table, group) for group in (own, others))
        both = {"change": of_own, f"change − change of {others.label}": of_own - of_others}
        compared = [compare(name, values, 2 * len(looked_at)) for name, values in both.items()]
        found[label] = judge(compared, -math.inf, 0)
    return found


def judge_tying(results: xr.Dataset) -> dict[str, dict[str, Judgement]]:
    """What is said of tying, of plain heads -> where it is looked at -> judgement; as far as arms
    let one tell.
    """
    found, end = {}, results["valid_loss"].sel(eval_step=last_step(results))
    tied, untied = (plain_arm(results, tied=each) for each in (True, False))
    midway = [arm for arm in arms_of(results) if arm.untie_at is not None and arm.is_plain]

    def less(arm: Arm, other: Arm, count: int) -> Comparison:
        """Of two arms' losses; one of `count` comparisons."""
        values = (end.sel(arm=arm.name) - end.sel(arm=other.name)).values
        return compare(f"validation loss, {arm} − {other}", values, count)

    if tied and untied:
        few, many = (int(results["parameters"].sel(arm=arm.name)) for arm in (tied, untied))
        saved = f"tied, {100 * (1 - few / many):.0f} % fewer parameters"
        claim = f"{saved} give the same loss to within {SAME_LOSS:g} nat, or a lower one"
        found[claim] = {"": judge([less(tied, untied, 1)], -math.inf, SAME_LOSS)}
    if tied and midway:
        compared = [less(arm, tied, len(midway)) for arm in midway]
        claim = f"untying midway changes the loss by less than {SAME_LOSS:g} nat"
        found[claim] = {"": judge(compared, -SAME_LOSS, SAME_LOSS)}
    return found


def judge_text(results: xr.Dataset) -> dict[str, dict[str, Judgement]]:
    """All claims -> where each is looked at -> judgement; as far as arms and pairs let one tell."""
    found = {}
    if both := equivalent_in_both_senses(results):
        more = (
            "two random words"
            if both[1].kind == "random"
            else "two other tokens as frequent as these"
        )
        likely = "" if len(groups_of(results)) < 4 else " that is as likely"
        found[f"a word and its duplicate{likely} draw together, more than {more} do"] = (
            judge_duplicates(results, *both)
        )
    return found | judge_tying(results) | (judge_heads(results) if compares_heads(results) else {})


def text_verdict_table(results: xr.Dataset) -> Table:
    """The claims, and what became of them."""
    over = "seeds"
    if equivalent_in_both_senses(results):
        over += "; of distances over pairs of words, as if no word were in two"
    if compares_heads(results):
        over += f"; {SEVERAL_SHARES}"
    return verdict_table(judge_text(results), over)


def neighbour_table(results: xr.Dataset) -> Table:
    """Nearest neighbours of a few words in every table, before and after training; of the first
    seed.
    """
    token, step = results["token"].values, last_step(results)
    rows, seed = [], int(results["seed"].values[0])
    for i, word in enumerate(results["probe_word"].values):
        for arm, label, table in each_table(results):
            found = results[f"{table}_neighbour"].sel(arm=arm.name, seed=seed).isel(probe=i)
            cells = []
            for at in (0, step):
                numbers = found.sel(eval_step=at).values
                cells.append(" ".join(str(token[int(n)]) for n in numbers[np.isfinite(numbers)]))
            rows.append((str(word), label, *cells))
    header = ("word", "embedding", "step 0", f"step {step:,}")
    starred = "; a star marks a duplicate" if "duplicate" in results["kind"].values else ""
    return Table(
        f"Nearest neighbours, the nearest first, seed {seed}{starred}", header, rows, long=True
    )


def text_tables(results: xr.Dataset) -> list[Table]:
    """All tables of a run; verdicts once there is something to judge, heads where some are
    compared.
    """
    judged = [text_verdict_table(results)] if last_step(results) and judge_text(results) else []
    seen = [word_pairs_table(results)] if last_step(results) and PREDICTED[0] in results else []
    compared = [
        validation_table(results),
        *seen,
        distance_table(results),
        *judged,
        *head_tables(results),
    ]
    return [*compared, neighbour_table(results)]
