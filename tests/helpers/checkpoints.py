"""Write small checkpoints under real names and flags, and audit them."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxtie.audit.audit import Audit, audit
from jaxtie.audit.command import main_audit

Tensors = Mapping[str, np.ndarray]
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int32": "I32", "int8": "I8"}
DTYPES |= {"int64": "I64", "bool": "BOOL", "uint32": "U32"}
VOCABULARY, WIDTH = 512, 16


def make_table(seed: int) -> np.ndarray:
    """Return a random table of bfloat16."""
    values = np.random.default_rng(seed).standard_normal((VOCABULARY, WIDTH))
    return values.astype(ml_dtypes.bfloat16)


A, B = make_table(0), make_table(1)
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
V = {"vocab_size": VOCABULARY}
E, H = "model.embed_tokens.weight", "lm_head.weight"


def header_of(tensors: Tensors) -> dict[str, Any]:
    """Return the header of a safetensors file with these tensors."""
    header, at = {}, 0
    for name, array in tensors.items():
        end = at + array.nbytes
        kind = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape)}
        header[name] = kind | {"data_offsets": [at, end]}
        at = end
    return header


def write_safetensors(path: Path, tensors: Tensors, header: bytes | None = None) -> Path:
    """Write a safetensors file, with another header if one is given."""
    text = json.dumps(header_of(tensors)).encode() if header is None else header
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def write_folder(path: Path, tensors: Tensors, config: Mapping[str, Any] | None = None) -> Path:
    """Write a folder as Hugging Face has it."""
    write_safetensors(path / "model.safetensors", tensors)
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def write_shards(
    path: Path, shards: list[Tensors], listed: Mapping[str, str] = {}, **config: Any
) -> Path:
    """Write a folder of shards; `listed`: further names in the index."""
    names: dict[str, str] = {}
    for i, tensors in enumerate(shards, 1):
        file = f"model-{i:05}-of-{len(shards):05}.safetensors"
        write_safetensors(path / file, tensors)
        names |= dict.fromkeys(tensors, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names | listed}))
    (path / "config.json").write_text(json.dumps(config))
    return path


def write_gguf(
    path: Path,
    tensors: Tensors,
    architecture: str = "llama",
    tokens: int | None = None,
    blocks: int = 0,
) -> Path:
    """Write a GGUF file of version 3; uint8 means Q4_0.

    With `blocks`, a row of uint8 holds the bytes of blocks of so many values; else the file is
    filled up.
    Its list of tokens is as long as the first table, if `tokens` does not say otherwise.
    """
    rows = len(next(iter(tensors.values()))) if tokens is None else tokens

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    pairs = [
        text("general.architecture") + struct.pack("<I", 8) + text(architecture),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, rows) + text("a") * rows,
    ]
    head, data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs), b""
    for name, array in tensors.items():
        data += b"\0" * (-len(data) % 32)
        kind = {"float32": 0, "float16": 1, "bfloat16": 30, "uint8": 2}[array.dtype.name]
        sizes = array.shape[::-1]
        if kind == 2 and blocks:
            sizes = (array.shape[1] // 18 * blocks, array.shape[0])
        shape = struct.pack(f"<{array.ndim}Q", *sizes)
        head += text(name) + struct.pack("<I", array.ndim) + shape
        head += struct.pack("<IQ", kind, len(data))
        data += array.tobytes()
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return path


def audit_folder(
    path: Path, tensors: Tensors, config: Mapping[str, Any] | None = None, **options: Any
) -> Audit:
    """Write a folder and audit it."""
    return audit(write_folder(path, tensors, config), **options)


def codes(found: Audit, level: str = "wrong") -> set[str]:
    """Return the codes of all findings of a level."""
    findings = found.findings
    return {finding.code for finding in findings if finding.level == level}


def run_command(*arguments: str | Path) -> int:
    """Run the command and return its exit status."""
    return main_audit([*map(str, arguments), "--quiet"])
