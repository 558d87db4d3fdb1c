"""Does one length for both roles of [MASK] cost anything on masked text?

[MASK] stands where the model predicts, and is never a target: as in EXor. What is of interest is
the length of its row by role, and the tying gap with and without a learned factor for its output
row, and with an output row of its own. Nothing is claimed.

    jaxtie run norm_conflict_masked --text PATH

Time: 20 minutes on two cores.

Found: untied, the row is half as long again as an output; a factor or an output row of its own
changes the tied loss by less than 0.03.
"""

from jaxtie import Corpus, Optimizer, TextExperiment, Transformer

experiment = TextExperiment(
    name="norm-conflict-masked",
    claim="Does one length for both roles of [MASK] cost anything on masked text?",
    corpus=Corpus(vocab_size=2_048),
    model=Transformer(layers=1, heads=4, width=64, feedforward=256),
    optimizer=Optimizer(learning_rate=3e-3, weight_decay=0.01, half_period=2_400),
    arms=("tied", "untied", "tied+untie-rows=mask", "tied+gain=mask"),
    steps=2_400,
    seeds=(0, 1, 2),
    record_every=20,
    eval_every=120,
    eval_batches=50,
    batch=32,
    length=64,
    buckets=(32, 64),
    duplicates=False,
    mask_norms=True,
)
