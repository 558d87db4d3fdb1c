"""Documents as rows, without a change: a byte-level BPE and its round trip."""

import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from corpora import error_of, write_corpus, write_vocabulary
from draws import draws

from jaxtie.config import UserError
from jaxtie.text.config import Corpus, TextExperiment
from jaxtie.text.data import files, tokens
from jaxtie.text.data.batches import Special
from jaxtie.text.data.tokens import SPLIT_NAMES, Text, prepare_text
from jaxtie.text.data.vocabulary import name_of, parse_vocabulary

SMALL = {"vocab_size": 300, "form": "documents"}


def documents_of(text: Text) -> list[str]:
    """Decode all rows."""
    tokenizer = parse_vocabulary(text.content, name_of(text.content)).tokenizer
    rows = [rows.row(r) for rows in text[2:5] for r in range(rows.count)]
    return tokenizer.decode_batch([row.tolist() for row in rows])


def random_document(rng: np.random.Generator, size: int) -> str:
    """Return text of any characters, with line ends and spaces of any kind."""
    letters = rng.choice(
        [*" \n\t\r\u00a0", *"abc", "é", "日", "😀", "\u0301", "<|endoftext|>"], size
    )
    points = rng.integers(1, 0x110000, size // 4)
    others = [chr(x) for x in points if not 0xD800 <= x < 0xE000]
    return "x" + "".join(rng.permutation([*letters, *others]))


def test_every_byte_comes_back(tmp_path, cache):
    """Rows are whole documents, and each is in one split."""
    rng, folder = np.random.default_rng(0), tmp_path / "corpus"
    folder.mkdir()
    texts = [random_document(rng, draws(4_000)) for _ in range(12)]
    texts[3] = "\n\n One.\r\n \r\n\tTwo.  \n\n\n"
    texts[4] = "Word " * 60_000 + "\n"
    for i, text in enumerate(texts):
        (folder / f"{i:02}.txt").write_bytes(text.encode())
    text = prepare_text(Corpus((str(folder),), **SMALL), cache)
    assert sorted(documents_of(text)) == sorted(texts)
    assert text.report.rows == {"train": 8, "valid": 1, "test": 3}
    assert sum(text.report.bytes.values()) == sum(len(each.encode()) for each in texts)
    assert text.special == Special(-1, -1, -1, 0, -1) and text.vocabulary[0] == "<|endoftext|>"
    for name in SPLIT_NAMES:
        assert not np.any(getattr(text, name).tokens_N == text.special.sep)
    assert sum(text.report.unknown.values()) == 0


def test_few_documents_are_rows_of_the_paragraphs_that_follow_each_other(tmp_path, cache):
    folder = write_corpus(tmp_path / "corpus", files=2, paragraphs=60)
    text = prepare_text(Corpus((str(folder),), **SMALL), cache)
    assert text.report.split_by == "paragraph" and text.report.documents == 2
    raw = [path.read_text() for path in sorted(folder.glob("*"))]
    found = documents_of(text)
    assert len(found) > 20 and all(any(row in each for each in raw) for row in found)
    assert sorted("".join(found)) == sorted("".join(raw))
    assert sum(text.report.tokens.values()) < sum(text.report.bytes.values()) / 2


@pytest.mark.parametrize("form", ["jsonl", "line", "blank-line"])
def test_records_and_lines_are_documents(tmp_path, cache, form):
    texts = [f"The cat {'saw ' * i}\n a  dog." for i in range(20)]
    path, options = tmp_path / "a.txt", {"document": form}
    if form == "jsonl":
        path, options = tmp_path / "a.jsonl", {}
        path.write_text(
            "".join(f'{{"text": "{text}"}}\n'.replace("\n a", "\\n a") for text in texts)
        )
    else:
        path.write_text(("\n" if form == "line" else "\n\n").join(texts))
    found = documents_of(prepare_text(Corpus((str(path),), **SMALL, **options), cache))
    lines = [line for text in texts for line in text.split("\n")]
    assert sorted(found) == sorted(lines if form == "line" else texts)


def test_long_documents_are_tokenised_in_segments(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(tokens, "SEGMENT", 50)
    monkeypatch.setattr(tokens, "CHARACTERS_AT_A_TIME", 120)
    folder = write_corpus(tmp_path / "corpus", files=12, paragraphs=9)
    text = prepare_text(Corpus((str(folder),), **SMALL), cache)
    assert sorted(documents_of(text)) == sorted(path.read_text() for path in folder.glob("*"))


def test_whole_paragraphs_are_the_text():
    rng = np.random.default_rng(1)
    for _ in range(200):
        text = "".join(rng.choice([*" \n\n\nab\r\t"], rng.integers(1, 30)))
        found = files.whole_paragraphs(text)
        assert "".join(found) == text
        apart = re.split(r"\n\s*\n", text.replace("\r\n", "\n").replace("\r", "\n"))
        assert [each.split() for each in found if each.strip()] == [
            each.split() for each in apart if each.strip()
        ]


MANY_TIES = """
import itertools, random, sys
from hashlib import sha256
from jaxtie.text.data.vocabulary import train_bpe
words = ["".join(word) for word in itertools.product("abcdefghij", repeat=4)]
random.Random(7).shuffle(words)
texts = [" ".join(2 * words[i : i + 50]) + " 日本 été." for i in range(0, 5000, 50)]
print(sha256(train_bpe(texts, 400)).hexdigest())
"""


def test_the_same_text_gives_the_same_file():
    """In every process, though all words are as frequent as each other."""
    options = {"stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([sys.executable, "-c", MANY_TIES], **options) for _ in range(2)]
    first, other = [process.communicate()[0] for process in started]
    assert first == other and len(first) == 65


def test_forms_follow_the_objective():
    assert TextExperiment(objective="causal").corpus.form == "documents"
    assert TextExperiment().corpus.form == "sentences"
    sentences = Corpus(form="sentences")
    assert TextExperiment(objective="causal", corpus=sentences).corpus.form == "sentences"
    with pytest.raises(UserError, match="form = 'documents': expected objective = 'causal'"):
        TextExperiment(corpus=Corpus(form="documents"))
    with pytest.raises(UserError, match="vocab_size = 200: expected more than 257"):
        Corpus(form="documents", vocab_size=200)
    with pytest.raises(UserError, match="form = 'x': expected None, sentences or documents"):
        Corpus(form="x")


def test_a_file_of_white_space_is_no_document(tmp_path, cache):
    (tmp_path / "a.txt").write_text(" \n\n\t")
    assert "no text at all" in error_of(Corpus((str(tmp_path / "a.txt"),), **SMALL), cache)
    assert Path(tmp_path / "a.txt").exists()


def test_long_lines_are_documents_of_their_own(tmp_path, cache):
    """However long, with a hash of the whole."""
    texts = [f"{i} " + "word " * (20_000 * (i < 3)) + "\tend  " for i in range(12)]
    (tmp_path / "a.txt").write_bytes("\r\n".join(texts).encode())
    text = prepare_text(Corpus((str(tmp_path / "a.txt"),), document="line", **SMALL), cache)
    assert sorted(documents_of(text)) == sorted(texts) and text.report.documents == 12


def test_blank_lines_end_documents_and_paragraphs_however_lines_end(tmp_path, cache):
    blocks = [f"One {i}.\n\tTwo." for i in range(12)]
    for end in ("\n", "\r\n", "\r"):
        path, here = tmp_path / "a.txt", [block.replace("\n", end) for block in blocks]
        path.write_bytes(f"{end}{end}".join(here).encode())
        corpus = Corpus((str(path),), document="blank-line", **SMALL)
        assert sorted(documents_of(prepare_text(corpus, cache))) == sorted(here)
        few = prepare_text(Corpus((str(path),), **SMALL), cache)
        assert few.report.paragraphs == 12 and few.report.split_by == "paragraph"


def test_blank_lines_without_end_are_read_soon(tmp_path):
    (tmp_path / "a.txt").write_text("One." + "\n" * 300_000 + " " * 300_000 + "Two.\n")
    began = time.monotonic()
    parts = [*files.read_whole(tmp_path / "a.txt", files.Reading())]
    assert "".join(parts) == (tmp_path / "a.txt").read_text()
    assert "".join(each for part in parts for each in files.whole_paragraphs(part)) == "".join(
        parts
    )
    assert time.monotonic() - began < 60  # minutes, if each blank line looked for all others


def test_bits_per_byte_are_missing_where_a_vocabulary_loses_text(tmp_path, cache):
    folder = write_corpus(tmp_path / "corpus", files=12, paragraphs=5)
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    lossy = Corpus((str(folder),), vocab=str(vocabulary), form="documents")
    reports = [prepare_text(each, cache).report for each in (lossy, Corpus(lossy.paths, **SMALL))]
    assert np.isnan(reports[0].tokens_per_byte) and 0.1 < reports[1].tokens_per_byte < 1
    assert not TextExperiment(objective="causal", duplicates=True).has_bytes
