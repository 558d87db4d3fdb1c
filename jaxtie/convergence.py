"""How models with different heads converge: results -> steps to given losses, verdicts, tables, figure. Imports no jax.

Verdicts follow from intervals over seeds by the rule of `jaxtie.verdicts`, heads compared in pairs on equal seeds.
"""

import itertools
import math
from pathlib import Path

import numpy as np
import xarray as xr

from jaxtie import verdicts
from jaxtie.style import STYLE, coloured, plt, save
from jaxtie.tables import Table, interval, mean_interval, number
from jaxtie.verdicts import Comparison, Judgement, compare, judge

TIED, UNTIED, SMALL = "tied", "untied", "tied, σ (log n)/D"
PROJECTION, HALF_SWAP, SHUFFLE, SCALED = "tied, projection", "tied, half swap", "tied, channel shuffle", "tied, logits / √D"
ALIKE = (UNTIED, PROJECTION, HALF_SWAP, SHUFFLE)  # what is said to converge alike
REMEDIES = (SMALL, *ALIKE)  # of the source; logits / √D is ours

ABOUT = 1.0  # nat: what "about log n" means; n words that are alike start at log n + Dσ²/2, n + n of them at log 2n
SAME_PACE = 0.1  # steps that differ by at most this share are alike
SAME_END = 0.05  # nat
CAPTION = "Heads of one model on real text: start, whole course, difference to untied in pairs; mean over seeds, 95 % band"


def steps_to_reach(step_T: np.ndarray, loss_SxT: np.ndarray, level: float) -> np.ndarray:
    """When each curve is first at or below a level, straight lines between records; at least 1, infinity if never; S."""
    below = loss_SxT <= level
    first = below.argmax(axis=-1)
    before = np.maximum(first - 1, 0)
    of_curve = lambda at: np.take_along_axis(loss_SxT, at[:, None], axis=-1)[:, 0].astype(np.float64)
    drop = of_curve(before) - of_curve(first)
    share = np.divide(of_curve(before) - level, drop, out=np.ones_like(drop), where=drop > 0)
    steps = step_T[before] + share * (step_T[first] - step_T[before])
    return np.where(below.any(axis=-1), np.maximum(steps, 1), np.inf)


def levels(results: xr.Dataset) -> dict[float, float]:
    """Share of the way from log n to the untied model's mean validation loss at the end -> the loss there, nats."""
    top = math.log(results.attrs["vocabulary"])
    end = float(results["valid_loss"].sel(head=UNTIED).isel(step=-1).mean())
    return {float(share): top - float(share) * (top - end) for share in np.atleast_1d(results.attrs["shares"])}


def compare_pace(label: str, steps_S: np.ndarray, other_S: np.ndarray, last: int, count: int = 1) -> Comparison:
    """Steps / other's steps, a factor. What was not reached counts as the last step, and opens the interval on its side."""
    compared = compare(label, np.log(np.minimum(steps_S, last) / np.minimum(other_S, last)), count)
    low = -math.inf if np.isinf(other_S).any() else compared.low
    high = math.inf if np.isinf(steps_S).any() else compared.high
    return compared._replace(low=low, high=high, is_factor=True)


def judgements(results: xr.Dataset) -> dict[str, dict[str, Judgement]]:
    """Claim -> where it is looked at (a share of the way, or "") -> judgement."""
    steps, loss = results["step"].values, results["valid_loss"].transpose("head", "seed", "step")
    curve = lambda head: loss.sel(head=head).values
    log_n, last = math.log(results.attrs["vocabulary"]), int(steps[-1])
    pairs_of = lambda heads: list(itertools.combinations(heads, 2))
    starts = [compare(head, curve(head)[:, 0] - log_n, len(REMEDIES)) for head in REMEDIES]
    pairs = pairs_of(REMEDIES)
    ends = [compare(f"{a} − {b}", curve(a)[:, -1] - curve(b)[:, -1], len(pairs)) for a, b in pairs]
    slowest, alike = {}, {}
    for share, level in levels(results).items():
        needed = {head: steps_to_reach(steps, curve(head), level) for head in REMEDIES}
        pace = lambda pairs, needed=needed: [
            compare_pace(f"{a} / {b}", needed[a], needed[b], last, len(pairs)) for a, b in pairs
        ]
        slowest[f"{share:.0%}"] = judge(pace([(SMALL, head) for head in ALIKE]), 0, math.inf)
        alike[f"{share:.0%}"] = judge(pace(pairs_of(ALIKE)), -math.log1p(SAME_PACE), math.log1p(SAME_PACE))
    return {
        f"every remedy starts within {ABOUT:g} nat of log n": {"": judge(starts, -ABOUT, ABOUT)},
        "σ (log n)/D takes more steps than any other remedy": slowest,
        f"the other remedies take the same steps to within {SAME_PACE:.0%}": alike,
        f"all remedies end within {SAME_END:g} nat of each other": {"": judge(ends, -SAME_END, SAME_END)},
    }


def verdict_table(results: xr.Dataset) -> Table:
    """The claims, and what became of them."""
    return verdicts.table(judgements(results), "seeds")


def loss_table(results: xr.Dataset) -> Table:
    """Initial loss beside its estimate, and losses at the end, in pairs against untied."""
    end, rows = results.isel(step=-1), []
    for head in map(str, results["head"].values):
        cells = [interval(results["valid_loss"].sel(head=head).isel(step=0).values)]
        cells.append(number(float(results["estimate"].sel(head=head))))
        for name in ("loss", "valid_loss"):
            values = end[name].sel(head=head).values
            paired = interval(values - end[name].sel(head=UNTIED).values) if head != UNTIED else ""
            cells += [interval(values), paired]
        rows.append((head, *cells))
    n, step = results.attrs["vocabulary"], int(results["step"][-1])
    title = f"Loss, nat (log n = {math.log(n):.3f}): mean over {results.sizes['seed']} seeds ± 95 %; the end is step {step:,}"
    if diverged := int((~np.isfinite(end["valid_loss"])).sum()):
        title += f"; {diverged} members diverged and are left out"
    paired = "− untied, paired"
    return Table(title, ("", "start", "estimate", "training, end", paired, "validation, end", paired), rows)


def pace_table(results: xr.Dataset) -> Table:
    """Steps to given validation losses: median over seeds and range, factor to untied, seeds that never got there."""
    steps, rows = results["step"].values, []
    curve = lambda head: results["valid_loss"].sel(head=head).transpose("seed", "step").values
    for head in map(str, results["head"].values):
        cells = []
        for level in levels(results).values():
            needed, other = (steps_to_reach(steps, curve(each), level) for each in (head, UNTIED))
            reached, never = needed[np.isfinite(needed)], int(np.isinf(needed).sum())
            cell = f"{np.median(reached):,.0f} [{reached.min():,.0f}, {reached.max():,.0f}]" if len(reached) else ""
            if head != UNTIED and not never and not np.isinf(other).any():
                cell += f"; {compare_pace('×', needed, other, int(steps[-1]))}"
            cells.append(cell + f"{', ' * bool(cell)}{never} of {len(needed)} not reached" * bool(never))
        rows.append((head, *cells))
    header = ("", *(f"{share:.0%}: {level:.3f} nat" for share, level in levels(results).items()))
    title = "Steps to a validation loss, by share of untied's way from log n: median [range over seeds]; × untied [95 %]"
    return Table(title, header, rows)


def every_table(results: xr.Dataset) -> list[Table]:
    """All tables."""
    return [verdict_table(results), loss_table(results), pace_table(results)]


def markdown(results: xr.Dataset) -> str:
    """The text of `summary.md`."""
    facts = [results.attrs[name] for name in ("claim", "model", "text")]
    facts.append(f"`{results.attrs['command']}`")
    tables = [table.markdown() for table in every_table(results)]
    return "\n".join([f"# {results.attrs['experiment']}", "", *(f"{fact}\n" for fact in facts), *tables])


def draw(results: xr.Dataset, folder: Path) -> Path:
    """The start, the whole course, and the paired difference to untied: `head_convergence.png`, `.pdf`."""
    steps = results["step"].values
    log_n, loss = math.log(results.attrs["vocabulary"]), results["valid_loss"].transpose("head", "seed", "step")
    early = steps <= max(steps[-1] // 16, steps[min(4, len(steps) - 1)])
    with plt.style.context(STYLE):
        figure, (start, course, difference) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
        for colour, head in coloured(results["head"].values):
            of_head, line = loss.sel(head=head).values, {"color": colour, "label": head, "linewidth": 1.2}
            paired = of_head - loss.sel(head=UNTIED).values
            for axes, curves, at in ((start, of_head, early), (course, of_head, steps > 0), (difference, paired, steps > 0)):
                mean, half = mean_interval(curves[:, at])
                axes.plot(steps[at], mean, **line)
                axes.fill_between(steps[at], mean - half, mean + half, color=colour, alpha=0.2, linewidth=0)
        for axes in (start, course):
            axes.axhline(log_n, color="black", linestyle="--", linewidth=0.8)
        ends = loss.isel(step=-1).mean("seed")
        top = float(loss.isel(step=slice(1, None)).max())
        course.set(title="whole course", ylabel="validation loss, nat", ylim=(float(ends.min()) - 0.1, min(top, log_n + 0.2)))
        start.set(title=f"start; dashed: log n = {log_n:.2f}", ylabel="validation loss, nat", xlabel="step")
        difference.set(title="difference to untied, in pairs", ylabel="nat")
        late = (loss - loss.sel(head=UNTIED)).isel(step=slice(len(steps) // 8, None)).mean("seed")
        margin = 0.1 * float(late.max() - late.min()) + 1e-3
        difference.set_ylim(float(late.min()) - margin, float(late.max()) + margin)
        for axes in (course, difference):
            axes.set(xlabel="step", xscale="log")
        start.legend(fontsize=8)
        seeds = f"{results.sizes['seed']} seeds, mean and 95 % confidence band"
        figure.suptitle(f"{results.attrs['experiment']}: {seeds}", parse_math=False)
        return save(figure, folder, "head_convergence")


def write_csv(results: xr.Dataset, folder: Path) -> list[Path]:
    """Tidy CSV, one row an observation: `steps.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    results[["loss", "valid_loss"]].to_dataframe().to_csv(folder / "steps.csv")
    return [folder / "steps.csv"]
