"""The loss of a fresh tied model, what brings it down to log n, and how well it can be told beforehand.

Claim: a fresh deep network hands on the normalised embedding of its token, which, tied, meets itself in the output table:
the loss starts near Dσ, far above log n; each of five remedies brings it down to about log n. (From kexue.fm/archives/9698.)

    python -m jaxtie.run experiments/initial_loss.py

Nothing is trained. n is 100 to 100,000, D 16 to 2048, σ each of 0.02, 1, 1/√D and (log n)/D; 8 seeds of 256 tokens each.
Results, and where the estimates fail: README.md.
Time: 8 min 12 s on two cores of an AMD EPYC that others used too; 0.7 GB of memory.
"""

from jaxtie import InitialLoss

experiment = InitialLoss(claim="A fresh tied model starts near Dσ, far above log n; five remedies bring it down.")
