"""Compare two arms at their last common step: the answer, its lines and its figure."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from jaxtie.compare import decide
from jaxtie.compare.read import Logs, read_arm
from jaxtie.config import UserError, check, is_number
from jaxtie.results import plots
from jaxtie.results.tables import json_numbers

LARGEST = 30.0  # nat per token: ln of a vocabulary of 10^13
BITS = 0.5  # bits per byte in a nat per token, about; scales the deviation of published seeds
MEANING = {
    "larger": "{} is worse than {} by more than it",
    "smaller": "{} is better than {} by more than it",
    "no difference beyond the margin": "the interval is within it",
    "not decided": "the interval includes it",
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
    """The answer of `jaxtie compare`.

    Attributes:
      arms: A and B.
      axis: "step", "tokens" or "epoch"; "" if only final losses are given.
      common: places on it at which all compared seeds have a loss.
      ends: the losses that the gap is of: all but those of stuck seeds.
      gap: A − B, low, mean and high end of its 90 % interval, in `unit`; NaN of one seed each.
      margin: gap that matters.
      decision: a key of `MEANING`.
      more, deviation: further seeds of each arm that decide, 0 if decided, None if too many; the
        deviation over seeds that this assumes.
    """

    arms: tuple[Side, Side]
    axis: str
    common: list[float]
    ends: decide.Ends
    gap: tuple[float, float, float]
    margin: float
    decision: str
    more: int | None
    deviation: float

    @property
    def at(self) -> float:
        """The last common place; NaN if only final losses are given."""
        return self.common[-1] if self.common else math.nan

    @property
    def unit(self) -> str:
        """Unit of losses, gap and margin."""
        return self.arms[0].logs.unit

    @property
    def lines(self) -> list[str]:
        """The answer, at most eight lines."""
        (a, b), unit, (low, mean, high) = (own.name for own in self.arms), self.unit, self.gap
        at = f" at {self.axis} {self.at:,.10g}" if self.axis else ""
        better = f"{a} is {'worse' if mean > 0 else 'better'}"
        sign = better if low > 0 or high < 0 else "these runs do not show which is worse"
        known, meaning = f"90 % interval {low:+.4f} to {high:+.4f}", MEANING[self.decision]
        if math.isnan(low):
            known, meaning = "no interval: one seed each", "one seed each"
        columns = [own.logs.column for own in self.arms]
        among = ", among the seeds that train" * any(own.stuck or own.missing for own in self.arms)
        lines = [
            f"{a} − {b} = {mean:+.4f} {unit} of {columns[0]}{at} ({known}): {sign}.",
            f"Against a margin of {self.margin:g} {unit}: {self.decision}{among}"
            f" ({meaning.format(a, b)}).",
            self._seeds(),
        ]
        if self.decision == "not decided":
            many = f"about {self.more}" if self.more else f"over {decide.MOST_SEEDS:,}"
            few = min(len(own) for own in self.ends[:2]) < decide.ENOUGH
            source = "drawn towards that of published ones" if few else "as seen"
            source = "of published ones" if math.isnan(low) else source
            near = " The gap seen is above half of the margin, so these may not suffice."
            near *= abs(mean) > self.margin / 2
            lines.append(
                f"To decide: {many} more seeds of each arm (80 % power, planned for a true gap of 0"
                f" and a deviation over seeds of {self.deviation:.2g} {unit}, {source}).{near}"
            )
        notes = [note for own in self.arms for note in own.logs.notes]
        if columns[0] != columns[1]:
            notes.append(f"{a} has {columns[0]}, {b} has {columns[1]}: check that they are alike.")
        if (digit := max(self.ends.digits)) > self.margin / 4:
            notes.append(f"Losses are printed to {digit:.2g} {unit}, which widens the interval.")
        noted = " ".join(dict.fromkeys(notes))
        return [*filter(None, (*lines, self._left_out(), self._places(), noted))]

    def _seeds(self) -> str:
        (count_a, count_b), pairs = (len(own) for own in self.ends[:2]), self.ends.paired
        kept = [own.ends.index.difference(own.stuck, sort=False) for own in self.arms]
        both, how = _some(seed for seed in kept[0] if seed in kept[1]), "unpaired"
        if pairs:
            rest = f", unpaired {count_a - pairs} and {count_b - pairs}, in one estimate"
            how = f"paired {pairs} ({both}){rest if max(count_a, count_b) > pairs else ''}"
            if not all(own.logs.is_run for own in self.arms):
                how += ", by name (--unpaired if two of a name share nothing)"
        elif self.ends.pairs and max(count_a, count_b) > 1:
            how = f"unpaired (so few in both, {both}, show no correlation)"
        return f"Seeds: {count_a} of {self.arms[0].name}, {count_b} of {self.arms[1].name}; {how}."

    def _left_out(self) -> str:
        parts = []
        for own in self.arms:
            of = f"of {len(own.ends) + len(own.missing)} seeds of {own.name}"
            kinds = {"are stuck far above the others": own.stuck}
            kinds["diverged or have no loss at the end"] = own.missing
            parts += [f"{len(s)} {of} {what} ({_some(s)})" for what, s in kinds.items() if s]
        gap = self.arms[0].ends.mean() - self.arms[1].ends.mean()
        stuck = f"; with the stuck ones it is {gap:+.4f}, and no interval holds"
        stuck *= any(own.stuck for own in self.arms)
        said = f"{'; '.join(parts)}. The gap is conditional: it leaves them out{stuck}."
        return said if parts else ""

    def _places(self) -> str:
        if not self.axis:
            return "No steps are given: make sure that all losses are of the same step."
        shown, at = [], f"{self.at:,.10g}"
        for own in self.arms:
            last = own.logs.rows.dropna(subset=["loss"]).groupby("seed")[self.axis].max()
            ends = [f"{end:,.10g}" for end in sorted(set(last[own.ends.index]))]
            shown.append(f"{own.name} ends at {' to '.join(dict.fromkeys((ends[0], ends[-1])))}")
        is_cut = any(not own.endswith(f" at {at}") for own in shown)
        return f"{' and '.join(shown)}: compared at {at}, the last common {self.axis}." * is_cut

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for `--json`."""
        names = ("axis", "at", "unit", "margin", "decision", "deviation")
        own: dict[str, Any] = {name: getattr(self, name) for name in names}
        own["gap"] = dict(zip(("low", "mean", "high"), self.gap))
        own |= {"answer": self.lines, "paired": self.ends.paired, "more_seeds": self.more}
        own["arms"] = [
            {"name": arm.name, "column": arm.logs.column, "losses": arm.ends.to_dict()}
            | {"stuck": arm.stuck, "missing": arm.missing}
            for arm in self.arms
        ]
        return json_numbers(own)

    def plot(self) -> Figure:
        """Draw the gap at the common steps, its interval and the margin; without steps the losses.

        The vertical axis fits the second half of the steps: the first gaps are large.
        """
        figure, ((axes,),) = plots.subplots(1, 1, (7.0, 4.2))
        axes.set_title("\n".join(textwrap.wrap(self.lines[0], 80)), fontsize=9, parse_math=False)
        names, (low, mean, high) = [own.name for own in self.arms], self.gap
        if not self.axis:
            for own in self.arms:
                axes.plot([own.name] * len(own.ends), own.ends, "o", color=plots.COLOURS[0])
            axes.set_ylabel(f"{self.arms[0].logs.column}, {self.unit}")
            return figure
        kept = [own.ends.index.drop(own.stuck) for own in self.arms]
        first, second = (
            own.logs.curves(self.axis).loc[self.common, seeds].mean(axis=1)
            for own, seeds in zip(self.arms, kept)
        )
        gap, bars = first - second, np.nan_to_num([[mean - low], [high - mean]])
        axes.axhspan(-self.margin, self.margin, color="k", alpha=0.1, label="margin")
        axes.plot(gap.index, gap, label="difference of means", color=plots.COLOURS[1])
        axes.errorbar(self.at, mean, bars, color="k", marker="D", capsize=4, label="90 % interval")
        shown = np.r_[gap[len(gap) // 2 :], mean - bars[0], mean + bars[1], 0]
        room = max(np.ptp(shown) / 5, self.margin)
        axes.set(ylim=(shown.min() - room, shown.max() + room), xlabel=self.axis)
        axes.set_ylabel(f"{' − '.join(names)}, {self.unit}")
        axes.legend()
        return figure


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join([*listed[:6], *["..."] * (len(listed) > 6)])


def compare(
    a: str | Path | Sequence[str | Path],
    b: str | Path | Sequence[str | Path],
    *,
    column: str | None = None,
    margin: float = decide.MARGIN,
    paired: bool = True,
) -> Comparison:
    """Compare two sets of training runs, as `jaxtie compare A B` does.

    Args:
      a: a file, a folder, a pattern, several of these, or RUN:ARM of a run; see README.md.
      b: the reference, likewise.
      column: name of the loss, where several fit.
      margin: gap that matters, in the unit of the losses: nats, or bits per byte.
      paired: whether runs of the same seed are pairs; False: they share neither initial values nor
        the order of the data.

    Returns:
      The answer: `lines`, `gap`, `decision`, `more`, `plot()`.

    Raises:
      UserError: in one line, if the arms cannot be read or compared.
    """
    check(is_number(margin) and 0 < margin < math.inf, f"margin {margin!r}: expected above 0")
    logs = read_arm(a, column), read_arm(b, column)
    kinds = [f"{own.name} has {own.column} ({own.source} {own.unit})" for own in logs]
    sources = {own.source for own in logs} - {""}
    is_like = logs[0].unit == logs[1].unit and (len(sources) < 2 or column is not None)
    check(is_like, f"{' and '.join(kinds)}: these are not the same loss; choose one by --column")
    axis = next((axis for axis in logs[0].axes if axis in logs[1].axes), "")
    if not axis and (logs[0].axes or logs[1].axes):
        counted = " and ".join(f"{o.name} has {' and '.join(o.axes) or 'no steps'}" for o in logs)
        raise UserError(f"{counted}: cannot be matched; give both the same column")
    sides, common = _sides(logs, axis)
    return _judge(sides, axis, common, margin, paired)


def _sides(logs: tuple[Logs, Logs], axis: str) -> tuple[tuple[Side, Side], list[float]]:
    """Return the losses of both arms at their last common place, and all common places."""
    lost, ends, common = [], [], []
    for own in logs:
        rows = own.rows.sort_values(axis, kind="stable") if axis else own.rows
        last = rows.drop_duplicates("seed", keep="last").set_index("seed")["loss"]
        last = last[rows["seed"].unique()]
        lost.append([*last.index[last.isna()]])
        ends.append(last.dropna())
        check(len(ends[-1]) > 0, f"{own.name}: every seed diverged; there is no loss to compare")
    if axis:
        curves = [own.curves(axis) for own in logs]
        found = [own[end.index].dropna().index for own, end in zip(curves, ends)]
        common = sorted({*found[0]} & {*found[1]})
        most = [
            f"{own.name} {f'to {at.max():g}' if len(at) else 'at none'}"
            for own, at in zip(logs, found)
        ]
        check(
            bool(common) and (common[-1] > 0 or all(at.max() == 0 for at in found)),
            f"no {axis} after 0 at which all seeds of both have a loss ({', '.join(most)}); log"
            " both at the same, or leave out the seeds that end early",
        )
        ends = [own.loc[common[-1]].dropna() for own in curves]
    counted = [each for each in ("tokens", "epoch") if all(each in own.axes for own in logs)]
    for other in counted if axis == "step" else ():
        seen = [own.rows[other][own.rows["step"] == common[-1]].median() for own in logs]
        shown = " and ".join(f"{count:g} in {own.name}" for own, count in zip(logs, seen))
        check(
            abs(seen[0] - seen[1]) <= 0.01 * max(seen),
            f"step {common[-1]:g} is after other {other}, {shown}; drop one of the two columns to"
            " choose what to compare at",
        )
    for own, end in zip(logs, ends):
        text = (
            f"{own.name}: loss {end.max():g} of seed {end.idxmax()} is above {LARGEST:g}, too large"
        )
        text += " for a loss per token; leave out the seed if it diverged, or use --column"
        check(end.max() <= LARGEST, text)
    stuck = decide.stuck(ends[0].to_numpy(), ends[1].to_numpy())
    names = [own.short or own.name for own in logs]
    names = names if names[0] != names[1] else [own.name for own in logs]
    a, b = (
        Side(own, name, end, [*end.index[is_stuck]], [s for s in gone if s not in end])
        for own, name, end, is_stuck, gone in zip(logs, names, ends, stuck, lost)
    )
    return (a, b), common


def _judge(
    arms: tuple[Side, Side], axis: str, common: list[float], margin: float, paired: bool
) -> Comparison:
    a, b = (own.ends.drop(own.stuck) for own in arms)
    both = [seed for seed in a.index if seed in b]
    digits = [own.logs.digit for own in arms]
    if min(len(own.logs.rows) for own in arms) < 3:  # all may end with a 0 that is not printed
        digits = [min(digits)] * 2
    is_same = bool((a[both] == b[both]).all()) and a[both].nunique() > 1 and max(digits) < margin
    names = " and ".join(own.name for own in arms)
    check(not is_same, f"{names}: have equal losses; give two sets of runs")
    both = both if paired else []
    first, second = (np.r_[own[both], own.drop(both)].astype(np.float64) for own in (a, b))
    ends = decide.Ends(first, second, len(both), (digits[0], digits[1]))
    mean, half = map(float, decide.interval(ends))
    low, high = mean - half, mean + half
    decision = decide.decide(low, high, margin)
    more: int | None = 0
    deviation = math.nan
    if decision == "not decided":
        published = decide.DEVIATION * (1 if arms[0].logs.unit == "nat" else BITS)
        more, deviation = decide.plan(ends, margin, published)
    gap = low, mean, high
    return Comparison(arms, axis, common, ends, gap, margin, decision, more, deviation)
