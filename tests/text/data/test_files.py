"""Files as documents and paragraphs, paragraphs as sentences."""

import errno
import gzip
import hashlib
import json
import os
import socket
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from corpora import error_of
from pyarrow import parquet

from jaxtie.config import UserError
from jaxtie.text.data import files
from jaxtie.text.data.config import Corpus


def read(path: Path) -> tuple[list[str], files.Reading]:
    found = files.Reading()
    return [each.rstrip() for each in files.read_whole(path, found)], found


def test_lines_end_as_on_any_system(tmp_path):
    for i, end in enumerate(("\n", "\r\n", "\r")):
        (tmp_path / f"{i}").write_bytes(
            f"\ufeffOne{end}two.{end}{end}{end} {end}Three.{end}".encode()
        )
        assert read(tmp_path / f"{i}")[0] == [f"One{end}two.", "Three."]


def test_latin1_is_the_fallback_of_a_line_and_counted(tmp_path):
    (tmp_path / "a.txt").write_bytes(
        "café\n".encode() + "naïve\n".encode("latin-1") + "Çà\n".encode()
    )
    paragraphs, found = read(tmp_path / "a.txt")
    assert paragraphs == ["café\nnaïve\nÇà"]
    assert found.latin1_lines == 1


def test_a_giant_line_is_cut_at_spaces_and_never_in_memory_as_a_whole(tmp_path):
    path, line = tmp_path / "a.txt", ("Überall größe " * 2**18).strip()
    path.write_text(line)
    found, digest, count = files.Reading(), hashlib.sha256(), 0
    tracemalloc.start()
    for paragraph in files.read_whole(path, found):
        digest.update("".join(paragraph.split()).encode())
        count += len(paragraph.split())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 4 * 2**20 and peak < 2**20
    expected = hashlib.sha256(line.replace(" ", "").encode())
    assert count == 2**19 and digest.digest() == expected.digest()
    assert len(list(files.read_lines(path, files.Reading()))) > 60 and found.latin1_lines == 0


def test_a_giant_line_without_a_space_is_refused_soon(tmp_path, cache):
    (tmp_path / "a.txt").write_bytes(b"a" * 2**24)
    with pytest.raises(UserError, match="without a space"):
        list(files.read_lines(tmp_path / "a.txt", found := files.Reading()))
    assert found.bytes < 2**21
    assert "without a space" in error_of(Corpus((str(tmp_path / "a.txt"),)), cache)


def test_a_binary_file_of_a_gibibyte_is_refused_at_once(tmp_path):
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(UserError, match="NUL"):
        list(files.read_lines(tmp_path / "a.txt", found := files.Reading()))
    assert found.bytes == files.PIECE


def test_folders_are_searched_and_each_file_comes_once(tmp_path):
    for name in ("b/deep/x.txt", "b/a.txt", "c.txt", "b/no.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found, notes = files.find_files(str(tmp_path / name) for name in ("c.txt", "", "b/no.md"))
    expected = ["c.txt", "b/a.txt", "b/deep/x.txt", "b/no.md"]
    assert [str(path.relative_to(tmp_path)) for path in found] == expected
    assert notes == [f"{tmp_path}: reads 1 .md, 3 .txt"]


def test_a_folder_says_what_it_reads_and_what_it_skips(tmp_path):
    """Never is prose made of other files, pipes, broken links or intermediate results."""
    names = "a.TXT b.jsonl deep/c.md d.pdf deep/e.json f.bin .hidden.txt".split()
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "away.txt").symlink_to(tmp_path / "nowhere")
    found, notes = files.find_files([str(tmp_path)])
    assert [path.name for path in found] == ["a.TXT", "b.jsonl", "c.md"]
    reads = "reads 1 .jsonl, 1 .md, 1 .txt; skips .hidden.txt, away.txt, d.pdf and 3 more"
    assert notes == [f"{tmp_path}: {reads}"]


def test_hidden_names_are_skipped_and_linked_folders_are_followed(tmp_path):
    """As notebooks, Git, macOS and virtual environments leave them; a link may lead to itself."""
    hidden = (".ipynb_checkpoints/a.txt", "b/.git/d.txt", "._a.txt", ".venv/x/LICENSE.txt")
    for name in ("top/a.txt", "top/b/c.txt", "away/d.txt", *(f"top/{each}" for each in hidden)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "top" / "link").symlink_to(tmp_path / "away")
    (tmp_path / "away" / "loop").symlink_to(tmp_path / "top")
    (tmp_path / "top" / ".ssh").write_text("no text by its name")
    found, notes = files.find_files([str(tmp_path / "top")])
    names = [str(path.relative_to(tmp_path / "top")) for path in found]
    assert names == ["a.txt", "b/c.txt", "link/d.txt"]
    skipped = "skips ._a.txt, .ipynb_checkpoints, .ssh and 2 more"
    assert notes == [f"{tmp_path / 'top'}: reads 3 .txt; {skipped}"]
    named, _ = files.find_files([str(tmp_path / "top" / ".ipynb_checkpoints")])
    assert [path.name for path in named] == ["a.txt"]


def test_a_readme_next_to_records_is_no_text(tmp_path):
    others = ("notes.md", "data/train.jsonl", "data/readme.txt", "docs/README.md")
    for name in ("README.md", "LICENSE.txt", *others):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found, notes = files.find_files([str(tmp_path)])
    names = [str(path.relative_to(tmp_path)) for path in found]
    assert names == ["data/train.jsonl", "docs/README.md", "notes.md"]
    assert "skips LICENSE.txt, README.md, data/readme.txt" in notes[0]
    (tmp_path / "data" / "train.jsonl").unlink()
    assert len(files.find_files([str(tmp_path)])[0]) == 5


def test_a_file_and_links_to_it_are_read_and_counted_once(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").touch()
    (tmp_path / "folder" / "b.md").touch()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "folder" / "c.txt").symlink_to(tmp_path / "folder" / "a.txt")
    found, notes = files.find_files([str(tmp_path / "folder")])
    assert [path.name for path in found] == ["a.txt", "b.md"]
    assert notes == [f"{tmp_path / 'folder'}: reads 1 .md, 1 .txt"]


def test_empty_files_are_no_documents_and_records_without_text_are_counted(tmp_path, cache):
    (tmp_path / "a.txt").write_text("One.")
    (tmp_path / "b.txt").write_text(" \n\n")
    (tmp_path / "c.jsonl").write_text('{"text": null}\n{"text": "Two."}\n{"text": "  "}\n')
    source = files.open_files(Corpus((str(tmp_path),)), cache, print)
    assert source.documents == 2 and [part.text for part in source.read()] == ["One.", "Two."]
    assert f"{tmp_path / 'c.jsonl'} (2 of 3): records without text are left out" in source.notes


def test_two_columns_of_one_name_are_refused_in_one_line(tmp_path, cache):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.Table.from_arrays([["One."], ["Two."]], ["text", "text"]), path)
    error = error_of(Corpus((str(path),)), cache)
    assert error == f"{path}: has 2 columns 'text'; rename all but one"


TEXTS = ["Überall “größe”.\n\nTwo.", "Three. Four."]  # of two records, or of a file


def packed(path: Path, content: bytes) -> None:
    with gzip.open(path, "wb") as file:
        file.write(content)


def table() -> pa.Table:
    return pa.table({"text": [*TEXTS, None], "id": [1, 2, 3]})


PROSE, LINES = "\n\n".join(TEXTS), "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
READABLE = {
    "a.txt": lambda path: path.write_text(PROSE),
    "a.TXT": lambda path: path.write_text(PROSE),
    "a.md": lambda path: path.write_text(PROSE),
    "a.txt.gz": lambda path: packed(path, PROSE.encode()),
    "windows.txt": lambda path: path.write_bytes(PROSE.encode("cp1252")),
    "a.jsonl": lambda path: path.write_text(f"\ufeff\n{LINES}" + '{"text": null}'),
    "a.JSONL.gz": lambda path: packed(path, LINES.encode()),
    "a.parquet": lambda path: parquet.write_table(table(), path),
}


@pytest.mark.parametrize("name", READABLE)
def test_a_file_is_read_as_its_name_says(tmp_path, cache, name):
    READABLE[name](tmp_path / name)
    source = files.open_files(Corpus((str(tmp_path / name),)), cache, print)
    texts = [part.text.rstrip() for part in source.read()]
    assert "\n\n".join(texts) == PROSE
    is_records = files.kind_of(Path(name)) in (".jsonl", ".parquet")
    assert source.documents == (2 if is_records else 1)
    assert source.counts["documents_are"] == ("record" if is_records else "file")
    assert len({part.key for part in source.read()}) == source.documents


@pytest.mark.parametrize(
    "name", ["a.json", "a.arrow", "a.csv", "a.gz", "a.tar.gz", "a.parquet.gz", "README", "a.html"]
)
def test_what_is_no_text_by_its_name_is_refused(tmp_path, cache, name):
    (tmp_path / name).write_text(PROSE)
    error = error_of(Corpus((str(tmp_path / name),)), cache)
    assert error.startswith(f"{tmp_path / name}: is no text by its name; expected .txt, .md")


def test_pipes_devices_and_sockets_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "link.txt").symlink_to(tmp_path / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        for path in (tmp_path / "pipe.txt", tmp_path / "link.txt", tmp_path / "s", "/dev/zero"):
            with pytest.raises(UserError, match=f"^{path}: is a pipe, a device or a socket"):
                files.find_files([str(path)])


BAD = {
    "zero.txt": (b"One.\0", "holds NUL bytes"),
    "utf32.txt": ("One.".encode("utf-32"), "holds NUL bytes"),
    "odd.txt": (b"One.\nTwo \x81.", "line 2 is neither UTF-8 nor Windows-1252"),
    "utf16.txt": ("One.".encode("utf-16"), "holds NUL bytes"),
    "utf16.jsonl": (LINES.encode("utf-16"), "line 1 is no JSON object"),
    "cut.txt.gz": (gzip.compress(PROSE.encode())[:-12], "cannot be read"),
    "plain.txt.gz": (PROSE.encode(), "cannot be read (Not a gzipped file"),
    "prose.jsonl": (b'{"text": "One."}\n\nTwo.\n', "line 3 is no JSON object; expected one a line"),
    "deep.jsonl": (b'{"text":' + b"[" * 99_999, "line 1 is no JSON object"),
    "number.jsonl": (b'{"text": 3, "body": "One."}', "line 1 has no text in a field 'text'"),
    "other.jsonl": (b'{"body": "One.", "id": 3}', "'text'; expected --text-field body"),
    "prose.parquet": (PROSE.encode(), "cannot be read as .parquet"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named(tmp_path, cache, name):
    content, reason = BAD[name]
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "good.txt").write_text(PROSE)
    (tmp_path / "corpus" / name).write_bytes(content)
    error = error_of(Corpus((str(tmp_path / "corpus"),)), cache)
    assert f"corpus/{name}: " in error and reason in error


def test_an_unreadable_folder_is_named(tmp_path, cache, monkeypatch):
    (tmp_path / "locked").mkdir()
    (tmp_path / "good.txt").write_text(PROSE)
    scan = os.scandir

    def refuse(path: str):
        if str(path).endswith("locked"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    error = error_of(Corpus((str(tmp_path),)), cache)
    assert error == f"{tmp_path / 'locked'}: cannot be read (Permission denied)"


def test_lines_that_are_not_utf8_are_named(tmp_path, cache):
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_bytes(f"One — two.\nThree {name}.".encode("cp1252"))
    (tmp_path / "c.txt").write_text("“Four.”")
    source = files.open_files(Corpus((str(tmp_path),)), cache, print)
    a, b = (f"{tmp_path / name} (1 of 2 lines)" for name in ("a.txt", "b.txt"))
    assert source.notes == (f"{a}, {b}: not UTF-8, read as Windows-1252",)


@pytest.mark.parametrize(
    ("document", "documents"),
    [("file", ["A.\nB.", "C."]), ("line", ["A.", "B.", "C."]), ("blank-line", ["A.\nB.", "C."])],
)
def test_documents_are_separated_as_asked(tmp_path, cache, document, documents):
    (tmp_path / "a.txt").write_text("A.\nB.\n\n\nC.\n")
    corpus = Corpus((str(tmp_path / "a.txt"),), document=document)
    source = files.open_files(corpus, cache, print)
    assert [part.text.rstrip() for part in source.read()] == documents
    keys = {part.key for part in source.read()}
    assert source.documents == len(keys) == (1 if document == "file" else len(documents))
    plain = files.look_at(Corpus(corpus.paths)).key
    assert (source.key == plain) == (document == "file")


@pytest.mark.parametrize(
    ("content", "suggested"),
    [
        ("\n".join(["Long line. " * 20] * 12), True),
        ("\r\n".join(["Word " * 40] * 12), True),
        ("\n".join(["A line of a paragraph."] * 12), False),
        ("\n\n".join(["Long line. " * 20] * 12), False),
    ],
)
def test_a_document_a_line_is_suggested(tmp_path, cache, content, suggested):
    (tmp_path / "a.txt").write_text(content, newline="")
    corpus = Corpus((str(tmp_path / "a.txt"),))
    source = files.open_files(corpus, cache, print)
    assert any("if each line is a document" in each for each in source.notes) == suggested
    assert ("--document line" in error_of(corpus, cache)) == suggested
    lines = Corpus(corpus.paths, document="line")
    assert not files.open_files(lines, cache, print).notes


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("a.txt", {"field": "body"}, "--text-field body: "),
        ("a.jsonl", {"document": "line"}, "--document line: "),
        ("a.jsonl", {"field": "body"}, "line 2 has no text in a field 'body'; expected"),
    ],
)
def test_options_that_a_file_has_no_use_for_are_refused(tmp_path, cache, name, fields, message):
    READABLE[name](tmp_path / name)
    assert message in error_of(Corpus((str(tmp_path / name),), **fields), cache)


@pytest.mark.parametrize(
    "paragraph, sentences",
    [
        ("One two. Three!  Four?", ["One two.", "Three!", "Four?"]),
        ("Mr. Bennet and J. Smith came. He left.", ["Mr. Bennet and J. Smith came.", "He left."]),
        (
            "'Oh dear!' said she. \"So? Yes.\" 3 of it",
            ["'Oh dear!' said she.", '"So?', 'Yes."', "3 of it"],
        ),
        (
            "(Fine.) [It] went _on_. “Well!” «Non.»",
            ["(Fine.)", "[It] went _on_.", "“Well!”", "«Non.»"],
        ),
        (
            "It was I. Then 3.5 e.g. this... and so on",
            ["It was I.", "Then 3.5 e.g. this... and so on"],
        ),
        ("École. Été", ["École.", "Été"]),
    ],
)
def test_sentences(paragraph, sentences):
    assert list(files.split_sentences(paragraph)) == sentences
