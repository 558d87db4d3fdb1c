"""Does the main experiment change with PyTorch's own eps of Adam, 1e-8? The published one is 1e-12.

    jaxtie run never_targets_eps

Rows without a target have small gradients, which Adam divides by their size. Nothing is claimed of
it.
Time: 10 minutes on two cores.
"""

from jaxtie import Experiment, Optimizer

SEEDS = (*range(64), *range(128, 512))  # 64 to 127 were looked at before anything was claimed

experiment = Experiment(
    name="never-targets-eps",
    claim="Adam's eps of 1e-8 changes neither how many seeds get stuck nor what tying costs.",
    optimizer=Optimizer(eps=1e-8),
    seeds=SEEDS,
    record_every=5_000,
    eval_every=5_000,
)
