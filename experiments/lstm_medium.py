"""The main experiment with a bidirectional LSTM of four layers, width 32 and 32 hidden units a direction.

Claim: what the small LSTM shows is no effect of its size.

Order matters to this model, so an exact evaluation sees 56,448 contexts where the transformer's sees 296, and is made less
often. The validation split says something about generalisation.

    python -m jaxtie.run experiments/lstm_medium.py --seeds 5

Seen so far, `--seeds 42-46 --steps 7000`, mean and 95 % confidence interval (more: experiments/RESULTS.md):
  training loss, nat  tied and untied 0.509 ± 0.001, reachable 0.508
  X-Y, input          tied 6.3 ± 1.1, untied 6.4 ± 1.2; output, untied 6.5 ± 1.0; A-B between 6.0 and 6.4: too early to tell
Time: 31 min on one core of an AMD EPYC while the machine had other work.
"""

from jaxtie import LSTM, Experiment

experiment = Experiment(
    name="lstm-medium",
    claim="Four layers and width 32 show what the small LSTM shows.",
    model=LSTM(layers=4, width=32, hidden=32),
    eval_every=5_000,
)
