"""What must come out, in closed form. NumPy only.

A `joint_CxV` is the exact law of one masked position: p(context c and target symbol v), summing to 1 (see
`jaxtie.data.exor.enumerate_contexts`).
"""

import math
from typing import Literal

import numpy as np

Size = float | Literal["sqrt(D)", "1/sqrt(D)", "log(n)/D"]


def size(value: Size, vocabulary: int, width: int) -> float:
    """A number, or what a formula gives for n words and width D. ValueError if there is no such formula."""
    if not isinstance(value, str):
        return value
    formulas = {"sqrt(D)": width**0.5, "1/sqrt(D)": width**-0.5, "log(n)/D": math.log(vocabulary) / width}
    if value not in formulas:
        raise ValueError(f"a size is {value!r}; expected a number or one of {', '.join(formulas)}")
    return formulas[value]


def best_accuracy(joint_CxV: np.ndarray) -> float:
    """The accuracy of always naming the likeliest symbol (Bayes), in [0, 1]."""
    return float(np.sum(np.max(joint_CxV, axis=1)))


def best_loss(joint_CxV: np.ndarray) -> float:
    """The conditional entropy H(target | context), nats: no model has a lower expected cross-entropy."""
    joint = np.asarray(joint_CxV, np.float64)
    context_Cx1 = joint.sum(axis=1, keepdims=True)
    conditional = np.divide(joint, context_Cx1, out=np.ones_like(joint), where=joint > 0)
    return float(-np.sum(joint * np.log(conditional)))


def log_odds(pair: tuple[float, float]) -> float:
    """ln p(second) - ln p(first) of two exchangeable symbols, in every context where they can stand (ln 9 for X-Y).

    So it must be (output_second - output_first)·h for every such hidden state h. NaN where one of them never occurs.
    """
    first, second = pair
    if first == 0 or second == 0:
        return math.nan
    return math.log(second / first)


def initial_loss(
    vocabulary: int, width: int, deviation: float, *, overlap: float = 1, logit_scale: float = 1, corrected: bool = True
) -> float:
    """Cross-entropy of a fresh model that hands every token's embedding, normalised to length √D, to the output table; nats.

    With w ~ N(0, σ²) in D dimensions, the token itself has logit s·overlap·Dσ and every other word N(0, v), v = s²Dσ². The
    simple estimate puts these at 0: log(e^(s·overlap·Dσ) + n - 1), as in kexue.fm/archives/9698. The corrected one keeps
    their spread: log(e^(s·overlap·Dσ) + e^S) with S = log(m) + v/2, m words, while v < 2·log(m), and S = √(2v·log(m)) beyond,
    where the largest of them rules the sum, as in the random energy model (Derrida, 1981).

    Args:
      vocabulary, width, deviation: n, D and σ.
      overlap: the share of coordinates in which the hidden state meets the token's own output row: 1 tied, 0 untied,
        projected or half-swapped (then all n words are alike, and the loss is S).
      logit_scale: s.
    """
    own, others = (logit_scale * overlap * width * deviation, vocabulary - 1) if overlap else (-math.inf, vocabulary)
    log_sum = math.log(others)
    if corrected:
        variance = width * (logit_scale * deviation) ** 2
        log_sum = log_sum + variance / 2 if variance < 2 * log_sum else math.sqrt(2 * variance * log_sum)
    return float(np.logaddexp(own, log_sum))
