"""Is it the row's length that traps? Long rows, one path only, frozen directions, other gains.

Controls of `norm_conflict_half.py`.

    jaxtie run norm_conflict_half_controls

The claims stand in `norm_conflict_half.py`. Nothing is claimed of the gain for all never-targets,
of the output bias and of the frozen directions, of which 4 of 64 (at 0.05) and 19 of 64 (at 3) were
stuck before.
Time: two hours on two cores.

Found: a long input row traps seeds on the residual path, tied or not.
"""

from jaxtie import Experiment, Process

experiment = Experiment(
    name="norm-conflict-half-controls",
    claim="A long input row of the mask traps seeds on the residual path, tied or not.",
    process=Process(zeros=(0.5, 0.5)),
    arms=(
        "untied+input-norm=3",
        "untied+input-norm=3+residual-only",
        "untied+input-norm=3+qkv-only",
        "untied+input-norm=3+frozen-direction",
        "tied+untie-rows=mask+input-norm=3",
        "tied+input-norm=0.05+frozen-direction",
        "tied+shared-gain=mask",
        "tied+gain=never-targets",
        "tied+targets-only",
        "tied+targets-only+input-norm=3",
        "tied+bias",
    ),
    seeds=range(8192, 8192 + 448),
    record_every=5_000,
    eval_every=5_000,
    mask_logit=True,
)
