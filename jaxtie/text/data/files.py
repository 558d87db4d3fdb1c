"""Read text files as documents, paragraphs and sentences.

In memory is a piece or a record.

The name of a file says how it is read: as text (`.txt`, `.md`), or as records with a field of text
(`.jsonl`, `.parquet`); `.gz` may follow `.txt`, `.md` and `.jsonl`. Text is UTF-8; another line is
read as Windows-1252. Lines end in LF, CRLF or CR; a byte order mark is dropped. Blank lines end a
paragraph. A line or paragraph of more than `PIECE` bytes is cut, since some corpora are a single
line. ../README.md says which files are read.
"""

import codecs
import contextlib
import gzip
import hashlib
import io
import itertools
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jaxtie.config import UserError, check, check_path
from jaxtie.results.folder import Say
from jaxtie.text.data import cache
from jaxtie.text.data.config import Corpus

PIECE = 2**16  # bytes of a line, characters of a paragraph
LONGEST_WORD = 2**20  # bytes without any white space
LONGEST_RECORD = 2**26  # bytes of a line of .jsonl
RECORDS_AT_A_TIME = 1024  # of .parquet
LONG_LINE = 120  # mean bytes; lines of a paragraph are shorter
SHOWN_NAMES = 3  # names in a message
LINES = "long lines and no blank ones; if each line is a document, add --document line"
_BLANKS = b" \t\r\v\f"
_TEXT, _RECORDS = (".txt", ".md"), (".jsonl", ".parquet")
_EXPECTED = "expected .txt, .md, .jsonl (each may end in .gz) or .parquet"
_ABOUT_RECORDS = ("readme", "license", "licence")  # files of these names say what records are

# A full stop behind one of these does not end a sentence, nor does one behind an initial.
ABBREVIATIONS = frozenset(
    "mr mrs ms messrs dr prof rev hon st capt col gen lieut lt sergt sgt gov pres no vol vs viz"
    " cf".split()
)
_END = re.compile(r"""([.!?]+)["'”’»)\]*_]*\s+(?=["'“‘«(\[*_—-]*(\w))""")


class DocumentPart(NamedTuple):
    """A document, or whole paragraphs of it."""

    key: bytes  # of the document
    text: str
    begins: bool  # whether the document begins here


class Source(NamedTuple):
    """Documents, which `read` yields in parts."""

    key: str  # hash of the contents
    documents: int  # number of documents
    counts: dict[str, Any]  # fields of a `jaxtie.text.data.tokens.TextReport`
    read: Callable[[], Iterator[DocumentPart]]
    notes: tuple[str, ...] = ()  # remarks for the user on single files and folders


@dataclass
class Reading:
    """Counts of the text read so far."""

    bytes: int = 0
    documents: int = 0
    lines: int = 0
    blank_lines: int = 0
    latin1_lines: int = 0  # lines that were not UTF-8 and were read as Windows-1252
    empty: int = 0  # records without text


class Files(NamedTuple):
    """Text files: their paths, the SHA-256 of their contents, and how they are read."""

    paths: list[Path]
    hashes: list[str]
    corpus: Corpus
    notes: list[str]

    @property
    def key(self) -> str:
        """Hash of the contents in their order; file names count only by their formats."""
        text, records = f"{self.corpus.document} " * bool(self.corpus.document), self.corpus.field
        ways = [
            f"{kind_of(path)} {records} " if kind_of(path) in _RECORDS else text
            for path in self.paths
        ]
        return cache.key("files", list(map("".join, zip(ways, self.hashes))))


def look_at(corpus: Corpus, say: Say = cache.silence) -> Files:
    """Find and hash the files of a corpus; UserError if one cannot be read."""
    found, notes = find_files(corpus.paths)
    kinds = {kind_of(path) in _RECORDS for path in found}
    check(
        corpus.field == Corpus.field or True in kinds,
        f"--text-field {corpus.field}: {found[0]}: text files have no fields; leave it out",
    )
    check(
        not corpus.document or False in kinds,
        f"--document {corpus.document}: {found[0]}: a record is a document; leave it out",
    )
    hashes = []
    for i, path in enumerate(found):
        say(f"looking at file {i + 1:,} of {len(found):,}")
        hashes.append(_hash(path))
    return Files(found, hashes, corpus, notes)


def _hash(path: Path) -> str:
    with _readable(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or cache.in_one_line(error)
        raise UserError(f"{path}: cannot be read ({reason}); nothing was prepared") from error


def kind_of(path: Path) -> str:
    """Return the suffix that says how a file is read, in lower case; "" if none does."""
    name = path.name.lower()
    kind = Path(name.removesuffix(".gz")).suffix
    is_packed = name.endswith(".gz") and kind not in (*_TEXT, ".jsonl")
    return "" if is_packed or kind not in (*_TEXT, *_RECORDS) else kind


def find_files(paths: Iterable[str]) -> tuple[list[Path], list[str]]:
    """List the named files, and those below named folders that are text by their names, once each.

    Returns:
      The files, and a line for each folder with other files, or files of several kinds.

    Raises:
      UserError: if one is missing, holds no text by its name, or is no regular file or folder, or
        if a folder below one cannot be read.
    """
    files: dict[Path, Path] = {}
    notes: list[str] = []
    for path in map(Path, paths):
        check_path(path)
        found = [path]
        if path.is_dir():
            found = _search(path, notes)
        else:
            check(bool(kind_of(path)), f"{path}: is no text by its name; {_EXPECTED}")
        files |= {each.resolve(): each for each in found}
    return list(files.values()), notes


def _some(names: list[str]) -> str:
    """List the first names and count the others."""
    more = f" and {len(names) - SHOWN_NAMES:,} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(names[:SHOWN_NAMES]) + more


def _search(folder: Path, notes: list[str]) -> list[Path]:
    """List the files below a folder that are text by their names; note which are skipped."""

    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from error

    found: list[Path] = []
    skipped: list[Path] = []
    seen = set()
    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        here = Path(place)
        seen.add(here.resolve())
        skipped += [here / name for name in folders if name[0] == "."]
        folders[:] = sorted(
            name for name in folders if name[0] != "." and (here / name).resolve() not in seen
        )
        for path in (here / name for name in names):
            is_text = path.name[0] != "." and kind_of(path) and path.is_file()
            (found if is_text else skipped).append(path)
    with_records = {above for each in found if kind_of(each) in _RECORDS for above in each.parents}
    about = {
        each
        for each in found
        if each.parent in with_records
        and kind_of(each) not in _RECORDS
        and each.name.lower().split(".")[0] in _ABOUT_RECORDS
    }
    unique: dict[Path, Path] = {}  # of a file and links to it the first
    for each in sorted({*found} - about):
        unique.setdefault(each.resolve(), each)
    check(bool(unique), f"{folder}: holds no text by its name; {_EXPECTED}")
    kinds = Counter(map(kind_of, unique.values()))
    others = [str(each.relative_to(folder)) for each in sorted({*skipped, *about})]
    if others or len(kinds) > 1:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
        notes.append(f"{folder}: reads {counts}" + f"; skips {_some(others)}" * bool(others))
    return list(unique.values())


def open_files(corpus: Corpus, folder: Path, say: Say) -> Source:
    """Open files; UserError if one cannot be read or is not text.

    The first time they are read to check and count them; `folder` keeps the counts.
    """
    files = look_at(corpus, cache.now_and_then(say))
    name = cache.key(files.key, "words of files")
    counts = cache.once(folder / name, lambda _, say: _check(files, say), say)
    notes, words = (*files.notes, *counts.pop("notes")), counts.pop("words")
    keys = files.hashes if corpus.split_key == "bytes" else words

    def read() -> Iterator[DocumentPart]:
        for path, content, own in zip(files.paths, files.hashes, keys, strict=True):
            yield from _read(path, content, own.encode(), corpus, Reading())

    return Source(files.key, counts.pop("documents"), counts, read, notes)


def _check(files: Files, say: Say) -> dict[str, Any]:
    """Read all files once and count; UserError if one is no text."""
    total: Counter[str] = Counter()
    words = []  # hash of each file's
    remarks: dict[str, list[str]] = {}
    for i, (path, expected) in enumerate(zip(files.paths, files.hashes)):
        reading, own = Reading(), hashlib.sha256()
        for part in _read(path, expected, b"", files.corpus, reading):
            own.update(_words(part.text))
            say(
                f"reading file {i + 1:,} of {len(files.paths):,},"
                f" {(total['bytes'] + reading.bytes) / 2**20:,.0f} MiB so far"
            )
        words.append(own.hexdigest())
        total.update(vars(reading))
        for remark, what in _remarks(path, reading, files.corpus):
            remarks.setdefault(remark, []).append(what)
    if not total["documents"]:
        raise UserError(f"{', '.join(files.corpus.paths)}: no text at all in what is given")
    return {
        "documents": total["documents"],
        "files": len(files.paths),
        "documents_are": _documents_are(files),
        "notes": [f"{_some(paths)}: {remark}" for remark, paths in remarks.items()],
        "words": words,
    }


def _remarks(path: Path, reading: Reading, corpus: Corpus) -> Iterator[tuple[str, str]]:
    """Yield remarks on a file, each with the name of the file."""
    if reading.latin1_lines:
        share = f"{path} ({reading.latin1_lines:,} of {reading.lines:,} lines)"
        yield "not UTF-8, read as Windows-1252", share
    if reading.empty:
        records = reading.documents + reading.empty
        yield "records without text are left out", f"{path} ({reading.empty:,} of {records:,})"
    are_many_and_long = reading.lines >= 10 and reading.bytes > LONG_LINE * reading.lines
    if are_many_and_long and not (reading.blank_lines or corpus.document):
        yield LINES, str(path)


def _documents_are(files: Files) -> str:
    kinds = {kind_of(path) in _RECORDS for path in files.paths}
    text = {"line": "line", "blank-line": "blank-line block"}.get(files.corpus.document or "")
    return " or ".join(("record" if each else text or "file") for each in sorted(kinds))


def _words(text: str) -> bytes:
    """Return the words of a text, for its hash; line ends and white space do not matter."""
    return "".join(f"{word} " for word in text.replace("\ufeff", "").split()).encode()


def key_of(text: str, corpus: Corpus) -> bytes:
    """Return what decides in which split a document is."""
    if corpus.split_key == "bytes":
        return text.encode()
    return hashlib.sha256(_words(text)).hexdigest().encode()


def _read(
    path: Path, expected: str, key: bytes, corpus: Corpus, reading: Reading
) -> Iterator[DocumentPart]:
    """Yield a file's documents in parts, and check that it is still the same.

    `key` is that of the file, where it is one document.
    """
    is_records = kind_of(path) in _RECORDS
    if is_records or corpus.document:
        of_records, by_line = read_records(path, corpus.field, reading), corpus.document == "line"
        for text in of_records if is_records else read_units(path, reading, by_line):
            if text.strip():
                reading.documents += 1
                yield DocumentPart(key_of(text, corpus), text, True)
    else:
        for text in read_whole(path, reading):
            begins, reading.documents = not reading.documents, 1
            yield DocumentPart(key, text, begins)
    if _hash(path) != expected:
        raise UserError(f"{path}: changed while it was being read; run again, nothing was prepared")


def read_records(path: Path, field: str, reading: Reading) -> Iterator[str]:
    """Yield the text of each record that has one; UserError if the field holds something else."""
    is_json = kind_of(path) == ".jsonl"
    records = _read_json_lines(path, reading) if is_json else _read_parquet(path, field)
    for where, record in records:
        text = record.get(field) if field in record else 0
        if text is None or (isinstance(text, str) and not text.strip()):
            reading.empty += 1
            continue
        if not isinstance(text, str):
            texts = [name for name, value in record.items() if isinstance(value, str)]
            expected = (
                f"; expected --text-field {' or '.join(texts[:SHOWN_NAMES])}" if texts else ""
            )
            raise UserError(f"{path}: {where} has no text in a field {field!r}{expected}")
        yield text.encode(errors="replace").decode()  # half a surrogate pair cannot be stored


def _read_json_lines(path: Path, reading: Reading) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the object of each line."""
    with _opened(path) as file:
        for number in itertools.count(1):
            line, record, where = file.readline(LONGEST_RECORD), None, f"line {number:,}"
            if not line:
                return
            reading.bytes += len(line)
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if not line.strip():
                continue
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line.decode())
            if not isinstance(record, dict):
                raise UserError(f"{path}: {where} is no JSON object; expected one a line")
            yield where, record


def _read_parquet(path: Path, field: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the fields of each record: `field`, or all if there is none of its name.

    Raises:
      UserError: if the file is damaged, or has two columns of that name.
    """
    import pyarrow as pa  # heavy
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as opened:
            count = opened.schema_arrow.names.count(field)
            check(count < 2, f"{path}: has {count} columns {field!r}; rename all but one")
            number = itertools.count(1)
            for batch in opened.iter_batches(RECORDS_AT_A_TIME, columns=[field] * count or None):
                yield from ((f"record {next(number):,}", each) for each in batch.to_pylist())
    except UserError:  # a ValueError
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = cache.in_one_line(error)
        raise UserError(f"{path}: cannot be read as .parquet ({reason})") from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """Open a file, unpacked, as bytes; UserError if it is damaged."""
    is_packed = path.suffix.lower() == ".gz"
    with _readable(path), gzip.open(path) if is_packed else path.open("rb") as file:
        yield file


def read_lines(path: Path, reading: Reading) -> Iterator[str]:
    """Yield lines with their ends, overlong ones in parts; UserError if it is not text."""
    rest, first = b"", True
    with _opened(path) as file:
        while part := file.readline(PIECE):
            reading.bytes += len(part)
            if b"\0" in part:
                raise UserError(
                    f"{path}: holds NUL bytes, so it is no text in UTF-8 or Windows-1252;"
                    " convert it"
                )
            line, rest = rest + (part.removeprefix(codecs.BOM_UTF8) if first else part), b""
            first = False
            if len(part) == PIECE and not part.endswith(b"\n"):
                at = max(line.rfind(bytes([blank])) for blank in _BLANKS)
                line, rest = line[: at + 1], line[at + 1 :]
                if len(rest) > LONGEST_WORD:
                    raise UserError(
                        f"{path}: more than {LONGEST_WORD:,} bytes without a space; is it natural"
                        " text?"
                    )
                if at < 0:
                    continue
            yield from _decode(path, line, reading)
        if rest:
            yield from _decode(path, rest, reading)


def _decode(path: Path, line: bytes, reading: Reading) -> list[str]:
    """Return a line, or several if they end in CR."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        reading.latin1_lines += 1
        try:
            text = line.decode("cp1252")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}: line {reading.lines + 1:,} is neither UTF-8 nor Windows-1252; convert"
                " the file to UTF-8"
            ) from error
    lines = re.findall(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+", text)
    reading.lines += len(lines)
    reading.blank_lines += sum(not each.strip() for each in lines)
    return lines


def read_whole(path: Path, reading: Reading) -> Iterator[str]:
    """Yield a file's text without a change, each paragraph with the blank lines behind it.

    Raises as `read_lines`. A file of white space has no text.
    """
    lines: list[str] = []
    size, is_blank = 0, False  # of the lines; the last one
    has_text = begun = False  # in these lines, in the file
    for line in read_lines(path, reading):
        was_blank, is_blank = is_blank, not line.strip()
        is_next = has_text and was_blank and not is_blank
        if is_next or ((has_text or begun) and size + len(line) > PIECE):
            yield "".join(lines)
            lines, size, has_text, begun = [], 0, False, True
        lines.append(line)
        size += len(line)
        has_text = has_text or not is_blank
    if lines and (has_text or begun):
        yield "".join(lines)


def read_units(path: Path, reading: Reading, by_line: bool) -> Iterator[str]:
    """Yield the lines of a file, or the blocks between blank lines, whole and unchanged.

    Raises:
      UserError: as `read_lines`, and if one has more than `LONGEST_RECORD` characters.
    """
    parts: list[str] = []
    size, begins = 0, True  # whether a line begins
    for part in read_lines(path, reading):
        is_blank = begins and not part.strip()
        begins = part.endswith(("\n", "\r"))
        if not is_blank:
            parts.append(part)
        if (size := size + len(part)) > LONGEST_RECORD:
            raise UserError(f"{path}: a document of over {LONGEST_RECORD:,} characters; cut it")
        if parts and (is_blank or (by_line and begins)):
            yield "".join(parts).rstrip("\r\n")
            parts, size = [], 0
    if parts:
        yield "".join(parts).rstrip("\r\n")


_LINE_END = r"(?>\r\n|\n|\r)"
_PARAGRAPH = re.compile(rf"\s*\S.*?(?:{_LINE_END}[^\S\r\n]*{_LINE_END}\s*|\Z)", re.DOTALL)


def whole_paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text without a change, each with the blank lines behind it."""
    return _PARAGRAPH.findall(text) if text.strip() else [text]


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
