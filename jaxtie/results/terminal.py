"""What is printed: tables, plain values."""

import math
import sys
from typing import Any

from jaxtie.results.tables import Table


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
