"""Checkpoints that tests of the audit make: small tables under the names and flags of real ones."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxtie.audit import command
from jaxtie.audit.judge import Audit, Request, audit

NAMES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float64": "F64",
    "int32": "I32",
    "uint8": "U8",
    "int8": "I8",
}
VOCABULARY, WIDTH = 512, 16


def table(seed: int = 0, vocabulary: int = VOCABULARY, width: int = WIDTH) -> np.ndarray:
    """A table of bfloat16."""
    return (
        np.random.default_rng(seed).standard_normal((vocabulary, width)).astype(ml_dtypes.bfloat16)
    )


def header_of(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What a safetensors file of these begins with."""
    header, at = {}, 0
    for name, array in tensors.items():
        kind = {"dtype": NAMES[array.dtype.name], "shape": list(array.shape)}
        header[name] = kind | {"data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    return header


def safetensors(path: Path, tensors: Mapping[str, np.ndarray], header: bytes | None = None) -> Path:
    """Write a safetensors file; `header`: to have another one."""
    text = json.dumps(header_of(tensors)).encode() if header is None else header
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def folder(
    path: Path, tensors: Mapping[str, np.ndarray], config: Mapping[str, Any] | None = None
) -> Path:
    """Write a folder as Hugging Face has it."""
    safetensors(path / "model.safetensors", tensors)
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def sharded(
    path: Path,
    shards: list[Mapping[str, np.ndarray]],
    listed: Mapping[str, str] = {},
    **config: Any,
) -> Path:
    """Write a folder of shards with an index; `listed`: names in the index beside those that are
    there.
    """
    count, names = len(shards), {}
    for i, tensors in enumerate(shards, 1):
        file = f"model-{i:05}-of-{count:05}.safetensors"
        safetensors(path / file, tensors)
        names |= dict.fromkeys(tensors, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names | listed}))
    (path / "config.json").write_text(json.dumps(config))
    return path


def gguf(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    architecture: str = "llama",
    cut: int | None = None,
) -> Path:
    """Write a GGUF file of version 3."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    words = b"".join(map(text, ("a", "b")))
    pairs = [text("general.architecture") + struct.pack("<I", 8) + text(architecture)]
    pairs += [text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + words]
    head, data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs), b""
    for name, array in tensors.items():
        data += b"\0" * (-len(data) % 32)
        # 2: blocks of four bits
        kind = {"float32": 0, "float16": 1, "bfloat16": 30, "uint8": 2}[array.dtype.name]
        shape = struct.pack(f"<{array.ndim}Q", *array.shape[::-1])
        head += (
            text(name) + struct.pack("<I", array.ndim) + shape + struct.pack("<IQ", kind, len(data))
        )
        data += array.tobytes()
    content = head + b"\0" * (-len(head) % 32) + data
    path.write_bytes(content[:cut])
    return path


def audited(path: Path, **request: Any) -> Audit:
    """The audit of a checkpoint, without progress."""
    return audit(path, Request(**request), lambda *_: None)


def codes(found: Audit, level: str = "wrong") -> set[str]:
    """Codes of what is wrong with it."""
    return {
        finding.code
        for verdict in found.verdicts
        for finding in verdict.findings
        if finding.level == level
    }


def run(*arguments: str | Path) -> int:
    """The command; returns the exit status."""
    return command.main_audit([*map(str, arguments), "--quiet"])
