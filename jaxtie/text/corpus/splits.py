"""Which split a document, or a paragraph, belongs to: training, validation or test."""

import hashlib
from collections.abc import Iterator

import numpy as np

from jaxtie.experiment import UserError
from jaxtie.text.corpus import reading
from jaxtie.text.corpus.sources import Source

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
            for paragraph in reading.split_paragraphs(text):
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
