"""Tensors where they lie: in safetensors and GGUF files, .npz, Keras .weights.h5, Orbax folders.
Nothing is read before it is asked for, and then a block of rows at a time; files are mapped, and
what was looked at is given back.
"""

import contextlib
import lzma
import math
import mmap
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import ml_dtypes
import numpy as np

from jaxtie.audit.headers import Entry, read_gguf, read_safetensors, reason_of
from jaxtie.config import UserError, check

CACHE = 2**30  # bytes of decoded chunks that are kept
UNPACKED_LIMIT = 4 * 2**30  # bytes of a compressed array, which cannot be mapped
# eight bits need a scale
VALUES = tuple(map(np.dtype, (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)))
LFS = b"version https://git-lfs"
NPY_VERSIONS = 3  # of .npy headers that there are
NO_ARCHIVE = (  # what zipfile, its decompressors and NumPy's reader of headers raise
    zipfile.BadZipFile,
    ValueError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    zlib.error,
    lzma.LZMAError,
    tokenize.TokenError,
    SyntaxError,
)


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint.

    Attributes:
      name: as the checkpoint has it.
      shape: slowest dimension first.
      dtype: of its values, or None where they are packed in a way that NumPy has no type for.
      stored: the type in the format's words.
      file: that holds it.
      open: what can be indexed by rows and columns; it reads no more than is asked for.
      forget: gives memory back that reading took.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype | None
    stored: str
    file: Path
    open: Callable[[], Any] = field(repr=False, compare=False)
    forget: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    @property
    def is_values(self) -> bool:
        """Whether its entries are numbers that can be compared; quantised and packed ones are
        not.
        """
        return self.dtype is not None and self.dtype in VALUES

    @property
    def size(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * (0 if self.dtype is None else self.dtype.itemsize)


class _Mapped:
    """A file, mapped when a tensor of it is first opened."""

    def __init__(self, path: Path):
        self.path = path
        self._map: mmap.mmap | None = None

    def view(self, entry: Entry) -> np.ndarray:
        if self._map is None:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.ndarray(entry.shape, entry.dtype, self._map, entry.begin)

    def forget(self) -> None:
        # Pages of a mapped file count as this process's memory until they are given back; the
        # system keeps them cached.
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def stored(self, entry: Entry) -> Stored:
        def open_it() -> np.ndarray:
            return self.view(entry)

        return Stored(
            entry.name, entry.shape, entry.dtype, entry.stored, self.path, open_it, self.forget
        )


def from_safetensors(path: Path) -> list[Stored]:
    """The tensors of a safetensors file; see `jaxtie.audit.headers.read_safetensors` for errors."""
    refuse_pointer(path)
    return list(map(_Mapped(path).stored, read_safetensors(path)))


def from_gguf(path: Path) -> tuple[list[Stored], dict[str, Any]]:
    """The tensors of a GGUF file, and its metadata; see `jaxtie.audit.headers.read_gguf` for
    errors.
    """
    refuse_pointer(path)
    entries, metadata = read_gguf(path)
    return list(map(_Mapped(path).stored, entries)), metadata


def refuse_pointer(path: Path) -> None:
    """UserError where a file is only the pointer that Git leaves for a large one."""
    with path.open("rb") as file:
        pointer = file.read(len(LFS)) == LFS
    check(
        not pointer,
        f"{path}: is a Git LFS pointer, not the file itself; fetch it with git lfs pull",
    )


def from_npz(path: Path) -> list[Stored]:
    """The arrays of an .npz file; those that are not compressed are mapped.

    Raises:
      UserError: where it is no such file, is truncated, or an array holds Python objects, which
        would have to be unpickled.
    """
    refuse_pointer(path)
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
            return [
                _from_member(path, archive, raw, info)
                for info in archive.infolist()
                if info.filename.endswith(".npy")
            ]
    except NO_ARCHIVE as error:
        if isinstance(error, UserError):
            raise
        raise _damaged_archive(path, error) from None


def _damaged_archive(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: cannot be read as .npz: truncated or damaged ({reason_of(error)})")


def _from_member(
    path: Path, archive: zipfile.ZipFile, raw: BinaryIO, info: zipfile.ZipInfo
) -> Stored:
    name = info.filename.removesuffix(".npy")
    with archive.open(info) as member:
        shape, columns_first, dtype = _npy_header(member)
        header = member.tell()
    check(
        not dtype.hasobject,
        f"{path}: array {name!r} holds Python objects (a pickle), which are not read",
    )
    needed = math.prod(shape) * dtype.itemsize
    check(info.file_size == header + needed, f"{path}: array {name!r} is truncated")
    # as NumPy writes what it has no name for
    dtype = np.dtype(ml_dtypes.bfloat16) if dtype == np.dtype("V2") else dtype
    if info.compress_type == zipfile.ZIP_STORED and not columns_first:
        raw.seek(info.header_offset + 26)
        name_length, extra = (int.from_bytes(raw.read(2), "little") for _ in range(2))
        begin = info.header_offset + 30 + name_length + extra + header
        return _Mapped(path).stored(Entry(name, shape, dtype, str(dtype), begin, begin + needed))
    check(
        needed <= UNPACKED_LIMIT,
        f"{path}: array {name!r} takes {needed:,} bytes when unpacked; save it by numpy.savez",
    )

    def unpack() -> np.ndarray:
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return arrays[name].view(dtype)
        except NO_ARCHIVE as error:
            raise _damaged_archive(path, error) from None

    return Stored(name, shape, dtype, str(dtype), path, unpack)


def _npy_header(member: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(member)
    read = (
        np.lib.format.read_array_header_1_0
        if version[0] == 1
        else np.lib.format.read_array_header_2_0
    )
    check(version[0] <= NPY_VERSIONS, f"an array is of .npy version {version[0]}, which is unknown")
    shape, columns_first, dtype = read(member)
    return shape, columns_first and len(shape) > 1, dtype


def from_keras(path: Path) -> list[Stored]:
    """The datasets of a Keras `.weights.h5` file.

    Raises:
      UserError: where it is no HDF5 file, is truncated, or points to other files.
    """
    import h5py  # heavy

    refuse_pointer(path)
    found: list[Stored] = []

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset):
            elsewhere = node.external or node.is_virtual
            check(
                not elsewhere,
                f"{path}: dataset {name!r} points to another file, which is not followed",
            )
            dtype = node.dtype if node.dtype.kind in "fiub" else None
            found.append(
                Stored(
                    name,
                    node.shape or (),
                    dtype,
                    str(node.dtype),
                    path,
                    lambda: _Dataset(node, path),
                )
            )

    try:
        # it stays open as long as its datasets; links elsewhere are not visited
        h5py.File(path, "r").visititems(visit)
    except (OSError, RuntimeError, KeyError) as error:
        raise _damaged_hdf5(path, error) from None
    return found


def _damaged_hdf5(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: cannot be read as HDF5: truncated or damaged ({reason_of(error)})")


class _Dataset:
    """A dataset of an HDF5 file; what cannot be read of it is said of the file."""

    def __init__(self, dataset: Any, path: Path):
        self._dataset, self._path = dataset, path

    def __getitem__(self, at: Any) -> np.ndarray:
        try:
            return self._dataset[at]
        except (OSError, RuntimeError) as error:
            raise _damaged_hdf5(self._path, error) from None


def is_orbax(folder: Path) -> bool:
    """Whether a folder holds a tree of arrays as Orbax writes it."""
    return (folder / "manifest.ocdbt").is_file() or (folder / "_METADATA").is_file()


class _Stacked:
    """Tables of several members behind each other as one, (members·V, D); tables of runs are
    small.
    """

    def __init__(self, store: Any, folder: Path):
        with _readable(folder):
            self._rows = np.asarray(store.read().result())
        self._rows = self._rows.reshape(-1, self._rows.shape[-1])

    def __getitem__(self, at: Any) -> np.ndarray:
        return self._rows[at]


class _Sliced:
    """An array in TensorStore that gives NumPy arrays."""

    def __init__(self, store: Any, folder: Path):
        self._store, self._folder = store, folder

    def __getitem__(self, at: Any) -> np.ndarray:
        with _readable(self._folder):
            return np.asarray(self._store[at].read().result())


def from_orbax(folder: Path, *, stacked: bool = False) -> list[Stored]:
    """The arrays below an Orbax folder, by TensorStore.

    Args:
      stacked: tables are a run's, (members, V, D), and are to be shown as (members·V, D).

    Raises:
      UserError: where it cannot be read.
    """
    import tensorstore as ts  # heavy

    base = f"file://{quote(str(folder.absolute()))}/"
    inner = {"driver": "ocdbt", "base": base} if (folder / "manifest.ocdbt").is_file() else base
    with _readable(folder):
        names = ts.KvStore.open(inner).result().list().result()
    # A chunk is decoded whole, and may hold many blocks of rows.
    context = ts.Context({"cache_pool": {"total_bytes_limit": CACHE}})
    found = []
    for key in sorted(name.decode(errors="replace") for name in names):
        name, _, last = key.rpartition("/")
        if last in (".zarray", "zarr.json"):
            driver = "zarr" if last == ".zarray" else "zarr3"
            with _readable(folder):
                kvstore = (
                    {**inner, "path": f"{name}/"} if isinstance(inner, dict) else f"{base}{name}/"
                )
                store = ts.open({"driver": driver, "kvstore": kvstore}, context=context).result()
                found.append(_from_store(folder, name, store, stacked))
    check(
        bool(found),
        f"{folder}: holds no arrays that Orbax wrote; give the folder of a checkpoint's item",
    )
    return found


def _from_store(folder: Path, name: str, store: Any, stacked: bool) -> Stored:
    dtype, shape = store.dtype.numpy_dtype, tuple(store.shape)
    pile = stacked and len(shape) == 3
    shape = (shape[0] * shape[1], shape[2]) if pile else shape
    return Stored(
        name,
        shape,
        dtype,
        str(dtype),
        folder,
        lambda: (_Stacked if pile else _Sliced)(store, folder),
    )


@contextlib.contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError, KeyError) as error:
        raise UserError(
            f"{folder}: cannot be read as an Orbax checkpoint: damaged ({reason_of(error)})"
        ) from None
