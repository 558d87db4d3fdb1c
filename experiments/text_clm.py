"""A small causal language model of any text: perplexity tied, untied and untied midway, at equal tokens.

Claims to test: tied, fewer parameters give the same or a lower perplexity; untying midway changes next to nothing.

    python -m jaxtie.run experiments/text_clm.py --text PATH

A size for two cores: nine members, 5.1 million tokens each. The learning rate falls over the whole run. Tables start at a
deviation of 0.02: with the 0.3 of the masked model a fresh tied one would start at a loss of about 0.3 times the width, 19.

Seen on 17 Gutenberg books, perplexity, mean and 95 % confidence interval over three seeds (more: experiments/RESULTS.md):
tied 99.2 ± 0.6, untied 94.5 ± 1.0, untied midway 97.5 ± 0.5: at this size neither claim holds.
Time: 42 min on two cores of an AMD EPYC.
"""

from jaxtie import Optimiser, TextExperiment, Transformer

experiment = TextExperiment(
    name="text-clm",
    claim="Tied, fewer parameters give the same or a lower perplexity; untying midway changes next to nothing.",
    task="causal",
    model=Transformer(layers=2, heads=4, width=64, feedforward=256),
    deviation=0.02,
    optimiser=Optimiser(learning_rate=1e-3, weight_decay=0.01, half_period=5_000),
    arms=("tied", "untied", "untied@2500"),
    steps=5_000,
    seeds=(0, 1, 2),
    batch=16,
    length=64,
    duplicates=False,
)
