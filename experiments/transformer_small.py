"""The paper's main experiment: a transformer of one layer, one head and width 4 on EXor.

Claim: X and Y (a zero, spelled 0.1 : 0.9) are semantically equivalent, but not equally likely; A and B (a one, 0.5 : 0.5)
are both. Untied, X and Y meet in the input embedding and stay apart in the output embedding, A and B meet in both. Tied, A
and B meet sooner, and X and Y are held apart.

    python -m jaxtie.run experiments/transformer_small.py --seeds 64

Expected, 64 seeds, step 150,000, mean and 95 % confidence interval (median and 5-95 % range over seeds):
  training accuracy   tied 0.571 ± 0.027, untied 0.625 ± 0.019, reachable 0.702
  X-Y, input          tied 0.70 ± 0.08 (0.51, 0.37 to 1.28), untied 0.17 ± 0.24 (0.05, 0.01 to 0.10)
  X-Y, output         untied 1.21 ± 0.05 (1.20, 0.88 to 1.55)
  A-B, input          tied 0.02 ± 0.01, untied 0.05 ± 0.01; output, untied 0.02 ± 0.00
Time: 2 min 5 s on two cores of an AMD EPYC with AVX-512, 1 min 45 s of it training.
"""

from jaxtie import Experiment

experiment = Experiment(name="transformer-small")
