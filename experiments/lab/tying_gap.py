"""How the tying gap depends on width, vocabulary, tokens and depth: formula, tables and figure.

    gap = a + b·ln(tokens / vocabulary) + c·ln(width) + d·ln(vocabulary) + e·ln(layers)
          + cell + noise

`cell` is what the formula misses at a size and budget, normal with deviation τ; `noise` is that of
the mean over seeds. The claims of `experiments/tying_gap_on_text.py` are about its coefficients.
Members are rows with the columns that `experiments/scripts/tying_gap_on_text.py` writes.

Shapes: N cells, K coefficients.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from jaxtie.results import plots
from jaxtie.results.claims import Estimate, estimate_of, judge
from jaxtie.results.tables import Table, format_mean, format_number

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


# ----- Tables and figure.

CLAIMS = 4  # whose intervals hold together
# Cells that the claims are about: width, vocabulary, epochs, layers, branch scale.
CELLS = {
    *itertools.product((32, 64, 128), (2048, 8192), (0.25, 1.0), (2,), (USUAL,)),
    *itertools.product((32, 64, 128), (2048,), (4.0,), (2,), (USUAL,)),
    *itertools.product((64, 128), (2048,), (1.0,), (4,), (USUAL,)),
    (64, 2048, 1.0, 2, 0.01),
}
SEEDS = 5
PLAIN = ("tied", "untied")


def cells_table(members: pd.DataFrame) -> Table:
    """Return sizes, losses, rates and gap of every cell."""
    best, rows = chosen_rates(members), []
    for size, own in best[best["arm"].isin(PLAIN)].groupby(SIZE):
        losses = own.pivot(index="seed", columns="arm", values="loss_odd")
        rate = own.groupby("arm")["learning_rate"].first()
        if not {*PLAIN} <= {*losses.columns}:
            continue
        width, vocabulary, epochs, layers, branch = size
        first = own[own["arm"] == "untied"].iloc[0]
        tokens, tied = first["tokens"], own.loc[own["arm"] == "tied", "parameters"].iloc[0]
        body = first["parameters"] - 2 * vocabulary * width
        rows.append(
            (
                f"{width}, {vocabulary:,}, {layers:.0f}{', branches 0.01' * (branch != USUAL)}",
                f"{epochs:g}",
                f"{tokens / vocabulary:,.0f}",
                f"{tokens / body:,.1f}",
                f"{first['parameters'] / tied:.2f}",
                *(f"{losses[arm].mean():.3f} ({rate[arm]:.2g})" for arm in PLAIN),
                "yes" if losses["untied"].mean() < first["bigram"] else "no",
                format_mean((losses["tied"] - losses["untied"]).to_numpy()),
            )
        )
    header = (
        "width, vocabulary, layers",
        "epochs",
        "tokens per vocabulary entry",
        "tokens per other parameter",
        "parameters, untied ÷ tied",
        "loss tied (rate)",
        "untied (rate)",
        "beats bigram counts",
        "tied − untied",
    )
    note = (
        "Validation loss, nat, on the half of the batches that did not choose the learning rate (in"
        " brackets); mean over seeds, paired, ± 95 % (Student's t, each cell by itself). Tokens per"
        " other parameter: of all but the embeddings. Beats bigram counts: the untied arm."
    )
    return Table("Cells", header, rows, note)


def fit_table(members: pd.DataFrame, published: pd.DataFrame) -> Table:
    """Return the coefficients of the formula, and how wrong it is at published sizes.

    `published`: `jaxtie/advise/published-comparisons.csv`.
    """
    fit, cells, rows = fit_cells(members), usual_cells(members), []
    directions = dict(zip(NAMES, np.eye(len(NAMES))))
    # at a fixed number of tokens per parameter of the body, which grow as width²
    directions["derived: ln(width) at fixed tokens per other parameter"] = np.array(
        [0.0, 2, 1, 0, 0]
    )
    for name, direction_K in directions.items():
        rows.append((name, Estimate("", *fit.interval(direction_K, 0.05)).found))
    for vocabulary, own in cells.groupby("vocabulary"):
        columns = [0, *np.flatnonzero(np.ptp(features(own), axis=0))]
        alone = fit_to(own, columns)
        width_K = np.eye(len(NAMES))[NAMES.index("ln(width)"), columns]
        found = Estimate("", *alone.interval(width_K, 0.05)).found
        rows.append((f"ln(width), vocabulary {vocabulary:,} alone", found))
    is_known = (published["objective"] == "causal") & ~published["source"].str.startswith("jaxtie")
    known = published[is_known].dropna(subset=[*Size._fields, "gap_nats"])
    errors = known["gap_nats"] - features(known) @ fit.mean_K
    found = " and ".join(
        format_number(float((x**2).mean() ** 0.5)) for x in (errors, known["gap_nats"])
    )
    rows.append((f"error at {len(known)} published sizes, and that of predicting 0", found))
    most = cells["deviation"].max() / cells["deviation"].min()
    note = (
        f"{len(cells)} cells; nat per unit. Restricted maximum likelihood, 95 % by Student's t"
        " (modified Knapp and Hartung), each by itself. Deviation of cells:"
        f" {format_number(fit.tau)} nat. Standard errors by the deviation over seeds pooled over"
        f" cells, as registered, though these deviations differ up to {most:.0f}-fold. The formula"
        " describes these cells. Errors, root mean square, are of published comparisons, outside of"
        " them."
    )
    return Table(
        "gap = constant + sum of coefficient times", ("regressor", "coefficient"), rows, note
    )


def claims_table(members: pd.DataFrame) -> Table:
    """Judge the four claims that were committed before the run, once all cells are trained."""
    best = chosen_rates(members)
    seeds = best.pivot_table(index=SIZE, columns="arm", values="seed", aggfunc="count")[[*PLAIN]]
    done = {*seeds.index[(seeds == SEEDS).all(axis=1)]} & CELLS
    rows = []
    for statement, found, low, high in _claims(members, is_complete=done == CELLS):
        waits = "–", "waits for all cells"
        shown = waits if found is None else (found.found, judge(found, low, high))
        rows.append((statement, f"{'>' if high == math.inf else '<'} 0", *shown))
    note = (
        f"All four intervals hold together at 95 % (Bonferroni). The bounds are ours. {len(done)}"
        f" of {len(CELLS)} cells are trained. Half-swap: the halves of the hidden state change"
        " places before the output embedding; branches at 0.01: their last weights start so much"
        " smaller."
    )
    return Table("Claims", ("claim", "holds if, nat", "found", "verdict"), rows, note)


def _claims(
    members: pd.DataFrame, *, is_complete: bool
) -> Iterator[tuple[str, Estimate | None, float, float]]:
    """Yield statement, estimate and bounds of each claim; no estimate unless complete."""
    above, below = (0.0, math.inf), (-math.inf, 0.0)
    of_fit: list[Estimate | None] = [None, None]
    if is_complete:
        fit = fit_cells(members)
        of_fit = [Estimate("", *fit.interval(np.eye(len(NAMES))[i], 0.05 / CLAIMS)) for i in (1, 2)]
    yield "b > 0: the gap grows with the tokens per row of a table.", of_fit[0], *above
    yield "c < 0: all else equal, the gap falls with the width.", of_fit[1], *below
    gains = [_by_seed(members, "tied", "tied+half-swap", layers=layers) for layers in (2, 4)]
    gains = [own.groupby("seed").mean() for own in gains]
    statement = "Half-swap gains less with 4 layers than with 2 (widths 64 and 128)."
    yield statement, _paired(gains[0], gains[1]) if is_complete else None, *above
    branches = [_by_seed(members, *PLAIN, branch=branch, widths=(64,)) for branch in (0.01, USUAL)]
    branches = [own.groupby("seed").mean() for own in branches]
    found = _paired(*branches) if is_complete else None
    yield "Branches that start at 0.01 have a larger gap.", found, *above


def _by_seed(
    members: pd.DataFrame,
    first: str,
    second: str,
    layers: int = 2,
    branch: float = USUAL,
    widths: tuple[int, ...] = (64, 128),
) -> pd.Series:
    """Return loss(first) − loss(second) of each width and seed, vocabulary 2,048 and one epoch."""
    own = chosen_rates(members)
    own = own[(own["vocabulary"] == 2048) & (own["epochs"] == 1) & (own["layers"] == layers)]
    own = own[own["branch_scale"] == branch]
    own = own[own["width"].isin(widths)].set_index(["width", "seed"])
    one, other = (own.loc[own["arm"] == arm, "loss_odd"] for arm in (first, second))
    found = (one - other).dropna().unstack("width")
    return found.dropna().stack() if {*found.columns} == {*widths} else (one - other).iloc[:0]


def _paired(first: pd.Series, second: pd.Series) -> Estimate | None:
    values = (first - second).dropna().to_numpy()
    return estimate_of("", values, count=CLAIMS) if len(values) == SEEDS else None


def arms_table(members: pd.DataFrame) -> Table:
    """Return the difference of every other arm to the untied one, in the cells that have it."""
    best, rows = chosen_rates(members), []
    others = [arm for arm in best["arm"].unique() if arm not in PLAIN]
    for arm in sorted(others):
        for size, own in best.groupby(SIZE):
            losses = own.pivot(index="seed", columns="arm", values="loss_odd")
            if not {arm, *PLAIN} <= {*losses.columns}:
                continue
            width, vocabulary, epochs, layers, _ = size
            differences = [losses[arm] - losses[plain] for plain in PLAIN]
            rows.append(
                (
                    arm,
                    f"{width}, {vocabulary:,}, {layers:.0f}, {epochs:g}",
                    f"{own.loc[own['arm'] == arm, 'parameters'].iloc[0]:,.0f}",
                    *(format_mean(values.dropna().to_numpy()) for values in differences),
                )
            )
    header = ("arm", "width, vocabulary, layers, epochs", "parameters", "− tied", "− untied")
    note = "Validation loss, nat; mean over seeds ± 95 %, paired."
    return Table("Other arms", header, rows, note)


def draw_gaps(members: pd.DataFrame) -> Figure:
    """Draw the gap of each cell against tokens per row, with its own 95 % interval."""
    from scipy.stats import t  # heavy

    cells = usual_cells(members)
    vocabularies = sorted(cells["vocabulary"].unique())
    figure, (row,) = plots.subplots(
        1, len(vocabularies), (2.9 * len(vocabularies), 4.0), sharey=True
    )
    colours = {width: colour for colour, width in plots.coloured(sorted(cells["width"].unique()))}
    for axes, vocabulary in zip(row, vocabularies):
        own = cells[cells["vocabulary"] == vocabulary]
        groups = {
            f"width {w}, {n:.0f} layers": part for (w, n), part in own.groupby(["width", "layers"])
        }
        for i, (label, part) in enumerate(groups.items()):
            colour = colours[str(part["width"].iloc[0])]
            marker = "s" if part["layers"].iloc[0] > 2 else "o"
            half = part["deviation"] / part["seeds"] ** 0.5 * t.ppf(0.975, part["seeds"] - 1)
            at = part["tokens"] / vocabulary * 1.03**i  # side by side
            axes.errorbar(at, part["gap"], half, color=colour, marker=marker, label=label)
        axes.axhline(0, color="#3d3d3d", linewidth=0.8)
        axes.set(
            xscale="log",
            xlabel="tokens per vocabulary entry",
            ylabel="loss(tied) − loss(untied), nat",
            title=f"vocabulary {vocabulary:,}",
        )
        ticks = sorted({round(tokens / vocabulary) for tokens in own["tokens"]})
        axes.set_xticks(ticks, list(map(str, ticks)))
        axes.minorticks_off()
        plots.legend_below(axes)
    figure.suptitle("Tying gap on text with 95 % intervals (points are shifted sideways)")
    return figure
