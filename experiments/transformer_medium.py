"""The main experiment with a transformer of two layers and width 32.

Claim: what the small transformer shows of X, Y, A and B is no effect of its size.

    python -m jaxtie.run experiments/transformer_medium.py

Results, of a shorter run (`--seeds 42-46 --steps 60000`): README.md.
Time: 19 min for the shorter run on one core of an AMD EPYC while the machine had other work.
"""

from jaxtie import Experiment, Optimiser, Transformer
from jaxtie.exor.claims import PAPERS_PICTURE

experiment = Experiment(
    name="transformer-medium",
    claim="Two layers and width 32 show what the small transformer shows.",
    seeds=range(8),
    model=Transformer(layers=2, width=32, feedforward=32),
    optimiser=Optimiser(learning_rate=1e-4),
    steps=300_000,
)

claims = PAPERS_PICTURE  # written when the shorter run had been seen
