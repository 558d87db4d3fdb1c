"""What does tying cost a decoder that sees ten million tokens once?

Width 128, four layers, a byte-level BPE of 4,096 entries; source code and documentation of 100
Python packages (`data/packages.csv`), split by package, files that are near-duplicates left out.
Training sees 10.2 of its 10.3 million tokens once, in an order that all arms of a seed share. The
recipe is that of `text_recipe.md`: a learned scale of the logits, and for tied and untied each its
best learning rate at width 128, found on books with as many tokens a batch. So the untied arm has a
file of its own, `tying_at_scale_untied.py`. It is trained first: one seed of it must be 0.1 nat
below the counts of up to four tokens (interpolated Kneser-Ney) before anything else is; if not, the
model is too small for the text, and nothing is claimed. That seed is kept.

    python experiments/lab/packages.py packages/
    jaxtie run tying_at_scale_untied --text packages/
    jaxtie run tying_at_scale --text packages/

The other arm here is untied for the last third of training. `tying_at_scale_between.py` has
half-swap, and an output row of its own for each token of the rarer half; all these arms have the
tied model's rate. `tying_at_scale_deeper.py` has as many parameters as the untied model,
`tying_at_scale_operations.py` also as many operations; the claims about these five stand in
`tying_at_scale_deeper.py`.

One claim is judged here, at 95 % (Student's t, five seeds, loss at the last step): tied and untied
differ by less than 0.02 nat a token. It holds if the interval of tied − untied lies within ±0.02,
fails if it lies wholly outside, and is inconclusive if it contains one of the bounds. Idea and
bound are ours; the bound is not derived from data.

Found, one untied seed: 3.772 nat (1.748 bits per byte), counts of up to four tokens 4.352.

Found, seed 0: tied 3.272, 0.500 below the untied seed 0, and 3.282 if untied for the last third at
the tied model's rate. So the untied model's rate, 0.004, found on books with fewer steps, is too
high here, and the claims that compare with that file would judge its rate, not tying: its other
seeds are not trained. `tying_at_scale_rates.py` looks for the rate of each arm on this text.

Forecasts of tied − untied, made before any run, by what the project used to predict with (commit
85da66c, from gaps of other sizes and texts, no run on this text): the Gaussian process 0.007
[−0.117, 0.131], the formula of `tying_gap_on_text.py` −0.084 [−0.174, 0.006] (90 % prediction
intervals of one more cell). The recipe of those gaps had no learned scale.
"""

from jaxtie import Corpus, Decoder, Optimizer, TextExperiment
from jaxtie.text.claims import TextClaim

UNTIED = "tying-at-scale-untied: untied+learned-scale"
STEPS = 40_000

experiment = TextExperiment(
    name="tying-at-scale",
    claim="At ten million tokens, tied and untied differ by less than 0.02 nat a token.",
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
    arms=("tied+learned-scale", "untied+learned-scale@2/3"),
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
        "Tied and untied differ by less than 0.02 nat a token.",
        "validation loss",
        {"tied+learned-scale": 1, UNTIED: -1},
        -0.02,
        0.02,
    ),
)
