"""Does tying hold A and B apart where the hypothesis fails? They are drawn 0.1 : 0.9.

Claim: untied, A and B meet in the input embedding and stay apart in the output embedding; tied,
they are held apart.

    jaxtie run transformer_ndh --seeds 64

Results, of the same two arms and more seeds: results/output-bias-ndh.md.
Time: 6 min on one core of an AMD EPYC while the machine had other work.
"""

from jaxtie import Experiment, Process

experiment = Experiment(
    name="transformer-ndh",
    claim=(
        "Where the hypothesis fails, A and B meet as inputs and stay apart as outputs; tied, they"
        " are held apart."
    ),
    process=Process(zeros=(1.0, 0.0), ones=(0.1, 0.9)),
)
