"""The main experiment with an MLP-Mixer of one layer and width 4.

Claim: what the transformer shows of X, Y, A and B is no effect of its architecture.

Order matters to this model, so an exact evaluation sees 56,448 contexts where the transformer's sees 296, and is made less
often. The validation split says something about generalisation.

    python -m jaxtie.run experiments/mixer_small.py --seeds 64

Expected, 64 seeds, step 150,000, mean and 95 % confidence interval (more: experiments/RESULTS.md):
  training accuracy   tied 0.661 ± 0.017, untied 0.679 ± 0.010, reachable 0.702
  X-Y, input          tied 0.357 ± 0.073, untied 0.045 ± 0.012; output, untied 1.308 ± 0.120
  A-B, input          tied 0.004 ± 0.002, untied 0.036 ± 0.011; output, untied 0.021 ± 0.004
Time: 18 min on one core of an AMD EPYC while the machine had other work.
"""

from jaxtie import Experiment, Mixer

experiment = Experiment(
    name="mixer-small",
    claim="An MLP-Mixer shows what the transformer shows.",
    model=Mixer(),
    eval_every=10_000,
)
