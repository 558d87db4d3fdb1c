"""The paper's main experiment: a transformer of one layer, one head and width 4 on EXor.

Claim: X and Y (a zero, spelled 0.1 : 0.9) are semantically equivalent, but not equally likely; A and B (a one, 0.5 : 0.5)
are both. Untied, X and Y meet in the input embedding and stay apart in the output embedding, A and B meet in both. Tied,
A and B meet sooner, X and Y are held apart, and training is less stable.

    python -m jaxtie.run experiments/transformer_small.py --seeds 64

EXPECTED
"""

from jaxtie import Experiment

experiment = Experiment(name="transformer-small")
