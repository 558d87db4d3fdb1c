"""The command line of `python -m jaxtie.audit`: options -> an audit -> print. Imports no jax."""

import io
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from jaxtie.audit.find import RowTable
from jaxtie.audit.judge import Audit, ModelVerdict, Request, audit
from jaxtie.config import UserError
from jaxtie.options import Flag, option, parse_command, parse_path
from jaxtie.shutdown import INTERRUPTED

SECONDS = 5.0  # between two lines of progress, at least
UNREADABLE = 2  # exit status


@dataclass(frozen=True)
class AuditOptions:
    """Say how a checkpoint's input and output embedding relate, what its flags claim, and what
    loaders will do with it.

    Nothing is executed, nothing unpickled, nothing written. Exit status: 0 consistent, 1
    inconsistent, 2 unreadable.
    """

    path: Annotated[tyro.conf.Positional[Path], option("PATH", parse_path)]
    """.safetensors (one file, an index, or a folder of shards), .npz, Keras .weights.h5, .gguf, an
    Orbax folder, or the folder of a run of jaxtie."""
    against: Annotated[Path | None, option("OLD", parse_path, "none")] = None
    """An older checkpoint of the same model: say which rows are unchanged since then."""
    adapter: Annotated[Path | None, option("DIR", parse_path, "none")] = None
    """Folder of an adapter over the model, as PEFT saves it: say which ends it trains."""
    input: Annotated[str | None, option("NAME", str, "found by its name")] = None
    """Tensor that is the input embedding."""
    output: Annotated[str | None, option("NAME", str, "found by its name")] = None
    """Tensor that is the output embedding."""
    json: Flag = False
    """Print JSON."""
    quiet: Flag = False
    """No progress."""


class _Progress:
    """A line of progress now and then; on a terminal one that is written over."""

    def __init__(self, quiet: bool):
        self._quiet, self._live = quiet, sys.stderr.isatty()
        self._shown = time.monotonic()

    def tick(self, what: str, done: int, count: int) -> None:
        now = time.monotonic()
        if self._quiet or now - self._shown < (0.2 if self._live else SECONDS):
            return
        self._shown = now
        self._write(f"{what}: {done:,} of {count:,} rows")

    def _write(self, line: str) -> None:
        print(
            f"\r\033[K{line}" if self._live else line,
            end="" if self._live else "\n",
            file=sys.stderr,
            flush=True,
        )

    def close(self) -> None:
        if self._live and not self._quiet:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def main_audit(arguments: Sequence[str] | None = None) -> int:
    """The command line of `python -m jaxtie.audit`; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a tensor's name may hold anything
    try:
        options = parse_command(
            AuditOptions, "jaxtie.audit", sys.argv[1:] if arguments is None else arguments
        )
        progress = _Progress(options.quiet)
        asked = Request(options.against, options.adapter, options.input, options.output)
        try:
            found = audit(options.path, asked, progress.tick)
        finally:
            progress.close()
        print(json.dumps(found.as_dict(), indent=1) if options.json else "\n".join(lines_of(found)))
    except UserError as error:
        print(f"jaxtie.audit: {_in_one_line(str(error))}", file=sys.stderr)
        return UNREADABLE
    except OSError as error:
        text = f"{error.filename or 'output'}: {error.strerror or error}"
        print(f"jaxtie.audit: {_in_one_line(text)}", file=sys.stderr)
        return UNREADABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    return found.status


def _in_one_line(text: str) -> str:
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def lines_of(found: Audit) -> Iterator[str]:
    """What an audit found, the plain sentence first."""
    for i, verdict in enumerate(found.verdicts):
        yield from [""] * (i > 0)
        yield from (_in_one_line(line) for line in _verdict_lines(found, verdict))


def _verdict_lines(found: Audit, verdict: ModelVerdict) -> Iterator[str]:
    main = verdict.main
    arm = f"arm {verdict.name}: " if verdict.name else ""
    yield f"{arm}{'Consistent' if verdict.is_consistent else 'Inconsistent'}. {main.text}"
    if main.fix:
        yield f"{'Fix' if main.level == 'wrong' else 'You can'}: {main.fix}."
    yield ""
    yield from _described("input", verdict.ends.input)
    yield from _described("output", verdict.ends.output)
    if found.checkpoint.configuration.path:
        yield f"flags    {'; '.join(flag.text for flag in found.checkpoint.configuration.flags)}"
    else:
        yield "flags    none: there is no config.json beside it"
    for line in main.loaders:
        yield f"loader   {line}"
    for finding in verdict.findings:
        if finding is not main:
            yield (
                f"{finding.level:<8} {finding.text}{f' Fix: {finding.fix}.' if finding.fix else ''}"
            )
            for line in finding.loaders:
                yield f"loader   {line}"
    yield (
        f"cost     tying {'saves' if verdict.ends.output else 'has saved'} {verdict.saved:,} bytes"
    )


def _described(role: str, table: RowTable | None) -> Iterator[str]:
    if table is None:
        yield f"{role:<8} none stored"
        return
    way = ", stored D × V" if table.across else ""
    tensor = table.tensor
    yield (
        f"{role:<8} {tensor.name}  {table.vocabulary:,} × {table.width:,}{way}  {tensor.stored} "
        f" {tensor.file.name}"
    )
