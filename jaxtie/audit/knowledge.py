"""Known tensor names, tying flags, class defaults and loader behaviour.

The facts are in `names.toml` and `loaders.toml`, each with its source.
"""

import functools
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


def _load(name: str) -> dict[str, Any]:
    return tomllib.loads(files("jaxtie.audit").joinpath(name).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Pattern:
    """The end of the name of an embedding."""

    text: str  # its parts, separated by dots, without the leaf (`weight`, `kernel`, ...)
    models: str  # some models that use it
    source: str  # where to look it up
    head: str = ""  # module of the head that transformers expects if this one is untied
    loose: bool = False  # whether it counts only if the shape fits the input embedding
    transposed: bool = False  # whether the table is D × V even if the leaf does not say so


NAMES = _load("names.toml")
DEFAULTS: dict[str, list[str]] = _load("defaults.toml")
INPUTS = tuple(Pattern(text, **row) for text, row in NAMES["input"].items())
OUTPUTS = tuple(Pattern(text, **row) for text, row in NAMES["output"].items())
BIASES: list[str] = NAMES["biases"]
PACKED_LEAVES: dict[str, str] = NAMES["packed"]
LEAVES = {*NAMES["leaves"], *PACKED_LEAVES}
FLAGS: dict[str, bool] = {name: row["tied"] for name, row in NAMES["flags"].items()}
LOADERS = _load("loaders.toml")
SOUND = {row["loader"] for rows in LOADERS.values() for row in rows if row.get("sound")}


def split_name(name: str) -> list[str]:
    """Split a tensor's name into parts at dots, slashes and `['x']`, without a final `:0`."""
    return list(_split(name))


@functools.lru_cache(2**18)
def _split(name: str) -> tuple[str, ...]:
    plain = re.sub(r":\d+$", "", re.sub(r"\[['\"]?([^\[\]'\"]*)['\"]?\]", r".\1", name))
    # Keras numbers the variables of a layer: of a ReversibleEmbedding the table, its scale if it
    # is quantised, the reverse table and its scale.
    plain = re.sub(r"((?:token|reversible)_embedding)(_\d+)?[./]vars[./]", r"\1.vars.", plain)
    plain = re.sub(r"((?:token|reversible)_embedding).vars.0$", r"\1", plain)
    plain = re.sub(r"((?:token|reversible)_embedding).vars.[12]$", r"\1.reverse_embeddings", plain)
    plain = re.sub(r"(embedding(?:_\d+)?)[./]vars[./]0$", r"\1.embeddings", plain)
    plain = re.sub(r"(dense(?:_\d+)?)[./]vars[./]0$", r"\1.kernel", plain)
    parts = [part for part in re.split(r"[./]", plain) if part]
    if len(parts) > 1 and parts[-1] in ("value", "array"):  # of a variable of NNX, of Haliax
        parts.pop()
    if len(parts) > 1 and parts[0].isdigit():  # of a tuple of models
        parts.pop(0)
    return tuple(parts)


def is_model_level(parts: Sequence[str]) -> bool:
    """Return whether a name belongs to no layer (a numbered part) and to no optimizer state."""
    return not any(
        part.isdigit() or part in NAMES["optimizer"] or part.startswith("mtp") for part in parts
    )


def is_copy(name: str) -> bool:
    """Return whether a name is that of a copy in a layer that predicts one of several tokens."""
    parts = split_name(name)
    ends = any(_ends_with(parts[:-1], text) for text in NAMES["copies"])
    is_state = any(part in NAMES["optimizer"] for part in parts)
    return parts[-1:] == ["weight"] and ends and not is_state and not is_model_level(parts)


def is_encoder(model_type: str | None, names: Iterable[str]) -> bool:
    """Return whether a model of transformers is an encoder without a stored head."""
    parts = {part for name in names for part in split_name(name)}
    if model_type in NAMES["kinds"]["encoders"]:
        return not parts & set(NAMES["kinds"]["heads"])
    return model_type in NAMES["kinds"]["shared"] and "encoder" in parts and "decoder" not in parts


def is_gguf_encoder(architecture: str, metadata: Mapping[str, Any]) -> bool:
    """Return whether a GGUF file holds an encoder, or a model of which one vector is pooled."""
    is_pooled = bool(metadata.get(f"{architecture}.pooling_type"))
    return bool(architecture) and (is_pooled or architecture in NAMES["kinds"]["gguf"])


def missing_sides(name: str, stored: Collection[str]) -> list[str]:
    """Return the names of the encoder's and the decoder's copies of a shared embedding.

    Without those that are stored; empty if the name is not that of a shared one.
    """
    *prefix, module, leaf = ["", "", *name.split(".")]
    inner = NAMES["kinds"]["sides"].get(module)
    if inner is None or {"encoder", "decoder"} & set(prefix):
        return []
    stem = ".".join([*prefix[2:], ""])
    text = "text_" if any(name.startswith(f"{stem}text_encoder.") for name in stored) else ""
    sides = (f"{stem}{text}{side}.{inner}.{leaf}" for side in ("encoder", "decoder"))
    return [side for side in sides if side not in stored]


def head_of(name: str) -> str:
    """Return the name of the head that transformers expects next to an input embedding.

    Empty if it is not known: without the prefix of its base model, a name may be another class's.
    """
    match = match_name(name, INPUTS)
    if match is None or not match[0].head or match[1] != "weight":
        return ""
    pattern = match[0]
    prefix = name.removesuffix(f"{pattern.text}.weight")
    if prefix not in NAMES["prefixes"] or not (prefix or pattern.text == "shared"):
        return ""
    return f"{NAMES['prefixes'][prefix]}{pattern.head}.weight"


def is_transform(name: str) -> bool:
    """Return whether a tensor belongs to a head that transforms hidden states before its table."""
    parts = split_name(name)
    return is_model_level(parts) and bool(set(parts[:-1]) & set(NAMES["kinds"]["transforms"]))


def _ends_with(parts: list[str], text: str) -> bool:
    words = text.split(".")
    return parts[-len(words) :] == words


def match_name(name: str, patterns: Sequence[Pattern]) -> tuple[Pattern, str] | None:
    """Return the longest pattern that a name ends with, and its leaf, which may be empty."""
    parts = split_name(name)
    if not parts or not is_model_level(parts):
        return None
    splits = [(parts, "")]
    if parts[-1] in LEAVES:
        splits.append((parts[:-1], parts[-1]))
    found = [
        (pattern, leaf)
        for stem, leaf in splits
        for pattern in patterns
        if _ends_with(stem, pattern.text)
    ]
    return max(found, key=lambda pair: len(pair[0].text), default=None)


def is_output_bias(name: str, *, loose: bool = True) -> bool:
    """Return whether a name is that of an output bias; `loose`: also if it may be another's."""
    parts = split_name(name)
    if not is_model_level(parts):
        return False
    if any(_ends_with(parts, bias) for bias in BIASES):
        return True
    patterns = [pattern for pattern in OUTPUTS if loose or not pattern.loose]
    return parts[-1:] == ["bias"] and match_name(".".join(parts[:-1]), patterns) is not None


def tied_by_default(model_type: str | None) -> bool | None:
    """Return whether transformers ties models of this type without a flag; None if unknown."""
    if model_type in DEFAULTS["tied"]:
        return True
    return False if model_type in DEFAULTS["untied"] else None


def loader_lines(condition: str, kind: str | None = None) -> tuple[str, ...]:
    """Return a line for each loader: how it treats this condition of this kind of model."""
    return tuple(
        f"{row['loader']}: {row['does']} ({row['date']}, github.com/{row['thread']})"
        for row in LOADERS[condition]
        if kind in row.get("kinds", [kind])
    )
