"""What two untied tables have in common, as geometry: nothing here says what tying them would cost.

Canonical correlations (Hotelling, 1936) do not change when a linear map is applied to either table, which a body could
undo. Energies do: they are of the tables as they are, each scaled to the same sum of squares.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

ROWS = 16_384
FEWEST = 4  # rows for each of D; with fewer, chance alone correlates nearly everything
ENERGY = 0.95
EXACT_WIDTH = 1024  # up to here in float64, spectra by eigenvalues; wider tables take float32 and Lanczos quadrature
INERTIA_BLOCK = 256
LANCZOS_STEPS, LANCZOS_PROBES = 24, 8
MARGIN = 1.01  # by which a correlation must exceed those of permuted rows to count: the largest of few are not the limit


class Measured(NamedTuple):
    """A number, its 95 % interval, and what it is where rows of one table are permuted: the largest of some permutations.

    The interval is NaN where tables are too wide for a jackknife in reasonable time.
    """

    value: float
    low: float
    high: float
    null: float


@dataclass(frozen=True)
class Geometry:
    """Geometry of two tables of width D over the same rows.

    Attributes:
      rows, width: N and D; rows are a sample.
      squared: mean of the D squared canonical correlations, 0 to 1. By chance it is about D / N.
      largest: the largest canonical correlation.
      shared: how many canonical correlations are above all that permuted rows give, by a hundredth.
      rank: of [E_in E_out] at 95 % of the energy, of 2·D at most.
      residual: the share of the energy that the best shared table of width D leaves, E_in ≈ T·A, E_out ≈ T·B.
    """

    rows: int
    width: int
    squared: Measured
    largest: float
    shared: int
    rank: Measured
    residual: Measured


class _Correlated(NamedTuple):
    squared: float
    largest: float
    matrix: np.ndarray


def geometry(first_NxD: np.ndarray, second_NxD: np.ndarray, say: Callable[[str], None]) -> Geometry:
    """Compare two tables by geometry.

    Args:
      first_NxD, second_NxD: rows of the same tokens, finite; at least `FEWEST` times as many as they are wide.
      say: is told how far it is.
    """
    count, width = first_NxD.shape
    dtype = np.float64 if width <= EXACT_WIDTH else np.float32
    first, second = (_of_unit_energy(table.astype(dtype, copy=False)) for table in (first_NxD, second_NxD))
    rng = np.random.default_rng(0)
    permutations = [rng.permutation(count) for _ in range(20 if width <= 256 else 4 if width <= EXACT_WIDTH else 1)]
    say("geometry: canonical correlations")
    mine = _Grams(first, second)
    found = mine.correlated()
    nulls = [mine.permuted(first, second[order]).correlated() for order in permutations]
    shared = _count_above(found.matrix, MARGIN * max(null.largest for null in nulls))
    say("geometry: energies")
    rank, residual = _energies(first, second)
    null_rank, null_residual = _energies(first, second[permutations[0]])
    say("geometry: intervals")
    left_out = _jackknifed(first, second) if width <= EXACT_WIDTH else None
    values = (found.squared, rank, residual)
    intervals = [_interval(value, left_out, i) for i, value in enumerate(values)]
    return Geometry(
        count,
        width,
        Measured(found.squared, *intervals[0], max(null.squared for null in nulls)),
        found.largest,
        shared,
        Measured(rank, *intervals[1], null_rank),
        Measured(residual, *intervals[2], null_residual),
    )


def _of_unit_energy(table: np.ndarray) -> np.ndarray:
    norm = np.sqrt(np.square(table, dtype=np.float64).sum())
    return (table / table.dtype.type(norm or 1)) * table.dtype.type(math.sqrt(len(table)))


class _Grams:
    """Covariances of two tables."""

    def __init__(self, first: np.ndarray, second: np.ndarray, halves: tuple[np.ndarray, np.ndarray] | None = None):
        self._own = halves or tuple(_half(_gram(table, table)) for table in (first, second))
        self._cross = _gram(first, second)

    def permuted(self, first: np.ndarray, second: np.ndarray) -> "_Grams":
        """The same tables, rows of one in another order."""
        return _Grams(first, second, self._own)

    def correlated(self) -> _Correlated:
        from scipy.linalg import solve_triangular  # heavy

        left, right = self._own
        matrix = solve_triangular(left, self._cross, lower=True)
        matrix = solve_triangular(right, matrix.T, lower=True).T
        squared = float(np.square(matrix, dtype=np.float64).sum()) / len(matrix)
        return _Correlated(squared, _largest(matrix), matrix)


def _gram(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return _without_mean(first).T @ _without_mean(second) / len(first)


def _without_mean(table: np.ndarray) -> np.ndarray:
    """Without its mean row; that is taken out first, since what all rows share may be many times what tells them apart."""
    return table - table.mean(axis=0, dtype=np.float64).astype(table.dtype)


def tells_rows_apart(table: np.ndarray) -> bool:
    """Whether a table's rows are finite and, but for rounding, not all alike: else it has no geometry."""
    if not np.isfinite(table).all():
        return False
    energies = [np.square(part, dtype=np.float64).sum() for part in (_without_mean(table), table)]
    return energies[0] > len(table) * np.finfo(table.dtype).eps ** 2 * energies[1]


def _half(covariance: np.ndarray) -> np.ndarray:
    """Its Cholesky factor; a little is added to the diagonal, since a table need not have full rank."""
    ridge = (1e-9 if covariance.dtype == np.float64 else 1e-5) * np.trace(covariance) / len(covariance)
    return np.linalg.cholesky(
        covariance + np.eye(len(covariance), dtype=covariance.dtype) * covariance.dtype.type(ridge or 1)
    )


def _largest(matrix: np.ndarray) -> float:
    """The largest singular value."""
    from scipy.sparse.linalg import svds  # heavy

    if len(matrix) <= 64:
        return float(min(np.linalg.svd(matrix, compute_uv=False)[0], 1.0))
    return float(min(svds(matrix, 1, tol=1e-3, v0=np.ones(len(matrix), matrix.dtype), return_singular_vectors=False)[0], 1.0))


def _count_above(matrix: np.ndarray, level: float) -> int:
    """How many singular values are above a level: by Haynsworth's additivity of inertia, without computing them."""
    left = (matrix @ matrix.T).astype(np.float64)
    left[np.diag_indices_from(left)] -= level**2
    positive = 0
    while len(left):
        values, vectors = np.linalg.eigh(left[:INERTIA_BLOCK, :INERTIA_BLOCK])
        positive += int((values > 0).sum())
        beside = vectors.T @ left[:INERTIA_BLOCK, INERTIA_BLOCK:]
        values = np.copysign(np.maximum(np.abs(values), 1e-12), values)
        left = left[INERTIA_BLOCK:, INERTIA_BLOCK:] - (beside.T / values) @ beside  # the Schur complement
    return positive


def _energies(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """The rank of [E_in E_out] at 95 % of the energy, and what the best rank D leaves."""
    width = first.shape[1]
    values, counts = _spectrum(first, second)
    order = np.argsort(values)[::-1]
    values, counts = np.maximum(values[order], 0), counts[order]
    energy, ranks = np.cumsum(values * counts), np.cumsum(counts)
    total = energy[-1] or 1.0
    at = int(np.searchsorted(energy, ENERGY * total * (1 - 1e-9)))
    before = ranks[at] - counts[at]
    rank = before + (ENERGY * total - (energy[at] - values[at] * counts[at])) / (values[at] or 1)
    kept = np.interp(width, np.concatenate([[0], ranks]), np.concatenate([[0], energy]))
    return float(np.ceil(rank - 1e-6)), float(max(0.0, 1 - kept / total))


def _spectrum(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of the Gram matrix of [E_in E_out], and how many of each there are; of wide tables a quadrature."""
    if first.dtype == np.float64:
        both = np.concatenate([first, second], axis=1)
        gram = both.T @ both if both.shape[0] >= both.shape[1] else both @ both.T
        values = np.linalg.eigvalsh(gram)
        return values, np.ones(len(values))
    return _lanczos(first, second)


def _lanczos(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Stochastic Lanczos quadrature (Golub and Meurant, 1994; Ubaru et al., 2017) of the spectrum."""
    width = first.shape[1]
    size = 2 * width

    def apply(vectors: np.ndarray) -> np.ndarray:
        through = first @ vectors[:width].astype(first.dtype) + second @ vectors[width:].astype(first.dtype)
        return np.concatenate([first.T @ through, second.T @ through]).astype(np.float64)

    q = np.random.default_rng(2).choice([-1.0, 1.0], (size, LANCZOS_PROBES)) / math.sqrt(size)
    basis, diagonals, beside = [], [], []
    for _ in range(LANCZOS_STEPS):
        basis.append(q)
        w = apply(q)
        diagonals.append((w * q).sum(axis=0))
        for _ in range(2):  # once more, for rounding
            for past in basis:
                w -= past * (past * w).sum(axis=0)
        beside.append(np.linalg.norm(w, axis=0))
        q = w / np.maximum(beside[-1], 1e-30)
    values, counts = [], []
    for probe in range(LANCZOS_PROBES):
        tridiagonal = np.diag([d[probe] for d in diagonals])
        off = np.array([b[probe] for b in beside[:-1]])
        tridiagonal += np.diag(off, 1) + np.diag(off, -1)
        nodes, vectors = np.linalg.eigh(tridiagonal)
        values.append(nodes)
        counts.append(np.square(vectors[0]) * size / LANCZOS_PROBES)
    return np.concatenate(values), np.concatenate(counts)


def _jackknifed(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The three measures without each group of rows; (groups, 3)."""
    groups = 10 if first.shape[1] <= 256 else 4
    member = np.arange(len(first)) % groups
    rows = []
    for group in range(groups):
        a, b = first[member != group], second[member != group]
        rows.append((_Grams(a, b).correlated().squared, *_energies(a, b)))
    return np.array(rows)


def _interval(value: float, left_out: np.ndarray | None, which: int) -> tuple[float, float]:
    from scipy.stats import t  # heavy

    if left_out is None:
        return math.nan, math.nan
    found = left_out[:, which]
    groups = len(found)
    error = math.sqrt((groups - 1) / groups * np.square(found - found.mean()).sum())
    half = float(t.ppf(0.975, groups - 1)) * error
    return value - half, value + half
