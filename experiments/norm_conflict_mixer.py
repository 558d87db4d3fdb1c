"""Does a long row trap a mixer, too, whose norms stand before its branches?

    jaxtie run norm_conflict_mixer

The norm before the second branch sees the mask's row and what the first branch added, so a long row
drowns it there; the output has no norm. Nothing is claimed.
Time: 10 minutes on two cores.

Found: it does not: 0 and 1 of 64 seeds are stuck.
"""

from jaxtie import Experiment, Mixer, Process

experiment = Experiment(
    name="norm-conflict-mixer",
    claim="In the mixer, too, a long input row of the mask traps untied seeds.",
    process=Process(zeros=(0.5, 0.5)),
    model=Mixer(),
    arms=("untied", "untied+input-norm=3"),
    seeds=range(8192, 8192 + 64),
    record_every=5_000,
    eval_every=5_000,
    mask_logit=True,
)
