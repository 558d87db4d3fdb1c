"""Train tied, then untie and go on: what the paper's author proposed, and on EXor nobody has shown.

Claim: soon after untying X and Y collapse in the input embedding and stay apart in the output embedding, and the loss of the
untied model is reached. At the step of untying nothing changes: the output embedding and its optimiser moments are copies.

    python -m jaxtie.run experiments/untie_midway.py --seeds 64
"""

from jaxtie import Experiment

experiment = Experiment(
    name="untie-midway",
    claim="Untied midway, X and Y collapse as inputs and stay apart as outputs; the untied loss is reached.",
    arms=("tied", "untied", "untied@25000", "untied@75000"),
)
