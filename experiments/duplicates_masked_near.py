"""A small masked model of text in which words have duplicates for which the distributional hypothesis holds, or fails.

Of the 100 most frequent words every second one has a duplicate that is as likely as the word (probability 0.5, as published),
the others one that is nine times less likely (0.1). Both are equivalent as inputs; as outputs the latter differ by ln 9 in
every context, which an output bias can carry. Beside them stand pairs of other tokens that are as frequent.

`duplicates_masked.py` over, from tables that start nearer: at a deviation of 0.02 instead of the published 0.3. There rows
start so far apart that 1,000 steps moved no distance, so nothing was decided. That run had been seen when this one was
declared, and the trial that it tells of; of this one nothing. Claims, margins, sizes and seeds are as there.

    python -m jaxtie.run experiments/duplicates_masked_near.py --text PATH

Results, on seventeen books of Project Gutenberg, split by book: README.md.
Time: 12 members, 10 min of one core of an AMD EPYC.
"""

from jaxtie import Corpus, Optimiser, TextExperiment, Transformer
from jaxtie.text.claims import claims_of_duplicates

EVEN, RARE = 0.5, 0.1

experiment = TextExperiment(
    name="duplicates-masked-near",
    claim="Duplicates that are as likely as their words draw together; rarer ones are held apart where they write logits.",
    corpus=Corpus(vocab_size=2_048),
    model=Transformer(layers=1, heads=4, width=64, feedforward=256),
    deviation=0.02,
    optimiser=Optimiser(learning_rate=2e-3, weight_decay=0.01, half_period=1_000),
    arms=("tied", "tied+bias", "untied", "untied@500"),
    steps=1_000,
    seeds=(0, 1, 2),
    record_every=100,
    eval_every=1_000,
    eval_batches=50,
    batch=32,
    length=64,
    buckets=(32, 64),
    duplicates=(EVEN, RARE),
    contexts=8,
)

claims = claims_of_duplicates(EVEN, RARE, "untied@500")
