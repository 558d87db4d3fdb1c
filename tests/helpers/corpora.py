"""A made-up text and its vocabulary."""

from pathlib import Path

import numpy as np
import pytest

from jaxtie.config import UserError
from jaxtie.text.data.batches import Rows
from jaxtie.text.data.config import Corpus
from jaxtie.text.data.tokens import Text, prepare_text
from jaxtie.text.data.vocabulary import SPECIAL_TOKENS

WORDS = (
    "the cat saw a dog and this dog ran off with some very old bread under one tall tree near my"
    " house".split()
)
SIZE = 120  # of vocabularies that are trained


def random_text(rng: np.random.Generator, paragraphs: int) -> str:
    """Write paragraphs of three sentences of random words, a sentence a line."""

    def sentence() -> str:
        return " ".join(rng.choice(WORDS, rng.integers(3, 12))).capitalize() + "."

    return "\n\n".join("\n".join(sentence() for _ in range(3)) for _ in range(paragraphs))


def write_corpus(folder: Path, files: int = 3, paragraphs: int = 40) -> Path:
    """Make a folder of files of random text, always the same."""
    rng = np.random.default_rng(7)
    folder.mkdir()
    for i in range(files):
        (folder / f"{i}.txt").write_text(random_text(rng, paragraphs))
    return folder


def write_vocabulary(path: Path, *, without: str = "") -> Path:
    """Write a `vocab.txt` with all tokens of the made-up text."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    entries = [*SPECIAL_TOKENS, ".", *WORDS, *letters, *(f"##{c}" for c in letters)]
    path.write_text("\n".join(dict.fromkeys(entry for entry in entries if entry != without)))
    return path


def words(text: Text, rows: Rows) -> list[str]:
    """Join the tokens of each row."""
    return [" ".join(text.vocabulary[i] for i in rows.row(r)) for r in range(rows.count)]


def error_of(corpus: Corpus, cache: Path) -> str:
    """Return the one line that preparing fails with, and check that nothing is left of it."""
    with pytest.raises(UserError) as caught:
        prepare_text(corpus, cache)
    assert "\n" not in str(caught.value)
    assert not list(cache.glob("tokens/*/*"))
    assert not list(cache.glob("*/.*"))
    return str(caught.value)
