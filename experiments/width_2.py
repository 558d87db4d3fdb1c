"""Does tying cost less, the wider the table? The main experiment at width 2.

A tied table as wide as two untied ones can do what they do.

Claim: the price of tying falls with the width. One table that is as wide as two side by side
emulates them: the body reads one half of it and writes the other. The main experiment has width 4;
the other files are `width_*.py`.
Found: from width 3 on tying costs, with a bias too; at width 2 all seeds but one, untied,
are stuck. That it falls from 3 on is not seen.

    jaxtie run width_2 --seeds 256

The claims and margins below were written before the run; `jaxtie/results/claims.py` judges them.
Results: results/width-2.md. The seeds were looked at when they were 64.
Time: 4 min an arm on two cores of an Intel Xeon while the machine had other work.
"""

from jaxtie import Experiment, Transformer
from jaxtie.exor.claims import ExorClaim

experiment = Experiment(
    name="width-2",
    claim="The price of tying falls with the width.",
    model=Transformer(width=2),
    arms=("tied", "untied", "tied+bias"),
    record_every=1_000,
)

claims = (
    ExorClaim("Tying costs.", "loss", {"tied": 1, "untied": -1}, low=0),
    ExorClaim("Tying with a bias costs.", "loss", {"tied+bias": 1, "untied": -1}, low=0),
    ExorClaim(
        "Tying costs more than at width 4.",
        "loss",
        {"tied": 1, "untied": -1},
        low=0,
        against="output-bias",
    ),
)
