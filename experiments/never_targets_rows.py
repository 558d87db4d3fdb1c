"""Which rows that are never a target make tying costly? Some alone are untied, or some alone tied.

`never_targets.py`, row by row.

    jaxtie run never_targets_rows

The claims and margins are in `never_targets.py`.
Time: 30 minutes on two cores.
"""

from jaxtie import Experiment

SEEDS = (*range(64), *range(128, 512))  # 64 to 127 were looked at before anything was claimed

experiment = Experiment(
    name="never-targets-rows",
    claim="Untying the mask's row alone frees most stuck seeds.",
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
