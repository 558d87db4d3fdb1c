"""Run every experiment of a folder and keep one page about them up to date."""

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from jaxtie.checks import MissingInputError, UserError, check
from jaxtie.config import TaskConfig
from jaxtie.options import one_line, print_error
from jaxtie.results.folder import RunFolder
from jaxtie.results.tables import print_tables
from jaxtie.run.lifecycle import Outcome, Session
from jaxtie.run.page import (
    FAILED,
    SKIPPED,
    Section,
    check_page,
    status_table,
    write_page,
)
from jaxtie.shutdown import INTERRUPTED
from jaxtie.training.progress import duration


def run_all(
    paths: Sequence[Path],
    declare: Callable[[Path], TaskConfig],
    train: Callable[[TaskConfig, RunFolder], Outcome],
    out: Path,
    session: Session,
    *,
    dry_run: bool,
) -> int:
    """Run every experiment, and update the page after each.

    Args:
      paths: of the experiment files.
      declare: returns the experiment of a file, with the changes that the options ask for.
      train: runs an experiment into its folder.
      out: folder of the runs' folders.
      session: how they are run.
      dry_run: write no page.

    Returns:
      The exit status: 130 if interrupted, else 1 after a bug, else 2 if an experiment failed.
    """
    page = out / "index.html"
    check_page(page)
    began = time.monotonic()
    sections = [Section(str(path), path.stem) for path in paths]

    def save() -> None:
        if not dry_run:
            write_page(page, session.command, sections)

    # Report every error in a file, and that the page cannot be written, before hours have passed.
    declared: list[tuple[Section, TaskConfig]] = []
    owners: dict[str, Path] = {}
    for path, section in zip(paths, sections, strict=True):
        with _reported(section):
            experiment = declare(path)
            section.name, section.claim = experiment.name, experiment.claim
            owner = owners.setdefault(experiment.name, path)
            twice = f"{path}: is named {experiment.name!r} as {owner} is; rename one of them"
            check(owner is path, twice)
            declared.append((section, experiment))
    save()
    for i, (section, experiment) in enumerate(declared, 1):
        elapsed = duration(time.monotonic() - began)
        session.say(f"{i} of {len(declared)}: {section.name}, {elapsed} since the start")
        with _reported(section):
            folder = RunFolder(out / experiment.folder_name)
            try:
                section.status = train(experiment, folder)
            except KeyboardInterrupt:
                section.status = Outcome.INTERRUPTED
            if section.status == Outcome.INTERRUPTED:
                section.exit_status = INTERRUPTED
            if not dry_run:
                section.read(folder)
        save()
        if section.exit_status == INTERRUPTED:
            break
    if not dry_run:
        print_tables(status_table(sections))
        print(f"figures and tables of all: {page}")
    statuses = {section.exit_status for section in sections}
    return next((status for status in (INTERRUPTED, 1, 2) if status in statuses), 0)


@contextlib.contextmanager
def _reported(section: Section) -> Iterator[None]:
    """Report an error at once and on the page, and go on with the other experiments."""
    try:
        yield
    except MissingInputError as error:
        section.status, section.error = SKIPPED, str(error)
        print_error(f"skipped, {error}")
    except (UserError, OSError) as error:
        section.status, section.error, section.exit_status = FAILED, one_line(error), 2
        print_error(section.error)
    except Exception as error:  # a bug, or a device out of memory
        section.status, section.exit_status = FAILED, 1
        section.error = f"{type(error).__name__}: {error}"
        traceback.print_exc()
