"""Tables of `experiments/plateau_or_gap.py`, from the final losses of its runs.

Of the grid a frame has a row per setting: device, arm, p_X, learning_rate, init_std, table_decay,
seeds, and mean and standard deviation of their losses. Of the fresh seeds it has a row per member,
with its seed, its loss and whether it is stuck.
"""

import math

import pandas as pd

from jaxtie.config import Optimizer
from jaxtie.results.claims import estimate_of
from jaxtie.results.tables import Table, format_mean

SETTING = ["learning_rate", "init_std", "table_decay"]
STEPS = 290_000
BOUND = 0.05  # nat; see the experiment
PUBLISHED = (5e-4, 1.0, 1.0)  # the setting of the published code
FORMS = {"": "published", "+targets-only": "targets only"}


def best_settings(grid: pd.DataFrame) -> pd.DataFrame:
    """Return the setting of the lowest mean loss, by p_X and arm."""
    best = grid.loc[grid.groupby(["p_X", "arm"])["mean"].idxmin()]
    return best.set_index(["p_X", "arm"])[SETTING]


def decay_left(learning_rate: float, table_decay: float) -> float:
    """Return what weight decay alone leaves of a distance in a table at the last step.

    The cosine's mean is the middle of its ends.
    """
    own = Optimizer()
    mean = (learning_rate + own.eta_min) / 2
    return math.exp(-own.weight_decay * table_decay * mean * STEPS)


def tuned_gap_table(grid: pd.DataFrame, fresh: pd.DataFrame) -> Table:
    """Return each arm's best setting, and the gap of fresh seeds trained at it, with verdicts."""
    best, rows = best_settings(grid), []
    fresh = fresh.set_index([*SETTING, "p_X", "arm", "seed"]).sort_index()
    means = grid.set_index([*SETTING, "p_X", "arm"])["mean"]
    places = [(p_X, form) for p_X in sorted(grid["p_X"].unique()) for form in FORMS]
    for p_X, form in places:
        arms, settings = [], []
        for arm in (f"tied{form}", f"untied{form}"):
            rate, std, decay = best.loc[p_X, arm]
            arms.append(fresh.loc[rate, std, decay, p_X, arm])
            settings.append(f"{rate:g}, {std:g}, × {decay:g}")
        gap = arms[0]["loss"] - arms[1]["loss"]
        untuned = [means[*PUBLISHED, p_X, f"{start}{form}"] for start in ("tied", "untied")]
        found = estimate_of("", gap.to_numpy(), count=len(places))
        verdict = (
            "an effect of the recipe"
            if found.high < BOUND
            else "a cost that tuning does not remove"
            if found.low > BOUND
            else "undecided"
        )
        cells = [format_mean(own["loss"].to_numpy()) for own in arms]
        cells += [found.found, f"**{verdict}**"]
        cells += [" / ".join(str(int(own["stuck"].sum())) for own in arms)]
        cells += [f"{untuned[0] - untuned[1]:.3f}"]
        rows.append((f"{p_X:g}", FORMS[form], *settings, *cells))
    return Table(
        f"Each arm at its best setting, {gap.size} fresh seeds, step {STEPS:,}",
        (
            "p(X)",
            "softmax",
            "tied at: rate, initial std, decay of tables",
            "untied at",
            "loss tied, nat",
            "untied",
            "tied − untied",
            "cost of tying",
            "stuck, tied / untied",
            "gap at the published setting, 64 seeds",
        ),
        rows,
        "Losses: mean ± 95 %. The four intervals of tied − untied hold together at 95 % (Student's"
        " t, Bonferroni).",
    )


def rates_table(grid: pd.DataFrame) -> Table:
    """Return the lowest mean loss of each arm at each rate, and the decay that it brings."""
    rates = sorted(grid["learning_rate"].unique())
    rows = []
    for (p_X, arm), own in grid.groupby(["p_X", "arm"]):
        lowest = own.loc[own.groupby("learning_rate")["mean"].idxmin()].set_index("learning_rate")
        cells = [
            f"{lowest.loc[rate, 'mean']:.3f} ({lowest.loc[rate, 'init_std']:g},"
            f" × {lowest.loc[rate, 'table_decay']:g})"
            if rate in lowest.index
            else "–"
            for rate in rates
        ]
        rows.append((f"{p_X:g}, {arm}", *cells))
    rows.append(("decay × 1 leaves", *(f"{decay_left(rate, 1):.1e}" for rate in rates)))
    return Table(
        f"The grid: lowest mean loss at each rate, {grid['seeds'].iloc[0]} seeds, step {STEPS:,}",
        ("p(X), arm", *(f"{rate:g}" for rate in rates)),
        rows,
        "In brackets the initial standard deviation and the decay of the tables that it was found"
        " at. The last row: what decay alone leaves of a distance; with × 0 all of it.",
    )
