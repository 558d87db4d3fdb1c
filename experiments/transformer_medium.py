"""Does tying change how a transformer learns EXor? Two layers, width 32.

The main experiment with a larger model.

Claim: what the small transformer shows of X, Y, A and B is no effect of its size.
Found: at a fifth of the rate, so of the decay, distances are mostly decay's, and nothing holds X
and Y up against it. No difference in loss above 0.002 nat is seen.

    jaxtie run transformer_medium

Results: results/transformer-medium.md.
Time: about 50 min on two cores of an AMD EPYC.
"""

from jaxtie import Experiment, Optimizer, Transformer
from jaxtie.exor.claims import PAPER_CLAIMS

experiment = Experiment(
    name="transformer-medium",
    claim="Two layers and width 32 show what the small transformer shows.",
    seeds=range(8),
    model=Transformer(layers=2, width=32, feedforward=32),
    optimizer=Optimizer(learning_rate=1e-4),
    steps=300_000,
)

claims = PAPER_CLAIMS  # written when a shorter run of other seeds had been seen
