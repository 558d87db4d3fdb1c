"""The loss of a fresh tied model, what brings it down to log n, and how well it can be told beforehand.

Claim: a fresh deep network hands on the normalised embedding of its token, which, tied, meets itself in the output table:
the loss starts near Dσ, far above log n. (From kexue.fm/archives/9698.)

    python -m jaxtie.run experiments/initial_loss.py

Over n 100 to 100,000, D 16 to 2048, σ in {0.02, 1, 1/√D, (log n)/D}; 8 seeds of 256 tokens each. Expected:
  corrected estimate  within 1.4 % wherever Dσ² <= 1; tied within 2.2 % everywhere
  simple estimate     within 6.4 % tied and 10.3 % of the others wherever Dσ² <= 1
  D 512, n 10,000, σ 1/√D (log n is 9.21)
                      tied 22.62 ± 0.09, logits / √D 9.21, half swap, channel shuffle, projection, untied 9.67 to 9.75
Where they fail:
  simple      leaves out that the logits of the other words, N(0, Dσ²), add Dσ²/2 to the loss: 0.5 at σ 1/√D, 10 % of
              log 100; tied it matters while (log n)/D or so keeps the token's own logit from ruling. With σ 1 it says log n
              for a loss of up to 200 nat (-96 %).
  corrected   where the largest of n logits rules, it takes it for √(2·log n) deviations above the mean, which is only the
              leading term: the largest of 100 normal numbers has 2.51 on average, not 3.03, of 100,000 4.4, not 4.8. So with
              σ 1 it is up to 24 % (n 100) or 10 % (n 100,000) above what untied, projected or shuffled models start at.
Time: 8 min 12 s on two cores that others used too; 0.7 GB of memory.
"""

from jaxtie import InitialLoss

experiment = InitialLoss(claim="A fresh tied model starts near Dσ, far above log n; five remedies bring it down.")
