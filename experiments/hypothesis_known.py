"""Does tying cost more on texts with synthetic duplicates, allomorphs or antonyms?

Claim: the price of one table that two untied models predict, G, ranks data sets as their measured
costs do, and a rule on it regrets less than any other rule does.

What was measured, on 24 data sets, is in experiments/data/hypothesis-known-losses.csv and
hypothesis-known-prices.csv. A version of the project before this file last changed trained and
judged it: commit 23a757e has the code, the plans of the sources and the predictions that were
written down before the run. G is no longer computed.

Below are the models that were trained on each data set, of the narrower of two widths (12 and 24).
They train on any text; of a sampled one, write it first, in tests/helpers:

    from pathlib import Path
    from synthetic import Plan, make_source, write_sampled_text

    plan = Plan(pairs=(0, 0, 0, 64), plain=95, homograph=False, aligned=True, seed=4)  # 64 antonyms
    write_sampled_text(Path("known"), make_source(plan), sentences=24_000, length=64)

Then:

    jaxtie run hypothesis_known \\
        --text known/known.txt --vocab known/vocab.txt

Results: results/hypothesis-known.md.
Time: a few minutes of one core.
"""

from jaxtie import Corpus, Optimizer, TextExperiment, Transformer

STEPS = 1_000

experiment = TextExperiment(
    name="hypothesis-known",
    claim="The price of one table that two untied models predict goes with what one table costs.",
    objective="causal",
    corpus=Corpus(split_key="bytes", form="sentences"),
    model=Transformer(layers=1, heads=2, width=12, feedforward=48),
    init_std=0.02,
    optimizer=Optimizer(learning_rate=1e-2, weight_decay=0.01, half_period=STEPS),
    arms=("tied", "tied+bias", "untied", "untied@1/2"),
    steps=STEPS,
    seeds=range(8),
    record_every=50,
    eval_every=100,
    eval_batches=64,
    batch=16,
    length=32,
    words=8,
    duplicates=False,
)
