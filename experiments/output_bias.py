"""Does an output bias repair what tying costs in the main experiment?

Claim, before the run: X and Y are semantically equivalent, and ln 9 apart in every context. An
output bias can carry a constant, so a tied model with a bias need not hold their rows apart: tying
costs something without it, and nothing with it.
Found: it costs something, and half of that with a bias. A bias takes half off where the hypothesis
holds, too, so it is not shown to do it by carrying the odds.

    jaxtie run output_bias --seeds 1024

The claims and margins below were written when 64 seeds had been seen;
`jaxtie/results/claims.py` judges them. `output_bias_ndh.py`, `output_bias_ydh.py` and
`output_bias_control.py` are the same on other processes.
Results, of 1,024 seeds: results/output-bias.md.
Time: 100 s an arm for 128 seeds on two cores of an AMD EPYC.
"""

from jaxtie import Experiment
from jaxtie.exor.claims import FORCE, PAPER_CLAIMS, ExorClaim
from jaxtie.results.claims import PAPER

experiment = Experiment(
    name="output-bias",
    claim="What tying costs where the hypothesis fails by a constant, an output bias repairs.",
    arms=("tied", "untied", "tied+bias", "untied+bias", "tied+undecayed-bias"),
    record_every=1_000,
)

COST, COST_WITH_BIAS = {"tied": 1, "untied": -1}, {"tied+bias": 1, "untied+bias": -1}
MARGIN = (
    0.05  # nat: what counts as nothing, of losses; a seed this near the best has solved the task
)

claims = (
    ExorClaim("Tying costs.", "loss", COST, low=0, source=PAPER),
    ExorClaim("With a bias, tying costs nothing.", "loss", COST_WITH_BIAS, -MARGIN, MARGIN),
    ExorClaim("A bias lowers the tied loss.", "loss", {"tied+bias": 1, "tied": -1}, high=0),
    ExorClaim(
        "A bias leaves the untied loss as it is.",
        "loss",
        {"untied+bias": 1, "untied": -1},
        -MARGIN,
        MARGIN,
    ),
    ExorClaim(
        "A bias takes away some of what tying costs.",
        "loss",
        {**COST, "tied+bias": -1, "untied+bias": 1},
        low=0,
    ),
    ExorClaim(
        "Whether the bias decays is all one.",
        "loss",
        {"tied+undecayed-bias": 1, "tied+bias": -1},
        -MARGIN,
        MARGIN,
    ),
    ExorClaim(
        "Tying costs more than where the hypothesis holds.",
        "loss",
        COST,
        low=0,
        against="output-bias-ydh",
        source=PAPER,
    ),
    *PAPER_CLAIMS,
    ExorClaim(
        "Tied with a bias, X and Y are no longer held apart.",
        "decay ratio",
        "tied+bias",
        high=FORCE,
    ),
    ExorClaim(
        "A bias brings X and Y nearer in the tied table.",
        "reference ratio",
        {"tied+bias": 1, "tied": -1},
        high=1,
    ),
    ExorClaim(
        "Tied, a swap of X and Y moves predictions more.",
        "swap divergence",
        {"tied": 1, "untied": -1},
        low=0,
    ),
)
