"""Estimate the loss of a fresh model in closed form. NumPy only.

A fresh deep network with small residual branches passes its input on: the hidden state is the
token's embedding, normalised. If the embeddings are tied, it is close to the token's own row of the
output table, so the model predicts its input as the next word.
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
    """Return the cross-entropy, in nats, if hidden states are embeddings normalised to length √D.

    With n = vocabulary, D = width, σ = init_std and s = logit_scale, the token itself has logit
    s·overlap·Dσ and every other word N(0, v), v = s²Dσ². The simple estimate puts these at 0:
    log(e^(s·overlap·Dσ) + n - 1), as in kexue.fm/archives/9698. The corrected one keeps their
    spread: log(e^(s·overlap·Dσ) + e^S) with S = log(m) + v/2, m words, while v < 2·log(m), and
    S = √(2v·log(m)) beyond, where the largest logit dominates the sum, as in the random energy
    model (Derrida, 1981). If `overlap` (see `overlap_of`) is 0, all n words are alike, and the
    loss is S.
    """
    own, others = -math.inf, vocabulary
    if overlap:
        own, others = logit_scale * overlap * width * init_std, vocabulary - 1
    log_sum = math.log(others)
    if corrected:
        variance = width * (logit_scale * init_std) ** 2
        log_sum = (
            log_sum + variance / 2 if variance < 2 * log_sum else math.sqrt(2 * variance * log_sum)
        )
    return float(np.logaddexp(own, log_sum))


def overlap_of(head: Head, width: int, *, tied: bool) -> float:
    """Return the share of coordinates of a hidden state that meet their own in the output row.

    It is 0 for an untied model and 1 for a tied one, unless a transform moves coordinates: a
    channel shuffle leaves 1 + gcd(groups - 1, D - 1) where they are, any other transform none.
    """
    if tied and head.transform == "shuffle":
        return (1 + math.gcd(head.groups - 1, width - 1)) / width
    return float(tied and head.transform is None)


def estimate(
    head: Head, *, tied: bool, vocabulary: int, width: int, init_std: Size, corrected: bool = True
) -> float:
    """Return `initial_loss` for a fresh model with this head, in nats.

    NaN with a logit softcap or sets of rows, which the estimate does not cover. `tied`: at the
    start; `init_std`: a number or a formula, used unless the head sets its own.
    """
    if head.logit_softcap is not None or head.row_sets:
        return math.nan
    own_std = size(init_std if head.init_std is None else head.init_std, vocabulary, width)
    scale = 1.0 if head.logit_scale is None else size(head.logit_scale, vocabulary, width)
    overlap = overlap_of(head, width, tied=tied)
    return initial_loss(
        vocabulary, width, own_std, overlap=overlap, logit_scale=scale, corrected=corrected
    )
