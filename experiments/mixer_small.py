"""The main experiment with an MLP-Mixer of one layer and width 4.

Claim: what the transformer shows of X, Y, A and B is no effect of its architecture.

Order matters to this model, so an exact evaluation sees 56,448 contexts where the transformer's sees 296, and is made less
often. The validation split says something about generalisation.

    python -m jaxtie.run experiments/mixer_small.py --seeds 64
"""

from jaxtie import Experiment, Mixer

experiment = Experiment(
    name="mixer-small",
    claim="An MLP-Mixer shows what the transformer shows.",
    model=Mixer(),
    eval_every=10_000,
)
