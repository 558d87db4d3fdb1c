"""The made-up text, made and prepared once a session: a test file that wants it says
`pytest_plugins = "corpus_fixtures"`.
"""

import shutil
from pathlib import Path

import pytest
from corpora import SIZE, write_corpus, write_vocabulary

from jaxtie.text.config import Corpus
from jaxtie.text.data.tokens import Text, prepare_text


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Corpus:
    """The made-up text, three files, and a trained vocabulary; not to be written to."""
    return Corpus((str(write_corpus(tmp_path_factory.mktemp("text") / "corpus")),), vocab_size=SIZE)


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory) -> str:
    """Path of a `vocab.txt` that was not trained."""
    return str(write_vocabulary(tmp_path_factory.mktemp("vocabulary") / "vocab.txt"))


@pytest.fixture(scope="session")
def filled(corpus, tmp_path_factory) -> tuple[Path, Text]:
    """A cache in which `corpus` is prepared, not to be written to, and what came of it."""
    cache = tmp_path_factory.mktemp("text") / "cache"
    return cache, prepare_text(corpus, cache)


@pytest.fixture
def cache(tmp_path) -> Path:
    """A cache of the test's own, which is not there yet."""
    return tmp_path / "cache"


@pytest.fixture
def own_corpus(corpus, tmp_path) -> tuple[Corpus, Path]:
    """A copy of `corpus` that a test may change, and where its files lie."""
    shutil.copytree(corpus.paths[0], tmp_path / "corpus")
    return Corpus((str(tmp_path / "corpus"),), vocab_size=SIZE), tmp_path / "corpus"


@pytest.fixture
def own_cache(filled, tmp_path) -> Path:
    """A copy of the cache in which `corpus` is prepared that a test may change."""
    return Path(shutil.copytree(filled[0], tmp_path / "own-cache"))
