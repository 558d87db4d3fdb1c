"""Does tying change how an MLP-Mixer learns EXor? One layer, width 4.

The main experiment with another model.

Claim: what the transformer shows of X, Y, A and B is no effect of its architecture.
Found: of the distances it shows the same. Tying costs, but hardly any seed is stuck.

    jaxtie run mixer_small --seeds 64

Order matters to this model, so an exact evaluation sees many more contexts than the transformer's,
and is made less often. The validation split says something about generalisation.
Results: results/mixer-small.md.
Time: 7.5 min on two cores of an Intel Xeon while the machine had other work.
"""

from jaxtie import Experiment, Mixer
from jaxtie.exor.claims import PAPER_CLAIMS

experiment = Experiment(
    name="mixer-small",
    claim="An MLP-Mixer shows what the transformer shows.",
    model=Mixer(),
    eval_every=10_000,
)

claims = PAPER_CLAIMS  # written when 64 seeds of an earlier run had been seen
