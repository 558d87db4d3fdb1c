"""Natural text: files or a TFDS data set -> WordPiece -> memory-mapped rows of tokens, one sentence a row.

The only importer of TFDS and `tokenizers`; imports neither jax nor TensorFlow, and starts no process: `tokenizers` has its
own threads (TOKENIZERS_PARALLELISM=false turns them off).

Three things are prepared, each once, in a folder named by a hash of all that it depends on: the files as a TFDS data set
(`sources`), a vocabulary (`vocabularies`; training one is not deterministic) and the tokens (`tokens`). A folder is written
under another name, brought to the disk and renamed: it is there as a whole or not at all.
"""

import contextlib
import difflib
import hashlib
import io
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import downloader
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from jaxtie.config import Corpus, UserError, cache_folder
from jaxtie.data import prepared, reading
from jaxtie.data.batches import Rows, Special
from jaxtie.data.prepared import Say, in_one_line

SPLITS = ("train", "valid", "test")
SHARES = (0.7, 0.1, 0.2)
DOCUMENTS_TO_SPLIT = 50
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PART = 2**26  # bytes of files that TFDS writes at a time
BERT_ENTRIES = 30_522
# The published list (paper's code), its "I" in lower case.
PUBLISHED_WORDS = tuple(
    """the be to of and a in that have i it for not on with he as you do at this but his by from they we say her she or an
    will my one all would there their what so up out if about who get which go me when make can like time no just him know
    take people into year your good some could them see other than then now look only come its over think also back after
    use two how our work first well way even new want because any these give day most us""".split()
)


@dataclass(frozen=True)
class Report:
    """What was read and what it became; printed, a couple of lines.

    Attributes:
      files, latin1_lines, cuts: of text files: how many, lines that were not UTF-8 and were read as Latin-1, places where an
        overlong line or paragraph was cut; 0 for a TFDS data set.
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
        flaws = f"; {self.latin1_lines:,} lines read as Latin-1, {self.cuts:,} cuts" if self.files else ""
        parts = ", ".join(f"{name} {self.rows[name]:,} rows {self.tokens[name]:,} tokens" for name in SPLITS)
        return (
            f"{read}{self.documents:,} documents, {self.paragraphs:,} paragraphs, {self.sentences:,} sentences{flaws}\n"
            f"by {self.split_by}: {parts}; vocabulary {self.vocabulary:,}, "
            f"{sum(self.unknown.values()) / sum(self.tokens.values()):.3%} unknown"
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


class _Source(NamedTuple):
    """Where documents come from: what identifies them, how many there are, and a way to go through them.

    `read()` yields the documents in pieces of text, in order, each with a key that a document's pieces share.
    """

    key: str
    documents: int
    counts: dict[str, int]
    read: Callable[[], Iterator[tuple[bytes, str]]]


def prepare(corpus: Corpus, cache: Path | None = None, say: Say = lambda text: None, vocabulary: bytes | None = None) -> Text:
    """The rows of a corpus, from the cache where it was prepared before.

    Args:
      vocabulary: `vocabulary_file` of what was trained on this corpus before, which gives the same rows without that cache,
        too: another training gives another vocabulary. None: train one, if that was not done, or take what the corpus names.
      cache: folder for what is prepared; by default below the user's cache folder.
      say: is given a line now and then while something takes long.

    Raises:
      UserError: in one line, what the user can get wrong, a disk that is full or a data set that cannot be had.
    """
    cache, say = cache or cache_folder() / "text", prepared.now_and_then(say)
    loaded = None
    if corpus.vocab:
        loaded = _load_vocabulary(Path(corpus.vocab))
    elif vocabulary:
        loaded = _parse_vocabulary(vocabulary, "vocab.txt")
    source = _tfds_source(corpus, say) if corpus.tfds else _file_source(corpus.paths, cache, say)
    splitting = _Splitting(source, corpus.split_seed)
    if not loaded:
        folder = cache / "vocabularies" / prepared.key(source.key, corpus.split_seed, corpus.vocab_size)
        prepared.once(folder, lambda new: _train_vocabulary(new, splitting, corpus.vocab_size, say), say)
        loaded = _load_vocabulary(folder / "vocab.txt")
    folder = cache / "tokens" / prepared.key(source.key, corpus.split_seed, loaded.hash)
    counts = prepared.once(folder, lambda new: _tokenise(new, splitting, loaded, say), say)
    dtype = np.dtype(counts.pop("dtype"))
    rows = [
        Rows(np.memmap(folder / f"{name}.tokens", dtype, "r"), np.memmap(folder / f"{name}.offsets", np.int64, "r"))
        for name in SPLITS
    ]
    return Text(loaded.tokens, loaded.special, *rows, Report(**source.counts, **counts), source.key, folder.name)


def vocabulary_file(tokens: Iterable[str]) -> bytes:
    """A `vocab.txt` like BERT's: an entry a line, in the order of their ids."""
    return "".join(f"{token}\n" for token in tokens).encode()


def frequent_words(text: Text, count: int = 100) -> tuple[np.ndarray, tuple[str, ...]]:
    """The most frequent words of the training split that are single tokens, most frequent first: their ids, int32, and they.

    Words are of letters alone; a token counts where no `##` continues it and no apostrophe is before it (the s of "it's"
    is no word). With BERT's own vocabulary of 30,522 entries they are those of the published list instead.

    Raises:
      UserError: where there are fewer.
    """
    ids = {token: i for i, token in enumerate(text.vocabulary)}
    if len(ids) == BERT_ENTRIES and text.special == Special(0, 100, 101, 102, 103) and ids.keys() >= set(PUBLISHED_WORDS):
        words = PUBLISHED_WORDS[:count]
    else:
        continues = np.array([token.startswith("##") for token in text.vocabulary])
        apostrophe = np.array([token in ("'", "’") for token in text.vocabulary])
        is_word = np.array([token.isalpha() for token in text.vocabulary])
        frequency, (tokens_N, offsets) = np.zeros(len(ids), np.int64), text.train
        for row in range(0, text.train.count, 2**16):
            bounds = offsets[row : row + 2**16 + 1]
            here = tokens_N[bounds[0] : bounds[-1]]
            no_word, ends = np.zeros(len(here), bool), bounds[1:] - bounds[0] - 1
            no_word[:-1] = continues[here[1:]]
            no_word[ends] = False  # nothing goes on over the end of a row
            after = np.append(False, apostrophe[here[:-1]])
            after[ends[:-1] + 1] = False
            frequency += np.bincount(here[~(no_word | after)], minlength=len(ids))
        order = np.argsort(-frequency * is_word, kind="stable")[:count]
        words = tuple(text.vocabulary[i] for i in order if is_word[i] and frequency[i])
    if len(words) < count:
        raise UserError(f"text: only {len(words)} of its words are single tokens, {count} are needed; take more text")
    return np.array([ids[word] for word in words], np.int32), words


# Sources


with tfds.core.registered.skip_registration():  # no name for others to ask for

    class GivenText(tfds.core.GeneratorBasedBuilder):
        """Text files as a TFDS data set: an example is a piece of a document, of whole paragraphs.

        It comes in parts, splits for TFDS, whose writer has a whole split in memory, and wants TensorFlow from 1 GB on.
        """

        VERSION = tfds.core.Version("1.0.0")

        def __init__(self, parts: list[Iterator[tuple[str, str]]], **options):
            self._parts = parts
            super().__init__(file_format="array_record", **options)

        def _info(self) -> tfds.core.DatasetInfo:
            features = tfds.features.FeaturesDict({"document": tfds.features.Text(), "text": tfds.features.Text()})
            return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

        def _split_generators(self, dl_manager):
            return {f"part{i:05d}": self._generate_examples(part) for i, part in enumerate(self._parts)}

        def _generate_examples(self, part):
            for i, (document, text) in enumerate(part):
                yield i, {"document": document, "text": text}


def _file_source(paths: tuple[str, ...], cache: Path, say: Say) -> _Source:
    """Files, each a document, as a TFDS data set named by the hash of their contents."""
    files = reading.look_at(paths, say)
    folder = cache / "sources" / files.key
    counts = prepared.once(folder, lambda new: _write_source(new, files, say), say)

    def read() -> Iterator[tuple[bytes, str]]:
        (path,) = folder.glob("given_text/*")
        try:
            parts = tfds.builder_from_directory(path).as_data_source()
            for part in sorted(parts):
                yield from _examples(parts[part], "text", "document")
        except (RuntimeError, ValueError, LookupError) as error:
            raise UserError(f"{folder}: is damaged ({in_one_line(error)}); remove it and run again") from error

    return _Source(files.key, len(files.paths), counts, read)


def _write_source(new: Path, files: reading.Files, say: Say) -> dict:
    total, trouble = reading.Reading(), []
    count = 1 + files.size // PART

    def pieces() -> Iterator[tuple[str, str]]:
        found = False
        try:
            for path, expected in zip(files.paths, files.hashes, strict=True):
                total.digest, piece, length = hashlib.sha256(), [], 0
                for paragraph in reading.read_paragraphs(path, total):
                    say(f"reading file {total.files + 1:,} of {len(files.paths):,}, {total.bytes / 2**20:,.0f} MiB so far")
                    if length + len(paragraph) > reading.PIECE:
                        yield expected, "\n\n".join(piece)
                        piece, length = [], 0
                    piece.append(paragraph)
                    length += len(paragraph)
                if piece:
                    yield expected, "\n\n".join(piece)
                if total.digest.hexdigest() != expected:
                    raise UserError(f"{path}: changed while it was being read; run again, nothing was prepared")
                total.files += 1
                found |= bool(length)
            if not found:
                raise UserError(f"{files.paths[0]}: no text at all in it, nor in any file beside it that was given")
        except UserError as error:  # TFDS dresses up what passes through it
            trouble.append(str(error))
            raise

    everything = pieces()

    def part(i: int) -> Iterator[tuple[str, str]]:
        yield "", ""  # TFDS wants no empty split, and blank files make some
        while i + 1 == count or total.bytes * count < (i + 1) * files.size:
            try:
                yield next(everything)
            except StopIteration:
                return

    try:
        with _quiet_tfds(bars=False):
            GivenText([part(i) for i in range(count)], data_dir=new).download_and_prepare()
    except Exception as error:
        raise UserError(trouble[0]) if trouble else OSError(in_one_line(error)) from error
    return {"files": total.files, "latin1_lines": total.latin1_lines, "cuts": total.cuts}


def _tfds_source(corpus: Corpus, say: Say) -> _Source:
    """A TFDS data set, each example a document; fetched and prepared by TFDS where it keeps such things."""
    name = corpus.tfds
    try:
        with _quiet_tfds(bars=sys.stderr.isatty(), warn=say):
            splits = tfds.data_source(name, builder_kwargs={"file_format": "array_record"})
    except tfds.core.DatasetNotFoundError as error:
        known = tfds.list_builders(with_community_datasets=False)
        names = difflib.get_close_matches(name.partition("/")[0].partition(":")[0], known, 3)
        hint = f"did you mean {' or '.join(names)}?" if names else "see the catalogue of TFDS, or give files by --text"
        raise UserError(f"--tfds {name}: TFDS knows no such data set; {hint}") from error
    except ImportError as error:
        raise UserError(f"--tfds {name}: TFDS needs a package to prepare it ({in_one_line(error)}); install it") from error
    except Exception as error:
        if "Connect" in type(error).__name__ or "Timeout" in type(error).__name__:  # of requests, or of httpx
            host = re.search(r"host='([^']+)'", str(error))
            where = f"{host[1]} does not answer" if host else in_one_line(error)
            raise UserError(f"--tfds {name}: cannot be downloaded ({where}); is there a network?") from error
        raise UserError(f"--tfds {name}: TFDS could not prepare it ({in_one_line(error)})") from error
    infos = [source.dataset_info for source in splits.values()]
    features = infos[0].features if infos else None
    fields = features.items() if isinstance(features, tfds.features.FeaturesDict) else ()
    texts = [key for key, feature in fields if feature.shape == () and feature.np_dtype == np.object_]  # strings
    if corpus.field not in texts:
        expected = f"expected --tfds-field {' or '.join(texts)}" if texts else "it has no text"
        raise UserError(f"--tfds {name}: has no text in a field {corpus.field!r}; {expected}")
    order = sorted(splits)
    sizes = [[split, len(splits[split]), int(infos[0].splits[split].num_bytes)] for split in order]
    counts = {"files": 0, "latin1_lines": 0, "cuts": 0}

    def read() -> Iterator[tuple[bytes, str]]:
        for split in order:
            yield from _examples(splits[split], corpus.field)

    key = prepared.key("tfds", infos[0].full_name, corpus.field, sizes)
    return _Source(key, sum(count for _, count, _ in sizes), counts, read)


def _examples(source, field: str, document: str | None = None) -> Iterator[tuple[bytes, str]]:
    for start in range(0, len(source), 128):
        for example in source.__getitems__(list(range(start, min(start + 128, len(source))))):
            yield example[document or field], example[field].decode(errors="replace")


@contextlib.contextmanager
def _quiet_tfds(*, bars: bool, warn: Say | None = None) -> Iterator[None]:
    """TFDS without its messages on standard output, and with fewer retries where there is no network."""

    class Tell(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if warn and record.name != "absl":
                warn("no answer from the network yet, trying again")

    loggers = [logging.getLogger(name) for name in ("absl", "urllib3.connectionpool", "huggingface_hub.utils._http")]
    before = [(each, each.handlers, each.propagate) for each in loggers]
    tell, retries = Tell(), getattr(downloader, "MAX_RETRIES", None)
    for each in loggers:
        each.handlers, each.propagate = [tell], False
    downloader.MAX_RETRIES = 5  # within seconds; its ten take minutes
    (tfds.enable_progress_bar if bars else tfds.disable_progress_bar)()
    try:
        with contextlib.redirect_stdout(sys.stderr if bars else io.StringIO()):
            yield
    finally:
        downloader.MAX_RETRIES = retries
        for each, handlers, propagate in before:
            each.handlers, each.propagate = handlers, propagate


# Splits, vocabulary, tokens


class _Splitting:
    """Which split a document, or a paragraph of few documents, belongs to: 70, 10 and 20 % of their number.

    The order of keyed hashes decides: equal texts come into the same split, in whichever order and file they are.
    """

    def __init__(self, source: _Source, seed: int):
        self.source, self._seed = source, seed.to_bytes(8, "big")
        self.by_document = source.documents >= DOCUMENTS_TO_SPLIT
        self._edges = None

    def _hash(self, text: bytes) -> int:
        return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=self._seed).digest(), "big")

    def _units(self) -> Iterator[tuple[int, str]]:
        """Hash of what is split, and paragraph."""
        for document, text in self.source.read():
            of_document = self._hash(document) if self.by_document else 0
            for paragraph in reading.split_paragraphs(text):
                yield of_document if self.by_document else self._hash(paragraph.encode()), paragraph

    def paragraphs(self) -> Iterator[tuple[int, str]]:
        """Number of the split and paragraph, in the order of the text.

        Raises:
          UserError: where there is too little for three splits.
        """
        if self._edges is None:
            ordered = np.unique(np.fromiter((unit for unit, _ in self._units()), np.uint64))
            if len(ordered) < 10:
                what = "documents" if self.by_document else "paragraphs"
                raise UserError(f"text: {len(ordered)} different {what} are too little for three splits, which need 10")
            first, second = len(ordered) * 7 // 10, len(ordered) * 8 // 10
            self._edges = int(ordered[first]), int(ordered[second])
        first, second = self._edges
        for unit, paragraph in self._units():
            yield (unit >= first) + (unit >= second), paragraph


class _Vocabulary(NamedTuple):
    tokenizer: Tokenizer
    tokens: tuple[str, ...]
    special: Special
    hash: str


def _bert(model: models.WordPiece) -> Tokenizer:
    """BERT's uncased tokenizer around a model; text that looks like a special token is text."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _load_vocabulary(path: Path) -> _Vocabulary:
    try:
        return _parse_vocabulary(path.read_bytes(), f"--vocab {path}")
    except OSError as error:
        raise UserError(f"--vocab {path}: cannot be read ({error.strerror})") from error


def _parse_vocabulary(content: bytes, name: str) -> _Vocabulary:
    """Of a `vocab.txt`, an entry a line, or a `tokenizer.json`, as its name says."""
    try:
        if name.endswith(".json"):
            tokenizer = Tokenizer.from_str(content.decode())
            tokenizer.encode_special_tokens = True
            tokenizer.no_truncation()
            tokenizer.no_padding()
        else:
            entries = content.decode().replace("\r\n", "\n").removesuffix("\n").split("\n")
            tokenizer = _bert(models.WordPiece({entry: i for i, entry in enumerate(entries)}, unk_token="[UNK]"))
    except Exception as error:
        expected = "a tokenizer.json of the tokenizers library, or a vocab.txt with an entry a line"
        raise UserError(f"{name}: expected {expected} ({in_one_line(error)})") from error
    entries = tokenizer.get_vocab()
    if missing := [token for token in SPECIAL if token not in entries]:
        expected = f"a vocabulary like BERT's, with {' '.join(SPECIAL)}"
        raise UserError(f"{name}: has no {', '.join(missing)}; expected {expected}")
    try:
        tokenizer.encode_batch_fast(["x" * 1000], add_special_tokens=False)  # too long for WordPiece, so unknown
    except Exception as error:  # it may be given another token for that
        raise UserError(f"{name}: cannot tokenise an unknown word ({in_one_line(error)})") from error
    tokens = tuple(sorted(entries, key=entries.get))
    if [entries[token] for token in tokens] != list(range(len(tokens))):
        raise UserError(f"{name}: its ids are not 0...{len(tokens) - 1}; does an entry come twice?")
    return _Vocabulary(tokenizer, tokens, Special(*(entries[each] for each in SPECIAL)), hashlib.sha256(content).hexdigest())


def _train_vocabulary(new: Path, splitting: _Splitting, size: int, say: Say) -> dict:
    """Write `vocab.txt`: WordPiece, trained on the training split."""

    def paragraphs() -> Iterator[str]:
        for i, (split, paragraph) in enumerate(splitting.paragraphs()):
            say(f"training a vocabulary, {i:,} paragraphs so far")
            if split == 0:
                yield paragraph

    tokenizer = _bert(models.WordPiece(unk_token="[UNK]"))
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=2, limit_alphabet=1000, special_tokens=list(SPECIAL), show_progress=False
    )
    tokenizer.train_from_iterator(paragraphs(), trainer)
    entries = tokenizer.get_vocab()
    (new / "vocab.txt").write_bytes(vocabulary_file(sorted(entries, key=entries.get)))
    return {}


def _tokenise(new: Path, splitting: _Splitting, vocabulary: _Vocabulary, say: Say) -> dict:
    """Write tokens and offsets of the rows of every split; returns the counts of a `Report`, and the tokens' dtype."""
    dtype = np.dtype(np.uint16 if len(vocabulary.tokens) <= 2**16 else np.uint32)
    rows, tokens, unknown = ([0] * len(SPLITS) for _ in range(3))
    paragraphs = sentences = 0

    def split_sentences() -> Iterator[tuple[int, str]]:
        nonlocal paragraphs
        for split, paragraph in splitting.paragraphs():
            paragraphs += 1
            for sentence in reading.split_sentences(paragraph):
                yield split, sentence

    with contextlib.ExitStack() as stack:
        open_all = lambda kind: [stack.enter_context((new / f"{name}.{kind}").open("wb")) for name in SPLITS]
        token_files, offset_files = open_all("tokens"), open_all("offsets")
        for file in offset_files:
            file.write(np.int64(0).tobytes())
        some = split_sentences()
        while batch := list(islice(some, 8192)):
            sentences += len(batch)
            encoded = vocabulary.tokenizer.encode_batch_fast([sentence for _, sentence in batch], add_special_tokens=False)
            for k in range(len(SPLITS)):
                ids = [each.ids for (split, _), each in zip(batch, encoded, strict=True) if split == k and each.ids]
                flat = np.fromiter((i for row in ids for i in row), dtype)
                ends = tokens[k] + np.cumsum([len(row) for row in ids], dtype=np.int64)
                token_files[k].write(flat.tobytes())
                offset_files[k].write(ends.tobytes())
                rows[k] += len(ids)
                tokens[k] += len(flat)
                unknown[k] += int((flat == vocabulary.special.unk).sum())
            say(f"tokenising, {sum(tokens):,} tokens so far")
    if not all(rows):
        raise UserError(f"text: too little for three splits: {dict(zip(SPLITS, rows))} rows; give more of it")
    counts = {"rows": rows, "tokens": tokens, "unknown": unknown}
    return {name: dict(zip(SPLITS, each, strict=True)) for name, each in counts.items()} | {
        "documents": splitting.source.documents,
        "paragraphs": paragraphs,
        "sentences": sentences,
        "split_by": "document" if splitting.by_document else "paragraph",
        "vocabulary": len(vocabulary.tokens),
        "dtype": dtype.name,
    }
