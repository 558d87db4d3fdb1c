"""Which rows that are never a target make tying costly where X and Y are equally likely?

`never_targets_rows.py` with p(X) = 0.5.

    jaxtie run never_targets_half_rows

The claims and margins are in `never_targets.py`.
Time: 30 minutes on two cores.
"""

from jaxtie import Experiment, Process

SEEDS = (*range(64), *range(128, 512))  # 64 to 127 were looked at before anything was claimed

experiment = Experiment(
    name="never-targets-half-rows",
    claim="With p(X) = 0.5 too, untying the mask's row alone frees most stuck seeds.",
    process=Process(zeros=(0.5, 0.5)),
    arms=(
        "tied+untie-rows=mask",
        "tied+untie-rows=labels",
        "tied+untie-rows=never-targets",
        "untied+tie-rows=mask",
        "untied+tie-rows=labels",
        "untied+tie-rows=never-targets",
    ),
    seeds=SEEDS,
    record_every=5_000,
    eval_every=5_000,
)
