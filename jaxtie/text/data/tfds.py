"""Where documents come from: text files, which become a TFDS data set of their own, or a data set
that TFDS knows.

The only importer of TFDS, which reads and writes ArrayRecord here and does without TensorFlow. A
data set that was prepared as TFRecord, TFDS's older format, is read where TensorFlow is installed.
"""

import contextlib
import difflib
import hashlib
import io
import logging
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core.data_sources.base import BaseDataSource
from tensorflow_datasets.core.download import downloader

from jaxtie.config import UserError
from jaxtie.results.folder import Say
from jaxtie.text.config import Corpus
from jaxtie.text.data import cache as prepared
from jaxtie.text.data import files as reading
from jaxtie.text.data.cache import in_one_line

PART = 2**26  # bytes of files that TFDS writes at a time
# What TFDS says of a data set that was prepared in another format, by whether its version is named
# or not.
OTHER_FORMAT = (
    r"(?:does not match the file formats in the DatasetInfo: \['|File format is already set to"
    r" FileFormat\.)(\w+)"
)


class Source(NamedTuple):
    """Where documents come from.

    Attributes:
      key: hash of what the source holds.
      documents: how many there are.
      counts: `files`, `latin1_lines` and `cuts` of a `Report`.
      read: goes through the documents in order, in pieces of text. Each piece comes with a key that
        the pieces of one document share.
    """

    key: str
    documents: int
    counts: dict[str, Any]
    read: Callable[[], Iterator[tuple[bytes, str]]]


with tfds.core.registered.skip_registration():  # no name for others to ask for

    class GivenText(tfds.core.GeneratorBasedBuilder):
        """Text files as a TFDS data set. An example is a piece of a document, of whole paragraphs.

        The data set comes in parts, which TFDS takes for splits: its writer holds a whole split in
        memory, and wants TensorFlow from 1 GB on.
        """

        VERSION = tfds.core.Version("1.0.0")

        def __init__(self, parts: list[Iterator[tuple[str, str]]], **options):
            self._parts = parts
            super().__init__(file_format="array_record", **options)

        def _info(self) -> tfds.core.DatasetInfo:
            features = tfds.features.FeaturesDict(
                {"document": tfds.features.Text(), "text": tfds.features.Text()}
            )
            return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

        def _split_generators(self, dl_manager):
            return {
                f"part{i:05d}": self._generate_examples(part) for i, part in enumerate(self._parts)
            }

        def _generate_examples(self, part):
            for i, (document, text) in enumerate(part):
                yield i, {"document": document, "text": text}


def open_source(corpus: Corpus, cache: Path, say: Say) -> Source:
    """The documents of a corpus, whose files or data set are prepared if they are not yet.

    Raises:
      UserError: where a file cannot be read, or a data set cannot be had.
    """
    return (
        _open_data_set(corpus.tfds, corpus.field, say)
        if corpus.tfds
        else _open_files(corpus.paths, cache, say)
    )


def _open_files(paths: tuple[str, ...], cache: Path, say: Say) -> Source:
    """Files, each a document, as a TFDS data set named by the hash of their contents."""
    files = reading.look_at(paths, say)
    folder = cache / "sources" / files.key
    counts = prepared.once(folder, lambda new: _write_source(new, files, say), say)

    def read() -> Iterator[tuple[bytes, str]]:
        (path,) = folder.glob("given_text/*")
        try:
            parts = tfds.builder_from_directory(path).as_data_source()
            for part in sorted(parts):
                for example in _examples(parts[part]):
                    yield example["document"], example["text"].decode(errors="replace")
        except (RuntimeError, ValueError, LookupError) as error:
            raise UserError(
                f"{folder}: is damaged ({in_one_line(error)}); remove it and run again"
            ) from error

    return Source(files.key, len(files.paths), counts, read)


def _write_source(new: Path, files: reading.Files, say: Say) -> dict[str, int]:
    """Write files as `GivenText` into a folder; returns the counts of a `Source`."""
    total, trouble = reading.Reading(), []
    count = 1 + files.size // PART

    def every_piece() -> Iterator[tuple[str, str]]:
        try:
            yield from _pieces(files, total, say)
        except UserError as error:  # TFDS dresses up what passes through it
            trouble.append(str(error))
            raise

    pieces = every_piece()

    def part(i: int) -> Iterator[tuple[str, str]]:
        yield "", ""  # TFDS wants no empty split, and blank files make some
        while i + 1 == count or total.bytes * count < (i + 1) * files.size:
            try:
                yield next(pieces)
            except StopIteration:
                return

    try:
        with _quiet_tfds(bars=False):
            GivenText([part(i) for i in range(count)], data_dir=new).download_and_prepare()
    except Exception as error:
        raise UserError(trouble[0]) if trouble else OSError(in_one_line(error)) from error
    return {"files": total.files, "latin1_lines": total.latin1_lines, "cuts": total.cuts}


def _pieces(files: reading.Files, total: reading.Reading, say: Say) -> Iterator[tuple[str, str]]:
    """Hash of a file, and a piece of its text, of whole paragraphs; adds to `total`."""
    found = False
    for path, expected in zip(files.paths, files.hashes, strict=True):
        total.digest, length = hashlib.sha256(), 0
        piece: list[str] = []
        for paragraph in reading.read_paragraphs(path, total):
            say(
                f"reading file {total.files + 1:,} of {len(files.paths):,},"
                f" {total.bytes / 2**20:,.0f} MiB so far"
            )
            if length + len(paragraph) > reading.PIECE:
                yield expected, "\n\n".join(piece)
                piece, length = [], 0
            piece.append(paragraph)
            length += len(paragraph)
        if piece:
            yield expected, "\n\n".join(piece)
        if total.digest.hexdigest() != expected:
            raise UserError(
                f"{path}: changed while it was being read; run again, nothing was prepared"
            )
        total.files += 1
        found |= bool(length)
    if not found:
        raise UserError(
            f"{files.paths[0]}: no text at all in it, nor in any file beside it that was given"
        )


class PreparedSplit(NamedTuple):
    """A split of a data set that TFDS has prepared: how many examples it holds, and what goes
    through them in order.
    """

    documents: int
    examples: Callable[[], Iterator[dict[str, Any]]]


def _open_data_set(name: str, field: str, say: Say) -> Source:
    """A data set that TFDS knows, each example a document; TFDS fetches and keeps it where it keeps
    such things.
    """
    info, splits = _load_data_set(name, say)
    fields = info.features.items() if isinstance(info.features, tfds.features.FeaturesDict) else ()
    # strings
    texts = [
        key for key, feature in fields if feature.shape == () and feature.np_dtype == np.object_
    ]
    if field not in texts:
        expected = f"expected --tfds-field {' or '.join(texts)}" if texts else "it has no text"
        raise UserError(f"--tfds {name}: has no text in a field {field!r}; {expected}")
    order = sorted(splits)
    sizes: list[list[Any]] = [
        [split, splits[split].documents, int(info.splits[split].num_bytes)] for split in order
    ]
    counts = {"files": 0, "latin1_lines": 0, "cuts": 0}

    def read() -> Iterator[tuple[bytes, str]]:
        for split in order:
            for example in splits[split].examples():
                yield example[field], example[field].decode(errors="replace")

    key = prepared.key("tfds", info.full_name, field, sizes)
    return Source(key, sum(count for _, count, _ in sizes), counts, read)


def _read_array_record(name: str) -> tuple[tfds.core.DatasetInfo, dict[str, PreparedSplit]]:
    """Raises what TFDS raises; of another format, too."""
    sources: dict[str, BaseDataSource] = tfds.data_source(
        name, builder_kwargs={"file_format": "array_record"}
    )
    if not sources:
        raise ValueError("it has no split")
    splits = {
        split: PreparedSplit(len(source), partial(_examples, source))
        for split, source in sources.items()
    }
    return next(iter(sources.values())).dataset_info, splits


def _read_by_tensorflow(name: str) -> tuple[tfds.core.DatasetInfo, dict[str, PreparedSplit]]:
    """What TFDS has prepared in its older format; ImportError where there is no TensorFlow."""
    import tensorflow  # noqa: F401, heavy; TFDS imports it late, and says more

    builder = tfds.builder(name)
    # File after file, as they were written: the same order each time, and that of ArrayRecord.
    one_by_one = tfds.ReadConfig(interleave_cycle_length=1)

    def examples(split: str) -> Iterator[dict[str, Any]]:
        return iter(
            tfds.as_numpy(
                builder.as_dataset(split=split, shuffle_files=False, read_config=one_by_one)
            )
        )

    splits = {
        split: PreparedSplit(info.num_examples, partial(examples, split))
        for split, info in builder.info.splits.items()
    }
    return builder.info, splits


def _load_data_set(name: str, say: Say) -> tuple[tfds.core.DatasetInfo, dict[str, PreparedSplit]]:
    """A data set and its splits by their names; what TFDS says where it has none becomes a
    UserError of one line.
    """
    try:
        with _quiet_tfds(bars=sys.stderr.isatty(), warn=say):
            return _read_array_record(name)
    except tfds.core.DatasetNotFoundError as error:
        known = tfds.list_builders(with_community_datasets=False)
        names = difflib.get_close_matches(name.partition("/")[0].partition(":")[0], known, 3)
        hint = (
            f"did you mean {' or '.join(names)}?"
            if names
            else "see the catalogue of TFDS, or give files by --text"
        )
        raise UserError(f"--tfds {name}: TFDS knows no such data set; {hint}") from error
    except ImportError as error:
        raise UserError(
            f"--tfds {name}: TFDS needs a package to prepare it ({in_one_line(error)}); install it"
        ) from error
    except Exception as error:
        # of requests, or of httpx
        if "Connect" in type(error).__name__ or "Timeout" in type(error).__name__:
            host = re.search(r"host='([^']+)'", str(error))
            where = f"{host[1]} does not answer" if host else in_one_line(error)
            raise UserError(
                f"--tfds {name}: cannot be downloaded ({where}); is there a network?"
            ) from error
        if other := re.search(OTHER_FORMAT, str(error)):
            return _load_by_tensorflow(name, other[1].lower())
        raise UserError(
            f"--tfds {name}: TFDS could not prepare it ({in_one_line(error)})"
        ) from error


def _load_by_tensorflow(
    name: str, file_format: str
) -> tuple[tfds.core.DatasetInfo, dict[str, PreparedSplit]]:
    """The same of a data set that was prepared in another format than ArrayRecord."""
    try:
        with _quiet_tfds(bars=False):
            return _read_by_tensorflow(name)
    except ImportError as error:
        raise UserError(
            f"--tfds {name}: was prepared as {file_format}, which needs TensorFlow to be read;"
            " install tensorflow-cpu, or remove the data set where TFDS keeps it, to have it"
            " prepared anew as array_record"
        ) from error
    except Exception as error:
        raise UserError(
            f"--tfds {name}: TFDS could not read it as {file_format} ({in_one_line(error)})"
        ) from error


def _examples(source: BaseDataSource) -> Iterator[dict[str, Any]]:
    """Every example of a part that is read by numbers."""
    for start in range(0, len(source), 128):
        yield from source.__getitems__(list(range(start, min(start + 128, len(source)))))


@contextlib.contextmanager
def _quiet_tfds(*, bars: bool, warn: Say | None = None) -> Iterator[None]:
    """TFDS without its messages on standard output, and with fewer retries where there is no
    network.
    """

    class Tell(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if warn and record.name != "absl":
                warn("no answer from the network yet, trying again")

    loggers = [
        logging.getLogger(name)
        for name in ("absl", "urllib3.connectionpool", "huggingface_hub.utils._http")
    ]
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
