"""Command line of `jaxtie.audit`. Imports no jax."""

import contextlib
import io
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from jaxtie.audit.audit import Audit, ModelVerdict, audit
from jaxtie.audit.find import EmbeddingTable
from jaxtie.audit.findings import Finding
from jaxtie.audit.headers import reason_of
from jaxtie.config import UserError
from jaxtie.options import Flag, option, parse_command, parse_path
from jaxtie.shutdown import INTERRUPTED

SECONDS = 5.0  # between two lines of progress, at least
UNREADABLE = 2  # exit status


@dataclass(frozen=True)
class AuditOptions:
    """Report how a checkpoint's embeddings relate, what its flags claim, and what loaders will do.

    Nothing is executed, unpickled or written. Exit status: 0 consistent, 1 inconsistent, 2
    unreadable.
    """

    path: Annotated[tyro.conf.Positional[Path], option("PATH", parse_path)]
    """.safetensors (one file, an index, or a folder of shards), .npz, Keras .weights.h5, .gguf, an
    Orbax folder, or the folder of a run of jaxtie."""
    against: Annotated[Path | None, option("OLD", parse_path, "none")] = None
    """An older checkpoint of the same model: report which rows have not changed since."""
    adapter: Annotated[Path | None, option("DIR", parse_path, "none")] = None
    """Folder of an adapter for the model, as PEFT saves it: report which embeddings it trains."""
    input: Annotated[str | None, option("NAME", str, "found by its name")] = None
    """Tensor that is the input embedding."""
    output: Annotated[str | None, option("NAME", str, "found by its name")] = None
    """Tensor that is the output embedding."""
    json: Flag = False
    """Print JSON."""
    quiet: Flag = False
    """Show no progress."""


class _Progress:
    """Print a line of progress now and then; on a terminal, overwrite it."""

    def __init__(self, quiet: bool):
        self._quiet, self._live = quiet, sys.stderr.isatty()
        self._shown = time.monotonic()

    def __call__(self, what: str, done: int, count: int) -> None:
        now = time.monotonic()
        if self._quiet or now - self._shown < (0.2 if self._live else SECONDS):
            return
        self._shown = now
        start, end = ("\r\033[K", "") if self._live else ("", "\n")
        line = f"{start}{what}: {done:,} of {count:,} rows"
        print(line, end=end, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._live and not self._quiet:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def main_audit(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a tensor's name may hold anything
    try:
        arguments = sys.argv[1:] if arguments is None else arguments
        options = parse_command(AuditOptions, "jaxtie.audit", arguments)
        with contextlib.closing(_Progress(options.quiet)) as progress:
            found = audit(
                options.path,
                against=options.against,
                adapter=options.adapter,
                names=(options.input, options.output),
                progress=progress,
            )
        print(json.dumps(found.as_dict(), indent=1) if options.json else "\n".join(lines_of(found)))
    except BrokenPipeError:
        raise
    except (UserError, OSError) as error:
        text = str(error)
        if isinstance(error, OSError):
            text = f"{error.filename or 'output'}: {error.strerror or error}"
        print(f"jaxtie.audit: {_escape(text)}", file=sys.stderr)
        return UNREADABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # the last resort: a fault of this program, or a file made for one
        text = f"{options.path}: {type(error).__name__} ({reason_of(error)}); please report it"
        print(f"jaxtie.audit: {_escape(text)}", file=sys.stderr)
        return UNREADABLE
    return found.status


def _escape(text: str) -> str:
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def lines_of(found: Audit) -> Iterator[str]:
    """Yield the lines of the report, the verdict first."""
    for i, verdict in enumerate(found.verdicts):
        if i:
            yield ""
        yield from map(_escape, _verdict_lines(found, verdict))


def _verdict_lines(found: Audit, verdict: ModelVerdict) -> Iterator[str]:
    main, embeddings = verdict.main, verdict.embeddings
    arm = f"arm {verdict.arm}: " if verdict.arm else ""
    yield f"{arm}{'Consistent' if verdict.is_consistent else 'Inconsistent'}. {main.text}"
    if main.fix:
        yield f"{'Fix' if main.level == 'wrong' else 'You can'}: {main.fix}."
    yield ""
    yield _table_line("input", embeddings.input)
    yield _table_line("output", embeddings.output)
    flags = "none: there is no config.json next to it"
    if found.checkpoint.configuration.path:
        flags = "; ".join(flag.text for flag in found.checkpoint.configuration.flags)
    yield f"flags    {flags}"
    yield from _loader_lines(main)
    for finding in verdict.findings:
        if finding is not main:
            fix = f" Fix: {finding.fix}." if finding.fix else ""
            yield f"{finding.level:<8} {finding.text}{fix}"
            yield from _loader_lines(finding)
    yield f"cost     tying {'saves' if embeddings.output else 'has saved'} {verdict.saved:,} bytes"


def _loader_lines(finding: Finding) -> Iterator[str]:
    return (f"loader   {line}" for line in finding.loaders)


def _table_line(role: str, table: EmbeddingTable | None) -> str:
    if table is None:
        return f"{role:<8} none stored"
    layout = ", stored D × V" if table.transposed else ""
    tensor = table.tensor
    size = f"{table.vocabulary:,} × {table.width:,}{layout}"
    return f"{role:<8} {tensor.name}  {size}  {tensor.stored}  {tensor.file.name}"
