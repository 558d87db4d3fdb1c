"""Does the tying gap on text depend on the width: without an output bias, with one, untied halfway?

Claim: the price of one table falls with the width; an output bias takes part of it off.

What was measured is in experiments/data/price-of-tying-grid-losses.csv and
price-of-tying-grid-rates.csv. A version of the project before this file last changed trained and
judged it: commit 23a757e has code, figure, the claims that were written down before the run,
and the history of what was changed during it. Eight points were measured, vocabularies of 2,048 and
8,192 entries by widths 32, 64, 128 and 256; each arm had its own learning rate at each point, of
three or four, and wider tied models with as many parameters as the untied one were trained, too.

Found: at equal width it falls from width 32 to 256, where wider models also see fewer tokens per
parameter; an output bias takes next to nothing off. The untied model has 1.40 to 1.95 times the
parameters. Relative to a wider tied model of as many parameters, untied is better at vocabulary
2,048 and width 32 and worse at 8,192; that model at as many operations is worse at all eight
points.

Below is the narrowest model alone, all arms at one learning rate:

    jaxtie run price_of_tying --text PATH

Results: results/price-of-tying.md.
Time: ten minutes of two cores.
"""

from jaxtie import Corpus, Optimizer, TextExperiment, Transformer

STEPS = 1_200

experiment = TextExperiment(
    name="price-of-tying",
    claim=(
        "The price of one table on text falls with the width, and an output bias takes "
        "part of it off."
    ),
    objective="causal",
    corpus=Corpus(split_key="bytes", form="sentences"),
    model=Transformer(layers=1, heads=2, width=32, feedforward=128),
    init_std=0.02,
    optimizer=Optimizer(learning_rate=5e-3, weight_decay=0.01, half_period=STEPS),
    arms=("tied", "tied+bias", "untied", "untied@1/2"),
    steps=STEPS,
    seeds=range(5),
    record_every=20,
    eval_every=STEPS,
    eval_batches=100,
    batch=8,
    length=64,
    words=8,
    duplicates=False,
)
