"""Find the input embedding, the output embedding and the output bias among tensors."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jaxtie.audit.knowledge import (
    INPUTS,
    OUTPUTS,
    PACKED_LEAVES,
    Pattern,
    is_model_level,
    is_output_bias,
    match_name,
    split_name,
)
from jaxtie.audit.stored import StoredTensor
from jaxtie.config import UserError, check

SHOWN = 12  # candidates in an error
# Rows by which input and output embedding may differ, at least; else a twentieth of the vocabulary.
PADDING = 1024
# Names of the embeddings of an encoder-decoder model. The output would be tied to the first of
# them that is stored.
SHARED = ("shared", "decoder.embed_tokens", "encoder.embed_tokens")


class EmbeddingTable:
    """An embedding table of shape (vocabulary, width); `transposed` if it is stored D × V."""

    def __init__(self, tensor: StoredTensor, transposed: bool):
        """Describe a tensor of two dimensions without opening it."""
        self.tensor, self.transposed = tensor, transposed
        self.vocabulary, self.width = tensor.shape[::-1] if transposed else tensor.shape

    def block(self, start: int, stop: int) -> np.ndarray:
        """Read rows start...stop - 1 as a contiguous array (rows, D)."""
        rows = np.s_[start:stop]
        read = self.tensor.read
        return np.ascontiguousarray(read(np.s_[:, rows]).T if self.transposed else read(rows))


@dataclass(frozen=True)
class Embeddings:
    """The embeddings of a model."""

    input: EmbeddingTable  # or the only table
    output: EmbeddingTable | None  # None if it is not stored, as in most tied models
    copies: tuple[EmbeddingTable, ...]  # other tables of the input, as an encoder's
    bias: StoredTensor | None  # of the output
    packed: Mapping[str, str]  # "input" or "output" -> why its values cannot be read
    has_encoder: bool  # whether there are a decoder and an encoder of text


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

    @property
    def ending(self) -> str:
        return self.pattern.text if self.pattern else ""


def _candidate(tensor: StoredTensor, pattern: Pattern | None, leaf: str) -> _Candidate:
    packed = "" if tensor.is_values else tensor.stored
    if leaf in PACKED_LEAVES:
        packed = f"{leaf} ({PACKED_LEAVES[leaf]})"
    transposed = leaf == "kernel" or (pattern is not None and pattern.transposed)
    return _Candidate(tensor, pattern, packed, transposed)


def find_embeddings(
    tensors: Mapping[str, StoredTensor],
    vocabularies: Iterable[int],
    where: str,
    names: tuple[str | None, str | None] = (None, None),
) -> Embeddings:
    """Find the embeddings among a model's tensors.

    Args:
      tensors: by name.
      vocabularies: vocabulary sizes from the configuration.
      where: the checkpoint, for errors.
      names: tensors to take as input and output embedding; None to find them.

    Raises:
      UserError: if there is no input embedding, several tensors may be meant, a given name does not
        exist, a table is not 2-D, or the widths differ.
    """
    sizes = set(vocabularies)
    first = _named(tensors, names[0], "--input", where) or _find_input(tensors, sizes, where)
    copies = [] if names[0] else _find_copies(tensors, first)
    table = _oriented(first, sizes, where)
    second = _named(tensors, names[1], "--output", where)
    second = second or _find_output(tensors, table, first, where)
    output = None
    if second:
        output = _oriented(second, sizes | {table.vocabulary}, where, like=table)
        check(
            bool(first.packed or second.packed) or output.width == table.width,
            f"{where}: widths differ: {first.name} has width {table.width}, {second.name} width"
            f" {output.width}, so one of them is not an embedding of this model; name the"
            " embeddings with --input and --output",
        )
    roles = {"input": first, "output": second}
    return Embeddings(
        table,
        output,
        tuple(_oriented(copy, sizes, where) for copy in copies),
        _find_bias(tensors, (output or table).vocabulary),
        {role: found.packed for role, found in roles.items() if found and found.packed},
        _has_text_encoder(tensors),
    )


def _named(
    tensors: Mapping[str, StoredTensor], name: str | None, option: str, where: str
) -> _Candidate | None:
    if name is None:
        return None
    if name not in tensors:
        near = difflib.get_close_matches(name, tensors, 5, 0.3) or list(tensors)[:5]
        raise UserError(
            f"{option} {name!r}: {where} has no such tensor; nearest: {', '.join(map(repr, near))}"
        )
    last = "".join(split_name(name)[-1:])
    return _candidate(
        tensors[name], *(match_name(name, INPUTS) or match_name(name, OUTPUTS) or (None, last))
    )


def _matching(tensors: Mapping[str, StoredTensor], patterns: Sequence[Pattern]) -> list[_Candidate]:
    """Return one candidate per module, also if quantisation made several tensors of its weight."""
    found: dict[tuple[str, ...], _Candidate] = {}
    for name, tensor in tensors.items():
        match = match_name(name, patterns)
        if match is None or not tensor.shape:
            continue
        pattern, leaf = match
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


def _by_leaf(tensors: Mapping[str, StoredTensor], leaf: str) -> list[_Candidate]:
    """Return tables of Flax modules with names of their own, except embeddings of positions."""
    found = []
    for name in _two_dimensional(tensors):
        parts = split_name(name)
        is_position = any("pos" in part.lower() for part in parts)
        if parts[-1:] == [leaf] and is_model_level(parts) and not is_position:
            found.append(_candidate(tensors[name], None, leaf))
    return found


def _two_dimensional(tensors: Mapping[str, StoredTensor]) -> list[str]:
    return [name for name, tensor in tensors.items() if len(tensor.shape) == 2]


def _find_input(tensors: Mapping[str, StoredTensor], sizes: set[int], where: str) -> _Candidate:
    found = _matching(tensors, INPUTS) or _by_leaf(tensors, "embedding")
    shown = ", ".join(map(repr, _two_dimensional(tensors)[:SHOWN])) or "none"
    check(
        bool(found),
        f"{where}: found no input embedding by its name; give --input; tensors of two dimensions:"
        f" {shown}",
    )
    if all(candidate.ending in SHARED for candidate in found):
        return min(found, key=lambda candidate: SHARED.index(candidate.ending))
    fitting = [candidate for candidate in found if sizes & set(candidate.tensor.shape)] or found
    _check_unique(fitting, "input", where)
    return fitting[0]


def _check_unique(found: Sequence[_Candidate], role: str, where: str) -> None:
    check(
        len(found) < 2,
        f"{where}: {len(found)} tensors may be the {role} embedding; give one as --{role}: "
        + ", ".join(repr(candidate.name) for candidate in found[:SHOWN]),
    )


def _find_copies(tensors: Mapping[str, StoredTensor], first: _Candidate) -> list[_Candidate]:
    if first.ending not in SHARED:
        return []
    return [
        candidate
        for candidate in _matching(tensors, INPUTS)
        if candidate.name != first.name
        and candidate.ending in SHARED[1:]
        and candidate.tensor.shape == first.tensor.shape
    ]


def _find_output(
    tensors: Mapping[str, StoredTensor], table: EmbeddingTable, first: _Candidate, where: str
) -> _Candidate | None:
    found = [other for other in _matching(tensors, OUTPUTS) if other.name != first.name]
    fitting = [other for other in found if other.pattern and not other.pattern.loose]
    fitting = fitting or [other for other in found if _fits(other, table)]
    if not fitting and first.pattern is None:
        shape = (table.width, table.vocabulary)
        fitting = [other for other in _by_leaf(tensors, "kernel") if other.tensor.shape == shape]
    if len(fitting) > 1:
        sizes = {table.vocabulary, table.width}
        fitting = [other for other in fitting if set(other.tensor.shape) == sizes] or fitting
    _check_unique(fitting, "output", where)
    return fitting[0] if fitting else None


def _fits(candidate: _Candidate, table: EmbeddingTable) -> bool:
    """Return whether a tensor has the width of a table and nearly its vocabulary."""
    shape, vocabulary = candidate.tensor.shape, table.vocabulary
    slack = max(PADDING, vocabulary // 20) if vocabulary > PADDING else vocabulary // 2
    return len(shape) == 2 and any(
        width == table.width and abs(rows - vocabulary) <= slack
        for rows, width in (shape, shape[::-1])
    )


def _oriented(
    candidate: _Candidate, sizes: set[int], where: str, like: EmbeddingTable | None = None
) -> EmbeddingTable:
    """Decide which dimension is the vocabulary.

    The width of the other table decides, else the configuration, else the name, else the larger
    dimension.
    """
    tensor, shape = candidate.tensor, candidate.tensor.shape
    check(
        len(shape) == 2 and min(shape) > 0,
        f"{where}: {candidate.name} has shape {shape}; expected a 2-D table, vocabulary by width",
    )
    rows, columns = shape
    if rows == columns:
        return EmbeddingTable(tensor, candidate.transposed)
    if like and (rows == like.width) != (columns == like.width):
        return EmbeddingTable(tensor, rows == like.width)
    if (rows in sizes) != (columns in sizes):
        return EmbeddingTable(tensor, columns in sizes)
    return EmbeddingTable(tensor, candidate.transposed if candidate.pattern else rows < columns)


def _has_text_encoder(tensors: Mapping[str, StoredTensor]) -> bool:
    """Return whether there are a decoder and an encoder without convolutions or patches."""
    names = [split_name(name) for name in tensors]
    both = all(any(side in parts[:3] for parts in names) for side in ("encoder", "decoder"))
    return both and not any(
        "encoder" in parts and any("conv" in part or "patch" in part for part in parts)
        for parts in names
    )


def _find_bias(tensors: Mapping[str, StoredTensor], vocabulary: int) -> StoredTensor | None:
    fitting = (
        tensor for tensor in tensors.values() if vocabulary in tensor.shape and tensor.is_values
    )
    return next((tensor for tensor in fitting if is_output_bias(tensor.name)), None)
