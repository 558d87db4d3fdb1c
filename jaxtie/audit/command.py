"""Command line of `jaxtie.audit`. Imports no jax."""

import difflib
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, get_args

from jaxtie.audit.audit import Audit, audit
from jaxtie.audit.checkpoint import MAIN_FILES, whole
from jaxtie.audit.find import EmbeddingTable
from jaxtie.audit.findings import CAUSES, Finding
from jaxtie.audit.headers import reason_of
from jaxtie.audit.knowledge import SOUND
from jaxtie.audit.repair import RepairKind, repairs_of, write_repaired
from jaxtie.config import UserError, check
from jaxtie.options import argument, escape, flag, option, parse_command, parse_path, run_command

SECONDS = 5.0  # between two lines of progress, at least
SCHEMA = 2  # version of the JSON


def _parse_causes(text: str) -> tuple[str, ...]:
    for cause in text.split(","):
        if cause not in CAUSES:
            near = difflib.get_close_matches(cause, CAUSES, 3, 0.3) or CAUSES
            raise ValueError(f"{cause!r}: expected one of {', '.join(near)}")
    return tuple(text.split(","))


@dataclass(frozen=True)
class AuditOptions:
    """Options of `jaxtie audit`."""

    HELP: ClassVar[str] = """
usage: jaxtie audit PATH [OPTIONS]

Report how a checkpoint's embeddings relate, what its flags claim, and what loaders will do. Nothing
is executed or unpickled, and only --write writes. Exit status: 0 consistent, 1 inconsistent, 2
unreadable.

  PATH               .safetensors (one file, an index, or a folder of shards), .npz, .keras,
                     .weights.h5, .gguf, or an Orbax folder; several files of one checkpoint, as a
                     hook names them, are one
  --adapter DIR      folder of an adapter for the model, as PEFT saves it: report which embeddings
                     it trains
  --input NAME       tensor that is the input embedding (found by its name)
  --output NAME      tensor that is the output embedding (found by its name)
  --write NEW        with --tie, --untie or --flags: write a repaired copy of a folder of
                     safetensors, and audit that
  --tie              with --write: drop the output embedding, also one that differs although the
                     flags say tied; every flag says tied
  --untie            with --write: store the output embedding, too; every flag says untied
  --flags            with --write: keep the embeddings; every flag, and the index, say what is
                     stored
  --allow CAUSE,...  causes, as --json names them, that leave a checkpoint consistent
  --verbose          print every finding, and how each loader behaves
  --json             print JSON: a schema with a version, and the finding that set the status
  --quiet            show no progress
"""
    paths: tuple[Path, ...] = argument(parse_path, ())
    adapter: Path | None = option(parse_path)
    input: str | None = option()
    output: str | None = option()
    write: Path | None = option(parse_path)
    tie: bool = flag()
    untie: bool = flag()
    flags: bool = flag()
    allow: tuple[str, ...] | None = option(_parse_causes)
    verbose: bool = flag()
    json: bool = flag()
    quiet: bool = flag()


class _Progress:
    """Print a line of progress now and then."""

    def __init__(self, quiet: bool):
        self._next = math.inf if quiet else time.monotonic() + SECONDS

    def __call__(self, what: str, done: int, count: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + SECONDS
            print(f"{what}: {done:,} of {count:,}", file=sys.stderr, flush=True)


def main_audit(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: _run(parse_command(AuditOptions, "jaxtie audit", words)))


def _run(options: AuditOptions) -> int:
    path, how = _checkpoint(options.paths), _how(options)
    check(not (options.verbose and options.json), "--verbose: expected without --json")
    names, progress = (options.input, options.output), _Progress(options.quiet)
    try:
        if how and options.write:
            new = options.write
            found, done = write_repaired(path, new, how, names=names, progress=progress)
            print(f"wrote    {escape(f'{new}: {done}')}")
        else:
            found = audit(
                path,
                adapter=options.adapter,
                names=names,
                allowed=options.allow or (),
                progress=progress,
            )
    except (UserError, OSError):
        raise
    except Exception as error:  # a fault of this program, or a file that was made for one
        reason = f"{type(error).__name__} ({reason_of(error)})"
        raise UserError(f"{path}: {reason}; please report it") from None
    if options.json:
        print(json.dumps({"schema": SCHEMA, **found.as_dict()}, indent=1))
    else:
        print("\n".join(lines_of(found, verbose=options.verbose)))
    return found.status


def _checkpoint(paths: Sequence[Path]) -> Path:
    """Return the checkpoint that a path means, or several of its files that a hook names."""
    found = dict.fromkeys(map(whole, paths))
    own = [path for path in found if path.parent not in found or path.name not in MAIN_FILES]
    shown = f", not {len(own)}: {', '.join(map(str, own[:3]))}" if own else ""
    check(len(own) == 1, f"expected PATH, one checkpoint{shown}")
    return own[0]


def _how(options: AuditOptions) -> RepairKind | None:
    """Return which repair the options ask for, if any."""
    chosen: list[RepairKind] = [how for how in get_args(RepairKind) if getattr(options, how)]
    is_fit = len(chosen) == int(options.write is not None)
    check(is_fit, "--write NEW: expected with one of --tie, --untie and --flags, and they with it")
    others = options.adapter or options.json or options.allow
    check(not chosen or not others, "--write: expected without --adapter, --allow and --json")
    return next(iter(chosen), None)


def lines_of(found: Audit, *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines of the report, the verdict first."""
    yield from map(escape, _verdict_lines(found))
    if verbose:
        yield from map(escape, _other_lines(found))


def _verdict_lines(found: Audit) -> Iterator[str]:
    """Yield the verdict, what is stored, what the flags say, what to do and for which loaders."""
    main, embeddings = found.main, found.embeddings
    yield f"{_word(found).capitalize()}. {main.text}"
    tables = [table for table in (embeddings.input, embeddings.output) if table]
    yield f"stored   {'; '.join(map(_describe, tables))}"
    flags = "none: there is no config.json next to it"
    if found.checkpoint.configuration.flags:
        flags = "; ".join(flag.text for flag in found.checkpoint.configuration.flags)
    yield f"flags    {flags}"
    if main.fix and main.level == "wrong":
        options = " or ".join(f"--{how}" for how in repairs_of(found))
        yield f"to do    {main.fix}{f' (--write NEW {options})' if options else ''}"
    elif main.fix:
        yield f"you can  {main.fix}"
    loaders = dict.fromkeys(line.partition(": ")[0] for line in main.loaders)
    if harmful := [name for name in loaders if name not in SOUND]:
        yield f"wrong in {'; '.join(harmful)}"
    for finding in found.findings:
        if finding is not main and _is_shown(finding):
            to_do = f" To do: {finding.fix}" if finding.fix else ""
            word = "allowed" if finding.level == "allowed" else "also"
            yield f"{word:<8} {finding.text}{to_do}"


def _word(found: Audit) -> str:
    """Return the verdict in a word; of packed embeddings that are not comparable there is none."""
    if found.status or found.main.level == "allowed":
        return "inconsistent" if found.status else "allowed"
    return "not known" if found.main.code == "packed" else "consistent"


def _is_shown(finding: Finding) -> bool:
    """Return whether a finding is printed without --verbose: faults, and what --adapter asks."""
    return finding.level in ("wrong", "allowed") or finding.code == "adapter"


def _other_lines(found: Audit) -> Iterator[str]:
    """Yield the lines of --verbose: notes, loaders, biases."""
    for finding in found.findings:
        if finding is not found.main and not _is_shown(finding):
            yield f"{finding.level:<8} {finding.text}"
    loaders = [line for finding in found.findings for line in finding.loaders]
    for line in dict.fromkeys(loaders):
        yield f"loader   {line}"
    for bias in found.embeddings.biases:
        yield f"bias     {bias.name}"


def _describe(table: EmbeddingTable) -> str:
    layout = ", stored D × V" if table.transposed else ""
    tensor = table.tensor
    size = f"{table.vocabulary:,} × {table.width:,}{layout}"
    return f"{tensor.name} ({size}, {tensor.stored}, {tensor.file.name})"
