"""The main experiment with a bidirectional LSTM of four layers, width 32 and 32 hidden units a direction.

Claim: what the small LSTM shows is no effect of its size.

Order matters to this model, so an exact evaluation sees 56,448 contexts where the transformer's sees 296, and is made less
often. The validation split says something about generalisation.

    python -m jaxtie.run experiments/lstm_medium.py --seeds 5
"""

from jaxtie import LSTM, Experiment

experiment = Experiment(
    name="lstm-medium",
    claim="Four layers and width 32 show what the small LSTM shows.",
    model=LSTM(layers=4, width=32, hidden=32),
    eval_every=5_000,
)
