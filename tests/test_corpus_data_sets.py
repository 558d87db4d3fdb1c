"""TFDS data sets as texts, the user's own files among them: what is read, in which parts, what errors say."""

import functools
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from corpora import WORDS, error_of, write_corpus

from jaxtie.experiment import UserError
from jaxtie.text.corpus import prepared, reading, sources
from jaxtie.text.corpus.tokens import prepare_text
from jaxtie.text.declaration import Corpus

pytest_plugins = "corpus_fixtures"


class TinyText(tfds.core.GeneratorBasedBuilder):
    """Sixty documents, in two splits."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({"body": tfds.features.Text(), "label": np.int64})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(0, 40), "test": self._generate_examples(40, 60)}

    def _generate_examples(self, start, end):
        for i in range(start, end):
            yield i, {"body": f"The cat saw {WORDS[i % len(WORDS)]}. A {WORDS[i // 7]} ran.\r\n\r\nÜber {i}.", "label": i}


@pytest.fixture
def tfds_folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tfds, "data_source", functools.partial(tfds.data_source, data_dir=tmp_path / "tfds"))
    return tmp_path / "tfds"


@pytest.mark.usefixtures("tfds_folder")
def test_a_tfds_data_set(tmp_path, vocabulary, cache, capsys):
    corpus = Corpus(tfds="tiny_text:1.0.0", field="body", vocab=vocabulary)
    report = prepare_text(corpus, cache).report
    assert (report.files, report.documents, report.paragraphs, report.split_by) == (0, 60, 120, "document")
    assert report.rows["train"] == 42 * 3 and report.rows["valid"] == 6 * 3 and report.rows["test"] == 12 * 3
    assert prepare_text(corpus, cache).report == report
    assert capsys.readouterr() == ("", "")
    assert error_of(Corpus(tfds="tiny_text", field="text"), tmp_path / "x").endswith("expected --tfds-field body")


def test_a_tfds_data_set_in_a_format_that_needs_tensorflow(tfds_folder, vocabulary, tmp_path, cache):
    """Made in both formats by what TFDS writes about them: reading ends where TFDS sees the format."""
    corpus = Corpus(tfds="tiny_text:1.0.0", field="body", vocab=vocabulary)
    prepare_text(corpus, tmp_path / "before")
    (about,) = tfds_folder.rglob("dataset_info.json")
    about.write_text(about.read_text().replace("array_record", "tfrecord"))
    for path in [*tfds_folder.rglob("*.array_record-*")]:
        path.rename(str(path).replace("array_record", "tfrecord"))
    error = error_of(corpus, cache)
    assert error.startswith(
        "--tfds tiny_text:1.0.0: was prepared as tfrecord; expected array_record, which needs no TensorFlow"
    )


@pytest.mark.usefixtures("tfds_folder")
@pytest.mark.parametrize(
    "name, message",
    [
        ("wiki_40b", "knows no such data set; did you mean wiki40b"),
        ("tiny_text:9.9.9", "cannot be loaded at version 9.9.9"),
        ("wiki40b/xx", "BuilderConfig xx not found"),
    ],
)
def test_a_tfds_data_set_that_does_not_exist(cache, name, message):
    error = error_of(Corpus(tfds=name), cache)
    assert message in error and error.startswith(f"--tfds {name}: ") and len(error) < 330


@pytest.mark.usefixtures("tfds_folder")
def test_no_network(cache, monkeypatch, capsys):
    def refuse(*_, **__):
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(prepared, "PATIENCE", 0.0)
    told = []
    with pytest.raises(UserError, match=r"--tfds lm1b: cannot be downloaded .*statmt.*network") as caught:
        prepare_text(Corpus(tfds="lm1b"), cache, told.append)
    assert "\n" not in str(caught.value)
    assert told == ["no answer from the network yet, trying again"] * len(told) and told
    assert capsys.readouterr().out == ""


def test_large_files_are_written_in_parts(tmp_path, vocabulary, cache, monkeypatch):
    """The last part may be small, and a blank stretch leaves none empty."""
    monkeypatch.setattr(reading, "PIECE", 2**12)
    folder = write_corpus(tmp_path / "corpus", paragraphs=250)
    (folder / "3.txt").write_text("\n" * 2**14)
    corpus = Corpus((str(folder),), vocab=vocabulary)
    whole = prepare_text(corpus, cache)
    assert len(list(cache.glob("sources/*/given_text/*/*.array_record-*"))) == 1
    monkeypatch.setattr(sources, "PART", 2**13)
    parts = prepare_text(corpus, tmp_path / "parts")
    assert len(list((tmp_path / "parts").glob("sources/*/given_text/*/*.array_record-*"))) > 5
    assert parts.report == whole.report and parts.key == whole.key
    assert all(np.array_equal(one.tokens_N, other.tokens_N) for one, other in zip(parts[2:5], whole[2:5], strict=True))
