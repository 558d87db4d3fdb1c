"""Does a small tied causal model of your text match an untied one at equal tokens?

Claim: tied, fewer parameters give the same or a lower perplexity; untying midway changes next to
nothing.
Found: at this size, where the tables are most of the model, two tables are a little better; both
fail.

    jaxtie run text_clm --text PATH

A size for two cores: nine members. The learning rate falls over the whole run. Tables start at a
standard deviation of 0.02: with the 0.3 of the masked model a fresh tied one would start at a loss
of about 0.3 times the width, 19. Found on seventeen books of Project Gutenberg, as sentences
with a WordPiece vocabulary; no results are committed.
Time: 42 min on two cores of an AMD EPYC.
"""

from jaxtie import Optimizer, TextExperiment, Transformer

experiment = TextExperiment(
    name="text-clm",
    claim=(
        "Tied, fewer parameters give the same or a lower perplexity; untying midway "
        "changes next to nothing."
    ),
    objective="causal",
    model=Transformer(layers=2, heads=4, width=64, feedforward=256),
    init_std=0.02,
    optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.01, half_period=5_000),
    arms=("tied", "untied", "untied@1/2"),
    steps=5_000,
    seeds=(0, 1, 2),
    batch=16,
    length=64,
    duplicates=False,
)
