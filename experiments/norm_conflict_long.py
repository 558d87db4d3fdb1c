"""Are stuck seeds slow, or trapped? Those of `norm_conflict_half.py` to step 290,000.

    jaxtie run norm_conflict_long

Step 290,000 is where the learning rate is least again, as at 150,000. Nothing is claimed; to be
read is the share that is stuck over steps, and how many have left for good.
Time: 10 minutes on two cores.

Found: 27 of 47 tied seeds that are stuck at step 150,000 are stuck at 290,000 (57 %, exact 95 %
interval 42 to 72), 8 of 12 with the mask untied, 16 of 19 with the gain, 5 of 6 with c = 0.05.
"""

from jaxtie import Experiment, Process

experiment = Experiment(
    name="norm-conflict-long",
    claim="Most seeds that are stuck at step 150,000 are stuck at 290,000.",
    process=Process(zeros=(0.5, 0.5)),
    arms=("tied", "tied+untie-rows=mask", "tied+gain=mask", "tied+input-norm=0.05"),
    seeds=range(8192, 8192 + 128),
    steps=290_000,
    record_every=5_000,
    eval_every=5_000,
    mask_logit=True,
)
