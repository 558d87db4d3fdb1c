"""The paper's second experiment: a masked language model of any text, in which frequent words have a duplicate.

Claim: half of the occurrences of each of the 100 most frequent words, drawn afresh at each step, are its duplicate instead.
So the two are equivalent, semantically and conditionally, and draw together in every table; pairs of different words do not.

    python -m jaxtie.run experiments/text_mlm.py --text PATH
"""

from jaxtie import TextExperiment

experiment = TextExperiment(
    name="text-mlm",
    claim="A word and its duplicate draw together in every table; other pairs of words do not.",
)
