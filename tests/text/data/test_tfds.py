"""TFDS data sets as texts: contents and errors."""

import dataclasses
import functools
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from corpora import WORDS, error_of
from drawing import save_small

from jaxtie import load
from jaxtie.config import UserError
from jaxtie.results import plots
from jaxtie.run.command import main
from jaxtie.text.data.config import Corpus
from jaxtie.text.data.tokens import prepare_text

TINY = """from jaxtie import Optimizer, TextExperiment, Transformer
experiment = TextExperiment(
    name="tiny", objective="causal", model=Transformer(layers=1, heads=2, width=8, feedforward=8),
    init_std=0.02, steps=20, optimizer=Optimizer(learning_rate=2e-2), arms=("tied",), seeds=(0,),
    record_every=10, eval_every=20, batch=2, length=16, words=4, duplicates=False,
)
"""


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
            saw, ran = WORDS[i % len(WORDS)], WORDS[i // 7]
            body = f"The cat saw {saw}. A {ran} ran.\r\n\r\nÜber {i}."
            yield i, {"body": body, "label": i}


@pytest.fixture
def tfds_folder(tmp_path, monkeypatch) -> Path:
    for name in ("data_source", "builder"):
        monkeypatch.setattr(
            tfds, name, functools.partial(getattr(tfds, name), data_dir=tmp_path / "tfds")
        )
    return tmp_path / "tfds"


@pytest.mark.usefixtures("tfds_folder")
def test_a_tfds_data_set(tmp_path, vocabulary, cache, capsys):
    corpus = Corpus(tfds="tiny_text:1.0.0", field="body", vocab=vocabulary)
    report = prepare_text(corpus, cache).report
    assert (report.files, report.documents, report.paragraphs) == (0, 60, 120)
    assert report.split_by == "document"
    assert report.rows == {"train": 42 * 3, "valid": 6 * 3, "test": 12 * 3}
    assert prepare_text(corpus, cache).report == report
    assert capsys.readouterr() == ("", "")
    assert error_of(Corpus(tfds="tiny_text", field="text"), tmp_path / "x").endswith(
        "expected --text-field body"
    )


def test_a_tfds_data_set_in_another_format(tfds_folder, vocabulary, tmp_path, cache):
    """Only what TFDS writes about it is changed."""
    corpus = Corpus(tfds="tiny_text:1.0.0", field="body", vocab=vocabulary)
    prepare_text(corpus, tmp_path / "before")
    (about,) = tfds_folder.rglob("dataset_info.json")
    about.write_text(about.read_text().replace("array_record", "tfrecord"))
    for path in [*tfds_folder.rglob("*.array_record-*")]:
        path.rename(str(path).replace("array_record", "tfrecord"))
    # TFDS finds out in another way where no version is named
    for name in ("tiny_text:1.0.0", "tiny_text"):
        error = error_of(dataclasses.replace(corpus, tfds=name), cache)
        assert error.startswith(
            f"--tfds {name}: was prepared as tfrecord; remove the data set where TFDS keeps it"
        )


@pytest.mark.slow
@pytest.mark.usefixtures("tfds_folder")
def test_training_on_a_tfds_data_set_from_end_to_end(vocabulary, tmp_path, monkeypatch):
    """Prepare and train by one command; the same again reads TFDS's own copy."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(plots, "save", save_small)
    experiment = tmp_path / "tiny.py"
    experiment.write_text(TINY)
    options = [str(experiment), *"--tfds tiny_text:1.0.0 --text-field body --quiet --vocab".split()]
    options.append(vocabulary)
    assert main([*options, "--out", str(tmp_path / "run")]) == 0
    shutil.rmtree(tmp_path / "cache")  # then TFDS's own copy is read
    assert main([*options, "--out", str(tmp_path / "again")]) == 0
    one, again = (load(tmp_path / name) for name in ("run", "again"))
    assert "60 documents" in one.attrs["text"] and one.attrs["text_key"] == again.attrs["text_key"]
    np.testing.assert_array_equal(one["valid_loss"], again["valid_loss"])
    assert float(one["valid_loss"][..., -1].mean()) < float(one["valid_loss"][..., 0].mean())


@pytest.mark.usefixtures("tfds_folder")
@pytest.mark.parametrize(
    "name, message",
    [
        ("wiki_40b", "knows no such data set; did you mean wiki40b"),
        ("tiny_text:9.9.9", "cannot be loaded at version 9.9.9"),
        ("wiki40b/xx", "BuilderConfig xx not found"),
        ("a b", "must be of the following format: dataset_name[/config_name]"),
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
    with pytest.raises(
        UserError, match=r"--tfds lm1b: cannot be downloaded .*statmt.*network"
    ) as caught:
        prepare_text(Corpus(tfds="lm1b"), cache)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr() == ("", "")
