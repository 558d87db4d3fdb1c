"""Tables on standard output."""

import sys

from jaxtie.results.tables import Table


def show(*tables: Table) -> None:
    """Print tables, fitted to the terminal where there is one."""
    from rich.console import Console
    from rich.table import Table as Grid

    for part in tables:
        grid = Grid(title=part.title, title_justify="left", caption=part.note or None, caption_justify="left")
        for i, name in enumerate(part.header):
            grid.add_column(name, justify="left" if i == 0 else "right")
        for row in part.rows:
            grid.add_row(*row)
        width = None if sys.stdout.isatty() else 160
        Console(width=width, markup=False, emoji=False).print(grid)  # a name is what it is
