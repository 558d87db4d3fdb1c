"""`--all`: runs every experiment of a folder, one after the other, and writes the page of all after
each.
"""

import contextlib
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from jaxtie.config import MissingInputError, TaskConfig, UserError
from jaxtie.results.folder import RunFolder
from jaxtie.results.tables import show
from jaxtie.run.lifecycle import Outcome, Session
from jaxtie.run.page import (
    FAILED,
    SKIPPED,
    Section,
    check_page,
    sections_left,
    status_table,
    write_page,
)
from jaxtie.training.progress import duration


class _Status:
    """The exit status so far: 0; 2 where an experiment failed, 1 where there was a bug."""

    def __init__(self, one_line: Callable[[UserError | OSError], str]):
        self.number, self.one_line = 0, one_line

    @contextlib.contextmanager
    def noted(self, section: Section) -> Iterator[None]:
        """What fails within is told at once, and stays on the page."""
        try:
            yield
        except MissingInputError as error:
            section.status, section.error = SKIPPED, self.one_line(error)
            print(f"jaxtie: skipped, {error}", file=sys.stderr)
        except (UserError, OSError) as error:
            section.status, section.error, self.number = (
                FAILED,
                self.one_line(error),
                self.number or 2,
            )
            print(f"jaxtie: {section.error}", file=sys.stderr)
        # a bug, or a device's memory is full: the experiments to come shall not pay for it
        except Exception as error:
            section.status, section.error, self.number = (
                FAILED,
                f"{type(error).__name__}: {error}",
                1,
            )
            traceback.print_exc()


def run_all(
    paths: Sequence[Path],
    declared: Callable[[Path], TaskConfig],
    carry_out: Callable[[TaskConfig, RunFolder], Outcome],
    out: Path,
    page: Path | None,
    session: Session,
    one_line: Callable[[UserError | OSError], str],
) -> int:
    """Run every experiment, and bring the page up to date after each.

    Args:
      paths: of the experiments' files.
      declared: the experiment of a file, with what the options change.
      carry_out: runs one into its folder.
      out: folder of the runs' folders.
      page: to be written; None: nothing is (a dry run).
      one_line: what an error says.

    Returns:
      The exit status: 130 where it was interrupted, else 1 where there was a bug, 2 where an
        experiment failed.
    """
    check_page(out / "index.html")
    began, status = time.monotonic(), _Status(one_line)
    sections = [Section(str(path), path.stem) for path in paths]
    todo = _declare(paths, sections, declared, status)

    def save() -> None:
        if page:
            write_page(page, session.command, [*sections, *sections_left(out)])

    save()  # now rather than after an hour, should it not be possible
    for i, (section, experiment) in enumerate(todo, 1):
        session.say(
            f"{i} of {len(todo)}: {section.name}, {duration(time.monotonic() - began)} since the"
            " start"
        )
        with status.noted(section):
            folder = RunFolder(out / experiment.name)
            try:
                section.status = carry_out(experiment, folder)
            except KeyboardInterrupt:
                section.status = Outcome.INTERRUPTED
            if page:
                section.read(folder)
        save()
        if section.status == Outcome.INTERRUPTED:
            status.number = 130
            break
    if page:
        show(status_table(sections))
        print(f"figures and tables of all: {page}")
    return status.number


def _declare(
    paths: Sequence[Path],
    sections: Sequence[Section],
    declared: Callable[[Path], TaskConfig],
    status: _Status,
) -> list[tuple[Section, TaskConfig]]:
    """The experiments that can be run; what is wrong in a file is told before hours have gone
    by.
    """
    todo: list[tuple[Section, TaskConfig]] = []
    owners: dict[str, Path] = {}
    for path, section in zip(paths, sections, strict=True):
        with status.noted(section):
            experiment = declared(path)
            section.name, section.claim = experiment.name, experiment.claim
            if owners.setdefault(experiment.name, path) is not path:
                raise UserError(
                    f"{path}: is named {experiment.name!r} as {owners[experiment.name]} is; rename"
                    " one of them"
                )
            todo.append((section, experiment))
    return todo
