"""What draws X and Y together in the untied input embedding? Several weight decays.

Claim, before the run: nothing but decay. AdamW shrinks every difference of two rows; where the loss
puts no force on a difference, decay alone rules. Without decay X and Y stay where they were in the
untied input embedding.
Found: they keep four fifths of their distance, as A and B do; so near the margin that the claim is
inconclusive.

    jaxtie run weight_decay --seeds 256

What is claimed, and by which margin, stands below and was written before this run, when 32 of its
seeds had been seen at decays of 0 and 0.01; the rule stands in `jaxtie/results/claims.py`.
Results: results/weight-decay.md. The seeds were looked at when they were 64.
Time: 17 min an arm on two cores of an Intel Xeon.
"""

from jaxtie import Experiment
from jaxtie.exor.claims import ExorClaim

experiment = Experiment(
    name="weight-decay",
    claim="In the untied input embedding nothing but weight decay brings X and Y together.",
    arms=("tied", "untied", "tied+bias"),
    record_every=1_000,
    eval_every=5_000,
    sweep={"weight_decay": (0.0, 0.001, 0.01, 0.1, 0.3)},
)

NEAR = 1 / 1.25  # a distance at most so many times what decay alone leaves of it is drawn together
WITHOUT = {"sweep_point": {"weight_decay": 0.0}}
COST, COST_WITH_BIAS = {"tied": 1, "untied": -1}, {"tied+bias": 1, "untied": -1}

claims = (
    ExorClaim(
        "Without decay, X and Y come together in the untied input table.",
        "decay ratio",
        "untied",
        high=NEAR,
        opposite=True,
        **WITHOUT,
    ),
    ExorClaim(
        "Without decay, A and B come together in the untied input table.",
        "decay ratio",
        "untied",
        high=NEAR,
        opposite=True,
        pair="A-B",
        **WITHOUT,
    ),
    ExorClaim(
        "Without decay, A and B come together in the untied output table.",
        "decay ratio",
        "untied",
        high=NEAR,
        pair="A-B",
        table="output",
        **WITHOUT,
    ),
    ExorClaim(
        "Without decay, X and Y stay apart in the untied output table.",
        "decay ratio",
        "untied",
        low=NEAR,
        table="output",
        **WITHOUT,
    ),
    ExorClaim(
        "Without decay, A and B come together in the tied table.",
        "decay ratio",
        "tied",
        high=NEAR,
        pair="A-B",
        **WITHOUT,
    ),
    *(
        ExorClaim(
            f"At decay {decay:g}, X and Y are drawn together in the untied input table.",
            "decay ratio",
            "untied",
            high=NEAR,
            opposite=True,
            sweep_point={"weight_decay": decay},
        )
        for decay in (0.001, 0.01, 0.1, 0.3)
    ),
    ExorClaim("Without decay, tying costs.", "loss", COST, low=0, **WITHOUT),
    ExorClaim(
        "Without decay, tying with a bias costs, beside untied without.",
        "loss",
        COST_WITH_BIAS,
        low=0,
        **WITHOUT,
    ),
)
