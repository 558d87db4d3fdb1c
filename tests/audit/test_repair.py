"""A repaired copy says what it stores, keeps every other bit, and appears whole or not at all."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import (
    TIED,
    UNTIED,
    VOCABULARY,
    WIDTH,
    A,
    B,
    E,
    H,
    Tensors,
    V,
    write_folder,
    write_shards,
)

from jaxtie.audit.audit import audit
from jaxtie.audit.repair import write_repaired
from jaxtie.audit.stored import from_safetensors

LAYERS = {"model.layers.0.mlp.weight": B[:9], "model.norm.weight": np.arange(5, dtype=np.int8)}
W, S = "transformer.wte.weight", "shared.weight"
LLAMA, GPT2, T5 = ({"model_type": name} for name in ("llama", "gpt2", "t5"))
ENCODER = {"encoder.embed_tokens.weight": A, "encoder.block.0.wo.weight": B[:7]}
TABLE = VOCABULARY * WIDTH * 2  # bytes
PADDED = np.concatenate([B, B[:64]])


def write(path: Path, shards: list[Tensors], config: Mapping[str, Any]) -> Path:
    """Write a folder with files that are no tensors, too; shards if there are several."""
    if len(shards) == 1:
        write_folder(path, shards[0], config)
    else:
        write_shards(path, shards, **config)
        index = path / "model.safetensors.index.json"
        content = {"metadata": {"total_size": 1, "other": 2}} | json.loads(index.read_text())
        index.write_text(json.dumps(content))
    (path / "onnx").mkdir()
    (path / "onnx" / "tokenizer.json").write_bytes(os.urandom(99))
    return path


def bits_of(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every tensor of a folder."""
    tensors = [one for path in folder.glob("*.safetensors") for one in from_safetensors(path)[0]]
    return {one.name: one.read(...).tobytes() for one in tensors}


# Model -> shards, configuration, what is asked, tensors that go, that come (copies of the input),
# the tying finding of the copy, the value of the flag.
REPAIRS = {
    "Llama, stored twice, as advised": ([{E: A, H: A}], LLAMA | TIED, None, {H}, set(), "once"),
    "Llama, said to be untied": ([{E: A, H: A}], LLAMA | UNTIED, "tie", {H}, set(), "once"),
    "Llama, a head that was never trained": ([{E: A, H: B}], TIED, "tie", {H}, set(), "once"),
    "Llama, a flag that is wrong": ([{E: A, H: B}], TIED, "flags", set(), set(), "different"),
    "Llama, no flag": ([{E: A, H: B}], {}, None, set(), set(), "different"),
    "Llama, tied": ([{E: A}], LLAMA | TIED, "untie", set(), {H}, "untied-copy"),
    "Llama, stored twice": ([{E: A, H: A}], LLAMA | TIED, "untie", set(), set(), "untied-copy"),
    "Llama, the head is missing": ([{E: A}], LLAMA | UNTIED, "flags", set(), set(), "once"),
    "GPT-2, tied": ([{W: A, "transformer.wpe.weight": B[:64]}], GPT2, "untie", set(), {H}, None),
    "GPT-2, stored twice": ([{W: A, H: A}], GPT2, "tie", {H}, set(), "once"),
    "GPT-2, no flag": ([{W: A, H: B}], GPT2, "flags", set(), set(), "different"),
    "shards": ([{E: A}, {"a.weight": B, H: A}], LLAMA | TIED, None, {H}, set(), "once"),
    "shards, one left empty": ([{"a.weight": B, E: A}, {H: A}], TIED, "tie", {H}, set(), "once"),
    "shards, tied": ([{E: A}, {"a.weight": B}], LLAMA | TIED, "untie", set(), {H}, "untied-copy"),
    "shards, a flag that is wrong": ([{E: A}, {H: B}], TIED, "flags", set(), set(), "different"),
    "T5, stored twice": ([ENCODER | {S: A, H: A}], T5 | TIED, "tie", {H}, set(), "once"),
    "T5, no flag": ([ENCODER | {S: A, H: B}], T5, "flags", set(), set(), "different"),
    "vision model, a flag in one level only": (
        [{"model.language_model.embed_tokens.weight": A}],
        {"model_type": "mistral3", "text_config": V | TIED, "vision_config": UNTIED},
        None,
        set(),
        set(),
        "once",
    ),
    "vision model, levels that disagree": (
        [{"language_model.model.embed_tokens.weight": A, "language_model.lm_head.weight": B}],
        UNTIED | {"text_config": V | TIED, "vision_config": TIED},
        None,
        set(),
        set(),
        "different",
    ),
    "a draft model with an inherited flag": (
        [{E: A, H: B[:100], "d2t": np.arange(100)}],
        TIED | {"draft_vocab_size": 100},
        None,
        set(),
        set(),
        "draft",
    ),
}


@pytest.mark.parametrize("case", REPAIRS)
def test_a_copy_is_consistent_and_has_all_other_tensors_bit_for_bit(
    case: str, tmp_path: Path
) -> None:
    shards, config, how, gone, come, code = REPAIRS[case]
    old = write(tmp_path / "old", [shards[0] | LAYERS, *shards[1:]], V | config)
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    result, _ = write_repaired(old, tmp_path / "new", how)
    found = audit(tmp_path / "new")
    assert found.status == 0 == result.status
    assert found.verdicts[0].findings[0].code == (code or "untied-copy")
    bits = bits_of(old)
    (table,) = {E, W, S, *shards[0]} & set(bits) and [found.verdicts[0].embeddings.input]
    expected = {name: data for name, data in bits.items() if name not in gone}
    expected |= {name: bits[table.tensor.name] for name in come}
    assert bits_of(tmp_path / "new") == expected
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before
    token = "onnx/tokenizer.json"
    assert (tmp_path / "new" / token).read_bytes() == (old / token).read_bytes()
    sizes = [
        sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
        for folder in (old, tmp_path / "new")
    ]
    assert abs(sizes[1] - sizes[0] - TABLE * (len(come) - len(gone))) < 300
    assert not list(tmp_path.glob("*.partial"))
    if code == "once":
        flags = {flag.tied for flag in found.checkpoint.configuration.flags if flag.counts}
        assert flags == {True}
    if len(shards) > 1:
        index = json.loads((tmp_path / "new/model.safetensors.index.json").read_text())
        assert set(index["weight_map"]) == set(expected)
        assert index["metadata"]["other"] == 2
        if come or gone:
            assert index["metadata"]["total_size"] == sum(map(len, expected.values()))
