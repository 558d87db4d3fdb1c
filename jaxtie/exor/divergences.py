"""How far the symbols of EXor are from equivalent, in the measures of `jaxtie.advise`, exact:
by enumeration.

What two trained models are asked of a text, the law itself is asked of the process: as many
occurrences of either symbol of a pair, and what the law says there of the other one.

Shapes: C contexts, L tokens, V symbols.
"""

import itertools

import numpy as np
import xarray as xr

from jaxtie.exor import data, theory
from jaxtie.exor.config import Process

EXACT = {
    "semantic": (
        "1",
        (
            "S²: squared Hellinger distance between the predictions of the masked symbol, mean over"
            " occurrences"
        ),
    ),
    "conditional": ("nat²", "C²: variance over contexts of the log ratio of the two probabilities"),
    "bias": ("nat", "m: mean over contexts of the log ratio"),
    "overlap": ("1", "o: mean of 4e(1 - e), with e the share of the second symbol"),
}


def pair_divergences(declared: Process) -> xr.Dataset:
    """S², C², m and o of every pair of symbols that can be masked; NaN where the law does not say.

    Symbols that never occur are left out. Where one of a pair excludes the other, there is no log
    ratio: m and C² are NaN.
    """
    law = data.enumerate_process(
        declared.length,
        declared.zeros,
        declared.ones,
        zeros_by_label=declared.zeros_by_label,
    )
    occurs_V = law.joint_CxV.any(axis=0)
    pairs = list(itertools.combinations(np.flatnonzero(occurs_V).tolist(), 2))
    found = [(semantic_of(law, pair), *conditional_of(law.joint_CxV, pair)) for pair in pairs]
    names = [f"{declared.symbols[first]}-{declared.symbols[second]}" for first, second in pairs]
    values = dict(zip(EXACT, np.array(found, np.float64).reshape(-1, len(EXACT)).T))
    variables = {
        name: ("pair", values[name], {"units": units, "long_name": meaning})
        for name, (units, meaning) in EXACT.items()
    }
    return xr.Dataset(variables, {"pair": names})


def conditional_of(joint_CxV: np.ndarray, pair: tuple[int, int]) -> tuple[float, float, float]:
    """C² (nats²), m (nats) and o of a pair, over the contexts where either stands: half of them the
    first's occurrences.
    """
    joint_Cx2 = joint_CxV[:, list(pair)]
    stands_C = joint_Cx2.any(axis=1)
    joint_Cx2 = joint_Cx2[stands_C]
    weight_C = (joint_Cx2 / joint_Cx2.sum(axis=0)).mean(axis=1)
    share_C = joint_Cx2[:, 1] / joint_Cx2.sum(axis=1)
    overlap = float(weight_C @ (4 * share_C * (1 - share_C)))
    if not joint_Cx2.all():
        return np.nan, np.nan, overlap
    ratio_C = np.log(joint_Cx2[:, 1]) - np.log(joint_Cx2[:, 0])
    bias = float(weight_C @ ratio_C)
    return float(weight_C @ (ratio_C - bias) ** 2), bias, overlap


def semantic_of(law: data.Contexts, pair: tuple[int, int]) -> float:
    """S² of a pair: each of the two put for the other where it stands, both directions alike. NaN
    where no swap occurs.
    """
    weight_C = law.joint_CxV.sum(axis=1)
    root_CxV = np.sqrt(law.joint_CxV / weight_C[:, None])
    moved = []
    for first, second in (pair, pair[::-1]):
        before, after = theory.swaps(law.tokens_CxL, first, second, ordered=False)
        if len(before):
            square = np.sum((root_CxV[before] - root_CxV[after]) ** 2, axis=1) / 2
            moved.append(np.average(square, weights=weight_C[before]))
    return float(np.mean(moved)) if moved else np.nan
