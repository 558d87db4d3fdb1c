"""Train tied, then untie and go on: what the paper's author proposed, and on EXor nobody has shown.

Claim: soon after untying X and Y collapse in the input embedding and stay apart in the output embedding, and the loss of the
untied model is reached. At the step of untying nothing changes: the output embedding and its optimiser moments are copies.

    python -m jaxtie.run experiments/untie_midway.py --seeds 64

Expected, 64 seeds, step 150,000, mean and 95 % confidence interval (more: experiments/RESULTS.md):
  training loss, nat  tied 0.887 ± 0.070, untied@75000 0.835 ± 0.066, untied@25000 0.768 ± 0.057, untied 0.756 ± 0.052
  X-Y, input          tied 0.699 ± 0.083, untied@75000 0.189 ± 0.115, untied@25000 0.093 ± 0.047, untied 0.165 ± 0.235
  X-Y, output         untied@75000 1.042 ± 0.045, untied@25000 1.172 ± 0.050, untied 1.212 ± 0.054
Time: 13 min on one core of an AMD EPYC while the machine had other work.
"""

from jaxtie import Experiment

experiment = Experiment(
    name="untie-midway",
    claim="Untied midway, X and Y collapse as inputs and stay apart as outputs; the untied loss is reached.",
    arms=("tied", "untied", "untied@25000", "untied@75000"),
)
