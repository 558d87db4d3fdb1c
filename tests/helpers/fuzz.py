"""Audit mutated files in a process with little memory that may open nothing outside their folder.

python fuzz.py FOLDER COUNT KIND ...: KIND is safetensors, gguf, json (index and configuration),
keras, mistral, adapter, packed (MLX, GGUF) or orbax (flat keys). Each has a process of its own,
forked after the imports, and prints a line.
"""

import io
import json
import os
import random
import resource
import struct
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tensorstore as ts
from checkpoints import (
    VOCABULARY,
    A,
    B,
    E,
    H,
    header_of,
    write_folder,
    write_gguf,
    write_safetensors,
    write_shards,
)

from jaxtie.audit.audit import audit
from jaxtie.audit.command import lines_of
from jaxtie.audit.headers import read_gguf, read_safetensors
from jaxtie.config import UserError

MEMORY = 2**29  # bytes that the process may map after its first audit
BOTH = {E: A, H: B}
NUMBERS = (0, 1, 2**31, 2**40, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30)
NAMES = (
    "",
    ".",
    "..",
    "../outside/model.safetensors",
    "/etc/passwd",
    "/dev/zero",
    "a\0b",
    "\ud800",
)
NAMES += ("made/../../outside/config.json", "x" * 300, "pytorch_model.bin", "model.gguf")
VALUES = (*NUMBERS, -1, 0.5, 1e300, True, None, [], {}, [[0]], *NAMES)
NESTED = "nested"  # placeholder, replaced by many brackets in the forged text


def overwrite(path: Path, content: bytes) -> None:
    """Write into an existing file, since making files anew takes milliseconds on some disks."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def mutated(rng: random.Random, text: bytes) -> bytes:
    """Return a text with one to five random changes."""
    content = bytearray(text)
    inserts = (b"[", b"{", b'"', b"-", b"e9", b"null", b"\\ud800", b",")
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, kind = rng.randrange(len(content)), rng.randrange(7)
        if kind == 0:
            content[at] = rng.randrange(256)
        elif kind == 1:
            del content[at : at + rng.randrange(1, 20)]
        elif kind == 2:
            content[at:at] = rng.choice((b"9" * rng.randrange(1, 40), *inserts))
        elif kind == 3:
            content[at : at + 1] = str(rng.choice(NUMBERS)).encode()
        elif kind == 4:
            content[at:at] = content[at : at + rng.randrange(1, 60)]
        elif kind == 5:
            del content[at:]
        else:
            content[at] ^= 1 << rng.randrange(8)
        if not content:
            break
    return bytes(content)


def forged(rng: random.Random, value: Any) -> bytes:
    """Return a value as JSON, with one value or name replaced."""
    value = json.loads(json.dumps(value))
    nodes = [value]
    for node in nodes:
        parts = node.values() if isinstance(node, dict) else node
        nodes += [part for part in parts if part and isinstance(part, dict | list)]
    node = rng.choice(nodes)
    key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
    if isinstance(node, dict) and rng.random() < 0.3:
        node[rng.choice(NAMES)] = node.pop(key)
    else:
        node[key] = NESTED if rng.random() < 0.2 else rng.choice(VALUES)
    depth = rng.choice((10, 500, 5000, 100_000))
    brackets = rng.choice(("[" * depth + "]" * depth, '{"a":' * depth + "0" + "}" * depth))
    return json.dumps(value).replace(f'"{NESTED}"', brackets).encode()


def forged_numbers(rng: random.Random, content: bytes) -> bytes:
    """Return the bytes with other numbers packed at one to three places."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 3))):
        at, size = rng.randrange(len(content)), rng.choice((4, 8))
        changed[at : at + size] = (rng.choice(NUMBERS) % 2 ** (8 * size)).to_bytes(size, "little")
    return bytes(changed)


def safetensors_files(rng: random.Random, folder: Path) -> Iterator[Path]:
    path, header = folder / "model.safetensors", {"__metadata__": {"format": "pt"}}
    header |= header_of(BOTH)
    data = np.random.default_rng(0).integers(0, 256, 2 * A.nbytes, dtype=np.uint8).tobytes()
    path.touch()
    while True:
        plain = json.dumps(header).encode()
        text = forged(rng, header) if rng.random() < 0.3 else mutated(rng, plain)
        length = len(text)
        if rng.random() < 0.1:
            length = rng.choice((0, 1, length - 1, length + 1, 2**20, 2**63, rng.getrandbits(64)))
        overwrite(path, struct.pack("<Q", max(0, length)) + text + data)
        yield path


def gguf_files(rng: random.Random, folder: Path) -> Iterator[Path]:
    path = folder / "model.gguf"
    tables = {"token_embd.weight": A, "blk.0.attn_q.weight": np.ones((32, 16), np.uint8)}
    content = write_gguf(path, tables | {"output.weight": B}).read_bytes()
    end = content.index(b"output.weight") + 60
    while True:
        change = rng.choice((mutated, forged_numbers))
        overwrite(path, change(rng, content[:end]) + content[end:])
        if rng.random() < 0.1:
            overwrite(path, content[: rng.randrange(len(content))])
        yield path


def json_files(rng: random.Random, folder: Path) -> Iterator[Path]:
    write_shards(folder.parent / "outside", [{E: A}, {H: B}])
    (folder.parent / "outside/model.safetensors").write_bytes(b"")
    text = {"tie_word_embeddings": False, "vocab_size": VOCABULARY}
    config = {"architectures": ["LlavaModel"], "model_type": "llava", "text_config": text}
    write_shards(folder, [{E: A}, {H: B}], tie_word_embeddings=True, **config)
    (folder / "link.safetensors").symlink_to(folder.parent / "outside/model.safetensors")
    files = [folder / "model.safetensors.index.json", folder / "config.json"]
    plain = [path.read_bytes() for path in files]
    while True:
        for path, content in zip(files, plain, strict=True):
            kind = rng.randrange(4)
            if kind == 0:
                content = mutated(rng, content)
            elif kind < 3:
                content = forged(rng, json.loads(content))
            if rng.random() < 0.05:
                content = content.replace(b"model-00001-of-00002", b"link")
            overwrite(path, content)
        yield folder


def keras_files(rng: random.Random, folder: Path) -> Iterator[Path]:
    path, stored = folder / "model.keras", io.BytesIO()
    with h5py.File(stored, "w") as file:
        file["layers/reversible_embedding/vars/0"] = A.astype(np.float32)
        file["layers/reversible_embedding/vars/1"] = B.astype(np.float32).T
    layer = {"class_name": "ReversibleEmbedding", "config": {"tie_weights": False}}
    config = {"class_name": "Functional", "config": {"layers": [layer, {"class_name": "Dense"}]}}
    path.touch()
    while True:
        parts = {"config.json": json.dumps(config).encode(), "model.weights.h5": stored.getvalue()}
        kind = rng.randrange(4)
        if kind == 0:
            parts["config.json"] = forged(rng, config)
        elif kind == 1:
            parts["config.json"] = mutated(rng, parts["config.json"])
        elif kind == 2:
            head = parts["model.weights.h5"][:2048]
            change = rng.choice((mutated, forged_numbers))
            parts["model.weights.h5"] = change(rng, head) + parts["model.weights.h5"][2048:]
        content = io.BytesIO()
        method = rng.choice((zipfile.ZIP_STORED,) * 9 + (zipfile.ZIP_DEFLATED,))
        with zipfile.ZipFile(content, "w", method) as archive:
            for name, data in parts.items():
                archive.writestr(name if rng.random() < 0.95 else rng.choice(NAMES[1:6]), data)
        data = content.getvalue()
        overwrite(path, data[:-300] + mutated(rng, data[-300:]) if kind == 3 else data)
        yield path


def mistral_files(rng: random.Random, folder: Path) -> Iterator[Path]:
    tables = {"tok_embeddings.weight": A, "output.weight": B}
    write_safetensors(folder / "consolidated.safetensors", tables)
    path = folder / "params.json"
    config = {"dim": 16, "vocab_size": VOCABULARY, "tied_embeddings": True, "moe": {"n": [1]}}
    path.touch()
    while True:
        plain = json.dumps(config).encode()
        overwrite(path, forged(rng, config) if rng.random() < 0.6 else mutated(rng, plain))
        yield folder


def adapter_files(rng: random.Random, folder: Path) -> Iterator[Path]:
    write_folder(folder, {E: A}, {"tie_word_embeddings": True, "vocab_size": VOCABULARY})
    path = folder / "adapter_model.safetensors"
    stem = "base_model.model.model.embed_tokens"
    tensors = {
        f"{stem}.lora_embedding_A": A[:, :2].T,
        f"{stem}.lora_embedding_B": A[:2].T,
        "base_model.model.lm_head.lora_A.weight": A[:2],
        "base_model.model.lm_head.lora_B.weight": A[:, :2],
    }
    header, data = header_of(tensors), b"".join(one.tobytes() for one in tensors.values())
    path.touch()
    while True:
        plain = json.dumps(header).encode()
        text = forged(rng, header) if rng.random() < 0.6 else mutated(rng, plain)
        overwrite(path, struct.pack("<Q", len(text)) + text + data)
        yield folder


def packed_files(rng: random.Random, folder: Path) -> Iterator[Path]:
    """Yield two tables as MLX packs them, and as blocks of a GGUF, with changed headers."""
    tables = {}
    for name in ("model.embed_tokens", "lm_head"):
        tables[f"{name}.weight"] = np.ones((VOCABULARY, 4), np.uint32)
        tables |= {f"{name}.{leaf}": A[:, :1].astype(np.float16) for leaf in ("scales", "biases")}
    header, data = header_of(tables), b"".join(one.tobytes() for one in tables.values())
    (folder / "config.json").write_text('{"tie_word_embeddings": true, "model_type": "llama"}')
    blocks = {name: np.ones((64, 18), np.uint8) for name in ("token_embd.weight", "output.weight")}
    content = write_gguf(folder / "model.gguf", blocks, blocks=32).read_bytes()
    path, end = folder / "model.safetensors", content.index(b"output.weight") + 60
    path.touch()
    while True:
        plain = json.dumps(header).encode()
        text = forged(rng, header) if rng.random() < 0.6 else mutated(rng, plain)
        overwrite(path, struct.pack("<Q", len(text)) + text + data)
        yield folder
        change = rng.choice((mutated, forged_numbers))
        overwrite(folder / "model.gguf", change(rng, content[:end]) + content[end:])
        yield folder / "model.gguf"


def orbax_files(rng: random.Random, folder: Path) -> Iterator[Path]:
    """Yield items whose keys have slashes, as Gemma's: zarr in files, and in an OCDBT database."""
    places = [folder / "zarr", folder / "ocdbt"]
    for place in places:
        base: Any = f"file://{place}/"
        if place.name == "ocdbt":
            base = {"driver": "ocdbt", "base": base}
        base = ts.KvStore.open(base).result()
        store = base / "transformer/embedder.input_embedding/"
        array = ts.open(
            {"driver": "zarr", "kvstore": store.spec().to_json()},
            dtype="float32",
            shape=A.shape,
            create=True,
        ).result()
        array.write(A.astype(np.float32)).result()
    (places[0] / "_METADATA").write_text("{}")
    plain = {
        place: {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
        for place in places
    }
    while True:
        place = rng.choice(places)
        path = rng.choice(list(plain[place]))
        content = plain[place][path]
        if path.name == ".zarray" and rng.random() < 0.6:
            overwrite(path, forged(rng, json.loads(content)))
        else:
            overwrite(path, rng.choice((mutated, forged_numbers))(rng, content))
        yield place
        overwrite(path, content)


FILES = {
    "safetensors": safetensors_files,
    "gguf": gguf_files,
    "json": json_files,
    "keras": keras_files,
    "mistral": mistral_files,
    "adapter": adapter_files,
    "packed": packed_files,
    "orbax": orbax_files,
}
READERS = {"safetensors": read_safetensors, "gguf": read_gguf}


def is_verdict(kind: str, path: Path) -> bool:
    """Return whether there is a verdict that can be printed, not a user error of one line."""
    try:
        if kind in READERS:
            entries, _ = READERS[kind](path)
            size = path.stat().st_size
            assert all(8 <= entry.begin <= entry.end <= size for entry in entries)
        found = audit(path, adapter=path if kind == "adapter" else None)
        assert json.dumps(found.as_dict(), allow_nan=False)
        assert all("\n" not in line for line in lines_of(found, verbose=True))
    except UserError as error:
        assert len(str(error).splitlines()) == 1 or kind == "json"  # names are escaped when printed
        return False
    except OSError:
        return False
    return True


def memory(field: str) -> int:
    """Return a size in bytes that the system reports on this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def main(kind: str, count: int, folder: Path) -> None:
    made = folder / "made"
    made.mkdir(parents=True)
    is_armed = False

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if is_armed and event in ("open", "os.listdir", "os.scandir"):
            path = arguments[0]
            if isinstance(path, str | bytes | Path) and not os.fsdecode(path).endswith(
                (".py", ".pyc")
            ):
                real = Path(os.fsdecode(path)).resolve()
                assert real.is_relative_to(made), f"{event}: {path!r} is outside the folder"

    sys.addaudithook(refuse)
    files = FILES[kind](random.Random(0), made)
    is_verdict(kind, next(files))  # imports and starts threads
    limit, before = memory("VmSize") + MEMORY, memory("VmRSS")
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    verdicts, slowest = 0, 0.0
    for _ in range(count):
        path, start = next(files), time.process_time()
        is_armed = True
        verdicts += is_verdict(kind, path)
        is_armed = False
        slowest = max(slowest, time.process_time() - start)
    growth = (memory("VmHWM") - before) // 2**20
    print(json.dumps({"verdicts": verdicts, "slowest": slowest, "MiB": growth}))


if __name__ == "__main__":
    for name in sys.argv[3:]:
        child = os.fork()
        if not child:
            main(name, int(sys.argv[2]), Path(sys.argv[1], name))
            sys.exit()
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{name} failed")
