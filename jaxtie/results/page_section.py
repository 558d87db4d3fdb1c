"""Sections that `advise` writes for the page of `--all`, as JSON. Imports no jax."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxtie.config import UserError
from jaxtie.results.folder import replacing
from jaxtie.results.tables import Table

SECTION = "section.json"


class PageSection(NamedTuple):
    """A section of the page; `captions`: file name of a figure in `figures/`, no suffix -> text."""

    command: str
    sentences: list[str]
    tables: list[Table]
    captions: dict[str, str]


def write_section(
    folder: Path, command: str, sentences: Sequence[str], tables: Sequence[Table], **captions: str
) -> None:
    """Write a section, or replace it."""
    section = PageSection(command, list(sentences), list(tables), captions)._asdict()
    section["tables"] = list(map(dataclasses.asdict, tables))
    with replacing(folder / SECTION) as path:
        path.write_text(json.dumps(section), encoding="utf-8")


def read_section(folder: Path) -> PageSection:
    """Read the section in a folder.

    Raises:
      UserError: where it cannot be read.
    """
    try:
        read = json.loads((folder / SECTION).read_text(encoding="utf-8"))
        return PageSection(**read)._replace(tables=[_table(**table) for table in read["tables"]])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{folder / SECTION}: cannot be read ({type(error).__name__}); remove it"
        ) from None


def _table(header: list[str], rows: list[list[str]], **rest: Any) -> Table:
    return Table(header=tuple(header), rows=[tuple(row) for row in rows], **rest)
