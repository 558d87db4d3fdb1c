"""Does one length for both roles cost anything on causal text, where a token is only ever read?

Of the tokens that the model reads, 15 % are [MASK] instead, drawn anew at each step: often an
input, never a target. Untied, its row can be short as an input and long as an output. What is of
interest is its length by role, and the tying gap with and without a learned factor for its output
row, and with an output row of its own. Nothing is claimed.

    jaxtie run norm_conflict_causal --text PATH

Time: 15 minutes on two cores.

Found: untied, the row is about five times as long as an output; a factor or an output row of its
own changes the tied loss by less than 0.03.
"""

from jaxtie import Corpus, Decoder, Optimizer, TextExperiment

STEPS = 3_000

experiment = TextExperiment(
    name="norm-conflict-causal",
    claim="Does one length for both roles of a token that is only read cost anything on text?",
    objective="causal",
    corpus=Corpus(vocab_size=2_048, form="sentences"),
    model=Decoder(layers=2, heads=2, width=64),
    init_std=0.02,
    optimizer=Optimizer(
        learning_rate=4e-3,
        eta_min=0.0,
        half_period=STEPS,
        warmup=300,
        weight_decay=0.1,
        b2=0.99,
        eps=1e-8,
    ),
    arms=("tied", "untied", "tied+untie-rows=mask", "tied+gain=mask"),
    steps=STEPS,
    seeds=(0, 1, 2),
    record_every=30,
    eval_every=300,
    eval_batches=200,
    batch=8,
    length=64,
    words=8,
    duplicates=False,
    blanks=0.15,
    mask_norms=True,
)
