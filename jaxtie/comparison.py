"""Results -> tables across settings and across the step of untying: what a sweep shows, what untying midway changes.

Imports no jax.
"""

import math

import numpy as np
import xarray as xr

from jaxtie.config import ARMS, untied_from
from jaxtie.tables import Table, distance_rows, interval, last_step, live_pairs, number, quantiles, settings, swept, tables

REACHED = 0.01  # nat above another arm's loss
UNTYING_TIMES = (0, 0.04, 0.2, 1)  # of what is left of the training
EXCESS = "loss above the best, nat"
BOOTSTRAP = 2000


def outcomes(results: xr.Dataset) -> dict[str, xr.DataArray]:
    """Label -> what came out at the end (arm, swept settings, seed): loss above the best reachable, and distances."""
    step = last_step(results)
    excess = results["train_loss"].sel(eval_step=step, drop=True) - results["best_loss"].sel(split="train", drop=True)
    distances = {label: values.sel(step=step, drop=True) for label, values in distance_rows(results).items()}
    return {EXCESS: excess.transpose(*results["diverged_at"].dims)} | distances


def sweep_table(results: xr.Dataset) -> Table:
    """Every setting: what came out per arm, mean and 95 % interval, and how much more loss the first arm has, paired."""
    arms, names, ends = list(map(str, results["arm"].values)), swept(results), outcomes(results)
    rows = []
    for at, _ in settings(results, names):
        values = [f"{value:g}" for value in at.values()]
        for i, arm in enumerate(arms):
            own = {label: end.sel(at | {"arm": arm}).values for label, end in ends.items()}
            more = ends[EXCESS].sel(at | {"arm": arms[0]}).values - own[EXCESS]
            diverged = int((results["diverged_at"].sel(at | {"arm": arm}) >= 0).sum())
            cells = [interval(each) for each in own.values()]
            rows.append((*values, arm, *cells, interval(more) if i else "", str(diverged)))
    title = f"{results.attrs['experiment']}: step {last_step(results):,}, mean over {results.sizes['seed']} seeds ± 95 %"
    return Table(title, (*names, "arm", *ends, f"loss, {arms[0]} − this, paired", "diverged"), rows)


def abscissa(results: xr.Dataset, name: str) -> tuple[str, np.ndarray]:
    """What a swept setting is drawn and correlated against: its values, or the log-odds that a probability stands for."""
    values = results[name].values
    if not name.startswith("p_"):
        return name.replace("_", " "), values
    first, second = {"p_X": "XY", "p_A": "AB"}[name]
    with np.errstate(divide="ignore"):
        log_odds = np.log1p(-values) - np.log(values)
    return f"ln p({second})/p({first})", np.where(np.isfinite(log_odds), log_odds, np.nan)


def correlation(x_K: np.ndarray, values_KxS: np.ndarray, *, ranks: bool) -> tuple[float, float, float]:
    """Correlation over all members of a setting's K values with an outcome: Pearson's, or Spearman's of ranks.

    Returns:
      It and its 95 % interval: percentiles of a bootstrap over seeds, whose members are not independent.
    """
    from scipy.stats import rankdata  # heavy

    usable_S = np.isfinite(values_KxS).all(axis=0)
    usable_K = np.isfinite(x_K)
    y_KxS, count = values_KxS[usable_K][:, usable_S].astype(np.float64), usable_S.sum()
    if count < 2:
        return math.nan, math.nan, math.nan
    draws_RxS = np.random.default_rng(0).integers(count, size=(BOOTSTRAP, count))
    sampled_RxN = y_KxS[:, np.concatenate([np.arange(count)[None], draws_RxS])].swapaxes(0, 1).reshape(1 + BOOTSTRAP, -1)
    x_N = np.repeat(x_K[usable_K], count)
    if ranks:
        sampled_RxN, x_N = rankdata(sampled_RxN, axis=1), rankdata(x_N)
    sampled_RxN = sampled_RxN - sampled_RxN.mean(axis=1, keepdims=True)
    x_N = x_N - x_N.mean()
    r_R = sampled_RxN @ x_N / np.sqrt(np.square(sampled_RxN).sum(axis=1) * np.square(x_N).sum())
    return r_R[0], *np.quantile(r_R[1:], [0.025, 0.975])


def correlation_table(results: xr.Dataset) -> Table:
    """How losses above the best reachable go with each swept setting, differences of them between arms, and distances."""
    arms, ends = list(map(str, results["arm"].values)), outcomes(results)
    excess = ends[EXCESS]
    cases = {f"{EXCESS.removesuffix(', nat')}, {arm}": excess.sel(arm=arm) for arm in arms}
    cases |= {f"loss, {arms[0]} − {arm}, paired": excess.sel(arm=arms[0]) - excess.sel(arm=arm) for arm in arms[1:]}
    cases |= {
        f"distance {pair}, {title}": ends[f"distance {pair}, {table}"].sel(arm=arm)
        for arm in arms
        for title, table in tables(results, arm).items()
        for pair in live_pairs(results)
    }
    rows = []
    for name in swept(results):
        label, x_K = abscissa(results, name)
        if np.isfinite(x_K).sum() < 3:
            continue  # nothing to correlate
        for at, _ in settings(results, [other for other in swept(results) if other != name]):
            where = "".join(f", {other} {value:g}" for other, value in at.items())
            for case, values in cases.items():
                values_KxS = values.sel(at).transpose(name, "seed").values
                both = (map(number, correlation(x_K, values_KxS, ranks=ranks)) for ranks in (False, True))
                rows.append((f"{label}{where}", case, *(f"{r} [{low}, {high}]" for r, low, high in both)))
    return Table("Correlation over members [95 %, bootstrap over seeds]", ("setting", "with", "Pearson", "Spearman"), rows)


def steps_to_reach(results: xr.Dataset, arm: str, other: str, *, for_good: bool) -> np.ndarray:
    """Steps from an arm's untying to an evaluation with no more than `REACHED` more loss than the other arm then has.

    To the first such one, or `for_good`: to the first after which all are. Each seed against itself in the other arm; NaN
    where it is never seen. (seeds,)
    """
    after = results.sel(eval_step=slice(untied_from(arm), last_step(results)))
    more = after["train_loss"].sel(arm=arm) - after["train_loss"].sel(arm=other)
    reached_SxT = (more <= REACHED).transpose("seed", "eval_step").values
    if for_good:
        reached_SxT = np.logical_and.accumulate(reached_SxT[:, ::-1], axis=1)[:, ::-1]
    steps_T = after["eval_step"].values - untied_from(arm)
    return np.where(reached_SxT.any(axis=1), steps_T[reached_SxT.argmax(axis=1)], np.nan)


def untying_table(results: xr.Dataset) -> Table:
    """Arms that untie midway, before and after, beside the arms that are tied or untied throughout at the same steps."""
    arms = [str(arm) for arm in results["arm"].values]
    pure = [arm for arm in ARMS if arm in arms]
    steps = results["eval_step"].values[results["eval_step"].values <= last_step(results)]
    rows = []
    for arm in arms:
        if not (at := untied_from(arm)) or at > steps[-1]:
            continue
        for time in sorted({int(steps[np.abs(steps - at - part * (steps[-1] - at)).argmin()]) for part in UNTYING_TIMES}):
            here = results.sel(step=time, eval_step=time)
            columns = [here["train_loss"], *(values.sel(step=time) for values in distance_rows(results).values())]
            cells = ["; ".join(quantiles(column.sel(arm=each).values) for each in (arm, *pure)) for column in columns]
            rows.append((arm, f"{time:,}", *cells))
        if "untied" in pure:
            for label, for_good in (("first", False), ("for good", True)):
                needed = steps_to_reach(results, arm, "untied", for_good=for_good)
                reached = needed[np.isfinite(needed)]
                spread = np.quantile(reached, [0.5, 0.05, 0.95]) if len(reached) else np.full(3, np.nan)
                text = "{:,.0f} [{:,.0f}, {:,.0f}] steps".format(*spread) + f", {len(reached)} of {len(needed)} seeds"
                rows.append((arm, f"within {REACHED} of untied, {label} after", text, *[""] * len(distance_rows(results))))
    of = "; ".join(("this arm", *pure))
    header = ("arm", "step", "training loss, nat", *distance_rows(results))
    return Table(f"Untying: median over seeds [5 %, 95 %] of {of}", header, rows)
