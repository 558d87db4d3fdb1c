"""A blind test: what is planted in sources that nobody looked at, is it told, and is nothing else?

Claim: of each class at least 90 % is told at the strongest strength, with at most 5 % of neighbours
taken for one; both kinds of duplicates have an AUC of at least 0.95 against neighbours; of their 95
% intervals of S² and of C², 90 to 98 % cover 0.

What was measured is in experiments/data/hypothesis-classes-kinds.csv and
hypothesis-classes-answers.csv. A version of the project before this file last changed trained and
counted it: commit 23a757e has the code and the nine sources. They had 256 to 260 tokens each, a
text of 60,000 sentences of 32 tokens, and two models, trained for 2,000 steps.

Below is the first of the two models that were trained on each source, and nothing of the test. It
trains on one half of any text; `jaxtie advise --text PATH --pairs` trains both
and compares what they say.

    jaxtie run hypothesis_classes --text PATH

Results: jaxtie/advise/README.md.
Time: a few minutes of one core.
"""

import dataclasses

from jaxtie.advise.models import declare_models
from jaxtie.text.config import Corpus

experiment = dataclasses.replace(
    declare_models(Corpus(split_key="bytes", form="sentences"), "small", 2_000)[0],
    name="hypothesis-classes",
    claim=(
        "What is planted in a source is told by what two models say, and little else is taken"
        " for it."
    ),
)
