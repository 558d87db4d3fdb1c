"""Tables of results: numbers as text, arms and steps, Markdown, the terminal. Imports no jax."""

import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import xarray as xr

from jaxtie.config import Arm, names_of
from jaxtie.results.statistics import mean_interval, median_interval

Labelled = TypeVar("Labelled", xr.Dataset, xr.DataArray)


class Column(NamedTuple):
    """A column of a table: a value for each row, and how to format one; None is an empty cell."""

    label: str
    values: Iterable[Any]
    format: Callable[[Any], str] = str


@dataclass(frozen=True)
class Table:
    """A table of strings with a title above and a note below; the first column names the row."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""

    @classmethod
    def of(cls, title: str, columns: Sequence[Column], note: str = "") -> "Table":
        """Format columns."""
        cells = (["" if v is None else each.format(v) for v in each.values] for each in columns)
        rows = list(zip(*cells, strict=True))
        return cls(title, tuple(each.label for each in columns), rows, note)

    def shortened(self, rows: int) -> "Table":
        """Return the table with its first rows only, and say so."""
        if len(self.rows) <= rows:
            return self
        note = f"{rows} of {len(self.rows)} rows. {self.note}"
        return dataclasses.replace(self, rows=self.rows[:rows], note=note)

    def select(self, labels: Iterable[str]) -> "Table":
        """Return the table with some columns, in this order; without those that it lacks."""
        columns = dict(zip(self.header, zip(*self.rows)))
        own = {label: columns[label] for label in labels if label in columns}
        return dataclasses.replace(self, header=tuple(own), rows=list(zip(*own.values())))

    def markdown(self) -> str:
        """Return the table in Markdown, verdicts in bold, with a blank line after it."""
        bold = ["**" * (label == "verdict") for label in self.header]
        body = ([f"{mark}{cell}{mark}" for mark, cell in zip(bold, row)] for row in self.rows)
        rows = (self.header, ("---",) * len(self.header), *body)
        cells = ((" ".join(cell.replace("|", r"\|").splitlines()) for cell in row) for row in rows)
        lines = [f"| {' | '.join(row)} |" for row in cells]
        note = [self.note, ""] if self.note else []
        return "\n".join([f"**{self.title}**", "", *lines, "", *note])

    @classmethod
    def read(cls, markdown: str) -> "Table | None":
        """Read what `markdown` wrote, without bold type; None if it is no table any more."""
        lines = [line.strip() for line in markdown.replace("**", "").splitlines() if line.strip()]
        rows = [line[2:-2].split(" | ") for line in lines if line.startswith("| ")]
        if len(rows) < 2:
            return None
        header, _, *cells = (tuple(cell.replace(r"\|", "|") for cell in row) for row in rows)
        return cls(lines[0], header, cells, " ".join(lines[len(rows) + 1 :]))


def format_number(value: float) -> str:
    """Format a number; NaN and infinity as a dash."""
    return f"{value:.3f}" if np.isfinite(value) else "–"


def format_mean(values: np.ndarray, error: float = 0.05) -> str:
    """Format the mean of values over seeds and half its confidence interval, of 95 % by default."""
    mean, half = map(float, mean_interval(np.asarray(values, np.float64), error=error))
    return format_number(mean) + f" ± {half:.3f}" * bool(np.isfinite(half))


def format_median(values: np.ndarray) -> str:
    """Format the median of values over seeds and its 95 % interval by ranks."""
    return format_estimate(*median_interval(values))


def format_estimate(
    low: float, middle: float, high: float, shown: Callable[[float], str] = format_number
) -> str:
    """Format an estimate and its interval; alone where there is none, as for few seeds."""
    if np.isnan(middle):
        return "–"
    ends = f" [{shown(low)}, {shown(high)}]" if np.isfinite([low, high]).any() else ""
    return shown(middle) + ends


def arm_cells(
    values: xr.DataArray, shown: Callable[[np.ndarray], str] = format_mean
) -> tuple[str, ...]:
    """Format the values of each arm, then each arm's difference from the reference, by seed."""
    arms, reference = names_of(arms_of(values)), reference_arm(values)
    gaps = values - values.sel(arm=reference, drop=True)
    cells = [values.sel(arm=arm) for arm in arms]
    cells += [gaps.sel(arm=arm) for arm in arms if arm != reference]
    return tuple(shown(each.values) for each in cells)


def arm_header(results: xr.Dataset | xr.DataArray) -> tuple[str, ...]:
    """Return the header of the columns of `arm_cells`: "ARM" and "ARM − REFERENCE"."""
    reference, arms = reference_arm(results), names_of(arms_of(results))
    return (*arms, *(f"{arm} − {reference}" for arm in arms if arm != reference))


def along_steps(values: xr.DataArray) -> str:
    """Return the name of the dimension of steps, or of evaluations."""
    return next(str(name) for name in values.dims if str(name).endswith("step"))


def last_step(results: xr.Dataset, reached: str = "valid_loss") -> int:
    """Return the last step at which every member has a value of a variable; 0 if there is none.

    Members that diverged do not count.
    """
    values = results[reached].where(results["diverged_at"] < 0, 0)
    steps = along_steps(values)
    others = [name for name in values.dims if name != steps]
    complete = xr.apply_ufunc(np.isfinite, values).all(others)
    return int(results[steps].where(complete, 0).max())


def at_end(values: xr.DataArray, results: xr.Dataset, reached: str = "valid_loss") -> xr.DataArray:
    """Take a variable of the results at their last step, see `last_step`."""
    return values.sel({along_steps(values): last_step(results, reached)}, drop=True)


def arms_of(results: xr.Dataset | xr.DataArray) -> list[Arm]:
    """Return the arms that were compared, in their order."""
    return [Arm.parse(str(name)) for name in results["arm"].values]


def tied_and_untied(results: xr.Dataset | xr.DataArray) -> tuple[str, str] | None:
    """Return the first pair of arms that differ only in tying, throughout; None without one."""
    arms = [arm for arm in arms_of(results) if arm.untie_at is None and not arm.head.is_partly_tied]
    pairs = (
        (tied.name, untied.name)
        for tied, untied in itertools.product(arms, arms)
        if tied.tied and not untied.tied and tied.head == untied.head
    )
    return next(pairs, None)


def reference_arm(results: xr.Dataset | xr.DataArray) -> str:
    """Return the arm that others are compared with: the first untied one, else the first."""
    pair = tied_and_untied(results)
    return pair[1] if pair else arms_of(results)[0].name


def tables_of(arm: Arm) -> dict[str, Literal["input", "output"]]:
    """Map labels to an arm's embedding tables: one if it is tied throughout."""
    if arm.untied_from is None:
        return {arm.name: "input"}
    return {f"{arm} input": "input", f"{arm} output": "output"}


def embeddings_of(results: xr.Dataset) -> list[tuple[str, str, Literal["input", "output"]]]:
    """Return arm, label and side, "input" or "output", of every embedding table."""
    return [
        (arm.name, label, side)
        for arm in arms_of(results)
        for label, side in tables_of(arm).items()
    ]


def swept(results: xr.Dataset) -> tuple[str, ...]:
    """Return the swept names: the results' dimensions between arm and seed."""
    return tuple(map(str, results["diverged_at"].dims[1:-1]))


def sweep_points(
    results: Labelled, names: Sequence[str]
) -> Iterator[tuple[dict[str, float], Labelled]]:
    """Yield each combination of values of some swept names, and the results there."""
    for values in itertools.product(*(results[name].values.tolist() for name in names)):
        at = dict(zip(names, values))
        yield at, results.sel(at)


def summary_markdown(results: xr.Dataset, sentences: Sequence[str], tables: Sequence[Table]) -> str:
    """Return the text of `summary.md`: experiment, claim, command, conclusion and these tables."""
    name, claim, command = (results.attrs[key] for key in ("experiment", "claim", "command"))
    claimed = [f"Claim: {claim}", ""] if claim else []
    head = [f"# {name}", "", *claimed, f"`{command}`", "", *(f"{line}\n" for line in sentences)]
    return "\n".join([*head, *(table.markdown() for table in tables)])


def print_tables(*tables: Table) -> None:
    """Print tables, fitted to the terminal where there is one."""
    from rich.console import Console  # heavy
    from rich.table import Table as Grid

    for part in tables:
        left: Any = {"title_justify": "left", "caption_justify": "left"}
        grid = Grid(title=part.title, caption=part.note or None, **left)
        for i, name in enumerate(part.header):
            grid.add_column(name, justify="left" if i == 0 else "right")
        for row in part.rows:
            grid.add_row(*row)
        width = None if sys.stdout.isatty() else 160
        console = Console(width=width, markup=False, emoji=False)  # names are not markup
        with console.capture() as printed:
            console.print(grid)
        print(printed.get(), end="")


def json_numbers(value: Any) -> Any:
    """Replace numbers that JSON lacks (NaN, infinity) with None, at any depth."""
    if isinstance(value, dict):
        return {name: json_numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return list(map(json_numbers, value))
    return None if isinstance(value, float) and not math.isfinite(value) else value
