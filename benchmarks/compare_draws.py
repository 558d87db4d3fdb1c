"""No speed: how often the intervals, decisions and plans of `jaxtie compare` are right.

    python benchmarks/compare_draws.py --draws 2000

Draws the losses of two arms with a known gap and prints tables in Markdown. Losses deviate over
seeds by 0.005 nat, as published ones do; the margin is 0.01 nat.
"""

import argparse
import itertools
import sys

import numpy as np

from jaxtie.compare.decide import DEVIATION, Ends, decide, interval, plan, stuck

GAPS, COUNTS, MARGIN = (0.0, 0.009, 0.02, -0.05), (2, 3, 5, 14), 0.01
DESIGNS, CORRELATIONS = ("paired", "partly paired", "unpaired"), (0.0, 0.5)
STUCK, JUMP = 1 / 8, 1.2  # share; nat
NOT = "not decided"


def design(name: str, count: int) -> tuple[int, int]:
    """Return how many seeds of an arm are pairs, and how many are its own."""
    pairs = {"paired": count, "unpaired": 0, "partly paired": count - max(count // 3, 1)}[name]
    return pairs, count - pairs


def draw(rng, draws, seeds, gap=0.0, correlation=0.0, deviation=DEVIATION):
    """Return the losses of two arms (draws, seeds); pairs come first."""
    pairs, only = seeds
    common, arms = rng.normal(size=(draws, pairs)), []
    for mean in (3.3 + gap, 3.3):
        own = rng.normal(size=(draws, pairs + only))
        shared = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own[:, :pairs]
        arms.append(mean + deviation * np.hstack([shared, own[:, pairs:]]))
    return arms


def judge(found, half, gap):
    """Return the shares of intervals that hold the gap, of wrong decisions and of decisions."""
    answers = np.array([decide(mean - h, mean + h, MARGIN) for mean, h in zip(found, half)])
    decided, right = answers != NOT, decide(gap, gap, MARGIN)
    inside = np.abs(found - gap) <= half
    return inside.mean(), (decided & (answers != right)).mean(), decided.mean()


def of_ends(draws, seeds, gap, *, digits=None, **how):
    """Judge final losses that are printed with some digits."""
    rng = np.random.default_rng([*seeds, round(1e4 * (gap + 1))])
    level = rng.uniform(0, 0.01, (draws, 1))  # where a digit ends
    arms = [own + level for own in draw(rng, draws, seeds, gap, **how)]
    a, b = arms if digits is None else (own.round(digits) for own in arms)
    digit = 0.0 if digits is None else 10.0**-digits
    return judge(*interval(Ends(a, b, seeds[0], (digit, digit))), gap)


def of_curves(draws, seeds, gap, steps=20):
    """Judge curves whose noise is autocorrelated; each seed stops in the second half, anywhere.

    They are compared at the last step that all have.
    """
    rng = np.random.default_rng([*seeds, round(1e4 * (gap + 1))])
    lasts = rng.integers(steps // 2, steps, (draws, 2 * sum(seeds)))
    at, arms = lasts.min(-1), draw(rng, draws, seeds)
    ends = np.where(at[:, None] == 0, arms, 0.0)
    for step in range(1, steps):
        new = draw(rng, draws, seeds)
        arms = [3.3 + 0.9 * (x - 3.3) + np.sqrt(1 - 0.9**2) * (y - 3.3) for x, y in zip(arms, new)]
        ends = np.where(at[:, None] == step, arms, ends)
    return judge(*interval(Ends(ends[0] + gap, ends[1], seeds[0])), gap)


def of_stuck(draws, seeds, gap):
    """Judge arms with a share of stuck seeds; also return how often just these are left out."""
    rng, found, exact = np.random.default_rng([*seeds, round(1e4 * (gap + 1))]), [], 0
    for a, b in zip(*draw(rng, draws, seeds, gap)):
        are_stuck = [rng.random(sum(seeds)) < STUCK for _ in "ab"]
        arms = [own + JUMP * each for own, each in zip((a, b), are_stuck)]
        out = stuck(*arms)
        exact += all((own == each).all() for own, each in zip(out, are_stuck))
        is_pair = (np.arange(sum(seeds)) < seeds[0]) & ~out[0] & ~out[1]
        arms = [np.r_[own[is_pair], own[~is_pair & ~each]] for own, each in zip(arms, out)]
        found.append(interval(Ends(*arms, int(is_pair.sum()))))
    return *judge(*np.array(found).T, gap), exact / draws


def of_plans(draws, seeds, margin, deviation=DEVIATION):
    """Return how many undecided draws of a gap of 0 the planned seeds decide, and the plan."""
    rng, decided, planned = np.random.default_rng([*seeds, round(1e5 * margin)]), [], []
    while len(decided) < draws:
        (a,), (b,) = draw(rng, 1, seeds, deviation=deviation)
        if _answer(a, b, seeds[0], margin) != NOT:
            continue
        more, _ = plan(Ends(a, b, seeds[0]), margin, DEVIATION)
        planned.append(more or np.inf)
        (x,), (y,) = draw(rng, 1, (more or 0, 0), deviation=deviation)
        pairs = seeds[0] + len(x) if seeds[0] else 0
        decided.append(_answer(np.r_[x, a], np.r_[y, b], pairs, margin) != NOT)
    return float(np.mean(decided)), float(np.median(planned))


def _answer(a, b, pairs, margin):
    mean, half = interval(Ends(a, b, pairs))
    return decide(mean - half, mean + half, margin)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000, help="of losses, a case")
    parser.add_argument("--plans", type=int, default=500, help="of plans, a case")
    options = parser.parse_args(arguments)
    print_intervals(options.draws)
    print_plans(options.plans)


def print_intervals(draws):
    print(f"{draws:,} draws a case; cases of a row: gaps of {', '.join(map(str, GAPS))} nat.\n")
    _print(("losses", "seeds", "correlation", "coverage", "wrong, at most", "decided at 0"))
    for name, count, rho in itertools.product(DESIGNS, COUNTS, CORRELATIONS):
        if name != "unpaired" or not rho:
            seeds = design(name, count)
            found = [of_ends(draws, seeds, gap, correlation=rho) for gap in GAPS]
            _print_judged((name, count, rho), found)
    for digits, name, count in itertools.product((2, 3), DESIGNS, COUNTS):
        seeds = design(name, count)
        found = [of_ends(draws, seeds, gap + 0.0013, digits=digits) for gap in GAPS]
        _print_judged((f"{name}, {digits} decimals", count, 0.0), found)
    for name, count in itertools.product(DESIGNS, COUNTS):
        found = [of_curves(draws, design(name, count), gap) for gap in GAPS]
        _print_judged((f"{name}, curves cut at other steps", count, 0.0), found)
    for name, count in itertools.product(DESIGNS, (5, 8, 14)):
        found = [of_stuck(draws, design(name, count), gap) for gap in GAPS]
        exact = min(own[-1] for own in found)
        _print_judged((f"{name}, stuck ones left out in {exact:.3f} or more", count, 0.0), found)


def print_plans(draws):
    print(f"\n{draws:,} draws a case that are not decided, at a gap of 0.\n")
    _print(("seeds so far", "margin, nat", "deviation, nat", "planned, median", "decided"))
    starts = [*itertools.product(("paired", "unpaired"), (1, 2, 3, 5))]
    for (name, count), margin in itertools.product(starts, (0.005, 0.01)):
        for deviation in (DEVIATION, DEVIATION / 2, 2 * DEVIATION):
            few = draws if deviation == DEVIATION else draws // 5
            share, more = of_plans(few, design(name, count), margin, deviation)
            _print((f"{count} {name}", margin, deviation, f"{more:g}", f"{share:.3f}"), head=False)


def _print_judged(names, found):
    inside, wrong, decided = ([own[i] for own in found] for i in range(3))
    shown = f"{min(inside):.3f} to {max(inside):.3f}", f"{max(wrong):.3f}", f"{decided[0]:.2f}"
    _print((*names, *shown), head=False)


def _print(cells, head=True):
    print("|", " | ".join(map(str, cells)), "|")
    if head:
        print("|", " | ".join(["---"] * len(cells)), "|")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
