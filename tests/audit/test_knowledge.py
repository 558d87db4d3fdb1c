"""Known names and flags: each has a source and is found behind any prefix, but not in a layer."""

import subprocess
import sys

import pytest
from checkpoints import TIED, UNTIED, VOCABULARY, A, B, E, H, V, audit_folder, write_folder
from commands import PATIENCE

from jaxtie.audit import knowledge
from jaxtie.audit.command import lines_of
from jaxtie.audit.knowledge import INPUTS, OUTPUTS, match_name, split_name

PATTERNS = {pattern.text: (pattern, group) for group in (INPUTS, OUTPUTS) for pattern in group}


@pytest.mark.parametrize(("pattern", "group"), PATTERNS.values(), ids=PATTERNS.keys())
def test_a_pattern_is_found_behind_any_prefix(pattern, group):
    text = pattern.text
    assert pattern.source and pattern.models
    path = f"target/{text.replace('.', '/')}/kernel"
    for name in (f"{text}.weight", f"a.b.{text}.weight", path, text):
        assert match_name(name, group)[0].text.endswith(text)
    for name in (f"layers.3.{text}", f"opt_state.mu.{text}", f"not_{text}_either"):
        assert match_name(f"{name}.weight", group) is None


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (".params['embedding']['input']", "params embedding input"),
        ("bert/word_embeddings/embeddings:0", "bert word_embeddings embeddings"),
        ("layers/token_embedding/vars/0", "layers token_embedding"),
        ("layers/token_embedding/vars/1", "layers token_embedding reverse_embeddings"),
    ],
)
def test_names_are_split(name, parts):
    assert split_name(name) == parts.split()


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.61.embed_tokens.weight",
        "model.embed_tokens_per_layer.weight",
        "model.layers.61.shared_head.head.weight",
    ],
)
def test_names_that_only_look_like_embeddings(name):
    assert match_name(name, INPUTS + OUTPUTS) is None


@pytest.mark.parametrize(
    "name", [*knowledge.BIASES, "lm_head.bias", "lm_head.decoder.bias", "decoder.logits_dense.bias"]
)
def test_output_biases(name):
    assert knowledge.is_output_bias(f"model.{name}")


@pytest.mark.parametrize("name", ["model.layers.0.mlp.bias", "model.norm.bias"])
def test_other_biases(name):
    assert not knowledge.is_output_bias(name)


@pytest.mark.parametrize(("name", "tied"), knowledge.FLAGS.items())
def test_every_flag_at_every_level(tmp_path, name, tied):
    two = {E: A, H: B}
    assert audit_folder(tmp_path / "tied", two, {name: tied}).status == 1
    assert audit_folder(tmp_path / "untied", two, {name: not tied}).status == 0
    inner = {"text_config": {name: tied, "vocab_size": VOCABULARY}}
    found = audit_folder(tmp_path / "inner", two, inner)
    assert found.status == 1
    assert [flag.text for flag in found.checkpoint.configuration.flags] == [
        "tie_word_embeddings: missing",
        f"text_config.{name}: {str(tied).lower()}",
    ]
    assert f"set {name}: {str(not tied).lower()}" in found.main.fix


def test_defaults_of_classes():
    tied = {name: knowledge.tied_by_default(name) for name in ("llama", "gpt2", "other", "", None)}
    assert tied == {"llama": False, "gpt2": True, "other": None, "": None, None: None}


@pytest.mark.parametrize(("kind", "count"), [("nemotron_parse", 1), ("llama", 0), (None, 0)])
def test_a_row_of_the_loaders_may_be_about_some_kinds_only(tmp_path, kind, count):
    config = V | TIED | ({"model_type": kind} if kind else {})
    main = audit_folder(tmp_path, {"decoder.embed_tokens.weight": A}, config).main
    assert main.code == "once" and len(main.loaders) == count
    assert all("vllm/pull/53020" in line for line in main.loaders)


def test_a_t5_that_transformers_5_saved_scales_by_a_flag_of_its_own(tmp_path):
    config = V | TIED | {"model_type": "t5", "scale_decoder_outputs": False}
    main = audit_folder(tmp_path, {"shared.weight": A, H: B}, config).main
    assert main.code == "tied-but-different"
    assert "turns off the factor 1/√D of the logits in transformers 4)" in main.fix


@pytest.mark.parametrize(
    ("kind", "claim", "factor", "loader"),
    [
        (
            "mt5",
            "mt5 models in transformers 4, where",
            "logits in transformers 4)",
            "transformers 5 (",
        ),
        ("t5", "config.json says untied", "of the logits)", "transformers 5 ("),
        ("switch_transformers", "config.json says untied", "of the logits)", "vLLM"),
        ("llama", "llama models in transformers, where", "config.json if", "vLLM"),
    ],
)
def test_what_transformers_5_changed_of_t5_is_said(tmp_path, kind, claim, factor, loader):
    flags = UNTIED if claim.startswith("config") else {}
    name = E if kind == "llama" else "shared.weight"
    found = audit_folder(tmp_path, {name: A}, V | flags | {"model_type": kind})
    main = found.main
    assert main.code == "untied-but-once" and main.text.startswith(claim) and factor in main.fix
    assert any(line.startswith(loader) for line in main.loaders)
    (line,) = (line for line in lines_of(found) if line.startswith("wrong in"))
    assert not loader.endswith("(") or line.endswith("(LongT5 and Pop2Piano with pull 47620)")


def test_every_fact_has_a_source():
    assert all(row["source"] for row in knowledge.NAMES["flags"].values())
    rows = [row for rows in knowledge.LOADERS.values() for row in rows]
    assert len(rows) > 15
    for row in rows:
        year, month = row["date"].split("-")
        *_, kind, number = row["thread"].split("/")
        assert int(year) > 2020 and 1 <= int(month) <= 12
        assert kind in ("pull", "issues") and number.isdigit()


def test_the_command_in_its_own_process_imports_no_jax(tmp_path):
    path = write_folder(tmp_path, {E: A}, TIED)
    code = "import runpy, sys\ntry:\n runpy.run_module('jaxtie', run_name='__main__')\n"
    code += "finally:\n print('jax' in sys.modules)"
    words = [sys.executable, "-W", "error", "-c", code, "audit", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    first, *_, last = done.stdout.splitlines()
    assert first == (
        f"Consistent. Tied: one embedding table, {E}, is stored, and config.json says tied."
    )
    assert last == "False"
