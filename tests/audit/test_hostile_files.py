"""Unreadable files end with one line and status 2; nothing is executed, and memory stays small."""

import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts
from checkpoints import (
    VOCABULARY,
    WIDTH,
    A,
    B,
    E,
    H,
    header_of,
    run_command,
    write_folder,
    write_gguf,
    write_safetensors,
    write_shards,
)
from commands import PATIENCE

from jaxtie.audit import command
from jaxtie.audit.audit import audit
from jaxtie.audit.headers import HEADER_LIMIT
from jaxtie.config import UserError

BOTH = {E: A, H: B}
SIZE = A.nbytes
F32 = {E: A.astype(np.float32), H: B.astype(np.float32)}
ROOT = Path(__file__).parents[2]
INDEX = "model.safetensors.index.json"
SECOND_SHARD = "model-00002-of-00002.safetensors"
Make = Callable[[Path], Path]  # makes something in a folder and returns what to audit


def pipe(name: str, *, in_folder: bool = False) -> Make:
    def make(path: Path) -> Path:
        os.mkfifo(path / name)
        return path if in_folder else path / name

    return make


def distributed(folder: str, given: str) -> Make:
    """Write what torch.distributed.checkpoint does, and what Lightning adds."""

    def make(path: Path) -> Path:
        (path / folder).mkdir(parents=True)
        for name in ("__0_0.distcp", ".metadata", "meta.pt"):
            (path / folder / name).write_bytes(PICKLE)
        return path / given

    return make


class Loud:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("unpickled"),)


PICKLE = pickle.dumps({"embed_tokens.weight": Loud()})


def written(name: str, content: bytes) -> Make:
    def make(path: Path) -> Path:
        (path / name).write_bytes(content)
        return path / name

    return make


def with_length(text: bytes, length: int | None = None) -> Make:
    """Make a safetensors file of a header alone, which claims a length."""
    size = len(text) if length is None else length
    return written("model.safetensors", struct.pack("<Q", size) + text)


def folder_with(name: str, content: bytes) -> Make:
    return lambda path: written(name, content)(path).parent


def with_header(name: str, **changes) -> Make:
    """Make a safetensors file with other values in the header of one tensor, or without it."""

    def make(path: Path) -> Path:
        header = header_of(BOTH)
        entry = header.pop(name)
        if changes:
            header[name] = entry | changes
        return write_safetensors(path / "model.safetensors", BOTH, json.dumps(header).encode())

    return make


def with_tensors(**tensors: np.ndarray) -> Make:
    return lambda path: write_safetensors(path / "model.safetensors", tensors)


def without(*names: str) -> Make:
    """Make a sharded checkpoint and remove files of it."""

    def make(path: Path) -> Path:
        write_shards(path, [{E: A}, {H: B}])
        for name in names:
            (path / name).unlink()
        return path

    return make


def with_config(text: str) -> Make:
    def make(path: Path) -> Path:
        write_folder(path, BOTH)
        (path / "config.json").write_text(text)
        return path

    return make


def changed(make: Make, change: Callable[[bytes], bytes]) -> Make:
    def make_changed(path: Path) -> Path:
        file = make(path)
        file.write_bytes(change(file.read_bytes()))
        return file

    return make_changed


def cut(make: Make, end: int) -> Make:
    """Make a file and cut its end off."""
    return changed(make, lambda content: content[:end])


def damaged(make: Make) -> Make:
    """Make a file and overwrite its middle, where the values are, past all headers."""

    def overwrite_third(content: bytes) -> bytes:
        third = len(content) // 3
        return content[:third] + bytes(third) + content[2 * third :]

    return changed(make, overwrite_third)


def npz(save: Callable = np.savez, **arrays: np.ndarray) -> Make:
    def make(path: Path) -> Path:
        save(path / "tables.npz", **arrays)
        return path / "tables.npz"

    return make


def npz_with_member(content: bytes) -> Make:
    def make(path: Path) -> Path:
        with zipfile.ZipFile(path / "tables.npz", "w") as archive:
            archive.writestr("embed_tokens.npy", content)
        return path / "tables.npz"

    return make


def large_npy_header() -> bytes:
    """Return the header of an array that is larger than the file."""
    content = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**9, 64)}
    np.lib.format.write_array_header_1_0(content, header)
    return content.getvalue()


def keras(**options) -> Make:
    def make(path: Path) -> Path:
        with h5py.File(path / "model.weights.h5", "w") as file:
            file.create_dataset("token_embedding/vars/0", **options)
        return path / "model.weights.h5"

    return make


def npz_with_claims(rows: int) -> Make:
    """Make an .npz file whose directory claims the bytes of an array of so many rows."""

    def make(path: Path) -> Path:
        content = io.BytesIO()
        np.lib.format.write_array(content, F32[E])
        text = content.getvalue().replace(f"({VOCABULARY}, ".encode(), f"({rows}, ".encode())
        file = npz_with_member(text)(path)
        size = len(text).to_bytes(4, "little")
        more = (len(text) + (rows - VOCABULARY) * WIDTH * 4).to_bytes(4, "little")
        return changed(lambda _: file, lambda whole: whole.replace(size, more))(path)

    return make


def npy_of_shape(shape: str) -> bytes:
    """Return an array whose header gives a shape as text."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + bytes(64)


def hdf5(build: Callable[[h5py.File], object]) -> Make:
    """Make an HDF5 file with an input embedding and what `build` adds."""

    def make(path: Path) -> Path:
        with h5py.File(path / "elsewhere.h5", "w") as file:
            file["b"] = F32[H]
        with h5py.File(path / "model.weights.h5", "w") as file:
            file["embed_tokens/weight"] = F32[E]
            build(file)
        return path / "model.weights.h5"

    return make


def linked(target: object, name: str = "lm_head") -> Make:
    def build(file: h5py.File) -> None:
        file[name] = target

    return hdf5(build)


def nested(file: h5py.File) -> None:
    for _ in range(3000):
        file = file.create_group("a")


def repeated(file: h5py.File) -> None:
    """Add groups that each hold the next one twice: 2^60 paths."""
    group = file.create_group("g")
    for _ in range(60):
        group["a"] = file.create_group(None)
        group["b"] = group["a"]
        group = group["a"]


def huge(**options) -> Make:
    shape = {"shape": (2**40, 2**10), "dtype": "f4"}
    return hdf5(lambda file: file.create_dataset("lm_head/weight", **shape, **options))


def huge_orbax(path: Path) -> Path:
    """Make an Orbax item that declares 2^40 rows and stores none."""
    kvstore = {"driver": "file", "path": f"{path.absolute()}/params.wte.embedding/"}
    spec = {"driver": "zarr", "kvstore": kvstore, "metadata": {"chunks": [4096, 16]}}
    ts.open(spec, dtype="float32", shape=(2**40, 16), create=True).result()
    (path / "_METADATA").write_text("{}")
    return path


def orbax_with_metadata(text: str) -> Make:
    """Make an Orbax item with one array whose metadata are a text."""

    def make(path: Path) -> Path:
        (path / "a").mkdir()
        (path / "a/.zarray").write_text(text)
        (path / "_METADATA").write_text("{}")
        return path

    return make


ZARR = {"chunks": [4, 4], "dtype": "<f4", "fill_value": 0, "filters": None, "order": "C"}
ZARR |= {"compressor": None, "shape": [4, 4], "zarr_format": 2}


def link_out(name: str, target: str) -> Make:
    """Make a folder, one file of which is a link to a file in another folder."""

    def make(path: Path) -> Path:
        write_folder(Path("other"), BOTH, {})
        write_folder(path, BOTH, {})
        (path / name).unlink()
        (path / name).symlink_to(Path("other").absolute() / target)
        return path

    return make


def adapter_only(name: str, content: bytes) -> Make:
    def make(path: Path) -> Path:
        (path / "adapter_config.json").write_text("{}")
        return folder_with(name, content)(path)

    return make


def gguf_array(name: bytes, count: int) -> bytes:
    """Return a metadata value of empty strings."""
    return struct.pack(f"<Q{len(name)}sIIQ", len(name), name, 9, 8, count) + bytes(8 * count)


def gguf_tensor(name: bytes, offset: int, kind: int = 0) -> bytes:
    """Return the declaration of a tensor of 8 values."""
    return struct.pack(f"<Q{len(name)}sIQIQ", len(name), name, 1, 8, kind, offset)


def gguf_of(*tensors: bytes) -> Make:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 0) + b"".join(tensors)
    return written("m.gguf", head + bytes(-len(head) % 32 + 64))


def orbax_without_data(path: Path) -> Path:
    """Make a checkpoint whose metadata are complete, but the file of the values is cut."""
    folder = (path / "tree").absolute()
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(folder, {name: array.repeat(8, 0) for name, array in F32.items()})
    files = [file for file in folder.rglob("*") if file.is_file()]
    largest = max(files, key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:200])
    return folder


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 100\n"
ODD_NPY_HEADER = b"\x93NUMPY\x01\x00" + struct.pack("<H", 20) + b"{'descr': (((\n" + b" " * 6
# Unreadable file -> part of the error, how to make it.
UNREADABLE = {
    "pickle .bin": ("is a pickle", written("pytorch_model.bin", PICKLE)),
    "pickle .pt": ("is a pickle", written("model.pt", PICKLE)),
    "pickle .ckpt": ("is a pickle", written("model.ckpt", PICKLE)),
    "pickle of another name": ("is a pickle", written("model.weights", PICKLE)),
    "distributed": ("format_utils dcp_to_torch", distributed("step-10", "step-10")),
    "distributed, of a trainer": (
        "/step-10/fsdp_0 model.pt and",
        distributed("step-10/fsdp_0", "step-10"),
    ),
    "one file of a distributed": ("format_utils dcp_to_torch", distributed("a", "a/__0_0.distcp")),
    "folder of pickles": ("is a pickle", folder_with("pytorch_model.bin", PICKLE)),
    "truncated": ("truncated", cut(with_tensors(**BOTH), -100)),
    "truncated within the header": ("truncated", with_length(b"{", 5000)),
    "truncated within the length": ("truncated", written("model.safetensors", b"12345")),
    "empty file": ("truncated", written("model.safetensors", b"")),
    "header above 100 MB": ("above 100 MB", with_length(b"{}", HEADER_LIMIT + 1)),
    "header that is no JSON": ("header cannot be read", with_length(b"{,")),
    "header that is a list": ("header cannot be read (it is another value)", with_length(b"[]")),
    "header too deep": ("header cannot be read", with_length(b"[" * 99_999)),
    "name twice": ("occurs twice", with_length(b'{"a":{},"a":{}}')),
    "header of many names": ("(5,000,001 items)", with_length(b'{"":0' + b',"":0' * 5_000_000)),
    "header of a long shape": ("items", with_length(b'{"a":{"shape":[0' + b",1" * 5_000_000)),
    "header of many lists": ("items", with_length(b'{"a":' + b"[" * 5_000_000)),
    "metadata that are no text": (
        "not a JSON object of strings",
        with_length(b'{"__metadata__":{"format":1}}'),
    ),
    "offsets that overlap": ("overlap", with_header(H, data_offsets=[SIZE - 2, 2 * SIZE - 2])),
    "offsets past the end": ("past the end", with_header(H, data_offsets=[SIZE + 2, 2 * SIZE + 2])),
    "offsets with a hole": ("belong to no tensor", with_header(E)),
    "offsets backwards": ("backwards", with_header(H, data_offsets=[2 * SIZE, SIZE])),
    "offsets below 0": ("data_offsets", with_header(E, data_offsets=[-SIZE, 0])),
    "shape that is too large": ("do not hold", with_header(H, shape=[VOCABULARY, 2 * WIDTH])),
    "shape below 0": ("shape", with_header(H, shape=[-VOCABULARY, -WIDTH])),
    "unknown type": ("unknown", with_header(H, dtype="F7")),
    "missing shard": ("a shard is missing", without(SECOND_SHARD)),
    "missing shard, no index": ("a shard is missing", without(SECOND_SHARD, INDEX)),
    "index that names files elsewhere": (
        "expected files in the same folder",
        lambda path: write_shards(path, [{E: A}, {H: B}], {"other": "../model.safetensors"}),
    ),
    "LFS pointer": ("git lfs pull", written("model.safetensors", LFS)),
    "LFS pointer of a GGUF": ("git lfs pull", written("model.gguf", LFS)),
    "flag twice": ("is no JSON object (a name occurs twice)", with_config('{"a": 1, "a": 2}')),
    "placeholder of ZeRO-3": (
        "holds no values, perhaps a placeholder of DeepSpeed's ZeRO-3; gather",
        with_tensors(**{E: A[:0]}),
    ),
    "placeholder of one dimension": ("holds no values", with_tensors(**{E: A[:0, 0]})),
    "table of one dimension": ("2-D", with_tensors(**{E: A.reshape(-1), H: B})),
    "table of three dimensions": ("2-D", with_tensors(**{E: A, H: B.reshape(2, -1, WIDTH)})),
    "widths that differ": (
        "widths differ",
        lambda path: write_folder(path, {E: A, H: B[:, :8]}, {"tie_word_embeddings": True}),
    ),
    "config that is no JSON": ("is no JSON object (Expecting property name", with_config("{")),
    "config that is a list": ("is no JSON object (it is another value)", with_config("[]")),
    "config too deep": ("is no JSON object (maximum recursion", with_config('{"a":' * 9999)),
    "empty folder": ("empty folder", lambda path: path),
    "folder of other things": ("holds no checkpoint", folder_with("notes.txt", b"")),
    "pipe": ("is a pipe, a device or a socket", pipe("model.safetensors")),
    "device": ("is a pipe, a device or a socket", lambda path: Path("/dev/zero")),
    "pipe in a folder": (
        "is a pipe, a device or a socket",
        pipe("model.safetensors", in_folder=True),
    ),
    "pipe for an index": ("is a pipe, a device or a socket", pipe(INDEX, in_folder=True)),
    "step that is no number": ("holds no checkpoint", lambda path: (path / "1²").mkdir() or path),
    "nothing there": ("no such file or folder", lambda path: path / "nowhere"),
    "unknown format": ("in no supported format", written("model.onnx", b"ONNX")),
    "npz of objects": ("Python objects (a pickle)", npz(**{E: np.array([Loud()], object)})),
    "npz that is truncated": ("truncated", cut(npz(**F32), -300)),
    "npz whose array is": ("is truncated", npz_with_member(large_npy_header())),
    "many tensors": (
        "more than 100,000 tensors",
        with_length(json.dumps({str(i): {} for i in range(100_001)}).encode()),
    ),
    "GGUF with too many items": (
        "metadata of 5,000,000 items",
        written(
            "m.gguf",
            b"GGUF"
            + struct.pack("<IQQQsIIQ", 3, 0, 1, 1, b"a", 9, 8, 5_000_000)
            + bytes(40_000_000),
        ),
    ),
    "GGUF with too many items in two arrays": (
        "metadata of 4,200,000 items",
        written(
            "m.gguf",
            b"GGUF"
            + struct.pack("<IQQ", 3, 0, 2)
            + gguf_array(b"a", 100_000)
            + gguf_array(b"b", 4_100_000),
        ),
    ),
    "GGUF with a tensor twice": (
        "a name occurs twice",
        gguf_of(gguf_tensor(b"a", 0), gguf_tensor(b"a", 32)),
    ),
    "GGUF with a value twice": (
        "a name occurs twice",
        written("m.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * gguf_array(b"a", 0)),
    ),
    "GGUF whose tensors overlap": (
        "'a' and 'b' overlap",
        gguf_of(gguf_tensor(b"b", 16), gguf_tensor(b"a", 0)),
    ),
    "GGUF whose tensors are one": (
        "overlap",
        gguf_of(gguf_tensor(b"a", 0, 2), gguf_tensor(b"b", 0, 2)),
    ),
    "npz that claims more bytes": ("truncated", npz_with_claims(VOCABULARY + 100)),
    "npz that claims far more bytes": ("truncated", npz_with_claims(10**6)),
    "npz of a boolean shape": ("damaged", npz_with_member(npy_of_shape("(True, 16)"))),
    "npz of a shape below 0": ("damaged", npz_with_member(npy_of_shape("(-1, -16)"))),
    "npz of a shape of text": ("damaged", npz_with_member(npy_of_shape("('1', 16)"))),
    "npz whose packed values are damaged": (
        "truncated or damaged",
        damaged(npz(np.savez_compressed, **F32)),
    ),
    "npz whose header is no literal": ("truncated or damaged", npz_with_member(ODD_NPY_HEADER)),
    "HDF5 whose packed values are damaged": (
        "cannot be read as HDF5",
        damaged(keras(data=F32[E], compression="gzip", chunks=A.shape)),
    ),
    "HDF5 that is none": ("cannot be read as HDF5", written("model.weights.h5", b"HDF5")),
    "HDF5 that points elsewhere": (
        "not followed",
        keras(shape=A.shape, dtype="f4", external=[("elsewhere.bin", 0, 4 * A.size)]),
    ),
    "HDF5 with a link to another file": (
        "'weight' is a link, which is not followed",
        linked(h5py.ExternalLink("elsewhere.h5", "/b"), "lm_head/weight"),
    ),
    "HDF5 with a link to nothing": ("is a link", linked(h5py.SoftLink("/nowhere"))),
    "HDF5 with a link to itself": ("is a link", linked(h5py.SoftLink("/lm_head"))),
    "HDF5 with a group in itself": (
        "without end",
        hdf5(lambda file: file.__setitem__("embed_tokens/again", file["embed_tokens"])),
    ),
    "HDF5 of 3,000 groups": ("without end", hdf5(nested)),
    "HDF5 of 2^60 groups": ("without end", hdf5(repeated)),
    "HDF5 of 2^40 rows": ("stored: damaged", huge()),
    "HDF5 of 2^40 rows in chunks": ("stored: damaged", huge(chunks=(4096, 16))),
    "HDF5 of 2^40 rows, packed": ("stored: damaged", huge(chunks=(4096, 16), compression="gzip")),
    "HDF5 whose names are no text": (
        "HDF5",
        changed(
            linked(F32[H], "lm_head/weight"),
            lambda content: content.replace(b"lm_head", b"lm_\xe3ead").replace(
                b"weight", b"w\xffight"
            ),
        ),
    ),
    "Orbax of 2^40 rows": ("stored: damaged", huge_orbax),
    "Orbax of chunks of 2^40 rows": (
        "stored: damaged",
        orbax_with_metadata(json.dumps(ZARR | {"chunks": [2**40, 4]})),
    ),
    "Orbax whose metadata are nested": (
        "the metadata of 'a' cannot be read (maximum recursion",
        orbax_with_metadata('{"a":' * 100_000 + "0" + "}" * 100_000),
    ),
    "folder of an adapter": (
        "an adapter only; give its base: jaxtie audit BASE --adapter made",
        adapter_only("adapter_model.safetensors", b""),
    ),
    "folder of a pickled adapter": ("an adapter only", adapter_only("adapter_model.bin", PICKLE)),
    "folder of an adapter and of its training": (
        "an adapter only",
        lambda path: folder_with("training_args.bin", PICKLE)(
            adapter_only("adapter_model.safetensors", b"")(path)
        ),
    ),
    "adapter": ("an adapter only", written("adapter_model.safetensors", bytes(8))),
    "word2vec": ("in no supported format", written("vectors.bin", b"3000000 300\n" + bytes(90))),
    "link that leaves the folder": (
        "is a link that leaves the folder",
        link_out("model.safetensors", "model.safetensors"),
    ),
    "configuration that is elsewhere": (
        "is a link that leaves the folder",
        link_out("config.json", "config.json"),
    ),
    "one shard of two, no index": (
        "a shard is missing",
        lambda path: without(SECOND_SHARD, INDEX)(path) / SECOND_SHARD.replace("2-of", "1-of"),
    ),
    "GGUF that is none": ("does not begin with GGUF", written("model.gguf", b"GGML" + bytes(20))),
    "GGUF that is truncated": (
        "truncated",
        cut(lambda path: write_gguf(path / "model.gguf", {"token_embd.weight": A}), -100),
    ),
    "GGUF of many tensors": (
        "truncated",
        written("m.gguf", b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0)),
    ),
    "Orbax without its data": ("an Orbax checkpoint: truncated or damaged", orbax_without_data),
    "Orbax that is damaged": (
        "an Orbax checkpoint: truncated or damaged",
        folder_with("manifest.ocdbt", b"no manifest"),
    ),
    "two tables that may be meant": (
        "give one as --input",
        with_tensors(**{"text.embed_tokens.weight": A, "other.embed_tokens.weight": B}),
    ),
    "no input by its name, but an output": (
        "give --input",
        with_tensors(**{"transformer.words.weight": A, H: B}),
    ),
    "no table by its name": ("give --input", with_tensors(a=A, b=B)),
}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").mkdir()


def assert_refused(capsys, words: str, *arguments: str | Path) -> None:
    assert run_command(*arguments) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and error.startswith("jaxtie: ")
    assert words in error and "Traceback" not in error
    assert not Path("unpickled").exists()


@pytest.mark.parametrize(("words", "make"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_read_is_refused(capsys, words, make):
    assert_refused(capsys, words, make(Path("made")))


def test_a_fault_in_the_program_is_one_line(capsys, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(command, "audit", fail)
    assert_refused(capsys, "ZeroDivisionError", write_folder(Path("made"), BOTH))


def test_byte_flips_of_hdf5(tmp_path):
    """There is a verdict or a UserError."""
    file, rng = (
        hdf5(lambda file: file.update({"lm_head/weight": F32[H]}))(tmp_path),
        random.Random(0),
    )
    content = file.read_bytes()
    starts = [at for at in range(0, len(content), 8) if any(content[at : at + 8])][:400]
    for i in range(60):
        flipped = bytearray(content)
        for at in rng.choices(starts, k=rng.choice((1, 3))):
            flipped[at + rng.randrange(8)] = rng.randrange(256)
        file = tmp_path / f"{i}.h5"  # a file that is open is not read again
        file.write_bytes(flipped)
        try:
            audit(file)
        except UserError as error:
            assert "\n" not in str(error)


def test_many_brackets_in_a_name_take_no_time(tmp_path):
    names = ["[" * 100_000, "['" * 50_000]
    start = time.process_time()
    audit(write_safetensors(tmp_path / "m.safetensors", BOTH | dict.fromkeys(names, A)))
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--output", "lm_head.wieght", "nearest: 'lm_head.weight'"),
        ("--input", "embed_tokens", "nearest: 'model.embed_tokens.weight'"),
        ("--adapter", "nowhere", "no such folder"),
        ("--adapter", "small", "holds no adapter_model.safetensors"),
        ("--adapter", "pickled", "is a pickle"),
        ("--sideways", "1", "see jaxtie audit --help"),
    ],
)
def test_bad_options_are_refused(capsys, option, value, words):
    path = write_folder(Path("made"), BOTH)
    write_folder(Path("small"), {E: A[:100], H: B[:100]})
    Path("pickled").mkdir()
    Path("pickled/adapter_model.bin").touch()
    assert_refused(capsys, words, path, option, value)


def test_names_that_would_break_the_line_are_escaped(capsys):
    assert_refused(capsys, "give --input", with_tensors(**{"a\nb\x1b[31m\ud800": A})(Path("made")))
    assert run_command(with_tensors(**{"a\nb.embed_tokens": A})(Path("made"))) == 0
    assert "a\\nb.embed_tokens" in capsys.readouterr().out


KINDS = ("safetensors", "gguf", "json", "keras", "mistral", "adapter", "packed", "orbax")


def fuzz(count: int, *kinds: str) -> None:
    """Audit mutated files; an error, an opened file elsewhere or too much memory fails."""
    script = [sys.executable, ROOT / "tests/helpers/fuzz.py", Path.cwd(), str(count), *kinds]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = list(map(json.loads, done.stdout.splitlines()))
    assert len(lines) == len(kinds)
    for found in lines:
        assert found["verdicts"] >= count / 50, found
        assert found["slowest"] < 5 and found["MiB"] < 100, found


def test_mutated_files_get_a_verdict_or_one_line():
    fuzz(50, *KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_mutated_files_get_a_verdict_or_one_line(kind):
    fuzz(2_000 if kind == "safetensors" else 1_000, kind)
