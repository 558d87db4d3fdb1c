"""Results of EXor -> tables across settings and across the step of untying: what a sweep shows,
what untying changes.

Imports no jax.
"""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from jaxtie.config import Arm, Head, names_of
from jaxtie.exor.pairs import distance_rows, live_pairs
from jaxtie.exor.plateau import steps_between
from jaxtie.results.statistics import correlation, median_interval
from jaxtie.results.tables import (
    Table,
    arms_of,
    interval,
    last_step,
    median,
    number,
    quantiles,
    settings,
    swept,
    tables_of,
)

REACHED = 0.01  # nat above another arm's loss
UNTYING_TIMES = (0, 0.04, 0.2, 1)  # of what is left of the training
EXCESS = "loss above the best, nat"


def outcomes(results: xr.Dataset) -> dict[str, xr.DataArray]:
    """Label -> what came out at the end (arm, swept settings, seed): loss above the best reachable,
    and distances.
    """
    step = last_step(results)
    excess = results["train_loss"].sel(eval_step=step, drop=True) - results["best_loss"].sel(
        split="train", drop=True
    )
    distances = {
        label: values.sel(step=step, drop=True) for label, values in distance_rows(results).items()
    }
    return {EXCESS: excess.transpose(*results["diverged_at"].dims)} | distances


def sweep_table(results: xr.Dataset) -> Table:
    """Every setting: what came out per arm, and how much more loss the first arm has, paired; see
    `exor_final_table`.
    """
    arms, names, ends = names_of(arms_of(results)), swept(results), outcomes(results)
    rows = []
    for at, _ in settings(results, names):
        values = [f"{value:g}" for value in at.values()]
        for i, arm in enumerate(arms):
            own = {label: end.sel(at | {"arm": arm}).values for label, end in ends.items()}
            more = ends[EXCESS].sel(at | {"arm": arms[0]}).values - own[EXCESS]
            diverged = int((results["diverged_at"].sel(at | {"arm": arm}) >= 0).sum())
            cells = [
                interval(each) if label == EXCESS else median(each) for label, each in own.items()
            ]
            rows.append((*values, arm, *cells, interval(more) if i else "", str(diverged)))
    title = (
        f"{results.attrs['experiment']}: step {last_step(results):,}, {results.sizes['seed']:,}"
        " seeds"
    )
    note = "Losses: mean ± 95 % (Student's t). Distances: median [95 %, by ranks]."
    return Table(
        title, (*names, "arm", *ends, f"loss, {arms[0]} − this, paired", "diverged"), rows, note
    )


def abscissa(results: xr.Dataset, name: str) -> tuple[str, np.ndarray]:
    """What a swept setting is drawn and correlated against: its values, or the log-odds that a
    probability stands for.
    """
    values = results[name].values
    if not name.startswith("p_"):
        return name.replace("_", " "), values
    first, second = {"p_X": ("X", "Y"), "p_A": ("A", "B")}[name]
    with np.errstate(divide="ignore"):
        log_odds = np.log1p(-values) - np.log(values)
    return f"ln p({second})/p({first})", np.where(np.isfinite(log_odds), log_odds, np.nan)


def correlation_table(results: xr.Dataset) -> Table:
    """How losses above the best reachable go with each swept setting, differences of them between
    arms, and distances.
    """
    arms, ends = names_of(arms_of(results)), outcomes(results)
    excess = ends[EXCESS]
    cases = {f"{EXCESS.removesuffix(', nat')}, {arm}": excess.sel(arm=arm) for arm in arms}
    cases |= {
        f"loss, {arms[0]} − {arm}, paired": excess.sel(arm=arms[0]) - excess.sel(arm=arm)
        for arm in arms[1:]
    }
    cases |= {
        f"distance {pair}, {title}": ends[f"distance {pair}, {table}"].sel(arm=arm.name)
        for arm in arms_of(results)
        for title, table in tables_of(arm).items()
        for pair in live_pairs(results)
    }
    usable = {
        name: (label, x_K)
        for name in swept(results)
        for label, x_K in [abscissa(results, name)]
        if _varies(x_K)
    }
    wheres = sum(
        len(list(settings(results, [other for other in swept(results) if other != name])))
        for name in usable
    )
    error = 0.05 / max(1, 2 * wheres * len(cases))
    rows = []
    for name, (label, x_K) in usable.items():
        for at, _ in settings(results, [other for other in swept(results) if other != name]):
            where = "".join(f", {other} {value:g}" for other, value in at.items())
            for case, values in cases.items():
                values_KxS = values.sel(at).transpose(name, "seed").values
                both = (
                    map(number, correlation(x_K, values_KxS, ranks=ranks, error=error))
                    for ranks in (False, True)
                )
                rows.append(
                    (f"{label}{where}", case, *(f"{r} [{low}, {high}]" for r, low, high in both))
                )
    title = (
        f"Correlation over members [bootstrap over {results.sizes['seed']:,} seeds; all intervals"
        " together 95 %]"
    )
    return Table(title, ("setting", "with", "Pearson", "Spearman"), rows)


def _varies(x_K: np.ndarray) -> bool:
    """Whether there are enough values of a setting to correlate anything with."""
    return np.isfinite(x_K).sum() >= 3


def steps_to_match(results: xr.Dataset, arm: Arm, other: Arm, *, for_good: bool) -> np.ndarray:
    """Steps from an arm's untying to an evaluation with no more than `REACHED` more loss than the
    other arm then has.

    To the first such one, or `for_good`: to the first after which all are. Each seed against itself
    in the other arm; NaN where it is never seen. (seeds,)
    """
    after = results.sel(eval_step=slice(arm.untie_at, last_step(results)))
    more = after["train_loss"].sel(arm=arm.name) - after["train_loss"].sel(arm=other.name)
    reached_SxT = (more <= REACHED).transpose("seed", "eval_step").values
    if for_good:
        reached_SxT = np.logical_and.accumulate(reached_SxT[:, ::-1], axis=1)[:, ::-1]
    steps_T = after["eval_step"].values - arm.untie_at
    return np.where(reached_SxT.any(axis=1), steps_T[reached_SxT.argmax(axis=1)], np.nan)


def untying_table(results: xr.Dataset) -> Table:
    """Arms that untie midway, before and after, beside the arms that are tied or untied throughout
    at the same steps.
    """
    arms, last = arms_of(results), last_step(results)
    steps = results["eval_step"].values[results["eval_step"].values <= last]
    rows = []
    for arm in arms:
        if arm.untie_at is None or arm.untie_at > last:
            continue
        left, pure = last - arm.untie_at, pure_arms(arms, arm.head)
        for time in sorted(
            {
                int(steps[np.abs(steps - arm.untie_at - part * left).argmin()])
                for part in UNTYING_TIMES
            }
        ):
            here = results.sel(step=time, eval_step=time)
            columns = [here["train_loss"], *distance_rows(here).values()]
            cells = [
                "; ".join(quantiles(column.sel(arm=each.name).values) for each in (arm, *pure))
                for column in columns
            ]
            rows.append((arm.name, f"{time:,}", *cells))
        blanks = ("",) * len(distance_rows(results))
        for other in pure:
            if not other.tied:
                rows += [(*row, *blanks) for row in _matching_rows(results, arm, other, left)]
    midway = [arm for arm in arms if arm.untie_at is not None]
    others = dict.fromkeys(
        "tied" if other.tied else "untied" for arm in midway for other in pure_arms(arms, arm.head)
    )
    of = "; ".join(("this arm", *others)) + ", with its head" * any(
        not arm.is_plain for arm in midway
    )
    header = ("arm", "step", "training loss, nat", *distance_rows(results))
    return Table(f"Untying: median over seeds [5 %, 95 %] of {of}", header, rows)


def pure_arms(arms: Sequence[Arm], head: Head) -> list[Arm]:
    """The arms with a head that are tied, or untied, from start to end; the tied one first."""
    return sorted(
        (arm for arm in arms if arm.head == head and arm.untie_at is None),
        key=lambda arm: not arm.tied,
    )


def _matching_rows(
    results: xr.Dataset, arm: Arm, other: Arm, left: int
) -> list[tuple[str, str, str]]:
    """After how many steps an arm that unties is as good as another: first, and for good; median,
    with its rank interval.
    """
    rows = []
    for label, for_good in (("first", False), ("for good", True)):
        needed = steps_to_match(results, arm, other, for_good=for_good)
        # seeds that never do count as late
        among_all = median_interval(np.where(np.isnan(needed), np.inf, needed))
        text = steps_between(among_all, left)
        text += f" steps, {np.isfinite(needed).sum()} of {len(needed)} seeds"
        rows.append((arm.name, f"within {REACHED} of {other}, {label} after", text))
    return rows
