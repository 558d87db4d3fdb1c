"""Does an output bias help where the hypothesis fails for the only pair, A and B, 0.1 : 0.9?

Found: Where the hypothesis fails for the only pair, tying costs, and an output bias takes half of
it off.

    jaxtie run output_bias_ndh --seeds 1024

The claims and margins below were written when 64 seeds had been seen;
`jaxtie/results/claims.py` judges them.
Results, of 1,024 seeds: results/output-bias-ndh.md.
Time: 100 s an arm for 128 seeds on two cores of an AMD EPYC.
"""

from jaxtie import Experiment, Process
from jaxtie.exor.claims import ExorClaim, drawn_together, held_apart
from jaxtie.results.claims import PAPER

experiment = Experiment(
    name="output-bias-ndh",
    claim="Where the hypothesis fails for A and B, a bias repairs what tying costs.",
    process=Process(zeros=(1.0, 0.0), ones=(0.1, 0.9)),
    arms=("tied", "untied", "tied+bias", "untied+bias"),
    record_every=1_000,
)

COST, COST_WITH_BIAS = {"tied": 1, "untied": -1}, {"tied+bias": 1, "untied+bias": -1}
MARGIN = 0.05  # as in `output_bias.py`

claims = (
    ExorClaim("Tying costs.", "loss", COST, low=0, source=PAPER),
    ExorClaim("With a bias, tying costs nothing.", "loss", COST_WITH_BIAS, -MARGIN, MARGIN),
    ExorClaim(
        "A bias takes away some of what tying costs.",
        "loss",
        {**COST, "tied+bias": -1, "untied+bias": 1},
        low=0,
    ),
    ExorClaim(
        "Tying costs more than where the hypothesis holds.",
        "loss",
        COST,
        low=0,
        against="output-bias-ydh",
        source=PAPER,
    ),
    drawn_together("untied", "A-B", source=PAPER),
    held_apart("untied", "A-B", "output", PAPER),
    held_apart("tied", "A-B", source=PAPER),
)
