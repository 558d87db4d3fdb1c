"""Gradients of a tied table by role: variables and shares. Imports no jax.

The variables are sums over the rows of groups of tokens: of each symbol, or of tokens by their
frequency. So those of the whole table are sums over groups, and those of several records are means.
"""

import numpy as np
import xarray as xr

from jaxtie.results.netcdf import Variable
from jaxtie.results.tables import last_step

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
