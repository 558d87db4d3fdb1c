"""Does the tying gap on causal text depend on tokens that are never a target?

[PAD], [MASK] and the start token [CLS] are never a target by structure. With `targets-only` they
leave the softmax, tied and untied. Nothing is claimed: what is of interest is the tying gap with
and without, at the end and over the first 10 % of the steps (100).

    jaxtie run never_targets_causal --text PATH

Time: 3 minutes on two cores.
"""

from jaxtie import Corpus, Optimizer, TextExperiment, Transformer

experiment = TextExperiment(
    name="never-targets-causal",
    claim="Without never-targets in the softmax, a tied causal model loses as much as with them.",
    objective="causal",
    corpus=Corpus(vocab_size=2_048, split_key="bytes", form="sentences"),
    model=Transformer(layers=1, heads=4, width=64, feedforward=256),
    init_std=0.02,
    optimizer=Optimizer(learning_rate=2e-3, weight_decay=0.01, half_period=1_000),
    arms=("tied", "untied", "tied+targets-only", "untied+targets-only"),
    steps=1_000,
    seeds=(0, 1, 2),
    record_every=20,
    eval_every=100,
    eval_batches=50,
    batch=16,
    length=64,
    duplicates=False,
)
