"""Does a tied model first predict its own input, the mask? The first 10,000 steps.

    jaxtie run never_targets_start

The rival story: while residual branches are small, a tied model predicts what it reads, here the
mask, and has to unlearn it with the row that it also reads. Nothing is claimed of it; the figures
of the run have no mask.
Time: a minute on two cores.
"""

from jaxtie import Experiment

experiment = Experiment(
    name="never-targets-start",
    claim="A tied model begins by predicting the mask itself, unless its output row is untied.",
    arms=("tied", "untied", "tied+untie-rows=mask", "untied+tie-rows=mask"),
    seeds=(*range(64), *range(128, 256)),  # 64 to 127 were looked at before
    steps=10_000,
    eval_every=100,
    mask_logit=True,
)
