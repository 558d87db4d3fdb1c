"""How models of text with different heads converge: results -> steps to given losses, judgements,
tables. Imports no jax.

The arms of a causal experiment are its heads, compared in pairs on equal seeds; which arm plays
which part in a claim follows from `Arm.head`. Shapes: S seeds, T evaluations.
"""

import dataclasses
import itertools
import math
from typing import NamedTuple

import numpy as np
import xarray as xr

from jaxtie.config import Arm, Head
from jaxtie.results.claims import Comparison, Judgement, compare, judge
from jaxtie.results.statistics import first_at_level
from jaxtie.results.tables import Table, arms_of, interval, last_step, number, plain_arm

# of the way from log n to untied's end; the losses there are those to be reached
SHARES = (
    0.5,
    0.75,
    0.9,
    0.95,
)
# tied, each of them is said to converge as untied does
ALIKE_TRANSFORMS = (
    "projection",
    "half-swap",
    "shuffle",
)
SMALL_DEVIATION = Head(init_std="log(n)/D")  # tied, it is said to converge slowest
# nat: what "about log n" means; n words that are alike start at log n + Dσ²/2, n + n of them at log
# 2n
ABOUT = 1.0
SAME_PACE = 0.1  # steps that differ by at most this share are alike
SAME_END = 0.05  # nat
SEVERAL_SHARES = (
    "a claim that is looked at at several shares of the way counts its pairs at all of them"
)


def compares_heads(results: xr.Dataset) -> bool:
    """Whether arms of a causal model differ in their heads, untied is there to be compared with,
    and something is trained.
    """
    heads = {arm.head for arm in arms_of(results)}
    there = (
        results.attrs["objective"] == "causal"
        and len(heads) > 1
        and plain_arm(results, tied=False) is not None
    )
    return there and last_step(results) > 0


class Remedies(NamedTuple):
    """The arms that are said to start near log n; none has an output bias.

    Attributes:
      small: tied, σ (log n)/D; None if it is not there.
      alike: untied, and tied with a transform.
    """

    small: Arm | None
    alike: tuple[Arm, ...]

    @classmethod
    def of(cls, results: xr.Dataset) -> "Remedies":
        whole = [arm for arm in arms_of(results) if arm.untie_at is None]
        small = next((arm for arm in whole if arm.tied and arm.head == SMALL_DEVIATION), None)
        return cls(small, tuple(arm for arm in whole if _is_one_of_the_alike(arm)))

    @property
    def every(self) -> tuple[Arm, ...]:
        return (() if self.small is None else (self.small,)) + self.alike


def _is_one_of_the_alike(arm: Arm) -> bool:
    """Whether it is untied, or tied with a transform and no other option of a head."""
    head = arm.head
    if not arm.tied:
        return head == Head()
    return head.transform in ALIKE_TRANSFORMS and head == Head(
        transform=head.transform, groups=head.groups
    )


def untied_arm(results: xr.Dataset) -> Arm:
    """The plain untied arm, which is there wherever heads are compared."""
    return next(arm for arm in arms_of(results) if arm.is_plain and not arm.tied)


def log_vocabulary(results: xr.Dataset) -> float:
    """Log n, nats: the loss of a model that takes each of the n tokens for equally likely."""
    return math.log(results["token"].size)


def valid_curves(results: xr.Dataset) -> tuple[np.ndarray, dict[Arm, np.ndarray]]:
    """Steps of the evaluations that every member has reached, T; validation losses of every arm
    there, SxT, nats.
    """
    reached = results["valid_loss"].sel(eval_step=slice(None, last_step(results)))
    curves = {
        arm: reached.sel(arm=arm.name).transpose("seed", "eval_step").values
        for arm in arms_of(results)
    }
    return reached["eval_step"].values, curves


def levels(results: xr.Dataset) -> dict[str, float]:
    """Share of the way from log n to untied's mean validation loss at the end, such as "75%" -> the
    loss there, nats.
    """
    top, untied = log_vocabulary(results), untied_arm(results)
    end = float(results["valid_loss"].sel(arm=untied.name, eval_step=last_step(results)).mean())
    return {f"{share:.0%}": top - share * (top - end) for share in SHARES}


def compare_pace(
    label: str, steps_S: np.ndarray, other_S: np.ndarray, last: int, count: int = 1
) -> Comparison:
    """Steps / other's steps, a factor. What was not reached counts as the last step, and opens the
    interval on its side.
    """
    compared = compare(label, np.log(np.minimum(steps_S, last) / np.minimum(other_S, last)), count)
    low = -math.inf if np.isinf(other_S).any() else compared.low
    high = math.inf if np.isinf(steps_S).any() else compared.high
    return compared._replace(low=low, high=high, is_factor=True)


def judge_pace(
    results: xr.Dataset, pairs: list[tuple[Arm, Arm]], low: float, high: float
) -> dict[str, Judgement]:
    """Share of the way -> whether the log of the factor between steps lies in (low, high) for all
    pairs.

    A claim is about all shares at once, so its intervals are corrected for as many comparisons as
    pairs times shares.
    """
    (steps_T, curves), found = valid_curves(results), {}
    for share, level in levels(results).items():
        needed = {
            arm: first_at_level(steps_T, curves[arm], level) for arm in itertools.chain(*pairs)
        }
        count, last = len(pairs) * len(SHARES), int(steps_T[-1])
        compared = [compare_pace(f"{a} / {b}", needed[a], needed[b], last, count) for a, b in pairs]
        found[share] = judge(compared, low, high)
    return found


def judge_heads(results: xr.Dataset) -> dict[str, dict[str, Judgement]]:
    """Claim -> where it is looked at (a share of the way, or "") -> judgement; as far as arms let
    one tell.
    """
    found = _judge_remedies(results, Remedies.of(results))
    whole = [arm for arm in arms_of(results) if arm.untie_at is None]
    both = [(a, b) for a, b in itertools.product(whole, whole) if _differ_by_a_bias(a, b)]
    if both:
        claim = f"an output bias moves no head's end by more than {SAME_END:g} nat"
        found[claim] = {"": judge(_compare_ends(results, both), -SAME_END, SAME_END)}
    return found


def _differ_by_a_bias(arm: Arm, other: Arm) -> bool:
    """Whether the first has an output bias and the other one is the same without."""
    unbiased = dataclasses.replace(arm.head, bias=False)
    return (
        arm.tied == other.tied and arm.head.bias and not other.head.bias and unbiased == other.head
    )


def _compare_ends(results: xr.Dataset, pairs: list[tuple[Arm, Arm]]) -> list[Comparison]:
    """Validation losses at the end, nats, intervals right together."""
    _, curves = valid_curves(results)
    return [
        compare(f"{a} − {b}", curves[a][:, -1] - curves[b][:, -1], len(pairs)) for a, b in pairs
    ]


def _judge_remedies(results: xr.Dataset, remedies: Remedies) -> dict[str, dict[str, Judgement]]:
    """What the source says of its remedies."""
    small, alike = remedies
    found, (_, curves), log_n = {}, valid_curves(results), log_vocabulary(results)
    pairs = list(itertools.combinations(remedies.every, 2))
    if pairs:
        starts = [
            compare(arm.name, curves[arm][:, 0] - log_n, len(remedies.every))
            for arm in remedies.every
        ]
        found[f"every remedy starts within {ABOUT:g} nat of log n"] = {
            "": judge(starts, -ABOUT, ABOUT)
        }
    if small is not None and alike:
        slower = judge_pace(results, [(small, other) for other in alike], 0, math.inf)
        found["σ (log n)/D takes more steps than any other remedy"] = slower
    if len(alike) > 1:
        same = math.log1p(SAME_PACE)
        others = judge_pace(results, list(itertools.combinations(alike, 2)), -same, same)
        found[f"the other remedies take the same steps to within {SAME_PACE:.0%}"] = others
    if pairs:
        ends = _compare_ends(results, pairs)
        found[f"all remedies end within {SAME_END:g} nat of each other"] = {
            "": judge(ends, -SAME_END, SAME_END)
        }
    return found


def head_loss_table(results: xr.Dataset) -> Table:
    """Initial loss beside its estimate, and losses at the end, in pairs against untied."""
    step, untied, rows = last_step(results), untied_arm(results), []
    ends = [results["loss"].sel(step=step), results["valid_loss"].sel(eval_step=step)]
    for arm in arms_of(results):
        cells = [interval(results["valid_loss"].sel(arm=arm.name, eval_step=0).values)]
        cells.append(number(float(results["estimated_initial_loss"].sel(arm=arm.name))))
        for end in ends:
            values = end.sel(arm=arm.name).values
            cells += [
                interval(values),
                interval(values - end.sel(arm=untied.name).values) if arm != untied else "",
            ]
        rows.append((arm.name, *cells))
    seeds = results.sizes["seed"]
    over = f"mean over {seeds} seeds ± 95 %" if seeds > 1 else "one seed"
    title = f"Loss, nat (log n = {log_vocabulary(results):.3f}): {over}; the end is step {step:,}"
    if diverged := int((results["diverged_at"] >= 0).sum()):
        title += f"; {diverged} members diverged and are left out"
    paired = f"− {untied}{', paired' if seeds > 1 else ''}"
    return Table(
        title, ("", "start", "estimate", "training, end", paired, "validation, end", paired), rows
    )


def pace_table(results: xr.Dataset) -> Table:
    """Steps to given validation losses: median over seeds and range, factor to untied, seeds that
    never got there.
    """
    (steps_T, curves), untied = valid_curves(results), untied_arm(results)
    rows = []
    for arm, loss_SxT in curves.items():
        cells = []
        for level in levels(results).values():
            needed, other = (
                first_at_level(steps_T, each_SxT, level) for each_SxT in (loss_SxT, curves[untied])
            )
            reached, never = needed[np.isfinite(needed)], int(np.isinf(needed).sum())
            cell = (
                f"{np.median(reached):,.0f} [{reached.min():,.0f}, {reached.max():,.0f}]"
                if len(reached)
                else ""
            )
            if arm != untied and not never and not np.isinf(other).any():
                cell += f"; {compare_pace('×', needed, other, int(steps_T[-1]))}"
            cells.append(
                cell + f"{', ' * bool(cell)}{never} of {len(needed)} not reached" * bool(never)
            )
        rows.append((arm.name, *cells))
    header = ("", *(f"{share}: {level:.3f} nat" for share, level in levels(results).items()))
    title = (
        f"Steps to a validation loss, by share of {untied}'s way from log n: median [range over"
        f" seeds]; × {untied} [95 %]"
    )
    return Table(title, header, rows)


def head_tables(results: xr.Dataset) -> list[Table]:
    """What there is to see of heads beside the verdicts; nothing where no heads are compared."""
    return [head_loss_table(results), pace_table(results)] if compares_heads(results) else []
