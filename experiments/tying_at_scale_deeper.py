"""Is a deeper tied model better than an untied one with as many parameters? Ten million tokens.

Six layers of feed-forward width 426 instead of four of 384: 1,900,672 parameters; the untied model
of four layers has 1,901,696. Its learning rate is that of the tied model.

    jaxtie run tying_at_scale_deeper --text packages/

The five claims about all other arms stand here and hold together at 95 % (Bonferroni). Their bounds
are ours. The two about a part of the gap mean something only where the gap at equal width is shown
to be above 0; if it is not, they are not counted.
"""

from jaxtie import Corpus, Decoder, Optimizer, TextExperiment
from jaxtie.text.claims import TextClaim

EQUAL_WIDTH, BETWEEN = "tying-at-scale: ", "tying-at-scale-between: "
UNTIED = "tying-at-scale-untied: untied+learned-scale"
TIED = f"{EQUAL_WIDTH}tied+learned-scale"
STEPS = 40_000

experiment = TextExperiment(
    name="tying-at-scale-deeper",
    claim="At equal parameters, a deeper tied decoder has a lower loss than an untied one.",
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
    eval_every=8_000,
    eval_batches=800,
    batch=2,
    length=128,
    words=8,
    duplicates=False,
)

claims = (
    TextClaim(
        "At equal parameters, the deeper tied model has a lower loss than the untied one.",
        "validation loss",
        {"tied+learned-scale": 1, UNTIED: -1},
        high=0,
    ),
    TextClaim(
        "At equal parameters and operations, it has a higher loss.",
        "validation loss",
        {"tying-at-scale-operations: tied+learned-scale": 1, UNTIED: -1},
        low=0,
    ),
    TextClaim(
        "Untied for the last third of the steps, it gains at least two thirds of the gap.",
        "validation loss",
        {TIED: 1 / 3, UNTIED: 2 / 3, f"{EQUAL_WIDTH}untied+learned-scale@26800": -1},
        low=0,
    ),
    TextClaim(
        "Half-swap lowers the loss of the tied model.",
        "validation loss",
        {f"{BETWEEN}tied+half-swap+learned-scale": 1, TIED: -1},
        high=0,
    ),
    TextClaim(
        "Own output rows for the rarer half of the tokens gain at least two thirds of the gap.",
        "validation loss",
        {TIED: 1 / 3, UNTIED: 2 / 3, f"{BETWEEN}tied+untie-rows=rarer-half+learned-scale": -1},
        low=0,
    ),
)
