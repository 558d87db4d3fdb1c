"""The made-up text, made and prepared once a session."""

import shutil
from pathlib import Path

import pytest
from corpora import SIZE, write_corpus, write_vocabulary

from jaxtie.text.data.config import Corpus
from jaxtie.text.data.tokens import Text, prepare_text


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Corpus:
    """Return three files of made-up text with a trained vocabulary; not to be written to."""
    return Corpus((str(write_corpus(tmp_path_factory.mktemp("text") / "corpus")),), vocab_size=SIZE)


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory) -> str:
    """Return the path of a `vocab.txt` that was not trained."""
    return str(write_vocabulary(tmp_path_factory.mktemp("vocabulary") / "vocab.txt"))


@pytest.fixture(scope="session")
def filled(corpus, tmp_path_factory) -> tuple[Path, Text]:
    """Return a cache in which `corpus` is prepared, not to be written to, and its text."""
    cache = tmp_path_factory.mktemp("text") / "cache"
    return cache, prepare_text(corpus, cache)


@pytest.fixture(scope="session")
def text(filled) -> Text:
    """Return the text of `corpus`."""
    return filled[1]


@pytest.fixture
def cache(tmp_path) -> Path:
    """Return the path of a cache that does not exist yet."""
    return tmp_path / "cache"


@pytest.fixture
def own_corpus(corpus, tmp_path) -> tuple[Corpus, Path]:
    """Return a copy of `corpus` that a test may change, and its folder."""
    shutil.copytree(corpus.paths[0], tmp_path / "corpus")
    return Corpus((str(tmp_path / "corpus"),), vocab_size=SIZE), tmp_path / "corpus"


@pytest.fixture
def own_cache(filled, tmp_path) -> Path:
    """Return a copy of the filled cache that a test may change."""
    return Path(shutil.copytree(filled[0], tmp_path / "own-cache"))
