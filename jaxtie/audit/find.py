"""The input embedding, the output embedding and the output bias among a checkpoint's tensors, and
how they lie.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxtie.audit.names import (
    INPUTS,
    OUTPUTS,
    PACKED_LEAVES,
    Stem,
    is_bias,
    is_weight,
    parts_of,
    stem_of,
)
from jaxtie.audit.stored import Stored
from jaxtie.config import UserError, check

SHOWN = 12  # candidates in an error
READ_ROWS = 4096  # at once, of what is not mapped
PADDING = 1024  # ids by which two tables of one vocabulary may differ, at least; else a twentieth
ONE_OF_SEVERAL = ("encoder.embed_tokens", "decoder.embed_tokens")


class RowTable:
    """A stored table by the rows of its vocabulary.

    Attributes:
      tensor: where it is.
      across: whether it lies D×V.
      vocabulary, width: V and D.
    """

    def __init__(self, tensor: Stored, across: bool):
        self.tensor, self.across = tensor, across
        self.vocabulary, self.width = tensor.shape[::-1] if across else tensor.shape
        self._data: Any = None

    def block(self, start: int, stop: int) -> np.ndarray:
        """Rows start...stop - 1 of V, (rows, D), each row in one piece."""
        if self._data is None:
            self._data = self.tensor.open()
        rows = self._data[:, start:stop].T if self.across else self._data[start:stop]
        rows = np.array(rows, order="C")  # a copy, since the mapped pages are given back
        self.tensor.forget()
        return rows

    @np.errstate(all="ignore")
    def take(self, ids: np.ndarray) -> np.ndarray:
        """Rows of these ids, ascending; (ids, D) in float32."""
        if self._data is None:
            self._data = self.tensor.open()
        if isinstance(self._data, np.ndarray):
            rows = (self._data[:, ids].T if self.across else self._data[ids]).astype(np.float32)
            self.tensor.forget()
            return np.ascontiguousarray(rows)
        found = []  # elsewhere many small reads would take long
        for start in range(0, self.vocabulary, READ_ROWS):
            here = ids[(ids >= start) & (ids < start + READ_ROWS)]
            if len(here):
                found.append(self.block(start, start + READ_ROWS)[here - start].astype(np.float32))
        return np.concatenate(found)


@dataclass(frozen=True)
class Module:
    """A table by its name without the leaf: one tensor, or the several that quantisation makes of
    it.

    Attributes:
      name: of the tensor that holds the values, or the packed ones.
      tensor: that.
      stem: that it was found by; None if it was named by the user or by its leaf alone.
      packed: the word that tells that its values are packed; empty if they are not.
      across: whether it lies D×V by its name.
    """

    name: str
    tensor: Stored
    stem: Stem | None
    packed: str
    across: bool

    @property
    def ending(self) -> str:
        """The text of its stem; empty where it has none."""
        return self.stem.text if self.stem else ""


@dataclass(frozen=True)
class Ends:
    """What was found.

    Attributes:
      input, output: the tables; no output where one table serves both ends, or it is not stored.
      copies: other tables of the input, as encoder's and decoder's.
      bias: of the output.
      packed: "input", "output" -> the word that tells that it is packed, if it is.
      has_encoder: whether there is an encoder of text beside a decoder.
    """

    input: RowTable
    output: RowTable | None
    copies: tuple[RowTable, ...]
    bias: Stored | None
    packed: Mapping[str, str]
    has_encoder: bool


def find_ends(
    tensors: Mapping[str, Stored],
    vocabularies: Iterable[int],
    where: str,
    input_name: str | None = None,
    output_name: str | None = None,
) -> Ends:
    """The tables among a checkpoint's tensors.

    Args:
      vocabularies: sizes that a configuration beside it names.
      where: the checkpoint, for errors.
      input_name, output_name: tensors to take, whatever their names.

    Raises:
      UserError: where there is no input embedding, more than one that might be meant, a name that
        is not there, a table that is not 2-D, or two widths.
    """
    known = set(vocabularies)
    first = _named(tensors, input_name, "--input", where) or _only_input(tensors, known, where)
    copies = [] if input_name else _copies(tensors, first)
    _check_flat(first, where)
    table = _oriented(first, known)
    second = _named(tensors, output_name, "--output", where) or _only_output(
        tensors, table, first, where
    )
    output = None
    if second:
        _check_flat(second, where)
        output = _oriented(second, known | {table.vocabulary}, like=table)
        check(
            bool(first.packed or second.packed) or output.width == table.width,
            f"{where}: {first.name} has width {table.width} and {second.name} width {output.width}:"
            " widths differ, so one of them is no embedding of this model; name the tables by"
            " --input and --output",
        )
    bias = _bias(tensors, (output or table).vocabulary)
    packed = {
        role: found.packed
        for role, found in (("input", first), ("output", second))
        if found and found.packed
    }
    others = tuple(_oriented(copy, known) for copy in copies)
    return Ends(table, output, others, bias, packed, _has_text_encoder(tensors))


def _named(
    tensors: Mapping[str, Stored], name: str | None, option: str, where: str
) -> Module | None:
    if name is None:
        return None
    if name not in tensors:
        near = difflib.get_close_matches(name, tensors, 5, 0.3) or list(tensors)[:5]
        raise UserError(
            f"{option} {name!r}: {where} has no such tensor; nearest: {', '.join(map(repr, near))}"
        )
    tensor = tensors[name]
    stem, leaf = (
        stem_of(name, INPUTS) or stem_of(name, OUTPUTS) or (None, "".join(parts_of(name)[-1:]))
    )
    return Module(
        name,
        tensor,
        stem,
        _packed_word(tensor, leaf),
        leaf == "kernel" or bool(stem and stem.across),
    )


def _packed_word(tensor: Stored, leaf: str) -> str:
    if leaf in PACKED_LEAVES:
        return f"{leaf} ({PACKED_LEAVES[leaf]})"
    return "" if tensor.is_values else tensor.stored


def _modules(tensors: Mapping[str, Stored], stems: tuple[Stem, ...]) -> dict[str, Module]:
    """Modules of these stems, by their names without leaf."""
    found: dict[str, Module] = {}
    for name, tensor in tensors.items():
        match = stem_of(name, stems)
        if match is None or len(tensor.shape) == 0:
            continue
        stem, leaf = match
        owner = ".".join(parts_of(name)[:-1]) if leaf else ".".join(parts_of(name))
        module = Module(
            name, tensor, stem, _packed_word(tensor, leaf), leaf == "kernel" or stem.across
        )
        before = found.get(owner)
        if before is None or _holds_values(module) > _holds_values(before):
            found[owner] = module if before is None else _joined(module, before)
        else:
            found[owner] = _joined(before, module)
    return found


def _holds_values(module: Module) -> tuple[bool, int]:
    leaf = parts_of(module.name)[-1]
    return leaf not in PACKED_LEAVES or leaf in ("qweight", "weight_packed"), module.tensor.size


def _joined(main: Module, other: Module) -> Module:
    """Scales beside a table tell that it is quantised."""
    return Module(main.name, main.tensor, main.stem, main.packed or other.packed, main.across)


def _only_input(tensors: Mapping[str, Stored], known: set[int], where: str) -> Module:
    modules = list(_modules(tensors, INPUTS).values()) or _by_leaf(tensors, "embedding")
    if not modules:
        shown = ", ".join(repr(name) for name in _two_dimensional(tensors)[:SHOWN]) or "none"
        raise UserError(
            f"{where}: no input embedding is found by its name; give --input; tensors of two"
            f" dimensions: {shown}"
        )
    several = [module for module in modules if module.ending in ("shared", *ONE_OF_SEVERAL)]
    if len(several) == len(modules) > 1:
        return _first_of(several)
    fitting = [module for module in modules if known & set(module.tensor.shape)] or modules
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(repr(module.name) for module in fitting[:SHOWN])
    raise UserError(
        f"{where}: {len(fitting)} tables may be the input embedding; give one as --input: {names}"
    )


def _first_of(modules: Sequence[Module]) -> Module:
    """Of an encoder's and decoder's tables the shared one, else the decoder's, which an output
    would be tied to.
    """
    order = ("shared", "decoder.embed_tokens", "encoder.embed_tokens")
    return min(modules, key=lambda module: order.index(module.ending))


def _copies(tensors: Mapping[str, Stored], first: Module) -> list[Module]:
    if first.ending not in ("shared", *ONE_OF_SEVERAL):
        return []
    found = _modules(tensors, INPUTS).values()
    return [
        module
        for module in found
        if module.name != first.name
        and module.ending in ONE_OF_SEVERAL
        and module.tensor.shape == first.tensor.shape
    ]


def _two_dimensional(tensors: Mapping[str, Stored]) -> list[str]:
    return [name for name, tensor in tensors.items() if len(tensor.shape) == 2]


def _by_leaf(tensors: Mapping[str, Stored], leaf: str) -> list[Module]:
    """Flax's own names: tables whose leaf alone tells what they are; positions have none."""
    found = []
    for name in _two_dimensional(tensors):
        parts = parts_of(name)
        positions = any("pos" in part.lower() for part in parts)
        if parts[-1:] == [leaf] and is_weight(parts) and not positions:
            found.append(
                Module(
                    name, tensors[name], None, _packed_word(tensors[name], leaf), leaf == "kernel"
                )
            )
    return found


def _only_output(
    tensors: Mapping[str, Stored], table: RowTable, first: Module, where: str
) -> Module | None:
    modules = [
        module for module in _modules(tensors, OUTPUTS).values() if module.name != first.name
    ]
    sure = [module for module in modules if module.stem and not module.stem.loose]
    fitting = sure or [module for module in modules if _fits(module, table)]
    if not fitting and first.stem is None:
        fitting = [
            module
            for module in _by_leaf(tensors, "kernel")
            if module.tensor.shape == (table.width, table.vocabulary)
        ]
    if len(fitting) > 1:
        exact = [
            module
            for module in fitting
            if set(module.tensor.shape) == {table.vocabulary, table.width}
        ]
        fitting = exact or fitting
    check(
        len(fitting) < 2,
        f"{where}: {len(fitting)} tables may be the output embedding; give one as --output: "
        + ", ".join(repr(module.name) for module in fitting[:SHOWN]),
    )
    return fitting[0] if fitting else None


def _fits(module: Module, table: RowTable) -> bool:
    """Whether a table has the width of another and nearly its vocabulary, either way round."""
    shape = module.tensor.shape
    near = (
        max(PADDING, table.vocabulary // 20)
        if table.vocabulary > PADDING
        else table.vocabulary // 2
    )
    ways = (shape, shape[::-1]) if len(shape) == 2 else ()
    return any(
        width == table.width and abs(rows - table.vocabulary) <= near for rows, width in ways
    )


def _check_flat(module: Module, where: str) -> None:
    shape = module.tensor.shape
    check(
        len(shape) == 2,
        f"{where}: {module.name} has shape {shape}; expected a table that is 2-D, vocabulary by"
        " width",
    )
    check(
        min(shape) > 0,
        f"{where}: {module.name} has shape {shape}; expected a table with rows and columns",
    )


def _oriented(module: Module, known: set[int], like: RowTable | None = None) -> RowTable:
    """Which of the two dimensions is the vocabulary: by the width of the other table, else by the
    configuration, else by the name, else the larger one."""
    rows, columns = module.tensor.shape
    if rows == columns:
        return RowTable(module.tensor, module.across)
    if like and (rows == like.width) != (columns == like.width):
        return RowTable(module.tensor, rows == like.width)
    if (rows in known) != (columns in known):
        return RowTable(module.tensor, columns in known)
    return RowTable(module.tensor, module.across if module.stem else rows < columns)


def _has_text_encoder(tensors: Mapping[str, Stored]) -> bool:
    """Whether there is a decoder and an encoder of tokens: one of sounds or pictures has
    convolutions.
    """
    names = [parts_of(name) for name in tensors]
    both = all(any(side in parts[:3] for parts in names) for side in ("encoder", "decoder"))
    return both and not any(
        "encoder" in parts and any("conv" in part or "patch" in part for part in parts)
        for parts in names
    )


def _bias(tensors: Mapping[str, Stored], vocabulary: int) -> Stored | None:
    fitting = (
        tensor for tensor in tensors.values() if vocabulary in tensor.shape and tensor.is_values
    )
    return next((tensor for tensor in fitting if is_bias(tensor.name)), None)
