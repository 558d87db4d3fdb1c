"""What a command that is no experiment leaves for the page of `--all`: sentences, tables, captions;
JSON. Imports no jax.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxtie.config import UserError
from jaxtie.results.tables import Table

SECTION = "section.json"


class PageSection(NamedTuple):
    """A section of the page.

    Attributes:
      command: that left it.
      sentences: what came out.
      captions: file name of a figure in `figures/`, without its ending -> what it shows.
    """

    command: str
    sentences: list[str]
    tables: list[Table]
    captions: dict[str, str]


def leave_for_page(
    folder: Path, command: str, sentences: Sequence[str], tables: Sequence[Table], **captions: str
) -> None:
    """Write what `read_section` reads; the file is the old one or the new one."""
    kept = PageSection(command, list(sentences), list(tables), captions)._asdict()
    kept["tables"] = [dataclasses.asdict(table) for table in tables]
    temporary = folder / f".{SECTION}"
    temporary.write_text(json.dumps(kept), encoding="utf-8")
    temporary.replace(folder / SECTION)


def read_section(folder: Path) -> PageSection:
    """What a command has left in a folder.

    Raises:
      UserError: where it cannot be read.
    """
    try:
        read = json.loads((folder / SECTION).read_text(encoding="utf-8"))
        return PageSection(**read)._replace(tables=[_table(**table) for table in read["tables"]])
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{folder / SECTION}: cannot be read ({type(error).__name__}); remove it"
        ) from None


def _table(header: list[str], rows: list[list[str]], **rest: Any) -> Table:
    """A table from what JSON has made of it."""
    return Table(header=tuple(header), rows=[tuple(row) for row in rows], **rest)
