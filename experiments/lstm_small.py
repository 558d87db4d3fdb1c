"""The main experiment with a bidirectional LSTM of two layers, width 4 and 8 hidden units a direction.

Claim: what the transformer shows of X, Y, A and B is no effect of its architecture.

Order matters to this model, so an exact evaluation sees 56,448 contexts where the transformer's sees 296, and is made less
often. The validation split says something about generalisation.

    python -m jaxtie.run experiments/lstm_small.py --seeds 64
"""

from jaxtie import LSTM, Experiment

experiment = Experiment(
    name="lstm-small",
    claim="An LSTM shows what the transformer shows.",
    model=LSTM(),
    eval_every=5_000,
)
