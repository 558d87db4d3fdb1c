"""Tables, figures and committed form of any task's results: its own, or generic ones. No jax."""

import importlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import xarray as xr

from jaxtie.config import TASKS, TaskConfig, UserError, names_of
from jaxtie.results.plots import Panel, Picture, coloured, draw_mean, finish_axes, with_overview
from jaxtie.results.tables import Table, arms_of, interval, last_step, sweep_points, swept

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

OURS = {"exor": "jaxtie.exor.config", "text": "jaxtie.text.config"}


def task_class(results: xr.Dataset) -> type[TaskConfig]:
    """Return the configuration class of results; the generic one where it is not imported.

    Raises:
      UserError: if the results name no task.
    """
    name = results.attrs.get("task")
    if not isinstance(name, str):
        raise UserError("results that name no task: did another version write them?")
    if name in OURS:
        importlib.import_module(OURS[name])
    return TASKS.get(name, TaskConfig)


def tables(results: xr.Dataset) -> list[Table]:
    """Return the tables of the summary."""
    own = task_class(results).tables(results)
    return [final_table(results)] if own is None else own


def plots(results: xr.Dataset) -> dict[str, Picture]:
    """Return the figures, by file name."""
    own = task_class(results).plots(results)
    return curves(results) if own is None else own


def frames(results: xr.Dataset) -> "dict[str, pd.DataFrame]":
    """Return tidy tables, by file name."""
    own = task_class(results).frames(results)
    if own is not None:
        return own
    along: dict[str, list[str]] = {"step": [], "eval_step": []}
    for name, dimension in _scalars(results):
        along[dimension].append(name)
    return {
        {"step": "steps", "eval_step": "evaluations"}[dimension]: results[names].to_dataframe()
        for dimension, names in along.items()
        if names
    }


def animate(results: xr.Dataset, folder: Path) -> Path:
    """Write an animation into a folder.

    Raises:
      UserError: where the task has none.
    """
    found = task_class(results).animate(results, folder)
    if found is None:
        raise UserError(
            "--animate: expected a run of EXor, whose tables are small enough to be drawn"
        )
    return found


def commit(results: xr.Dataset, run: Path) -> xr.Dataset:
    """Return the part of a run's results that is committed: here all scalars."""
    own = task_class(results).commit(results, run)
    return results[[name for name, _ in _scalars(results)]] if own is None else own


def _scalars(results: xr.Dataset) -> Iterator[tuple[str, str]]:
    """Yield the names of the variables of arms and seeds that are scalars, and their step axis."""
    members = {"arm", "seed", *swept(results)}
    for name, values in results.data_vars.items():
        rest = set(values.dims) - members
        if {"arm", "seed"} <= set(values.dims) and rest in ({"step"}, {"eval_step"}):
            yield str(name), str(rest.pop())


def final_table(results: xr.Dataset) -> Table:
    """Return every scalar at the last step, per arm, and the paired differences of arms."""
    arms, rows = names_of(arms_of(results)), []
    step = last_step(results, "loss")
    for values, own in sweep_points(results, swept(results)):
        point = ", ".join(f"{name} = {value:g}" for name, value in values.items())
        for name, dimension in _scalars(own):
            end = own[name].sel({dimension: step}, method="ffill")
            of_arms = [end.sel(arm=arm).values for arm in arms]
            paired = [interval(values - of_arms[0]) for values in of_arms[1:]]
            rows.append((point, name, *map(interval, of_arms), *paired))
    columns = ("", *arms, *[f"{arm} − {arms[0]}, paired" for arm in arms[1:]])
    rows = rows if swept(results) else [row[1:] for row in rows]
    return Table(
        f"{results.attrs['experiment']}: step {step:,}, {results.sizes['seed']:,} seeds",
        ("at", *columns) if swept(results) else columns,
        rows,
        "Mean ± 95 % (Student's t).",
    )


def curves(results: xr.Dataset) -> dict[str, Picture]:
    """Return a curve of every scalar over steps, per arm and sweep point."""
    experiment = str(results.attrs["experiment"])

    def draw(name: str, dimension: str, axes: "Axes") -> None:
        points = sweep_points(results, swept(results))
        labelled = {
            ", ".join([arm, *(f"{key} {value:g}" for key, value in at.items())]): own[name].sel(
                arm=arm
            )
            for at, own in points
            for arm in names_of(arms_of(results))
        }
        for (colour, label), values in zip(coloured(labelled), labelled.values(), strict=True):
            draw_mean(axes, values, colour, label)
        finish_axes(
            axes, name, str(results[name].attrs.get("units", "")), results[dimension].values
        )

    panels = {
        name: Panel(
            f"{name} over steps, per arm: mean over seeds with its 95 % band.",
            partial(draw, name, dimension),
        )
        for name, dimension in _scalars(results)
    }
    return with_overview(panels, experiment, f"{experiment}: every scalar over steps, per arm.")
