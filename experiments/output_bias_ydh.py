"""Does tying cost anything where the hypothesis holds for the only pair, A and B, 0.5 : 0.5?

Found: Where the hypothesis holds for the only pair, tying costs less than in the main process, if
not nothing.

    jaxtie run output_bias_ydh --seeds 1024

The claims and margins below were written when 64 seeds had been seen;
`jaxtie/results/claims.py` judges them.
Results, of 1,024 seeds: results/output-bias-ydh.md.
Time: 100 s an arm for 128 seeds on two cores of an AMD EPYC.
"""

from jaxtie import Experiment, Process
from jaxtie.exor.claims import ExorClaim, drawn_together
from jaxtie.results.claims import PAPER

experiment = Experiment(
    name="output-bias-ydh",
    claim="Where the hypothesis holds, tying costs nothing, with or without a bias.",
    process=Process(zeros=(1.0, 0.0), ones=(0.5, 0.5)),
    arms=("tied", "untied", "tied+bias", "untied+bias"),
    record_every=1_000,
)

COST, COST_WITH_BIAS = {"tied": 1, "untied": -1}, {"tied+bias": 1, "untied+bias": -1}
MARGIN = 0.05  # as in `output_bias.py`

claims = (
    ExorClaim("Tying costs nothing.", "loss", COST, -MARGIN, MARGIN, source=PAPER),
    ExorClaim("With a bias, tying costs nothing.", "loss", COST_WITH_BIAS, -MARGIN, MARGIN),
    drawn_together("untied", "A-B", source=PAPER),
    drawn_together("untied", "A-B", "output", PAPER),
    drawn_together("tied", "A-B", source=PAPER),
)
