"""Declare a text and its vocabulary. Imports no jax."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from jaxtie.config import check, check_positive_integers, check_seed, make_plain

DOCUMENTS = ("file", "line", "blank-line")  # units of a document in a text file
FORMS = ("sentences", "documents")
SPLIT_KEYS = ("words", "bytes")
BYTES = 257  # entries of a vocabulary of bytes and of a token that ends documents


@dataclass(frozen=True)
class Corpus:
    """A text and its vocabulary. If it names no text, the command line must.

    Attributes:
      paths: text files, and folders that are searched for them, see `jaxtie.text.data.files`.
      tfds: instead of files, a TFDS data set, NAME[/CONFIG][:VERSION], with all its splits.
      field: the field that holds the text, of that data set or of files of records.
      vocab: a BERT `vocab.txt` or a `tokenizer.json`; None: train one on the training split.
      vocab_size: largest size of the trained vocabulary.
      split_seed: seed of the split into training, validation and test.
      documents_to_split: with at least this many documents, each goes into one split as a whole;
        with fewer, each paragraph does.
      document: what a document of a text file is: None: the file; "line" or "blank-line" (what
        stands between blank lines).
      form: "documents": a row is a document, of which nothing is changed, and a byte-level BPE is
        trained; "sentences": a row is a sentence in lower case, and WordPiece is trained. None:
        documents of a causal model, sentences of a masked one, as published.
      split_key: what decides in which split a document is: "words", so that its copies in other
        files, encodings, line ends and white space follow it; or "bytes", as before 2026-11-28.
    """

    paths: tuple[str, ...] = ()
    tfds: str | None = None
    field: str = "text"
    vocab: str | None = None
    vocab_size: int = 8192
    split_seed: int = 42
    documents_to_split: int = 10
    document: str | None = None
    form: str | None = None
    split_key: str = "words"

    def __post_init__(self):
        make_plain(self)
        check(
            not (self.paths and self.tfds),
            "text: expected either files and folders or the name of a TFDS data set",
        )
        check(
            self.document in (None, *DOCUMENTS),
            f"document = {self.document!r}: expected one of {', '.join(DOCUMENTS)}",
        )
        check(
            self.form in (None, *FORMS),
            f"form = {self.form!r}: expected None, {' or '.join(FORMS)}",
        )
        check(
            self.split_key in SPLIT_KEYS,
            f"split_key = {self.split_key!r}: expected one of {', '.join(SPLIT_KEYS)}",
        )
        if self.document == "file":
            object.__setattr__(self, "document", None)
        check(not (self.tfds and self.document), "--document: expected with files, not with --tfds")
        check_positive_integers(self, "vocab_size", "documents_to_split")
        check(
            100 <= self.vocab_size <= 2**20,
            f"vocab_size = {self.vocab_size}: expected 100 to {2**20} (published: 30522)",
        )
        check(
            self.form != "documents" or self.vocab is not None or self.vocab_size > BYTES,
            f"vocab_size = {self.vocab_size}: expected more than {BYTES} for a BPE of bytes",
        )
        check_seed(self.split_seed, "split_seed")

    @property
    def is_given(self) -> bool:
        """Whether there is a text to be read."""
        return bool(self.paths or self.tfds)

    @property
    def label(self) -> str:
        """Name of the text for folders, different for each text."""
        which = json.dumps([self.paths, self.tfds, self.field, self.document])
        name = re.sub(r"[^\w.-]+", "-", self.tfds or Path(*self.paths[:1]).stem)[:40]
        return f"{name}-{hashlib.sha256(which.encode()).hexdigest()[:6]}"
