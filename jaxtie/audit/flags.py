"""What a configuration says about tying, at every level, and what that comes to."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtie.audit.headers import reason_of
from jaxtie.audit.names import FLAGS, default_of
from jaxtie.config import UserError, check

CONFIG_LIMIT = 100_000_000  # bytes
DEEPEST = 6  # level of a configuration that is looked at
SIZE_KEYS = ("vocab_size", "padded_vocab_size", "n_vocab", "embedding_size", "vocabulary_size")
HEADLESS = (
    "Model",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForTextEncoding",
)
# what names of such an ending hold where there is a head after all
WITH_HEAD = (
    "Head",
    "MTModel",
    "EncoderDecoder",
)
# levels that no output embedding belongs to
OTHER_ENDS = (
    "encoder",
    "vision",
    "visual",
    "audio",
    "speech",
    "qformer",
)
# levels of a language model within another
LANGUAGE = (
    "text_config",
    "llm_config",
    "language_config",
    "decoder",
    "model",
)


@dataclass(frozen=True)
class LevelFlag:
    """One flag at one level.

    Attributes:
      level: dotted path of the level; empty at the top.
      name: of the flag.
      tied: what it says; None if it is missing there.
      counts: whether the level is about the language model: those of vision and sound are often
        written out with the defaults of their classes, which mean nothing.
    """

    level: str
    name: str
    tied: bool | None
    counts: bool = True

    @property
    def text(self) -> str:
        """`text_config.tie_word_embeddings: true`, as JSON has it."""
        means = FLAGS[self.name][0]
        value = "missing" if self.tied is None else str(self.tied is means).lower()
        return f"{self.level}{'.' if self.level else ''}{self.name}: {value}"


@dataclass(frozen=True)
class Configuration:
    """What stands beside a checkpoint.

    Attributes:
      path: of the file; None if there is none.
      flags: every flag at every level, missing ones too.
      vocabularies: all sizes of a vocabulary that it names.
      model_type: of the top level, as transformers has it.
      headless: whether it is of a model that has no output embedding, such as a classifier.
    """

    path: Path | None = None
    flags: tuple[LevelFlag, ...] = ()
    vocabularies: tuple[int, ...] = ()
    model_type: str | None = None
    headless: bool = False

    @property
    def said(self) -> tuple[LevelFlag, ...]:
        """The flags that are there and count."""
        return tuple(flag for flag in self.flags if flag.tied is not None and flag.counts)

    @property
    def top(self) -> bool | None:
        """What the top level says; None where it does not."""
        return next((flag.tied for flag in self.said if not flag.level), None)

    @property
    def nested(self) -> bool | None:
        """What a language model's level says; None where there is none, or it does not say."""
        return next((flag.tied for flag in self.said if flag.level), None)

    @property
    def disagrees(self) -> bool:
        """Whether two levels say different things."""
        return len({flag.tied for flag in self.said}) > 1

    @property
    def claim(self) -> bool | None:
        """What it comes to: the top level, else the language model's, else the default of the
        model's class; else None.
        """
        if self.top is not None:
            return self.top
        return self.nested if self.nested is not None else default_of(self.model_type)

    @property
    def says(self) -> str:
        """How the claim is made, for a sentence."""
        if not self.said:
            return f"{self.model_type} models in transformers, where config.json says nothing, are"
        return f"{self.path.name if self.path else 'the configuration'} says"

    @property
    def file(self) -> str:
        """The file's name."""
        return self.path.name if self.path else "config.json"

    @property
    def name(self) -> str:
        """Of the flag that is to be set, at the top level."""
        return next((flag.name for flag in self.said), "tie_word_embeddings")

    def fix(self, tied: bool) -> str:
        """What to write so that it says so."""
        value = str(tied is FLAGS[self.name][0]).lower()
        levels = sorted({flag.level for flag in self.said if flag.tied is not tied} - {""})
        also = f", and in {', '.join(levels)} too" if levels else ""
        return f"set {self.name}: {value} in {self.file}{also}"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds a table.

    Raises:
      UserError: where it is above 100 MB or no such JSON.
    """
    check(
        path.stat().st_size <= CONFIG_LIMIT,
        f"{path}: is above {CONFIG_LIMIT // 10**6} MB: no configuration",
    )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: is no JSON ({reason_of(error)}); repair it or take it away"
        ) from None
    check(
        isinstance(content, dict), f"{path}: is no JSON table of names; repair it or take it away"
    )
    return content


def read_configuration(path: Path) -> Configuration:
    """What a `config.json` says; nothing if there is none.

    Raises:
      UserError: where it is no JSON.
    """
    if not path.is_file():
        return Configuration()
    content = read_json(path)
    flags, sizes = [], []
    for level, table in _levels(content, "", 0):
        present = [name for name in FLAGS if isinstance(table.get(name), bool)]
        last, found = (
            level.rpartition(".")[2],
            [table[name] for name in SIZE_KEYS if _is_size(table.get(name))],
        )
        counts = (
            not level
            or last in LANGUAGE
            or (bool(found) and not any(word in last for word in OTHER_ENDS))
        )
        flags += [LevelFlag(level, name, table[name] is FLAGS[name][0], counts) for name in present]
        sizes += found
        if not present and (not level or (last in LANGUAGE and found)):
            flags.append(LevelFlag(level, "tie_word_embeddings", None))
    kind = content.get("model_type")
    return Configuration(
        path,
        tuple(flags),
        tuple(dict.fromkeys(sizes)),
        kind if isinstance(kind, str) else None,
        _may_lack_head(content.get("architectures")),
    )


def _may_lack_head(architectures: Any) -> bool:
    """Whether all of a configuration's architectures, as transformers names them, are without a
    language model's head.
    """
    names = architectures if isinstance(architectures, list) else []
    return bool(names) and all(
        isinstance(name, str) and name.endswith(HEADLESS) and not _has_head(name) for name in names
    )


def _has_head(name: str) -> bool:
    return any(part in name for part in WITH_HEAD)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40


def _levels(
    table: Mapping[str, Any], name: str, depth: int
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield name, table
    if depth < DEEPEST:
        for key, value in table.items():
            if isinstance(value, dict):
                yield from _levels(value, f"{name}.{key}" if name else str(key), depth + 1)
