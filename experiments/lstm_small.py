"""Does tying change how an LSTM learns EXor? Two bidirectional layers, width 4.

The main experiment with another model; 8 hidden units a direction.

Claim: what the transformer shows of X, Y, A and B is no effect of its architecture.
Found: of the distances it shows the same. Whether tying costs is inconclusive.

    jaxtie run lstm_small --seeds 64

Order matters to this model, so an exact evaluation sees many more contexts than the transformer's,
and is made less often. The validation split says something about generalisation.
Results: results/lstm-small.md.
Time: 2 h 15 min on two cores of an Intel Xeon that had some other work.
"""

from jaxtie import LSTM, Experiment
from jaxtie.exor.claims import PAPER_CLAIMS

experiment = Experiment(
    name="lstm-small",
    claim="An LSTM shows what the transformer shows.",
    model=LSTM(),
    eval_every=5_000,
)

claims = PAPER_CLAIMS  # written when 16 seeds of an earlier run had been seen
