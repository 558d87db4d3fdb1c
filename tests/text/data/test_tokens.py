"""From files to rows of tokens: splits, vocabulary, frequent words."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from corpora import SIZE, words, write_corpus
from tokenizers import AddedToken

from jaxtie.config import UserError
from jaxtie.text.data import files as reading
from jaxtie.text.data.batches import Special
from jaxtie.text.data.config import Corpus
from jaxtie.text.data.tokens import SPLIT_NAMES, TextReport, frequent_words, prepare_text
from jaxtie.text.data.vocabulary import SPECIAL_TOKENS, load_vocabulary

GUTENBERG = Path(__file__).parents[3] / "../shared/corpora/gutenberg"


def test_a_row_is_a_sentence_in_the_order_of_the_text(corpus, vocabulary, cache):
    text = prepare_text(Corpus(corpus.paths, vocab=vocabulary), cache)
    raw = " ".join(path.read_text() for path in sorted(Path(corpus.paths[0]).glob("*")))
    sentences = map(str.strip, raw.replace("\n", " ").split("."))
    expected = [f"{sentence} .".lower() for sentence in sentences if sentence]
    found = {row for name in SPLIT_NAMES for row in words(text, getattr(text, name))}
    assert found == set(expected)
    place = {sentence: i for i, sentence in enumerate(expected)}
    places = [place[row] for row in words(text, text.train) if expected.count(row) == 1]
    assert places == sorted(places) and len(places) > 100
    report = text.report
    assert (report.files, report.documents, report.paragraphs, report.sentences) == (3, 3, 120, 360)
    assert report.rows == {"train": 252, "valid": 36, "test": 72} and report.split_by == "paragraph"
    assert sum(report.tokens.values()) == sum(len(row.split()) for row in expected)
    assert not any(report.unknown.values())
    assert text.train.tokens_N.dtype == np.uint16
    assert len(str(report).splitlines()) == 2


@pytest.mark.parametrize("files", [9, 10, 50])
def test_ten_documents_are_split_whole(tmp_path, vocabulary, cache, files):
    """Nine are split by paragraphs, and the report says what that means."""
    folder = write_corpus(tmp_path / "corpus", files=files, paragraphs=20)
    for i, path in enumerate(sorted(folder.glob("*"))):
        letters = "abcdefghij"
        path.write_text(path.read_text().replace(".", f" {letters[i // 10]}{letters[i % 10]}."))
    text = prepare_text(Corpus((str(folder),), vocab=vocabulary), cache)
    train, valid, test = (
        {tuple(row.split()[-3:-1]) for row in words(text, rows)} for rows in text[2:5]
    )
    if files < 10:
        assert train & valid and text.report.split_by == "paragraph"
        assert "so that a document is in several splits" in str(text.report)
    else:
        assert not train & valid and not valid & test and text.report.split_by == "document"
        assert "so that a document is in several splits" not in str(text.report)
        sizes = [len(train), len(valid), len(test)]
        assert sizes == [files * 7 // 10, files // 10, files * 2 // 10]
    before = prepare_text(Corpus((str(folder),), vocab=vocabulary, documents_to_split=50), cache)
    assert (before.key == text.key) == (files != 10)


def document(i: int) -> str:
    """Return a document that shares no paragraph with others."""
    name = "".join("abcdefghij"[int(digit)] for digit in f"{i:02}")
    return "\n\n".join(f"The {name} cat {word} ran off.\nSome dog — saw {name}." for word in "xyz")


def as_records(folder: Path, texts: list[str]) -> None:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "records.jsonl").write_text(lines)


def each(write: Callable[[Path, str], object]) -> Callable[[Path, list[str]], None]:
    """Write a copy of each document to a file of its own."""

    def write_all(folder: Path, texts: list[str]) -> None:
        for i, text in enumerate(texts):
            write(folder / f"copy{i}.txt", text)

    return write_all


COPIES = {
    "packed": each(
        lambda path, text: path.with_suffix(".txt.gz").write_bytes(gzip.compress(text.encode()))
    ),
    "CRLF": each(lambda path, text: path.write_text(text, newline="\r\n")),
    "a line feed more": each(lambda path, text: path.write_text(text + "\n")),
    "spaces at ends of lines": each(
        lambda path, text: path.write_text(text.replace("\n", " \n") + " ")
    ),
    "Windows-1252": each(lambda path, text: path.write_text(text, encoding="cp1252")),
    "records": as_records,
    "records with a space": lambda folder, texts: as_records(
        folder, [f"{text} " for text in texts]
    ),
    "with a byte order mark in records": lambda folder, texts: as_records(
        folder, [f"\ufeff{text}" for text in texts]
    ),
    "in another folder": each(Path.write_text),
}


@pytest.mark.parametrize("way", COPIES)
def test_copies_of_a_document_are_in_its_split(tmp_path, vocabulary, cache, way):
    """In all of seven ways; those of committed experiments, by bytes, are not."""
    folder, texts = tmp_path / "corpus", [document(i) for i in range(30)]
    (folder / "more").mkdir(parents=True)
    for i, text in enumerate(texts):
        (folder / f"{i}.txt").write_text(text)
    COPIES[way](folder / "more", texts)

    def seen(**options: str) -> tuple[list[set[str]], TextReport]:
        corpus = Corpus((str(folder),), vocab=vocabulary, **options)
        text = prepare_text(corpus, cache)
        return [set(words(text, getattr(text, name))) for name in SPLIT_NAMES], text.report

    (train, valid, test), report = seen()
    assert not (train & valid or train & test or valid & test)
    assert report.documents == 60 and report.repeated == {"valid": 0, "test": 0}
    assert report.rows == {"train": 252, "valid": 36, "test": 72}
    (train, valid, _), report = seen(split_key="bytes")
    if way != "in another folder":
        assert train & valid and report.repeated["valid"] > 0
        assert "valid and" in str(report) and "paragraphs are in train, too" in str(report)


def test_paragraphs_in_two_splits_are_counted(tmp_path, vocabulary, cache):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for i in range(20):
        (folder / f"{i}.txt").write_text(f"{document(i)}\n\nThis bread under one tree.")
    report = prepare_text(Corpus((str(folder),), vocab=vocabulary), cache).report
    assert report.repeated == {"valid": 2, "test": 4}
    assert "; 2 valid and 4 test paragraphs are in train, too" in str(report)
    by_paragraph = Corpus((str(folder),), vocab=vocabulary, documents_to_split=50)
    assert prepare_text(by_paragraph, cache).report.repeated == {"valid": 0, "test": 0}


def test_the_split_depends_on_seed_and_text_alone(tmp_path, corpus, vocabulary, cache):
    one, other = Path(corpus.paths[0]), tmp_path / "other"
    other.mkdir()
    texts = [path.read_text() for path in sorted(one.glob("*"), reverse=True)]
    (other / "z.txt").write_text("\n\n".join(texts))

    def splits(folder: Path, seed: int) -> list[set[str]]:
        text = prepare_text(Corpus((str(folder),), vocab=vocabulary, split_seed=seed), cache)
        return [set(words(text, getattr(text, name))) for name in SPLIT_NAMES]

    assert splits(one, 1) == splits(other, 1) != splits(one, 2)


def test_a_trained_vocabulary_sees_the_training_split_alone(filled):
    _, text = filled
    assert text.vocabulary[:5] == SPECIAL_TOKENS and text.special == Special(0, 1, 2, 3, 4)
    assert {"cat", "bread", "##e"} & set(text.vocabulary) and 40 < len(text.vocabulary) <= SIZE


MANY_TIES = """
import itertools, random, sys
from jaxtie.text.data.vocabulary import train_vocabulary
words = ["".join(word) for word in itertools.product("abcdefghij", repeat=4)]
random.Random(7).shuffle(words)
texts = [" ".join(2 * words[i : i + 50]) + " 日本 été." for i in range(0, 5000, 50)]
print(*train_vocabulary(lambda: iter(texts), int(sys.argv[1])))
"""


def test_the_same_text_gives_the_same_vocabulary():
    """In every process, though all words are as frequent as each other, and so are most merges."""
    command = [sys.executable, "-c", MANY_TIES, "150"]
    options = {"stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
    started = [subprocess.Popen(command, **options) for _ in range(2)]
    first, other = [process.communicate()[0].split() for process in started]
    assert first == other and len(first) == 150
    letters = "abcdefghijt"  # no accents are left, and a Chinese character is a word
    expected = {*letters, ".", "\u65e5", "\u672c"} | {f"##{letter}" for letter in letters}
    assert first[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert {entry for entry in first[5:] if len(entry.removeprefix("##")) == 1} == expected


def test_a_special_token_in_the_text_is_text(tmp_path, own_corpus, vocabulary, cache):
    (own_corpus[1] / "3.txt").write_text(
        "The [MASK] ran off.\n\nThe [SEP] ran off.\n\nThe [PAD] ran off."
    )
    tokenizer = load_vocabulary(Path(vocabulary)).tokenizer
    tokenizer.add_special_tokens([AddedToken(token) for token in SPECIAL_TOKENS])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabularies = vocabulary, str(tmp_path / "tokenizer.json")
    plain, marked = (
        prepare_text(Corpus(own_corpus[0].paths, vocab=each), cache) for each in vocabularies
    )
    for text in (plain, marked):
        for name in SPLIT_NAMES:
            assert not np.isin(getattr(text, name).tokens_N, [0, 2, 3, 4]).any()
    assert plain.key != marked.key and np.array_equal(plain.train.tokens_N, marked.train.tokens_N)
    assert sum(plain.report.unknown.values()) == 6  # the brackets


def test_frequent_words(tmp_path, cache):
    folder = tmp_path / "corpus"
    folder.mkdir()
    sentences = "The cat saw the dog. The cat ran. It'a cats thed."
    (folder / "a.txt").write_text("\n\n".join(f"{sentences} {'one ' * i}." for i in range(1, 60)))
    vocab = tmp_path / "vocab.txt"
    vocab.write_text(
        "\n".join([*SPECIAL_TOKENS, *". ' the cat saw dog ran one it a ##s ##d".split()])
    )
    text = prepare_text(Corpus((str(folder),), vocab=str(vocab)), cache)
    ids, found = frequent_words(text, 4)
    assert found[:3] == ("one", "the", "cat") and found[3] in ("saw", "dog", "ran", "it")
    assert [text.vocabulary[i] for i in ids] == list(found) and ids.dtype == np.int32
    # "a" comes behind an apostrophe alone
    with pytest.raises(UserError, match="only 7 of its words"):
        frequent_words(text, 100)


@pytest.mark.skipif(
    not GUTENBERG.is_dir(), reason="needs the Gutenberg books next to this repository"
)
def test_the_gutenberg_books_come_through_right(cache):
    latin1, rows = {}, {}
    for path in reading.find_files([str(GUTENBERG)])[0]:  # white space apart, nothing is lost
        paragraphs = list(reading.read_whole(path, found := reading.Reading()))
        if found.latin1_lines:
            latin1[path.name] = found.latin1_lines
        expected = path.read_bytes().decode("latin-1" if found.latin1_lines else "utf-8").split()
        joined = (" ".join(each.split()) for each in paragraphs)
        sentences = [sentence for each in joined for sentence in reading.split_sentences(each)]
        assert " ".join(sentences) == " ".join(expected), path
        rows[path.stem] = len(sentences)
    assert latin1 == {"chesterton-ball.txt": 2, "shakespeare-caesar.txt": 2}

    # the split of the committed experiments
    text = prepare_text(Corpus((str(GUTENBERG),), split_key="bytes"), cache)
    report = text.report
    assert report.files == 17
    assert (report.documents, report.paragraphs, report.sentences) == (17, 23_279, 63_229)
    valid = rows["edgeworth-parents"] + rows["whitman-leaves"]  # whole books
    test = sum(
        rows[book]
        for book in ("blake-poems", "milton-paradise", "shakespeare-caesar", "shakespeare-macbeth")
    )
    assert report.split_by == "document"
    assert report.rows == {"train": 63_229 - valid - test, "valid": valid, "test": test}
    # by the vocabulary, which knows the characters of training books only
    assert 1.7e6 < sum(report.tokens.values()) < 1.9e6
    unknown = sum(report.unknown.values()) / sum(report.tokens.values())
    assert report.unknown["train"] == 0 and unknown < 1e-3
    assert report.tokens["train"] == len(text.train.tokens_N)
    assert report.rows["train"] == text.train.count
    found = frequent_words(text, 100)[1]
    assert found[:3] == ("the", "and", "of")
    assert {"he", "she", "said"} <= set(found) and not {"s", "t", "d"} & set(found)
