"""Read documents from a TFDS data set.

The only importer of TFDS. Data sets are prepared as ArrayRecord, which needs no TensorFlow.
"""

import contextlib
import difflib
import io
import logging
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core.data_sources.base import BaseDataSource
from tensorflow_datasets.core.download import downloader

from jaxtie.config import UserError
from jaxtie.text.data import cache
from jaxtie.text.data.config import Corpus
from jaxtie.text.data.files import DocumentPart, Source, key_of

# What TFDS says of a data set in another format, with and without a version in its name.
OTHER_FORMAT = (
    r"(?:does not match the file formats in the DatasetInfo: \['|File format is already set to"
    r" FileFormat\.)(\w+)"
)
AT_A_TIME = 128  # examples


def open_data_set(corpus: Corpus) -> Source:
    """Open a data set, an example a document; UserError if it fails or has no text in the field."""
    name, field = str(corpus.tfds), corpus.field
    splits = _load(name)
    info = next(iter(splits.values())).dataset_info
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
        for source in map(splits.__getitem__, names):
            for start in range(0, len(source), AT_A_TIME):
                end = min(start + AT_A_TIME, len(source))
                for example in source.__getitems__(list(range(start, end))):
                    text = example[field].decode(errors="replace")
                    if text.strip():
                        key = example[field] if by_bytes else key_of(text, corpus)
                        yield DocumentPart(key, text, True)

    key = cache.key("tfds", info.full_name, field, sizes)
    return Source(key, sum(count for _, count, _ in sizes), {}, read)


def _load(name: str) -> dict[str, BaseDataSource]:
    """Load the splits of a data set; turn all that TFDS raises into a UserError of one line."""
    try:
        with _quiet_tfds():
            splits = tfds.data_source(name, builder_kwargs={"file_format": "array_record"})
        if not splits:
            raise ValueError("it has no split")
        return splits
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
            found = (
                f"was prepared as {other[1].lower()}; remove the data set where TFDS keeps it, to"
                " have it prepared anew as array_record"
            )
        raise UserError(f"--tfds {name}: {found}") from error


@contextlib.contextmanager
def _quiet_tfds() -> Iterator[None]:
    """Keep TFDS from printing anything but bars, and from trying for minutes to reach a network."""
    names = ("absl", "urllib3.connectionpool", "huggingface_hub.utils._http")
    loggers = [logging.getLogger(name) for name in names]
    before, retries = [each.disabled for each in loggers], getattr(downloader, "MAX_RETRIES", None)
    for each in loggers:
        each.disabled = True
    downloader.MAX_RETRIES = 5  # within seconds; its ten take minutes
    bars = sys.stderr.isatty()
    (tfds.enable_progress_bar if bars else tfds.disable_progress_bar)()
    try:
        with contextlib.redirect_stdout(sys.stderr if bars else io.StringIO()):
            yield
    finally:
        downloader.MAX_RETRIES = retries
        for each, disabled in zip(loggers, before):
            each.disabled = disabled
