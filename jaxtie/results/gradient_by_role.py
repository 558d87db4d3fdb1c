"""Variables, table and figure of gradients by role.

Who writes a tied table, as results hold it: the variables, and shares, norms and cosines made of
them. Imports no jax.

They are sums over the rows of groups of tokens: of each symbol, or of tokens by their frequency. So
the whole table's are sums over groups, and those of a longer stretch of the training are means over
its records.

The figure of who writes a tied table over the steps of training. Imports no jax.
"""

import itertools
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxtie.results.netcdf import Variable
from jaxtie.results.plots import COLOURS, Picture, coloured, finish, subplots
from jaxtie.results.statistics import mean_interval
from jaxtie.results.tables import COURSE, Table, arms_of, interval, median

GROUPED = ("step", "group")
PAIRED = ("step", "pair")
SINCE = "mean over the updates since the record before, and sum over the rows of a group"
ROLE_VARIABLES = {
    "step_square": Variable(
        GROUPED, "1", f"⟨u, u⟩, u Adam's step on the tied table without rate and decay; {SINCE}"
    ),
    "input_step_product": Variable(
        GROUPED, "1", f"⟨u, u_in⟩, u_in the input role's part of u; {SINCE}"
    ),
    "input_gradient_square": Variable(
        GROUPED, "nat^2", f"⟨g_in, g_in⟩, g_in the input role's gradient; {SINCE}"
    ),
    "output_gradient_square": Variable(
        GROUPED, "nat^2", f"⟨g_out, g_out⟩, g_out the output role's gradient; {SINCE}"
    ),
    "gradient_product": Variable(GROUPED, "nat^2", f"⟨g_in, g_out⟩; {SINCE}"),
}
PUSH_VARIABLES = {
    f"{role}_push": Variable(
        PAIRED,
        "1",
        f"what the {role} role's steps since the record before add to ln of a pair's distance, to"
        " first order",
    )
    for role in ("input", "output")
}
# of the training: what "early" means, also in what is condensed to its course
EARLY_PART = COURSE[1]


def has_roles(results: xr.Dataset) -> bool:
    """Whether the results tell the roles of a tied table from each other."""
    return "step_square" in results


def tied_arms(results: xr.Dataset) -> list[str]:
    """Names of the arms that are tied throughout."""
    return [arm.name for arm in arms_of(results) if arm.untied_from is None]


def at_stretches(results: xr.Dataset, ends: list[int]) -> xr.Dataset:
    """The variables of roles at a few steps, each over all updates since the one before: means, and
    sums of pushes.

    Args:
      ends: ascending numbers of updates, the first of them 0, which has none.
    """
    own = results[[name for name in (*ROLE_VARIABLES, *PUSH_VARIABLES) if name in results]]
    parts = [own.sel(step=0, drop=True)]
    for low, high in itertools.pairwise(ends):
        # records are evenly spaced, so each stands for as many updates
        here = own.sel(step=slice(low + 1, high))
        parts.append(
            xr.Dataset(
                {
                    name: (
                        values.sum("step", skipna=False)
                        if name in PUSH_VARIABLES
                        else values.mean("step", skipna=False)
                    )
                    for name, values in here.items()
                }
            )
        )
    return xr.concat(parts, xr.DataArray(ends, dims="step", name="step"))


def output_share(stretches: xr.Dataset) -> xr.DataArray:
    """The output role's share ⟨u, u_out⟩ / ⟨u, u⟩ of what was written; the input role's is the
    rest, and they sum to 1.
    """
    return 1 - stretches["input_step_product"] / stretches["step_square"]


def early_share(results: xr.Dataset, last: int) -> tuple[xr.DataArray, xr.DataArray]:
    """The output role's share of the whole table, over the first `EARLY_PART` of the training and
    over all that follows.
    """
    steps = results["step"].values
    ends = steps[steps <= last]
    early = int(ends[np.abs(ends - last * EARLY_PART).argmin()])
    return _share_over(results, 0, early), _share_over(results, early, last)


def _share_over(results: xr.Dataset, low: int, high: int) -> xr.DataArray:
    """Of a stretch, whether its records are all there or condensed: each is weighted by the updates
    it stands for.
    """
    steps = results["step"].values
    updates = xr.DataArray(np.diff(steps, prepend=0), {"step": steps}, dims="step")
    own = results[["step_square", "input_step_product"]].sum("group", skipna=False)
    here = (own * updates).sel(step=slice(low + 1, high)).sum("step", skipna=False)
    return output_share(here)


def shares_table(results: xr.Dataset) -> Table:
    """The output role's share over stretches of the training, arm by arm; of the whole table and of
    each group of rows.
    """
    stretches = [int(step) for step in results["step"].values]
    rows = []
    for arm in tied_arms(results):
        own = results.sel(arm=arm, step=stretches[1:])
        whole = own[list(ROLE_VARIABLES)].sum("group", skipna=False)
        for label, part in [
            ("all", whole),
            *((str(group), own.sel(group=group)) for group in own["group"].values),
        ]:
            if float(part["step_square"].sum()) == 0:
                continue  # no token has such a frequency
            if label != "all" and arm != "tied":
                continue
            share = output_share(part)
            cells = [_typical(share.sel(step=step).values) for step in stretches[1:]]
            ends = [part.sel(step=stretches[i]) for i in (1, -1)]
            norms = [_typical(_norms(each).values) for each in ends]
            cosines = [_typical(_cosine(each).values) for each in ends]
            rows.append((arm, label, *cells, *norms, *cosines))
    spans = [f"{low:,} to {high:,}" for low, high in itertools.pairwise(stretches)]
    header = (
        "arm",
        "rows",
        *spans,
        f"norms, {spans[0]}",
        f"norms, {spans[-1]}",
        f"cosine, {spans[0]}",
        f"cosine, {spans[-1]}",
    )
    seeds = results.sizes["seed"]
    title = (
        f"{results.attrs['experiment']}: the output role's share of Adam's steps on the tied table,"
        " by steps"
    )
    note = (
        "Share: ⟨u, u_out⟩ / ⟨u, u⟩; the input role has the rest. Norms: of the output role's"
        " gradient by the input role's, root mean square. Cosine: of the two gradients."
        f" {_over(seeds)}"
    )
    return Table(title, header, rows, note)


def _norms(part: xr.Dataset) -> xr.DataArray:
    return xr.apply_ufunc(np.sqrt, part["output_gradient_square"] / part["input_gradient_square"])


def _cosine(part: xr.Dataset) -> xr.DataArray:
    return part["gradient_product"] / np.sqrt(
        part["output_gradient_square"] * part["input_gradient_square"]
    )


FEW = 6  # seeds: fewer have no interval by ranks


def _typical(values_S: np.ndarray) -> str:
    """Of values over seeds: median and its interval by ranks, of few seeds mean and Student's."""
    if not np.isfinite(values_S).any():
        return "–"
    return interval(values_S) if len(values_S) < FEW else median(values_S)


def _over(seeds: int) -> str:
    if seeds < FEW:
        return f"Mean over {seeds} seeds ± 95 % (Student's t)."
    return f"Median over {seeds} seeds [95 %, by ranks]."


def mean_share(
    results: xr.Dataset, arm: str, group: str | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The output role's share over steps, mean over seeds with half its 95 % interval: steps, mean,
    half.
    """
    own = results.sel(arm=arm)[["step_square", "input_step_product"]].isel(step=slice(1, None))
    part = own.sum("group", skipna=False) if group is None else own.sel(group=group)
    share_SxT = output_share(part).transpose("seed", "step").values.astype(np.float64)
    mean_T, half_T = mean_interval(share_SxT)
    return own["step"].values, mean_T, half_T


SHARES_CAPTION = (
    "The output role's share of Adam's steps on the tied table over the steps of training, of each"
    " tied arm and, of the plain one, of each group of tokens: mean over seeds with its 95 %"
    " confidence band; the input role has the rest"
)


def role_pictures(results: xr.Dataset) -> dict[str, Picture]:
    """The figure of roles, where the results tell them apart."""
    if not has_roles(results) or not tied_arms(results):
        return {}
    return {"roles": Picture(SHARES_CAPTION, partial(draw_shares, results))}


def draw_shares(results: xr.Dataset) -> Figure:
    """The share over steps: on the left of the whole table, arm by arm; on the right of its groups,
    of the first tied arm.
    """
    figure, ((left, right),) = subplots(1, 2, (11.5, 4.2), sharey=True)
    arms = tied_arms(results)
    for style, colour, arm in _styled(arms):
        _draw_share_of(left, results, arm, None, arm, color=colour, linestyle=style)
    for style, colour, group in _styled(results["group"].values):
        _draw_share_of(right, results, arms[0], group, group, color=colour, linestyle=style)
    for axes, title in ((left, "whole table"), (right, f"rows of {arms[0]}")):
        axes.axhline(0.5, color="black", linestyle="--", linewidth=0.8)
        axes.set_ylim(-0.05, 1.05)
        finish(axes, title, "share of the output role", results["step"].values, fontsize=7, ncols=2)
    figure.suptitle(
        f"{results.attrs['experiment']}: {results.sizes['seed']:,} seeds, mean and 95 % band",
        parse_math=False,
    )
    return figure


def _styled(names: Iterable[object]) -> Iterator[tuple[str, str, str]]:
    """A style of lines, a colour and a name for each: where colours come again, lines are
    dotted.
    """
    for number, (colour, name) in enumerate(coloured(names)):
        yield (("-", ":")[number >= len(COLOURS)], colour, name)


def _draw_share_of(
    axes: Axes,
    results: xr.Dataset,
    arm: str,
    group: str | None,
    label: str,
    *,
    color: str,
    linestyle: str,
) -> None:
    if group is not None and float(results["step_square"].sel(arm=arm, group=group).sum()) == 0:
        return  # no token has such a frequency
    steps_T, mean_T, half_T = mean_share(results, arm, group)
    axes.plot(steps_T, mean_T, label=label, color=color, linestyle=linestyle, linewidth=1.2)
    axes.fill_between(
        steps_T, mean_T - half_T, mean_T + half_T, color=color, alpha=0.2, linewidth=0
    )
