"""A small causal model of text in which words have duplicates for which the distributional
hypothesis holds, or fails.

Of the 100 most frequent words every second one has a duplicate that is as likely as the word
(probability 0.5, as published), the others one that is nine times less likely (0.1). Both are
equivalent as inputs; as outputs the latter differ by ln 9 in every context, which an output bias
can carry. Beside them stand pairs of other tokens that are as frequent.

Claims: below, by the rule in `jaxtie/results/claims.py`. They, the margins, the size and the seeds
were written before the run,
when one trial had been seen: another seed (100), 1,000 steps of the same model, tied and untied,
without a bias.
Found: Duplicates as likely as their words stay nearer than tokens as frequent; rarer ones less
where they write logits.

    jaxtie run duplicates_causal --text PATH

Results, on seventeen books of Project Gutenberg, split by book:
results/duplicates-causal.md.
Time: 41 min of two cores of an AMD EPYC that had much other work.
"""

from jaxtie import Corpus, Optimizer, TextExperiment, Transformer
from jaxtie.text.claims import claims_of_duplicates

EVEN, RARE = 0.5, 0.1

experiment = TextExperiment(
    name="duplicates-causal",
    claim=(
        "Duplicates that are as likely as their words draw together; rarer ones are held "
        "apart where they write logits."
    ),
    objective="causal",
    corpus=Corpus(vocab_size=2_048, split_key="bytes", form="sentences"),
    model=Transformer(layers=1, heads=4, width=64, feedforward=256),
    init_std=0.02,
    optimizer=Optimizer(learning_rate=2e-3, weight_decay=0.01, half_period=1_000),
    arms=("tied", "tied+bias", "untied", "untied@1/2"),
    steps=1_000,
    seeds=(0, 1, 2),
    record_every=100,
    eval_every=1_000,
    eval_batches=50,
    batch=16,
    length=64,
    duplicates=(EVEN, RARE),
    contexts=8,
)

claims = claims_of_duplicates(EVEN, RARE, "untied@500")
