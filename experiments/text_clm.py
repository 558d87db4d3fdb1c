"""A small causal language model of any text: perplexity tied, untied and untied midway, at equal tokens.

Claims to test: tied, fewer parameters give the same or a lower perplexity; untying midway changes next to nothing.

    python -m jaxtie.run experiments/text_clm.py --text PATH

The learning rate falls over the whole run. Tables start at a deviation of 0.02: with the 0.3 of the masked model a fresh tied
one would start at a loss of about 0.3 times the width, 38 nat.
"""

from jaxtie import Optimiser, TextExperiment

experiment = TextExperiment(
    name="text-clm",
    claim="Tied, fewer parameters give the same or a lower perplexity; untying midway changes next to nothing.",
    task="causal",
    deviation=0.02,
    optimiser=Optimiser(learning_rate=1e-3, weight_decay=0.01),
    arms=("tied", "untied", "untied@5000"),
    seeds=(0, 1, 2),
    duplicates=False,
)
