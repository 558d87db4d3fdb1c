"""Sound checkpoints under many names and in every format raise no false alarm."""

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
from checkpoints import (
    TIED,
    UNTIED,
    VOCABULARY,
    A,
    B,
    E,
    H,
    V,
    audit_folder,
    write_gguf,
    write_shards,
)

import jaxtie
from jaxtie.audit import compare
from jaxtie.audit.audit import audit
from jaxtie.config import UserError

F32_A, F32_B = (rows.astype(np.float32) for rows in (A, B))
BIAS = np.zeros(VOCABULARY, np.float32)


@pytest.mark.parametrize(("count", "device"), [(5000, 128), (4001, 512)])
def test_orbax_vocabularies_that_no_block_divides(tmp_path, monkeypatch, count, device):
    monkeypatch.setattr(compare, "BLOCK_BYTES", device * 4 * 4)
    first, second = np.random.default_rng(0).standard_normal((2, count, 4)).astype(np.float32)
    second[0] = first[0]
    write_array(tmp_path / "item", "params.wte.embedding", first)
    write_array(tmp_path / "item", "params.lm_head.kernel", np.ascontiguousarray(second.T))
    found = audit(tmp_path / "item")
    assert found.status == 0 and f"{count - 1:,} of {count:,} rows" in found.main.text


def test_nnx_state_with_its_optimizer(tmp_path):
    """Names end in `.value`; the optimizer's moments are not embeddings."""
    for name, array in {
        "model.embedding.input.value": A,
        "model.embedding.output.value": B,
        "optimizer.opt_state.0.mu.embedding.input.value": B,
    }.items():
        write_array(tmp_path / "item", name, array)
    verdict = audit(tmp_path / "item")
    assert verdict.main.code == "different"
    assert verdict.embeddings.output.tensor.name == "model.embedding.output.value"


INT8 = (F32_A * 20).astype(np.int8)
INT4, SCALE = INT8[:, ::2].copy(), np.ones(VOCABULARY, np.float32)
GROUPS = np.ones((VOCABULARY, 4), np.float32)


@pytest.mark.parametrize(
    ("variables", "code", "output"),
    [
        ([INT8, SCALE], "once", None),
        ([INT4, GROUPS, GROUPS.astype(np.int8)], "once", None),
        ([INT8, SCALE, INT8.T, SCALE], "packed", 2),
        ([INT4, GROUPS, INT4.T, GROUPS.T], "packed", 2),
    ],
    ids=["int8, tied", "int4 in groups, tied", "int8, untied", "int4 in groups, untied"],
)
def test_quantised_keras(tmp_path, variables, code, output):
    with h5py.File(tmp_path / "model.weights.h5", "w") as file:
        for i, variable in enumerate(variables):
            file[f"layers/token_embedding/vars/{i}"] = variable
    verdict = audit(tmp_path / "model.weights.h5")
    assert verdict.status == 0 and verdict.main.code == code
    assert "packed" in verdict.main.text.lower()
    found = verdict.embeddings.output and verdict.embeddings.output.tensor.name
    assert found == (f"layers/token_embedding/vars/{output}" if output else None)


@pytest.mark.parametrize("name", ["model.h5", "model.hdf5"])
def test_hdf5_under_any_suffix(tmp_path, name):
    with h5py.File(tmp_path / name, "w") as file:
        file["model/embed_tokens/embeddings"], file["model/lm_head/weight"] = F32_A, F32_B
        file["optimizer_weights/embed_tokens/embeddings"] = F32_B
    for path in (tmp_path, tmp_path / name):
        verdict = audit(path)
        assert verdict.main.code == "different"
        assert verdict.embeddings.output.tensor.name == "model/lm_head/weight"


@pytest.mark.parametrize("architecture", ["bert", "nomic-bert", "t5encoder"])
def test_gguf_of_an_encoder_has_no_head(tmp_path, architecture):
    found = audit(write_gguf(tmp_path / "m.gguf", {"token_embd.weight": A}, architecture))
    assert found.main.code == "no-head"


@pytest.mark.parametrize("name", ["modules.json", "config_sentence_transformers.json"])
def test_a_sentence_embedder_has_no_head(tmp_path, name):
    (tmp_path / name).write_text("{}")
    config = V | UNTIED | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    found = audit_folder(tmp_path, {E: A}, config)
    assert found.status == 0 and found.main.code == "no-head"


def cached(hub: Path, name: str, tensors: dict[str, np.ndarray]) -> Path:
    """Write a repository as huggingface_hub caches it and return its snapshot."""
    base = hub / f"models--{name.replace('/', '--')}"
    snapshot = base / "snapshots" / "0123abcd"
    (base / "refs").mkdir(parents=True)
    (base / "refs" / "main").write_text("0123abcd")
    (base / "blobs").mkdir()
    for path in list(
        write_shards(snapshot, [{E: tensors[E]}, {H: tensors[H]}], **UNTIED).iterdir()
    ):
        path.rename(base / "blobs" / f"sha-{path.name}")
        path.symlink_to(Path("../../blobs") / f"sha-{path.name}")
    return snapshot


def test_a_snapshot_in_the_cache_of_hugging_face(tmp_path):
    """Its files are links to blobs."""
    snapshot = cached(tmp_path, "org/name", {E: A, H: B})
    for path in (snapshot, snapshot / "model-00002-of-00002.safetensors"):
        found = audit(path)
        assert found.status == 0 and found.main.code == "different"


@pytest.mark.parametrize("has_index", [True, False])
def test_a_single_shard_stands_for_all(tmp_path, has_index):
    path = write_shards(tmp_path, [{E: A}, {H: B}], **V, **UNTIED)
    if not has_index:
        (path / "model.safetensors.index.json").unlink()
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        found = audit(path / name)
        assert found.status == 0 and found.main.code == "different"


def test_a_single_shard_of_a_gguf_stands_for_all(tmp_path):
    for i, tensors in enumerate(({"token_embd.weight": A}, {"output.weight": B}), 1):
        write_gguf(tmp_path / f"m-0000{i}-of-00002.gguf", tensors)
    found = audit(tmp_path / "m-00001-of-00002.gguf")
    assert found.main.code == "different"


def test_the_step_of_levanter_is_found(tmp_path):
    for step, array in ((50, A), (100, B)):
        folder = tmp_path / f"step-{step}"
        for name, table in (("token_embeddings", A), ("lm_head", array)):
            kvstore = {"driver": "file", "path": f"{folder}/model/{name}/weight/"}
            spec = {"driver": "zarr", "kvstore": kvstore}
            store = ts.open(spec, dtype="bfloat16", shape=table.shape, create=True).result()
            store.write(table).result()
        (folder / "metadata.json").write_text("{}")
    assert audit(tmp_path).main.code == "different"
    assert audit(tmp_path / "step-50").main.code == "equal"


@pytest.mark.parametrize(
    "name", ["GPT2LMHeadModel", "GPT2DoubleHeadsModel", "MarianMTModel", "EncoderDecoderModel"]
)
def test_some_classes_named_model_have_an_output(tmp_path, name):
    found = audit_folder(tmp_path, {E: A}, V | UNTIED | {"architectures": [name]})
    assert found.status == 1 and found.main.code == "untied-but-once"


def test_shards_with_an_index(tmp_path):
    found = audit(write_shards(tmp_path, [{E: A}, {H: B}], **V, **UNTIED))
    assert found.status == 0 and found.main.code == "different"
    file = found.embeddings.output.tensor.file
    assert file.name == "model-00002-of-00002.safetensors"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_mapped_or_compressed(tmp_path, save):
    arrays = {"params/wte/embedding": F32_A, "params/lm_head/kernel": F32_B.T}
    save(tmp_path / "tables.npz", **arrays)
    verdict = audit(tmp_path / "tables.npz")
    assert verdict.main.code == "different" and verdict.embeddings.output.transposed
    np.testing.assert_array_equal(verdict.embeddings.output.block(3, 9), F32_B[3:9])


def test_bfloat16_in_npz(tmp_path):
    np.savez(tmp_path / "tables.npz", **{E: A, H: A})
    assert audit(tmp_path / "tables.npz").main.code == "equal"


@pytest.mark.parametrize(
    ("second", "stored"), [(None, "once"), (F32_B.T, "different"), (F32_A.T, "equal")]
)
def test_keras_weights(tmp_path, second, stored):
    with h5py.File(tmp_path / "model.weights.h5", "w") as file:
        group = file.create_group("layers/token_embedding/vars")
        group["0"] = F32_A
        if second is not None:
            group["1"] = second
    found = audit(tmp_path / "model.weights.h5")
    assert found.status == 0 and found.main.code == stored
    rows = found.embeddings.input.block(1, VOCABULARY)
    np.testing.assert_array_equal(rows, F32_A[1:])


def write_array(base: Path, name: str, array: np.ndarray, driver: str = "zarr") -> None:
    """Write an array of an Orbax item."""
    kvstore = {"driver": "ocdbt", "base": f"file://{base}/", "path": f"{name}/"}
    spec = {"driver": driver, "kvstore": kvstore}
    store = ts.open(spec, dtype=array.dtype.name, shape=array.shape, create=True).result()
    store.write(array).result()


@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
def test_orbax_item(tmp_path, driver):
    item = tmp_path / "5" / "items"
    write_array(item, "params.token_embedder.embedding", A, driver)
    write_array(item, "params.decoder.logits_dense.kernel", B.T, driver)
    (tmp_path / "config.json").write_text(json.dumps({"logits_via_embedding": False}))
    found = audit(tmp_path)
    assert found.checkpoint.format == "Orbax" and found.status == 0
    assert found.main.code == "different"
    assert len(found.checkpoint.configuration.declared) == 1


PACKED = np.zeros(A.shape, np.uint8)


@pytest.mark.parametrize(
    ("stored", "tensors"),
    [
        ("different", {"token_embd.weight": A, "output.weight": B, "output_norm.weight": F32_A[0]}),
        ("once", {"token_embd.weight": PACKED}),
        ("equal", {"token_embd.weight": PACKED, "output.weight": PACKED}),
    ],
    ids=["two", "one packed", "two packed"],
)
def test_gguf(tmp_path, stored, tensors):
    assert audit(write_gguf(tmp_path / "m.gguf", tensors)).main.code == stored


def test_names_can_be_given(tmp_path):
    names = "words.in", "words.out"
    found = audit_folder(tmp_path, {"words.in": A, "words.out": B}, UNTIED, names=names)
    assert found.status == 0 and found.main.code == "different"


@pytest.mark.parametrize("trained", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_of_jaxtie_is_refused(tmp_path, trained):
    """Its arrays hold many models: their seeds would count as rows of one table."""
    run, last = tmp_path / "run", tmp_path / "run" / "checkpoints" / "1"
    if trained:
        experiment = jaxtie.Experiment(seeds=(0, 1), steps=20, record_every=10, eval_every=10)
        jaxtie.run(experiment, run, quiet=True)
    else:
        path = "tied.states..params['embedding']['input']"
        write_array(last / "members", path, np.stack([F32_A, F32_B]))
    for path in (run, last, last / "members"):
        with pytest.raises(UserError, match=r"is a run of jaxtie.*jaxtie\.load\(RUN\) has"):
            audit(path)


def test_an_item_of_another_program_may_have_the_name_of_ours(tmp_path):
    write_array(tmp_path / "members", "params.token_embedder.embedding", A)
    assert audit(tmp_path).main.code == "lone"


@pytest.mark.parametrize(
    ("how", "output"),
    [
        ("in every bit", A),
        ("after a cast", F32_A),
        ("after a cast, a transpose", np.ascontiguousarray(A.astype(np.float16).T)),
        ("after padding: 32 more rows in the output", np.concatenate([A, B[:32]])),
        ("after a slice: the output has the first 500 rows only", A[:500]),
    ],
)
def test_how_embeddings_are_equal(tmp_path, how, output):
    found = audit_folder(tmp_path, {E: A, H: output}, TIED)
    assert found.status == 0 and f"equal {how}" in found.main.text


def test_untied_embeddings_may_differ_by_a_scale(tmp_path):
    third = (F32_A / 3).astype(ml_dtypes.bfloat16)
    found = audit_folder(tmp_path, {E: A, H: third}, UNTIED)
    assert found.status == 0 and found.main.code == "scaled"


def keras_file(path: Path, variables: Mapping[str, np.ndarray], tied: bool | None) -> Path:
    """Write a .keras file as Keras 3.15 does, with a ReversibleEmbedding if `tied` is given."""
    with zipfile.ZipFile(path, "w") as archive:
        stored = io.BytesIO()
        with h5py.File(stored, "w") as file:
            for name, array in variables.items():
                file[f"layers/{name}"] = array
        layers = [{"class_name": "Dense", "config": {"units": 9}}]
        if tied is not None:
            layer = {"tie_weights": tied, "input_dim": VOCABULARY}
            layers.append({"class_name": "ReversibleEmbedding", "config": layer})
        archive.writestr("metadata.json", "{}")
        config = {"class_name": "Functional", "config": {"layers": layers}}
        archive.writestr("config.json", json.dumps(config))
        archive.writestr("model.weights.h5", stored.getvalue())
    return path


KERAS_3 = {  # variables as Keras 3.15.1 writes them, the flag, the code
    "Embedding, LSTM, Dense": (
        {"embedding/vars/0": F32_A, "lstm/cell/vars/0": F32_A[:16], "dense/vars/0": F32_B.T},
        None,
        "different",
    ),
    "positions, too": (
        {"embedding/vars/0": F32_A, "embedding_1/vars/0": F32_A[:8], "dense/vars/0": F32_B.T},
        None,
        "different",
    ),
    "two Dense": (
        {"embedding/vars/0": F32_A, "dense/vars/0": F32_A[:16], "dense_1/vars/0": F32_B.T},
        None,
        "different",
    ),
    "ReversibleEmbedding, tied": ({"reversible_embedding/vars/0": F32_A}, True, "once"),
    "ReversibleEmbedding, untied": (
        {"reversible_embedding_1/vars/0": F32_A, "reversible_embedding_1/vars/1": F32_B.T},
        False,
        "different",
    ),
    "ReversibleEmbedding, a head that is lost": (
        {"reversible_embedding/vars/0": F32_A},
        False,
        "untied-but-once",
    ),
}


@pytest.mark.parametrize("case", KERAS_3)
def test_files_of_keras_3(tmp_path, case):
    variables, tied, code = KERAS_3[case]
    path = keras_file(tmp_path / "model.keras", variables, tied)
    for given in (path, tmp_path):
        found = audit(given)
        assert found.main.code == code and found.status == (code == "untied-but-once")
        assert found.checkpoint.configuration.claim is tied
    if tied is not None:
        assert "model.keras says" in found.main.text


def test_a_keras_file_whose_weights_are_compressed_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", bytes(999))
    with pytest.raises(UserError, match="its weights are compressed; save it with Keras"):
        audit(tmp_path / "model.keras")


def test_the_flat_names_of_gemma_in_jax(tmp_path):
    write_array(tmp_path, "transformer/embedder.input_embedding", F32_A)
    assert audit(tmp_path).main.code == "lone"
