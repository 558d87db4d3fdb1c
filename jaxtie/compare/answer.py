"""Compare two arms at their last common step: the answer, its lines and its figure."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from jaxtie.compare import decide
from jaxtie.compare.read import Logs, read_arm, run_arms
from jaxtie.config import UserError, check, is_number
from jaxtie.results import plots
from jaxtie.results.tables import json_numbers

MARGIN = 0.01  # nat
LARGEST = 30.0  # nat per token: ln of a vocabulary of 10^13
BITS = 0.5  # bits per byte in a nat per token, about; scales the deviation of published seeds
CAPTION = "Losses of both arms at their common steps: every seed (thin) and the mean (thick)."
MEANING = {
    "larger": "{} is worse than {} by more than it",
    "smaller": "{} is better than {} by more than it",
    "no difference beyond the margin": "the interval is within it",
    "not decided": "the interval reaches beyond it and within",
}


@dataclass(frozen=True)
class Side:
    """One arm: its logs, name, losses by seed where compared, seeds stuck of these, and missing."""

    logs: Logs
    name: str
    ends: pd.Series
    stuck: list[str]
    missing: list[str]


@dataclass(frozen=True)
class Comparison:
    """The answer of `jaxtie compare`; a notebook shows its lines.

    Attributes:
      a, b: the arms.
      axis: "step", "tokens" or "epoch"; "" if only final losses are given.
      at: last place at which all compared seeds of both arms have a loss; `common`: all of these.
      ends: the losses that the gap is of: all but those of stuck seeds.
      gap: A − B, low, mean and high end of its 90 % interval, in `unit`; NaN of one seed each.
      decision: a key of `MEANING`.
      more, deviation: further seeds of each arm that decide, 0 if decided, None if too many; the
        deviation over seeds that this assumes.
      margin: gap that matters.
      lines: the answer, at most eight.
    """

    a: Side
    b: Side
    axis: str
    at: float
    common: list[float]
    ends: decide.Ends
    gap: tuple[float, float, float]
    decision: str
    more: int | None
    deviation: float
    margin: float

    @property
    def unit(self) -> str:
        """Unit of losses, gap and margin."""
        return self.a.logs.unit

    @property
    def lines(self) -> list[str]:
        """The answer."""
        a, b, unit, (low, mean, high) = self.a.name, self.b.name, self.unit, self.gap
        at = f" at {self.axis} {self.at:,.10g}" if self.axis else ""
        sign = f"{a} is {'worse' if mean > 0 else 'better'}"
        sign = sign if low > 0 or high < 0 else "which is worse is not shown"
        known = f"90 % interval {low:+.4f} to {high:+.4f}"
        known = "no interval: one seed each" if math.isnan(low) else known
        column = self.a.logs.column
        meaning = MEANING[self.decision].format(a, b) if low == low else "one seed each"
        is_chosen = any(own.stuck or own.missing for own in (self.a, self.b))
        among = ", among the seeds that train" * is_chosen
        lines = [
            f"{a} − {b} = {mean:+.4f} {unit} of {column}{at} ({known}): {sign}.",
            f"Against a margin of {self.margin:g} {unit}: {self.decision}{among} ({meaning}).",
            self._seeds(),
        ]
        if self.decision == "not decided":
            many = f"about {self.more}" if self.more else f"over {decide.MOST_SEEDS:,}"
            few = min(len(self.ends.a), len(self.ends.b)) < decide.ENOUGH
            source = "drawn towards that of published ones" if few else "as seen"
            source = source if low == low else "of published ones"
            lines.append(
                f"To decide: {many} more seeds of each arm (80 % power, planned for a true gap of 0"
                f" and a deviation over seeds of {self.deviation:.2g} {unit}, {source})."
            )
        lines += [*self._left_out(), *self._places()]
        notes = [*self.a.logs.notes, *self.b.logs.notes]
        digit = max(self.ends.digit_a, self.ends.digit_b)
        if digit > self.margin / 4:
            notes.append(f"Losses are printed to {digit:.2g} {unit}, which widens the interval.")
        return [*lines, *([" ".join(notes)] if notes else [])]

    def _seeds(self) -> str:
        count, pairs = (len(self.ends.a), len(self.ends.b)), self.ends.pairs
        kept = [own.ends.index.difference(own.stuck, sort=False) for own in (self.a, self.b)]
        both = _some([seed for seed in kept[0] if seed in kept[1]])
        how = f"unpaired{f' (one in both, {both}, shows no correlation)' * bool(both)}"
        if pairs:
            rest = f", unpaired {count[0] - pairs} and {count[1] - pairs}, in one estimate"
            how = f"paired {pairs} ({both}){rest if max(count) > pairs else ''}"
        return f"Seeds: {count[0]} of {self.a.name}, {count[1]} of {self.b.name}; {how}."

    def _left_out(self) -> list[str]:
        parts = []
        for own in (self.a, self.b):
            of = f"of {len(own.ends) + len(own.missing)} seeds of {own.name}"
            if own.stuck:
                parts.append(
                    f"{len(own.stuck)} {of} are stuck far above the others ({_some(own.stuck)})"
                )
            if own.missing:
                parts.append(
                    f"{len(own.missing)} {of} diverged or have no loss at the end"
                    f" ({_some(own.missing)})"
                )
        gap = self.a.ends.mean() - self.b.ends.mean()
        stuck = f"; with the stuck ones it is {gap:+.4f}, and no interval holds"
        stuck *= bool(self.a.stuck or self.b.stuck)
        end = f"The gap is conditional: it leaves them out{stuck}."
        return [f"{'; '.join(parts)}. {end}"] * bool(parts)

    def _places(self) -> list[str]:
        if not self.axis:
            return ["No steps are given: make sure that all losses are of the same step."]
        shown = []
        for own in (self.a, self.b):
            last = own.logs.rows.dropna(subset=["loss"]).groupby("seed")[self.axis].max()
            last = last[own.ends.index]
            ends = dict.fromkeys(f"{end:,.10g}" for end in (last.min(), last.max()))
            shown.append(f"{own.name} ends at {' to '.join(ends)}")
        line = f"{' and '.join(shown)}: compared at {self.at:,.10g}, the last common {self.axis}."
        return [line] * any(not own.endswith(f" at {self.at:,.10g}") for own in shown)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for `--json`."""
        names = ("axis", "at", "unit", "margin", "decision", "gap", "deviation")
        own: dict[str, Any] = {name: getattr(self, name) for name in names}
        own |= {"answer": self.lines, "paired": self.ends.pairs, "more_seeds": self.more}
        own["gap"] = dict(zip(("low", "mean", "high"), self.gap))
        own["arms"] = [
            {"name": arm.name, "column": arm.logs.column, "losses": arm.ends.to_dict()}
            | {"stuck": arm.stuck, "missing": arm.missing}
            for arm in (self.a, self.b)
        ]
        return json_numbers(own)

    def plot(self) -> Figure:
        """Draw both arms over their common steps: every seed, and the mean."""
        figure, ((axes,),) = plots.subplots(1, 1, (7.0, 4.2))
        arms = {self.a.name: self.a, self.b.name: self.b}
        for colour, name in plots.coloured(arms):
            ends = arms[name].ends
            if self.axis:
                loss = arms[name].logs.curves(self.axis).loc[self.common, ends.index]
                style: dict[str, Any] = {"color": colour, "marker": "o" if len(loss) == 1 else ""}
                axes.plot(loss.index, loss, alpha=0.3, linewidth=0.8, **style)
                axes.plot(loss.index, loss.mean(axis=1), label=name, **style)
            else:
                axes.plot([name] * len(ends), ends, "o", color=colour, alpha=0.5, label=name)
        axes.set(xlabel=self.axis, ylabel=f"{self.a.logs.column}, {self.unit}")
        axes.set_title(self.lines[1], fontsize=9)
        axes.legend()
        return figure

    def write(self, out: Path) -> None:
        """Write `comparison.png` and `comparison.json` to a folder."""
        text = json.dumps(self.as_dict(), indent=1)
        plots.draw_all({"comparison": plots.Picture(CAPTION, self.plot)}, out)
        (out / "comparison.json").write_text(text + "\n", encoding="utf-8")

    def _repr_markdown_(self) -> str:
        """Show the answer in a notebook."""
        return "\n\n".join(self.lines)


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:6], *["..."] * (len(names) > 6)])


def compare(
    a: str | Path | Sequence[str | Path],
    b: str | Path | Sequence[str | Path] | None = None,
    *,
    column: str | None = None,
    margin: float = MARGIN,
    vocabulary: int | None = None,
    out: str | Path | None = None,
) -> Comparison:
    """Compare two sets of training runs, as `jaxtie compare A B` does.

    Args:
      a: a file, a folder, a pattern, several of these, or a run of jaxtie; see README.md.
      b: the reference; None if `a` is a run of two arms.
      column: name of the loss, where several fit.
      margin: gap that matters, in the unit of the losses: nats, or bits per byte.
      vocabulary: its entries; losses above ln(vocabulary) + 1 nat are then refused.
      out: folder for the figure and the answer; None: nothing is written.

    Returns:
      The answer: `lines`, `gap`, `decision`, `more`, `plot()`.

    Raises:
      UserError: in one line, if the arms cannot be read or compared.
    """
    check(is_number(margin) and 0 < margin < math.inf, f"margin {margin!r}: expected above 0")
    if b is None:
        (folder,) = [a] if isinstance(a, str | Path) or len(a) != 1 else a
        is_run = isinstance(folder, str | Path) and (Path(folder) / "results.nc").is_file()
        check(is_run, f"{a}: expected two arms, A and B, or one run of jaxtie")
        a, b = (f"{folder}:{arm}" for arm in run_arms(Path(str(folder))))
    logs = read_arm(a, column), read_arm(b, column)
    first, second = (set(map(Path.resolve, own.files)) for own in logs)
    is_same = bool(first & second) and logs[0].rows.equals(logs[1].rows)
    check(not is_same, f"{logs[1].name}: is given as both arms; give two sets of runs")
    kinds = [f"{own.name} has {own.column} ({own.source} {own.unit})" for own in logs]
    sources = {own.source for own in logs} - {""}
    is_like = logs[0].unit == logs[1].unit and (len(sources) < 2 or column is not None)
    check(is_like, f"{' and '.join(kinds)}: these are not the same loss; choose one by --column")
    answer = _compare(logs, margin, vocabulary)
    if out is not None:
        answer.write(Path(out))
    return answer


def _compare(logs: tuple[Logs, Logs], margin: float, vocabulary: int | None) -> Comparison:
    axis, at, common = _axis(logs), math.nan, []
    lost, ends = [], []
    for own in logs:
        rows = own.rows.sort_values(axis, kind="stable") if axis else own.rows
        last = rows.groupby("seed", sort=False)["loss"].agg(lambda loss: loss.iloc[-1])
        lost.append([*last.index[last.isna()]])
        ends.append(last.dropna())
        check(len(ends[-1]) > 0, f"{own.name}: every seed diverged; there is no loss to compare")
    if axis:
        curves = [own.curves(axis) for own in logs]
        found = [own[end.index].dropna().index for own, end in zip(curves, ends)]
        common, last_ones = sorted({*found[0]} & {*found[1]}), [own.max() for own in found]
        shown = " and ".join(f"{own.name} ends at {end:g}" for own, end in zip(logs, last_ones))
        check(
            bool(common) and not common[-1] <= 0 < min(last_ones),
            f"{shown}, with no {axis} after 0 at which all seeds of both have a loss; log both at"
            " the same, or leave out the seeds that end early",
        )
        at = common[-1]
        ends = [own.loc[at].dropna() for own in curves]
        if axis == "step" and all("tokens" in own.axes for own in logs):
            seen = [own.rows["tokens"][own.rows["step"] == at].median() for own in logs]
            check(
                abs(seen[0] - seen[1]) <= 0.01 * max(seen),
                f"step {at:g} is after {seen[0]:g} tokens in {logs[0].name} and {seen[1]:g} in"
                f" {logs[1].name}; drop one of the two columns to choose what to compare at",
            )
    for own, end in zip(logs, ends):
        _check_size(own, axis, at, end, vocabulary)
    stuck = decide.stuck(*(end.to_numpy() for end in ends))
    short = [own.short or own.name for own in logs]
    names = short if short[0] != short[1] else [own.name for own in logs]
    sides = [
        Side(own, name, end, [*end.index[is_stuck]], [s for s in gone if s not in end])
        for own, name, end, is_stuck, gone in zip(logs, names, ends, stuck, lost)
    ]
    kept = [own.ends.drop(own.stuck) for own in sides]
    both = [seed for seed in kept[0].index if seed in kept[1]]
    parts = (kept[0][both], kept[1][both], kept[0].drop(both), kept[1].drop(both))
    digits = [own.digit for own in logs]
    if min(len(own.rows) for own in logs) < 3:  # of few, all may end with a 0 that is not printed
        digits = [min(digits)] * 2
    same = bool((parts[0] == parts[1]).all()) and max(digits) < margin
    same = same and parts[0].nunique() > 1  # more than one pair
    check(not same, f"{logs[0].name} and {logs[1].name}: have equal losses; give two sets of runs")
    arrays = [own.to_numpy(np.float64) for own in parts]
    found_ends = decide.Ends(arrays[0], arrays[1], arrays[2], arrays[3], *digits)
    mean, half = map(float, decide.interval(found_ends))
    decision, deviation = decide.decide(mean - half, mean + half, margin), math.nan
    more: int | None = 0
    if decision == "not decided":
        published = decide.DEVIATION * (1 if logs[0].unit == "nat" else BITS)
        more, deviation = decide.plan(found_ends, margin, published)
    gap = (mean - half, mean, mean + half)
    return Comparison(
        sides[0], sides[1], axis, at, common, found_ends, gap, decision, more, deviation, margin
    )


def _axis(logs: tuple[Logs, Logs]) -> str:
    """Return what both arms count, "" if neither counts anything."""
    shared = [axis for axis in logs[0].axes if axis in logs[1].axes]
    counted = [f"{own.name} has {' and '.join(own.axes) or 'no steps'}" for own in logs]
    if not shared and (logs[0].axes or logs[1].axes):
        raise UserError(f"{' and '.join(counted)}: cannot be matched; give both the same column")
    return shared[0] if shared else ""


def _check_size(logs: Logs, axis: str, at: float, ends: pd.Series, vocabulary: int | None) -> None:
    limit, reason = LARGEST, f"above {LARGEST:g}, too large for a loss per token"
    if vocabulary and logs.unit == "nat":
        limit = math.log(vocabulary) + 1
        reason = f"above ln({vocabulary}) + 1 = {limit:.2f} nat"
    for seed, loss in ends[ends > limit].items():
        rows = logs.rows[logs.rows["seed"] == seed]
        row = (rows[rows[axis] == at] if axis else rows).iloc[-1]
        raise UserError(
            f"{row['file']}, line {row['line']}: loss {loss:g} of seed {seed} is {reason}; leave"
            " out the seed if it diverged, or choose another column by --column"
        )
