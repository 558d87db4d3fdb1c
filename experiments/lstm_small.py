"""The main experiment with a bidirectional LSTM of two layers, width 4 and 8 hidden units a direction.

Claim: what the transformer shows of X, Y, A and B is no effect of its architecture.

Order matters to this model, so an exact evaluation sees 56,448 contexts where the transformer's sees 296, and is made less
often. The validation split says something about generalisation.

    python -m jaxtie.run experiments/lstm_small.py --seeds 64

Expected, 16 seeds, step 150,000, mean and 95 % confidence interval (more: experiments/RESULTS.md):
  training accuracy   tied 0.670 ± 0.045 (14 seeds at the best, 2 on the first plateau), untied 0.702 ± 0.000, reachable 0.702
  X-Y, input          tied 0.450 ± 0.041, untied 0.039 ± 0.010; output, untied 0.721 ± 0.088
  A-B, input          tied 0.017 ± 0.007, untied 0.031 ± 0.010; output, untied 0.033 ± 0.008
Time: 16 seeds 1 h 50 min on one core of an AMD EPYC while the machine had other work.
"""

from jaxtie import LSTM, Experiment

experiment = Experiment(
    name="lstm-small",
    claim="An LSTM shows what the transformer shows.",
    model=LSTM(),
    eval_every=5_000,
)
