"""Files as paragraphs, paragraphs as sentences."""

import hashlib
import tracemalloc
from pathlib import Path

import pytest
from corpora import error_of

from jaxtie.config import UserError
from jaxtie.text.config import Corpus
from jaxtie.text.data import files


def read(path: Path) -> tuple[list[str], files.Reading]:
    found = files.Reading()
    return list(files.read_paragraphs(path, found)), found


def test_lines_end_as_on_any_system(tmp_path):
    for i, end in enumerate(("\n", "\r\n", "\r")):
        (tmp_path / f"{i}").write_bytes(
            f"\ufeffOne{end}two.{end}{end}{end} {end}Three.{end}".encode()
        )
        assert read(tmp_path / f"{i}")[0] == ["One\ntwo.", "Three."]


def test_latin1_is_the_fallback_of_a_line_and_counted(tmp_path):
    (tmp_path / "a.txt").write_bytes(
        "café\n".encode() + "naïve\n".encode("latin-1") + "Çà\n".encode()
    )
    paragraphs, found = read(tmp_path / "a.txt")
    assert paragraphs == ["café\nnaïve\nÇà"]
    assert found.latin1_lines == 1


def test_a_giant_line_is_cut_at_spaces_and_never_in_memory_as_a_whole(tmp_path):
    path, line = tmp_path / "a.txt", "Überall größe " * 2**18
    path.write_text(line)
    found, digest, count = files.Reading(), hashlib.sha256(), 0
    tracemalloc.start()
    for paragraph in files.read_paragraphs(path, found):
        digest.update("".join(paragraph.split()).encode())
        count += len(paragraph.split())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 4 * 2**20 and peak < 2**20
    expected = hashlib.sha256(line.replace(" ", "").encode())
    assert count == 2**19 and digest.digest() == expected.digest()
    assert found.cuts > 60 and found.latin1_lines == 0


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
    found = files.find_files(str(tmp_path / name) for name in ("c.txt", "", "b/no.md"))
    expected = ["c.txt", "b/a.txt", "b/deep/x.txt", "b/no.md"]
    assert [str(path.relative_to(tmp_path)) for path in found] == expected


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
