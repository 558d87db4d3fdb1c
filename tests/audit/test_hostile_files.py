"""What an audit cannot read: one line that says what, and status 2; nothing is executed, and memory
stays small.
"""

import io
import json
import pickle
import random
import struct
import tracemalloc
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from checkpoints import (
    VOCABULARY,
    WIDTH,
    audited,
    folder,
    gguf,
    header_of,
    run,
    safetensors,
    sharded,
    table,
)

from jaxtie.audit.command import lines_of
from jaxtie.audit.headers import HEADER_LIMIT, read_gguf, read_safetensors
from jaxtie.config import UserError

A, B = table(0), table(1)
E, H = "model.embed_tokens.weight", "lm_head.weight"
BOTH = {E: A, H: B}
SIZE = A.nbytes


class Loud:
    """Shows that it was unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("unpickled"),)


def with_header(path: Path, change) -> Path:
    header = header_of(BOTH)
    change(header)
    return safetensors(path / "model.safetensors", BOTH, json.dumps(header).encode())


def offsets(name: str, begin: int, end: int):
    def change(header: dict) -> None:
        header[name]["data_offsets"] = [begin, end]

    return change


def shape(name: str, *sizes: int):
    def change(header: dict) -> None:
        header[name]["shape"] = list(sizes)

    return change


def pickled(name: str):
    def make(path: Path) -> Path:
        (path / name).write_bytes(pickle.dumps({"embed_tokens.weight": Loud()}))
        return path / name

    return make


def folder_of_pickles(path: Path) -> Path:
    pickled("pytorch_model.bin")(path)
    return path


def cut(path: Path) -> Path:
    file = safetensors(path / "model.safetensors", BOTH)
    file.write_bytes(file.read_bytes()[:-100])
    return file


def written(name: str, content: bytes):
    def make(path: Path) -> Path:
        (path / name).write_bytes(content)
        return path / name

    return make


def without_a_shard(path: Path) -> Path:
    sharded(path, [{E: A}, {H: B}])
    (path / "model-00002-of-00002.safetensors").unlink()
    return path


def without_index_and_shard(path: Path) -> Path:
    without_a_shard(path)
    (path / "model.safetensors.index.json").unlink()
    return path


def index_elsewhere(path: Path) -> Path:
    sharded(path, [{E: A}, {H: B}], {"other": "../model.safetensors"})
    return path


def with_config(text: str):
    def make(path: Path) -> Path:
        folder(path, BOTH)
        (path / "config.json").write_text(text)
        return path

    return make


def flat(path: Path) -> Path:
    return safetensors(path / "model.safetensors", {E: A.reshape(-1), H: B})


def stacked(path: Path) -> Path:
    return safetensors(path / "model.safetensors", {E: A, H: B.reshape(2, -1, WIDTH)})


def narrow(path: Path) -> Path:
    return safetensors(path / "model.safetensors", {E: A, H: B[:, :8]})


def objects(path: Path) -> Path:
    np.savez(path / "tables.npz", **{"embed_tokens.weight": np.array([Loud()], object)})
    return path / "tables.npz"


def cut_npz(path: Path) -> Path:
    np.savez(path / "tables.npz", **{"embed_tokens.weight": A.astype(np.float32)})
    (path / "tables.npz").write_bytes((path / "tables.npz").read_bytes()[:-300])
    return path / "tables.npz"


def short_member(path: Path) -> Path:
    """An array whose header claims more than the archive's member has."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        content, {"descr": "<f4", "fortran_order": False, "shape": (10**9, 64)}
    )
    with zipfile.ZipFile(path / "tables.npz", "w") as archive:
        archive.writestr("embed_tokens.npy", content.getvalue())
    return path / "tables.npz"


def keras_elsewhere(path: Path) -> Path:
    with h5py.File(path / "model.weights.h5", "w") as file:
        outside = [("elsewhere.bin", 0, 4 * VOCABULARY * WIDTH)]
        file.create_dataset("token_embedding/vars/0", (VOCABULARY, WIDTH), "f4", external=outside)
    return path / "model.weights.h5"


def damaged_in_the_middle(path: Path, save) -> Path:
    """A table whose bytes are others where its values lie, past all headers."""
    save(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 3 : 2 * len(content) // 3] = bytes(len(content) // 3 + 1)
    path.write_bytes(content)
    return path


def packed_npz(path: Path) -> Path:
    table = {"embed_tokens.weight": A.astype(np.float32), "lm_head.weight": B.astype(np.float32)}
    return damaged_in_the_middle(
        path / "tables.npz", lambda file: np.savez_compressed(file, **table)
    )


def packed_keras(path: Path) -> Path:
    def save(file: Path) -> None:
        with h5py.File(file, "w") as made:
            made.create_dataset(
                "token_embedding/vars/0",
                data=A.astype(np.float32),
                compression="gzip",
                chunks=A.shape,
            )

    return damaged_in_the_middle(path / "model.weights.h5", save)


def npz_of_odd_header(path: Path) -> Path:
    with zipfile.ZipFile(path / "tables.npz", "w") as archive:
        archive.writestr(
            "embed_tokens.npy",
            b"\x93NUMPY\x01\x00" + struct.pack("<H", 20) + b"{'descr': (((\n" + b" " * 6,
        )
    return path / "tables.npz"


def orbax_without_its_data(path: Path) -> Path:
    """A checkpoint whose small files are all there; those of the values are cut to nothing."""
    import orbax.checkpoint as ocp

    folder = (path / "tree").absolute()
    tables = {
        "embed_tokens": A.astype(np.float32).repeat(8, 0),
        "lm_head": B.astype(np.float32).repeat(8, 0),
    }
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(folder, tables)
    largest = max(
        (each for each in folder.rglob("*") if each.is_file()), key=lambda each: each.stat().st_size
    )
    largest.write_bytes(largest.read_bytes()[:200])
    return folder


def two_inputs(path: Path) -> Path:
    return safetensors(
        path / "model.safetensors", {"text.embed_tokens.weight": A, "other.embed_tokens.weight": B}
    )


def nameless(path: Path) -> Path:
    return safetensors(path / "model.safetensors", {"a": A, "b": B})


def damaged_orbax(path: Path) -> Path:
    (path / "manifest.ocdbt").write_bytes(b"no manifest")
    return path


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 100\n"
LONG = struct.pack("<Q", HEADER_LIMIT + 1) + b"{}"
# What cannot be read -> how it is made, and a word that the line holds.
UNREADABLE = {
    "pickle .bin": (pickled("pytorch_model.bin"), "is a pickle"),
    "pickle .pt": (pickled("model.pt"), "is a pickle"),
    "pickle .ckpt": (pickled("model.ckpt"), "is a pickle"),
    "pickle of another name": (pickled("model.weights"), "is a pickle"),
    "folder of pickles": (folder_of_pickles, "is a pickle"),
    "truncated": (cut, "truncated"),
    "truncated within the header": (
        written("model.safetensors", struct.pack("<Q", 5000) + b"{"),
        "truncated",
    ),
    "truncated within the length": (written("model.safetensors", b"12345"), "truncated"),
    "empty file": (written("model.safetensors", b""), "truncated"),
    "header above 100 MB": (written("model.safetensors", LONG), "above 100 MB"),
    "header that is no JSON": (
        written("model.safetensors", struct.pack("<Q", 2) + b"{,"),
        "header cannot be read",
    ),
    "header that is a list": (
        written("model.safetensors", struct.pack("<Q", 2) + b"[]"),
        "no table of names",
    ),
    "header too deep": (
        written("model.safetensors", struct.pack("<Q", 99_999) + b"[" * 99_999),
        "header cannot be read",
    ),
    "name twice": (
        written("model.safetensors", struct.pack("<Q", 15) + b'{"a":{},"a":{}}'),
        "stands twice",
    ),
    "offsets that overlap": (
        lambda path: with_header(path, offsets(H, SIZE - 2, 2 * SIZE - 2)),
        "overlap",
    ),
    "offsets past the end": (
        lambda path: with_header(path, offsets(H, SIZE + 2, 2 * SIZE + 2)),
        "past the end",
    ),
    "offsets with a hole": (
        lambda path: with_header(path, lambda header: header.pop(E)),
        "belong to none",
    ),
    "offsets backwards": (lambda path: with_header(path, offsets(H, 2 * SIZE, SIZE)), "backwards"),
    "offsets below 0": (lambda path: with_header(path, offsets(E, -SIZE, 0)), "data_offsets"),
    "shape that is too large": (
        lambda path: with_header(path, shape(H, VOCABULARY, 2 * WIDTH)),
        "do not hold",
    ),
    "shape below 0": (lambda path: with_header(path, shape(H, -VOCABULARY, -WIDTH)), "shape"),
    "unknown type": (
        lambda path: with_header(path, lambda header: header[H].update(dtype="F7")),
        "unknown",
    ),
    "missing shard": (without_a_shard, "a shard is missing"),
    "missing shard, no index": (without_index_and_shard, "a shard is missing"),
    "index that names files elsewhere": (index_elsewhere, "expected files beside it"),
    "LFS pointer": (written("model.safetensors", LFS), "git lfs pull"),
    "LFS pointer of a GGUF": (written("model.gguf", LFS), "git lfs pull"),
    "table of one dimension": (flat, "2-D"),
    "table of three dimensions": (stacked, "2-D"),
    "widths that differ": (narrow, "widths differ"),
    "config that is no JSON": (with_config("{"), "is no JSON"),
    "config that is a list": (with_config("[]"), "is no JSON table"),
    "config too deep": (with_config('{"a":' * 9999), "is no JSON"),
    "empty folder": (lambda path: path, "empty folder"),
    "folder of other things": (
        lambda path: written("notes.txt", b"")(path).parent,
        "holds no checkpoint",
    ),
    "nothing there": (lambda path: path / "nowhere", "no such file or folder"),
    "unknown format": (written("model.onnx", b"ONNX"), "of no format that is read"),
    "npz of objects": (objects, "Python objects (a pickle)"),
    "npz that is truncated": (cut_npz, "truncated"),
    "npz whose array is": (short_member, "truncated"),
    "npz whose packed values are damaged": (packed_npz, "truncated or damaged"),
    "npz whose header is no literal": (npz_of_odd_header, "truncated or damaged"),
    "HDF5 whose packed values are damaged": (packed_keras, "cannot be read as HDF5"),
    "Orbax without its data": (orbax_without_its_data, "damaged"),
    "HDF5 that is none": (written("model.weights.h5", b"HDF5"), "cannot be read as HDF5"),
    "HDF5 that points elsewhere": (keras_elsewhere, "not followed"),
    "GGUF that is none": (written("model.gguf", b"GGML" + bytes(20)), "does not begin with GGUF"),
    "GGUF that is truncated": (
        lambda path: gguf(path / "model.gguf", {"token_embd.weight": A}, cut=-100),
        "truncated",
    ),
    "GGUF of many tensors": (
        written("m.gguf", b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0)),
        "truncated",
    ),
    "Orbax that is damaged": (damaged_orbax, "Orbax"),
    "two tables that may be meant": (two_inputs, "give one as --input"),
    "no table by its name": (nameless, "give --input"),
}


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").mkdir()


def refused(capsys, words: str, *arguments: str | Path) -> None:
    assert run(*arguments) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and error.startswith("jaxtie.audit: ")
    assert words in error and "Traceback" not in error
    assert not Path("unpickled").exists()


@pytest.mark.parametrize(("make", "words"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_read_is_one_line_and_status_2(capsys, make, words):
    refused(capsys, words, make(Path("made")))


def test_options_that_cannot_be_meant(capsys):
    path = folder(Path("made"), BOTH)
    refused(capsys, "nearest: 'lm_head.weight'", path, "--output", "lm_head.wieght")
    refused(capsys, "nearest: 'model.embed_tokens.weight'", path, "--input", "embed_tokens")
    other = folder(Path("other"), {E: A[:100], H: B[:100]})
    refused(
        capsys,
        "--against other: its table has shape (100, 16), this one (512, 16)",
        path,
        "--against",
        other,
    )
    refused(capsys, "nowhere: no such file or folder", path, "--against", "nowhere")
    refused(capsys, "no such folder", path, "--adapter", "nowhere")
    refused(capsys, "holds no adapter_model.safetensors", path, "--adapter", "other")
    (other / "adapter_model.bin").write_bytes(b"")
    refused(capsys, "is a pickle", path, "--adapter", "other")
    refused(capsys, "see python -m jaxtie.audit --help", path, "--sideways")


def test_names_that_would_break_the_line(capsys):
    path = safetensors(Path("made/model.safetensors"), {"a\nb\x1b[31m\ud800": A})
    refused(capsys, "give --input", path)
    tensors = {"a\nb.embed_tokens": A}
    assert run(safetensors(Path("made/model.safetensors"), tensors)) == 0
    assert "a\\nb.embed_tokens" in capsys.readouterr().out


def overwrite(path: Path, content: bytes) -> None:
    """What `write_bytes` does, without making the file anew, which takes milliseconds on some
    disks.
    """
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def mutated(rng: random.Random, text: bytes) -> bytes:
    """A header with something done to it."""
    content = bytearray(text)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, kind = rng.randrange(len(content)), rng.randrange(6)
        if kind == 0:
            content[at] = rng.randrange(256)
        elif kind == 1:
            del content[at : at + rng.randrange(1, 20)]
        elif kind == 2:
            content[at:at] = rng.choice(
                (
                    b"9" * rng.randrange(1, 40),
                    b"[",
                    b"{",
                    b'"',
                    b"-",
                    b"e9",
                    b"null",
                    b"\\ud800",
                    b",",
                )
            )
        elif kind == 3:
            content[at : at + 1] = str(rng.choice((0, 1, 2**31, 2**63, 2**64, 10**30))).encode()
        elif kind == 4:
            content[at:at] = content[at : at + rng.randrange(1, 60)]
        else:
            content[at] = content[at] ^ (1 << rng.randrange(8))
        if not content:
            break
    return bytes(content)


def test_mutated_safetensors_headers(tmp_path):
    """Never another error than ours, never more memory than the file, and what is accepted lies
    within it.
    """
    path, rng = tmp_path / "model.safetensors", random.Random(0)
    header = json.dumps({"__metadata__": {"format": "pt"}} | header_of(BOTH)).encode()
    data = bytes(2 * SIZE)
    path.touch()
    accepted = refused = 0
    for i in range(10_000):
        text = mutated(rng, header)
        length = (
            len(text)
            if i % 10
            else rng.choice((0, 1, len(text) - 1, len(text) + 1, 2**20, 2**63, rng.getrandbits(64)))
        )
        overwrite(path, struct.pack("<Q", length) + text + data)
        if i % 20 == 0:
            tracemalloc.start()
        try:
            entries = read_safetensors(path)
            accepted += 1
            assert all(8 <= entry.begin <= entry.end <= path.stat().st_size for entry in entries)
        except UserError as error:
            refused += 1
            assert "\n" not in str(error)
        if i % 20 == 0:
            assert tracemalloc.get_traced_memory()[1] < path.stat().st_size
            tracemalloc.stop()
    assert accepted > 100 and refused > 5000


def test_mutated_gguf_headers(tmp_path):
    path, rng = tmp_path / "model.gguf", random.Random(0)
    content = gguf(path, {"token_embd.weight": A, "output.weight": B}).read_bytes()
    end = content.index(b"output.weight") + 60
    for _ in range(1000):
        overwrite(path, mutated(rng, content[:end]) + content[end:])
        try:
            entries, _ = read_gguf(path)
            assert all(entry.end <= path.stat().st_size for entry in entries)
        except UserError as error:
            assert "\n" not in str(error)


def test_audits_of_mutated_headers_and_configurations(tmp_path):
    """The whole way, over tables of any bits: a verdict that can be printed, or one line."""
    rng = random.Random(1)
    path, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    header = json.dumps(header_of(BOTH)).encode()
    data = np.random.default_rng(0).integers(0, 256, 2 * SIZE, dtype=np.uint8).tobytes()
    said = {
        "tie_word_embeddings": True,
        "vocab_size": VOCABULARY,
        "text_config": {"tie_word_embeddings": False},
    }
    config.write_text(json.dumps(said))
    path.touch()
    judged = 0
    for _ in range(1500):
        text = mutated(rng, header) if rng.random() < 0.7 else header
        overwrite(path, struct.pack("<Q", len(text)) + text + data)
        overwrite(
            config,
            mutated(rng, json.dumps(said).encode())
            if rng.random() < 0.5
            else json.dumps(said).encode(),
        )
        try:
            found = audited(tmp_path)
            assert json.dumps(found.as_dict(), allow_nan=False) and all(
                "\n" not in line for line in lines_of(found)
            )
            judged += 1
        except UserError as error:
            assert error.args
    assert judged > 100
