"""Do frequent words and their duplicates draw together? The paper's second experiment, masked text.

Claim: half of the occurrences of each of the 100 most frequent words, drawn afresh at each step,
are its duplicate instead. So the two are equivalent, semantically and conditionally, and draw
together in every table; pairs of different words do not.
Found: pairs of different words do, too, but less.

    jaxtie run text_mlm --text PATH

Found on seventeen books of Project Gutenberg; no results are committed.
Time: 67 min on two cores of an AMD EPYC while the machine had other work.
"""

from jaxtie import TextExperiment

experiment = TextExperiment(
    name="text-mlm",
    claim="A word and its duplicate draw together in every table; other pairs of words do not.",
)
