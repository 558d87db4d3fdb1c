"""Headers of safetensors and GGUF files, read as if somebody had made them to do harm. NumPy and
the standard library only.

Nothing is allocated by what a file claims: every length is held against the file before a byte is
read. A header that is not what it must be raises `UserError`, whatever is wrong with it; nothing is
unpickled, nothing is executed.
"""

import json
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from jaxtie.config import UserError, check

HEADER_LIMIT = 100_000_000  # bytes; the same as the safetensors library's
SAFETENSORS_DTYPES = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "F64": np.float64,
    "C64": np.complex64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}
PACKED_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}  # of one value, where no NumPy type has them
GGUF_DTYPES = {
    0: np.float32,
    1: np.float16,
    24: np.int8,
    25: np.int16,
    26: np.int32,
    27: np.int64,
    28: np.float64,
}
GGUF_DTYPES[30] = ml_dtypes.bfloat16  # the others are blocks of quantised values
GGUF_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
GGUF_STRING, GGUF_ARRAY = 8, 9
LONGEST_VALUE = 1024  # of a GGUF's strings, what is kept


@dataclass(frozen=True)
class Entry:
    """A tensor as a header declares it.

    Attributes:
      name, shape: as declared; of a GGUF with the slowest dimension first, as NumPy has it.
      dtype: of its values; None where they are packed in a way that NumPy has no type for.
      stored: the file's own word for the type.
      begin, end: bytes from the start of the file; `end` is `begin` where the file does not say.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype | None
    stored: str
    begin: int
    end: int


def read_safetensors(path: Path) -> list[Entry]:
    """What a safetensors file's header declares.

    Raises:
      UserError: where the file is truncated, the header above 100 MB, no JSON, or not of the
        format, or where tensors overlap, leave holes or run past the end.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        check(
            size >= 8,
            f"{path}: truncated: {size} bytes are too few for a safetensors header; download it"
            " again",
        )
        (length,) = struct.unpack("<Q", file.read(8))
        limit = f"{HEADER_LIMIT // 10**6} MB"
        check(
            length <= HEADER_LIMIT,
            f"{path}: a header of {length:,} bytes is above {limit}: no safetensors file",
        )
        check(
            8 + length <= size,
            f"{path}: truncated: the header alone takes {length:,} of {size:,} bytes; download it"
            " again",
        )
        header = _parse_json(path, file.read(length))
    metadata = header.pop("__metadata__", {})
    check(
        isinstance(metadata, dict),
        f"{path}: the header's __metadata__ is no table of names: no safetensors file",
    )
    entries = [_entry(path, name, value, 8 + length, size) for name, value in header.items()]
    _check_laid_out(path, entries, 8 + length, size)
    return entries


def _parse_json(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name stands twice")
        return found

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    try:
        header = json.loads(text.decode(), object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: its header cannot be read ({reason_of(error)}): no safetensors file"
        ) from None
    check(isinstance(header, dict), f"{path}: its header is no table of names: no safetensors file")
    return header


def reason_of(error: Exception) -> str:
    """What an error says, in one line and not too long."""
    return " ".join(str(error).split())[:120]


def _shown(name: str) -> str:
    return repr(name[:80])


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _entry(path: Path, name: str, value: Any, start: int, size: int) -> Entry:
    """One tensor of a safetensors header; `start`: of the data."""
    what = f"{path}: tensor {_shown(name)}"
    check(isinstance(value, dict), f"{what}: is no table of dtype, shape and data_offsets")
    stored, shape, offsets = (value.get(key) for key in ("dtype", "shape", "data_offsets"))
    known = isinstance(stored, str) and (stored in SAFETENSORS_DTYPES or stored in PACKED_BITS)
    check(
        known,
        f"{what}: dtype {_shown(str(stored))} is unknown; expected one of"
        f" {', '.join(SAFETENSORS_DTYPES)}",
    )
    good = isinstance(shape, list) and len(shape) <= 32 and all(map(_is_count, shape))
    check(good, f"{what}: its shape is no list of sizes")
    check(
        isinstance(offsets, list) and len(offsets) == 2 and all(map(_is_count, offsets)),
        f"{what}: bad data_offsets",
    )
    begin, end = offsets
    dtype = np.dtype(SAFETENSORS_DTYPES[stored]) if stored in SAFETENSORS_DTYPES else None
    bits = PACKED_BITS[stored] if dtype is None else 8 * dtype.itemsize
    needed = math.prod(shape) * bits
    check(begin <= end, f"{what}: data_offsets {begin:,} to {end:,} go backwards")
    check(
        start + end <= size, f"{what}: runs past the end of the file: truncated; download it again"
    )
    check(
        8 * (end - begin) == needed,
        f"{what}: {end - begin:,} bytes do not hold {stored} of shape {shape}",
    )
    return Entry(name, tuple(shape), dtype, stored, start + begin, start + end)


def _check_laid_out(path: Path, entries: Iterable[Entry], start: int, size: int) -> None:
    """UserError unless the tensors follow each other without overlap or hole, to the end of the
    file.
    """
    at, before = start, "the header"
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        check(
            entry.begin >= at,
            f"{path}: tensors {_shown(before)} and {_shown(entry.name)} overlap: no safetensors"
            " file",
        )
        check(
            entry.begin == at,
            f"{path}: bytes before tensor {_shown(entry.name)} belong to none: no safetensors file",
        )
        at, before = entry.end, entry.name
    check(
        at == size,
        f"{path}: {size - at:,} bytes after the last tensor belong to none: damaged, or no"
        " safetensors file",
    )


class _Bounded:
    """A file from which no more can be read than it holds."""

    def __init__(self, path: Path, file: BinaryIO):
        self.path, self.file, self.left = path, file, path.stat().st_size

    def take(self, count: int, keep: int | None = None) -> bytes:
        """The next `count` bytes, of which the first `keep` are returned; UserError where there are
        fewer.
        """
        check(
            count <= self.left,
            f"{self.path}: truncated: its GGUF header claims more than the file has; download it"
            " again",
        )
        self.left -= count
        kept = self.file.read(count if keep is None else min(count, keep))
        self.file.seek(count - len(kept), 1)
        return kept

    def unpack(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        return self.take(self.unpack("<Q"), LONGEST_VALUE).decode(errors="replace")

    def count(self, least: int) -> int:
        """A number of things of at least so many bytes each."""
        number = self.unpack("<Q")
        self.require(number * least)
        return number

    def require(self, count: int) -> None:
        check(
            count <= self.left,
            f"{self.path}: truncated: its GGUF header claims more than the file has; download it"
            " again",
        )


def read_gguf(path: Path) -> tuple[list[Entry], dict[str, Any]]:
    """A GGUF file's tensors and its metadata; of arrays only the lengths.

    A quantised tensor has no dtype.

    Raises:
      UserError: where the file is truncated, is no GGUF of version 2 or 3, or a tensor runs past
        its end.
    """
    with path.open("rb") as raw:
        file = _Bounded(path, raw)
        check(file.take(4) == b"GGUF", f"{path}: does not begin with GGUF; no GGUF file")
        version = file.unpack("<I")
        check(version in (2, 3), f"{path}: GGUF version {version}; expected 2 or 3, little-endian")
        tensors, pairs = file.count(24), file.count(12)
        metadata = {}
        for _ in range(pairs):
            name = file.text()
            metadata[name] = _gguf_value(file, file.unpack("<I"), 0)
        entries = [_gguf_entry(file) for _ in range(tensors)]
        at, size = raw.tell(), path.stat().st_size
    alignment = metadata.get("general.alignment", 32)
    good = isinstance(alignment, int) and 0 < alignment <= 2**20
    check(good, f"{path}: general.alignment is {alignment!r}; no GGUF file")
    start = -(-at // alignment) * alignment
    return [_placed(path, entry, start, size) for entry in entries], metadata


def _gguf_value(file: _Bounded, kind: int, depth: int) -> Any:
    if kind in GGUF_SCALARS:
        return file.unpack(GGUF_SCALARS[kind])
    if kind == GGUF_STRING:
        return file.text()
    check(kind == GGUF_ARRAY and depth < 4, f"{file.path}: metadata of type {kind}; no GGUF file")
    inner = file.unpack("<I")
    if inner in GGUF_SCALARS:
        width = struct.calcsize(GGUF_SCALARS[inner])
        number = file.count(width)
        file.take(number * width, 0)
        return number
    number = file.count(8)
    for _ in range(number):
        _gguf_value(file, inner, depth + 1)
    return number


def _gguf_entry(file: _Bounded) -> Entry:
    name, rank = file.text(), file.unpack("<I")
    check(rank <= 4, f"{file.path}: tensor {_shown(name)} has {rank} dimensions; no GGUF file")
    shape = tuple(file.unpack("<Q") for _ in range(rank))[::-1]
    kind, offset = file.unpack("<I"), file.unpack("<Q")
    dtype = np.dtype(GGUF_DTYPES[kind]) if kind in GGUF_DTYPES else None
    return Entry(
        name, shape, dtype, f"GGML type {kind}" if dtype is None else dtype.name, offset, offset
    )


def _placed(path: Path, entry: Entry, start: int, size: int) -> Entry:
    length = 0 if entry.dtype is None else math.prod(entry.shape) * entry.dtype.itemsize
    begin = start + entry.begin
    inside = begin + length <= size
    check(
        inside,
        f"{path}: tensor {_shown(entry.name)} runs past the end of the file: truncated; download it"
        " again",
    )
    return Entry(entry.name, entry.shape, entry.dtype, entry.stored, begin, begin + length)
