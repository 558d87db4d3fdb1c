"""Which role holds X and Y apart in a tied table? The gradient of one role is taken out.

Claim: the output role. The table is one, and so are its values in both roles; what differs is which
of its two gradients trains it. Without the output role's, only the input role moves the table.
Found: it does; with the input role's gradient alone, X and Y fall as decay makes them.

    jaxtie run roles --seeds 256

The claims and margins below were written before the run; `jaxtie/results/claims.py` judges them.
Results: results/roles.md. The seeds were looked at when they were 64.
Time: 5 min an arm on two cores of an Intel Xeon while the machine had other work.
"""

from jaxtie import Experiment
from jaxtie.exor.claims import ExorClaim

experiment = Experiment(
    name="roles",
    claim="The output role of the tied table holds X and Y apart.",
    arms=("tied", "tied+input-gradient=0", "tied+output-gradient=0", "untied"),
    record_every=1_000,
)

INPUT_OFF, OUTPUT_OFF = "tied+input-gradient=0", "tied+output-gradient=0"

claims = (
    ExorClaim(
        "Without the input role's gradient, X and Y are held apart.",
        "decay ratio",
        INPUT_OFF,
        low=1.25,
    ),
    ExorClaim(
        "Without the output role's gradient, X and Y are held apart.",
        "decay ratio",
        OUTPUT_OFF,
        low=1.25,
        opposite=True,
    ),
    ExorClaim(
        "The output role holds X and Y further apart than the input role.",
        "decay ratio",
        {INPUT_OFF: 1, OUTPUT_OFF: -1},
        1,
    ),
    ExorClaim(
        "The input role draws X and Y together in the tied table.",
        "decay ratio",
        {"tied": 1, INPUT_OFF: -1},
        high=1,
    ),
    ExorClaim(
        "Without the input role's gradient, a tied model does worse.",
        "loss",
        {INPUT_OFF: 1, "tied": -1},
        low=0,
    ),
)
