"""Gradients by role: shares of Adam's steps in a table and a figure, contributions to distances."""

import itertools

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from jaxtie.exor.analysis import live_pairs
from jaxtie.exor.tables import ADJUSTED, log_ratios
from jaxtie.results.gradient_by_role import ROLE_VARIABLES, output_share
from jaxtie.results.plots import curves, finish_axes
from jaxtie.results.tables import Table, arms_of, format_mean, format_median, last_step

FEW = 6  # seeds: fewer have no interval by ranks


def tied_arms(results: xr.Dataset) -> list[str]:
    """Return the names of the arms that are tied throughout."""
    return [arm.name for arm in arms_of(results) if arm.untied_from is None]


def by_group(results: xr.Dataset, arm: str) -> dict[str, xr.Dataset]:
    """Return an arm's variables from its first update on: of the whole table, and of each group.

    Groups of which no token occurs are left out.
    """
    own = results.sel(arm=arm)[list(ROLE_VARIABLES)].isel(step=slice(1, None))
    parts = {"all": own.sum("group", skipna=False)}
    parts |= {str(group): own.sel(group=group) for group in own["group"].values}
    return {label: part for label, part in parts.items() if part["step_square"].sum() != 0}


def draw_shares(results: xr.Dataset, arm: str, axes: Axes) -> None:
    """Draw the output role's share of Adam's steps on each group of rows of an arm."""
    groups = by_group(results, arm)
    del groups["all"]
    shares = {label: output_share(part) for label, part in groups.items()}
    curves(axes, shares, alpha=0.2, linewidth=1.2)
    axes.axhline(0.5, color="black", linestyle="--", linewidth=0.8)
    axes.set_ylim(-0.05, 1.05)
    finish_axes(axes, f"rows of {arm}", "share of the output role", results["step"].values)


def shares_table(results: xr.Dataset) -> Table:
    """Make the table of the output role's share over the training, of each arm.

    Of the arm `tied` also of each group of rows.
    """
    rows = []
    for arm in tied_arms(results):
        for label, part in by_group(results, arm).items():
            if label != "all" and arm != "tied":
                continue
            ends = part.isel(step=[0, -1])
            squares = ends["output_gradient_square"], ends["input_gradient_square"]
            norms = xr.apply_ufunc(np.sqrt, squares[0] / squares[1])
            cosines = ends["gradient_product"] / np.sqrt(squares[0] * squares[1])
            cells = [
                _typical(values.isel(step=i).values)
                for values in (output_share(part), norms, cosines)
                for i in range(values.sizes["step"])
            ]
            rows.append((arm, label, *cells))
    steps, seeds = results["step"].values.tolist(), results.sizes["seed"]
    spans = [f"{low:,} to {high:,}" for low, high in itertools.pairwise(steps)]
    of_ends = [f"{what}, {span}" for what in ("norms", "cosine") for span in (spans[0], spans[-1])]
    title = (
        f"{results.attrs['experiment']}: the output role's share of Adam's steps on the tied table,"
        " by steps"
    )
    note = (
        "Share: ⟨u, u_out⟩ / ⟨u, u⟩; the input role has the rest. Norms: of the output role's"
        " gradient by the input role's, root mean square. Cosine: of the two gradients. "
    )
    if seeds < FEW:
        note += f"Mean over {seeds} seeds ± 95 % (Student's t)."
    else:
        note += f"Median over {seeds} seeds [95 %, by ranks]."
    return Table(title, ("arm", "rows", *spans, *of_ends), rows, note)


def _typical(values_S: np.ndarray) -> str:
    """Format the median over seeds and its interval, of few seeds the mean."""
    if not np.isfinite(values_S).any():
        return "–"
    return format_mean(values_S) if len(values_S) < FEW else format_median(values_S)


TABLE_OF_ROLE = ("output", "input")  # in the order of the columns


def contribution_table(results: xr.Dataset) -> Table:
    """Show the contribution of each role of an embedding to the log-distance of the pairs.

    An untied table has one role, so all that changes its distances beyond decay is that role's.
    """
    rows = []
    for arm, pair in itertools.product(arms_of(results), live_pairs(results)):
        of_tables = [
            log_ratios(results, "decay ratio", arm.name, pair, each) for each in TABLE_OF_ROLE
        ]
        if arm.untied_from == 0:
            rows.append(
                (f"{arm.name}, one table a role", pair, *map(format_median, of_tables), "–", "–")
            )
        elif arm.untied_from is None:
            output, input_ = (
                log_ratios(results, f"{role} push", arm.name, pair, "input")
                for role in ("output", "input")
            )
            parts = (output, input_, output + input_, of_tables[-1])
            rows.append((arm.name, pair, *map(format_median, parts)))
    header = ("arm", "pair", "output role", "input role", "sum", f"ln of {ADJUSTED}")
    title = (
        f"{results.attrs['experiment']}: contribution of each role to ln of a pair's distance over"
        f" {last_step(results):,} steps"
    )
    note = (
        f"Median over {results.sizes['seed']:,} seeds [95 %, by ranks]. The sum equals the last"
        " column up to terms of second order, which noise adds whatever its direction. Untied: the"
        " last column of the output and of the input table, which their one role writes."
    )
    return Table(title, header, rows, note)
