"""Do symbols that are never a target make tying costly where the hypothesis fails for A and B?

`never_targets.py`, A and B being the only pair that is drawn.

    jaxtie run never_targets_ndh

The claims and margins are in `never_targets.py`.
Time: 20 minutes on two cores.
"""

from jaxtie import Experiment, Process

SEEDS = (*range(64), *range(128, 1024))  # 64 to 127 were looked at before anything was claimed

experiment = Experiment(
    name="never-targets-ndh",
    claim="Targets only, tying costs more where the hypothesis fails for A and B.",
    process=Process(zeros=(1.0, 0.0), ones=(0.1, 0.9)),
    arms=("tied+targets-only", "untied+targets-only"),
    seeds=SEEDS,
    record_every=5_000,
    eval_every=5_000,
)
