"""What a user can get wrong about a text, and the line that says so."""

import json

import pytest
from corpora import error_of, write_vocabulary
from tokenizers import models

from jaxtie.config import MissingInputError, UserError
from jaxtie.text.config import Corpus
from jaxtie.text.data import files
from jaxtie.text.data.tokens import prepare_text
from jaxtie.text.data.vocabulary import SPECIAL_TOKENS, wrap_as_bert

pytest_plugins = "corpus_fixtures"


def test_what_is_not_there(tmp_path, cache):
    assert "no such file or folder" in error_of(Corpus((str(tmp_path / "no"),)), cache)
    (tmp_path / "empty").mkdir()
    assert "holds no *.txt" in error_of(Corpus((str(tmp_path / "empty"),)), cache)


def test_no_text_at_all(cache):
    with pytest.raises(
        MissingInputError,
        match="needs a text; give files or folders by --text PATH, or a data set by --tfds NAME",
    ):
        prepare_text(Corpus(), cache)


def test_a_binary_file(own_corpus, cache):
    corpus, folder = own_corpus
    (folder / "9.txt").write_bytes(b"The cat\n\x00\x01")
    assert "9.txt: holds NUL bytes" in error_of(corpus, cache)


@pytest.mark.parametrize("how", ["vanishes", "changes"])
def test_a_file_that_does_not_stay(own_corpus, cache, monkeypatch, how):
    corpus, folder = own_corpus
    path, paragraphs = folder / "2.txt", files.read_paragraphs

    def read_paragraphs(*arguments):
        path.unlink(missing_ok=True) if how == "vanishes" else path.write_text("Other.")
        return paragraphs(*arguments)

    monkeypatch.setattr(files, "read_paragraphs", read_paragraphs)
    error = error_of(corpus, cache)
    assert (
        "2.txt: " in error and ("No such file" if how == "vanishes" else "changed while") in error
    )


def test_too_little_text(tmp_path, cache):
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n\nTwo.")
    assert "2 different paragraphs are too little for three splits" in error_of(
        Corpus((str(tmp_path / "a.txt"),)), cache
    )
    (tmp_path / "b.txt").write_text("")
    assert "b.txt: no text at all" in error_of(Corpus((str(tmp_path / "b.txt"),)), cache)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("tokenizer.json", "{}", "expected a tokenizer.json of the tokenizers library"),
        ("tokenizer.json", "no", "expected a tokenizer.json of the tokenizers library"),
        ("vocab.txt", "\xff\xfe", "has no [PAD], [UNK], [CLS], [SEP], [MASK]"),
        ("vocab.txt", "\n".join([*SPECIAL_TOKENS, "a", "a", "b"]), "does an entry come twice?"),
        ("vocab.txt", None, "cannot be read"),
    ],
)
def test_a_vocabulary_that_is_none(corpus, cache, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    assert message in error_of(Corpus(corpus.paths, vocab=str(tmp_path / name)), cache)


def test_a_vocabulary_without_mask(corpus, cache, tmp_path):
    vocab = write_vocabulary(tmp_path / "vocab.txt", without="[MASK]")
    assert "has no [MASK]; expected a vocabulary like BERT's" in error_of(
        Corpus(corpus.paths, vocab=str(vocab)), cache
    )
    tokenizer = json.loads(
        wrap_as_bert(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]")).to_str()
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "has no [PAD], [CLS]" in error_of(
        Corpus(corpus.paths, vocab=str(tmp_path / "tokenizer.json")), cache
    )


def test_a_vocabulary_whose_unknown_token_is_missing(corpus, cache, tmp_path):
    entries = {token: i for i, token in enumerate(SPECIAL_TOKENS)}
    wrap_as_bert(models.WordPiece(entries, unk_token="<unk>")).save(
        str(tmp_path / "tokenizer.json")
    )
    message = error_of(Corpus(corpus.paths, vocab=str(tmp_path / "tokenizer.json")), cache)
    assert "cannot tokenise an unknown word" in message


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"tfds": "b", "vocab_size": 7}, "vocab_size = 7: expected 100 to"),
        ({"tfds": "b", "split_seed": -1}, "split_seed = -1: expected an integer"),
        ({"tfds": "b", "field": ""}, "field = '': expected the name of a feature"),
        ({"paths": ("a",), "tfds": "b"}, "either files and folders or the name of a TFDS data set"),
        ({"tfds": "a b"}, "--tfds a b: expected NAME"),
    ],
)
def test_a_corpus_that_cannot_be_meant(wrong, message):
    with pytest.raises(UserError) as caught:
        Corpus(**wrong)
    assert message in str(caught.value)
