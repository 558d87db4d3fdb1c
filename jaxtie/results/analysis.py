"""Tables and figures of any task's results: its own, or generic ones. No jax."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import xarray as xr

from jaxtie.config import TASKS, Reports, TaskConfig, number_label
from jaxtie.results.conclusion import (
    FEW_SEEDS,
    Conclusion,
    answer_picture,
    gap_sentences,
    in_words,
    sweep_sentences,
    sweep_table,
    swept_in_words,
)
from jaxtie.results.plots import Picture, by_arm, curves, finish_axes, overview
from jaxtie.results.tables import (
    Table,
    arm_cells,
    arm_header,
    at_end,
    last_step,
    sweep_points,
    swept,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _reports(results: xr.Dataset) -> Reports:
    """Return the task's functions, none for a task that is unknown; then the generic ones serve.

    They also serve for a sweep of a task that traces no field, such as text.
    """
    task = TASKS.get(results.attrs["task"], TaskConfig)
    return Reports() if swept(results) and not task.traced else task.reports


def tables(results: xr.Dataset) -> list[Table]:
    """Return the tables of the summary."""
    own = _reports(results).tables
    return own(results) if own else [final_table(results)]


def conclude(results: xr.Dataset) -> Conclusion:
    """Return the answer of a run; of a task without one, the final table."""
    if own := _reports(results).conclusion:
        return own(results)
    name = "valid_loss" if "valid_loss" in results else "loss"
    seeds, step = results.sizes["seed"], last_step(results, name)
    what = "validation loss" if name == "valid_loss" else "training loss"
    loss = at_end(results[name], results, name).assign_attrs(long_name=f"{what}, nat")
    at = f"step {step:,}, {seeds} seed{'s' * (seeds != 1)}"
    too_short = f"{seeds} seed{'s are' if seeds > 1 else ' is'} too few" * (seeds < FEW_SEEDS)
    if swept(results):
        scope = f"Scope: {swept_in_words(results)}{results.attrs['experiment']}."
        halves = None
        if "valid_loss_odd" in results and results["valid_loss_odd"].notnull().any():
            even, odd = (results[f"valid_loss_{half}"] for half in ("even", "odd"))
            halves = at_end(even, results), at_end(odd, results)
        sentences = [*sweep_sentences(loss, what, at, halves=halves), scope]
        table = sweep_table(loss, f"{results.attrs['experiment']}: {what}, nat, {at}")
    else:
        sentences = gap_sentences(loss, what, at, too_short)
        table = final_table(results)
    return Conclusion(loss, table, sentences, too_short)


def plots(results: xr.Dataset) -> dict[str, Picture]:
    """Return the figures by file name, the answer first."""
    own = _reports(results).plots or scalar_pictures
    return {"answer": answer_picture(conclude(results)), **own(results)}


def scalars(results: xr.Dataset) -> Iterator[tuple[str, str]]:
    """Yield the names of the variables of arms and seeds that are scalars, and their step axis."""
    members = {"arm", "seed", *swept(results)}
    for name, values in results.data_vars.items():
        rest = set(values.dims) - members
        if {"arm", "seed"} <= set(values.dims) and rest in ({"step"}, {"eval_step"}):
            yield str(name), str(rest.pop())


def final_table(results: xr.Dataset) -> Table:
    """Return every scalar at the last step, per arm, and the paired differences of arms."""
    step, seeds, rows = last_step(results, "loss"), results.sizes["seed"], []
    for values, own in sweep_points(results, swept(results)):
        for name, dimension in scalars(own):
            end = own[name].sel({dimension: step}, method="ffill")
            rows.append((in_words(values), name, *arm_cells(end)))
    columns = ("", *arm_header(results))
    rows = rows if swept(results) else [row[1:] for row in rows]
    return Table(
        f"{results.attrs['experiment']}: step {step:,}, {seeds:,} seed{'s' * (seeds != 1)}",
        ("at", *columns) if swept(results) else columns,
        rows,
        "Mean ± 95 % (Student's t). Differences: paired by seed.",
    )


def scalar_pictures(results: xr.Dataset) -> dict[str, Picture]:
    """Return curves of every scalar over steps, by arm; of a sweep its loss, by sweep point."""
    experiment, points = str(results.attrs["experiment"]), swept(results)
    shown = dict(scalars(results))
    if points:
        loss = next((name for name in ("valid_loss", "loss") if name in shown), None)
        shown = {loss: shown[loss]} if loss else shown

    band = "" if points else " with its 95 % band"

    def meaning_of(name: str) -> str:
        return str(results[name].attrs.get("long_name", name))

    def draw(name: str, arm: str | None, axes: "Axes") -> None:
        lines = by_arm(results[name])
        if arm is not None:
            lines = {
                ", ".join(f"{key} {number_label(value)}" for key, value in at.items()): own
                for at, own in sweep_points(lines[arm], points)
            }
        curves(axes, lines, with_band=not points)
        unit = str(results[name].attrs.get("units", "1"))
        title, label = ", ".join(filter(None, (meaning_of(name), arm))), "" if unit == "1" else unit
        finish_axes(axes, title, label, results[shown[name]].values)

    panels = {
        "_".join(filter(None, (name, arm))): partial(draw, name, arm)
        for name in shown
        for arm in (by_arm(results[name]) if points else [None])
    }
    seeds = results.sizes["seed"]
    title = f"{experiment}: {seeds:,} seed{'s' * (seeds != 1)}"
    meanings = ", ".join(meaning_of(name) for name in shown)
    return overview(panels, title, f"{meanings} over steps: mean over seeds{band}")


def join_points(found: Sequence[tuple[Mapping[str, float], xr.Dataset]]) -> xr.Dataset:
    """Join the results of every sweep point along the swept fields, which follow the arms.

    Variables whose shapes or labels differ between points, such as tables of several widths, are
    left out: the points' own results have them.
    """
    names = list(found[0][0])
    runs = [results for _, results in found]

    def same(name: str) -> bool:
        first = runs[0].get(name)
        return first is not None and all(
            name in run
            and run[name].dims == first.dims
            and run[name].shape == first.shape
            and all(run[dim].equals(first[dim]) for dim in first.dims if dim in first.coords)
            for run in runs
        )

    shared = [name for name in runs[0].data_vars if same(str(name))]
    parts = [
        run[shared]
        .drop_vars(set(run.coords) - set(run[shared].dims), errors="ignore")
        .expand_dims({name: [value] for name, value in values.items()})
        for values, run in found
    ]
    joined = xr.combine_by_coords(parts, combine_attrs="drop_conflicts")
    assert isinstance(joined, xr.Dataset)
    for name, values in joined.data_vars.items():
        rest = [dim for dim in values.dims if dim not in (*names, "arm")]
        order = [dim for dim in ("arm", *names) if dim in values.dims]
        joined[name] = values.transpose(*order, *rest)
        joined[name].encoding.pop("dtype", None)  # the first point's texts may be shorter
    return joined.assign_attrs(runs[0].attrs)
