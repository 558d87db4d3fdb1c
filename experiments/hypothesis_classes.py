"""Are duplicates that were added to an unseen text found, and nothing else? A blind test.

Claim: of each class at least 90 % is told at the strongest strength, with at most 5 % of neighbours
taken for one; both kinds of duplicates have an AUC of at least 0.95 against neighbours; of their 95
% intervals of S² and of C², 90 to 98 % cover 0.

What was measured is in experiments/data/hypothesis-classes-kinds.csv and
hypothesis-classes-answers.csv. A version of the project before this file last changed trained and
counted it: commit 23a757e has the code and the nine sources. They had 256 to 260 tokens each, a
text of 60,000 sentences of 32 tokens, and two models, trained for 2,000 steps.

Below is the first of the two models that were trained on each source, and nothing of the test. It
trains on one half of any text; experiments/lab/token_pairs.py trains both and compares what they
say.

    jaxtie run hypothesis_classes --text PATH

Results: experiments/lab/equivalence/README.md.
Time: a few minutes of one core.
"""

from jaxtie import Corpus, Optimizer, TextExperiment, Transformer

experiment = TextExperiment(
    name="hypothesis-classes",
    claim=(
        "What is planted in a source is told by what two models say, and little else is taken"
        " for it."
    ),
    objective="causal",
    corpus=Corpus(split_key="bytes", form="sentences"),
    model=Transformer(layers=2, heads=4, width=64, feedforward=256),
    init_std=0.02,
    optimizer=Optimizer(learning_rate=2e-3, weight_decay=0.01, half_period=2_000),
    arms=("untied",),
    seeds=(0,),
    steps=2_000,
    record_every=100,
    eval_every=500,
    batch=16,
    length=64,
    words=8,
    duplicates=False,
    half="first",
    planted=40,
)
