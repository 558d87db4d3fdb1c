"""The price of one table for two, and the rule that makes an advice of it. NumPy only.

Shapes: V tokens, D width, N batches.
"""

import math
from typing import NamedTuple

import numpy as np

THRESHOLD = 0.01  # nats: a price below it is none
RARE_SEEN, RARE_MASS = 100, 0.2  # tokens seen fewer times are rare; tie first where they are more of the mass than this
ON_KNOWN_SOURCES = "on sampled sources a threshold that was calibrated chose no better"


class SharedTable(NamedTuple):
    """One table, and what makes either table of it: E_in ≈ T·P, E_out ≈ T·Q but for a row that all outputs share."""

    table_VxD: np.ndarray
    to_input_DxD: np.ndarray
    to_output_DxD: np.ndarray


def best_shared_table(
    input_VxD: np.ndarray, output_VxD: np.ndarray, weight_V: np.ndarray, moment_DxD: np.ndarray, balance: float = 1.0
) -> SharedTable:
    """The table of rank D that is nearest to both, each beside its own size (Eckart and Young).

    The error is summed over tokens by their weight; that of the output table as it moves logits: by the moment of the hidden
    states. A row that is added to all outputs moves no probability, so their mean is left out.

    Args:
      weight_V: how much each token counts; above 0.
      moment_DxD: of the hidden states: covariance where an output bias carries what their mean does, else the second moment.
      balance: how much the input table counts beside the output table, both having the size 1.
    """
    root_Vx1 = np.sqrt(weight_V / weight_V.sum())[:, None]
    values_D, directions_DxD = np.linalg.eigh(np.asarray(moment_DxD, np.float64))
    scale_D = np.sqrt(np.maximum(values_D, 1e-9 * values_D.max()))
    to_logits_DxD = directions_DxD * scale_D
    output_VxD = output_VxD - np.average(output_VxD, axis=0, weights=weight_V)
    both = [balance * _of_size_one(root_Vx1 * input_VxD), _of_size_one(root_Vx1 * output_VxD @ to_logits_DxD)]
    left_VxD = np.linalg.svd(np.concatenate(both, axis=1), full_matrices=False)[0][:, : input_VxD.shape[1]]
    to_input_DxD = left_VxD.T @ (root_Vx1 * input_VxD)
    to_output_DxD = left_VxD.T @ (root_Vx1 * output_VxD)
    return SharedTable(left_VxD / root_Vx1, to_input_DxD, to_output_DxD)


def _of_size_one(table_VxD: np.ndarray) -> np.ndarray:
    return table_VxD / np.linalg.norm(table_VxD)


class Price(NamedTuple):
    """G, nats: by how much the validation loss rises with one table; mean over both models, with a 95 % interval."""

    low: float
    rise: float
    high: float

    def __str__(self) -> str:
        return f"{self.rise:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


def price_of(before_N: np.ndarray, after_N: np.ndarray, asked_N: np.ndarray) -> Price:
    """From the losses of batches before and after, paired; both models' losses averaged.

    The interval is over batches (Student's t); it knows nothing of what other training data would give.
    """
    from scipy.stats import t  # heavy

    rise_N = after_N - before_N
    mean = np.average(rise_N, weights=asked_N)
    if len(rise_N) < 2:
        return Price(np.nan, float(mean), np.nan)
    error = np.sqrt(np.sum((asked_N / asked_N.sum()) ** 2 * (rise_N - mean) ** 2) * len(rise_N) / (len(rise_N) - 1))
    half = t.ppf(0.975, len(rise_N) - 1) * error
    return Price(float(mean - half), float(mean), float(mean + half))


class Advice(NamedTuple):
    """What to do, and why; `word`: tie, tie with a bias, tie then untie, do not tie, undecided: and what to do then."""

    word: str
    reason: str


def advise(with_bias: Price, without_bias: Price, rare_mass: float, threshold: float = THRESHOLD) -> Advice:
    """The rule of the verdict.

    A price below 0 by more than the threshold is none of a table: the models went on learning while it was taken.

    Args:
      rare_mass: share of the training text that is tokens seen fewer than `RARE_SEEN` times.
      threshold: nats.
    """
    if not all(math.isfinite(end) for price in (with_bias, without_bias) for end in (price.low, price.high)):
        return Advice("undecided: give more text", f"one table costs {with_bias} nat with an output bias: no interval")
    if with_bias.high < -threshold:
        return Advice(
            "undecided: train longer", f"with one table the loss fell, {with_bias} nat: the models were still learning"
        )
    if without_bias.high < threshold:
        return Advice("tie", f"one table costs {without_bias} nat, less than {threshold}")
    if with_bias.high < threshold:
        return Advice("tie with a bias", f"one table costs {with_bias} nat with an output bias, {without_bias} without")
    if with_bias.low <= threshold:
        return Advice("undecided: train both", f"one table costs {with_bias} nat with an output bias: {threshold} is within")
    if rare_mass > RARE_MASS:
        return Advice(
            "tie, then untie", f"one table costs {with_bias} nat, but {rare_mass:.0%} of the text is rare tokens, which gain"
        )
    return Advice("do not tie", f"one table costs {with_bias} nat even with an output bias, more than {threshold}")


def share_of_rare(count_V: np.ndarray) -> float:
    """Share of the text that is tokens seen fewer than `RARE_SEEN` times."""
    return float(count_V[count_V < RARE_SEEN].sum() / count_V.sum())
