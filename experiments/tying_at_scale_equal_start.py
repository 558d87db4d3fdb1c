"""Is an untied decoder worse only because its two tables start apart? Ten million tokens.

The untied model of `tying_at_scale_one_rate.py`, but tied for the first 400 of 40,000 steps, a
tenth of the warm-up of its rate: the output table starts as the input table. Weights and optimizer
are those of the untied model from there on, with as many parameters.

    jaxtie run tying_at_scale_equal_start --text packages/

Of tied and untied, `lab/copying.py` asks on which tokens they differ. If tokens that the context
shows are copied sooner where both tables agree, then this model, which has a table of its own for
each role, should do as well as the tied one. If the untied model is worse because each of its
tables learns from fewer gradients, it should do as badly as that.

The claim, at 95 % (Student's t), on the seeds that all three arms have, at least three: an equal
start gains at least two thirds of tied's advantage. The idea and the bound are ours. Known before:
seed 0 of the tied and of the untied model, and that it loses 0.010 if it is untied after 26,800
steps (`tying_at_scale.py`).
"""

from jaxtie import Corpus, Decoder, Optimizer, TextExperiment
from jaxtie.text.claims import TextClaim

STEPS = 40_000
OTHERS = "tying-at-scale-one-rate: "

experiment = TextExperiment(
    name="tying-at-scale-equal-start",
    claim="An untied decoder whose tables start equal gains two thirds of the tied one's lead.",
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
    arms=("untied+learned-scale@400",),
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

claims = (
    TextClaim(
        "Tables that start equal gain at least two thirds of what tying gains.",
        "validation loss",
        {
            f"{OTHERS}untied+learned-scale": 1 / 3,
            f"{OTHERS}tied+learned-scale": 2 / 3,
            "untied+learned-scale@400": -1,
        },
        low=0,
    ),
)
