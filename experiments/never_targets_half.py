"""Do symbols that are never a target make tying costly where X and Y are equally likely?

`never_targets.py` with p(X) = 0.5: the hypothesis holds for both pairs, but not for E and D.

    jaxtie run never_targets_half

The claims and margins are in `never_targets.py`.
Time: 80 minutes on two cores.
"""

from jaxtie import Experiment, Process

SEEDS = (*range(64), *range(128, 2048))  # 64 to 127 were looked at before anything was claimed

experiment = Experiment(
    name="never-targets-half",
    claim="With p(X) = 0.5, never-targets in the softmax are all that tying costs.",
    process=Process(zeros=(0.5, 0.5)),
    arms=("tied", "untied", "tied+targets-only", "untied+targets-only"),
    seeds=SEEDS,
    record_every=5_000,
    eval_every=5_000,
)
