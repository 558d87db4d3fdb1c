"""What a fresh model's loss is to be, before any is made: closed forms. NumPy only.

A fresh deep network with small residual branches hands on what it is given: the hidden state is the
token's embedding, normalised. Tied, it then meets its own row of the output table, and the model
all but names its input as the next word.
"""

import math

import numpy as np

from jaxtie.config import Head, Size, size


def initial_loss(
    vocabulary: int,
    width: int,
    init_std: float,
    *,
    overlap: float = 1,
    logit_scale: float = 1,
    corrected: bool = True,
) -> float:
    """Cross-entropy of a fresh model that hands every token's embedding, normalised to length √D,
    to the output table; nats.

    With w ~ N(0, σ²) in D dimensions, the token itself has logit s·overlap·Dσ and every other word
    N(0, v), v = s²Dσ². The
    simple estimate puts these at 0: log(e^(s·overlap·Dσ) + n - 1), as in kexue.fm/archives/9698.
    The corrected one keeps
    their spread: log(e^(s·overlap·Dσ) + e^S) with S = log(m) + v/2, m words, while v < 2·log(m),
    and S = √(2v·log(m)) beyond, where the largest of them rules the sum, as in the random energy
    model (Derrida, 1981).

    Args:
      vocabulary, width, init_std: n, D and σ.
      overlap: the share of coordinates in which the hidden state meets the token's own output row,
        see `overlap_of`. Where it is 0, all n words are alike, and the loss is S.
      logit_scale: s.
    """
    own, others = (
        (logit_scale * overlap * width * init_std, vocabulary - 1)
        if overlap
        else (-math.inf, vocabulary)
    )
    log_sum = math.log(others)
    if corrected:
        variance = width * (logit_scale * init_std) ** 2
        log_sum = (
            log_sum + variance / 2 if variance < 2 * log_sum else math.sqrt(2 * variance * log_sum)
        )
    return float(np.logaddexp(own, log_sum))


def overlap_of(head: Head, width: int, *, tied: bool) -> float:
    """The share of coordinates in which a token's hidden state meets the token's own row of the
    output table, in [0, 1].

    1 for a tied model, less what the head's transform moves away: a channel shuffle leaves 1 +
    gcd(groups - 1, D - 1) coordinates where they are, see
    `jaxtie.tying.head.channel_shuffle`; any other transform leaves none.
    """
    if not tied:
        return 0.0
    if head.transform is None:
        return 1.0
    return (
        (1 + math.gcd(head.groups - 1, width - 1)) / width if head.transform == "shuffle" else 0.0
    )


def estimate(
    head: Head, *, tied: bool, vocabulary: int, width: int, init_std: Size, corrected: bool = True
) -> float:
    """What `initial_loss` says of a fresh model with this head, nats; NaN with a logit softcap or
    some rows apart, of which it knows nothing.

    Args:
      tied: at the start.
      vocabulary, width: n and D.
      init_std: of the tables, where the head names none; a number or a formula.
      corrected: see `initial_loss`.
    """
    if head.logit_softcap is not None or head.row_sets:
        return math.nan
    own_std = size(init_std if head.init_std is None else head.init_std, vocabulary, width)
    scale = 1.0 if head.logit_scale is None else size(head.logit_scale, vocabulary, width)
    overlap = overlap_of(head, width, tied=tied)
    return initial_loss(
        vocabulary, width, own_std, overlap=overlap, logit_scale=scale, corrected=corrected
    )
