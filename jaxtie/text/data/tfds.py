"""Read documents from a TFDS data set.

The only importer of TFDS. Data sets are prepared as ArrayRecord, which needs no TensorFlow. One
that was prepared as TFRecord, TFDS's older format, is read if TensorFlow is installed.
"""

import contextlib
import difflib
import io
import logging
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core.data_sources.base import BaseDataSource
from tensorflow_datasets.core.download import downloader

from jaxtie.config import UserError
from jaxtie.results.folder import Say
from jaxtie.text.data import cache
from jaxtie.text.data.config import Corpus
from jaxtie.text.data.files import DocumentPart, Source, key_of

# What TFDS says of a data set in another format, with and without a version in its name.
OTHER_FORMAT = (
    r"(?:does not match the file formats in the DatasetInfo: \['|File format is already set to"
    r" FileFormat\.)(\w+)"
)
Examples = Callable[[], Iterator[dict[str, Any]]]
# A description of the data set, and the examples of each split in order.
DataSet = tuple[tfds.core.DatasetInfo, dict[str, Examples]]


def open_data_set(corpus: Corpus, say: Say) -> Source:
    """Open a data set, an example a document; UserError if it fails or has no text in the field."""
    name, field = str(corpus.tfds), corpus.field
    info, splits = _load(name, say)
    fields = info.features.items() if isinstance(info.features, tfds.features.FeaturesDict) else ()
    texts = [  # of strings
        key for key, feature in fields if feature.shape == () and feature.np_dtype == np.object_
    ]
    if field not in texts:
        expected = f"expected --text-field {' or '.join(texts)}" if texts else "it has no text"
        raise UserError(f"--tfds {name}: has no text in a field {field!r}; {expected}")
    names = sorted(splits)
    sizes: list[list[Any]] = [
        [name, int(info.splits[name].num_examples), int(info.splits[name].num_bytes)]
        for name in names
    ]

    by_bytes = corpus.split_key == "bytes"  # `text` may lack some

    def read() -> Iterator[DocumentPart]:
        for split in names:
            for example in splits[split]():
                text = example[field].decode(errors="replace")
                if text.strip():
                    yield DocumentPart(
                        example[field] if by_bytes else key_of(text, corpus), text, True
                    )

    key = cache.key("tfds", info.full_name, field, sizes)
    return Source(key, sum(count for _, count, _ in sizes), {}, read)


def _load(name: str, say: Say) -> DataSet:
    """Load a data set; turn all that TFDS raises into a UserError of one line."""
    try:
        with _quiet_tfds(bars=sys.stderr.isatty(), warn=say):
            return _read_array_record(name)
    except tfds.core.DatasetNotFoundError as error:
        known = tfds.list_builders(with_community_datasets=False)
        names = difflib.get_close_matches(name.partition("/")[0].partition(":")[0], known, 3)
        hint = "see the catalogue of TFDS, or give files by --text"
        if names:
            hint = f"did you mean {' or '.join(names)}?"
        raise UserError(f"--tfds {name}: TFDS knows no such data set; {hint}") from error
    except Exception as error:
        reason, kind = cache.in_one_line(error), type(error).__name__
        found = f"TFDS could not prepare it ({reason})"
        if isinstance(error, ImportError):
            found = f"TFDS needs a package to prepare it ({reason}); install it"
        elif "Connect" in kind or "Timeout" in kind:  # of requests, or of httpx
            host = re.search(r"host='([^']+)'", str(error))
            where = f"{host[1]} does not answer" if host else reason
            found = f"cannot be downloaded ({where}); is there a network?"
        elif other := re.search(OTHER_FORMAT, str(error)):
            return _load_by_tensorflow(name, other[1].lower())
        raise UserError(f"--tfds {name}: {found}") from error


def _read_array_record(name: str) -> DataSet:
    """Raise what TFDS raises, also if the format is another one."""
    sources: dict[str, BaseDataSource] = tfds.data_source(
        name, builder_kwargs={"file_format": "array_record"}
    )
    if not sources:
        raise ValueError("it has no split")
    splits: dict[str, Examples] = {
        split: partial(_examples, source) for split, source in sources.items()
    }
    return next(iter(sources.values())).dataset_info, splits


def _examples(source: BaseDataSource) -> Iterator[dict[str, Any]]:
    for start in range(0, len(source), 128):
        yield from source.__getitems__(list(range(start, min(start + 128, len(source)))))


def _load_by_tensorflow(name: str, file_format: str) -> DataSet:
    def examples(split: str) -> Iterator[dict[str, Any]]:
        # File after file, as they were written: the same order each time, and that of ArrayRecord.
        one_by_one = tfds.ReadConfig(interleave_cycle_length=1)
        found = builder.as_dataset(split=split, shuffle_files=False, read_config=one_by_one)
        return iter(tfds.as_numpy(found))

    try:
        with _quiet_tfds(bars=False):
            import tensorflow  # noqa: F401, heavy; TFDS imports it late, and says more

            builder = tfds.builder(name)
            return builder.info, {split: partial(examples, split) for split in builder.info.splits}
    except ImportError as error:
        raise UserError(
            f"--tfds {name}: was prepared as {file_format}, which needs TensorFlow to be read;"
            " install tensorflow-cpu, or remove the data set where TFDS keeps it, to have it"
            " prepared anew as array_record"
        ) from error
    except Exception as error:
        raise UserError(
            f"--tfds {name}: TFDS could not read it as {file_format} ({cache.in_one_line(error)})"
        ) from error


@contextlib.contextmanager
def _quiet_tfds(*, bars: bool, warn: Say = cache.silence) -> Iterator[None]:
    """Keep TFDS from printing, and from trying for minutes to reach a network."""

    class Warn(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name != "absl":
                warn("no answer from the network yet, trying again")

    names = ("absl", "urllib3.connectionpool", "huggingface_hub.utils._http")
    loggers = [logging.getLogger(name) for name in names]
    before = [(each, each.handlers, each.propagate) for each in loggers]
    handler, retries = Warn(), getattr(downloader, "MAX_RETRIES", None)
    for each in loggers:
        each.handlers, each.propagate = [handler], False
    downloader.MAX_RETRIES = 5  # within seconds; its ten take minutes
    (tfds.enable_progress_bar if bars else tfds.disable_progress_bar)()
    try:
        with contextlib.redirect_stdout(sys.stderr if bars else io.StringIO()):
            yield
    finally:
        downloader.MAX_RETRIES = retries
        for each, handlers, propagate in before:
            each.handlers, each.propagate = handlers, propagate
