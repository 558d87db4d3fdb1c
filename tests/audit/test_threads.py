"""Checkpoints as the threads describe them that cost people days: the audit tells what is wrong,
and what to do.
"""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoints import VOCABULARY, audited, codes, folder, gguf, run, safetensors, sharded, table

A, B = table(0), table(1)
LLAMA = {"model_type": "llama", "vocab_size": VOCABULARY}
E, H = "model.embed_tokens.weight", "lm_head.weight"
VISION = "model.language_model.embed_tokens.weight"


def changed_rows(start: int, stop: int) -> np.ndarray:
    rows = A.copy()
    rows[start:stop] = B[start:stop]
    return rows


def test_a_flag_that_says_tied_over_a_head_of_its_own(tmp_path):
    """transformers 42612: 4.54 to 4.57 overwrite the head."""
    found = audited(folder(tmp_path, {E: A, H: B}, LLAMA | {"tie_word_embeddings": True}))
    (verdict,) = found.verdicts
    assert found.status == 1 and codes(found) == {"tied-but-different"}
    assert "says tied, but the two tables differ in all 512 rows" in verdict.main.text
    assert "set tie_word_embeddings: false" in verdict.main.fix
    assert any(
        "4.54 to 4.57: overwrites" in line and "42612" in line for line in verdict.main.loaders
    )


def test_a_trained_head_of_added_tokens_alone(tmp_path):
    """transformers 45127: a LoRA with an extended vocabulary, merged."""
    found = audited(
        folder(tmp_path, {E: A, H: changed_rows(500, 512)}, LLAMA | {"tie_word_embeddings": True})
    )
    assert codes(found) == {"tied-but-different"}
    assert "12 of 512 rows (only 500 to 511: perhaps added tokens)" in found.verdicts[0].main.text


def test_a_composite_model_whose_levels_disagree_with_a_real_head(tmp_path):
    """vLLM 51063: the top level says tied, text_config does not, and a real head is dropped."""
    config = {"model_type": "mistral3", "tie_word_embeddings": True}
    config["text_config"] = {"vocab_size": VOCABULARY, "tie_word_embeddings": False}
    found = audited(folder(tmp_path, {VISION: A, H: B}, config))
    assert codes(found) == {"tied-but-different", "levels-disagree"}
    assert any("51063" in line for line in found.verdicts[0].main.loaders)
    levels = next(
        finding for finding in found.verdicts[0].findings if finding.code == "levels-disagree"
    )
    assert "tie_word_embeddings: true; text_config.tie_word_embeddings: false" in levels.text


def test_a_flag_in_text_config_alone(tmp_path):
    """transformers 43429: Mistral 3 has one table; its head was made up."""
    config = {
        "model_type": "mistral3",
        "text_config": {"vocab_size": VOCABULARY, "tie_word_embeddings": True},
    }
    found = audited(folder(tmp_path, {VISION: A}, config))
    assert codes(found) == {"top-missing"}
    assert (
        "set tie_word_embeddings: true in config.json at the top level"
        in found.verdicts[0].main.fix
    )
    assert found.checkpoint.configuration.flags[0].text == "tie_word_embeddings: missing"
    assert any("43429" in line for line in found.verdicts[0].main.loaders)


def test_a_flag_that_is_not_lifted_from_text_config(tmp_path):
    """transformers 45857: the top level's default contradicts text_config."""
    config = {"model_type": "qwen2_vl", "tie_word_embeddings": False}
    config["text_config"] = {"vocab_size": VOCABULARY, "tie_word_embeddings": True}
    found = audited(folder(tmp_path, {VISION: A}, config))
    assert codes(found) == {"untied-but-once", "levels-disagree"}
    assert any(
        "45857" in line for finding in found.verdicts[0].findings for line in finding.loaders
    )
    assert "text_config" not in found.verdicts[0].main.fix  # it says tied already


def test_a_learned_bias_under_a_tied_head(tmp_path):
    """vLLM 46835: the bias was dropped with the head; the checkpoint is sound, and is told of
    it.
    """
    bias = np.linspace(-3, 3, VOCABULARY).astype(np.float32)
    config = LLAMA | {"model_type": "gpt2", "tie_word_embeddings": True}
    found = audited(folder(tmp_path, {"transformer.wte.weight": A, "lm_head.bias": bias}, config))
    assert found.status == 0 and "bias" in codes(found, "note")
    (line,) = next(
        finding for finding in found.verdicts[0].findings if finding.code == "bias"
    ).loaders
    assert "46835" in line


def test_an_encoder_without_a_table(tmp_path):
    """transformers 48154: T5 without shared.weight; the encoder took lm_head."""
    tensors = {"decoder.embed_tokens.weight": A, H: B, "encoder.final_layer_norm.weight": A[0]}
    found = audited(
        folder(
            tmp_path,
            tensors,
            {"model_type": "t5", "tie_word_embeddings": False, "vocab_size": VOCABULARY},
        )
    )
    assert codes(found) == {"no-shared-table"}
    assert "write decoder.embed_tokens.weight as shared.weight too" in found.verdicts[0].main.fix


def test_a_head_that_was_dropped_though_the_flag_says_untied(tmp_path):
    """Automodel 2511, the other end: the head was left out when it was saved."""
    found = audited(folder(tmp_path, {E: A}, LLAMA | {"tie_word_embeddings": False}))
    assert codes(found) == {"untied-but-once"}
    assert "only one table, model.embed_tokens.weight, is stored" in found.verdicts[0].main.text
    assert any("at random" in line for line in found.verdicts[0].main.loaders)


def test_a_head_that_drifted_under_a_tied_flag(tmp_path):
    """Automodel 2511: tables that were to be one and were not; the default of the class counts
    where no flag does.
    """
    found = audited(
        folder(tmp_path, {E: A, H: B}, {"model_type": "gemma", "vocab_size": VOCABULARY})
    )
    assert codes(found) == {"tied-but-different"}
    assert any("Automodel" in line and "2511" in line for line in found.verdicts[0].main.loaders)


def test_a_dead_output_layer(tmp_path):
    """Megatron-LM 7577: a table that no forward pass reads, kept in the checkpoint."""
    decayed = (A.astype(np.float32) * 0.5 + 0.1).astype(A.dtype)
    tensors = {"embedding.word_embeddings.weight": A, "output_layer.weight": decayed}
    found = audited(folder(tmp_path, tensors, {"share_embeddings_and_output_weights": True}))
    assert codes(found) == {"tied-but-different"}
    assert "set share_embeddings_and_output_weights: false" in found.verdicts[0].main.fix
    assert "drop output_layer.weight" in found.verdicts[0].main.fix
    assert any("7577" in line for line in found.verdicts[0].main.loaders)


def test_a_head_of_zeros(tmp_path):
    """Tying was never called, and the allocated head was saved (vec2text 94)."""
    found = audited(
        folder(tmp_path, {E: A, H: np.zeros_like(A)}, LLAMA | {"tie_word_embeddings": False})
    )
    assert codes(found) == {"dead-table"}


def test_a_head_that_an_export_left_out_but_indexed(tmp_path):
    """Megatron-Bridge 4883: a vision model's tied head was not written; the index has it."""
    shards = [{VISION: A}, {"model.norm.weight": A[0]}]
    listed = {H: "model-00002-of-00002.safetensors"}
    found = audited(
        sharded(
            tmp_path,
            shards,
            listed,
            model_type="qwen3_vl",
            tie_word_embeddings=True,
            vocab_size=VOCABULARY,
        )
    )
    assert codes(found) == {"index-without-tensor"}
    assert "'lm_head.weight'" in found.verdicts[0].main.text


def test_a_gguf_of_an_architecture_that_needed_two(tmp_path):
    """llama.cpp 12567: missing tensor 'output.weight'. It is tied and sound; older builds stop."""
    found = audited(gguf(tmp_path / "gpt2.gguf", {"token_embd.weight": A}, "gpt2"))
    assert found.status == 0
    assert any("12567" in line for line in found.verdicts[0].main.loaders)
    assert (
        not audited(gguf(tmp_path / "llama.gguf", {"token_embd.weight": A}))
        .verdicts[0]
        .main.loaders
    )


@pytest.mark.parametrize("leaf", ["weight_packed", "qweight"])
def test_a_packed_head_is_not_comparable(tmp_path, leaf):
    """llm-compressor 2835: nothing is guessed."""
    packed = np.zeros((VOCABULARY, 4), np.int32)
    tensors = {E: A, f"lm_head.{leaf}": packed, "lm_head.weight_scale": A[:, :1]}
    found = audited(folder(tmp_path, tensors, LLAMA | {"tie_word_embeddings": True}))
    assert found.status == 0 and found.verdicts[0].main.code == "packed"
    assert found.verdicts[0].main.text.startswith("Not comparable")


def adapter(path: Path, tensors: dict, **config) -> Path:
    safetensors(
        path / "adapter_model.safetensors",
        {f"base_model.model.{name}": array for name, array in tensors.items()},
    )
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path


def test_an_adapter_that_trains_one_side(tmp_path):
    """PEFT 2018: merging a LoRA of the head into the table that both ends share."""
    base = folder(tmp_path / "base", {E: A}, LLAMA | {"tie_word_embeddings": True})
    lora = {"lm_head.lora_A.weight": A[:2], "lm_head.lora_B.weight": A[:, :2]}
    found = audited(base, adapter=adapter(tmp_path / "one", lora))
    assert codes(found) == {"adapter-one-side"}
    assert "the output embedding" in found.verdicts[0].main.text
    assert (
        audited(base, adapter=adapter(tmp_path / "kept", lora, ensure_weight_tying=True)).status
        == 0
    )
    inner = {"model.layers.0.self_attn.q_proj.lora_A.weight": A[:2]}
    assert audited(base, adapter=adapter(tmp_path / "inner", inner)).status == 0
    untied = folder(tmp_path / "untied", {E: A, H: B}, LLAMA | {"tie_word_embeddings": False})
    assert audited(untied, adapter=adapter(tmp_path / "other", lora)).status == 0
    packed = {E: A, "lm_head.qweight": np.zeros((A.shape[1], len(A) // 8), np.int32)}
    packed_head = folder(tmp_path / "packed", packed, LLAMA | {"tie_word_embeddings": False})
    assert "adapter-one-side" not in codes(
        audited(packed_head, adapter=adapter(tmp_path / "other", lora))
    )


def test_an_adapter_that_trains_both_sides_apart(tmp_path):
    """transformers 45127: modules_to_save of both, the flag as it was."""
    base = folder(tmp_path / "base", {E: A}, LLAMA | {"tie_word_embeddings": True})
    both = adapter(tmp_path / "both", {"model.embed_tokens.weight": A, "lm_head.weight": B})
    assert codes(audited(base, adapter=both)) == {"adapter-both-sides"}
    equal = adapter(tmp_path / "equal", {"model.embed_tokens.weight": B, "lm_head.weight": B})
    assert audited(base, adapter=equal).status == 0


def test_a_shard_whose_rows_were_never_trained(tmp_path):
    """PyTorch 176076: the last rank of an uneven split."""
    count, parts = VOCABULARY - 3, 8
    last = (parts - 1) * -(-count // parts)
    old, new = A[:count], B[:count].copy()
    new[last:] = old[last:]
    config = {"tie_word_embeddings": True}
    before, after = (
        folder(tmp_path / "old", {E: old}, config),
        folder(tmp_path / "new", {E: new}, config),
    )
    found = audited(after, against=before)
    assert codes(found) == {"untrained-shard"}
    assert "(the last eighth, 448 to 508: a shard)" in found.verdicts[0].main.text
    assert any("176076" in line for line in found.verdicts[0].main.loaders)
    new[last:] = B[last:count]
    new[100:103] = old[100:103]
    found = audited(folder(tmp_path / "rare", {E: new}, config), against=before)
    assert found.status == 0
    assert (
        "3 of 509 rows are unchanged since OLD (ids 100 to 102)"
        in found.verdicts[0].findings[-2].text
    )


def test_two_copies_of_a_tied_table_that_differ_in_a_shard(tmp_path):
    """The same thread, seen from one checkpoint that kept both tables."""
    found = audited(
        folder(tmp_path, {E: A, H: changed_rows(448, 512)}, LLAMA | {"tie_word_embeddings": True})
    )
    assert "the last eighth, 448 to 511: a shard" in found.verdicts[0].main.text
    assert "look for a shard that was not trained" in found.verdicts[0].main.fix


def test_equal_tables_under_a_flag_that_says_untied(tmp_path):
    """The other way round."""
    found = audited(folder(tmp_path, {E: A, H: A}, LLAMA | {"tie_word_embeddings": False}))
    assert codes(found) == {"untied-but-equal"}
    assert "set tie_word_embeddings: true" in found.verdicts[0].main.fix


def test_a_scale_between_tables_that_are_said_to_be_tied(tmp_path):
    scaled = (A.astype(np.float32) * 4).astype(ml_dtypes.bfloat16)
    found = audited(folder(tmp_path, {E: A, H: scaled}, LLAMA | {"tie_word_embeddings": True}))
    assert (
        codes(found) == {"tied-but-scaled"}
        and "output = 4 (√D) × input" in found.verdicts[0].main.text
    )


def test_the_command_says_it_in_a_plain_sentence_first(tmp_path, capsys):
    path = folder(tmp_path, {E: A, H: B}, LLAMA | {"tie_word_embeddings": True})
    assert run(path) == 1
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "Inconsistent. config.json says tied, but the two tables differ in all 512 rows"
    )
    assert second.startswith("Fix: set tie_word_embeddings: false in config.json")
    assert "cost     tying saves 16,384 bytes" in rest
    assert run(path, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == 1 and found["models"][0]["input"]["name"] == E
    assert found["models"][0]["comparison"]["differing runs"] == [[0, 511]]
