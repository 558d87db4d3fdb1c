"""Split, tokenise and memory-map a corpus; report what was read.

Which split a document, or a paragraph, belongs to: training, validation or test.

A corpus as rows of tokens, memory-mapped, one sentence a row; the one call that prepares it, and
what it reports.

Three things are prepared, each once, in a folder named by a hash of all that it depends on: the
files as a TFDS data set (`sources`), a vocabulary (`vocabularies`) and the tokens (`tokens`). A
folder is written under another name, brought to the disk and renamed: it is there as a whole or not
at all. No process is started.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from jaxtie.config import MissingInputError, UserError
from jaxtie.results.folder import Say
from jaxtie.text.config import Corpus
from jaxtie.text.data import cache as prepared
from jaxtie.text.data import files
from jaxtie.text.data import files as reading
from jaxtie.text.data.batches import Rows, Special
from jaxtie.text.data.tfds import Source, open_source
from jaxtie.text.data.vocabulary import (
    WAY_OF_TRAINING,
    Vocabulary,
    load_vocabulary,
    parse_vocabulary,
    train_vocabulary,
    vocabulary_file,
)
from jaxtie.training.devices import cache_folder

SPLITS = ("train", "valid", "test")
TENTHS = (7, 1, 2)  # of what is split


class Splitting:
    """Which split each document of a source belongs to, or each paragraph where there are few
    documents.

    The order of keyed hashes decides: equal texts come into the same split, in whichever order and
    file they are.

    Attributes:
      by_document: whether whole documents are split.
      key: what, beside the source and the seed, decides which paragraphs come where.
    """

    def __init__(self, source: Source, seed: int, documents_to_split: int):
        """`documents_to_split`: with so many documents or more, whole ones are split."""
        self.source, self._seed = source, seed.to_bytes(8, "big")
        self.by_document = source.documents >= documents_to_split
        self.key = ("by document" if self.by_document else "by paragraph",)
        self._edges: tuple[int, int] | None = None

    def _hash(self, text: bytes) -> int:
        return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=self._seed).digest(), "big")

    def _units(self) -> Iterator[tuple[int, str]]:
        """Hash of what is split, and paragraph."""
        for document, text in self.source.read():
            of_document = self._hash(document) if self.by_document else 0
            for paragraph in files.split_paragraphs(text):
                yield of_document if self.by_document else self._hash(paragraph.encode()), paragraph

    def _find_edges(self) -> tuple[int, int]:
        """The hashes at which validation and test begin."""
        ordered = np.unique(np.fromiter((unit for unit, _ in self._units()), np.uint64))
        if len(ordered) < 10:
            what = "documents" if self.by_document else "paragraphs"
            raise UserError(
                f"text: {len(ordered)} different {what} are too little for three splits, which need"
                " 10; give more of them"
            )
        first, second = len(ordered) * TENTHS[0] // 10, len(ordered) * sum(TENTHS[:2]) // 10
        return int(ordered[first]), int(ordered[second])

    def paragraphs(self) -> Iterator[tuple[int, str]]:
        """Number of the split and paragraph, in the order of the text.

        Raises:
          UserError: where there is too little for three splits.
        """
        if self._edges is None:
            self._edges = self._find_edges()
        first, second = self._edges
        for unit, paragraph in self._units():
            yield (unit >= first) + (unit >= second), paragraph


SENTENCES_AT_A_TIME = 8192


@dataclass(frozen=True)
class Report:
    """What was read and what it became; printed, a couple of lines.

    Attributes:
      files, latin1_lines, cuts: of text files: how many, lines that were not UTF-8 and were read as
        Latin-1, places where an overlong line or paragraph was cut; 0 for a TFDS data set.
      documents, paragraphs, sentences: found; a document is a file, or an example of a data set.
      split_by: "document" or "paragraph".
      rows, tokens: of each split: sentences with any token at all, and their tokens.
      unknown: of each split: tokens that are [UNK].
      vocabulary: entries.
    """

    files: int
    latin1_lines: int
    cuts: int
    documents: int
    paragraphs: int
    sentences: int
    split_by: str
    rows: dict[str, int]
    tokens: dict[str, int]
    unknown: dict[str, int]
    vocabulary: int

    def __str__(self) -> str:
        read = f"{self.files:,} files, " if self.files else ""
        flaws = (
            f"; {self.latin1_lines:,} lines read as Latin-1, {self.cuts:,} cuts"
            if self.files
            else ""
        )
        shared = ", so that a document is in several splits" if self.split_by == "paragraph" else ""
        parts = ", ".join(
            f"{name} {self.rows[name]:,} rows {self.tokens[name]:,} tokens" for name in SPLITS
        )
        return (
            f"{read}{self.documents:,} documents, {self.paragraphs:,} paragraphs,"
            f" {self.sentences:,} sentences{flaws}\nsplit by {self.split_by}{shared}: {parts};"
            f" vocabulary {self.vocabulary:,},"
            f" {sum(self.unknown.values()) / sum(self.tokens.values()):.3%} unknown"
        )


class Text(NamedTuple):
    """A corpus, ready for training.

    Attributes:
      vocabulary: tokens in the order of their ids.
      special: ids of the special tokens.
      train, valid, test: the splits.
      report: what was read.
      source: hash of what was read; of files `reading.Files.key`.
      key: hash of all that the tokens depend on.
    """

    vocabulary: tuple[str, ...]
    special: Special
    train: Rows
    valid: Rows
    test: Rows
    report: Report
    source: str
    key: str


def prepare_text(
    corpus: Corpus,
    cache: Path | None = None,
    say: Say = prepared.silence,
    vocabulary: bytes | None = None,
) -> Text:
    """The rows of a corpus, from the cache where it was prepared before.

    Args:
      cache: folder for what is prepared; by default below the user's cache folder.
      say: is given a line now and then while something takes long.
      vocabulary: `vocabulary_file` of what was trained on this corpus before. It gives the same
        rows without that cache, too, where another version might train another vocabulary. None:
        take what the corpus names, or else train one, if that was not done.

    Raises:
      MissingInputError: where the corpus names no text.
      UserError: in one line, what the user can get wrong, a disk that is full or a data set that
        cannot be had.
    """
    if not corpus.is_given:
        raise MissingInputError(
            "needs a text; give files or folders by --text PATH, or a data set by --tfds NAME"
        )
    cache, say = cache or cache_folder() / "text", prepared.now_and_then(say)
    loaded = None
    if corpus.vocab:
        loaded = load_vocabulary(Path(corpus.vocab))
    elif vocabulary:
        loaded = parse_vocabulary(vocabulary, "vocab.txt")
    source = open_source(corpus, cache, say)
    splitting = Splitting(source, corpus.split_seed, corpus.documents_to_split)
    if not loaded:
        trained_on = source.key, corpus.split_seed, *splitting.key
        folder = (
            cache / "vocabularies" / prepared.key(WAY_OF_TRAINING, *trained_on, corpus.vocab_size)
        )
        prepared.once(
            folder, lambda new: _write_vocabulary(new, splitting, corpus.vocab_size, say), say
        )
        loaded = load_vocabulary(folder / "vocab.txt")
    folder = (
        cache / "tokens" / prepared.key(source.key, corpus.split_seed, *splitting.key, loaded.hash)
    )
    counts = prepared.once(folder, lambda new: _write_tokens(new, splitting, loaded, say), say)
    dtype = np.dtype(counts.pop("dtype"))
    train, valid, test = (
        Rows(
            np.memmap(folder / f"{name}.tokens", dtype, "r"),
            np.memmap(folder / f"{name}.offsets", np.int64, "r"),
        )
        for name in SPLITS
    )
    return Text(
        loaded.tokens,
        loaded.special,
        train,
        valid,
        test,
        Report(**source.counts, **counts),
        source.key,
        folder.name,
    )


def _write_vocabulary(new: Path, splitting: Splitting, size: int, say: Say) -> dict:
    """Write `vocab.txt`: WordPiece, trained on the training split."""

    def paragraphs() -> Iterator[str]:
        for i, (split, paragraph) in enumerate(splitting.paragraphs()):
            say(f"training a vocabulary, {i:,} paragraphs so far")
            if split == 0:
                yield paragraph

    (new / "vocab.txt").write_bytes(vocabulary_file(train_vocabulary(paragraphs, size)))
    return {}


class _RowWriter:
    """Writes the rows of a split, and counts them, their tokens, and those that are [UNK]."""

    def __init__(self, tokens: BinaryIO, offsets: BinaryIO, dtype: np.dtype, unknown: int):
        """`unknown`: id of [UNK]."""
        self._tokens, self._offsets, self._dtype, self._unknown = tokens, offsets, dtype, unknown
        self.rows = self.tokens = self.unknown = 0
        offsets.write(np.int64(0).tobytes())

    def write(self, ids: list[list[int]]) -> None:
        """Write the rows that have any token."""
        ids = [row for row in ids if row]
        flat = np.fromiter((i for row in ids for i in row), self._dtype)
        ends = self.tokens + np.cumsum([len(row) for row in ids], dtype=np.int64)
        self._tokens.write(flat.tobytes())
        self._offsets.write(ends.tobytes())
        self.rows += len(ids)
        self.tokens += len(flat)
        self.unknown += int((flat == self._unknown).sum())


def _write_tokens(new: Path, splitting: Splitting, vocabulary: Vocabulary, say: Say) -> dict:
    """Write tokens and offsets of the rows of every split; returns the counts of a `Report`, and
    the tokens' dtype.
    """
    dtype = np.dtype(np.uint16 if len(vocabulary.tokens) <= 2**16 else np.uint32)
    paragraphs = sentences = 0

    def split_sentences() -> Iterator[tuple[int, str]]:
        nonlocal paragraphs
        for split, paragraph in splitting.paragraphs():
            paragraphs += 1
            for sentence in reading.split_sentences(paragraph):
                yield split, sentence

    with contextlib.ExitStack() as stack:
        writers = []
        for name in SPLITS:
            tokens, offsets = (
                stack.enter_context((new / f"{name}.{what}").open("wb"))
                for what in ("tokens", "offsets")
            )
            writers.append(_RowWriter(tokens, offsets, dtype, vocabulary.special.unk))
        some = split_sentences()
        while batch := list(islice(some, SENTENCES_AT_A_TIME)):
            sentences += len(batch)
            encoded = vocabulary.encode([sentence for _, sentence in batch])
            for k, writer in enumerate(writers):
                writer.write(
                    [ids for (split, _), ids in zip(batch, encoded, strict=True) if split == k]
                )
            say(f"tokenising, {sum(writer.tokens for writer in writers):,} tokens so far")
    rows = {name: writer.rows for name, writer in zip(SPLITS, writers, strict=True)}
    if not all(rows.values()):
        raise UserError(f"text: too little for three splits: {rows} rows; give more of it")
    return {
        "rows": rows,
        "tokens": {name: writer.tokens for name, writer in zip(SPLITS, writers, strict=True)},
        "unknown": {name: writer.unknown for name, writer in zip(SPLITS, writers, strict=True)},
        "documents": splitting.source.documents,
        "paragraphs": paragraphs,
        "sentences": sentences,
        "split_by": "document" if splitting.by_document else "paragraph",
        "vocabulary": len(vocabulary.tokens),
        "dtype": dtype.name,
    }
