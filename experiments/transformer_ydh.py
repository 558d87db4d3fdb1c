"""Do A and B meet in both embeddings where the hypothesis holds? They are equally likely.

Claim: A and B come close in both embeddings, tied or not; tied, sooner than in the untied input
embedding. (Whether tying
costs anything then: `output_bias_ydh.py`.)
Found: Where the hypothesis holds, A and B come close in both embeddings, tied or not.

    jaxtie run transformer_ydh --seeds 64

Results, of the same two arms and more seeds: results/output-bias-ydh.md.
Time: 6 min on one core of an AMD EPYC while the machine had other work.
"""

from jaxtie import Experiment, Process

experiment = Experiment(
    name="transformer-ydh",
    claim=(
        "Where the hypothesis holds, A and B meet in both embeddings, tied or not: "
        "nothing is lost by tying."
    ),
    process=Process(zeros=(1.0, 0.0), ones=(0.5, 0.5)),
)
