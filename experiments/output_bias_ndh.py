"""`output_bias.py` where the hypothesis fails for the only pair: A and B, 0.1 : 0.9.

    python -m jaxtie.run experiments/output_bias_ndh.py --seeds 1024

What is claimed, and by which margin, stands below and was written before the run; the rule stands in
`jaxtie/exor/claims.py`.
Results, of 128 seeds: README.md.
Time: 100 s an arm for 128 seeds on two cores of an AMD EPYC.
"""

from jaxtie import Experiment, Process
from jaxtie.exor.claims import Claim

experiment = Experiment(
    name="output-bias-ndh",
    claim="Where the hypothesis fails for the only pair, tying costs; whether a bias repairs it is undecided.",
    process=Process(zeros=(1.0, 0.0), ones=(0.1, 0.9)),
    arms=("tied", "untied", "tied+bias", "untied+bias"),
    record_every=1_000,
)

COST, COST_WITH_BIAS = {"tied": 1, "untied": -1}, {"tied+bias": 1, "untied+bias": -1}
MARGIN, FORCE = 0.05, 1.25  # as in `output_bias.py`

claims = (
    Claim("Tying costs.", "loss", COST, low=0),
    Claim("With a bias, tying costs nothing.", "loss", COST_WITH_BIAS, -MARGIN, MARGIN),
    Claim("A bias takes away some of what tying costs.", "loss", {**COST, "tied+bias": -1, "untied+bias": 1}, low=0),
    Claim("Tying costs more than where the hypothesis holds.", "loss", COST, low=0, against="output-bias-ydh"),
    Claim("Untied, A and B are drawn together in the input table.", "decay ratio", "untied", high=1 / FORCE, pair="A-B"),
    Claim(
        "Untied, A and B are held apart in the output table.", "decay ratio", "untied", low=FORCE, pair="A-B", table="output",
    ),
    Claim("Tied, A and B are held apart.", "decay ratio", "tied", low=FORCE, pair="A-B"),
)  # fmt: skip
