"""The main experiment, tied up to some step and untied from there on, as the paper's author proposed.

Claim: soon after untying, X and Y collapse in the input embedding and stay apart in the output embedding, and the model
reaches the loss of the untied one.

    python -m jaxtie.run experiments/untie_midway.py --seeds 64

At the step of untying nothing changes: the output embedding and its optimiser moments are copies.
Results: README.md.
Time: 13 min on one core of an AMD EPYC while the machine had other work.
"""

from jaxtie import Experiment

experiment = Experiment(
    name="untie-midway",
    claim="Untied midway, X and Y collapse as inputs and stay apart as outputs; the untied loss is reached.",
    arms=("tied", "untied", "untied@25000", "untied@75000"),
)
