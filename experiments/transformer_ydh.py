"""EXor where the distributional hypothesis holds: only A and B are exchangeable, and equally
likely.

Claim: A and B come close in both embeddings, tied or not; tied, sooner than in the untied input
embedding. (Whether tying
costs anything then: `output_bias_ydh.py`.)

    python -m jaxtie.run experiments/transformer_ydh.py --seeds 64

Results: README.md.
Time: 6 min on one core of an AMD EPYC while the machine had other work.
"""

from jaxtie import Experiment, Process

experiment = Experiment(
    name="transformer-ydh",
    claim="Where the hypothesis holds, A and B come close in both embeddings, tied or not.",
    process=Process(zeros=(1.0, 0.0), ones=(0.5, 0.5)),
)
