"""Which learning rate does the untied decoder of ten million tokens need on its own text?

In `tying_at_scale.py` the untied model had a rate found on books, with fewer steps, and ended 0.5
nat above the tied one. Here it has three rates, a factor √2 apart, for the whole run, seed 0. The
tied model at the middle one, 0.002, is known: 3.272. `tying_at_scale_rates_tied.py` has it at the
two others.

    jaxtie run tying_at_scale_rates --text packages/
    jaxtie run tying_at_scale_rates_tied --text packages/

The rule, set before any of these runs: an arm's rate is the one with the lowest validation loss at
the last step; if that is an end of the grid, the grid goes on by another √2 in that direction.
Seeds 1 to 4 then judge tied − untied, each arm at its rate, by the claim and the bound of
`tying_at_scale.py`: within ±0.02 nat. The deeper model is compared with the same untied seeds. The
one point that was known before is the tied model at 0.002.

Changed afterwards: commit 2622bf5 had both arms in this file. Its tied model was trained at 0.0014
and 0.002, but these runs were lost before their results were kept. The search was then split, the
untied model first.

Found, one untied seed: 3.749 at 0.0014, 3.677 at 0.002, 3.733 at 0.0028
([results](results/tying-at-scale-rates.md)). So by the rule the untied model's rate is 0.002, where
it ends 0.405 above the tied model of the same seed. The other seeds, and the tied model's other
rates, are not trained; one seed decides nothing.
"""

from jaxtie import Corpus, Decoder, Optimizer, TextExperiment

STEPS = 40_000

experiment = TextExperiment(
    name="tying-at-scale-rates",
    claim="At ten million tokens, the untied model has its best learning rate within the grid.",
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
    arms=("untied+learned-scale",),
    sweep={"learning_rate": (1.4e-3, 2e-3, 2.8e-3)},
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
