"""A blind test of the instrument: what is planted in sources that nobody looked at, is it told, and is nothing else?

Claim: of each class at least 90 % is told at the strongest strength, with at most 5 % of neighbours taken for one; both kinds
of duplicates have an AUC of at least 0.95 against neighbours; of their 95 % intervals of S² and of C², 90 to 98 % cover 0.

    python -m jaxtie.hypothesis experiments/hypothesis_classes.py --out runs/hypothesis-classes

Nine sources of 256 to 260 tokens (jaxtie/hypothesis/sources.py), of seeds that nothing else has: five with all classes at the
strongest strength, as `--known` has them; one each at a medium and at a weak one; one in which nothing is planted; one of
words that obey the hypothesis, with fair and skewed duplicates, where it should be said to hold. Texts are as long as that of
`--known`, the two models as large; they are trained for 2,000 steps instead of 4,000.

Rule, lines and intervals are those that were committed before: near below 0.1 of unrelated pairs, skewed above |m| = ln 3,
intervals by `judgement.measured_pairs`. Counted are, of each source and kind, how many pairs are told to be what, how many
intervals cover the exact value (0, of duplicates), areas under the curve; and what is said of the hypothesis. All sources
count. A share has an interval that is the wider one, at each end, of Clopper and Pearson's over pairs and of Student's t over
sources. A claim holds if its interval lies wholly within its bounds, fails if wholly beyond one, else is undecided. Looked at
beside the claims: how S and C grow with strength against the exact values; whether the variance of S tells the homograph
(AUC); what is said where nothing is planted, and where the hypothesis holds. If intervals of skewed duplicates cover too
seldom, others will be made by means of other sources, and counted on these here besides; that will be said.
Results: jaxtie/hypothesis/README.md.
Time: about half an hour of one core. Killed, it goes on by the same command.
"""

import dataclasses

from jaxtie.hypothesis.blind import BlindSource, BlindTest
from jaxtie.hypothesis.sources import Plan
from jaxtie.text.declaration import Corpus
from jaxtie.text.two_models import two_models

STEPS = 2_000
strong = Plan()
medium = Plan(skew=0.2, follow=0.8, permuted=0.5, apart=0.3)
weak = Plan(skew=0.3, follow=0.5, permuted=0.25, apart=0.2)
nothing = Plan(pairs=(0, 0, 0, 0), near=0, plain=255, homograph=False)
obeying = Plan(pairs=(32, 32, 0, 0), near=0, plain=127, homograph=False, aligned=True)


def source(group: str, plan: Plan, seed: int) -> BlindSource:
    """A source of its own seed."""
    return BlindSource(f"{group}-{seed}", group, plan._replace(seed=seed))


benchmark = BlindTest(
    sources=(
        source("strong", strong, 1101),
        source("nothing", nothing, 1401),
        source("obeying", obeying, 1501),
        source("medium", medium, 1201),
        source("weak", weak, 1301),
        source("strong", strong, 1102),
        source("strong", strong, 1103),
        source("strong", strong, 1104),
        source("strong", strong, 1105),
    ),
    strongest="strong",
    steps=STEPS,
    sentences=60_000,
    length=32,
)
# Of the two models that are trained on each source, the first; its text is the source's.
experiment = dataclasses.replace(
    two_models(Corpus(), benchmark.size, STEPS)[0],
    name="hypothesis-classes",
    claim="What is planted in a source is told by what two models say, and little else is taken for it.",
)
