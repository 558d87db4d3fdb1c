"""What the lines of the verdict say of sources whose law is known: all pairs of tokens, exact. NumPy only.

In a source that obeys the hypothesis, words that are followed alike also follow alike. Of those that are near in one sense,
all but those near the line should then be near in the other; where the two have nothing to do with each other, or something
is planted that breaks it, they should not. No model is trained, so this is what lines do, and not what models add.

Shapes: V tokens but the beginning, C contexts, P pairs.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxtie.hypothesis import judgement
from jaxtie.hypothesis.sources import Plan, left_contexts, planted
from jaxtie.results.tables import Table

FIRST = 33  # places of a sentence, in the first of which contexts are
CALIBRATED_ON = (2001, 2002, 2003)  # which no other source has
NOTHING, CLASSES_PLANTED = (0, 0, 0, 0), (16, 16, 16, 16)
KINDS_OF_SOURCE = {
    "obey; duplicates planted": Plan((32, 32, 0, 0), near=0, plain=127, homograph=False, aligned=True),
    "obey but for allomorphs and antonyms": Plan(CLASSES_PLANTED, near=0, plain=127, homograph=False, aligned=True),
    "no relation; nothing planted": Plan(NOTHING, near=0, plain=255, homograph=False),
}


class ExactPairs(NamedTuple):
    """All pairs of a source: S² and C²."""

    semantic_P: np.ndarray
    conditional_P: np.ndarray


def every_pair(plan: Plan) -> ExactPairs:
    """Of a source without a homograph: S² is all at distance 1, and the same in every context."""
    source = planted(plan)
    contexts = left_contexts(source, FIRST)
    root_VxV = np.sqrt(source.transition_NxN[1:, 1:])
    semantic_VxV = 1 - root_VxV @ root_VxV.T
    next_CxV = contexts.next_CxV[:, 1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        log_CxV = np.log(next_CxV)
        occurs_CxV = contexts.weight_C[:, None] * next_CxV
        occurs_CxV /= occurs_CxV.sum(axis=0)
        conditional_VxV = np.array([_conditional_with(log_CxV, occurs_CxV, token) for token in range(next_CxV.shape[1])])
    pairs = np.triu_indices(len(semantic_VxV), 1)
    return ExactPairs(semantic_VxV[pairs], conditional_VxV[pairs])


def _conditional_with(log_CxV: np.ndarray, occurs_CxV: np.ndarray, token: int) -> np.ndarray:
    """C² of one token with every token, as many occurrences of each; (V,)."""
    weight_CxV = (occurs_CxV + occurs_CxV[:, [token]]) / 2
    ratio_CxV = np.where(weight_CxV > 0, log_CxV - log_CxV[:, [token]], 0)
    return np.sum(weight_CxV * ratio_CxV**2, axis=0) - np.sum(weight_CxV * ratio_CxV, axis=0) ** 2


def shares_of(pairs: ExactPairs, *, bounded: bool, beside: float) -> tuple[float, float, int, int]:
    """Of the pairs near in S the share below `beside` in C, and the other way round; and how many are near in S and in C."""
    there_P = np.isfinite(pairs.conditional_P)
    far_S, far_C = pairs.semantic_P[there_P], pairs.conditional_P[there_P]
    far_C = judgement.bounded(far_C) if bounded else far_C
    far_S, far_C = far_S / np.median(far_S), far_C / np.median(far_C)
    near_S, near_C = far_S < judgement.NEAR, far_C < judgement.NEAR
    return (
        float(np.mean(far_C[near_S] < beside)),
        float(np.mean(far_S[near_C] < beside)),
        int(near_S.sum()),
        int(near_C.sum()),
    )


def _rows() -> Iterator[tuple[str, ...]]:
    rules = ((False, judgement.NEAR), (True, judgement.NEAR), (True, judgement.BESIDE))
    for kind, plan in KINDS_OF_SOURCE.items():
        exact = [every_pair(plan._replace(seed=seed)) for seed in CALIBRATED_ON]
        cells = []
        for bounded, beside in rules:
            found = np.array([shares_of(pairs, bounded=bounded, beside=beside) for pairs in exact])
            for share_N, number_N in (found[:, [0, 2]].T, found[:, [1, 3]].T):
                cells.append(f"{share_N.min():.0%} to {share_N.max():.0%} of {number_N.mean():.0f}")
        yield kind, *cells


def lines_table() -> Table:
    """Shares in sources that obey the hypothesis and in others, by each rule."""
    rules = ("C² as it is, near", "bounded, near", f"bounded, below {judgement.BESIDE:g}")
    header = ("words", *(f"{rule}: {way}" for rule in rules for way in ("S → C", "C → S")))
    note = (
        f"Of pairs below {judgement.NEAR:g} in one sense the share that is below {judgement.NEAR:g}, or "
        f"{judgement.BESIDE:g}, in the other; all pairs, exact; lowest and highest of {len(CALIBRATED_ON)} sources, and how "
        "many pairs are near, on the mean. Bounded: 1 − exp(−C²/8) in the place of C²."
    )
    return Table("What lines say of exact values", header, list(_rows()), note)
