"""Open tensors lazily, by rows, in safetensors, GGUF, .npz, Keras .weights.h5 and Orbax files.

Files are memory-mapped where the format allows it.
"""

import contextlib
import functools
import math
import mmap
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import ml_dtypes
import numpy as np

from jaxtie.audit.headers import (
    MOST_TENSORS,
    TOO_MANY,
    Entry,
    is_count,
    parse_json,
    read_gguf,
    read_safetensors,
    reason_of,
)
from jaxtie.config import UserError, check

CACHE = 2**30  # bytes of decoded TensorStore chunks that are kept
UNPACKED_LIMIT = 4 * 2**30  # bytes of a compressed array, which cannot be mapped
# A file of few bytes can declare an array of very many: at most this number of bytes, or this
# multiple of the stored ones, is believed.
BELIEVED_BYTES, BELIEVED_RATIO = 2**28, 2000
GROUP_DEPTH = 64  # of an HDF5 file
KERAS_LIMIT = 2**26  # bytes of the configuration in a .keras file
# Types that can be compared; eight bits need a scale.
VALUES = tuple(map(np.dtype, (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)))
LFS = b"version https://git-lfs"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]  # slowest dimension first
    dtype: np.dtype | None  # None if NumPy has no such type, as of packed values
    stored: str  # the type in the format's words
    file: Path
    read: Callable[[Any], np.ndarray]  # returns the rows and columns of an index
    bytes_of_row: int = 0  # if `read` returns rows of packed bytes instead

    @property
    def is_values(self) -> bool:
        """Whether its entries can be compared: not if they are quantised or packed."""
        return self.dtype is not None and self.dtype in VALUES

    @property
    def size(self) -> int:
        """Bytes of its values; 0 if they are packed."""
        return math.prod(self.shape) * (0 if self.dtype is None else self.dtype.itemsize)


Stored = tuple[list[StoredTensor], dict[str, Any]]  # the tensors and the metadata of a file


@contextlib.contextmanager
def _readable(path: Path, format_name: str) -> Iterator[None]:
    """Turn the errors of a dozen types that libraries raise for damaged files into a UserError."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"{path}: cannot be read as {format_name}: truncated or damaged ({reason_of(error)})"
        ) from None


def _mapped(path: Path) -> Callable[[Entry], StoredTensor]:
    """Return a function that makes tensors of a file, which is mapped when one is first read."""

    @functools.cache
    def mapped() -> mmap.mmap:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(entry: Entry, shape: tuple[int, ...], at: Any) -> np.ndarray:
        rows = np.ndarray(shape, entry.dtype or np.uint8, mapped(), entry.begin)[at].copy()
        # Pages of a mapped file count as this process's memory until they are given back; the
        # system keeps them cached.
        if hasattr(mmap, "MADV_DONTNEED"):
            mapped().madvise(mmap.MADV_DONTNEED)
        return rows

    def tensor(entry: Entry) -> StoredTensor:
        shape, row = entry.shape, 0
        if entry.dtype is None and len(shape) == 2 and shape[0]:
            row = (entry.end - entry.begin) // shape[0]
            shape = (shape[0], row)
        own = functools.partial(read, entry, shape)
        return StoredTensor(entry.name, entry.shape, entry.dtype, entry.stored, path, own, row)

    return tensor


def refuse_pointer(path: Path) -> None:
    """Raise UserError if a file is only the pointer that Git LFS leaves for a large one."""
    with path.open("rb") as file:
        is_pointer = file.read(len(LFS)) == LFS
    text = f"{path}: is a Git LFS pointer, not the file itself; fetch it with git lfs pull"
    check(not is_pointer, text)


def from_mapped(path: Path) -> Stored:
    """Read a safetensors or GGUF file; for errors see `headers`."""
    entries, metadata = (read_gguf if path.suffix == ".gguf" else read_safetensors)(path)
    return list(map(_mapped(path), entries)), metadata


def from_npz(path: Path) -> Stored:
    """Return the arrays of an .npz file; those that are not compressed are mapped."""
    with _readable(path, ".npz"), zipfile.ZipFile(path) as archive, path.open("rb") as raw:
        check(len(archive.infolist()) <= MOST_TENSORS, f"{path}: {TOO_MANY}")
        return [
            _from_member(path, archive, raw, info)
            for info in archive.infolist()
            if info.filename.endswith(".npy")
        ], {}


def _from_member(
    path: Path, archive: zipfile.ZipFile, raw: BinaryIO, info: zipfile.ZipInfo
) -> StoredTensor:
    name = info.filename.removesuffix(".npy")
    with archive.open(info) as member:
        shape, columns_first, dtype = _npy_header(member)
        header_size = member.tell()
    what = f"{path}: array {name!r}"
    check(not dtype.hasobject, f"{what} holds Python objects (a pickle), which are not read")
    check(all(map(is_count, shape)), f"{what} has the shape {shape}: damaged")
    size = math.prod(shape) * dtype.itemsize
    check(info.file_size == header_size + size, f"{what} is truncated")
    if dtype == np.dtype("V2"):  # NumPy has no name for bfloat16 and writes this
        dtype = np.dtype(ml_dtypes.bfloat16)
    if info.compress_type == zipfile.ZIP_STORED and not columns_first:
        raw.seek(info.header_offset + 26)
        name_length, extra = (int.from_bytes(raw.read(2), "little") for _ in range(2))
        begin = info.header_offset + 30 + name_length + extra + header_size
        check(begin + size <= path.stat().st_size, f"{what} is truncated")
        return _mapped(path)(Entry(name, shape, dtype, str(dtype), begin, begin + size))
    text = f"{what} takes {size:,} bytes when unpacked; save it with numpy.savez"
    check(size <= UNPACKED_LIMIT, text)

    @functools.cache
    def unpack() -> np.ndarray:
        with _readable(path, ".npz"), np.load(path, allow_pickle=False) as arrays:
            return arrays[name].view(dtype)

    return StoredTensor(name, shape, dtype, str(dtype), path, lambda at: unpack()[at])


def _npy_header(member: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    major, _ = np.lib.format.read_magic(member)
    if major > 3:
        raise ValueError(f"an array has .npy version {major}, which is unknown")
    one = major == 1
    read = np.lib.format.read_array_header_1_0 if one else np.lib.format.read_array_header_2_0
    shape, columns_first, dtype = read(member)
    return shape, columns_first and len(shape) > 1, dtype


def from_keras_archive(path: Path) -> Stored:
    """Return the datasets in a `.keras` file, and its configuration as metadata."""
    with _readable(path, ".keras"):
        archive = zipfile.ZipFile(path)  # stays open as long as the datasets in it
        weights = archive.getinfo("model.weights.h5")
        is_plain = weights.compress_type == zipfile.ZIP_STORED
        check(is_plain, f"{path}: its weights are compressed; save it with Keras")
        size = archive.getinfo("config.json").file_size
        check(size <= KERAS_LIMIT, f"{path}: its config.json has {size:,} bytes; not a model")
        config = parse_json(
            archive.read("config.json"), f"{path}: its config.json cannot be read", "save it again"
        )
        return from_keras(path, archive.open(weights))[0], config


def from_keras(path: Path, content: Any = None) -> Stored:
    """Return the datasets of an HDF5 file, as Keras writes it, under all their names.

    `content`: the open file, if it is part of the one at `path`.
    """
    import h5py  # heavy

    found: list[StoredTensor] = []
    with _readable(path, "HDF5"):
        file = h5py.File(content or path, "r")  # stays open as long as its datasets
        waiting, groups = [("", file, 0)], set()
        while waiting:
            name, node, depth = waiting.pop()
            check(len(found) <= MOST_TENSORS, f"{path}: {TOO_MANY}")
            if isinstance(node, h5py.Group):
                address = h5py.h5o.get_info(node.id).addr
                is_new = depth <= GROUP_DEPTH and address not in groups
                check(is_new, f"{path}: nests or repeats groups without end; not a checkpoint")
                groups.add(address)
                for key in reversed(list(node)):
                    text = key.decode(errors="replace") if isinstance(key, bytes) else key
                    is_hard = isinstance(node.get(key, getlink=True), h5py.HardLink)
                    check(is_hard, f"{path}: {text!r} is a link, which is not followed")
                    waiting.append((f"{name}/{text}" if name else text, node[key], depth + 1))
            elif isinstance(node, h5py.Dataset):
                found.append(_from_dataset(path, name, node))
    return found, {}


def _from_dataset(path: Path, name: str, node: Any) -> StoredTensor:
    is_own = not (node.external or node.is_virtual)
    check(is_own, f"{path}: dataset {name!r} points to another file, which is not followed")
    # Keras writes bfloat16 as opaque bytes, with its name.
    is_bfloat16 = node.dtype == np.dtype("V2") and node.attrs.get("dtype") == "bfloat16"
    own = np.dtype(ml_dtypes.bfloat16) if is_bfloat16 else node.dtype
    dtype = own if is_bfloat16 or own.kind in "fiub" else None
    shape = node.shape or ()
    size = math.prod(shape) * node.dtype.itemsize
    _check_believable(path, name, size, node.id.get_storage_size())
    read = _readable(path, "HDF5")(lambda at: node[at].view(own))
    return StoredTensor(name, shape, dtype, str(own), path, read)


def _check_believable(path: Path, name: str, declared: int, stored: int) -> None:
    """Raise UserError if an array declares far more bytes than are stored."""
    is_likely = declared <= max(BELIEVED_BYTES, BELIEVED_RATIO * stored)
    text = f"{path}: {name!r} declares {declared:,} bytes, but {stored:,} are stored: damaged"
    check(is_likely, text)


def is_orbax(folder: Path) -> bool:
    """Return whether a folder holds a tree of arrays as Orbax, or Levanter, writes it."""
    if any((folder / name).is_file() for name in ("manifest.ocdbt", "_METADATA")):
        return True
    is_levanter = (folder / "metadata.json").is_file()
    return is_levanter and any((folder / "model").rglob(".zarray"))


def from_orbax(folder: Path) -> list[StoredTensor]:
    """Return the arrays below the folder of a checkpoint's item; UserError if there are none."""
    import tensorstore as ts  # heavy

    base = f"file://{quote(str(folder.absolute()))}/"
    is_ocdbt = (folder / "manifest.ocdbt").is_file()

    def kvstore(path: str) -> Any:
        return {"driver": "ocdbt", "base": base, "path": path} if is_ocdbt else base + path

    stored = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    # A chunk is decoded whole and may hold many blocks of rows.
    context = ts.Context({"cache_pool": {"total_bytes_limit": CACHE}})
    found = []
    with _readable(folder, "an Orbax checkpoint"):
        whole = ts.KvStore.open(kvstore("")).result()
        for raw in sorted(whole.list().result()):
            name, _, last = raw.decode(errors="replace").rpartition("/")
            if driver := {".zarray": "zarr", "zarr.json": "zarr3"}.get(last):
                # TensorStore overflows its stack at JSON that is nested too deeply.
                what = f"{folder}: the metadata of {name!r} cannot be read"
                parse_json(whole.read(raw).result().value, what, "save it again")
                spec = {"driver": driver, "kvstore": kvstore(f"{name}/")}
                store = ts.open(spec, context=context).result()
                chunk = [size or 1 for size in store.chunk_layout.read_chunk.shape or ()]
                most = max(math.prod(store.shape), math.prod(chunk))  # a chunk is decoded whole
                size = most * store.dtype.numpy_dtype.itemsize
                _check_believable(folder, name, size, stored)
                found.append(_from_store(folder, name, store))
    text = f"{folder}: holds no arrays that Orbax wrote; give the folder of a checkpoint's item"
    check(bool(found), text)
    return found


def _from_store(folder: Path, name: str, store: Any) -> StoredTensor:
    dtype = store.dtype.numpy_dtype
    read = _readable(folder, "an Orbax checkpoint")(lambda at: store[at].read().result())
    return StoredTensor(name, tuple(store.shape), dtype, str(dtype), folder, read)
