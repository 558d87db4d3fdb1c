"""Text files as paragraphs, paragraphs as sentences. Files are streams: no more than a piece of one
is in memory.

A line that is not UTF-8 is read as Latin-1, that line alone. Lines end as on any system (LF, CRLF,
CR); a byte order mark is dropped. Blank lines end a paragraph. A line, or a paragraph, of more than
`PIECE` bytes is cut: some corpora are a single line.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

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


@dataclass
class Reading:
    """What files turned out to hold.

    Attributes:
      files, bytes: how much was read.
      latin1_lines: lines that were not UTF-8.
      cuts: places where an overlong line or paragraph was cut.
      digest: SHA-256 of the bytes of the present file so far.
    """

    files: int = 0
    bytes: int = 0
    latin1_lines: int = 0
    cuts: int = 0
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256, repr=False)


class Files(NamedTuple):
    """Text files, looked at but not read: where they are, SHA-256 of their contents, bytes of
    all.
    """

    paths: list[Path]
    hashes: list[str]
    size: int

    @property
    def key(self) -> str:
        """Depends on the contents in their order, not on what the files are called."""
        return cache.key("files", self.hashes)


def look_at(paths: Iterable[str], say: Say = cache.silence) -> Files:
    """The files that paths name, as `find_files`.

    Raises:
      UserError: where one does not exist or cannot be read.
    """
    files, hashes, size = find_files(paths), [], 0
    for i, path in enumerate(files):
        say(f"looking at file {i + 1:,} of {len(files):,}")
        digest, its_size = hash_file(path)
        hashes.append(digest)
        size += its_size
    return Files(files, hashes, size)


def find_files(paths: Iterable[str]) -> list[Path]:
    """The files named, and those called `*.txt` in the folders named and below them, sorted; each
    once.

    Raises:
      UserError: where a path does not exist, or a folder holds none.
    """
    files: dict[Path, Path] = {}
    for path in map(Path, paths):
        found = (
            sorted(each for each in path.rglob("*.txt") if each.is_file())
            if path.is_dir()
            else [path]
        )
        if not path.exists():
            raise UserError(
                f"{path}: no such file or folder; expected text files, or folders of *.txt"
            )
        if not found:
            raise UserError(
                f"{path}: holds no *.txt; give a folder of text files, or name the files themselves"
            )
        files |= {each.resolve(): each for each in found}
    return list(files.values())


def hash_file(path: Path) -> tuple[str, int]:
    """SHA-256 of a file's bytes, and how many they are.

    Raises:
      UserError: where it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> UserError:
    """The line for a file that the system does not let us read."""
    return UserError(f"{path}: cannot be read ({error.strerror or error}); nothing was prepared")


def read_lines(path: Path, reading: Reading) -> Iterator[str]:
    """A file's lines without their ends; an overlong one comes in several. Adds to `reading`, bytes
    hashed.

    Raises:
      UserError: where the file cannot be read, or is not text.
    """
    rest, first = b"", True
    try:
        with path.open("rb") as file:
            while part := file.readline(PIECE):
                reading.bytes += len(part)
                reading.digest.update(part)
                if b"\0" in part:
                    raise UserError(
                        f"{path}: holds NUL bytes, so it is no UTF-8 or Latin-1; convert it or"
                        " leave it out"
                    )
                line, rest = rest + (part.removeprefix(b"\xef\xbb\xbf") if first else part), b""
                first = False
                if len(part) == PIECE and not part.endswith(b"\n"):
                    at = max(line.rfind(bytes([blank])) for blank in _BLANKS)
                    line, rest = line[: max(at, 0)], line[at + 1 :]
                    if len(rest) > LONGEST_WORD:
                        raise UserError(
                            f"{path}: more than {LONGEST_WORD:,} bytes without a space; is it"
                            " natural text?"
                        )
                    if at < 0:
                        continue
                    reading.cuts += 1
                yield from _decode(line, reading)
            if rest:
                yield from _decode(rest, reading)
    except OSError as error:
        raise unreadable(path, error) from error


def _decode(line: bytes, reading: Reading) -> list[str]:
    try:
        text = line.decode()
    except UnicodeDecodeError:
        reading.latin1_lines += 1
        text = line.decode("latin-1")
    return text.removesuffix("\n").removesuffix("\r").split("\r")


def read_paragraphs(path: Path, reading: Reading) -> Iterator[str]:
    """A file's paragraphs: lines up to a blank one, joined by line feeds; raises as
    `read_lines`.
    """
    lines: list[str] = []
    size = 0
    for line in read_lines(path, reading):
        if lines and (not line.strip() or size + len(line) > PIECE):
            reading.cuts += bool(line.strip())
            yield "\n".join(lines)
            lines, size = [], 0
        if line.strip():
            lines.append(line)
            size += len(line) + 1
    if lines:
        yield "\n".join(lines)


def split_paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of a text, white space as single spaces; blank lines end them."""
    for paragraph in re.split(r"\n\s*\n", text):
        if words := paragraph.split():
            yield " ".join(words)


def split_sentences(paragraph: str) -> Iterator[str]:
    """Sentences of a paragraph.

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
            if before.lower() in ABBREVIATIONS or (
                len(before) == 1 and before.isupper() and before != "I"
            ):
                continue
        yield paragraph[start : match.end()].rstrip()
        start = match.end()
    if start < len(paragraph):
        yield paragraph[start:]
