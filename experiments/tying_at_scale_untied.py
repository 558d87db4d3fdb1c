"""Does an untied decoder beat counts of up to four tokens? It is compared in `tying_at_scale.py`.

jaxtie run tying_at_scale_untied --text packages/

Found: this rate is too high here, see there.
"""

from jaxtie import Corpus, Decoder, Optimizer, TextExperiment

STEPS = 40_000

experiment = TextExperiment(
    name="tying-at-scale-untied",
    claim="An untied decoder is at least 0.1 nat better than counts of up to four tokens.",
    objective="causal",
    corpus=Corpus(vocab_size=4_096),
    model=Decoder(layers=4, heads=4, width=128),
    init_std=0.02,
    optimizer=Optimizer(
        learning_rate=4e-3,
        eta_min=0.0,
        half_period=STEPS,
        warmup=STEPS // 10,
        weight_decay=0.1,
        b2=0.99,
        eps=1e-8,
    ),
    arms=("untied+learned-scale",),
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
