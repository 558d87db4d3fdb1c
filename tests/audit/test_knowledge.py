"""Names and flags: each has a source, each is found whatever stands before it, and none within a
layer.
"""

import subprocess
import sys

import pytest
from checkpoints import VOCABULARY, audited, folder, table

from jaxtie.audit.loaders import LOADERS
from jaxtie.audit.names import (
    BIAS_ENDS,
    FLAGS,
    INPUTS,
    OUTPUTS,
    default_of,
    is_bias,
    parts_of,
    stem_of,
)

A, B = table(0), table(1)
STEMS = {stem.text: (stem, stems) for stems in (INPUTS, OUTPUTS) for stem in stems}


@pytest.mark.parametrize(("stem", "stems"), STEMS.values(), ids=STEMS.keys())
def test_a_stem_is_found_behind_any_prefix(stem, stems):
    assert stem.source and stem.models
    for name in (
        f"{stem.text}.weight",
        f"a.b.{stem.text}.weight",
        f"target/{stem.text.replace('.', '/')}/kernel",
        stem.text,
    ):
        assert stem_of(name, stems)[0].text.endswith(stem.text)
    for name in (
        f"layers.3.{stem.text}.weight",
        f"opt_state.mu.{stem.text}.weight",
        f"not_{stem.text}_either.weight",
    ):
        assert stem_of(name, stems) is None


def test_how_names_are_taken_apart():
    assert parts_of(".params['embedding']['input']") == ["params", "embedding", "input"]
    assert parts_of("bert/embeddings/word_embeddings/embeddings:0")[-1] == "embeddings"
    assert parts_of("layers/token_embedding/vars/1")[-2:] == [
        "token_embedding",
        "reverse_embeddings",
    ]
    assert stem_of("model.layers.61.embed_tokens.weight", INPUTS) is None
    assert stem_of("model.embed_tokens_per_layer.weight", INPUTS) is None
    assert stem_of("model.layers.61.shared_head.head.weight", OUTPUTS) is None


@pytest.mark.parametrize(
    "name", [*BIAS_ENDS, "lm_head.bias", "lm_head.decoder.bias", "decoder.logits_dense.bias"]
)
def test_output_biases(name):
    assert is_bias(f"model.{name}")
    assert not is_bias("model.layers.0.mlp.bias") and not is_bias("model.norm.bias")


@pytest.mark.parametrize(
    ("name", "means", "source"), [(name, *flag) for name, flag in FLAGS.items()], ids=FLAGS.keys()
)
def test_every_flag_at_every_level(tmp_path, name, means, source):
    assert source
    two = {"embed_tokens.weight": A, "lm_head.weight": B}
    assert audited(folder(tmp_path / "tied", two, {name: means})).status == 1
    assert audited(folder(tmp_path / "untied", two, {name: not means})).status == 0
    inner = {"text_config": {name: means, "vocab_size": VOCABULARY}}
    found = audited(folder(tmp_path / "inner", two, inner))
    word = str(means).lower()
    texts = [flag.text for flag in found.checkpoint.configuration.flags]
    assert found.status == 1 and texts == [
        "tie_word_embeddings: missing",
        f"text_config.{name}: {word}",
    ]
    assert f"set {name}: {str(not means).lower()}" in found.verdicts[0].main.fix


def test_defaults_of_classes():
    assert default_of("llama") is False and default_of("gpt2") is True
    assert default_of("unheard-of") is default_of(None) is default_of("") is None


def test_what_loaders_do_is_dated_and_has_a_thread():
    lines = [loader for loaders in LOADERS.values() for loader in loaders]
    assert len(lines) > 15
    for loader in lines:
        assert loader.date[:2] == "20" and len(loader.date) == 7
        assert (
            loader.thread.split("/")[-2] in ("pull", "issues")
            and loader.thread.split("/")[-1].isdigit()
        )


def test_the_real_door(tmp_path):
    """Without warnings, without jax."""
    path = folder(tmp_path, {"embed_tokens.weight": A}, {"tie_word_embeddings": True})
    command = [sys.executable, "-W", "error", "-m", "jaxtie.audit", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "Consistent. Tied: one table, embed_tokens.weight, is stored, and config.json says tied.\n"
    )
    done = subprocess.run(
        [*command[:-1], str(tmp_path / "nowhere")], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    code = "import sys, jaxtie.audit.command; print('jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "False\n"
