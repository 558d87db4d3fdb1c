"""Is a model between tied and untied better than tied at ten million tokens?

The recipe and the learning rate are those of the tied model of `tying_at_scale.py`.

Half-swap (the output reads each embedding with its two halves exchanged), and an
output row of its own for each token of the rarer half. The claims stand in
`tying_at_scale_deeper.py`.

    jaxtie run tying_at_scale_between --text packages/
"""

from jaxtie import Corpus, Decoder, Optimizer, TextExperiment

STEPS = 40_000

experiment = TextExperiment(
    name="tying-at-scale-between",
    claim="At ten million tokens, a model between tied and untied is better than tied.",
    objective="causal",
    corpus=Corpus(vocab_size=4_096),
    model=Decoder(layers=4, heads=4, width=128),
    init_std=0.02,
    optimizer=Optimizer(
        learning_rate=2e-3,
        eta_min=0.0,
        half_period=STEPS,
        warmup=STEPS // 10,
        weight_decay=0.1,
        b2=0.99,
        eps=1e-8,
    ),
    arms=("tied+half-swap+learned-scale", "tied+untie-rows=rarer-half+learned-scale"),
    steps=STEPS,
    seeds=range(5),
    record_every=400,
    eval_every=8_000,
    eval_batches=800,
    batch=2,
    length=128,
    words=8,
    duplicates=False,
)
