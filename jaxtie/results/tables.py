"""Tables: numbers as text, Markdown and the terminal.

What tables of results share: numbers as text, what is in a dataset, the text of a summary.
Imports no jax.

What is printed: tables, plain values.
"""

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr

from jaxtie.config import Arm
from jaxtie.results.statistics import mean_interval, median_interval

PLACES = 3
COURSE = (0, 1 / 15, 1 / 3, 2 / 3, 1)  # of the training


@dataclass(frozen=True)
class Table:
    """A titled table of strings.

    Attributes:
      title: stands above it.
      header, rows: the first column names the row.
      note: stands below it and tells how to read it.
      long: too long for the terminal, which does not show it.
    """

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""
    long: bool = False

    def markdown(self) -> str:
        """The table in Markdown, a blank line after it."""
        lines = [
            f"| {' | '.join(row)} |"
            for row in (self.header, ("---",) * len(self.header), *self.rows)
        ]
        return "\n".join(
            [f"**{self.title}**", "", *lines, "", *([self.note, ""] if self.note else [])]
        )


def number(value: float) -> str:
    """A number in a table; a dash where there is none."""
    return "–" if not np.isfinite(value) else f"{value:.{PLACES}f}"


def interval(values: np.ndarray) -> str:
    """Mean and half its 95 % confidence interval, of values over seeds."""
    mean, half = map(float, mean_interval(np.asarray(values, np.float64)))
    return number(mean) + (f" ± {number(half)}" if np.isfinite(half) else "")


def median(values: np.ndarray) -> str:
    """Median and its 95 % interval by ranks, of values over seeds."""
    return between(*median_interval(values))


def between(low: float, middle: float, high: float, shown: Callable[[float], str] = number) -> str:
    """A number and the ends of its interval; the number alone where there is none, as by ranks of
    fewer than six seeds.
    """
    if np.isnan(middle):
        return "–"
    return shown(middle) + (
        f" [{shown(low)}, {shown(high)}]" if np.isfinite([low, high]).any() else ""
    )


def quantiles(values: np.ndarray) -> str:
    """Median and 5 to 95 % range."""
    values = values[np.isfinite(values)]
    if not len(values):
        return "–"
    low, middle, high = np.quantile(np.asarray(values, np.float64), [0.05, 0.5, 0.95])
    return f"{number(middle)} [{number(low)}, {number(high)}]"


def last_step(results: xr.Dataset, reached: str = "valid_loss") -> int:
    """The last step at which every member has a value of the variable `reached`; 0 if there is
    none.

    A member that diverged holds up no other: it counts as having come to the end.
    """
    values = results[reached].where(results["diverged_at"] < 0, 0)
    (steps,) = (name for name in values.dims if str(name).endswith("step"))
    complete = xr.apply_ufunc(np.isfinite, values).all(
        [name for name in values.dims if name != steps]
    )
    return int(results[steps][complete].max()) if complete.any() else 0


def at_end(values: xr.DataArray, results: xr.Dataset) -> xr.DataArray:
    """Take a variable of the results at their last step."""
    steps = next(name for name in values.dims if str(name).endswith("step"))
    return values.sel({steps: last_step(results)}, drop=True)


def plain_arm(results: xr.Dataset, *, tied: bool) -> Arm | None:
    """The arm that is tied, or untied, from start to end, and has no options of a head; None if it
    is not there.
    """
    fits = (
        arm
        for arm in arms_of(results)
        if arm.is_plain and arm.tied == tied and arm.untie_at is None
    )
    return next(fits, None)


def course_steps(results: xr.Dataset, parts: Sequence[float] = COURSE) -> list[int]:
    """The records at these parts of the training, ascending; the last is one that all members have
    reached.
    """
    steps, last = results["step"].values, last_step(results)
    return sorted({int(steps[np.abs(steps - last * part).argmin()]) for part in parts})


def swept(results: xr.Dataset) -> tuple[str, ...]:
    """Names of the settings that were swept: the results' dimensions between arm and seed."""
    return tuple(map(str, results["diverged_at"].dims[1:-1]))


def settings(
    results: xr.Dataset, names: Sequence[str]
) -> Iterator[tuple[dict[str, float], xr.Dataset]]:
    """The results at every combination of the values of some swept settings."""
    for values in itertools.product(*(results[name].values.tolist() for name in names)):
        at = dict(zip(names, values))
        yield at, results.sel(at)


def arms_of(results: xr.Dataset) -> list[Arm]:
    """The arms that were compared, in their order."""
    return [Arm.parse(str(name)) for name in results["arm"].values]


def tables_of(arm: Arm) -> dict[str, Literal["input", "output"]]:
    """Label -> which: an arm's tables; one if its output embedding is its input embedding
    throughout.
    """
    if arm.untied_from is None:
        return {arm.name: "input"}
    return {f"{arm} input": "input", f"{arm} output": "output"}


def summary_markdown(results: xr.Dataset, tables: Sequence[Table]) -> str:
    """The text of `summary.md`: what was asked, how, and these tables."""
    head = [
        f"# {results.attrs['experiment']}",
        "",
        results.attrs["claim"],
        "",
        f"`{results.attrs['command']}`",
        "",
    ]
    return "\n".join([*head, *(table.markdown() for table in tables)])


def show(*tables: Table) -> None:
    """Print tables, fitted to the terminal where there is one."""
    from rich.console import Console
    from rich.table import Table as Grid

    for part in tables:
        grid = Grid(
            title=part.title,
            title_justify="left",
            caption=part.note or None,
            caption_justify="left",
        )
        for i, name in enumerate(part.header):
            grid.add_column(name, justify="left" if i == 0 else "right")
        for row in part.rows:
            grid.add_row(*row)
        width = None if sys.stdout.isatty() else 160
        Console(width=width, markup=False, emoji=False).print(grid)  # a name is what it is


def finite(value: Any) -> Any:
    """Plain values as JSON can have them, at any depth: None stands for what is no finite
    number.
    """
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
