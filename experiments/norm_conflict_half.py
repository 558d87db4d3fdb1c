"""Why do tied seeds get stuck? The mask's row must be long as an output and short as an input.

With p(X) = 0.5, where nothing but never-targets makes tying costly (`never_targets_half.py`). The
story: the mask is never predicted, so its logit must lie far below all others, and the cheap way is
a long output row. It is also the input at the very position that is predicted, before a norm, where
a long row drowns what attention adds. Untied, weight decay shortens the input row; tied, one length
serves both. It came from exploratory runs of 64 seeds (6000 to 6063), and from a second program.

    jaxtie run norm_conflict_half

The options of the arms are described in `jaxtie/training/interventions.py`: `gain=mask` multiplies
the mask's output row by a learned factor, `input-norm=0.05` holds the length of its input row, and
`minus=mask` takes minus the tied row as output. The arms with fewer seeds are those of
`norm_conflict_half_controls.py`. `norm_conflict.py` is the main process, with claims of its own;
`norm_conflict_no_decay.py` is without weight decay; `norm_conflict_long.py` goes on to step
290,000.

The claims of both files with p(X) = 0.5 stand below and were written before any of their runs,
which are of seeds that nobody has used. They are 9, and their intervals hold together at 95 %: each
is Student's t at 1 - 0.05/9 of one number a seed. "Stuck" at step 150,000 is defined in
`jaxtie/exor/analysis.py`. All ideas and bounds are ours. Power is that of the verdict "holds", of
normal means and arms that are independent (seeds of two arms correlate by 0.0 to 0.2, which helps a
little), at expected shares of stuck seeds: tied 0.37, untied 0.025, mask untied 0.10 (all of
`never-targets-half`, 448 to 1,984 seeds); gain 0.08, c = 0.05 0.06, untied with c = 3 0.42 (5, 4
and 27 of the 64 seeds, of which 14 are stuck tied and 1 untied; these 64
are lucky, so the latter shares may be too low).
Time: an hour on two cores.

Found (`why_seeds_get_stuck.md`): (b), (c), (e), (f), both of (g) and (j) hold: a long input row
traps, on the residual path, and a short one frees. (a) and (d) are inconclusive: the gain frees
fewer seeds than a row of its own, and minus the row frees a third of the stuck seeds.
The measure of (j) has moved from `jaxtie/results/statistics.py` to this file.
"""

from typing import ClassVar

import numpy as np
import xarray as xr

from jaxtie import Experiment, Process
from jaxtie.exor import analysis
from jaxtie.exor.claims import ExorClaim
from jaxtie.results.claims import Quantity
from jaxtie.results.tables import last_step

SEEDS = range(8192, 8192 + 1024)

experiment = Experiment(
    name="norm-conflict-half",
    claim="A number that separates the two lengths of the mask's row frees tied seeds.",
    process=Process(zeros=(0.5, 0.5)),
    arms=(
        "tied",
        "untied",
        "tied+untie-rows=mask",
        "tied+gain=mask",
        "tied+input-norm=0.05",
        "tied+minus=mask",
    ),
    seeds=SEEDS,
    record_every=5_000,
    eval_every=5_000,
    mask_logit=True,
)

CONTROLS = "norm-conflict-half-controls: "
LONG = f"{CONTROLS}untied+input-norm=3"
HORIZON = 20_000  # steps; exit concordance begins at this step and looks this far ahead


def exit_concordance(
    step_T: np.ndarray, below_SxT: np.ndarray, measure_SxT: np.ndarray, horizon: int
) -> np.ndarray:
    """Return how well a small measure predicts that a seed reaches a level next: (S,).

    A seed reaches it at the step from which on it is `below`, unless that is the last one. At step
    t the seeds at risk have not reached it. Those that reach it by t + `horizon` are compared with
    those that do not, at every t whose horizon ends by the last step. Concordance is the share of
    all these couples, over all t, in which the former has the smaller measure (ties: half): an area
    under the curve, stratified by time; 0.5 without any relation. Since seeds recur at many t, what
    is returned are jackknife values of seeds: their mean estimates it, and Student's interval of
    that mean accounts for the recurrence. NaN without couples, and of seeds whose measure is
    missing.
    """
    for_good_SxT = np.logical_and.accumulate(below_SxT[:, ::-1], axis=1)[:, ::-1]
    leaves_S = for_good_SxT[:, :-1].any(axis=1)
    leaves_at_S = np.where(leaves_S, step_T[for_good_SxT.argmax(axis=1)], np.inf)
    count = len(measure_SxT)
    agreed_S, couples_S = np.zeros(count), np.zeros(count)
    for step, measure_S in zip(step_T, measure_SxT.T, strict=True):
        if step + horizon > step_T[-1]:
            break
        leaves_S = (step < leaves_at_S) & (leaves_at_S <= step + horizon)
        stays_S = leaves_at_S > step + horizon
        couples = leaves_S[:, None] & stays_S[None]
        smaller, equal = (of(measure_S[:, None], measure_S[None]) for of in (np.less, np.equal))
        agreed = couples * (smaller + 0.5 * equal)
        for totals_S, each in ((agreed_S, agreed), (couples_S, couples)):
            totals_S += each.sum(axis=0) + each.sum(axis=1)
    # each couple counts for both of its seeds
    agreed, couples = agreed_S.sum() / 2, couples_S.sum() / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        without_S = (agreed - agreed_S) / (couples - couples_S)
        return count * agreed / couples - (count - 1) * without_S


def _exit_concordance(results: xr.Dataset, *_: str) -> xr.DataArray:
    if "mask_norm" in results:  # committed
        norm = results["mask_norm"].sel(table="input", drop=True)
    else:
        rows = analysis.rows_at(results, results["table_step"].values.tolist())
        norm = analysis.norm_of(rows.sel(table="input", symbol="mask", drop=True))
    norm = norm.transpose("arm", "seed", "eval_step")
    at = norm["eval_step"]
    norm = norm.sel(eval_step=at[(at >= HORIZON) & (at <= last_step(results))])
    below = analysis.stuck_over_steps(results).sel(eval_step=norm["eval_step"]) == 0
    below = below.transpose(*norm.dims)
    found = [
        exit_concordance(
            norm["eval_step"].values, below.sel(arm=arm).values, norm.sel(arm=arm).values, HORIZON
        )
        for arm in norm["arm"].values
    ]
    values = norm.isel(eval_step=0, drop=True).copy(data=np.array(found))
    return values.where(results["diverged_at"] < 0)


class ExitClaim(ExorClaim):
    """Of two seeds still on the first plateau at step t, which leaves it for good by t + 20,000?

    `exit concordance`: how often the one whose mask's input row is shorter.
    """

    quantities: ClassVar = {**ExorClaim.quantities, "exit concordance": Quantity(_exit_concordance)}


claims = (
    # (a) 0.05 is less than a fifth of the difference that untying the mask's row makes (0.27).
    # Power 0.99 at a share of 0.08 with the gain, 0.86 at 0.10, 0.46 at 0.11.
    ExorClaim(
        "One learned length of the mask's output row frees as many seeds as a row of its own.",
        "stuck share",
        {"tied+gain=mask": 1, "tied+untie-rows=mask": -1},
        high=0.05,
    ),
    # (b) Expected 0.3 to 0.5: 40 of 64 against 6 in the other program. Power 0.86 at 0.30.
    ExorClaim(
        "A long input row traps seeds whose mask is untied.",
        "stuck share",
        {f"{CONTROLS}tied+untie-rows=mask+input-norm=3": 1, "tied+untie-rows=mask": -1},
        low=0.2,
    ),
    # (c) s(tied) - s(c) > 3/4 (s(tied) - s(mask untied)), all on one side. Power 0.99 at a share of
    # 0.10 with c, 0.75 at 0.12.
    ExorClaim(
        "A short input row frees tied seeds, at least three quarters of those that untying the"
        " mask's row frees.",
        "stuck share",
        {"tied": 0.25, "tied+untie-rows=mask": 0.75, "tied+input-norm=0.05": -1},
        low=0,
    ),
    # (d) If predicting the mask itself were the trap, minus the row would free. Power 0.94 if both
    # shares are equal, 0.67 at a difference of 0.03.
    ExorClaim(
        "Minus the tied row as the mask's output row changes little.",
        "stuck share",
        {"tied+minus=mask": 1, "tied": -1},
        -0.1,
        0.1,
    ),
    # (e) If the gain freed by training fast, it would in both roles. Seen: 32 of 64 against 14, so
    # only the lower side is claimed. Power 1.00 at a share of 0.45, 0.63 if both are equal.
    ExorClaim(
        "The same factor in both roles does not free tied seeds.",
        "stuck share",
        {f"{CONTROLS}tied+shared-gain=mask": 1, "tied": -1},
        low=-0.1,
    ),
    # (f) Not seen before. Power 0.99 at a share of 0.15 with c = 3, 0.50 at 0.10.
    ExorClaim(
        "A long input row traps tied seeds even if the mask is not among the outputs.",
        "stuck share",
        {f"{CONTROLS}tied+targets-only+input-norm=3": 1, f"{CONTROLS}tied+targets-only": -1},
        low=0.05,
    ),
    # (g) A half, on either side: the paths need not add up. Not seen before. Power 0.99 where the
    # residual path alone has 0.8 of the difference, and where the other has 0.2 of it.
    ExorClaim(
        "Long on the residual path only, the row traps at least half as many seeds as on both.",
        "stuck share",
        {f"{CONTROLS}untied+input-norm=3+residual-only": 1, "untied": -0.5, LONG: -0.5},
        low=0,
    ),
    ExorClaim(
        "Long in queries, keys and values only, it traps less than half as many.",
        "stuck share",
        {f"{CONTROLS}untied+input-norm=3+qkv-only": 1, "untied": -0.5, LONG: -0.5},
        high=0,
    ),
    # (j) Of two tied seeds still stuck at step t, 20,000, 25,000, ..., 130,000, of which one leaves
    # for good by t + 20,000 and the other does not: how often the mask's row of the former is
    # shorter at t (`jaxtie.results.statistics.exit_concordance`). 0.6 is about what the row says
    # early, when hardly any seed has left. Seeds 6000 to 6127: 0.675, deviation of a seed 0.38.
    # Power 1.00 at 0.675, 0.93 at 0.65.
    ExitClaim(
        "Of tied seeds still stuck, those with a shorter mask row leave next.",
        "exit concordance",
        "tied",
        low=0.6,
    ),
)
