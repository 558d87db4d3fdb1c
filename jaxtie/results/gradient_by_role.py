"""Gradients of a tied table by role: variables, shares and their panels. Imports no jax.

The variables are sums over the rows of groups of tokens: of each symbol, or of tokens by their
frequency. So those of the whole table are sums over groups, and those of several records are means.
"""

from functools import partial

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from jaxtie.results.netcdf import Variable
from jaxtie.results.plots import Panel, curves, finish_axes
from jaxtie.results.tables import arms_of, last_step

GROUPED = ("step", "group")
PAIRED = ("step", "pair")
# Means over the updates since the previous record, summed over the rows of a group. u: Adam's step
# on the tied table without rate and decay; u_in: the input role's part; g: the gradient by role.
ROLE_VARIABLES = {
    "step_square": Variable(GROUPED, "1", "⟨u, u⟩"),
    "input_step_product": Variable(GROUPED, "1", "⟨u, u_in⟩"),
    "input_gradient_square": Variable(GROUPED, "nat^2", "⟨g_in, g_in⟩"),
    "output_gradient_square": Variable(GROUPED, "nat^2", "⟨g_out, g_out⟩"),
    "gradient_product": Variable(GROUPED, "nat^2", "⟨g_in, g_out⟩"),
}
# Contributions of the steps since the previous record, to first order.
PUSH_VARIABLES = {
    f"{role}_push": Variable(PAIRED, "1", f"contribution to ln distance, {role} role")
    for role in ("input", "output")
}
EARLY_PART = 1 / 15  # of the training; committed results have a record there


def has_roles(results: xr.Dataset) -> bool:
    """Return whether gradients were recorded by role."""
    return "step_square" in results


def tied_arms(results: xr.Dataset) -> list[str]:
    """Return the names of the arms that are tied throughout."""
    return [arm.name for arm in arms_of(results) if arm.untied_from is None]


def output_share(part: xr.Dataset) -> xr.DataArray:
    """Compute the output role's share ⟨u, u_out⟩ / ⟨u, u⟩; the input role has the rest."""
    return 1 - part["input_step_product"] / part["step_square"]


def early_and_later_share(results: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """Compute the output role's share over the first `EARLY_PART` of training, and afterwards."""
    last = last_step(results)
    own = results[["step_square", "input_step_product"]].sel(step=slice(0, last))
    steps = own["step"].values
    early = int(steps[np.abs(steps - last * EARLY_PART).argmin()])
    # each record is weighted by the updates since the one before
    updates = xr.DataArray(np.diff(steps, prepend=0), {"step": steps}, dims="step")
    weighted = own.sum("group", skipna=False) * updates
    spans = weighted.sel(step=slice(1, early)), weighted.sel(step=slice(early + 1, None))
    first, rest = (output_share(span.sum("step", skipna=False)) for span in spans)
    return first, rest


def by_group(results: xr.Dataset, arm: str) -> dict[str, xr.Dataset]:
    """Return an arm's variables from its first update on: of the whole table, and of each group."""
    own = results.sel(arm=arm)[list(ROLE_VARIABLES)].isel(step=slice(1, None))
    parts = {"all": own.sum("group", skipna=False)}
    return parts | {str(group): own.sel(group=group) for group in own["group"].values}


def is_written(part: xr.Dataset) -> bool:
    """Return whether any token of a group occurs."""
    return float(part["step_square"].sum()) != 0


def role_panels(results: xr.Dataset) -> dict[str, Panel]:
    """Return the panels of the output role's share, where roles were recorded."""
    if not has_roles(results) or not (arms := tied_arms(results)):
        return {}
    whole = {arm: by_group(results, arm)["all"] for arm in arms}
    groups = by_group(results, arms[0])
    del groups["all"]
    return {
        "roles": partial(_draw, "whole table", whole),
        "roles_by_group": partial(_draw, f"rows of {arms[0]}", groups),
    }


def _draw(title: str, parts: dict[str, xr.Dataset], axes: Axes) -> None:
    shares = {label: output_share(part) for label, part in parts.items() if is_written(part)}
    curves(axes, shares, alpha=0.2, linewidth=1.2)
    axes.axhline(0.5, color="black", linestyle="--", linewidth=0.8)
    axes.set_ylim(-0.05, 1.05)
    steps = next(iter(parts.values()))["step"].values
    finish_axes(axes, title, "share of the output role", steps)
