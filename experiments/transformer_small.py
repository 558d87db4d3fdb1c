"""Does tying change how a transformer learns EXor? One layer, width 4: the paper's main experiment.

Claim: X and Y (a zero, spelled 0.1 : 0.9) are semantically equivalent, but not equally likely; A
and B (a one, 0.5 : 0.5) are both. Untied, X and Y meet in the input embedding and stay apart in the
output embedding, A and B meet in both. Tied, A and B meet sooner than in the untied input
embedding, and X and Y are held apart.

    jaxtie run transformer_small --seeds 64

It is what runs without a file. Results: results/transformer-small.md.
Time: about two minutes from the command to the figures on two cores; speed: the repository's
README.
"""

from jaxtie import Experiment
from jaxtie.exor.claims import ExorClaim
from jaxtie.results.claims import PAPER

experiment = Experiment(name="transformer-small")

# What else the paper says of this experiment is claimed in `output_bias.py`, which has its arms and
# more seeds. This one was written when the seeds that judge it had been seen.
claims = (
    ExorClaim(
        "Tied, the distance of X and Y fluctuates more than in the untied output table.",
        "fluctuation",
        {"tied": 1, "untied": -1},
        low=1,
        table="output",
        source=PAPER,
    ),
)
