"""A repaired copy says what it stores, keeps every other bit, and appears whole or not at all."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
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
    codes,
    header_of,
    run_command,
    write_folder,
    write_safetensors,
    write_shards,
)

from jaxtie.audit import command, repair
from jaxtie.audit.audit import audit
from jaxtie.audit.repair import write_repaired
from jaxtie.audit.stored import from_mapped
from jaxtie.config import UserError

LAYERS = {"model.layers.0.mlp.weight": B[:9], "model.norm.weight": np.arange(5, dtype=np.int8)}
W, S = "transformer.wte.weight", "shared.weight"
LLAMA, GPT2, T5, BART = ({"model_type": name} for name in ("llama", "gpt2", "t5", "bart"))
M = "model.shared.weight"
SIDES = {f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")}
ENCODER = {"encoder.embed_tokens.weight": A, "encoder.wo.weight": B[:7], "decoder.wo.weight": B[:7]}
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
    tensors = [one for path in folder.glob("*.safetensors") for one in from_mapped(path)[0]]
    return {one.name: one.read(...).tobytes() for one in tensors}


# Model -> shards, configuration, what is asked, tensors that go, that come (copies of the input),
# the tying finding of the copy, the value of the flag.
REPAIRS = {
    "Llama, stored twice, to be tied": ([{E: A, H: A}], LLAMA | TIED, "tie", {H}, set(), "once"),
    "Llama, said to be untied": ([{E: A, H: A}], LLAMA | UNTIED, "tie", {H}, set(), "once"),
    "Llama, a head that was never trained": ([{E: A, H: B}], TIED, "tie", {H}, set(), "once"),
    "Llama, a flag that is wrong": ([{E: A, H: B}], TIED, "flags", set(), set(), "different"),
    "Llama, no flag": ([{E: A, H: B}], {}, "flags", set(), set(), "different"),
    "Llama, tied": ([{E: A}], LLAMA | TIED, "untie", set(), {H}, "untied-copy"),
    "DeepSeek, tied": (
        [{E: A, "model.layers.61.embed_tokens.weight": A}],
        TIED,
        "untie",
        set(),
        {H},
        "untied-copy",
    ),
    "Llama, stored twice": ([{E: A, H: A}], LLAMA | TIED, "untie", set(), set(), "untied-copy"),
    "Llama, tied, but said to be untied": ([{E: A}], LLAMA | UNTIED, "tie", set(), set(), "once"),
    "GPT-2, tied": ([{W: A, "transformer.wpe.weight": B[:64]}], GPT2, "untie", set(), {H}, None),
    "GPT-2, stored twice": ([{W: A, H: A}], GPT2, "tie", {H}, set(), "once"),
    "GPT-2, no flag": ([{W: A, H: B}], GPT2, "flags", set(), set(), "different"),
    "shards": ([{E: A}, {"a.weight": B, H: A}], LLAMA | TIED, "tie", {H}, set(), "once"),
    "shards, one left empty": ([{"a.weight": B, E: A}, {H: A}], TIED, "tie", {H}, set(), "once"),
    "shards, tied": ([{E: A}, {"a.weight": B}], LLAMA | TIED, "untie", set(), {H}, "untied-copy"),
    "shards, a flag that is wrong": ([{E: A}, {H: B}], TIED, "flags", set(), set(), "different"),
    "T5, stored twice": ([ENCODER | {S: A, H: A}], T5 | TIED, "tie", {H}, set(), "once"),
    "T5, no flag, untied": (
        [ENCODER | {S: A, H: B}],
        T5 | UNTIED | {"text_config": V | T5 | TIED},
        "flags",
        set(),
        set(),
        "different",
    ),
    "BART, tied": ([{M: A}], BART | TIED, "untie", set(), {H, *SIDES}, "untied-copy"),
    "BART, stored twice": ([{M: A, H: A}], BART | TIED, "untie", set(), SIDES, "untied-copy"),
    "BART, no flag": ([{M: A, H: B}], BART, "flags", set(), SIDES, "different"),
    "BART, copies are missing": ([{M: A, H: B}], BART | UNTIED, "flags", set(), SIDES, "different"),
    "BART, a copy is missing": (
        [{M: A, H: B, min(SIDES): B}],
        BART | UNTIED,
        "flags",
        set(),
        {max(SIDES)},
        "different",
    ),
    "BART, to be tied": ([{M: A}, {H: A}], BART | UNTIED, "tie", {H}, set(), "once"),
    "ProphetNet, tied": (
        [{"prophetnet.word_embeddings.weight": A}],
        {"model_type": "prophetnet"},
        "untie",
        set(),
        {H, *(f"prophetnet.{side}.word_embeddings.weight" for side in ("encoder", "decoder"))},
        "untied-copy",
    ),
    "vision model, a flag in one level only": (
        [{"model.language_model.embed_tokens.weight": A}],
        {"model_type": "mistral3", "text_config": V | TIED, "vision_config": UNTIED},
        "flags",
        set(),
        set(),
        "once",
    ),
    "vision model, levels that disagree": (
        [{"language_model.model.embed_tokens.weight": A, "language_model.lm_head.weight": B}],
        UNTIED | {"text_config": V | TIED, "vision_config": TIED},
        "flags",
        set(),
        set(),
        "different",
    ),
    "a draft model with an inherited flag": (
        [{E: A, H: B[:100], "d2t": np.arange(100)}],
        TIED | {"draft_vocab_size": 100},
        "flags",
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
    assert found.findings[0].code == (code or "untied-copy")
    bits = bits_of(old)
    table = found.embeddings.input
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
    assert abs(sizes[1] - sizes[0] - TABLE * (len(come) - len(gone))) < 500
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


EVEN = np.where(np.arange(VOCABULARY)[:, None] % 2, A, B)
# Note in the report of a copy -> tensors, configuration, option.
NOTES: dict[str, tuple[Tensors, Mapping[str, Any], repair.RepairKind]] = {
    "dropped lm_head.weight; every flag says tied; lm_head.weight differed in 256 of 512 rows (ids"
    " 0, 2, 4 and 253 more), which are lost": ({E: A, H: EVEN}, TIED, "tie"),
    "every flag says tied; the flag turns on the factor 1/√D of the logits": (
        ENCODER | {S: A},
        T5 | UNTIED,
        "tie",
    ),
}


@pytest.mark.parametrize("text", NOTES)
def test_a_copy_says_what_else_it_changed(text: str, tmp_path: Path) -> None:
    tensors, config, how = NOTES[text]
    old = write(tmp_path / "old", [tensors], V | config)
    assert write_repaired(old, tmp_path / "new", how)[1] == text


def test_a_copy_names_the_files_beside_it_that_may_hold_embeddings(tmp_path: Path) -> None:
    old = write(tmp_path / "old", [{E: A, H: A}], TIED)
    (old / "global_step1").mkdir()
    names = ["a.ckpt", "global_step1/x.pt", "model.gguf", "optimizer.pt", "pytorch_model.bin"]
    for name in (*names, "tf_model.h5", "merges.txt"):
        (old / name).write_bytes(b"PK")
    _, done = write_repaired(old, tmp_path / "new", "tie")
    assert done.endswith(f"; not repaired, and copied as they are: {', '.join(names)} and 1 more")


def test_a_copy_is_made_of_the_tensors_that_the_user_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = {"first.wte.weight": A, "second.wte.weight": B, H: A}
    old = write(tmp_path / "old", [tables], V | TIED)
    assert run_command(old, "--write", tmp_path / "new", "--tie") == 2
    assert "'first.wte.weight', 'second.wte.weight'" in capsys.readouterr().err
    assert (
        run_command(old, "--input", "first.wte.weight", "--write", tmp_path / "new", "--tie") == 0
    )
    assert set(bits_of(tmp_path / "new")) == set(tables) - {H}


def test_a_copy_says_which_flag_it_set_at_every_level(tmp_path: Path) -> None:
    config = UNTIED | {"text_config": V | TIED, "vision_config": TIED, "other": [1e-5, "ü"]}
    old = write(tmp_path / "old", [{E: A, H: B}], config)
    write_repaired(old, tmp_path / "new", "flags")
    expected = UNTIED | {"text_config": V | UNTIED, "vision_config": TIED, "other": [1e-5, "ü"]}
    assert json.loads((tmp_path / "new" / "config.json").read_text()) == expected


def with_metadata(path: Path, tensors: Tensors, config: Mapping[str, Any], **metadata: str) -> Path:
    header = header_of(tensors) | {"__metadata__": metadata}
    write_safetensors(path / "model.safetensors", tensors, json.dumps(header).encode())
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_a_bart_that_was_trained_untied_is_consistent(tmp_path: Path) -> None:
    path = write_folder(tmp_path, {M: A, H: B, **dict.fromkeys(SIDES, B)}, V | BART | UNTIED)
    found = audit(path)
    assert not codes(found) and codes(found, "fine") == {"different", "separate"}


def test_an_untied_copy_is_tied_again_to_the_same_tensors(tmp_path: Path) -> None:
    old = write(tmp_path / "old", [{E: A} | LAYERS], V | TIED)
    write_repaired(old, tmp_path / "two", "untie")
    write_repaired(tmp_path / "two", tmp_path / "one", "tie")
    assert bits_of(tmp_path / "one") == bits_of(old)
    assert (tmp_path / "one/config.json").read_text() == json.dumps(V | TIED, indent=2) + "\n"
    found = [from_mapped(tmp_path / name / "model.safetensors")[1] for name in ("two", "one")]
    assert set(found[0]) == {"format", "jaxtie.untied"}  # transformers needs the format
    assert found[1] == {"format": "pt"}


@pytest.mark.parametrize(
    ("tensors", "config", "mark", "code"),
    [
        ({E: A, H: B}, UNTIED, "jaxtie.untied", "different"),  # trained since
        ({E: A, H: A}, TIED, "jaxtie.untied", "equal"),
        ({E: A, H: A}, UNTIED, "format", "untied-but-equal"),  # saved again since
    ],
)
def test_the_mark_of_an_untied_copy_holds_only_for_equal_embeddings_that_are_said_to_be_untied(
    tensors: Tensors, config: Mapping[str, Any], mark: str, code: str, tmp_path: Path
) -> None:
    path = with_metadata(tmp_path, tensors, V | config, **{mark: "pt"})
    assert audit(path).main.code == code


BERT, BERT_HEAD = {"model_type": "bert"}, "cls.predictions.decoder"
BERT_INPUT = "bert.embeddings.word_embeddings.weight"
ROBERTA_BIAS = {"lm_head.bias": A[:, 0]}
IF_LOST = "Give --tie if it was trained tied; else restore the output embedding"
SHARD = np.concatenate([A[:256], B[256:]])
# Fault -> tensors, configuration, what is asked, part of the error.
REFUSED = {
    "untied, to be tied": ({E: A, H: B}, UNTIED, "tie", "--tie would change the model"),
    "no flag, to be tied": ({E: A, H: B}, {}, "tie", "--tie would change the model"),
    "equal after a cast": ({E: A.astype(np.float32), H: A}, TIED, "tie", "equal after a cast"),
    "padding": ({E: A, H: np.concatenate([A, A[:9] * 0])}, TIED, "tie", "would change the model"),
    "only the head": ({H: A}, TIED, "tie", "only the head, lm_head.weight, is stored; store it as"),
    "one table, no flag": ({"a.wte.weight": A}, {}, "flags", "nothing to repair: One embedding"),
    "packed, and NaN": ({E: A * np.nan, H: B.astype(np.int8)}, TIED, "flags", "8,192 NaN"),
    "a lost head, to be copied": ({E: A}, UNTIED, "untie", IF_LOST),
    "a lost head, to be declared": ({E: A}, UNTIED, "flags", f"missing. {IF_LOST}"),
    "a shard": ({E: A, H: SHARD}, TIED, "flags", "To do: look for a shard"),
    "a dead head": ({E: A, H: A * 0}, TIED, "tie", "cannot repair this: The output embedding is"),
    "NaN": ({E: A * np.nan, H: A}, TIED, "flags", "NaN"),
    "another size": ({E: A, H: PADDED}, TIED | LLAMA, "flags", "cannot repair this"),
    "a scale": ({E: A, H: A * 2}, TIED, "flags", "equal only up to a scale"),
    "packed": (
        {E: A, "lm_head.qweight": np.zeros((16, 64), np.int32)},
        TIED,
        "tie",
        "Packed: the output",
    ),
    "packed, to be copied": ({E: A.astype(np.int8)}, TIED, "untie", "--untie would change"),
    "an encoder": ({E: A}, TIED | {"architectures": ["BertModel"]}, "untie", "No output embedding"),
    "an encoder that lacks its copies": (
        {S: A},
        BART | UNTIED | {"architectures": ["BartModel"]},
        "flags",
        "cannot repair this: config.json says untied, so shared.weight does not reach",
    ),
    "T5, a retrained head": (ENCODER | {S: A, H: B}, T5 | TIED, "flags", "would change the logits"),
    "T5, a retrained head, no flag": (ENCODER | {S: A, H: B}, T5, "untie", "change the logits"),
    "T5, one table": (ENCODER | {S: A}, T5 | TIED, "untie", "divide the decoder's output by √D"),
    "T5, no flag": (ENCODER | {S: A, H: A}, T5, "untie", "would change the logits"),
    "T5, equal": (ENCODER | {S: A, H: A}, T5 | UNTIED, "tie", "would change the logits"),
    "BART, trained apart": (
        {M: A, H: A, **dict.fromkeys(SIDES, B)},
        BART | UNTIED,
        "tie",
        "a tied flag would change the model: model.",
    ),
    "GPT-2 without a prefix": ({"wte.weight": A}, GPT2, "untie", "does not know the name of the"),
    "a head with a transform": (
        {
            BERT_INPUT: A,
            "cls.predictions.transform.dense.weight": B,
            "cls.predictions.bias": A[:, 0],
        },
        BERT,
        "untie",
        "does not know the name of the head",
    ),
    "a retrained head with a transform": (
        {BERT_INPUT: A, f"{BERT_HEAD}.weight": B, "cls.predictions.transform.dense.weight": B},
        BERT | TIED,
        "flags",
        "its head has cls.predictions.transform.dense.weight, too, and what loaders do",
    ),
    "a kind whose copies changed": (
        {E: A, H: B},
        {"model_type": "t5gemma2"} | TIED,
        "flags",
        "copies of t5gemma2 models did not keep their logits",
    ),
    "a retrained head with a bias": (
        {
            "roberta.embeddings.word_embeddings.weight": A,
            "lm_head.decoder.weight": B,
            **ROBERTA_BIAS,
        },
        {"model_type": "roberta"} | TIED,
        "flags",
        "its head has lm_head.bias, too, and what loaders do",
    ),
    "a head with a bias, to be dropped": (
        {BERT_INPUT: A, f"{BERT_HEAD}.weight": A, "cls.predictions.bias": A[:, 0]},
        {"model_type": "new"} | TIED,
        "tie",
        "what loaders do with it in new models after a change of tying was not tried",
    ),
    "an optimizer, to be tied": (
        {E: A, H: A, f"opt_state.mu.{H}": A},
        TIED,
        "tie",
        f"holds opt_state.mu.{H}, too, the state of an optimizer or",
    ),
    "an optimizer, to be untied": (
        {E: A, f"opt_state.mu.{E}": A},
        TIED,
        "untie",
        f"which has to change with {E}; change both in the program that",
    ),
    "two sets of parameters": (
        {"best." + E: A, "best." + H: A, E: A, H: A},
        TIED,
        "tie",
        "or another set of parameters, which has to change with best.lm_head.weight",
    ),
    "a draft model": (
        {E: A, H: B[:100], "d2t": np.arange(100)},
        TIED,
        "tie",
        "--flags keeps what is stored",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_certain_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    tensors, config, how, part = REFUSED[case]
    old = write(tmp_path / "old", [tensors], V | config)
    with pytest.raises(UserError) as error:
        write_repaired(old, tmp_path / "new", how)
    assert part in str(error.value) and "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_progress_is_shown_while_files_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shards: list[Tensors] = [{E: A}, {"a.weight": B}]
    old = write(tmp_path / "old", shards, V | TIED)
    monkeypatch.setattr(command, "SECONDS", -1.0)
    assert command.main_audit([str(old), "--write", str(tmp_path / "new"), "--untie"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "files copied" in line]
    assert lines == [f"files copied: {i} of 5" for i in range(1, 6)]


def test_names_of_the_index_that_no_file_has_are_dropped_only_if_they_are_tied_heads(
    tmp_path: Path,
) -> None:
    file = "model-00001-of-00002.safetensors"
    shards: list[Tensors] = [{E: A}, {"a.weight": B}]
    head = write_shards(tmp_path / "head", shards, {H: file}, **V, **TIED)
    layer = write_shards(tmp_path / "layer", shards, {"b.weight": file}, **V, **TIED)
    unsaid = write_shards(tmp_path / "unsaid", shards, {H: file}, **V)
    for path in (head, layer, unsaid):
        assert codes(audit(path)) == {"index-without-tensor"}
    result, _ = write_repaired(head, tmp_path / "new", "flags")
    assert not codes(result)
    with pytest.raises(UserError, match="no file has b"):
        write_repaired(layer, tmp_path / "other", "flags")
    with pytest.raises(UserError, match="no file has lm_head"):
        write_repaired(unsaid, tmp_path / "other", "flags")


def write_away(path: Path) -> Path:
    path.mkdir()
    return path


# What is wrong with the paths -> how it comes about in a folder with `old`, NEW, part of the error.
BAD_PATHS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "it exists": (lambda top: (top / "new").mkdir(), "new", "exists; give"),
    "it is a link": (lambda top: (top / "new").symlink_to(top / "no"), "new", "exists; give"),
    "it is the checkpoint": (lambda top: None, "old", "exists; give"),
    "it is inside": (lambda top: None, "old/new", "is inside"),
    "no parent": (lambda top: None, "a/b", "there is no folder"),
    "left": (lambda top: (top / "new.partial").mkdir(), "new", "an interrupted repair left"),
    "a link that leaves": (
        lambda top: (top / "old" / "merges.txt").symlink_to(write_safetensors(top / "b", {E: A})),
        "new",
        "leaves the folder",
    ),
    "a link to a folder": (
        lambda top: (top / "old" / "away").symlink_to(write_away(top / "away")),
        "new",
        "link to a folder",
    ),
    "no flags": (lambda top: (top / "old/config.json").unlink(), "new", "with a config.json"),
    "two models": (
        lambda top: write_safetensors(top / "old" / "consolidated.safetensors", {E: A}),
        "new",
        "several checkpoints: consolidated",
    ),
}


@pytest.mark.parametrize("case", BAD_PATHS)
def test_a_copy_of_one_checkpoint_goes_to_a_new_folder(case: str, tmp_path: Path) -> None:
    spoil, new, part = BAD_PATHS[case]
    old = write(tmp_path / "old", [{E: A, H: A}], V | TIED)
    spoil(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=part):
        write_repaired(old, tmp_path / new, "tie")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("how", "needed"), [("tie", TABLE), ("untie", 2 * TABLE)])
def test_a_disk_that_is_too_small_is_reported_before_anything_is_written(
    how: repair.RepairKind, needed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {E: A, H: A} if how == "tie" else {E: A}
    old = write(tmp_path / "old", [tensors], V | TIED)
    usage = type("Usage", (), {"free": 2**20 + needed})
    monkeypatch.setattr("jaxtie.audit.repair.shutil.disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="the disk has"):
        write_repaired(old, tmp_path / "new", how)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("name", ["tables.npz", "model.safetensors"])
def test_only_folders_of_safetensors_are_written_anew(name: str, tmp_path: Path) -> None:
    write(tmp_path / "old", [{E: A, H: A}], V | TIED)
    np.savez(tmp_path / "old" / "tables.npz", **{E: A, H: A})
    with pytest.raises(UserError, match="only a folder of safetensors"):
        write_repaired(tmp_path / "old" / name, tmp_path / "new", "tie")


def test_links_of_a_cache_are_copied_as_files(tmp_path: Path) -> None:
    cache = tmp_path / "models--org--name"
    snapshot = cache / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    blobs = write(cache / "blobs", [{E: A, H: A}], V | TIED)
    for name in ("model.safetensors", "config.json"):
        (snapshot / name).symlink_to(blobs / name)
    write_repaired(snapshot, tmp_path / "new", "tie")
    assert not any(path.is_symlink() for path in (tmp_path / "new").rglob("*"))
    assert set(bits_of(tmp_path / "new")) == {E}


KILL = """
import os, signal, sys
from pathlib import Path
from jaxtie.audit import repair

flush, write_file = repair._flush, repair._write_file

def die_after(steps, folder):
    left = steps

    def dying(do):
        def do_or_die(*arguments):
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            do(*arguments)
        return do_or_die

    repair._flush, repair._write_file = dying(flush), dying(write_file)
    repair.write_repaired(folder / "old", folder / "new", "tie")

for folder in map(Path, sys.argv[1:]):
    child = os.fork()
    if not child:
        die_after(int(folder.name), folder)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


def test_a_copy_that_is_killed_half_way_does_not_look_finished(tmp_path: Path) -> None:
    """Of three files and six flushes; the last flush follows the folder's new name."""
    folders = [tmp_path / steps for steps in ("1", "2", "4", "8")]
    for folder in folders:
        write(folder / "old", [{E: A, H: A}], V | TIED)
    subprocess.run([sys.executable, "-c", KILL, *map(str, folders)], check=True)
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == ["new.partial", "old"]
        left = "new.partial: an interrupted repair left this folder; rem"
        with pytest.raises(UserError, match=left):
            write_repaired(folder / "old", folder / "new", "tie")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("files", [1, 4])
def test_a_copy_that_fails_leaves_nothing(
    error: type[BaseException], files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write(tmp_path / "old", [{E: A, H: A}], V | TIED)
    steps = iter([None] * (files - 1))

    def flush(path: Path) -> None:
        if next(steps, error) is error:
            raise error

    monkeypatch.setattr(repair, "_flush", flush)
    with pytest.raises(error):
        write_repaired(old, tmp_path / "new", "tie")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("tensors", "config", "options"),
    [
        ({E: A, H: B}, TIED, "(--write NEW --flags or --tie)"),
        ({E: A}, UNTIED, "(--write NEW --tie)"),
        ({E: A, H: B[:100], "d2t": np.arange(100)}, TIED, "(--write NEW --flags)"),
        ({E: A, H: SHARD}, TIED, ""),
        (ENCODER | {S: A, H: B}, T5 | TIED, "(--write NEW --tie)"),
    ],
)
def test_what_to_do_names_the_options_that_repair_it(
    tensors: Tensors, config: Mapping[str, Any], options: str, tmp_path: Path, capsys: Any
) -> None:
    write(tmp_path / "old", [tensors], V | config)
    assert run_command(tmp_path / "old") == 1
    (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("to do")]
    assert line.endswith(options) and ("--write" in line) == bool(options)


def test_the_command_says_what_it_wrote_and_ends_with_the_status_of_the_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write(tmp_path / "old", [{E: A, H: B}], V | TIED)
    assert run_command(old, "--write", tmp_path / "new") == 2
    assert "expected with one of --tie, --untie and --flags" in capsys.readouterr().err
    assert run_command(old, "--write", tmp_path / "new", "--flags") == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == f"wrote    {tmp_path / 'new'}: every flag says untied"
    assert second.startswith("Consistent. Untied: the two embeddings differ in all 512 rows")
    assert run_command(tmp_path / "new") == 0


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ("--tie", "--write NEW: expected with one of --tie"),
        ("--write new --tie --flags", "--write NEW: expected with one of --tie"),
        ("--write new --tie --json", "--write: expected without --adapter, --allow and --json"),
        ("other --write new --tie", "expected PATH, one checkpoint, not 2: old, other"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(*f"old {options}".split()) == 2
    assert part in capsys.readouterr().err


def test_a_fault_of_the_program_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(repair, "plan_repair", fail)
    old = write(tmp_path / "old", [{E: A, H: A}], V | TIED)
    assert run_command(old, "--write", tmp_path / "new", "--tie") == 2
    assert capsys.readouterr().err.count("\n") == 1
