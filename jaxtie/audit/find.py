"""Find the embeddings and the output bias among tensors, and the embeddings an adapter trains."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Literal

import numpy as np

from jaxtie.audit.checkpoint import PICKLES, Checkpoint, check_link, refuse_pickle
from jaxtie.audit.knowledge import (
    INPUTS,
    NAMES,
    OUTPUTS,
    PACKED_LEAVES,
    Pattern,
    is_model_level,
    is_output_bias,
    match_name,
    split_name,
)
from jaxtie.audit.stored import StoredTensor, from_mapped, refuse_pointer
from jaxtie.config import UserError, check

MOST_CANDIDATES = 12  # candidates in an error
# Rows by which input and output embedding may differ, at least; else a twentieth of the vocabulary.
PADDING = 1024
CODEBOOK = re.compile(r"(?:^|\.)embed_tokens\.\d+\.weight$")
# Parts of names of embeddings that are not of tokens; Keras' `time_distributed` may hold tokens.
NO_TOKENS = tuple("pos type segment rotary patch image vision audio time_emb timestep".split())
# Parts that PEFT appends to a module's name.
WRAPPERS = frozenset(
    "lora_A lora_B lora_embedding_A lora_embedding_B lora_magnitude_vector weight default"
    " modules_to_save base_layer original_module token_adapter trainable_tokens_delta"
    " trainable_tokens_original bias hada_w1_a hada_w1_b hada_w2_a hada_w2_b lokr_w1 lokr_w2"
    " lokr_w1_a lokr_w1_b lokr_w2_a lokr_w2_b oft_R boft_R boft_s vera_lambda_b vera_lambda_d"
    " ia3_l".split()
)
Role = Literal["input", "output"]
Tensors = Mapping[str, StoredTensor]  # by name


class EmbeddingTable:
    """An embedding table of shape (vocabulary, width); `transposed` if it is stored D × V."""

    def __init__(self, tensor: StoredTensor, transposed: bool):
        """Describe a tensor of two dimensions without opening it."""
        self.tensor, self.transposed = tensor, transposed
        self.vocabulary, self.width = tensor.shape[::-1] if transposed else tensor.shape

    def block(self, start: int, stop: int) -> np.ndarray:
        """Read rows start...stop - 1 as a contiguous array (rows, D)."""
        rows, read = np.s_[start:stop], self.tensor.read
        return np.ascontiguousarray(read(np.s_[:, rows]).T if self.transposed else read(rows))


@dataclass(frozen=True)
class Embeddings:
    """The embeddings of a model."""

    input: EmbeddingTable  # or the only table
    output: EmbeddingTable | None  # None if it is not stored, as in most tied models
    biases: tuple[StoredTensor, ...]  # of the output, perhaps under several names
    packed: Mapping[str, str]  # "input" or "output" -> why its values cannot be read
    has_encoder: bool  # whether the model has a text encoder besides the decoder
    encoders: tuple[EmbeddingTable, ...] = ()  # tables of an encoder, or of a decoder's copy
    # further tables of the input or of the output embedding; another model's if they differ
    copies: tuple[tuple[Role, EmbeddingTable], ...] = ()
    only_head: bool = False  # whether the only table is stored under the name of a head
    is_draft: bool = False  # whether the head predicts some tokens only, as in a draft model


@dataclass(frozen=True)
class _Candidate:
    """A tensor that may be an embedding."""

    tensor: StoredTensor  # of several that quantisation makes of one, the one with the values
    pattern: Pattern | None  # None if the user named it or it was found by its leaf
    packed: str  # why its values cannot be read; empty if they can
    transposed: bool  # whether it is stored D × V according to its name

    @property
    def name(self) -> str:
        return self.tensor.name


def _candidate(tensor: StoredTensor, pattern: Pattern | None, leaf: str) -> _Candidate:
    packed = "" if tensor.is_values else tensor.stored
    if leaf in PACKED_LEAVES:
        packed = f"{leaf} ({PACKED_LEAVES[leaf]})"
    transposed = leaf == "kernel" or (pattern is not None and pattern.transposed)
    return _Candidate(tensor, pattern, packed, transposed)


def find_embeddings(
    checkpoint: Checkpoint, names: tuple[str | None, str | None] = (None, None)
) -> Embeddings:
    """Find the embeddings among a model's tensors; where names do not decide, sizes do.

    Args:
      checkpoint: with the tensors.
      names: tensors to take as input and output embedding; None to find them.

    Raises:
      UserError: if there is no embedding, several tensors may be meant, a given name does not
        exist, a table is not 2-D, or the widths differ.
    """
    tensors, configuration = checkpoint.tensors, checkpoint.configuration
    sizes = set(configuration.vocabularies)
    inputs = _named(tensors, names[0], "--input") or _find_inputs(tensors, sizes)
    if configuration.fixed and all(_side(one) == "encoder" for one in inputs):
        # The decoder's embedding is stored under the head's name only.
        heads = [one for one in _matching(tensors, OUTPUTS) if _side(one) == "decoder"]
        inputs = heads + inputs
    second = _named(tensors, names[1], "--output")
    if not inputs and not names[1]:
        return _find_only_head(checkpoint)
    check(bool(inputs), _no_input(tensors))
    first, *others = inputs
    table = _oriented(first, sizes)
    second = second or _find_outputs(tensors, table, inputs)
    output = None
    apart = [
        name
        for name, tensor in tensors.items()  # an lm_head.dense of RoBERTa is D×D
        if "lm_head" in split_name(name)[:-1] and not match_name(name, OUTPUTS)
        if len(tensor.shape) > 1 and {*tensor.shape} != {table.width}
    ]
    text = f"{', '.join(apart[:3])}: an output embedding in an unknown form; name it by --output"
    check(bool(second) or not apart, text)
    if second:
        known = sizes | {table.vocabulary}
        output = _oriented(second[0], known, like=table)
        is_untied = not configuration.claim and output.vocabulary == table.vocabulary
        check(
            bool(first.packed or second[0].packed) or output.width == table.width or is_untied,
            f"widths differ: {first.name} has width {table.width}, {second[0].name} width"
            f" {output.width}, so one of them is not an embedding of this model; name the"
            " embeddings with --input and --output",
        )
    last = output or table
    roles = {"input": first, "output": second[0] if second else None}
    is_packed = bool(second and second[0].packed)  # its shape is not that of its values
    further: list[tuple[Role, EmbeddingTable]] = []
    if not _side(first):
        further += [("input", EmbeddingTable(one.tensor, table.transposed)) for one in others]
    further += [("output", EmbeddingTable(one.tensor, last.transposed)) for one in second[1:]]
    return Embeddings(
        table,
        output,
        _find_biases(tensors, last.vocabulary),
        {role: found.packed for role, found in roles.items() if found and found.packed},
        _has_text_encoder(tensors, table.tensor.name),
        tuple(_oriented(other, sizes) for other in others if _side(first)),
        tuple(further),
        is_draft=not is_packed and _is_draft(checkpoint, table, output),
    )


def _find_only_head(checkpoint: Checkpoint) -> Embeddings:
    """Return the only table, which is stored under the name of a head."""
    tensors, configuration = checkpoint.tensors, checkpoint.configuration
    found = [one for one in _matching(tensors, OUTPUTS) if one.pattern and not one.pattern.loose]
    check(bool(found), _no_input(tensors))
    _check_unique(found, "output")
    sizes = {*configuration.vocabularies, configuration.draft_vocabulary or 0}
    table = _oriented(found[0], sizes)
    packed = {"input": found[0].packed} if found[0].packed else {}
    is_draft = _is_draft(checkpoint, table, table)
    is_alone = not any(
        is_model_level(split_name(name)) and 2 * max(tensors[name].shape) >= table.vocabulary
        for name in _two_dimensional(tensors)
        if name != found[0].name
    )  # else that may be an input embedding with a name of its own
    check(is_draft or (is_alone and not packed), _no_input(tensors))
    biases = _find_biases(tensors, table.vocabulary)
    return Embeddings(table, None, biases, packed, False, only_head=True, is_draft=is_draft)


def _no_input(tensors: Tensors) -> str:
    names = sorted(_two_dimensional(tensors), key=lambda name: "emb" not in name.lower())
    shown = ", ".join(map(repr, names[:MOST_CANDIDATES])) or "none"
    return f"found no input embedding by its name; give --input; tensors of two dimensions: {shown}"


def _is_draft(checkpoint: Checkpoint, table: EmbeddingTable, output: EmbeddingTable | None) -> bool:
    """Return whether a head predicts some tokens only.

    EAGLE-3 stores which ones as `d2t` and `t2d` (github.com/sgl-project/SpecForge/pull/534).
    """
    if output is None or (output is not table and output.vocabulary >= table.vocabulary):
        return False
    has_map = any(split_name(name)[-1:] in (["d2t"], ["t2d"]) for name in checkpoint.tensors)
    is_small = output is not table and 2 * output.vocabulary < table.vocabulary
    return has_map or is_small or checkpoint.configuration.draft_vocabulary == output.vocabulary


def _named(tensors: Tensors, name: str | None, option: str) -> list[_Candidate]:
    if name is None:
        return []
    if name not in tensors:
        near = difflib.get_close_matches(name, tensors, 5, 0.3) or list(tensors)[:5]
        raise UserError(f"{option} {name!r}: no such tensor; nearest: {', '.join(map(repr, near))}")
    last = "".join(split_name(name)[-1:])
    match = match_name(name, INPUTS) or match_name(name, OUTPUTS) or (None, last)
    return [_candidate(tensors[name], *match)]


def _matching(tensors: Tensors, patterns: Sequence[Pattern]) -> list[_Candidate]:
    """Return one candidate per module, also if quantisation made several tensors of its weight."""
    found: dict[tuple[str, ...], _Candidate] = {}
    for name, tensor in tensors.items():
        match = match_name(name, patterns)
        if match is None or not tensor.shape:
            continue
        pattern, leaf = match
        if pattern.text == "reverse_embeddings" and not _is_reverse(tensors, tensor):
            continue
        parts = split_name(name)
        module = tuple(parts[:-1] if leaf else parts)
        new = _candidate(tensor, pattern, leaf)
        old = found.get(module, new)
        main, other = (new, old) if _value_rank(new) > _value_rank(old) else (old, new)
        # Scales next to a table show that it is quantised.
        found[module] = replace(main, packed=main.packed or other.packed)
    return list(found.values())


def _value_rank(candidate: _Candidate) -> tuple[bool, int]:
    """Rank the tensors of one module: the highest holds the values, or the packed ones."""
    leaf = split_name(candidate.name)[-1]
    is_scale = leaf in PACKED_LEAVES and leaf not in ("qweight", "weight_packed")
    return not is_scale, candidate.tensor.size


def _is_reverse(tensors: Tensors, tensor: StoredTensor) -> bool:
    """Return whether a variable of KerasHub is a reverse table, not a scale or a zero point."""
    stem, _, number = tensor.name.rpartition("/")
    table = tensors.get(f"{stem}/0") if number.isdigit() else None
    if table is None or table.dtype is None or tensor.dtype is None:
        return len(tensor.shape) == 2
    is_kind = tensor.dtype.kind == table.dtype.kind
    return is_kind and len(tensor.shape) == 2 and tensor.shape[1:] == table.shape[:1]


def _by_module(tensors: Tensors) -> list[_Candidate]:
    """Return tables of Flax and Equinox modules with names of their own."""
    found = []
    for name in _two_dimensional(tensors):
        parts = split_name(name)
        words = " ".join(parts).lower()
        is_embed = parts[-1:] in (["embedding"], ["embeddings"]) or (
            parts[-1:] == ["weight"] and "emb" in "".join(parts[-2:-1]).lower()
        )
        is_other = any(word in words for word in (*NO_TOKENS, "unemb"))
        if is_embed and is_model_level(parts) and not is_other:
            found.append(_candidate(tensors[name], None, parts[-1]))
    return found


def _two_dimensional(tensors: Tensors) -> list[str]:
    return [name for name, tensor in tensors.items() if len(tensor.shape) == 2]


def _side(candidate: _Candidate) -> str:
    """Return `encoder` or `decoder`, if the name says so; `shared` for a table of both."""
    if candidate.pattern and candidate.pattern.text == "shared":
        return "shared"
    parts = split_name(candidate.name)
    return next((side for side in ("decoder", "encoder") if side in parts[:-1]), "")


def _find_inputs(tensors: Tensors, sizes: set[int]) -> list[_Candidate]:
    """Return the input embedding and then further tables of it, or of an encoder."""
    found = _matching(tensors, INPUTS) or _by_module(tensors)
    own = [one for one in found if not {*split_name(one.name)} & {*NAMES["other_parts"]}]
    is_text = bool(own) or not any(map(CODEBOOK.search, tensors))
    text = "has an embedding for each codebook, as MusicGen, which cannot be tied; give one as"
    check(is_text, f"{text} --input, its head as --output")
    found = own or found
    sides = [_side(candidate) for candidate in found]
    if len(found) > 1 and all(sides):
        _check_unique([one for one in found if sides.count(_side(one)) > 1], "input")
        return sorted(found, key=lambda one: ("shared", "decoder", "encoder").index(_side(one)))
    fitting = [candidate for candidate in found if sizes & set(candidate.tensor.shape)] or found
    if fitting and fitting[0].pattern is None:  # the positions have no head
        heads = {
            tensors[name].shape[::-1]
            for name in _two_dimensional(tensors)
            if split_name(name)[-1:] == ["kernel"]
        }
        fitting = [one for one in fitting if one.tensor.shape in heads] or fitting
    return _agreeing(fitting, "input")


def _agreeing(found: list[_Candidate], role: str) -> list[_Candidate]:
    """Return candidates of one shape that may be copies of each other; ask for one otherwise."""
    alike = {candidate.tensor.shape for candidate in found}
    if len(alike) > 1 or any(not candidate.tensor.is_values for candidate in found):
        _check_unique(found, role)
    return found


def _check_unique(found: Sequence[_Candidate], role: str) -> None:
    check(len(found) < 2, several_tables([candidate.name for candidate in found], role))


def several_tables(names: Sequence[str], role: str) -> str:
    """Return an error that asks which of several tables is meant."""
    return (
        f"{len(names)} tensors may be the {role} embedding, perhaps of several models;"
        f" give one as --{role}: " + ", ".join(map(repr, names[:MOST_CANDIDATES]))
    )


def _find_outputs(
    tensors: Tensors, table: EmbeddingTable, inputs: Sequence[_Candidate]
) -> list[_Candidate]:
    """Return the output embedding and then further tables of it; empty if there is none."""
    own = {one.name for one in inputs}
    others = [one.name for one in _matching(tensors, INPUTS) if one.name not in own]
    found = [one for one in _matching(tensors, OUTPUTS) if one.name not in own]
    found = [one for one in found if _belongs(one.name, inputs[0].name, others)]
    fitting = [one for one in found if one.pattern and not one.pattern.loose]
    fitting = fitting or [one for one in found if _fits(one, table)]
    if not fitting and inputs[0].pattern is None:
        fitting = _by_shape(tensors, table)
    if len(fitting) > 1:
        sizes = {table.vocabulary, table.width}
        fitting = [one for one in fitting if set(one.tensor.shape) == sizes] or fitting
    return _agreeing(fitting, "output")


def _belongs(output: str, first: str, others: Sequence[str]) -> bool:
    """Return whether no other model's input embedding is nearer to an output by its name."""

    def near(name: str) -> int:
        pairs = zip(split_name(name), split_name(output), strict=False)
        return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))

    return all(near(other) <= near(first) for other in others)


def _by_shape(tensors: Tensors, table: EmbeddingTable) -> list[_Candidate]:
    """Return Flax kernels D × V and other weights V × D of modules with names of their own."""
    found = []
    for name in _two_dimensional(tensors):
        parts, shape = split_name(name), (table.vocabulary, table.width)
        expected = {"kernel": shape[::-1], "weight": shape}.get("".join(parts[-1:]))
        words = name.lower().replace("unemb", "")
        is_other = any(word in words for word in ("emb", *NO_TOKENS))
        is_fit = expected == tensors[name].shape
        if is_fit and name != table.tensor.name and is_model_level(parts) and not is_other:
            found.append(_candidate(tensors[name], None, parts[-1]))
    return found


def _fits(candidate: _Candidate, table: EmbeddingTable) -> bool:
    """Return whether a tensor has the width of a table and nearly its vocabulary."""
    shape, vocabulary = candidate.tensor.shape, table.vocabulary
    slack = max(PADDING, vocabulary // 20) if vocabulary > PADDING else vocabulary // 2
    return len(shape) == 2 and any(
        width == table.width and abs(rows - vocabulary) <= slack
        for rows, width in (shape, shape[::-1])
    )


def _oriented(
    candidate: _Candidate, sizes: set[int], like: EmbeddingTable | None = None
) -> EmbeddingTable:
    """Decide which dimension is the vocabulary.

    The width of the other table decides, else the configuration, else the name (one with `emb`
    means V × D), else the larger dimension.
    """
    tensor, shape = candidate.tensor, candidate.tensor.shape
    what = f"{candidate.name} has shape {shape}"
    empty = "and holds no values, perhaps a placeholder of DeepSpeed's ZeRO-3; gather the weights"
    check(0 not in shape, f"{what} {empty} before they are saved")
    check(len(shape) == 2, f"{what}; expected a 2-D table, vocabulary by width")
    rows, columns = shape
    if rows == columns:
        return EmbeddingTable(tensor, candidate.transposed)
    if like and (rows == like.width) != (columns == like.width):
        return EmbeddingTable(tensor, rows == like.width)
    if (rows in sizes) != (columns in sizes):
        return EmbeddingTable(tensor, columns in sizes)
    is_named = candidate.pattern or "emb" in candidate.name.lower().replace("unemb", "")
    return EmbeddingTable(tensor, candidate.transposed if is_named else rows < columns)


def _has_text_encoder(tensors: Tensors, name: str) -> bool:
    """Return whether the model that has this embedding in its decoder also has a text encoder.

    An encoder of sound or images has convolutions or patches.
    """
    stem, found, _ = name.rpartition("decoder.")
    names = [one for one in tensors if one.startswith(f"{stem}encoder.")]
    return bool(found and names) and not any("conv" in one or "patch" in one for one in names)


def _find_biases(tensors: Tensors, vocabulary: int) -> tuple[StoredTensor, ...]:
    """Return the output biases, found by their length or by an unambiguous name."""
    return tuple(
        one
        for one in tensors.values()
        if one.is_values
        and is_output_bias(one.name)
        and (vocabulary in one.shape or is_output_bias(one.name, loose=False))
    )


# ----- Adapters, as PEFT saves them.


@dataclass(frozen=True)
class Adapter:
    """The effect of an adapter on the embeddings."""

    input: tuple[str, ...]  # names of the tensors that train the input embedding
    output: tuple[str, ...]  # likewise
    is_whole: bool  # whether it stores whole tables, not LoRA factors
    is_same: bool  # whether it stores both tables, and they are the same
    is_tokens: bool  # whether it trains chosen tokens only (`trainable_token_indices` of PEFT)
    rows: tuple[int, ...]  # vocabulary of each table, and of each LoRA of one


def read_adapter(folder: Path) -> Adapter:
    """Read the adapter in a folder; UserError if there is none that can be read."""
    text = f"--adapter {folder}: no such folder; give the one with adapter_model.safetensors"
    check(folder.is_dir(), text)
    weights = folder / "adapter_model.safetensors"
    for path in () if weights.is_file() else sorted(folder.iterdir()):
        if path.suffix in PICKLES:
            refuse_pickle(path)
    text = f"--adapter {folder}: holds no adapter_model.safetensors; expected what PEFT saves"
    check(weights.is_file(), text)
    check_link(folder, weights)
    refuse_pointer(weights)
    tensors, _ = from_mapped(weights)
    sides = [[one for one in tensors if _trains(one.name, group)] for group in (INPUTS, OUTPUTS)]
    inputs, outputs = ([one for one in side if _leaf(one) != "base_layer"] for side in sides)
    every = [one for side in sides for one in side]
    is_whole = all(_leaf(one) in ("table", "modules_to_save") for one in every)
    is_same = is_whole and bool(inputs and outputs) and all(one.is_values for one in every)
    return Adapter(
        tuple(one.name for one in inputs),
        tuple(one.name for one in outputs),
        is_whole,
        is_same and len({(one.shape, one.read(...).tobytes()) for one in every}) == 1,
        all("trainable_tokens" in one.name for one in sides[0]),
        tuple(dict.fromkeys(rows for one in every for rows in _rows(one))),
    )


def _trains(name: str, patterns: Sequence[Pattern]) -> bool:
    parts = split_name(name)
    while parts and parts[-1] in WRAPPERS:
        parts.pop()
    match = match_name(".".join(parts), patterns)
    return match is not None and not match[0].loose


def _leaf(tensor: StoredTensor) -> str:
    parts = [part for part in split_name(tensor.name) if part not in ("weight", "default")]
    return next((part for part in reversed(parts) if part in WRAPPERS), "table")


def _rows(tensor: StoredTensor) -> list[int]:
    """Return the vocabulary of a table, or of the factor of a LoRA that has it."""
    axis = {"lora_embedding_A": 1, "lora_B": 0, "table": 0, "base_layer": 0, "modules_to_save": 0}
    at = axis.get(_leaf(tensor))
    return [] if at is None or len(tensor.shape) != 2 else [tensor.shape[at]]
