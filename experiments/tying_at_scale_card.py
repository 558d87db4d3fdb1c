"""What does tying cost a decoder that sees ninety million tokens once? Planned for a GPU, not run.

Width 256, six layers, a byte-level BPE of 8,192 entries; source code and documentation of the Linux
kernel, split by folder (drivers/net), files that are near-duplicates left out. Training is to see
90.1 million tokens once, in batches of 64 rows of 256 tokens, in an order that arms of a seed
share.

    python experiments/lab/card_text.py source linux-6.12.tar.xz text/
    python experiments/lab/card_text.py pack text/ bundle/       # for a machine without a network:
    python experiments/lab/card_text.py unpack bundle/ text/     # there
    jaxtie run tying_at_scale_card --text text/

As `tying_at_scale.py`, at twice the width, on nine times the text, in larger batches. Two arms,
five paired seeds; each member takes half a minute if the GPU makes three million tokens a second. A
run that is stopped goes on from its last checkpoint. The learning rate is not tuned: it is that of
the tied model of width 128, for both arms.
"""

from jaxtie import Corpus, Decoder, Optimizer, TextExperiment
from jaxtie.text.claims import TextClaim

STEPS = 5_500

experiment = TextExperiment(
    name="tying-at-scale-card",
    claim="At ninety million tokens, tied and untied differ by less than 0.02 nat a token.",
    objective="causal",
    corpus=Corpus(vocab_size=8_192),
    model=Decoder(layers=6, heads=8, width=256),
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
    arms=("tied+learned-scale", "untied+learned-scale"),
    steps=STEPS,
    seeds=range(5),
    record_every=100,
    eval_every=1_100,
    eval_batches=40,
    batch=64,
    length=256,
    words=8,
    duplicates=False,
)

claims = (
    TextClaim(
        "Tied and untied differ by less than 0.02 nat a token.",
        "validation loss",
        {"tied+learned-scale": 1, "untied+learned-scale": -1},
        -0.02,
        0.02,
    ),
)
