"""Does untying midway help on fresh seeds, drawn after the claim was made?

`untie_midway.py` is judged on 128 seeds, of which the first 64 were seen before; its claims about
the loss relative to never tying are inconclusive there. Here are seeds 128 to 1,023. Untying at
step 100,000 is two thirds of the training, as is done in practice. Untied arms are those of
`output_bias.py`, of the same seeds; the tied arm is trained again here, since the others go on from
it, and is the same model.

    jaxtie run untie_midway_unseen

The claims stand below and were written before the run. They are 6, and their intervals are right
together with 95 %. Their ideas are the author's of the paper, the bounds are ours: a loss of 0.05
nat is a third of the gap.
Found: at each of the three steps the loss ends lower than tied, by 0.131, 0.070 and 0.041. Relative
to untied 0.093 is lost by untying at 75,000 and 0.122 at 100,000; at 25,000 it is inconclusive.
Correction: only the untying of these seeds was unseen; their tied and untied arms were known.

Results: results/untie-midway-unseen.md.
Time: 65 minutes on two cores while the machine had other work.
"""

from jaxtie import Experiment
from jaxtie.exor.claims import ExorClaim
from jaxtie.results.claims import AUTHOR

MARGIN = 0.05  # nat, as in `untie_midway.py`
STEPS = (25_000, 75_000, 100_000)

experiment = Experiment(
    name="untie-midway-unseen",
    claim="Untied midway, a model loses less than a tied one, and nothing to an untied one.",
    arms=("tied", *(f"untied@{step}" for step in STEPS)),
    seeds=range(128, 1024),
    record_every=5_000,
    eval_every=5_000,
)

claims = [
    ExorClaim(
        f"Untied at {step:,}, the loss ends lower than tied.",
        "loss",
        {f"untied@{step}": 1, "tied": -1},
        high=0,
        source=AUTHOR,
    )
    for step in STEPS
] + [
    ExorClaim(
        f"Untied at {step:,}, nothing is lost beside never tied.",
        "loss",
        {f"untied@{step}": 1, "output-bias: untied": -1},
        -MARGIN,
        MARGIN,
        source=AUTHOR,
    )
    for step in STEPS
]
