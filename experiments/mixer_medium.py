"""Does tying change how an MLP-Mixer learns EXor? Two layers, width 32.

The main experiment with another model.

Claim: what the small mixer shows is no effect of its size.
Found: X and Y are held apart where it holds them apart, but no pair is drawn together. No
difference in loss above 0.002 nat is seen.

    jaxtie run mixer_medium

Order matters to this model, so an exact evaluation sees many more contexts than the transformer's,
and is made less often. The validation split says something about generalisation.
Results: results/mixer-medium.md.
Time: about 70 min on two cores of an Intel Xeon.
"""

from jaxtie import Experiment, Mixer
from jaxtie.exor.claims import PAPER_CLAIMS

experiment = Experiment(
    name="mixer-medium",
    claim="Two layers and width 32 show what the small MLP-Mixer shows.",
    seeds=range(8),
    model=Mixer(layers=2, width=32, tokenwise=32, channelwise=32),
    steps=300_000,
    eval_every=5_000,
)

claims = PAPER_CLAIMS  # written when the shorter run had been seen
