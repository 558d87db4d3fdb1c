"""The main experiment, tied up to some step and untied from there on, as the paper's author proposed.

Claim: once untied, X and Y shrink in the input embedding, over tens of thousands of steps, and stay apart in the output
embedding. Not all seeds come back to the loss of their untied twin.

    python -m jaxtie.run experiments/untie_midway.py --seeds 64

At the step of untying nothing changes: the output embedding and its optimiser moments are copies.
Results: README.md.
Time: 13 min on one core of an AMD EPYC while the machine had other work.
"""

from jaxtie import Experiment

experiment = Experiment(
    name="untie-midway",
    claim="Untied midway, X and Y shrink as inputs and stay apart as outputs; the earlier, the more loss is made good.",
    arms=("tied", "untied", "untied@25000", "untied@75000"),
)
