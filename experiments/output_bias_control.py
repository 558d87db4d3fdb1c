"""Does an output bias help where it should not suffice? The control of `output_bias.py`.

Zeros are X or Y, 0.1 : 0.9, in strings of even parity, and 0.9 : 0.1 in odd ones. X and Y are
semantically equivalent: a zero is a zero, and the label is always there to tell which way it is
spelled. But their log-odds are +ln 9 in even strings and -ln 9 in odd ones. No change of a single
token leads from one to the other, so nothing asks for one constant; and an output bias, which knows
no context, can carry neither. All else is the main experiment, best loss and accuracy too.

Found: Where the log-odds of X and Y depend on the context, so that no bias carries them, a bias
takes off less.

    jaxtie run output_bias_control --seeds 1024

The claims and margins below were written before the run; `jaxtie/results/claims.py` judges them.
Results, of 1,024 seeds: results/output-bias-control.md.
Time: 100 s an arm for 128 seeds on two cores of an AMD EPYC.
"""

from jaxtie import Experiment, Process
from jaxtie.exor.claims import ExorClaim

experiment = Experiment(
    name="output-bias-control",
    claim=(
        "Where the log-odds of equivalent symbols depend on the context, a bias does not "
        "repair what tying costs."
    ),
    process=Process(zeros_by_label=True),
    arms=("tied", "untied", "tied+bias", "untied+bias"),
    record_every=1_000,
)

COST, COST_WITH_BIAS = {"tied": 1, "untied": -1}, {"tied+bias": 1, "untied+bias": -1}
MARGIN, FORCE = 0.05, 1.25  # as in `output_bias.py`

claims = (
    ExorClaim("Tying costs.", "loss", COST, low=0),
    ExorClaim("With a bias, tying still costs.", "loss", COST_WITH_BIAS, low=0),
    ExorClaim(
        "A bias takes nothing away of what tying costs.",
        "loss",
        {**COST, "tied+bias": -1, "untied+bias": 1},
        -MARGIN,
        MARGIN,
    ),
    ExorClaim("Tied with a bias, X and Y are held apart.", "decay ratio", "tied+bias", low=FORCE),
)
