"""Sound checkpoints under many names, in every format, and runs of jaxtie: no false alarm."""

import json
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
from checkpoints import VOCABULARY, WIDTH, audited, codes, folder, gguf, sharded, table

from jaxtie.run import command, lifecycle

A, B = table(0), table(1)
PLAIN_A, PLAIN_B = (rows.astype(np.float32) for rows in (A, B))
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
V = {"vocab_size": VOCABULARY}
VECTOR = np.zeros(VOCABULARY, np.float32)
# A family of names -> its tensors, its configuration, and how it is stored: once, equal or
# different.
SOUND = {
    "Llama, untied": (
        {"model.embed_tokens.weight": A, "lm_head.weight": B},
        V | UNTIED,
        "different",
    ),
    "Llama, tied": ({"model.embed_tokens.weight": A, "model.norm.weight": A[0]}, V | TIED, "once"),
    "Llama, no flag, its class unties": (
        {"model.embed_tokens.weight": A, "lm_head.weight": B},
        V | {"model_type": "llama"},
        "different",
    ),
    "Qwen 1.5, tied, stored twice": (
        {"model.embed_tokens.weight": A, "lm_head.weight": A},
        V | TIED,
        "equal",
    ),
    "GPT-2, no flag": (
        {"wte.weight": A, "wpe.weight": B[:64]},
        {"model_type": "gpt2", "vocab_size": VOCABULARY},
        "once",
    ),
    "GPT-NeoX": ({"gpt_neox.embed_in.weight": A, "embed_out.weight": B}, UNTIED | V, "different"),
    "Falcon": (
        {"transformer.word_embeddings.weight": A, "lm_head.weight": A},
        {"model_type": "falcon"} | V,
        "equal",
    ),
    "Mamba": ({"backbone.embeddings.weight": A}, {"model_type": "mamba"} | V, "once"),
    "Meta's Llama": (
        {"tok_embeddings.weight": A, "output.weight": B, "layers.0.attention.wo.weight": B[:WIDTH]},
        None,
        "different",
    ),
    "ChatGLM": (
        {"transformer.embedding.word_embeddings.weight": A, "transformer.output_layer.weight": B},
        UNTIED | {"padded_vocab_size": VOCABULARY},
        "different",
    ),
    "BERT": (
        {
            "bert.embeddings.word_embeddings.weight": A,
            "bert.embeddings.position_embeddings.weight": B[:64],
            "cls.predictions.bias": VECTOR,
            "cls.predictions.decoder.weight": A,
            "cls.predictions.transform.dense.weight": B[:16],
        },
        {"model_type": "bert"} | V,
        "equal",
    ),
    "RoBERTa": (
        {
            "roberta.embeddings.word_embeddings.weight": A,
            "lm_head.decoder.weight": A,
            "lm_head.dense.weight": B[:WIDTH],
            "lm_head.bias": VECTOR,
        },
        {"model_type": "roberta"} | V,
        "equal",
    ),
    "DistilBERT": (
        {
            "distilbert.embeddings.word_embeddings.weight": A,
            "vocab_projector.weight": A,
            "vocab_projector.bias": VECTOR,
        },
        {"model_type": "distilbert"} | V | TIED,
        "equal",
    ),
    "ModernBERT": (
        {
            "model.embeddings.tok_embeddings.weight": A,
            "decoder.weight": A,
            "decoder.bias": VECTOR,
            "head.dense.weight": B[:WIDTH],
        },
        {"model_type": "modernbert"} | V,
        "equal",
    ),
    "T5 1.1, untied": (
        {
            "shared.weight": A,
            "encoder.embed_tokens.weight": A,
            "decoder.embed_tokens.weight": A,
            "lm_head.weight": B,
        },
        {"model_type": "t5"} | V | UNTIED,
        "different",
    ),
    "BART": (
        {
            "model.shared.weight": A,
            "model.encoder.embed_positions.weight": B,
            "final_logits_bias": VECTOR[None],
            "model.decoder.embed_positions.weight": B,
        },
        {"model_type": "bart"} | V,
        "once",
    ),
    "Whisper": (
        {
            "model.decoder.embed_tokens.weight": A,
            "proj_out.weight": A,
            "model.encoder.embed_positions.weight": B,
            "model.encoder.conv1.weight": B[:8],
        },
        {"model_type": "whisper"} | V,
        "equal",
    ),
    "OLMo 1": (
        {
            "model.transformer.wte.weight": A,
            "model.transformer.ff_out.weight": B,
            "model.transformer.blocks.0.ff_out.weight": B[:8],
        },
        {"weight_tying": False, "vocab_size": VOCABULARY},
        "different",
    ),
    "Megatron": (
        {"embedding.word_embeddings.weight": A, "output_layer.weight": B},
        {"untie_embeddings_and_output_weights": True},
        "different",
    ),
    "a vision model": (
        {
            "model.language_model.embed_tokens.weight": A,
            "model.visual.patch_embed.proj.weight": B[:8],
        },
        TIED | {"text_config": V | TIED, "vision_config": {"hidden_size": 8}},
        "once",
    ),
    "LLaVA": (
        {"language_model.model.embed_tokens.weight": A, "language_model.lm_head.weight": B},
        UNTIED
        | {
            "text_config": V,
            "vision_config": TIED,
            "audio_encoder": V | TIED,
        },  # defaults, written out
        "different",
    ),
    "a classifier": (
        {"model.embed_tokens.weight": A, "score.weight": B[:2]},
        V | UNTIED | {"architectures": ["LlamaForSequenceClassification"]},
        "once",
    ),
    "an encoder whose copy is packed": (
        {"shared.weight": A, "encoder.embed_tokens.weight": np.zeros((VOCABULARY, WIDTH), np.int8)},
        TIED | V,
        "once",
    ),
    "Flax BERT": (
        {
            "params.bert.embeddings.word_embeddings.embedding": A,
            "params.cls.predictions.decoder.kernel": A.T,
        },
        TIED | V,
        "equal",
    ),
    "a Flax model of one's own": (
        {
            "params.Embed_0.embedding": A,
            "params.Dense_0.kernel": B[:WIDTH],
            "params.Dense_1.kernel": B.T,
            "params.position_embedding.embedding": B[:64],
        },
        {"tie_embeddings": False},
        "different",
    ),
    "padded for devices": (
        {"model.embed_tokens.weight": A, "lm_head.weight": np.concatenate([A, A[:64] * 0])},
        V | TIED,
        "equal",
    ),
    "head in another type": (
        {"model.embed_tokens.weight": PLAIN_B, "lm_head.weight": B},
        V | TIED,
        "equal",
    ),
    "added tokens all alike": (
        {"model.embed_tokens.weight": np.concatenate([A, A[:1].repeat(64, 0)])},
        TIED | {"vocab_size": VOCABULARY + 64},
        "once",
    ),
}


@pytest.mark.parametrize(("tensors", "config", "stored"), SOUND.values(), ids=SOUND.keys())
def test_no_false_alarm(tmp_path, tensors, config, stored):
    found = audited(folder(tmp_path, tensors, config))
    assert found.status == 0, found.verdicts[0].main.text
    assert found.verdicts[0].main.code == stored


@pytest.mark.parametrize(
    "name", ["GPT2LMHeadModel", "GPT2DoubleHeadsModel", "MarianMTModel", "EncoderDecoderModel"]
)
def test_a_name_that_ends_as_of_a_model_without_a_head_may_have_one(tmp_path, name):
    """Untied, its head is missing; BertModel has none."""
    tensors = {"model.embed_tokens.weight": A}
    missing = audited(folder(tmp_path / "missing", tensors, V | UNTIED | {"architectures": [name]}))
    assert missing.status == 1 and missing.verdicts[0].main.code == "untied-but-once"
    assert (
        audited(
            folder(tmp_path / "none", tensors, V | UNTIED | {"architectures": ["BertModel"]})
        ).status
        == 0
    )


def test_shards_with_an_index(tmp_path):
    shards = [{"model.embed_tokens.weight": A}, {"lm_head.weight": B}]
    found = audited(sharded(tmp_path, shards, **V, **UNTIED))
    assert found.status == 0 and found.verdicts[0].main.code == "different"
    assert found.verdicts[0].ends.output.tensor.file.name == "model-00002-of-00002.safetensors"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_mapped_or_compressed(tmp_path, save):
    save(
        tmp_path / "tables.npz",
        **{"params/wte/embedding": PLAIN_A, "params/lm_head/kernel": PLAIN_B.T},
    )
    found = audited(tmp_path / "tables.npz")
    assert found.verdicts[0].main.code == "different" and found.verdicts[0].ends.output.across
    np.testing.assert_array_equal(
        found.verdicts[0].ends.output.take(np.array([3, 7, 8])), PLAIN_B[[3, 7, 8]]
    )


def test_bfloat16_in_npz(tmp_path):
    np.savez(tmp_path / "tables.npz", **{"embed_tokens.weight": A, "lm_head.weight": A})
    assert audited(tmp_path / "tables.npz").verdicts[0].main.code == "equal"


@pytest.mark.parametrize(
    ("second", "stored"), [(None, "once"), (PLAIN_B.T, "different"), (PLAIN_A.T, "equal")]
)
def test_keras_weights(tmp_path, second, stored):
    with h5py.File(tmp_path / "model.weights.h5", "w") as file:
        place = file.create_group("layers/token_embedding/vars")
        place["0"] = PLAIN_A
        if second is not None:
            place["1"] = second
    found = audited(tmp_path / "model.weights.h5")
    assert found.status == 0 and found.verdicts[0].main.code == stored
    np.testing.assert_array_equal(
        found.verdicts[0].ends.input.take(np.array([1, 2, 500])), PLAIN_A[[1, 2, 500]]
    )


@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
def test_orbax_trees(tmp_path, driver):
    base = f"file://{tmp_path}/5/items/"
    tree = {"params.token_embedder.embedding": A, "params.decoder.logits_dense.kernel": B.T}
    for name, array in tree.items():
        kvstore = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
        kind = {"dtype": "bfloat16", "shape": array.shape, "create": True}
        ts.open({"driver": driver, "kvstore": kvstore}, **kind).result().write(array).result()
    (tmp_path / "config.json").write_text(json.dumps({"logits_via_embedding": False}))
    found = audited(tmp_path)
    assert found.checkpoint.form == "Orbax" and found.status == 0
    assert (
        found.verdicts[0].main.code == "different" and len(found.checkpoint.configuration.said) == 1
    )


def test_gguf_tables(tmp_path):
    both = {"token_embd.weight": A, "output.weight": B, "output_norm.weight": PLAIN_A[0]}
    assert audited(gguf(tmp_path / "two.gguf", both)).verdicts[0].main.code == "different"
    packed = np.zeros((VOCABULARY, WIDTH), np.uint8)
    one, two = {"token_embd.weight": packed}, {"token_embd.weight": packed, "output.weight": packed}
    assert audited(gguf(tmp_path / "one.gguf", one)).verdicts[0].main.code == "once"
    assert audited(gguf(tmp_path / "blocks.gguf", two)).verdicts[0].main.code == "packed"


def test_names_can_be_given(tmp_path):
    path = folder(tmp_path, {"words.in": A, "words.out": B}, UNTIED)
    found = audited(path, input_name="words.in", output_name="words.out")
    assert found.status == 0 and found.verdicts[0].main.code == "different"


def test_nan_and_infinities_are_counted(tmp_path):
    bad = A.copy()
    bad[3, :2], bad[7, 0] = np.nan, -np.inf
    found = audited(folder(tmp_path, {"embed_tokens.weight": bad}, TIED))
    assert codes(found) == {"not-finite"}
    assert "2 NaN and 1 infinities, in 2 rows (ids 3, 7)" in found.verdicts[0].main.text


def test_zeros_and_repeats_are_told(tmp_path):
    rows = A.copy()
    rows[0], rows[500:] = 0, A[499]
    found = audited(folder(tmp_path, {"embed_tokens.weight": rows}, TIED))
    texts = " ".join(finding.text for finding in found.verdicts[0].findings)
    assert found.status == 0 and "1 rows of the input table are zero" in texts
    assert "13 rows of the input table stand more than once, one of them 13 times" in texts


def members(path: Path, arms: dict[str, dict[str, np.ndarray]]) -> Path:
    """Write what a run's checkpoint has of its tables: (members, V, D)."""
    for arm, tables in arms.items():
        for name, array in tables.items():
            kvstore = {
                "driver": "ocdbt",
                "base": f"file://{path}/members/",
                "path": f"{arm}.states..params['embedding']['{name}']/",
            }
            spec = {"driver": "zarr", "kvstore": kvstore}
            ts.open(spec, dtype="float32", shape=array.shape, create=True).result().write(
                array
            ).result()
    return path


def test_arms_are_what_their_names_declare(tmp_path):
    two = np.stack([PLAIN_A, PLAIN_B])
    other = two[::-1]
    arms = {
        "tied": {"input": two},
        "untied": {"input": two, "output": other},
        "untied@20": {"input": two, "output": other},
        "untied@40": {"input": two},
        "tied+input-gradient=0.5": {"input": two, "output": two},
    }
    found = audited(members(tmp_path, arms))
    assert found.status == 0
    stored = {verdict.name: verdict.main.code for verdict in found.verdicts}
    assert stored == dict(
        zip(arms, ("once", "different", "different", "once", "equal"), strict=True)
    )
    assert found.verdicts[0].ends.input.vocabulary == 2 * VOCABULARY
    wrong = audited(members(tmp_path / "wrong", {"tied": arms["untied"], "untied": arms["tied"]}))
    assert codes(wrong) == {"tied-but-different", "untied-but-once"}


@pytest.mark.slow
def test_runs_of_jaxtie(tmp_path, monkeypatch, capsys):
    """Tied, untied and untied midway: as the checkpoint has them, and the tables are those of the
    results.
    """
    line = (
        "--seeds 3 --steps 200 --record-every 20 --eval-every 100 --arms tied,untied,untied@100"
        " --quiet --out"
    )
    monkeypatch.setattr(lifecycle, "draw", lambda *_: [])
    path = tmp_path / "run"
    assert command.main([*line.split(), str(path)]) == 0
    found = audited(path)
    stored = {verdict.name: verdict.main.code for verdict in found.verdicts}
    assert stored == {"tied": "once", "untied": "different", "untied@100": "different"}
    assert found.status == 0 and found.checkpoint.form == "a run of jaxtie"
    (last,) = (path / "checkpoints").glob("[0-9]*")
    assert audited(last).status == audited(last / "members").status == 0
    tables = lifecycle.load(path)
    for verdict in found.verdicts:
        for role in ("input", "output"):
            end = getattr(verdict.ends, role) or verdict.ends.input
            expected = (
                tables[f"{role}_table"]
                .sel(arm=verdict.name)
                .isel(table_step=-1)
                .values.reshape(-1, end.width)
            )
            np.testing.assert_array_equal(end.take(np.arange(len(expected))), expected)


def test_bits_types_and_ways_round(tmp_path):
    """What the relation is called."""
    ways = {
        "in every bit": A,
        "after a cast": PLAIN_A,
        "after a cast, a transpose": np.ascontiguousarray(A.astype(np.float16).T),
        "after padding: 32 more rows in the output": np.concatenate([A, B[:32]]),
        "after a slice: the output has the first 500 rows only": A[:500],
    }
    for i, (words, other) in enumerate(ways.items()):
        found = audited(
            folder(tmp_path / str(i), {"embed_tokens.weight": A, "lm_head.weight": other}, TIED)
        )
        assert found.status == 0 and f"equal {words}" in found.verdicts[0].main.text
    half = (A.astype(np.float32) / 3).astype(ml_dtypes.bfloat16)
    found = audited(
        folder(tmp_path / "scaled", {"embed_tokens.weight": A, "lm_head.weight": half}, UNTIED)
    )
    assert found.status == 0 and found.verdicts[0].main.code == "scaled"
