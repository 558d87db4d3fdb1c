"""EXor where the distributional hypothesis holds: only A and B are exchangeable, and equally likely.

Claim: A and B meet in both embeddings, tied or not, and sooner when tied: nothing is lost by tying.

    python -m jaxtie.run experiments/transformer_ydh.py --seeds 64

Expected, 64 seeds, step 150,000, mean and 95 % confidence interval (more: experiments/RESULTS.md):
  training accuracy   tied 0.686 ± 0.022, untied 0.707 ± 0.017, reachable 0.752
  A-B, input          tied 0.012 ± 0.005, untied 0.048 ± 0.007; output, untied 0.020 ± 0.003
Time: 6 min on one core of an AMD EPYC while the machine had other work.
"""

from jaxtie import Experiment, Process

experiment = Experiment(
    name="transformer-ydh",
    claim="Where the hypothesis holds, A and B meet in both embeddings, tied or not: nothing is lost by tying.",
    process=Process(zeros=(1.0, 0.0), ones=(0.5, 0.5)),
)
