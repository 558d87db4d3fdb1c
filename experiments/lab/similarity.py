"""Similarity of two tables of the same rows, up to linear maps.

Each measure has a null: its exact mean over all N! permutations of the rows of one table. All are
sums of products of two N x N matrices, whose mean over permutations depends on traces and totals
alone.

Shapes: N rows, D and E widths.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from jaxtie.results.tables import Table, format_mean, format_number

BOTH_TABLES = ("input", "output")
NEIGHBOUR_COUNT = 10
FEWEST_ROWS = 5 * NEIGHBOUR_COUNT  # with fewer, most rows are neighbours


class Similarity(NamedTuple):
    """A similarity, and its mean over all permutations of the rows of one of the two."""

    value: float
    null: float


def linear_cka(x_NxD: np.ndarray, y_NxE: np.ndarray) -> Similarity:
    """Compute linear centred kernel alignment (Kornblith et al. 2019), in [0, 1].

    ‖XᵀY‖² / (‖XᵀX‖·‖YᵀY‖) of centred tables.
    """
    x_NxD, y_NxE = _centred(x_NxD), _centred(y_NxE)
    sizes = np.linalg.norm(x_NxD.T @ x_NxD) * np.linalg.norm(y_NxE.T @ y_NxE)
    # E⟨PKPᵀ, L⟩ = tr K · tr L / (N - 1) where the rows of K and L sum to 0.
    null = np.square(x_NxD).sum() * np.square(y_NxE).sum() / (len(x_NxD) - 1)
    return Similarity(np.square(x_NxD.T @ y_NxE).sum() / sizes, null / sizes)


def linear_map(x_NxD: np.ndarray, y_NxE: np.ndarray) -> Similarity:
    """Compute R² of the best affine map from the rows of x to those of y."""
    x_NxD, y_NxE = _centred(x_NxD), _centred(y_NxE)
    basis_NxR, spread_R, _ = np.linalg.svd(x_NxD, full_matrices=False)
    least = spread_R.max(initial=0) * len(x_NxD) * np.finfo(x_NxD.dtype).eps
    basis_NxR = basis_NxR[:, spread_R > least]
    explained = np.square(basis_NxR.T @ y_NxE).sum() / np.square(y_NxE).sum()
    return Similarity(explained, basis_NxR.shape[1] / (len(x_NxD) - 1))


def distance_order(x_NxD: np.ndarray, y_NxE: np.ndarray) -> Similarity:
    """Compute Spearman's correlation of the Euclidean distances of all pairs of rows; null 0."""
    from scipy.spatial.distance import pdist  # heavy
    from scipy.stats import rankdata

    x_P, y_P = (rankdata(pdist(table)) for table in (x_NxD, y_NxE))
    x_P, y_P = x_P - x_P.mean(), y_P - y_P.mean()
    return Similarity(x_P @ y_P / np.sqrt((x_P @ x_P) * (y_P @ y_P)), 0.0)


def neighbours(x_NxD: np.ndarray, y_NxE: np.ndarray) -> Similarity:
    """Compute the share of a row's 10 nearest neighbours that it has in both tables.

    NaN where there are too few rows.
    """
    if len(x_NxD) < FEWEST_ROWS:
        return Similarity(np.nan, np.nan)
    shared = [
        np.intersect1d(*each, assume_unique=True).size
        for each in zip(_nearest(x_NxD), _nearest(y_NxE), strict=True)
    ]
    return Similarity(float(np.mean(shared)) / NEIGHBOUR_COUNT, NEIGHBOUR_COUNT / (len(x_NxD) - 1))


SIMILARITIES: Mapping[str, Callable[[np.ndarray, np.ndarray], Similarity]] = {
    "CKA": linear_cka,
    "order of distances": distance_order,
    "linear map": linear_map,
    "neighbours": neighbours,
}


def _centred(table_NxD: np.ndarray) -> np.ndarray:
    return table_NxD - table_NxD.mean(axis=0)


def _nearest(table_NxD: np.ndarray) -> np.ndarray:
    """Return the nearest other rows of each row, in no order."""
    square_N = np.square(table_NxD).sum(axis=1)
    distance_NxN = square_N - 2 * table_NxD @ table_NxD.T  # but for each row's own square
    np.fill_diagonal(distance_NxN, np.inf)
    return np.argpartition(distance_NxN, NEIGHBOUR_COUNT, axis=1)[:, :NEIGHBOUR_COUNT]


def compare_with_untied(
    tied: xr.DataArray, untied: xr.Dataset, measures: Sequence[str]
) -> xr.Dataset:
    """Compare every tied table with both tables of the untied model of its seed.

    Args:
      tied: tables (arm, seed, row, dim).
      untied: `input` and `output`, each (seed, row, dim), of the same seeds.
      measures: names in `SIMILARITIES`.

    Returns:
      `similarity` and `similarity_null` (arm, seed, table, measure), see `Similarity`;
      `similarity_ceiling` (seed, table, measure) of an untied table and that of the next seed, the
      first after the last; NaN where there is one seed.
    """
    count = tied.sizes["seed"]
    tied_AxSxNxD = tied.transpose("arm", "seed", "row", "dim").values.astype(np.float64)
    found = np.full((2, tied.sizes["arm"], count, 2, len(measures)), np.nan)
    ceiling = np.full((count, 2, len(measures)), np.nan)
    for t, table in enumerate(BOTH_TABLES):
        own_SxNxD = untied[table].transpose("seed", "row", "dim").values.astype(np.float64)
        for s, m in np.ndindex(count, len(measures)):
            measure = SIMILARITIES[measures[m]]
            if count > 1:
                ceiling[s, t, m] = measure(own_SxNxD[s], own_SxNxD[(s + 1) % count]).value
            for a in range(len(tied_AxSxNxD)):
                found[:, a, s, t, m] = measure(own_SxNxD[s], tied_AxSxNxD[a, s])
    dims = ("seed", "table", "measure")
    variables = {
        "similarity": (("arm", *dims), found[0]),
        "similarity_null": (("arm", *dims), found[1]),
        "similarity_ceiling": (dims, ceiling),
    }
    labels = {name: tied[name].values for name in ("arm", "seed")}
    return xr.Dataset(variables, labels | {"table": list(BOTH_TABLES), "measure": list(measures)})


def similarity_table(results: xr.Dataset) -> Table:
    """Make the table of tied tables compared with the untied ones of their seeds at the end."""
    compared = results.dropna("eval_step", how="all", subset=["similarity"]).isel(eval_step=-1)
    rows = []
    for measure in map(str, compared["measure"].values):
        for arm in map(str, compared["similarity"].dropna("arm", how="all")["arm"].values):
            own = compared.sel(arm=arm, measure=measure)
            inputs, outputs = (own["similarity"].sel(table=table).values for table in BOTH_TABLES)
            means = [
                ", ".join(map(format_number, own[f"similarity_{name}"].mean("seed").values))
                for name in ("null", "ceiling")
            ]
            rows.append(
                (measure, arm, *map(format_mean, (inputs, outputs, outputs - inputs)), *means)
            )
    means_header = ("to untied input", "to untied output", "output − input", "null", "ceiling")
    title = (
        f"{results.attrs['experiment']}: the tied table beside the untied ones of its seed, step"
        f" {int(compared['eval_step']):,}"
    )
    note = (
        f"Mean over {results.sizes['seed']:,} seeds ± 95 % (Student's t). Null: mean over all"
        " permutations of the rows. Ceiling: an untied table beside the same one of another seed."
        " Each for the input and for the output table."
    )
    return Table(title, ("measure", "arm", *means_header), rows, note)
