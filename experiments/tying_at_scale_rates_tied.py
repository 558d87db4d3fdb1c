"""Does the tied decoder of ten million tokens do better at another learning rate than its own?

The tied model of `tying_at_scale.py` at 0.002 ended at 3.272 (seed 0); here it has the rates a
factor √2 below and above. The rule is that of `tying_at_scale_rates.py`, which tries the untied
model.

    jaxtie run tying_at_scale_rates_tied --text packages/
"""

from jaxtie import Corpus, Decoder, Optimizer, TextExperiment

STEPS = 40_000

experiment = TextExperiment(
    name="tying-at-scale-rates-tied",
    claim="At ten million tokens, no rate next to 0.002 is better for the tied model.",
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
    arms=("tied+learned-scale",),
    sweep={"learning_rate": (1.4e-3, 2.8e-3)},
    steps=STEPS,
    seeds=range(1),
    record_every=400,
    eval_every=8_000,
    eval_batches=800,
    batch=2,
    length=128,
    words=8,
    duplicates=False,
)
