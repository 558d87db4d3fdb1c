"""The loss of a fresh tied model, and what brings it down to log n.

Claim: a fresh deep network hands on the normalised embedding of its token, which, tied, meets itself in the output table:
the loss starts near Dσ, far above log n. (From kexue.fm/archives/9698.)
"""

from jaxtie.initial_loss import InitialLoss

experiment = InitialLoss()
