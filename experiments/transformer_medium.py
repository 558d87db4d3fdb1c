"""The main experiment with a transformer of two layers and width 32.

Claim: what the small transformer shows of X, Y, A and B is no effect of its size.

    python -m jaxtie.run experiments/transformer_medium.py --seeds 5

Seen so far, `--seeds 42-46 --steps 60000`, mean and 95 % confidence interval (more: experiments/RESULTS.md):
  training loss, nat  tied 0.525 ± 0.025, untied 0.522 ± 0.025, reachable 0.508; every seed solves the task
  X-Y, input          tied 5.8 ± 1.1, untied 6.0 ± 1.3; output, untied 6.0 ± 0.9; A-B between 5.5 and 5.9: too early to tell
Time: 19 min on one core of an AMD EPYC while the machine had other work.
"""

from jaxtie import Experiment, Optimiser, Transformer

experiment = Experiment(
    name="transformer-medium",
    claim="Two layers and width 32 show what the small transformer shows.",
    model=Transformer(layers=2, width=32, feedforward=32),
    optimiser=Optimiser(learning_rate=1e-4),
    steps=300_000,
)
