"""Exact divergences of the pairs of symbols of EXor; `token_pairs.py` estimates them by models.

Shapes: C contexts, V symbols, N swaps.
"""

import itertools
import math

import numpy as np
import xarray as xr

from jaxtie.exor import data, theory
from jaxtie.exor.config import Process

EXACT_DIVERGENCES = {
    "semantic": ("1", "S²: mean squared Hellinger distance of predictions when swapped"),
    "conditional": ("nat²", "C²: variance over contexts of the log ratio of the probabilities"),
    "bias": ("nat", "m: mean over contexts of the log ratio"),
    "overlap": ("1", "o: mean of 4e(1 - e), with e the share of the second symbol"),
}


def pair_divergences(process: Process) -> xr.Dataset:
    """Compute `EXACT_DIVERGENCES` of all pairs of targets by enumeration.

    Symbols that never occur are left out. m and C² are NaN where one symbol of a pair excludes the
    other, so that there is no log ratio.
    """
    whole = data.enumerate_process(
        process.length, process.zeros, process.ones, zeros_by_label=process.zeros_by_label
    )
    occurring = np.flatnonzero(whole.joint_CxV.any(axis=0)).tolist()
    pairs = list(itertools.combinations(occurring, 2))
    found = [
        (
            squared_hellinger(whole.tokens_CxL, whole.joint_CxV, pair),
            *log_ratio_moments(whole.joint_CxV, pair),
        )
        for pair in pairs
    ]
    columns = np.array(found, np.float64).reshape(-1, len(EXACT_DIVERGENCES)).T
    variables = {
        name: ("pair", column, {"units": units, "long_name": meaning})
        for (name, (units, meaning)), column in zip(EXACT_DIVERGENCES.items(), columns, strict=True)
    }
    names = [f"{process.symbols[first]}-{process.symbols[second]}" for first, second in pairs]
    return xr.Dataset(variables, {"pair": names})


def squared_hellinger(
    tokens_CxL: np.ndarray, joint_CxV: np.ndarray, pair: tuple[int, int]
) -> float:
    """Return S² of a pair: like `semantic_divergence`, with squared Hellinger distances."""

    def squared_distance(p_NxV: np.ndarray, q_NxV: np.ndarray) -> np.ndarray:
        return np.sum((np.sqrt(p_NxV) - np.sqrt(q_NxV)) ** 2, axis=1) / 2

    return theory.mean_over_swaps(tokens_CxL, joint_CxV, pair, squared_distance)


def log_ratio_moments(joint_CxV: np.ndarray, pair: tuple[int, int]) -> tuple[float, float, float]:
    """Return C² (nats²), m (nats) and o of a pair; see `EXACT_DIVERGENCES`.

    Contexts are weighted so that each symbol has half of the weight. C² and m are NaN if one symbol
    excludes the other in some context.
    """
    joint_Cx2 = joint_CxV[:, list(pair)]
    joint_Cx2 = joint_Cx2[joint_Cx2.any(axis=1)]
    weight_C = (joint_Cx2 / joint_Cx2.sum(axis=0)).mean(axis=1)
    share_C = joint_Cx2[:, 1] / joint_Cx2.sum(axis=1)
    overlap = float(weight_C @ (4 * share_C * (1 - share_C)))
    if not joint_Cx2.all():
        return math.nan, math.nan, overlap
    ratio_C = np.log(joint_Cx2[:, 1]) - np.log(joint_Cx2[:, 0])
    bias = float(weight_C @ ratio_C)
    return float(weight_C @ (ratio_C - bias) ** 2), bias, overlap
