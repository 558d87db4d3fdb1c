"""Does untying midway help, as the paper's author proposed? Tied up to some step of EXor.

Claim: soon after untying X and Y collapse in the input embedding and stay apart in the output
embedding, and the loss of the untied model is reached.
Found: over tens of thousands of steps X and Y shrink in the input embedding, and stay apart in the
output embedding; the earlier the untying, the lower the loss, and whether any is lost is open.

    jaxtie run untie_midway --seeds 128

At the step of untying nothing changes: the output embedding and its optimizer moments are copies.

What is claimed, and by which margin, stands below. It was written when the first 64 seeds had been
seen, and they are among those that judge it. The rule stands in `jaxtie/results/claims.py`.
Results, of 128 seeds: results/untie-midway.md.
Time: 19 min for 128 seeds on two cores of an AMD EPYC while the machine had other work.
"""

from jaxtie import Experiment
from jaxtie.exor.claims import ExorClaim, drawn_together, held_apart
from jaxtie.results.claims import AUTHOR

experiment = Experiment(
    name="untie-midway",
    claim=(
        "Untied midway, X and Y collapse as inputs and stay apart as outputs; the untied "
        "loss is reached."
    ),
    arms=("tied", "untied", "untied@25000", "untied@75000"),
)

LATE, EARLY = "untied@75000", "untied@25000"
MARGIN = 0.05  # as in `output_bias.py`

claims = (
    drawn_together(LATE, "X-Y", source=AUTHOR),
    held_apart(LATE, "X-Y", "output", AUTHOR),
    ExorClaim(
        "Untied at 75,000, X and Y end nearer in the input table.",
        "decay ratio",
        {LATE: 1, "tied": -1},
        high=1,
        source=AUTHOR,
    ),
    ExorClaim(
        "Untied at 75,000, the loss ends lower than tied.",
        "loss",
        {LATE: 1, "tied": -1},
        high=0,
        source=AUTHOR,
    ),
    ExorClaim(
        "Untied at 25,000, the loss ends lower than tied.",
        "loss",
        {EARLY: 1, "tied": -1},
        high=0,
        source=AUTHOR,
    ),
    ExorClaim(
        "Untied at 75,000, nothing is lost beside never tied.",
        "loss",
        {LATE: 1, "untied": -1},
        -MARGIN,
        MARGIN,
    ),
    ExorClaim(
        "Untied at 25,000, nothing is lost beside never tied.",
        "loss",
        {EARLY: 1, "untied": -1},
        -MARGIN,
        MARGIN,
    ),
)
