"""One-line errors of texts and vocabularies that cannot be used."""

import pytest
from corpora import error_of
from tokenizers import models

from jaxtie.config import UserError
from jaxtie.text.config import Corpus, TextExperiment
from jaxtie.text.data import files
from jaxtie.text.data.tokens import prepare_text
from jaxtie.text.data.vocabulary import SPECIAL_TOKENS, wrap_as_bert


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file or folder"),
        (b"One.\n\nTwo.\n\nTwo.", "2 different paragraphs are too little for three splits"),
        (b"", "a.txt: no text at all"),
        (b"The cat\n\x00\x01", "a.txt: holds NUL bytes"),
    ],
)
def test_files_that_are_no_text(tmp_path, cache, content, message):
    if content is not None:
        (tmp_path / "a.txt").write_bytes(content)
    assert message in error_of(Corpus((str(tmp_path / "a.txt"),)), cache)


def test_nothing_to_read(tmp_path, cache):
    assert "holds no text by its name" in error_of(Corpus((str(tmp_path),)), cache)
    expected = "needs a text; give files or folders by --text PATH, or a data set by --tfds NAME"
    with pytest.raises(UserError, match=expected):
        prepare_text(Corpus(), cache)


@pytest.mark.parametrize("again", [False, True], ids=["first pass", "second pass"])
@pytest.mark.parametrize("how", ["vanishes", "changes"])
def test_a_file_that_changes_while_it_is_read(own_corpus, cache, monkeypatch, how, again):
    corpus, folder = own_corpus
    path, read, passes = folder / "2.txt", files.read_whole, []

    def read_whole(own, reading):
        passes.append(own.name)
        if passes.count("0.txt") == 1 + again:
            path.unlink(missing_ok=True) if how == "vanishes" else path.write_text("Other.")
        return read(own, reading)

    monkeypatch.setattr(files, "read_whole", read_whole)
    error = error_of(corpus, cache)
    message = "No such file" if how == "vanishes" else "changed while it was being read"
    assert "2.txt: " in error and message in error


def without_unknown(path):
    entries = {token: i for i, token in enumerate(SPECIAL_TOKENS)}
    wrap_as_bert(models.WordPiece(entries, unk_token="<unk>")).save(str(path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{}", "expected a tokenizer.json of the tokenizers library"),
        ("tokenizer.json", "no", "expected a tokenizer.json of the tokenizers library"),
        ("tokenizer.json", without_unknown, "cannot tokenise an unknown word"),
        ("vocab.txt", "\xff\xfe", "cannot tokenise an unknown word"),
        ("vocab.txt", "\n".join([*SPECIAL_TOKENS, "a", "a", "b"]), "an entry comes twice"),
        ("vocab.txt", lambda path: None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_vocabulary(corpus, cache, tmp_path, name, content, message):
    path = tmp_path / name
    content(path) if callable(content) else path.write_text(content)
    assert message in error_of(Corpus(corpus.paths, vocab=str(path)), cache)


@pytest.mark.parametrize(
    ("declare", "wrong", "message"),
    [
        (Corpus, {"tfds": "b", "vocab_size": 7}, "vocab_size = 7: expected 100 to"),
        (Corpus, {"tfds": "b", "split_seed": -1}, "split_seed = -1: expected an integer"),
        (Corpus, {"paths": ("a",), "tfds": "b"}, "either files and folders or the name of a TFDS"),
        (Corpus, {"tfds": "b", "document": "line"}, "--document: expected with files"),
        (Corpus, {"document": "page"}, "document = 'page': expected one of file, line"),
        (TextExperiment, {"objective": "other"}, "objective = 'other': expected one of"),
        (TextExperiment, {"words": 2}, "at least 3"),
        (TextExperiment, {"words": ("the", "cat", "dog")}, "at least 3"),
        (TextExperiment, {"length": 3}, "length = 3"),
        (TextExperiment, {"buckets": (1,)}, "buckets = (1,)"),
        (TextExperiment, {"data_seed": -1}, "data_seed = -1"),
        (TextExperiment, {"init_std": 0}, "init_std"),
        (TextExperiment, {"duplicates": (0.5, 1.0)}, "above 0 and below 1"),
        (TextExperiment, {"duplicates": (0,)}, "above 0 and below 1"),
        (TextExperiment, {"contexts": -1}, "contexts = -1"),
    ],
)
def test_invalid_fields(declare, wrong, message):
    with pytest.raises(UserError) as caught:
        declare(**wrong)
    assert message in str(caught.value)
