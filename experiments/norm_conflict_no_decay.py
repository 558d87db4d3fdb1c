"""Does weight decay free untied seeds, by a short row? Trained without it.

`norm_conflict_half.py` without weight decay.

    jaxtie run norm_conflict_no_decay

Without decay nothing shortens the mask's input row of an untied model; `input-norm=0.05` holds it
short, `input-decay=0.1` decays this one row as published. The judged step is 290,000, where the
learning rate is least. If either claim fails, "decay shortens it, tying prevents it" is wrong.

The claims stand below and were written before the run. They are 2, and their intervals hold
together at 95 %: each is Student's t at 1 - 0.05/2 of one number a seed. Ideas and bounds are ours.
Power is as in `norm_conflict_half.py`, at expected shares of untied 0.17 and c = 0.05 0.06 (11 and
4 of 64 seeds, 6000 to 6063).
Time: 35 minutes on two cores.

Found (`why_seeds_get_stuck.md`): (h) holds; (i) is inconclusive, with an estimate below half.
"""

from jaxtie import Experiment, Optimizer, Process
from jaxtie.exor.claims import ExorClaim

experiment = Experiment(
    name="norm-conflict-no-decay",
    claim="Decay frees untied seeds by shortening the mask's input row.",
    process=Process(zeros=(0.5, 0.5)),
    optimizer=Optimizer(weight_decay=0.0),
    arms=("tied", "untied", "untied+input-norm=0.05", "untied+input-decay=0.1"),
    seeds=range(8192, 8192 + 512),
    steps=290_000,
    record_every=10_000,
    eval_every=10_000,
    mask_logit=True,
)

SHORT, DECAYED = "untied+input-norm=0.05", "untied+input-decay=0.1"
claims = (
    # (h) Power 0.97; 0.75 at 0.08 with the short row.
    ExorClaim(
        "Without decay, a short input row frees untied seeds.",
        "stuck share",
        {SHORT: 1, "untied": -1},
        high=-0.03,
    ),
    # (i) At least half; three quarters would have power 0.40. Power 0.94 if both free alike, 0.51
    # at a share of 0.08 with decay.
    ExorClaim(
        "Decay of the mask's input row alone frees at least half as many.",
        "stuck share",
        {"untied": 0.5, SHORT: 0.5, DECAYED: -1},
        low=0,
    ),
)
