"""Results -> tables: for the terminal and for `summary.md`. Imports no jax."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from jaxtie.config import ARMS, untied_from

PLACES = 3
SOLVED = 0.05  # nat above the best reachable loss
REACHED = 0.01  # nat above another arm's loss
UNTYING_TIMES = (0, 0.04, 0.2, 1)  # of what is left of the training
EXCESS = "loss above the best, nat"
BOOTSTRAP = 2000


@dataclass(frozen=True)
class Table:
    """A titled table of strings; the first column names the row."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def markdown(self) -> str:
        lines = [f"| {' | '.join(row)} |" for row in (self.header, ("---",) * len(self.header), *self.rows)]
        return "\n".join([f"**{self.title}**", "", *lines, ""])


def mean_interval(values: np.ndarray, axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds and half the width of its 95 % confidence interval (Student's t); NaN values are left out."""
    from scipy.stats import t  # heavy

    count = np.sum(np.isfinite(values), axis=axis)
    total = np.nansum(values, axis=axis)
    mean = np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)
    spread = np.nansum((values - np.expand_dims(mean, axis)) ** 2, axis=axis)
    variance = np.divide(spread, count - 1, out=np.full(np.shape(total), np.nan), where=count > 1)
    return mean, t.ppf(0.975, np.maximum(count - 1, 1)) * np.sqrt(variance / np.maximum(count, 1))


def _number(value: float) -> str:
    return "–" if not np.isfinite(value) else f"{value:.{PLACES}f}"


def _interval(values: np.ndarray) -> str:
    mean, half = mean_interval(np.asarray(values, np.float64))
    return _number(mean) + (f" ± {_number(half)}" if np.isfinite(half) else "")


def _quantiles(values: np.ndarray) -> str:
    values = values[np.isfinite(values)]
    if not len(values):
        return "–"
    low, middle, high = np.quantile(np.asarray(values, np.float64), [0.05, 0.5, 0.95])
    return f"{_number(middle)} [{_number(low)}, {_number(high)}]"


def last_step(results: xr.Dataset) -> int:
    """The last step that every member has reached with an exact evaluation."""
    losses = results["train_loss"]  # a frozen member's stays finite
    reached = np.isfinite(losses).all([name for name in losses.dims if name != "eval_step"])
    return int(results["eval_step"][reached].max()) if reached.any() else 0


def swept(results: xr.Dataset) -> tuple[str, ...]:
    """Names of the settings that were swept: the results' dimensions between arm and seed."""
    return tuple(map(str, results["diverged_at"].dims[1:-1]))


def settings(results: xr.Dataset, names: Sequence[str]) -> Iterator[tuple[dict[str, float], xr.Dataset]]:
    """The results at every combination of the values of some swept settings."""
    for values in itertools.product(*(results[name].values.tolist() for name in names)):
        at = dict(zip(names, values))
        yield at, results.sel(at)


def distance_rows(results: xr.Dataset) -> dict[str, xr.DataArray]:
    """Label -> distance (arm, ..., seed, step), for the pairs that differ in nothing but how often they are drawn."""
    rows = {}
    for table in ("input", "output"):
        for pair in live_pairs(results):
            first, second = pair.split("-")
            rows[f"distance {pair}, {table}"] = results[f"{table}_distance"].sel(symbol=first, symbol2=second)
    return rows


def live_pairs(results: xr.Dataset) -> list[str]:
    """The pairs of which both symbols occur, in any setting."""
    log_odds = results["theory_log_odds"]
    return [str(pair) for pair in results["pair"].values if np.isfinite(log_odds.sel(pair=pair)).any()]


def targets(results: xr.Dataset) -> list[str]:
    """The symbols that can be a target, so have a place in both tables."""
    return [str(symbol) for symbol in results["symbol"].values[np.isfinite(np.diag(results["conditional_divergence"]))]]


def tables(results: xr.Dataset, arm: str) -> dict[str, str]:
    """Label -> "input" or "output": an arm's tables, one if its output embedding is its input embedding throughout."""
    values = results.sel(arm=arm)
    if np.array_equal(values["input_table"], values["output_table"], equal_nan=True):
        return {arm: "input"}
    return {f"{arm} input": "input", f"{arm} output": "output"}


def final_table(results: xr.Dataset) -> Table:
    """Per arm mean and 95 % interval at the last evaluation, what is best reachable, and paired differences."""
    step = last_step(results)
    end = results.sel(eval_step=step, step=step)
    rows = []

    def add(label: str, best: str, values: xr.DataArray) -> None:
        first = values.isel(arm=0)
        paired = [_interval((values.isel(arm=i) - first).values) for i in range(1, values.sizes["arm"])]
        rows.append((label, best, *[_interval(values.sel(arm=arm).values) for arm in results["arm"]], *paired))

    for split in ("train", "valid"):
        for name in ("accuracy", "loss"):
            best = float(results[f"best_{name}"].sel(split=split))
            add(f"{split} {name}" + (", nat" if name == "loss" else ""), _number(best), end[f"{split}_{name}"])
    for label, values in distance_rows(results).items():
        add(label, "", values.sel(step=step))
    for pair in live_pairs(results):
        first, second = pair.split("-")
        odds = end["log_odds"].sel(pair=pair)
        add(f"ln p({second})/p({first}), nat", _number(float(results["theory_log_odds"].sel(pair=pair))), odds)
        add("its deviation over contexts", _number(0.0), end["log_odds_deviation"].sel(pair=pair))
    solved = end["train_loss"] <= float(results["best_loss"].sel(split="train")) + SOLVED
    blanks = ("",) * (results.sizes["arm"] - 1)
    counts = [f"{int(solved.sel(arm=arm).sum())} of {results.sizes['seed']}" for arm in results["arm"]]
    rows.append((f"seeds within {SOLVED} nat of the best", "", *counts, *blanks))
    diverged = [str(int((results["diverged_at"].sel(arm=arm) >= 0).sum())) for arm in results["arm"]]
    if any(count != "0" for count in diverged):
        rows.append(("seeds that diverged", "0", *diverged, *blanks))
    arms = [str(arm) for arm in results["arm"].values]
    return Table(
        f"{results.attrs['experiment']}: step {step:,}, mean over {results.sizes['seed']} seeds ± 95 % confidence interval",
        ("", "reachable", *arms, *[f"{arm} − {arms[0]}, paired" for arm in arms[1:]]),
        rows,
    )


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
            cells = [_interval(each) for each in own.values()]
            rows.append((*values, arm, *cells, _interval(more) if i else "", str(diverged)))
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
    """How the loss above the best reachable goes with each swept setting, and how the difference between arms does."""
    arms, excess = list(map(str, results["arm"].values)), outcomes(results)[EXCESS]
    cases = {f"{EXCESS.removesuffix(', nat')}, {arm}": excess.sel(arm=arm) for arm in arms}
    cases |= {f"loss, {arms[0]} − {arm}, paired": excess.sel(arm=arms[0]) - excess.sel(arm=arm) for arm in arms[1:]}
    rows = []
    for name in swept(results):
        label, x_K = abscissa(results, name)
        if np.isfinite(x_K).sum() < 3:
            continue  # nothing to correlate
        for at, _ in settings(results, [other for other in swept(results) if other != name]):
            where = "".join(f", {other} {value:g}" for other, value in at.items())
            for case, values in cases.items():
                values_KxS = values.sel(at).transpose(name, "seed").values
                both = (map(_number, correlation(x_K, values_KxS, ranks=ranks)) for ranks in (False, True))
                rows.append((f"{label}{where}", case, *(f"{r} [{low}, {high}]" for r, low, high in both)))
    return Table("Correlation over members [95 %, bootstrap over seeds]", ("setting", "with", "Pearson", "Spearman"), rows)


def course_table(results: xr.Dataset) -> Table:
    """Median and 5-95 % range over seeds at four times of the training."""
    total = last_step(results)
    steps = results["step"].values
    times = sorted({int(steps[np.abs(steps - total * part).argmin()]) for part in (1 / 15, 1 / 3, 2 / 3, 1)})
    columns = {"training loss, nat": results["loss"], **distance_rows(results)}
    rows = [
        (str(arm), f"{time:,}", *[_quantiles(column.sel(arm=arm, step=time).values) for column in columns.values()])
        for arm in results["arm"].values
        for time in times
    ]
    return Table("Over training: median over seeds [5 %, 95 %]", ("arm", "step", *columns), rows)


def steps_to_reach(results: xr.Dataset, arm: str, other: str) -> np.ndarray:
    """Steps from an arm's untying to the first evaluation with no more than `REACHED` more loss than the other arm then has.

    Each seed against itself in the other arm; NaN where it is never seen. (seeds,)
    """
    after = results.sel(eval_step=slice(untied_from(arm), last_step(results)))
    more = after["train_loss"].sel(arm=arm) - after["train_loss"].sel(arm=other)
    reached_SxT = (more <= REACHED).transpose("seed", "eval_step").values
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
            cells = ["; ".join(_quantiles(column.sel(arm=each).values) for each in (arm, *pure)) for column in columns]
            rows.append((arm, f"{time:,}", *cells))
        if "untied" in pure:
            needed = steps_to_reach(results, arm, "untied")
            reached = needed[np.isfinite(needed)]
            spread = np.quantile(reached, [0.5, 0.05, 0.95]) if len(reached) else np.full(3, np.nan)
            text = "{:,.0f} [{:,.0f}, {:,.0f}] steps".format(*spread) + f", {len(reached)} of {len(needed)} seeds"
            rows.append((arm, f"within {REACHED} of untied after", text, *[""] * len(distance_rows(results))))
    of = "; ".join(("this arm", *pure))
    header = ("arm", "step", "training loss, nat", *distance_rows(results))
    return Table(f"Untying: median over seeds [5 %, 95 %] of {of}", header, rows)


def rank_agreement(divergence_P: np.ndarray, distance_SxP: np.ndarray) -> np.ndarray:
    """Somers' D of distances given divergences, in [-1, 1], a seed each.

    Over all couples of pairs that the theory puts in an order: share in that order less share in the other. It is
    Kendall's tau but for couples of equal divergence, of which the theory says nothing: so 1 can be reached.
    """
    divergence_P = np.round(divergence_P, 9)  # rounding is not an order
    expected_PxP = (divergence_P[:, None] > divergence_P).astype(int) - (divergence_P[:, None] < divergence_P)
    found_SxPxP = np.sign(distance_SxP[:, :, None] - distance_SxP[:, None, :])
    couples = np.abs(expected_PxP).sum()
    return (expected_PxP * found_SxPxP).sum(axis=(1, 2)) / couples if couples else np.full(len(distance_SxP), np.nan)


def equivalence_table(results: xr.Dataset) -> Table:
    """How far each pair is from being equivalent, beside its distance in every table at the end; then their agreement.

    For the rank of the log ratio, two symbols that never share a context are further apart than any two that do.
    """
    measures = {
        "semantic divergence": results["semantic_divergence"],
        "conditional divergence": results["conditional_divergence"],
        "log ratio, nat": results["conditional_log_ratio"],
    }
    pairs = list(itertools.combinations(targets(results), 2))
    firsts, seconds = (xr.DataArray(list(each), dims="couple") for each in zip(*pairs))
    at_pairs = lambda matrix: matrix.sel(symbol=firsts, symbol2=seconds)
    end = results.sel(step=last_step(results))
    distances = {
        label: at_pairs(end[f"{table}_distance"].sel(arm=arm)).transpose("seed", "couple").values.astype(np.float64)
        for arm in map(str, results["arm"].values)
        for label, table in tables(results, arm).items()
    }
    divergences = {name: at_pairs(matrix).values for name, matrix in measures.items()}
    rows = [
        (
            f"{first}-{second}",
            *[_number(divergence[i]) for divergence in divergences.values()],
            *[_interval(distance[:, i]) for distance in distances.values()],
        )
        for i, (first, second) in enumerate(pairs)
    ]
    divergences["log ratio, nat"] = np.nan_to_num(divergences["log ratio, nat"], nan=np.inf)  # never in one context
    for name, divergence in divergences.items():
        agreement = [_interval(rank_agreement(divergence, distance)) for distance in distances.values()]
        rows.append((f"rank agreement with {name.removesuffix(', nat')}", "", "", "", *agreement))
    return Table(
        f"Equivalences of the process, and distances at step {last_step(results):,}", ("pair", *measures, *distances), rows
    )


def seed_table(results: xr.Dataset) -> Table:
    """Every seed: final exact training loss, and how far its log-odds are from the process's."""
    step = last_step(results)
    end = results.sel(eval_step=step)
    header, columns = ["seed"], []
    for arm in results["arm"].values:
        header.append(f"{arm}: training loss, nat")
        columns.append(end["train_loss"].sel(arm=arm).values)
        for pair in live_pairs(results):
            first, second = pair.split("-")
            theory = float(results["theory_log_odds"].sel(pair=pair))
            header.append(f"{arm}: ln p({second})/p({first}) − {_number(theory)}")
            columns.append(end["log_odds"].sel(arm=arm, pair=pair).values - theory)
    rows = [(str(seed), *[_number(column[i]) for column in columns]) for i, seed in enumerate(results["seed"].values)]
    return Table(f"Per seed at step {step:,}", tuple(header), rows)


def tables_of(results: xr.Dataset) -> list[Table]:
    """What a run shows at its end."""
    if swept(results):
        return [table for table in (sweep_table(results), correlation_table(results)) if table.rows]
    untying = [table for table in [untying_table(results)] if table.rows]
    return [final_table(results), course_table(results), *untying, equivalence_table(results)]


def markdown(results: xr.Dataset) -> str:
    """The text of `summary.md`."""
    parts = tables_of(results) + ([] if swept(results) else [seed_table(results)])
    head = [f"# {results.attrs['experiment']}", "", results.attrs["claim"], "", f"`{results.attrs['command']}`", ""]
    return "\n".join([*head, *(part.markdown() for part in parts)])
