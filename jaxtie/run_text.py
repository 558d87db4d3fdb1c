"""The text of a run: prepared by the vocabulary that the run's folder keeps, and still what the run began with."""

import dataclasses
from typing import Any

from jaxtie.config import Corpus, UserError
from jaxtie.data import reading
from jaxtie.results import RunFolder


def prepare(corpus: Corpus, folder: RunFolder, earlier: dict | None, say: Any) -> Any:
    """The text as the folder's run had it, if there is one, as `jaxtie.data.text.prepare` gives it.

    Args:
      earlier: configuration of that run, or None.

    Raises:
      UserError: where the text cannot be prepared, or has changed since that run.
    """
    from jaxtie.data import text  # heavy

    known = folder.vocabulary.read_bytes() if earlier and folder.vocabulary.exists() else None
    prepared = text.prepare(corpus, say=say, vocabulary=known)
    _compare(folder, earlier, "key", prepared.key)
    return prepared


def check_files(corpus: Corpus, folder: RunFolder, earlier: dict) -> None:
    """Raise UserError where the files of a finished run hold something else by now; they may be gone."""
    try:
        found = reading.look_at(corpus.paths)
    except UserError:
        return
    if corpus.paths:
        _compare(folder, earlier, "source", found.key)


def _compare(folder: RunFolder, earlier: dict | None, name: str, found: str) -> None:
    if (earlier or {}).get("text", {}).get(name, found) != found:
        raise UserError(f"--out {folder.path}: holds a run on a text that has changed since; choose another --out")


def keep(text: Any, corpus: Corpus, folder: RunFolder) -> None:
    """Write the vocabulary into the folder, if it was trained: another training would not give the same."""
    from jaxtie.data.text import vocabulary_file  # heavy

    if not corpus.vocab:
        folder.write_vocabulary(vocabulary_file(text.vocabulary))


def describe(text: Any) -> dict:
    """What `config.json` says of a text."""
    return {"key": text.key, "source": text.source, "report": dataclasses.asdict(text.report)}
