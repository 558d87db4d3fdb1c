"""Read the flags about tying at every level of a configuration."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtie.audit.headers import is_count, parse_json
from jaxtie.audit.knowledge import DEFAULTS, FLAGS, NAMES, tied_by_default
from jaxtie.config import check

CONFIG_LIMIT = 100_000_000  # bytes
MAX_DEPTH = 6
CONFIGS = ("config.json", "params.json")  # of Hugging Face, of Mistral
TRUE_SIZE_KEYS = ("vocab_size", "n_vocab", "vocabulary_size")
DECODER_SIZE_KEYS = ("decoder_vocab_size", "tgt_vocab_size")
ENCODER_DECODER_SIZES = (("vocab_size", "decoder_vocab_size"), ("src_vocab_size", "tgt_vocab_size"))
OTHER_SIZE_KEYS = tuple(
    "unpadded_vocab_size output_vocab_size src_vocab_size padded_vocab_size embedding_size".split()
)
SIZE_KEYS = (*TRUE_SIZE_KEYS, *DECODER_SIZE_KEYS, *OTHER_SIZE_KEYS)
# Class names that end like this have no output embedding, unless they contain one of WITH_HEAD.
HEADLESS = tuple(
    "Model ForSequenceClassification ForTokenClassification ForQuestionAnswering ForTextEncoding"
    " ForMultipleChoice ForNextSentencePrediction ForRetrieval WithProjection Encoder".split()
)
WITH_HEAD = ("Head", "MTModel", "EncoderDecoder", "Chat", "Llava")
LANGUAGE_LEVELS = ("text_config", "llm_config", "language_config", "decoder", "model")
OTHER_LEVELS = ("encoder", "vision", "visual", "audio", "speech", "qformer")  # parts of names


@dataclass(frozen=True)
class LevelFlag:
    """A flag at one level of a configuration."""

    level: str  # dotted path; empty at the top
    name: str
    tied: bool | None  # None if the flag is missing; of null and of texts, what Python makes of it
    value: str  # in JSON; `missing` if it is
    # Whether the level describes the language model. Levels of vision and sound often contain the
    # defaults of their classes, which mean nothing.
    counts: bool = True

    @property
    def text(self) -> str:
        """`text_config.tie_word_embeddings: true`, as in JSON."""
        return f"{self.level}{'.' if self.level else ''}{self.name}: {self.value}"


@dataclass(frozen=True)
class Configuration:
    """The `config.json` of a checkpoint."""

    path: Path | None = None  # None if there is no file
    flags: tuple[LevelFlag, ...] = ()  # at every level, missing ones too
    vocabularies: tuple[int, ...] = ()  # all vocabulary sizes in it
    model_type: str | None = None  # of the top level, as in transformers
    headless: bool = False  # whether the model has no output embedding, as a classifier
    vocabulary: int | None = None  # rows that are used, without padding
    draft_vocabulary: int | None = None  # tokens that a draft model can predict
    decoder_type: str | None = None  # of the level that alone counts in a composite model
    separate: bool = False  # whether encoder and decoder have embeddings of their own
    scales: bool | None = None  # the flag that scales the logits in transformers 5, if present
    name: str = "config.json"  # of the file

    @property
    def declared(self) -> tuple[LevelFlag, ...]:
        """The flags that are present and count."""
        return tuple(flag for flag in self.flags if flag.tied is not None and flag.counts)

    @property
    def top(self) -> bool | None:
        """The flag at the top level; None if it is missing."""
        return next((flag.tied for flag in self.declared if not flag.level), None)

    @property
    def nested(self) -> bool | None:
        """The first nested flag; None if there is none."""
        return next((flag.tied for flag in self.declared if flag.level), None)

    @property
    def fixed(self) -> bool | None:
        """Whether the model's class is tied without looking at a flag; None if it looks at one."""
        return NAMES["kinds"]["fixed"].get(self.model_type)

    @property
    def is_tied_in_5(self) -> bool:
        """Whether transformers 5 ties models of this type if the top level has no flag."""
        kind = self.model_type
        return kind in DEFAULTS["tied_in_5"] or bool(tied_by_default(kind))

    @property
    def needs_copies(self) -> bool:
        """Whether the shared embedding reaches encoder and decoder only in a tied model."""
        return self.model_type in NAMES["kinds"]["shared_if_tied"]

    @property
    def claim(self) -> bool | None:
        """The top level, else a nested one, else the default of the model's class."""
        if self.fixed is not None:
            return self.fixed
        if self.top is not None:
            return self.top
        default = tied_by_default(self.decoder_type or self.model_type)
        return self.nested if self.nested is not None else default

    @property
    def said(self) -> str:
        """Return `config.json says tied`, or the like of a model without a flag."""
        word, kind = "tied" if self.claim else "untied", self.decoder_type or self.model_type
        if self.fixed is not None:
            return f"{kind} models in transformers, whatever config.json says, are {word}"
        if self.declared:
            return f"{self.name} says {word}"
        version = " 4" if kind in DEFAULTS["changed_in_5"] else ""
        return f"{kind} models in transformers{version}, where config.json has no flag, are {word}"

    def factor(self, tied: bool) -> str:
        """Return what another flag does to a factor of the logits; empty without a factor."""
        if self.model_type not in NAMES["kinds"]["scaled"]:
            return ""
        is_old = self.scales is not None or self.model_type in DEFAULTS["changed_in_5"]
        version = " in transformers 4" if is_old else ""
        return f"turns {'on' if tied else 'off'} the factor 1/√D of the logits{version}"

    @property
    def scaled(self) -> tuple[bool | None, bool | None]:
        """Whether transformers 4, and 5, scale the logits of a model that has such a factor."""
        if self.model_type not in NAMES["kinds"]["scaled"]:
            return None, None
        in_5 = self.claim if self.scales is None else self.scales
        return self.claim, NAMES["kinds"]["scaled_in_5"].get(self.model_type, in_5)

    def fix(self, tied: bool) -> str:
        """Return what to set so that all levels say `tied`."""
        wrong_first = sorted(self.declared, key=lambda flag: flag.tied is tied)
        name = next((flag.name for flag in wrong_first), "tie_word_embeddings")
        levels = sorted({flag.level for flag in self.declared if flag.tied is not tied} - {""})
        also = f", and also in {', '.join(levels)}" if levels else ""
        also += f" (which also {self.factor(tied)})" if self.factor(tied) else ""
        if not tied and self.needs_copies:
            also += ", and store the shared embedding as those of encoder and decoder, too"
        where = f"{self.name}{also}"
        if self.decoder_type:
            where = f"the decoder's level of {self.name}"
        return f"set {name}: {str(tied is FLAGS[name]).lower()} in {where}"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; UserError if it is none, or above 100 MB."""
    is_small = path.stat().st_size <= CONFIG_LIMIT
    check(is_small, f"{path}: is above {CONFIG_LIMIT // 10**6} MB; not a configuration")
    return parse_json(path.read_bytes(), f"{path}: is no JSON object", "repair or remove it")


def find_configuration(folder: Path) -> Path | None:
    """Return the `config.json` of a folder, or Mistral's `params.json`; None without."""
    return next((path for name in CONFIGS if (path := folder / name).is_file()), None)


def read_configuration(path: Path | None) -> Configuration:
    """Read a configuration; return an empty one if there is no file."""
    return Configuration() if path is None else configuration_of(read_json(path), path)


def configuration_of(content: dict[str, Any], path: Path) -> Configuration:
    """Read the tying flags of a configuration."""
    flags, sizes, used, architectures = [], [], [], []
    model_type = _type(content)
    decoder = content.get("decoder") if model_type in NAMES["kinds"]["composite"] else None
    decoder_type = _type(decoder) if isinstance(decoder, dict) else None
    for level, table in levels_of(content):
        present = [name for name in FLAGS if not isinstance(table.get(name, {}), dict | list)]
        present = [name for name in present if name in NAMES["kinds"]["decides"]] or present
        found = _sizes(table, SIZE_KEYS)
        last = level.rpartition(".")[2]
        is_other = any(word in level for word in OTHER_LEVELS)
        counts = not level or (not is_other and (last in LANGUAGE_LEVELS or bool(found)))
        counts = level == "decoder" if decoder_type else counts
        for name in present:
            tied, value = bool(table[name]) is FLAGS[name], json.dumps(table[name])[:40]
            flags.append(LevelFlag(level, name, tied, value, counts))
        sizes += found
        if counts or not level:
            used += _sizes(table, DECODER_SIZE_KEYS) or _sizes(table, TRUE_SIZE_KEYS)
            architectures.append(table.get("architectures"))
        if not present and (not level or (last in LANGUAGE_LEVELS and found)):
            name = "tied_embeddings" if path.name == CONFIGS[1] else "tie_word_embeddings"
            flags.append(LevelFlag(level, name, None, "missing"))
    return Configuration(
        path,
        tuple(flags),
        tuple(dict.fromkeys(sizes)),
        model_type,
        _is_headless(architectures),
        next(iter(used), None),
        next(iter(_sizes(content, ("draft_vocab_size",))), None),
        decoder_type,
        content.get("share_encoder_decoder_embeddings") is False
        or any(len(set(_sizes(content, pair))) > 1 for pair in ENCODER_DECODER_SIZES),
        scales if isinstance(scales := content.get("scale_decoder_outputs"), bool) else None,
        path.name,
    )


def _type(table: Mapping[str, Any]) -> str | None:
    model_type = table.get("model_type")
    return model_type if isinstance(model_type, str) else None


def _sizes(table: Mapping[str, Any], keys: Iterable[str]) -> list[int]:
    return [table[key] for key in keys if is_count(table.get(key)) and table[key]]


def _is_headless(levels: Iterable[Any]) -> bool:
    """Return whether all classes, at all levels, have no output embedding."""
    names = [name for names in levels if isinstance(names, list) for name in names]
    return bool(names) and all(
        isinstance(name, str)
        and name.endswith(HEADLESS)
        and not any(part in name for part in WITH_HEAD)
        for name in names
    )


def levels_of(
    table: dict[str, Any], name: str = "", depth: int = 0
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the dotted path of each level of a configuration, and its values."""
    yield name, table
    if depth < MAX_DEPTH:
        for key, value in table.items():
            if isinstance(value, dict):
                yield from levels_of(value, f"{name}.{key}" if name else key, depth + 1)
