"""Command line of `jaxtie.audit`. Imports no jax."""

import contextlib
import difflib
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from jaxtie.audit.audit import Audit, audit
from jaxtie.audit.checkpoint import MAIN, whole
from jaxtie.audit.compare import Progress
from jaxtie.audit.find import EmbeddingTable
from jaxtie.audit.findings import CAUSES, Finding
from jaxtie.audit.headers import reason_of
from jaxtie.audit.knowledge import SOUND
from jaxtie.audit.repair import How, write_repaired
from jaxtie.config import UserError, check
from jaxtie.options import (
    argument,
    escape,
    flag,
    one_line,
    option,
    parse_command,
    parse_path,
    run_command,
)

SECONDS = 5.0  # between two lines of progress, at least
UNREADABLE = 2  # exit status
SCHEMA = 1  # version of the JSON
WORDS = ("consistent", "inconsistent", "unreadable")  # by exit status


def _parse_name(text: str) -> Path:
    if not text:
        raise ValueError("expected a file, a folder, or several")
    return Path(text)


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
usage: jaxtie audit PATH ... [OPTIONS]

Report how a checkpoint's embeddings relate, what its flags claim, and what loaders will do. Nothing
is executed or unpickled, and only --write writes. Exit status: 0 consistent, 1 inconsistent, 2
unreadable.

  PATH ...           .safetensors (one file, an index, or a folder of shards), .npz, .keras,
                     .weights.h5, .gguf, an Orbax folder, or ORG/NAME in the local Hugging Face
                     cache. Of several, one line each is printed, and the worst exit status counts
  --against OLD      an older checkpoint of the same model: report which rows have not changed since
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
  --verbose          of one PATH: print every finding, and how each loader behaves
  --json             print JSON: a schema with a version, and the finding that set each status
  --quiet            show no progress
"""
    paths: tuple[Path, ...] = argument(_parse_name, ())
    against: Path | None = option(parse_path)
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
    check(len(options.paths) > 0, "expected PATH, a checkpoint")
    options = replace(options, paths=_checkpoints(options.paths))
    count = len(options.paths)
    is_one = not (options.against or options.adapter or options.input or options.output)
    check(count == 1 or is_one, "--against, --adapter, --input and --output need one PATH")
    is_shown = count == 1 and not options.json
    check(is_shown or not options.verbose, "--verbose: expected with one PATH, without --json")
    if (how := _how(options)) and options.write:
        return _write(options.paths[0], options.write, how, options)
    progress = _Progress(options.quiet)
    results = [_audit(path, options, progress) for path in options.paths]
    first, pairs = results[0], list(zip(options.paths, results, strict=True))
    if isinstance(first, str) and count == 1:
        raise UserError(first)
    status = max(UNREADABLE if isinstance(one, str) else one.status for one in results)
    if options.json:
        found = [
            {"path": str(path), "status": UNREADABLE, "error": one}
            if isinstance(one, str)
            else one.as_dict()
            for path, one in pairs
        ]
        print(json.dumps({"schema": SCHEMA, "status": status, "checkpoints": found}, indent=1))
    elif isinstance(first, Audit) and count == 1:
        print("\n".join(lines_of(first, verbose=options.verbose)))
    else:
        width = max(len(escape(str(path))) for path in options.paths)
        for path, one in pairs:
            own = escape(str(path))
            text = one.removeprefix(f"{own}: ") if isinstance(one, str) else one.main.text
            word = WORDS[UNREADABLE] if isinstance(one, str) else _word(one)
            print(f"{word:<12}  {own:<{width}}  {escape(text)}")
    return status


def _checkpoints(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return each checkpoint once, also if a hook names several of its files."""
    found = dict.fromkeys(map(whole, paths))
    return tuple(path for path in found if path.parent not in found or path.name not in MAIN)


def _how(options: AuditOptions) -> How | None:
    """Return which repair the options ask for, if any."""
    asked: dict[How, bool] = {"tie": options.tie, "untie": options.untie, "flags": options.flags}
    chosen: list[How] = [name for name, is_asked in asked.items() if is_asked]
    needed = int(options.write is not None)
    check(needed <= len(chosen) < 2, "--tie, --untie, --flags: give one of them")
    check(not chosen or options.write is not None, f"--{''.join(chosen)} needs --write NEW")
    others = options.against or options.adapter or options.json
    is_plain = not others and not options.allow and len(options.paths) == 1
    allowed = "--tie, --untie, --flags, --input, --output, --verbose and --quiet"
    check(not options.write or is_plain, f"--write takes one PATH and only {allowed}")
    return next(iter(chosen), None)


def _write(path: Path, new: Path, how: How, options: AuditOptions) -> int:
    names, progress = (options.input, options.output), _Progress(options.quiet)
    with _last_resort(path):
        result, done = write_repaired(path, new, how, names=names, progress=progress)
    print(f"wrote    {escape(f'{new}: {done}')}")
    print("\n".join(lines_of(result, verbose=options.verbose)))
    return result.status


def _audit(path: Path, options: AuditOptions, progress: Progress) -> Audit | str:
    """Audit one path; return the reason in one line if it cannot be read."""
    try:
        with _last_resort(path):
            return audit(
                path,
                against=options.against,
                adapter=options.adapter,
                names=(options.input, options.output),
                allowed=options.allow or (),
                progress=progress,
            )
    except (UserError, OSError) as error:
        return one_line(error)


@contextlib.contextmanager
def _last_resort(path: Path) -> Iterator[None]:
    """Report in one line a fault of this program, or a file that was made for one."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__} ({reason_of(error)})"
        raise UserError(f"{path}: {reason}; please report it") from None


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
    if main.fix:
        yield f"{'to do' if main.level == 'wrong' else 'you can':<8} {main.fix}"
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
    if found.main.level == "allowed":
        return "allowed"
    is_unknown = found.status == 0 and found.main.code == "packed"
    return "not known" if is_unknown else WORDS[found.status]


def _is_shown(finding: Finding) -> bool:
    """Return whether a finding is printed without --verbose: faults and what options ask for."""
    return finding.level in ("wrong", "allowed") or finding.code in ("adapter", "against")


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
