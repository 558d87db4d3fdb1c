"""Does tying cost more, the further the hypothesis fails? p(X) from 0.5, where it holds, to 0.01.

Claim: tied, X and Y are held apart by as much as ln(p(Y)/p(X)), their log-odds, and the loss that
costs grows with it; untied they meet in the input embedding whatever the odds.
Found: the longer the odds, the further apart X and Y are in the output embedding and, by about half
as much, in the tied one; in the input embedding they shrink at all odds. Tying costs no more.

    jaxtie run skewed_zeros

All values and seeds are members of one compiled program an arm; the best reachable loss is each
one's own.
Results: results/skewed-zeros.md.
Time: 15 min on one core of an AMD EPYC while the machine had other work.
"""

from jaxtie import Experiment

SHARES = [99 ** (k / 11) for k in range(12)]  # p(Y)/p(X), its logarithms evenly spaced

experiment = Experiment(
    name="skewed-zeros",
    claim="The further p(X) is from p(Y), the more tying costs.",
    sweep=(("p_X", tuple(round(1 / (1 + share), 4) for share in SHARES)),),
    seeds=tuple(range(16)),
    record_every=1_000,
    eval_every=5_000,
)
