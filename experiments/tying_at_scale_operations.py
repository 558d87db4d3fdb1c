"""Is a deeper tied model better at equal parameters and equal operations? Ten million tokens.

`tying_at_scale_deeper.py` for fewer steps, so that it has the operations of the untied model, too.

The deeper model takes 1.39 times the operations of a token (attention included), so it sees 28,800
of the 40,000 batches.

    jaxtie run tying_at_scale_operations --text packages/

The claims stand in `tying_at_scale_deeper.py`.
"""

from jaxtie import Corpus, Decoder, Optimizer, TextExperiment

STEPS = 28_800

experiment = TextExperiment(
    name="tying-at-scale-operations",
    claim="At equal parameters and operations, a deeper tied decoder has a higher loss.",
    objective="causal",
    corpus=Corpus(vocab_size=4_096),
    model=Decoder(layers=6, heads=4, width=128, feedforward=426),
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
    arms=("tied+learned-scale",),
    steps=STEPS,
    seeds=range(5),
    record_every=400,
    eval_every=7_200,
    eval_batches=800,
    batch=2,
    length=128,
    words=8,
    duplicates=False,
)
