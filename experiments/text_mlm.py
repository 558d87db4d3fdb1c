"""The paper's second experiment: a masked language model of any text, in which frequent words have a duplicate.

Claim: half of the occurrences of each of the 100 most frequent words, drawn afresh at each step, are its duplicate instead.
So the two are equivalent, semantically and conditionally, and draw together in every table; pairs of different words do not.

    python -m jaxtie.run experiments/text_mlm.py --text PATH

Seen on 17 Gutenberg books, change of distance less that of random pairs, mean and 95 % confidence interval over pairs
(more: experiments/RESULTS.md): tied -0.001 ± 0.009, untied input -0.020 ± 0.015, output -0.014 ± 0.010, of 4.8: hardly begun.
Time: 67 min on two cores of an AMD EPYC while the machine had other work.
"""

from jaxtie import TextExperiment

experiment = TextExperiment(
    name="text-mlm",
    claim="A word and its duplicate draw together in every table; other pairs of words do not.",
)
