"""Split, tokenise and memory-map a corpus; count and choose its words.

A row is a sentence or a document, see `Corpus.form`. Three things are prepared, each once, in a
folder named by a hash of all that it depends on: a check of the files, a vocabulary and the tokens
(see `jaxtie.text.data.cache`). No process is started.
"""

import contextlib
import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxtie.config import UserError, check
from jaxtie.results.folder import Say
from jaxtie.text.data import cache as folders
from jaxtie.text.data import files
from jaxtie.text.data.batches import Rows, Special
from jaxtie.text.data.config import Corpus
from jaxtie.text.data.vocabulary import (
    WAY_OF_TRAINING,
    Vocabulary,
    load_vocabulary,
    name_of,
    parse_vocabulary,
    train_bpe,
    train_vocabulary,
    vocabulary_file,
)
from jaxtie.training.devices import cache_folder

SPLIT_NAMES = ("train", "valid", "test")
TENTHS = (7, 1, 2)  # of the documents or paragraphs
SENTENCES_AT_A_TIME = 8192
CHARACTERS_AT_A_TIME = 2**24
SEGMENT = 2**20  # characters of a document that are tokenised at once, at least
ROWS_AT_A_TIME = 2**16


@dataclass(frozen=True, kw_only=True)
class TextReport:
    """Report on a prepared text, printed as two lines."""

    files: int = 0  # text files
    documents: int  # of text files, or records
    documents_are: str = "record"  # "file", "line", "blank-line block", "record", or two of them
    paragraphs: int
    sentences: int
    split_by: str  # "document" or "paragraph"
    rows: dict[str, int]  # of each split: sentences, or documents, with any token
    tokens: dict[str, int]  # of each split
    unknown: dict[str, int]  # of each split: tokens that are [UNK]
    bytes: dict[str, int]  # of each split, as UTF-8, where tokens are the whole text; else none
    repeated: dict[str, int]  # of validation and test: paragraphs that are in training, too
    vocabulary: int  # entries

    @property
    def tokens_per_byte(self) -> float:
        """Tokens of a byte of the validation split, with ends of documents; NaN without bytes."""
        predicted = self.tokens["valid"] + self.rows["valid"]
        return predicted / self.bytes["valid"] if self.bytes else math.nan

    def __str__(self) -> str:
        """Return two lines."""
        read, flaws = f"{self.files:,} files, " if self.files else "", ""
        shared = ", so that a document is in several splits" if self.split_by == "paragraph" else ""
        parts = ", ".join(
            f"{name} {self.rows[name]:,} rows {self.tokens[name]:,} tokens" for name in SPLIT_NAMES
        )
        unknown = sum(self.unknown.values()) / sum(self.tokens.values())
        if not self.sentences and not self.bytes:
            flaws += "; the vocabulary loses some of the text, so there are no bits per byte"
        sentences = f", {self.sentences:,} sentences" if self.sentences else ""
        repeated = " and ".join(
            f"{count:,} {name}" for name, count in self.repeated.items() if count
        )
        if repeated:
            flaws += f"; {repeated} paragraphs are in train, too"
        return (
            f"{read}{self.documents:,} documents (one a {self.documents_are}),"
            f" {self.paragraphs:,} paragraphs{sentences}{flaws}\n"
            f"split by {self.split_by}{shared}: {parts};"
            f" vocabulary {self.vocabulary:,}, {unknown:.3%} unknown"
        )


class Text(NamedTuple):
    """A corpus as rows of tokens."""

    vocabulary: tuple[str, ...]  # tokens in the order of their ids
    special: Special
    train: Rows
    valid: Rows
    test: Rows
    report: TextReport
    source: str  # hash of the source
    key: str  # hash of all that the tokens depend on
    notes: tuple[str, ...] = ()  # remarks for the user on single files and folders
    content: bytes = b""  # of the vocabulary's file


def prepare_text(
    corpus: Corpus,
    cache: Path | None = None,
    say: Say = folders.silence,
    vocabulary: bytes | None = None,
) -> Text:
    """Read, split and tokenise a corpus, or find that in the cache.

    A corpus without a form is read as sentences.

    Args:
      corpus: where the text comes from.
      cache: folder; by default below the user's cache folder.
      say: receives a line now and then while something takes long.
      vocabulary: content of the vocabulary that was trained on this corpus before, as another
        version might train another one. None: train one, or find it in the cache.

    Raises:
      UserError: in one line, if no text is named, the input is wrong, the disk is full or a data
        set cannot be had.
    """
    if not corpus.is_given:
        raise UserError(
            "needs a text; give files or folders by --text PATH, or a data set by --tfds NAME"
        )
    cache, loaded = cache or cache_folder() / "text", None
    if corpus.vocab:
        loaded = load_vocabulary(Path(corpus.vocab))
    elif vocabulary:
        loaded = parse_vocabulary(vocabulary, name_of(vocabulary))
    if corpus.tfds:
        from jaxtie.text.data.tfds import open_data_set  # heavy

        source = open_data_set(corpus)
    else:
        source = files.open_files(corpus, cache / "sources", say)
    splitting = _Splitting(source, corpus)
    parts: list[object] = [source.key, corpus.split_seed, f"by {splitting.unit}"]
    if splitting.unit == "document":
        parts.append(corpus.split_key)
    if splitting.whole:
        parts.append("whole")
    if not loaded:
        size = corpus.vocab_size
        folder = cache / "vocabularies" / folders.key(WAY_OF_TRAINING, *parts, size)
        folders.once(folder, lambda new, say: _write_vocabulary(new, splitting, size, say), say)
        loaded = load_vocabulary(folder / ("tokenizer.json" if splitting.whole else "vocab.txt"))
    content = hashlib.sha256(loaded.content).hexdigest()
    folder = cache / "tokens" / folders.key(*parts, content, "with repeated")
    counts = folders.once(folder, lambda new, say: _write_tokens(new, splitting, loaded, say), say)
    dtype = np.dtype(counts.pop("dtype"))
    train, valid, test = (
        Rows(
            np.memmap(folder / f"{name}.tokens", dtype, "r"),
            np.memmap(folder / f"{name}.offsets", np.int64, "r"),
        )
        for name in SPLIT_NAMES
    )
    report, keys = TextReport(**source.counts, **counts), (source.key, folder.name)
    own = loaded.tokens, loaded.special, train, valid, test, report
    return Text(*own, *keys, source.notes, loaded.content)


class _Splitting:
    """Assign documents to splits, or paragraphs if there are few documents.

    The order of keyed hashes decides: equal texts come into the same split, in whichever order and
    file they are.

    Attributes:
      unit: "document" or "paragraph".
    """

    def __init__(self, source: files.Source, corpus: Corpus):
        """Split whole documents if there are at least `documents_to_split`."""
        self.source, self._seed = source, corpus.split_seed.to_bytes(8, "big")
        self.whole = corpus.form == "documents"
        self.unit = "document" if source.documents >= corpus.documents_to_split else "paragraph"

    def _hash(self, text: bytes) -> int:
        return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=self._seed).digest(), "big")

    def _units(self) -> Iterator[tuple[int, "Paragraph"]]:
        """Yield each paragraph with the hash that decides its split."""
        for key, text, begins in self.source.read():
            of_document = self._hash(key)
            for paragraph in files.whole_paragraphs(text):
                words = " ".join(paragraph.split())
                if words or self.whole:
                    own = self._hash(words.encode())
                    decides = of_document if self.unit == "document" else own
                    yield decides, Paragraph(0, own, paragraph if self.whole else words, begins)
                    begins = False

    @cached_property
    def _edges(self) -> tuple[int, int]:
        """Hashes at which validation and test begin."""
        ordered = np.unique(np.fromiter((unit for unit, *_ in self._units()), np.uint64))
        if len(ordered) < 10:
            are_lines = any(files.LINES in note for note in self.source.notes)
            hint = "; is each line a document? Then add --document line" * are_lines
            raise UserError(
                f"text: {len(ordered)} different {self.unit}s are too little for three splits,"
                f" which need 10; give more of them{hint}"
            )
        first, second = len(ordered) * TENTHS[0] // 10, len(ordered) * sum(TENTHS[:2]) // 10
        return int(ordered[first]), int(ordered[second])

    def paragraphs(self) -> Iterator["Paragraph"]:
        """Yield all paragraphs in order; UserError if the text is too short."""
        first, second = self._edges
        for decides, paragraph in self._units():
            yield paragraph._replace(split=(decides >= first) + (decides >= second))

    def segments(self, paragraphs: Iterable["Paragraph"]) -> Iterator["Segment"]:
        """Yield the rows of paragraphs."""
        return (_documents if self.whole else _sentences)(paragraphs)


class Paragraph(NamedTuple):
    """A paragraph; as sentences its white space is single spaces, as documents it is unchanged."""

    split: int  # index in `SPLIT_NAMES`
    hash: int
    text: str
    begins: bool  # whether a document begins here


def _write_vocabulary(new: Path, splitting: _Splitting, size: int, say: Say) -> dict:
    """Train a vocabulary on the training split and write `tokenizer.json` or `vocab.txt`."""

    def training() -> Iterator[str]:
        def paragraphs() -> Iterator[Paragraph]:
            for i, paragraph in enumerate(splitting.paragraphs()):
                say(f"training a vocabulary, {i:,} paragraphs so far")
                yield paragraph

        return (each.text for each in splitting.segments(paragraphs()) if each.split == 0)

    if splitting.whole:
        (new / "tokenizer.json").write_bytes(train_bpe(training(), size))
    else:
        (new / "vocab.txt").write_bytes(vocabulary_file(train_vocabulary(training, size)))
    return {}


class Segment(NamedTuple):
    """A row, or the part of a long one that is tokenised at once."""

    split: int
    text: str
    ends: bool  # whether the row ends here


def _sentences(paragraphs: Iterable[Paragraph]) -> Iterator[Segment]:
    """Yield the sentences of paragraphs as rows."""
    for paragraph in paragraphs:
        for sentence in files.split_sentences(paragraph.text):
            yield Segment(paragraph.split, sentence, True)


def _documents(paragraphs: Iterable[Paragraph]) -> Iterator[Segment]:
    """Yield documents as rows, in segments; a document in several splits is a row in each."""
    split, size = -1, 0
    parts: list[str] = []
    for paragraph in paragraphs:
        if split >= 0 and (paragraph.begins or paragraph.split != split):
            yield Segment(split, "".join(parts), True)
            parts, size = [], 0
        elif size >= SEGMENT:
            yield Segment(split, "".join(parts), False)
            parts, size = [], 0
        split = paragraph.split
        parts.append(paragraph.text)
        size += len(paragraph.text)
    yield Segment(split, "".join(parts), True)


def _write_tokens(new: Path, splitting: _Splitting, vocabulary: Vocabulary, say: Say) -> dict:
    """Write the rows of every split; return counts of a `TextReport` and the tokens' dtype."""
    dtype = np.dtype(np.uint16 if len(vocabulary.tokens) <= 2**16 else np.uint32)
    counts = Counter(paragraphs=0, sentences=0)
    tokens, unknown, size = ({name: 0 for name in SPLIT_NAMES} for _ in range(3))
    offsets = {name: array("q", [0]) for name in SPLIT_NAMES}
    is_lossless = splitting.whole
    reserved = [i for name, i in vocabulary.special._asdict().items() if i >= 0 and name != "unk"]
    hashes = [array("Q") for _ in SPLIT_NAMES]

    def paragraphs() -> Iterator[Paragraph]:
        for paragraph in splitting.paragraphs():
            counts["paragraphs"] += 1
            hashes[paragraph.split].append(paragraph.hash)
            yield paragraph

    with contextlib.ExitStack() as stack:
        opened = {
            name: stack.enter_context((new / f"{name}.tokens").open("wb")) for name in SPLIT_NAMES
        }
        for batch in _in_batches(splitting.segments(paragraphs())):
            encoded = vocabulary.encode([segment.text for segment in batch])
            counts["sentences"] += len(batch) * (not splitting.whole)
            for k, name in enumerate(SPLIT_NAMES):
                own = [
                    (segment, row)
                    for segment, row in zip(batch, encoded, strict=True)
                    if segment.split == k
                ]
                flat = np.fromiter(chain.from_iterable(row for _, row in own), dtype)
                check(
                    not np.isin(flat, reserved).any(),
                    "--vocab: a special token occurs in the text as a token like others, so it"
                    " would end documents or be ignored; take it out of the text",
                )
                for segment, row in own:
                    tokens[name] += len(row)
                    if segment.ends and tokens[name] > offsets[name][-1]:  # a token at least
                        offsets[name].append(tokens[name])
                opened[name].write(flat.tobytes())
                unknown[name] += int((flat == vocabulary.special.unk).sum())
                size[name] += sum(len(segment.text.encode()) for segment, _ in own)
                if is_lossless and name == "valid":
                    back = vocabulary.tokenizer.decode_batch([row for _, row in own])
                    is_lossless = back == [segment.text for segment, _ in own]
            say(f"tokenising, {sum(tokens.values()):,} tokens so far")
    for name in SPLIT_NAMES:
        (new / f"{name}.offsets").write_bytes(offsets[name].tobytes())
    rows = {name: len(each) - 1 for name, each in offsets.items()}
    if not all(rows.values()):
        raise UserError(f"text: too little for three splits: {rows} rows; give more of it")
    train, *others = (np.frombuffer(each, np.uint64) for each in hashes)
    repeated = [int(np.isin(each, train).sum()) for each in others]
    return {
        **counts,
        "repeated": dict(zip(SPLIT_NAMES[1:], repeated)),
        "rows": rows,
        "tokens": tokens,
        "unknown": unknown,
        "bytes": size if is_lossless else {},
        "documents": splitting.source.documents,
        "split_by": splitting.unit,
        "vocabulary": len(vocabulary.tokens),
        "dtype": dtype.name,
    }


def _in_batches(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Yield segments that are tokenised at the same time."""
    batch, size = [], 0
    for segment in segments:
        batch.append(segment)
        size += len(segment.text)
        if len(batch) == SENTENCES_AT_A_TIME or size >= CHARACTERS_AT_A_TIME:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# Character of byte-level vocabularies -> its byte, as GPT-2 does.
_SHOWN = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _SHOWN]
BYTE_OF = {chr(b): b for b in _SHOWN} | {chr(256 + i): b for i, b in enumerate(_OTHERS)}
SPACE = chr(288)  # in byte-level vocabularies; U+2581 in those of SentencePiece


class WholeWords(NamedTuple):
    """Which tokens of a vocabulary are whole words."""

    is_wordpiece: bool
    name_V: tuple[str, ...]  # the word; "" for other tokens
    continues_V: np.ndarray  # bool: a token that goes on with the word before it
    apostrophe_V: np.ndarray  # bool

    @classmethod
    def of(cls, vocabulary: Sequence[str]) -> "WholeWords":
        """Recognise byte-level BPE and SentencePiece by their spaces; others are WordPiece."""
        starts = {token[:1] for token in vocabulary}
        mark = SPACE if SPACE in vocabulary else "\u2581" * ("\u2581" in starts)
        if any(
            each.startswith("##") and each.isascii() and each[2:].isalpha() for each in vocabulary
        ):
            mark = ""  # WordPiece: its text may have such a character, too
        if not mark:
            names = tuple(token if token.isalpha() else "" for token in vocabulary)
            continues = [token.startswith("##") for token in vocabulary]
            text = [*vocabulary]
        else:
            text = [_text_of(token, mark) for token in vocabulary]
            words = (each[1:] if each.startswith(" ") else "" for each in text)
            names = tuple(word if word.isalpha() else "" for word in words)
            continues = [each[:1].isalpha() for each in text]
        apostrophe = [each in ("'", "’") for each in text]
        return cls(not mark, names, np.array(continues, bool), np.array(apostrophe, bool))


def _text_of(token: str, mark: str) -> str:
    """Return the text of a token; "" if it is no whole characters."""
    if mark == "\u2581":
        return token.replace(mark, " ")
    with contextlib.suppress(KeyError, UnicodeDecodeError):
        return bytes(BYTE_OF[character] for character in token).decode()
    return ""


def frequent_words(text: Text, count: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Choose the most frequent words of the training split that are single tokens.

    Words consist of letters. A token counts if none continues it and no apostrophe is before it
    (the s of "it's" is no word). Where a vocabulary without WordPiece has too few whole words, such
    as one of bytes, other tokens follow, the most frequent first.

    Returns:
      Their ids, int32, and the words, the most frequent first; UserError if there are too few.
    """
    known = WholeWords.of(text.vocabulary)
    is_word = np.array([bool(name) for name in known.name_V])
    frequency = count_whole_words(text.train, text.vocabulary) * is_word
    order = np.argsort(-frequency, kind="stable")[:count]
    order = order[frequency[order] > 0]
    if not known.is_wordpiece:
        others = np.bincount(text.train.tokens_N, minlength=len(text.vocabulary))
        others[[*order, *text.special.present]] = -1
        more = np.argsort(-others, kind="stable")[: count - len(order)]
        order = np.append(order, more[others[more] >= 0])
    if len(order) < count:
        raise UserError(
            f"text: only {len(order)} of its words are single tokens, {count} are needed; take more"
            " text"
        )
    words = tuple(known.name_V[i] or text.vocabulary[i] for i in order)
    return order.astype(np.int32), words


def count_whole_words(rows: Rows, vocabulary: tuple[str, ...]) -> np.ndarray:
    """Count occurrences of each token that none continues, with no apostrophe before it; V."""
    _, _, continues, apostrophe = WholeWords.of(vocabulary)
    frequency = np.zeros(len(vocabulary), np.int64)
    for row in range(0, rows.count, ROWS_AT_A_TIME):
        bounds = rows.offsets[row : row + ROWS_AT_A_TIME + 1]
        here = rows.tokens_N[bounds[0] : bounds[-1]]
        no_word, ends = np.zeros(len(here), bool), bounds[1:] - bounds[0] - 1
        no_word[:-1] = continues[here[1:]]
        no_word[ends] = False  # nothing goes on over the end of a row
        after = np.append(False, apostrophe[here[:-1]])
        after[ends[:-1] + 1] = False
        frequency += np.bincount(here[~(no_word | after)], minlength=len(vocabulary))
    return frequency
