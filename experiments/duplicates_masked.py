"""Do a word and its duplicate draw together in a small masked model, as the hypothesis says?

Of the 100 most frequent words every second one has a duplicate that is as likely as the word
(probability 0.5, as published), the others one that is nine times less likely (0.1). Both are
equivalent as inputs; as outputs the latter differ by ln 9 in every context, which an output bias
can carry. Beside them stand pairs of other tokens that are as frequent.

BERT's masks; an encoder of one layer without positions. Claims: as of `duplicates_causal.py`, by
the rule
in `jaxtie/results/claims.py`. It is the third try at a size that decides something, declared before
it was run, when two shorter ones had been seen: 1,000 steps from tables of the published deviation
(0.3) moved no distance, and 1,000 steps from tables of 0.02 left ten of the thirteen claims
inconclusive (one step asks a masked model for 15 % of its tokens). Claims and margins have stayed
as they were; steps and learning rate are larger.
Found: Duplicates as likely as their words stay nearer than tokens as frequent; rarer ones less
where they write logits.

    jaxtie run duplicates_masked --text PATH

Results, on seventeen books of Project Gutenberg, split by book:
results/duplicates-masked.md.
Time: 13 min of two cores of an AMD EPYC that had much other work.
"""

import dataclasses
from pathlib import Path

from jaxtie import Corpus, Optimizer, TextExperiment, Transformer
from jaxtie.run.experiment_files import load_experiment_and_claims

EVEN, RARE = 0.5, 0.1

experiment = TextExperiment(
    name="duplicates-masked",
    claim=(
        "Duplicates that are as likely as their words draw together; rarer ones are held "
        "apart where they write logits."
    ),
    corpus=Corpus(vocab_size=2_048, split_key="bytes"),
    model=Transformer(layers=1, heads=4, width=64, feedforward=256),
    init_std=0.02,
    optimizer=Optimizer(learning_rate=3e-3, weight_decay=0.01, half_period=2_400),
    arms=("tied", "tied+bias", "untied", "untied@1/2"),
    steps=2_400,
    seeds=(0, 1, 2),
    record_every=100,
    eval_every=1_200,
    eval_batches=50,
    batch=32,
    length=64,
    buckets=(32, 64),
    duplicates=(EVEN, RARE),
    contexts=8,
)

# Those of the causal model; the middle of this run is at another step.
claims = tuple(
    dataclasses.replace(
        claim,
        arms={term.replace("@500", "@1200"): weight for term, weight in claim.weights.items()},
    )
    for claim in load_experiment_and_claims(Path(__file__).with_name("duplicates_causal.py"))[1]
)
