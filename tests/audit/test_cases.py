"""One table: small checkpoints under real names, sound and broken, and their verdicts."""

import ml_dtypes
import numpy as np
import pytest
from checkpoints import TIED, UNTIED, VOCABULARY, WIDTH, A, B, E, H, V, audit_folder, codes

BIAS = np.zeros(VOCABULARY, np.float32)
LLAMA = V | {"model_type": "llama"}
VISION = "model.language_model.embed_tokens.weight"


def with_rows_of_b(start: int, stop: int) -> np.ndarray:
    rows = A.copy()
    rows[start:stop] = B[start:stop]
    return rows


def with_rows(table: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return a copy of a table in which some rows are zero."""
    rows = table.copy()
    rows[start:stop] = 0
    return rows


def rows(count: int, used: int, filling: float = 0) -> np.ndarray:
    """Return a random table whose rows from `used` on are all alike."""
    table = np.random.default_rng(count).standard_normal((count, 4)).astype(np.float32)
    table[used:] = filling
    return table


def random_end(table: np.ndarray, used: int) -> np.ndarray:
    """Return a copy of a table that differs from row `used` on."""
    return np.concatenate([table[:used], table[used:] + 1])


PADDED = rows(51_200, 50_257)
WORDS = "embeddings.word_embeddings.weight"
MARIAN = TIED | {"model_type": "marian", "share_encoder_decoder_embeddings": False}
DEEPSEEK = "model.layers.61."
DRAFTED = np.sort(np.random.default_rng(5).choice(VOCABULARY, 200, replace=False))
IN_DRAFT = np.isin(np.arange(VOCABULARY), DRAFTED)
DRAFT = {E: A, H: A[DRAFTED], "d2t": DRAFTED - np.arange(200), "t2d": IN_DRAFT}
BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
BERT_INPUT = "bert.embeddings.word_embeddings.weight"
FLAG_ONLY = "set tie_word_embeddings: false in config.json"


# Case -> code of the finding that sets the status, or all codes of what is wrong; configuration;
# tensors; parts of the verdict, of the advice and of the lines on loaders.
CASES = {
    "Llama, no flag": ("different", V | {"model_type": "llama"}, {E: A, H: B}),
    "Meta's Llama": (
        "different",
        None,
        {"tok_embeddings.weight": A, "output.weight": B, "layers.0.attention.wo.weight": B[:WIDTH]},
    ),
    "vision model": (
        "once",
        TIED | {"text_config": V | TIED, "vision_config": {"hidden_size": 8}},
        {
            "model.language_model.embed_tokens.weight": A,
            "model.visual.patch_embed.proj.weight": B[:8],
        },
    ),
    "LLaVA, whose other levels contain defaults": (
        "different",
        UNTIED | {"text_config": V, "vision_config": TIED, "audio_encoder": V | TIED},
        {"language_model.model.embed_tokens.weight": A, "language_model.lm_head.weight": B},
    ),
    "classifier without a suffix": (
        "no-head",
        V | UNTIED | {"architectures": ["BertModel"]},
        {E: A},
    ),
    "encoder whose copy is packed": (
        "once",
        V | TIED,
        {"shared.weight": A, "encoder.embed_tokens.weight": np.zeros(A.shape, np.int8)},
    ),
    "Flax BERT": (
        "equal",
        V | TIED,
        {
            "params.bert.embeddings.word_embeddings.embedding": A,
            "params.cls.predictions.decoder.kernel": A.T,
        },
    ),
    "Flax model with names of its own": (
        "different",
        {"tie_embeddings": False},
        {
            "params.Embed_0.embedding": A,
            "params.Dense_0.kernel": B[:WIDTH],
            "params.Dense_1.kernel": B.T,
            "params.position_embedding.embedding": B[:64],
        },
    ),
    "padded for devices": ("equal", V | TIED, {E: A, H: np.concatenate([A, A[:64] * 0])}),
    "output in another type": ("equal", V | TIED, {E: B.astype(np.float32), H: B}),
    "added tokens all alike": (
        "once",
        TIED | {"vocab_size": VOCABULARY + 64},
        {E: np.concatenate([A, A[:1].repeat(64, 0)])},
    ),
    "padded with zeros, size unknown": ("once", TIED, {E: PADDED}),
    "padded with zeros, size known": ("once", TIED | {"vocab_size": 50_257}, {E: PADDED}),
    "padded with one row, both tables": (
        "different",
        UNTIED | {"model_type": "llama", "vocab_size": 4096},
        {E: rows(4096, 4000, 0.5), H: rows(4096, 4000, 0.25) + 1},
    ),
    "padding was drawn at random for each table": (
        "equal",
        TIED | {"vocab_size": 32_000},
        {E: rows(32_768, 32_768), H: random_end(rows(32_768, 32_768), 32_000)},
    ),
    "padded by a shard's size": (
        "once",
        TIED | {"model_type": "llama", "vocab_size": 448},
        {E: rows(512, 448)},
    ),
    "encoder, tied by its class": (
        "no-head",
        V | {"model_type": "bert", "architectures": ["BertModel"]},
        {WORDS: A},
    ),
    "encoder whose configuration names no class": (
        "no-head",
        V | TIED | {"model_type": "xlm-roberta"},
        {f"roberta.{WORDS}": A},
    ),
    "encoder of T5 under the class of the whole model": (
        "no-head",
        V | UNTIED | {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
        {"shared.weight": A, "encoder.final_layer_norm.weight": A[0]},
    ),
    "Marian, vocabularies apart": (
        "equal",
        V | MARIAN,
        {"model.encoder.embed_tokens.weight": B, "model.decoder.embed_tokens.weight": A, H: A},
    ),
    "fairseq, no shared embedding": (
        "different",
        {"share_decoder_input_output_embed": False},
        {
            "encoder.embed_tokens.weight": A.astype(np.float32),
            "decoder.embed_tokens.weight": A,
            "decoder.output_projection.weight": B,
        },
    ),
    "Mllama, whose input has eight more symbols": (
        "different",
        UNTIED | {"model_type": "mllama", "text_config": {"vocab_size": 504}},
        {E: A, H: B[:504]},
    ),
    "Equinox": (
        "different",
        None,
        {"embedding.weight": A, "lm_head.weight": B, "lm_head.bias": BIAS},
    ),
    "Equinox, names of its own": ("different", None, {"tok_emb.weight": A, "unembed.weight": B}),
    "Levanter": (
        "different",
        None,
        {"model.embeddings.token_embeddings.weight.array": A, "model.lm_head.weight.array": B},
    ),
    "NNX, model and optimizer in a tuple": (
        "different",
        None,
        {
            "0.embed.embedding.value": A,
            "0.lm_head.kernel.value": B.T,
            "1.opt_state.0.mu.embed.embedding.value": B,
        },
    ),
    "copies for several tokens": (
        "different",
        V | UNTIED,
        {
            E: A,
            H: B,
            f"{DEEPSEEK}embed_tokens.weight": A,
            f"{DEEPSEEK}shared_head.head.weight": A.astype(np.float32),
            "mtp.embed_tokens.weight": A,
        },
    ),
    "repeated in another type": ("once", V | TIED, {E: A, "embed_tokens.weight": A.astype("f4")}),
    "both repeated in another type": (
        "different",
        V | UNTIED,
        {f"master.{E}": A.astype("f4"), f"master.{H}": B.astype("f4"), E: A, H: B},
    ),
    "MusicGen, whose text encoder has one": (
        "no-head",
        {"decoder": {"vocab_size": 64} | UNTIED, "text_encoder": V | UNTIED},
        {"text_encoder.shared.weight": A, "decoder.lm_heads.0.weight": B[:64]},
    ),
    "encoder whose levels disagree": (
        "no-head",
        TIED | {"architectures": ["CLIPModel"], "text_config": V | UNTIED},
        {"text_model.embeddings.token_embedding.weight": A},
    ),
    "AWQ, whose packed output has few columns": (
        "packed",
        V | TIED,
        {E: A, "lm_head.qweight": np.zeros((WIDTH, VOCABULARY // 8), np.int32)},
    ),
    "tensor without a name": ("lone", None, {"": A, "embedding.weight": A}),
    "lone table": ("lone", None, {E: A}),
    "transformers 42612: flag says tied, embeddings differ": (
        {"tied-but-different"},
        LLAMA | TIED,
        {E: A, H: B},
        "says tied, but the two embeddings differ in all 512 rows",
        "set tie_word_embeddings: false",
        "transformers 4.54 to 4.57: overwrites the output embedding",
    ),
    "transformers 45127: output trained for added tokens only": (
        {"tied-but-different"},
        LLAMA | TIED,
        {E: A, H: with_rows_of_b(500, 512)},
        "12 of 512 rows (only 500 to 511: perhaps added tokens)",
        "set tie_word_embeddings: false",
        "transformers/pull/42612",
    ),
    "vLLM 51063: top level says tied, text_config does not": (
        {"tied-but-different", "levels-disagree"},
        TIED | {"model_type": "mistral3", "text_config": V | UNTIED},
        {VISION: A, H: B},
        "says tied, but the two embeddings differ",
        "set tie_word_embeddings: false",
        "vllm/issues/51063",
    ),
    "transformers 43429: flag only in text_config": (
        {"top-missing"},
        {"model_type": "vision", "text_config": V | TIED},
        {VISION: A},
        "the flag that says tied is nested, not at the top level",
        "set tie_word_embeddings: true in config.json at the top level",
        "transformers/pull/43429",
    ),
    "transformers 45857: default of the top level contradicts text_config": (
        {"untied-but-once", "levels-disagree"},
        UNTIED | {"model_type": "qwen2_vl", "text_config": V | TIED},
        {VISION: A},
        "says untied, but only one embedding table",
        "set tie_word_embeddings: true in config.json if",
        "transformers/pull/43429",
    ),
    "transformers 48154: T5 without shared.weight": (
        {"no-shared-table"},
        V | UNTIED | {"model_type": "t5"},
        {"decoder.embed_tokens.weight": A, H: B, "encoder.final_layer_norm.weight": A[0]},
        "There is an encoder, but no embedding for it",
        "write decoder.embed_tokens.weight as shared.weight too",
        "transformers/issues/48154",
    ),
    "Automodel 2511: flag says untied, output missing": (
        {"untied-but-once"},
        LLAMA | UNTIED,
        {E: A},
        "only one embedding table, model.embed_tokens.weight, is stored",
        "restore the output embedding",
        "at random",
    ),
    "Automodel 2511: output drifted from what its class ties": (
        {"tied-but-different"},
        V | {"model_type": "gemma"},
        {E: A, H: B},
        "are tied, but the two embeddings differ",
        "set tie_word_embeddings: false",
        "NeMo Automodel before pull 2511",
    ),
    "Megatron-LM 7577: output saved but not used": (
        {"tied-but-different"},
        {"share_embeddings_and_output_weights": True},
        {
            "embedding.word_embeddings.weight": A,
            "output_layer.weight": (A.astype(np.float32) * 0.5 + 0.1).astype(A.dtype),
        },
        "says tied, but the two embeddings differ",
        "to keep both, set share_embeddings_and_output_weights: false in config.json; drop"
        " output_layer.weight only if it was never trained",
        "Megatron-LM/pull/7577",
    ),
    "vec2text 94: output of zeros": (
        {"dead-table"},
        LLAMA | UNTIED,
        {E: A, H: np.zeros_like(A)},
        "The output embedding is dead",
        "restore it",
    ),
    "PyTorch 176076: output differs in a shard": (
        {"tied-but-different"},
        LLAMA | TIED,
        {E: A, H: with_rows_of_b(448, 512)},
        "part 8 of 8, 448 to 511: a shard",
        "look for a shard that was not trained",
        "pytorch/issues/176076",
    ),
    "flag says untied, embeddings are equal": (
        {"untied-but-equal"},
        LLAMA | UNTIED,
        {E: A, H: A},
        "says untied, but the two embeddings are equal",
        "set tie_word_embeddings: true",
    ),
    "flag says tied, embeddings differ by a scale": (
        {"tied-but-scaled"},
        LLAMA | TIED,
        {E: A, H: (A.astype(np.float32) * 4).astype(ml_dtypes.bfloat16)},
        "output = 4 (√D) × input",
        "remove the scale",
    ),
    "SpecForge 140: the flag of a draft model is its target's": (
        {"draft-tied"},
        LLAMA | TIED | {"draft_vocab_size": 200},
        DRAFT,
        "for 200 tokens of 512, so it cannot be tied",
        FLAG_ONLY,
        "SpecForge/pull/140",
    ),
    "draft model with a mask only, trained": (
        {"draft-tied"},
        LLAMA | TIED,
        {E: A, H: B[:200], "t2d": IN_DRAFT},
        "The head, lm_head.weight, is for 200 tokens of 512, so it cannot be tied",
        FLAG_ONLY,
    ),
    "draft model without a map": (
        {"draft-tied"},
        LLAMA | TIED,
        {E: A, H: B[:20]},
        "The head, lm_head.weight, is for 20 tokens of 512, so it cannot be tied",
        FLAG_ONLY,
    ),
    "draft model with its target's input embedding": (
        {"draft-tied"},
        LLAMA | TIED | {"draft_vocab_size": 200},
        {H: A[DRAFTED], "d2t": DRAFT["d2t"]},
        "the input embedding is that of the model it drafts for",
        FLAG_ONLY,
    ),
    "skeletoken 108: only the input was trimmed": (
        {"half-resized"},
        BERT | UNTIED | {"vocab_size": 500},
        {BERT_INPUT: A[:500], "cls.predictions.decoder.weight": B},
        "has 500 rows, the output embedding 512, and config.json says vocab_size 500",
        "resize both",
    ),
    "only the output was trimmed": (
        {"half-resized"},
        LLAMA | TIED,
        {E: A, H: A[:500]},
        "has 512 rows, the output embedding 500, and config.json says vocab_size 512",
        "resize both",
    ),
    "only the output bias was left as it was": (
        {"bias-size"},
        BERT | TIED | {"vocab_size": 500},
        {BERT_INPUT: A[:500], "cls.predictions.bias": np.zeros(VOCABULARY, np.float32)},
        "cls.predictions.bias has 512 entries, the output embedding 500",
        "resize both",
    ),
    "only the head is stored, untied": (
        {"no-input"},
        LLAMA | UNTIED,
        {H: A},
        "the input embedding is missing",
        "restore the input embedding",
        "transformers/issues/34759",
    ),
    "the good half of a shard is in the output": (
        {"tied-but-different", "zero-rows"},
        LLAMA | TIED,
        {E: with_rows(A, 256, 384), H: A},
        "part 3 of 4, 256 to 383: a shard",
        "look for a shard that was not trained or gathered, and keep the other embedding",
        "pytorch/issues/176076",
    ),
    "a shard of zeros in the middle": (
        {"zero-rows"},
        LLAMA | TIED,
        {E: with_rows(A, 128, 192)},
        "part 3 of 8, 128 to 191: a shard",
        "restore the shard",
    ),
    "a shard of zeros at the end of one table": (
        {"zero-rows"},
        LLAMA | UNTIED,
        {E: A, H: with_rows(B, 384, 512)},
        "part 4 of 4, 384 to 511: a shard",
        "restore the shard",
    ),
    "BERT, untied, one bias": (
        {"bias-missing"},
        V | UNTIED | {"model_type": "bert"},
        {BERT_INPUT: A, "cls.predictions.decoder.weight": B, "cls.predictions.bias": A[:, 0]},
        "cls.predictions.decoder.bias, which is not stored",
        "store cls.predictions.bias as cls.predictions.decoder.bias, too",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_verdict(tmp_path, case):
    expected, config, tensors, *words = CASES[case]
    found = audit_folder(tmp_path, tensors, config)
    main = found.main
    assert codes(found) == (expected if isinstance(expected, set) else set()), main.text
    assert found.status == isinstance(expected, set)
    if isinstance(expected, str):
        assert main.code == expected
    if expected in ("no-head", "lone"):
        assert "Tied" not in main.text
    said = " ".join([main.text, main.fix, *main.loaders])
    assert all(word in said for word in words), said


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("padd")])
def test_padding_is_a_note_and_no_shard(tmp_path, name):
    _, config, tensors = CASES[name]
    found = audit_folder(tmp_path, tensors, config)
    is_noted = bool({"padding", "sizes"} & codes(found, "note"))
    assert is_noted or "rows of padding" in found.main.text
    assert not any("shard" in finding.text for finding in found.findings)
