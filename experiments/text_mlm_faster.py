"""Do words and duplicates draw together at ten times the published rate, which moves the tables?

`text_mlm.py` otherwise; 10,000 steps.

Claim: as in `text_mlm`.
Found: A word and its duplicate draw together in every table; other pairs of words less.

    jaxtie run text_mlm_faster --text PATH

Found on seventeen books of Project Gutenberg; no results are committed.
Time: 72 min on two cores of an AMD EPYC while the machine had other work.
"""

from jaxtie import Optimizer, TextExperiment

experiment = TextExperiment(
    name="text-mlm-faster",
    claim="A word and its duplicate draw together in every table; other pairs of words do not.",
    optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.01),
)
