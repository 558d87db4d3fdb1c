"""Broken checkpoints as public issue threads describe them: the verdict and the fix."""

import json
import re
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest
from checkpoints import (
    TIED,
    UNTIED,
    VOCABULARY,
    A,
    B,
    E,
    H,
    Tensors,
    V,
    audit_folder,
    codes,
    run_command,
    write_folder,
    write_gguf,
    write_safetensors,
    write_shards,
)

from jaxtie.audit import findings
from jaxtie.audit.audit import Audit, audit
from jaxtie.audit.command import lines_of
from jaxtie.audit.findings import CAUSES, Finding
from jaxtie.config import UserError

LLAMA = V | {"model_type": "llama"}
VISION = "model.language_model.embed_tokens.weight"


def finding_of(found: Audit, code: str) -> Finding:
    (finding,) = [finding for finding in found.findings if finding.code == code]
    return finding


@pytest.mark.parametrize(
    ("config", "status", "code"),
    [(TIED, 0, "head-only"), (UNTIED, 1, "no-input"), ({}, 0, "no-input")],
)
def test_one_table_under_the_name_of_the_head(tmp_path, config, status, code):
    """safetensors keeps one of two names of the same memory."""
    found = audit_folder(tmp_path, {H: A}, V | {"model_type": "new"} | config)
    assert (found.status, found.main.code) == (status, code)
    assert "under the head's name lm_head.weight" in found.main.text
    if config:
        loaders = "".join(found.main.loaders)
        assert "transformers/issues/34759" in loaders and "43159" in loaders


TWO_MODELS = {
    "two kinds": {"a.model.embed_tokens.weight": A, "a.lm_head.weight": B, "b.wte.weight": B},
    "teacher and student": {
        f"{who}.decoder.embed_tokens.weight": table
        for who, table in (("teacher", A), ("student", B))
    },
    "discriminator and generator": {
        f"{who}.embeddings.word_embeddings.weight": table
        for who, table in (("discriminator", A), ("generator", B[:, :8]))
    },
}


@pytest.mark.parametrize("tensors", TWO_MODELS.values(), ids=TWO_MODELS.keys())
def test_two_models_in_one_file_are_both_named(tmp_path, capsys, tensors):
    assert run_command(write_folder(tmp_path, tensors, TIED)) == 2
    error = capsys.readouterr().err
    inputs = [name for name in tensors if "lm_head" not in name]
    assert "perhaps of several models; give one as --input" in error
    assert all(repr(name) in error for name in inputs)


@pytest.mark.parametrize(
    ("name", "code"), [("b.wte.weight", "once"), ("a.model.embed_tokens.weight", "equal")]
)
def test_the_head_of_another_model_is_not_taken(tmp_path, name, code):
    tensors = {"a.model.embed_tokens.weight": A, "a.lm_head.weight": A, "b.wte.weight": B}
    found = audit_folder(tmp_path, tensors, TIED, names=(name, None))
    assert found.status == 0 and found.main.code == code


def test_levels_and_missing_flags_are_listed(tmp_path):
    config = TIED | {"model_type": "mistral3", "text_config": V | UNTIED}
    found = audit_folder(tmp_path / "disagree", {VISION: A, H: B}, config)
    levels = "tie_word_embeddings: true; text_config.tie_word_embeddings: false"
    finding = finding_of(found, "levels-disagree")
    assert levels in finding.text and "transformers/pull/45857" in "".join(finding.loaders)
    found = audit_folder(tmp_path / "missing", {VISION: A}, {"text_config": V | TIED})
    assert found.checkpoint.configuration.flags[0].text == "tie_word_embeddings: missing"


def test_output_bias_of_a_tied_model_is_noted(tmp_path):
    """vLLM 46835: the bias was dropped with the output embedding; the checkpoint is sound."""
    bias = np.linspace(-3, 3, VOCABULARY).astype(np.float32)
    tensors = {"transformer.wte.weight": A, "lm_head.bias": bias}
    found = audit_folder(tmp_path, tensors, V | TIED | {"model_type": "gpt2"})
    assert found.status == 0 and "bias" in codes(found, "note")
    (line,) = finding_of(found, "bias").loaders
    assert "46835" in line


def test_output_in_the_index_but_in_no_file(tmp_path):
    """Megatron-Bridge 4883: a vision model's tied output embedding was not written."""
    shards = [{VISION: A}, {"model.norm.weight": A[0]}]
    listed = {H: "model-00002-of-00002.safetensors"}
    found = audit(write_shards(tmp_path, shards, listed, model_type="qwen3_vl", **V, **TIED))
    assert codes(found) == {"index-without-tensor"}
    assert "'lm_head.weight'" in found.main.text


@pytest.mark.parametrize(("architecture", "is_warned"), [("gpt2", True), ("llama", False)])
def test_gguf_of_an_architecture_that_needed_an_output(tmp_path, architecture, is_warned):
    """llama.cpp 12567: the file is tied and sound, but older builds stop."""
    found = audit(write_gguf(tmp_path / "m.gguf", {"token_embd.weight": A}, architecture))
    loaders = found.main.loaders
    assert found.status == 0 and any("12567" in line for line in loaders) == is_warned
    assert is_warned or not loaders


@pytest.mark.parametrize("leaf", ["weight_packed", "qweight"])
def test_packed_output_next_to_values_is_not_known(tmp_path, leaf, capsys):
    """llm-compressor 2835: nothing is guessed."""
    packed = np.zeros((VOCABULARY, 4), np.int32)
    tensors = {E: A, f"lm_head.{leaf}": packed, "lm_head.weight_scale": A[:, :1]}
    found = audit_folder(tmp_path, tensors, LLAMA | TIED)
    assert found.status == 0 and found.main.code == "packed"
    assert "whether both are equal is not known, and config.json says tied." in next(
        lines_of(found)
    )
    assert next(lines_of(found)).startswith("Not known. Packed: the output embedding (")


def packed(leaf: str, table: np.ndarray) -> Tensors:
    """Return a table as MLX packs it."""
    words = np.abs(table[:, :4].astype(np.float32) * 1000).astype(np.uint32)
    scales = {name: table[:, :1].astype(np.float16) for name in ("scales", "biases")}
    return {f"{leaf}.weight": words, **{f"{leaf}.{name}": one for name, one in scales.items()}}


@pytest.mark.parametrize(
    ("head", "flag", "status", "code"),
    [
        (A, TIED, 0, "equal"),
        (B, TIED, 1, "tied-but-different"),
        (A, UNTIED, 1, "untied-but-equal"),
        (B, UNTIED, 0, "different"),
        (B, {}, 1, "tied-but-different"),
    ],
)
def test_tables_that_are_packed_alike_are_compared_by_their_bytes(
    tmp_path, head, flag, status, code
):
    """mlx-swift-lm 490: the flag says tied, the file has a packed head."""
    kind = {"model_type": "gemma"} if not flag else LLAMA
    tensors = packed("model.embed_tokens", A) | packed("lm_head", head)
    found = audit_folder(tmp_path, tensors, kind | flag)
    assert (found.status, found.main.code) == (status, code)
    scales = tensors | {"lm_head.scales": tensors["lm_head.scales"][:, :0]}
    found = audit_folder(tmp_path / "scales", scales, kind | flag)
    assert found.main.code == "packed"


@pytest.mark.parametrize(("name", "same"), [("output.weight", True), ("token_embd.weight", False)])
def test_packed_tables_of_a_gguf_are_compared_by_their_bytes(tmp_path, name, same):
    blocks = np.random.default_rng(0).integers(0, 256, (64, 18), np.uint8)
    other = blocks if same else blocks[::-1]
    tables = {"token_embd.weight": blocks, "output.weight": other}
    path = write_gguf(tmp_path / "m.gguf", tables, blocks=32)
    found = audit(path)
    assert found.main.code == ("equal" if same else "different")
    assert found.embeddings.input.width == 32


@pytest.mark.parametrize(("tokens", "status"), [(512, 0), (500, 1), (520, 1)])
def test_a_list_of_tokens_of_another_length(tmp_path, tokens, status):
    """llama.cpp 5910: wrong shape."""
    path = write_gguf(tmp_path / "m.gguf", {"token_embd.weight": A}, tokens=tokens)
    found = audit(path)
    assert found.status == status
    assert codes(found) == ({"token-list"} if status else set())
    if status:
        assert f"{tokens:,} entries, the embedding 512 rows" in found.main.text
        assert audit(path, allowed=["token-list"]).status == 0


LORA_IN = {
    "model.embed_tokens.lora_embedding_A": B.T[:2],
    "model.embed_tokens.lora_embedding_B": B.T[:, :2],
}
LORA = {"lm_head.lora_A.weight": A[:2], "lm_head.lora_B.weight": A[:, :2]}
EMBED = "model.embed_tokens"
QWEIGHT = np.zeros((A.shape[1], len(A) // 8), np.int32)
ADAPTERS = {
    # PEFT 2018: a LoRA of the output is merged into the table that both share.
    "one side": ({E: A}, TIED, LORA, {}, {"adapter-one-side"}),
    "one side, kept tied": (
        {E: A},
        TIED,
        LORA,
        {"ensure_weight_tying": True},
        {"adapter-one-side"},
    ),
    **{
        f"{leaf} on one side": ({E: A}, TIED, {f"lm_head.{leaf}": A[:2]}, {}, {"adapter-one-side"})
        for leaf in ("hada_w1_a", "lokr_w1", "oft_R.weight", "vera_lambda_b", "ia3_l")
    },
    "LoRA on both sides": ({E: A}, TIED, LORA | LORA_IN, {}, {"adapter-both-sides"}),
    "LoRA on both sides, with base layers": (
        {E: A},
        TIED,
        LORA
        | LORA_IN
        | {f"{name}.base_layer.weight": A for name in ("model.embed_tokens", "lm_head")},
        {},
        {"adapter-both-sides"},
    ),
    "the same LoRA on both sides": (
        {E: A},
        TIED,
        LORA
        | {
            "model.embed_tokens.lora_embedding_A": np.ascontiguousarray(A[:, :2].T),
            "model.embed_tokens.lora_embedding_B": np.ascontiguousarray(A[:2].T),
        },
        {"ensure_weight_tying": True},
        {"adapter-both-sides"},
    ),
    "more rows than the base": (
        {E: A[:500]},
        {"tie_word_embeddings": True, "vocab_size": 500},
        {E: B, H: B},
        {},
        {"adapter-size"},
    ),
    "more rows than an untied base": (
        {E: A[:500], H: B[:500]},
        {"tie_word_embeddings": False, "vocab_size": 500},
        LORA,
        {},
        {"adapter-size"},
    ),
    "a layer": ({E: A}, TIED, {"model.layers.0.q_proj.lora_A.weight": A[:2]}, {}, set()),
    "an untied model": ({E: A, H: B}, UNTIED, LORA, {}, set()),
    "an untied model, packed": ({E: A, "lm_head.qweight": QWEIGHT}, UNTIED, LORA, {}, set()),
    # transformers 45127: modules_to_save of both; PEFT 0.21.2 unties the merged model.
    "both sides": ({E: A}, TIED, {E: A, H: B}, {}, set()),
    "both sides, said to be tied": (
        {E: A},
        TIED,
        {E: A, H: B},
        {"ensure_weight_tying": True},
        set(),
    ),
    # PEFT 2399: chosen tokens are trained in both.
    "tokens": ({E: A}, TIED, {f"{EMBED}.token_adapter.trainable_tokens_delta": A[:5]}, {}, set()),
    "tokens, with other layers": (
        {E: A},
        TIED,
        {f"{EMBED}.trainable_tokens_delta": A[:5], "model.layers.0.q_proj.lora_A.weight": A[:2]},
        {},
        set(),
    ),
    "tokens of the head": (
        {E: A},
        TIED,
        {"lm_head.token_adapter.trainable_tokens_delta": A[:5]},
        {},
        {"adapter-one-side"},
    ),
    # tinker-cookbook 593
    "another name of the head": (
        {E: A},
        TIED,
        {f"model.unembed_tokens.lora_{side}.weight": A[:, :4] for side in "AB"},
        {},
        {"adapter-one-side"},
    ),
    "both sides, equal": ({E: A}, TIED, {E: B, H: B}, {}, set()),
}


@pytest.mark.parametrize(
    ("tensors", "flag", "trained", "config", "wrong"), ADAPTERS.values(), ids=ADAPTERS.keys()
)
def test_adapter(tmp_path, tensors, flag, trained, config, wrong):
    adapter = tmp_path / "adapter"
    weights = {f"base_model.model.{name}": array for name, array in trained.items()}
    write_safetensors(adapter / "adapter_model.safetensors", weights)
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    found = audit_folder(tmp_path / "base", tensors, LLAMA | flag, adapter=adapter)
    assert codes(found) == wrong
    if any("tokens_delta" in name for name in trained) and not wrong:
        assert "peft/pull/2399" in "".join(finding_of(found, "adapter").loaders)
    is_saved = {E, H} <= set(trained)
    if is_saved and not wrong:
        is_same = trained[E].tobytes() == trained[H].tobytes()
        finding = finding_of(found, "adapter")
        assert ("equal" if is_same else "once merged, that is untied") in finding.text
        assert is_same or "transformers/issues/45127" in "".join(finding.loaders)
    if wrong == {"adapter-one-side"}:
        assert "the output embedding" in found.main.text


def test_the_command_prints_five_lines(tmp_path, capsys):
    """Verdict, what is stored, flags, what to do, loaders; the rest with --verbose."""
    rows = np.concatenate([A, B[:12] * 0])
    path = write_folder(tmp_path, {E: rows, H: rows + 1, "lm_head.bias": rows[:, 0]}, LLAMA | TIED)
    assert run_command(path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "Inconsistent.",
        "stored",
        "flags",
        "to",
        "wrong",
    ]
    assert lines[0].startswith("Inconsistent. config.json says tied, but the two embeddings differ")
    assert lines[1].startswith(f"stored   {E} (524 × 16, BF16, model.safetensors); {H} (524 × 16, ")
    assert lines[3].startswith(
        "to do    to keep both, set tie_word_embeddings: false in config.json"
    )
    assert lines[4].startswith("wrong in transformers 4.54 to 4.57; vLLM before pull 51665; NeMo")
    assert run_command(path, "--verbose") == 1
    more = capsys.readouterr().out.splitlines()
    assert more[:5] == lines
    assert "note     Padding: the last 12 of 524 rows." in more
    assert "transformers/pull/42612" in "".join(more) and "bias     lm_head.bias" in more


@pytest.mark.parametrize("bad", [0, np.nan, np.inf])
def test_the_only_good_table_is_never_dropped(tmp_path, bad):
    rows = np.full_like(A, bad) if bad == 0 else A.copy()
    rows[3] = bad
    found = audit_folder(tmp_path, {E: rows, H: B}, LLAMA | TIED)
    fix = finding_of(found, "tied-but-different").fix
    assert "drop" not in fix and fix.startswith(f"restore {E}, or store {H} under its name")


HALF = np.concatenate([B[:256], 0 * B[256:]])  # a shard of zeros


@pytest.mark.parametrize("head", [0 * B, HALF, np.where(B > 2, np.nan, B).astype(B.dtype)])
def test_a_head_whose_values_are_lost_is_not_kept(tmp_path, head):
    advice = f"restore {H}, or drop it if the model was trained tied"
    level = {"text_config": LLAMA | UNTIED}
    for claim in (TIED, {}, TIED | level):
        found = audit_folder(tmp_path, {E: A, H: head}, V | claim)
        assert found.findings[0].fix == advice
        fixes = [finding.fix for finding in found.findings]
        assert not any("set tie_word" in fix or "keep both" in fix for fix in fixes)
    found = audit_folder(tmp_path, {E: A * np.nan, H: head}, V | TIED)
    assert found.main.fix == f"restore {E} and {H}"


def test_a_model_that_lost_its_head_is_not_declared_tied(tmp_path):
    config = UNTIED | {"text_config": LLAMA | TIED}
    found = audit_folder(tmp_path, {E: A}, config)
    assert finding_of(found, "levels-disagree").fix == "find out whether it was trained tied"
    assert finding_of(found, "untied-but-once").fix.endswith("else restore the output embedding")


@pytest.mark.parametrize(
    ("input_type", "head_type", "advice"),
    [("bfloat16", "float32", ""), ("float32", "bfloat16", ""), ("float32", "float32", "drop")],
)
def test_one_of_two_precisions_is_not_dropped(tmp_path, input_type, head_type, advice):
    rows = np.random.default_rng(0).standard_normal(A.shape)
    fine = {name: rows.astype(np.float32).astype(name) for name in (input_type, head_type)}
    tables = {E: fine[input_type], H: fine[head_type]}
    for claim in (TIED, UNTIED):
        found = audit_folder(tmp_path, tables, LLAMA | claim)
        assert ("drop" in found.main.fix) == bool(advice)


def test_a_bart_that_lost_its_head_gets_one_instruction(tmp_path):
    config = V | UNTIED | {"model_type": "bart"}
    found = audit_folder(tmp_path, {"model.shared.weight": A}, config)
    assert codes(found) == {"untied-but-once"}
    config |= {"architectures": ["BartModel"]}
    assert codes(audit_folder(tmp_path, {"shared.weight": A}, config)) == {"shared-alone"}


@pytest.mark.parametrize(("tensors", "config"), [({E: A}, TIED), ({E: A, H: B}, UNTIED)])
def test_a_sound_checkpoint_has_three_lines(tmp_path, capsys, tensors, config):
    assert run_command(write_folder(tmp_path, tensors, LLAMA | config)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["Consistent.", "stored", "flags"]


def test_loaders_that_do_not_read_a_format_are_not_named(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(TIED))
    np.savez(tmp_path / "model.npz", **{E: A, H: B})
    assert run_command(tmp_path, "--verbose") == 1
    assert "loader" not in capsys.readouterr().out


def test_every_wrong_finding_is_printed(tmp_path, capsys):
    """Also those that did not set the status first."""
    zeros = np.zeros_like(A)
    write_shards(tmp_path, [{E: A, H: zeros}], {"gone": "model-00001-of-00001.safetensors"}, **TIED)
    assert run_command(tmp_path) == 1
    also = [line for line in capsys.readouterr().out.splitlines() if line.startswith("also")]
    assert len(also) == 2 and "'gone'" in also[0] and "dead" in also[1] and "To do: " in also[1]


def test_what_an_option_asks_for_is_printed(tmp_path, capsys):
    path = write_folder(tmp_path / "new", {E: A, H: B}, UNTIED)
    write_safetensors(tmp_path / "other" / "adapter_model.safetensors", LORA)
    assert run_command(path, "--adapter", tmp_path / "other") == 0
    assert "also     The adapter trains the output embedding and" in capsys.readouterr().out


def test_the_files_that_a_hook_names_are_one_checkpoint(tmp_path, capsys):
    write_shards(tmp_path, [{E: A}, {H: B}], **V, **TIED)
    for names in (["config.json"], sorted(path.name for path in tmp_path.iterdir())):
        assert run_command(*(tmp_path / name for name in names)) == 1
        assert capsys.readouterr().out.startswith("Inconsistent. config.json says tied")


def test_json_says_what_was_compared(tmp_path, capsys):
    path = write_folder(tmp_path, {E: A, H: B}, LLAMA | TIED)
    assert run_command(path, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["status"], found["cause"]) == (2, 1, "tied-but-different")
    assert found["input"]["name"] == E and found["path"] == str(path)
    assert found["comparison"]["differing runs"] == [[0, 511]]


@pytest.mark.parametrize(("kind", "status"), [("blenderbot", 1), ("bart", 0), ("new", 0)])
def test_copies_that_transformers_4_shares_whatever_the_flag_says(tmp_path, kind, status):
    sides = {f"model.{side}.embed_tokens.weight": B for side in ("encoder", "decoder")}
    tensors = {"model.shared.weight": A, "lm_head.weight": B} | sides
    found = audit_folder(tmp_path, tensors, V | UNTIED | {"model_type": kind})
    assert found.status == status and codes(found) == ({"copies-differ"} if status else set())


ROBERTA = ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder", "lm_head.bias")


def test_two_biases_of_unequal_length_cannot_be_loaded(tmp_path):
    """A resized, untied RoBERTa as transformers 5.24 writes it."""
    table, decoder, bias = ROBERTA
    tensors = {table: A, f"{decoder}.weight": B, f"{decoder}.bias": A[:, 0], bias: A[:500, 0]}
    found = audit_folder(tmp_path, tensors, V | UNTIED | {"model_type": "roberta"})
    assert codes(found) == {"bias-size"}
    assert "lm_head.bias has 500 entries, the output embedding 512" in found.main.text


def test_an_image_encoder_beside_a_decoder_needs_no_embedding(tmp_path):
    """BLIP-2 with OPT, as transformers writes it."""
    stem = "language_model.model.decoder"
    tensors = {
        f"{stem}.embed_tokens.weight": A,
        "language_model.lm_head.weight": B,
        "vision_model.encoder.layers.0.mlp.fc1.weight": A[:4],
        "qformer.encoder.layer.0.output.dense.weight": A[:4],
    }
    config = {"model_type": "blip-2", "text_config": V | {"model_type": "opt"}} | UNTIED
    assert audit_folder(tmp_path, tensors, config).status == 0


def test_zeros_of_both_signs_are_equal(tmp_path):
    other = A.copy()
    zeros = A.copy()
    zeros[3, 2], other[3, 2] = 0.0, -0.0
    found = audit_folder(tmp_path, {E: zeros, H: other}, LLAMA | TIED)
    assert found.status == 0 and found.main.code == "equal"
    assert "are equal after a change of the sign of zeros in 1 rows, and" in found.main.text
    assert not found.main.fix  # not every bit is the same
    cast = audit_folder(tmp_path / "cast", {E: zeros.astype(np.float32), H: other}, LLAMA | TIED)
    assert "after a cast, a change of the sign of zeros" in cast.main.text


@pytest.mark.parametrize(
    ("name", "tied", "tensors", "status", "words"),
    [
        ("mm.embedding_module.tok_embeddings.weight", True, {}, 0, "params.json says tied"),
        ("tok_embeddings.weight", True, {"output.weight": B}, 1, "params.json says tied, but the"),
        ("tok_embeddings.weight", False, {}, 1, "params.json says untied, but only one"),
    ],
)
def test_the_flags_of_mistral(tmp_path, name, tied, tensors, status, words):
    """vLLM 8168, mlx-audio 487: params.json next to consolidated.safetensors."""
    write_safetensors(
        tmp_path / "consolidated.safetensors", {name: A, "norm.weight": A[0]} | tensors
    )
    config = {"dim": 16, "n_layers": 1, "vocab_size": 512, "tied_embeddings": tied}
    (tmp_path / "params.json").write_text(json.dumps(config))
    found = audit(tmp_path)
    assert found.status == status and words in found.main.text


def test_a_flag_in_a_nested_level_is_a_note_if_transformers_5_ties_without_one(tmp_path):
    """transformers 43429: 5.0 missed it, 5.24 does not."""
    found = audit_folder(tmp_path, {VISION: A}, {"model_type": "mistral3", "text_config": V | TIED})
    assert found.status == 0 and codes(found, "note") == {"top-missing"}


def test_levels_that_transformers_5_itself_writes_apart_are_a_note(tmp_path):
    levels = TIED | {"text_config": V | UNTIED}
    for kind, status in (("lighton_ocr", 0), ("vision", 1)):
        config = levels | {"model_type": kind}
        assert audit_folder(tmp_path / kind, {VISION: A}, config).status == status


def test_a_transposed_head_is_not_what_transformers_loads(tmp_path):
    """Equal after a transpose is not consistent: neither transformers 4 nor 5 loads it."""
    weights = {E: A, H: np.ascontiguousarray(A.T)}
    found = audit_folder(tmp_path / "llama", weights, LLAMA | TIED)
    assert found.status == 1 and found.main.code == "layout"
    assert f"{H} is stored D × V (16 × 512)" in found.main.text
    assert audit_folder(tmp_path / "other", weights, V).status == 0  # not of transformers


def test_numbers_that_are_not_finite_differ_by_no_number(tmp_path):
    broken = A.copy()
    broken[3, 5] = np.nan
    found = audit_folder(tmp_path / "nan", {E: A, H: broken}, LLAMA | TIED)
    assert "differ in 1 of 512 rows" in found.main.text and "by at most 0" not in found.main.text


def test_causes_that_are_allowed(tmp_path, capsys):
    path = write_folder(tmp_path, {E: A, H: B}, LLAMA | TIED)
    assert run_command(path, "--allow", "tied-but-different,vocabulary") == 0
    out = capsys.readouterr().out
    assert out.startswith("Allowed. config.json says tied, but the two embeddings differ in all")
    assert run_command(path, "--allow", "vocabulary") == 1
    assert run_command(path, "--allow", "tied-but-diferent") == 2
    assert "expected one of tied-but-different" in capsys.readouterr().err


def test_every_cause_can_be_allowed():
    source = Path(findings.__file__).read_text()
    literal = re.findall(r'Finding\(\s*"([a-z-]+)",\s*"wrong"', source)
    assert len(literal) > 15 and set(literal) <= set(CAUSES) <= set(re.findall(r"[a-z-]+", source))


# ----- What looks alike and is not.


def scaled_in_part() -> np.ndarray:
    """Return four times a table, but for the last rows, which were trained."""
    head = 4 * A
    head[-5:] = B[-5:]
    return head


def test_a_scaled_head_is_not_dropped_for_the_rows_that_differ(tmp_path, capsys):
    folder = write_folder(tmp_path / "m", {E: A, H: scaled_in_part()}, LLAMA | TIED)
    assert f"differ in 5 of {VOCABULARY} rows" in audit(folder).main.text
    assert "(in the others output = 4 × input)" in audit(folder).main.text
    assert run_command(folder, "--write", tmp_path / "new", "--tie") == 2
    assert not (tmp_path / "new").exists() and "jaxtie: " in capsys.readouterr().err


def test_rounding_noise_is_no_scale(tmp_path):
    noise = np.random.default_rng(0).normal(size=A.shape)
    tables = A.astype(ml_dtypes.bfloat16), (A * (1 + 0.003 * noise)).astype(ml_dtypes.bfloat16)
    found = audit_folder(tmp_path, dict(zip((E, H), tables)), LLAMA | TIED)
    assert found.main.code == "tied-but-different" and "scale" not in found.main.text


def test_a_file_of_all_weights_is_read_and_not_an_index_that_was_left(tmp_path):
    """As transformers does."""
    write_shards(tmp_path, [{E: B}, {H: A}])
    found = audit_folder(tmp_path, {E: A}, LLAMA | TIED)
    assert (found.status, found.main.code) == (0, "once")


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ({"lm_head.q_weight": np.ones((4, VOCABULARY), np.int32)}, "packed"),
        ({"lm_head.weight._data": np.ones(A.shape, np.int8)}, "in an unknown form"),
        ({"lm_head.base_layer.weight": A}, "in an unknown form"),
        ({"lm_head.dense.weight": np.ones((A.shape[1],) * 2, np.float32)}, "untied-but-once"),
    ],
)
def test_a_head_of_an_unknown_form_is_not_missing(tmp_path, head, expected):
    try:
        found = audit_folder(tmp_path, {E: A} | head, LLAMA | UNTIED).main.code
    except UserError as error:
        found = str(error)
    assert expected in found


def test_the_flag_to_change_is_one_that_is_wrong(tmp_path):
    config = LLAMA | {"tie_word_embeddings": True, "tie_embeddings": False}
    found = audit_folder(tmp_path, {E: A}, config)
    assert "set tie_embeddings: true" in " ".join(f"{each.fix}" for each in found.findings)


def test_bfloat16_of_keras_is_read(tmp_path):
    path = tmp_path / "model.weights.h5"
    with h5py.File(path, "w") as file:
        for name, table in ((E, A), (H, B)):
            data = table.astype(ml_dtypes.bfloat16).view("V2")
            file.create_dataset(name.replace(".", "/"), data=data).attrs["dtype"] = "bfloat16"
    found = audit(path)
    gap = A.astype(ml_dtypes.bfloat16).astype(float) - B.astype(ml_dtypes.bfloat16).astype(float)
    assert found.comparison.largest == np.abs(gap).max()


def test_a_small_difference_of_float64_tables_is_finite(tmp_path):
    table = A.astype(np.float64)
    np.savez(tmp_path / "m.npz", **{E: table, H: table + 1e-10})
    assert audit(tmp_path / "m.npz").comparison.largest == pytest.approx(1e-10, rel=0.01)
