"""Does the tying gap on masked text depend on tokens that are never a target?

[PAD] and [MASK] are never a target by structure. With `targets-only` they leave the softmax, tied
and untied. Nothing is claimed: what is of interest is the tying gap with and without, at the end
and over the first 10 % of the steps (240), where a tied model of the published tables, N(0, 0.3²),
predicts [MASK] itself.

    jaxtie run never_targets_masked --text PATH

Time: 3 minutes on two cores.
"""

from jaxtie import Corpus, Optimizer, TextExperiment, Transformer

experiment = TextExperiment(
    name="never-targets-masked",
    claim="Without never-targets in the softmax, a tied masked model loses less to an untied one.",
    corpus=Corpus(vocab_size=2_048, split_key="bytes"),
    model=Transformer(layers=1, heads=4, width=64, feedforward=256),
    optimizer=Optimizer(learning_rate=3e-3, weight_decay=0.01, half_period=2_400),
    arms=("tied", "untied", "tied+targets-only", "untied+targets-only"),
    steps=2_400,
    seeds=(0, 1, 2),
    record_every=20,
    eval_every=120,
    eval_batches=50,
    batch=32,
    length=64,
    buckets=(32, 64),
    duplicates=False,
)
