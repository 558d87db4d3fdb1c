"""Does tying change how an LSTM learns EXor? Four bidirectional layers, width 32.

The main experiment with another model; 32 hidden units a direction.

Claim: what the small LSTM shows is no effect of its size.
Found: five seeds decide nothing.

    jaxtie run lstm_medium

Order matters to this model, so an exact evaluation sees many more contexts than the transformer's,
and is made less often. The validation split says something about generalisation.
Results: results/lstm-medium.md.
Time: 2 h 50 min on 2 cores of an Intel Xeon, with checkpoints and beside other work.
"""

from jaxtie import LSTM, Experiment
from jaxtie.exor.claims import PAPER_CLAIMS

experiment = Experiment(
    name="lstm-medium",
    claim="Four layers and width 32 show what the small LSTM shows.",
    seeds=range(5),
    model=LSTM(layers=4, width=32, hidden=32),
    eval_every=5_000,
)

claims = PAPER_CLAIMS  # written when a shorter run of seeds 42 to 46 had been seen
