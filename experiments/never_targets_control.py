"""Do symbols that are never a target make tying costly where the label says how zeros are written?

The process is that of `output_bias_control.py`.

Stuck means the second plateau there, see `jaxtie/exor/analysis.py`.

    jaxtie run never_targets_control

The claims and margins are in `never_targets.py`.
Time: 20 minutes on two cores.
"""

from jaxtie import Experiment, Process

SEEDS = (*range(64), *range(128, 1024))  # 64 to 127 were looked at before anything was claimed

experiment = Experiment(
    name="never-targets-control",
    claim="Never-targets trap tied models where the label tells how zeros are spelled, too.",
    process=Process(zeros_by_label=True),
    arms=("tied+targets-only", "untied+targets-only"),
    seeds=SEEDS,
    record_every=5_000,
    eval_every=5_000,
)
