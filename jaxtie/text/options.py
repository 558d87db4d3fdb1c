"""Options of the command line that are about text. Imports no jax."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from jaxtie.options import AS_DECLARED, option, parse_path, parse_positive
from jaxtie.text.config import Corpus

NOTHING_GIVEN = Corpus()


@dataclass(frozen=True)
class TextOptions:
    """Where the text comes from."""

    text: tyro.conf.UseAppendAction[tuple[Annotated[Path, option("PATH", parse_path)], ...]] = ()
    """A text file, or a folder that is searched for *.txt; may be repeated. For experiments of
    text.
    """
    tfds: Annotated[str | None, option("NAME[/CONFIG][:VERSION]", str, "none")] = None
    """A TFDS data set of text, such as lm1b or wiki40b/en, instead of files; TFDS fetches it."""
    tfds_field: Annotated[str | None, option("NAME", str, NOTHING_GIVEN.field)] = None
    """The field of that data set that has the text."""
    vocab: Annotated[Path | None, option("FILE", Path, "trained on the text")] = None
    """A BERT vocab.txt or a tokenizer.json."""
    vocab_size: Annotated[
        int | None,
        option("N", parse_positive, f"{AS_DECLARED}, {NOTHING_GIVEN.vocab_size} unless it says"),
    ] = None
    """Entries of the vocabulary that is trained, at most."""
