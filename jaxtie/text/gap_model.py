"""How the tying gap depends on width, vocabulary, tokens and depth: a formula. Imports no jax.

    gap = a + b·ln(tokens / vocabulary) + c·ln(width) + d·ln(vocabulary) + e·ln(layers)
          + cell + noise

`cell` is what the formula misses at a size and budget, normal with deviation τ; `noise` is that of
the mean over seeds. The claims of `experiments/tying_gap_on_text.py` are about its coefficients.

Shapes: N cells, K coefficients.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

SIZE = ["width", "vocabulary", "epochs", "layers", "branch_scale"]  # columns that name a cell
CHOOSING = (0, 1)  # seeds by which learning rates are chosen
NAMES = ("constant", "ln(tokens / vocabulary)", "ln(width)", "ln(vocabulary)", "ln(layers)")
USUAL = -1  # `branch_scale` instead of None, which cannot be joined


class Size(NamedTuple):
    """A model and a budget: width, layers, entries of the vocabulary, training tokens."""

    width: float
    layers: float
    vocabulary: float
    tokens: float


class GapFit(NamedTuple):
    """Coefficients of the formula.

    Attributes:
      mean_K: in the order of `NAMES`; nat.
      covariance_KxK: of their estimates.
      tau: deviation of cells, nat.
      degrees: of freedom of Student's t.
    """

    mean_K: np.ndarray
    covariance_KxK: np.ndarray
    tau: float
    degrees: int

    def interval(self, direction_K: np.ndarray, error: float) -> np.ndarray:
        """Return low, mean and high of a linear combination."""
        from scipy.stats import t  # heavy

        mean = direction_K @ self.mean_K
        variance = direction_K @ self.covariance_KxK @ direction_K
        half = t.ppf(1 - error / 2, self.degrees) * np.sqrt(variance)
        return np.array([mean - half, mean, mean + half])


def features(sizes: pd.DataFrame) -> np.ndarray:
    """Return the regressors, NxK, of a table with the columns of `Size`."""
    width, layers, vocabulary, tokens = sizes[list(Size._fields)].to_numpy(np.float64).T
    ones = np.ones(len(width))
    columns = [ones, np.log(tokens / vocabulary), np.log(width), np.log(vocabulary), np.log(layers)]
    return np.stack(columns, axis=1)


def fit_gaps(features_NxK: np.ndarray, gap_N: np.ndarray, error_N: np.ndarray) -> GapFit:
    """Fit by restricted maximum likelihood.

    The covariance is that of Knapp and Hartung (2003), modified: their factor is at least 1.

    Args:
      features_NxK: regressors, N > K.
      gap_N: mean gap of each cell.
      error_N: its standard error.

    Raises:
      ValueError: if the cells are too few, or too much alike, to identify the coefficients.
    """
    from scipy.optimize import minimize_scalar  # heavy

    cells, count = features_NxK.shape
    if cells <= count or np.linalg.matrix_rank(features_NxK) < count:
        raise ValueError(
            f"{cells} cells for {count} coefficients; expected more, or more different ones"
        )

    def solve(tau: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        weight_N = 1 / (tau**2 + error_N**2)
        precision_KxK = (features_NxK.T * weight_N) @ features_NxK
        mean_K = np.linalg.solve(precision_KxK, (features_NxK.T * weight_N) @ gap_N)
        return weight_N, precision_KxK, mean_K

    def loss(tau: float) -> float:
        """-2 ln of the restricted likelihood, but for a constant."""
        weight_N, precision_KxK, mean_K = solve(tau)
        squares = weight_N @ (gap_N - features_NxK @ mean_K) ** 2
        return squares - np.log(weight_N).sum() + np.linalg.slogdet(precision_KxK)[1]

    most = 2 * float(np.std(gap_N)) + 1e-9
    tau = min((0.0, minimize_scalar(loss, bounds=(0, most), method="bounded").x), key=loss)
    weight_N, precision_KxK, mean_K = solve(tau)
    spread = weight_N @ (gap_N - features_NxK @ mean_K) ** 2 / (cells - count)
    covariance_KxK = np.linalg.inv(precision_KxK) * max(1.0, spread)
    return GapFit(mean_K, covariance_KxK, float(tau), cells - count)


def chosen_rates(members: pd.DataFrame, choosing: Sequence[int] = CHOOSING) -> pd.DataFrame:
    """Return the members trained at the best learning rate of their cell and arm.

    The best one has the lowest mean loss of the seeds `choosing` on the even validation batches.
    """
    losses = members[["loss_even", "loss_odd"]].fillna(np.inf)  # of a member that diverged
    own = members.assign(branch_scale=members["branch_scale"].fillna(USUAL), **losses)
    first = own[own["seed"].isin(choosing)]
    means = first.groupby([*SIZE, "arm", "learning_rate"])["loss_even"].mean().reset_index()
    best = means.loc[means.groupby([*SIZE, "arm"])["loss_even"].idxmin()]
    return own.merge(best[[*SIZE, "arm", "learning_rate"]])


def gaps(members: pd.DataFrame) -> pd.DataFrame:
    """Return loss(tied) − loss(untied) of each cell that has both, on the odd batches.

    Columns: those of `SIZE`, tokens, gap, seeds, error, deviation. The standard error is by the
    deviation over seeds pooled over the cells, as the claims were registered; `deviation` is the
    cell's own, which differs up to eleven-fold. Pairs of which one diverged are left out.
    """
    best = chosen_rates(members)
    losses = best.pivot(index=[*SIZE, "tokens", "seed"], columns="arm", values="loss_odd")
    differences = (losses["tied"] - losses["untied"]).rename("gap")
    differences = differences[np.isfinite(differences)]
    return pooled(differences, [*SIZE, "tokens"])


def pooled(differences: pd.Series, size: Sequence[str]) -> pd.DataFrame:
    """Return mean, seeds, deviation, error by the pooled deviation and degrees, a row per size."""
    cells = differences.groupby(list(size))
    names = ["gap", "seeds", "deviation"]
    found = cells.agg(["mean", "count", "std"]).set_axis(names, axis=1).reset_index()
    degrees = int((found["seeds"] - 1).sum())
    squares = float((cells.var().fillna(0).to_numpy() * (found["seeds"] - 1)).sum())
    error = np.sqrt(squares / degrees / found["seeds"]) if degrees else np.nan
    return found.assign(error=error, degrees=degrees)


def usual_cells(members: pd.DataFrame) -> pd.DataFrame:
    """Return the gaps of the cells of the usual branch scale."""
    cells = gaps(members)
    return cells[cells["branch_scale"] == USUAL]


def fit_cells(members: pd.DataFrame) -> GapFit:
    """Fit the formula to the cells of the usual branch scale; ValueError if they are too few."""
    return fit_to(usual_cells(members))


def fit_to(cells: pd.DataFrame, columns: Sequence[int] | slice = slice(None)) -> GapFit:
    """Fit some of the coefficients, or all, to gaps."""
    errors = cells["error"].to_numpy()
    return fit_gaps(features(cells)[:, columns], cells["gap"].to_numpy(), errors)
