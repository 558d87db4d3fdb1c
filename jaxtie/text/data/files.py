"""Read text files as documents, paragraphs and sentences, never more than a piece in memory.

A line that is not UTF-8 is read as Latin-1. Lines end in LF, CRLF or CR; a byte order mark is
dropped. Blank lines end a paragraph. A line or paragraph of more than `PIECE` bytes is cut, since
some corpora are a single line.
"""

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from jaxtie.config import UserError
from jaxtie.results.folder import Say
from jaxtie.text.data import cache

PIECE = 2**16  # bytes of a line, characters of a paragraph
LONGEST_WORD = 2**20  # bytes without any white space
_BLANKS = b" \t\r\v\f"

# A full stop behind one of these does not end a sentence, nor does one behind an initial.
ABBREVIATIONS = frozenset(
    "mr mrs ms messrs dr prof rev hon st capt col gen lieut lt sergt sgt gov pres no vol vs viz"
    " cf".split()
)
_END = re.compile(r"""([.!?]+)["'”’»)\]*_]*\s+(?=["'“‘«(\[*_—-]*(\w))""")


class Source(NamedTuple):
    """Documents. `read` yields pieces of text, of whole paragraphs, after their document's key."""

    key: str  # hash of the contents
    documents: int  # number of documents
    counts: dict[str, Any]  # of text files, fields of a `jaxtie.text.data.tokens.Report`
    read: Callable[[], Iterator[tuple[bytes, str]]]


@dataclass
class Reading:
    """Counts of the text read so far."""

    files: int = 0
    bytes: int = 0
    latin1_lines: int = 0  # lines that were not UTF-8
    cuts: int = 0  # places where an overlong line or paragraph was cut
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256, repr=False)  # of this file


class Files(NamedTuple):
    """Text files: their paths and the SHA-256 of their contents."""

    paths: list[Path]
    hashes: list[str]

    @property
    def key(self) -> str:
        """Hash of the contents in their order; it does not depend on file names."""
        return cache.key("files", self.hashes)


def look_at(paths: Iterable[str], say: Say = cache.silence) -> Files:
    """Find and hash the files that paths name; UserError if one cannot be read."""
    found, hashes = find_files(paths), []
    for i, path in enumerate(found):
        say(f"looking at file {i + 1:,} of {len(found):,}")
        with _readable(path), path.open("rb") as file:
            hashes.append(hashlib.file_digest(file, "sha256").hexdigest())
    return Files(found, hashes)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{path}: cannot be read ({reason}); nothing was prepared") from error


def find_files(paths: Iterable[str]) -> list[Path]:
    """List the files named and the `*.txt` below folders named, once each; UserError if missing."""
    files: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise UserError(
                f"{path}: no such file or folder; expected text files, or folders of *.txt"
            )
        found = [path]
        if path.is_dir():
            found = sorted(each for each in path.rglob("*.txt") if each.is_file())
        if not found:
            raise UserError(
                f"{path}: holds no *.txt; give a folder of text files, or name the files themselves"
            )
        files |= {each.resolve(): each for each in found}
    return list(files.values())


def open_files(paths: Iterable[str], folder: Path, say: Say) -> Source:
    """Open files, a document each; UserError if one cannot be read or is not text.

    The first time they are read to check and count them; `folder` keeps the counts.
    """
    files = look_at(paths, say)
    counts = cache.once(folder / files.key, lambda _: _check(files, say), say)
    return Source(files.key, len(files.paths), counts, lambda: _read(files, Reading()))


def _check(files: Files, say: Say) -> dict[str, int]:
    """Read all files once and count what `Source.counts` lists."""
    reading, is_empty = Reading(), True
    for _ in _read(files, reading):
        is_empty = False
        say(
            f"reading file {reading.files + 1:,} of {len(files.paths):,},"
            f" {reading.bytes / 2**20:,.0f} MiB so far"
        )
    if is_empty:
        raise UserError(
            f"{files.paths[0]}: no text at all, here or in any other file that is given"
        )
    return {name: getattr(reading, name) for name in ("files", "latin1_lines", "cuts")}


def _read(files: Files, reading: Reading) -> Iterator[tuple[bytes, str]]:
    """Yield the hash of the file and each paragraph, and check that files are still the same."""
    for path, expected in zip(files.paths, files.hashes, strict=True):
        reading.digest = hashlib.sha256()
        for paragraph in read_paragraphs(path, reading):
            yield expected.encode(), paragraph
        if reading.digest.hexdigest() != expected:
            raise UserError(
                f"{path}: changed while it was being read; run again, nothing was prepared"
            )
        reading.files += 1


def read_lines(path: Path, reading: Reading) -> Iterator[str]:
    """Yield lines without their ends, overlong ones in parts; UserError if it is not text."""
    rest, first = b"", True
    with _readable(path), path.open("rb") as file:
        while part := file.readline(PIECE):
            reading.bytes += len(part)
            reading.digest.update(part)
            if b"\0" in part:
                raise UserError(
                    f"{path}: holds NUL bytes, so it is no UTF-8 or Latin-1; convert it or leave it"
                    " out"
                )
            line, rest = rest + (part.removeprefix(b"\xef\xbb\xbf") if first else part), b""
            first = False
            if len(part) == PIECE and not part.endswith(b"\n"):
                at = max(line.rfind(bytes([blank])) for blank in _BLANKS)
                line, rest = line[: max(at, 0)], line[at + 1 :]
                if len(rest) > LONGEST_WORD:
                    raise UserError(
                        f"{path}: more than {LONGEST_WORD:,} bytes without a space; is it natural"
                        " text?"
                    )
                if at < 0:
                    continue
                reading.cuts += 1
            yield from _decode(line, reading)
        if rest:
            yield from _decode(rest, reading)


def _decode(line: bytes, reading: Reading) -> list[str]:
    try:
        text = line.decode()
    except UnicodeDecodeError:
        reading.latin1_lines += 1
        text = line.decode("latin-1")
    return text.removesuffix("\n").removesuffix("\r").split("\r")


def read_paragraphs(path: Path, reading: Reading) -> Iterator[str]:
    """Yield a file's paragraphs, their lines joined by line feeds; raise as `read_lines`."""
    lines: list[str] = []
    size = 0
    for line in read_lines(path, reading):
        is_blank = not line.strip()
        if lines and (is_blank or size + len(line) > PIECE):
            reading.cuts += not is_blank
            yield "\n".join(lines)
            lines, size = [], 0
        if not is_blank:
            lines.append(line)
            size += len(line) + 1
    if lines:
        yield "\n".join(lines)


def split_paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a text, which blank lines end, white space as single spaces."""
    for paragraph in re.split(r"\n\s*\n", text):
        if words := paragraph.split():
            yield " ".join(words)


def split_sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph.

    A sentence ends at `.`, `!` or `?` and the quotes and brackets that close behind it, if white
    space and then a capital or a digit follow (quotes and brackets may open before it). It does not
    end at the full stop of an abbreviation or initial.
    """
    start = 0
    for match in _END.finditer(paragraph):
        if not (match[2].isupper() or match[2].isdigit()):
            continue
        if match[1] == ".":
            near = paragraph[max(start, match.start() - 8) : match.start()]
            before = re.findall(r"\w*$", near)[0]
            is_initial = len(before) == 1 and before.isupper() and before != "I"
            if is_initial or before.lower() in ABBREVIATIONS:
                continue
        yield paragraph[start : match.end()].rstrip()
        start = match.end()
    if start < len(paragraph):
        yield paragraph[start:]
