"""Which role writes a tied table on EXor, and whose is it then? Every update is split by role.

Claims: the tied table ends nearer to the untied output table (Press and Wolf 2017), for the output
role writes most of it early in training, and less so if the input role's gradient is scaled up
(Lopardo et al. 2026). And with both gradients on, the output role pushes X and Y apart, and the
input role pushes them together.

    jaxtie run gradient_roles

A tied table starts at the values of the untied input table, which favours that one; with
`output-start` at those of the output table. What is claimed of similarities is claimed of the mean
of both starts. What is claimed, and by which margin, stands below and was written before the run,
when shares, pushes and similarities over 10,000 steps of seeds 0 to 63 had been seen; the run's are
others. The rule stands in `jaxtie/results/claims.py`. It is as long as there was time for, and ends
where the learning rate is least; more `--steps` extend it.
Results: results/gradient-roles.md.
Time: 40 s an arm for 64 seeds on one core of an AMD EPYC.
"""

from math import log

from jaxtie import Experiment
from jaxtie.exor.claims import FORCE, ExorClaim

UP = "tied+input-gradient=5"
OTHER = tuple(
    f"tied+{which}-gradient={factor}"
    for which, factor in (("input", 0), ("output", 0), ("input", 2), ("input", 10), ("input", 0.5))
)

experiment = Experiment(
    name="gradient-roles",
    claim=(
        "Gradients of the output role write most of the tied table, and it ends nearer to the"
        " untied output table."
    ),
    arms=("tied", "tied+output-start", UP, f"{UP}+output-start", "untied", *OTHER),
    steps=50_000,
    seeds=range(64, 128),
    record_every=1_000,
    roles=True,
)

EITHER_START = {"tied": 0.5, "tied+output-start": 0.5}
BY_SCALING = {UP: 0.5, f"{UP}+output-start": 0.5, "tied": -0.5, "tied+output-start": -0.5}
MEASURES = ("CKA", "order of distances", "linear map")
PRESS_AND_WOLF, LOPARDO = "Press and Wolf (2017)", "Lopardo et al. (2026)"

claims = (
    *(
        ExorClaim(
            "The tied table ends nearer to the untied output table.",
            f"nearness by {measure}",
            EITHER_START,
            low=0,
            source=PRESS_AND_WOLF,
        )
        for measure in MEASURES
    ),
    ExorClaim(
        "Early, the output role writes more than half.",
        "output share, early",
        EITHER_START,
        low=0.5,
        source=LOPARDO,
    ),
    *(
        ExorClaim(
            "Five times the input role's gradient brings it nearer to the input table.",
            f"nearness by {measure}",
            BY_SCALING,
            high=0,
            source=LOPARDO,
        )
        for measure in MEASURES
    ),
    ExorClaim(
        "Later, the output role's share is lower.",
        "output share, early less later",
        EITHER_START,
        low=0,
    ),
    ExorClaim(
        "Tied, the output role pushes X and Y apart.", "output push", EITHER_START, low=log(FORCE)
    ),
    ExorClaim(
        "Tied, the input role pushes X and Y together.",
        "input push",
        EITHER_START,
        high=-log(FORCE),
    ),
)
