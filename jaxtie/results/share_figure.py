"""The figure of who writes a tied table over the steps of training. Imports no jax."""

from collections.abc import Iterable, Iterator
from functools import partial

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxtie.results.plots import COLOURS, Picture, coloured, finish, subplots
from jaxtie.results.roles import has_roles, mean_share, tied_arms

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
