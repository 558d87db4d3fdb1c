"""Model families as they lie on the hub: sound checkpoints raise no alarm, damaged ones do."""

import itertools
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_folder, write_gguf, write_shards

from jaxtie.audit.audit import Audit, audit
from jaxtie.audit.repair import write_repaired
from jaxtie.config import UserError

FAMILIES = tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))
WIDTH, OTHER_WIDTH = 8, 16
FLAG = "tie_word_embeddings"
LOUD = 4  # factor by which an embedding of a damaged checkpoint is scaled


@dataclass
class Made:
    """A checkpoint of a family before it is written."""

    family: dict[str, Any]
    form: str  # one of what `lies` lists
    tensors: dict[str, np.ndarray]
    config: dict[str, Any]
    tokens: int  # vocabulary without padding
    listed: dict[str, str] = field(default_factory=dict)  # further names in the index
    unlisted: tuple[str, ...] = ()  # names that the index lacks
    sharded: bool = False

    @property
    def input(self) -> str:
        return self.family["input"]

    @property
    def output(self) -> str:
        return self.family["output"]

    @property
    def level(self) -> dict[str, Any]:
        """The level of the configuration that describes the language model."""
        return self.config.get(self.family.get("level", ""), self.config)

    @property
    def is_tied(self) -> bool:
        return self.form in ("tied", "stored")

    def audit(self, path: Path) -> Audit:
        """Write and audit the checkpoint."""
        if self.family.get("gguf"):
            return audit(write_gguf(path / "model.gguf", self.tensors, self.family["type"]))
        if not self.sharded:
            return audit(write_folder(path, self.tensors, self.config))
        names = list(self.tensors)
        parts = [names[: len(names) // 2], names[len(names) // 2 :]]
        shards = [{name: self.tensors[name] for name in part} for part in parts if part]
        folder = write_shards(path, shards, self.listed, **self.config)
        index = folder / "model.safetensors.index.json"
        for name in self.unlisted:
            pattern = rf'"{re.escape(name)}": "[^"]*",? ?'
            index.write_text(re.sub(pattern, "", index.read_text()).replace(", }", "}"))
        return audit(folder)


def make(name: str, form: str, dtype: Any = ml_dtypes.bfloat16, padding: str = "random") -> Made:
    """Make a sound checkpoint of a family."""
    family = FAMILIES[name]
    random = np.random.default_rng(list(name.encode()))
    pad = family.get("pad", 1)
    tokens = 250 if pad > 1 else 277
    rows = -(-tokens // pad) * pad
    head_rows = rows + family.get("head_rows", 0)
    sizes = {"V": rows, "H": head_rows, "D": WIDTH, "E": OTHER_WIDTH}

    def table(count: int, width: int = WIDTH) -> np.ndarray:
        values = 0.1 * random.standard_normal((count, width))
        if count == rows and padding != "random":
            values[tokens:] = 0 if padding == "zeros" else 0.01
        return values.astype(dtype)

    tensors: dict[str, np.ndarray] = {}
    if "input" in family:
        tensors[family["input"]] = table(rows)
    if "encoder" in family:
        tensors[family["encoder"]] = table(rows - 20)
    for each, letters in family.get("more", {}).items():
        shape = [int(sizes.get(one, one)) for one in re.findall(r"\d+|[A-Z]", letters)]
        tensors[each] = random.standard_normal(shape).astype(dtype)
    tensors["model.layers.0.mlp.down_proj.weight"] = table(WIDTH, OTHER_WIDTH)
    if form in ("stored", "untied"):
        is_stored = form == "stored"
        width = OTHER_WIDTH if family.get("head_width") == "E" else WIDTH
        tensors[family["output"]] = (
            tensors[family["input"]] if is_stored else table(head_rows, width)
        )
    _add_bias_and_copies(family, tensors, head_rows)
    config = {"model_type": family["type"], "architectures": [family.get("class")]}
    config |= family.get("config", {})
    made = Made(family, form, tensors, config, tokens)
    _configure(made, rows, head_rows)
    if family.get("draft"):
        _make_draft(made, random)
    _pack(made, rows)
    return made


def _add_bias_and_copies(
    family: dict[str, Any], tensors: dict[str, np.ndarray], head_rows: int
) -> None:
    if "bias" in family:
        one = (1,) if family["bias"] == "final_logits_bias" else ()
        tensors[family["bias"]] = np.zeros((*one, head_rows), np.float32)
    for side in ("input", "output"):
        for copy in family.get(f"{side}_copies", []):
            tensors[copy] = tensors[family[side]]


def _configure(made: Made, rows: int, head_rows: int) -> None:
    """Write vocabulary sizes and the flag into the configuration."""
    family, config = made.family, made.config
    if "level" in family:
        config[family["level"]] = dict(family["config_text"])
    size = made.tokens if family.get("rows") == "true" else rows
    size = head_rows if family.get("vocabulary") == "head" else size
    made.level[family.get("vocabulary_key", "vocab_size")] = size
    made.level["hidden_size"] = WIDTH
    if "head_key" in family:
        made.level[family["head_key"]] = head_rows
    if "encoder_key" in family:
        config[family["encoder_key"]] = rows - 20
    if family.get("flag") != "silent":
        config[FLAG] = made.is_tied


def _make_draft(made: Made, random: np.random.Generator) -> None:
    """Leave a third of the tokens in the head."""
    size = made.level["vocab_size"]
    ids = np.sort(random.permutation(size)[: size // 3])
    made.tensors[made.output] = made.tensors[made.output][: len(ids)]
    made.tensors["d2t"] = ids - np.arange(len(ids))
    made.tensors["t2d"] = np.isin(np.arange(size), ids)
    made.config["draft_vocab_size"] = len(ids)


def _pack(made: Made, rows: int) -> None:
    """Pack tensors as quantisation does."""
    packed, tensors = made.family.get("packed"), made.tensors
    half = np.float16
    if packed in ("layers", "gptq head"):
        layer = "model.layers.0.mlp.up_proj."
        heads = [made.output.rpartition(".")[0] + "."] if packed == "gptq head" else []
        for stem, columns in [(layer, 16), *((head, rows) for head in heads)]:
            tensors[f"{stem}qweight"] = np.arange(columns, dtype=np.int32)[None]
            tensors[f"{stem}qzeros"] = np.zeros((1, columns // 8), np.int32)
            tensors[f"{stem}scales"] = np.full((1, columns), 0.01, half)
            tensors[f"{stem}g_idx"] = np.zeros(WIDTH, np.int32)
    elif packed == "mlx":
        names = [made.input] + [made.output] * (made.form == "untied")
        for i, name in enumerate(names):
            stem = name.removesuffix("weight")
            words = np.random.default_rng(i).integers(0, 2**32, (rows, WIDTH // 4), np.uint32)
            tensors[name] = words
            tensors[f"{stem}scales"] = np.full((rows, 1), 0.01, half)
            tensors[f"{stem}biases"] = np.zeros((rows, 1), half)


def of_families(*forms: str, **wanted: Any) -> list[tuple[str, str]]:
    """Return families and forms in which they lie, without packed ones and drafts."""
    return [
        (name, form)
        for name, family in FAMILIES.items()
        for form in family["lies"]
        if form in forms
        and not {"packed", "draft", "gguf"} & set(family)
        and all(family.get(key) == value for key, value in wanted.items())
    ]


# Sound checkpoints


def padded(padding: str) -> list[tuple[str, Made]]:
    return [
        (f"{name}, {form}, padding {padding}", make(name, form, np.float32, padding))
        for name, form in of_families("tied", "stored", "untied")
        if FAMILIES[name].get("pad", 1) > 1
    ]


def sharded() -> Iterator[tuple[str, Made]]:
    for name, form in of_families("tied", "untied")[::3]:
        made = make(name, form)
        made.sharded = True
        yield f"{name}, {form}, sharded", made


def with_copies() -> Iterator[tuple[str, Made]]:
    for name, form in of_families("tied", "stored", "untied", "headless"):
        if copies := FAMILIES[name].get("copies"):
            made = make(name, form)
            made.tensors |= dict.fromkeys(copies, made.tensors[made.input])
            yield f"{name}, {form}, with copies", made


def true_size() -> Iterator[tuple[str, Made]]:
    """Make checkpoints whose tables are padded and whose vocab_size is not."""
    for name, form in of_families("tied", "stored", "untied", pad=128):
        made = make(name, form, padding="constant")
        if "vocab_size" in made.level and "bias" not in FAMILIES[name]:
            made.level["vocab_size"] = made.tokens
            yield f"{name}, {form}, vocab_size without padding", made


def flag_in_both_levels() -> Iterator[tuple[str, Made]]:
    for name, form in of_families("tied", "stored", "untied"):
        if "level" in FAMILIES[name]:
            made = make(name, form)
            made.level[FLAG] = made.is_tied
            if "encoder-decoder" not in made.family["type"]:
                made.config[FLAG] = made.is_tied
            made.config["vision_config"] = {FLAG: not made.is_tied, "hidden_size": 16}
            yield f"{name}, {form}, flags at two levels", made


def untrained_tokens() -> Iterator[tuple[str, Made]]:
    """Make checkpoints with reserved tokens that are all alike, and a row of zeros for <pad>."""
    for name, form in of_families("tied", "stored", "untied", "headless")[::3]:
        made = make(name, form)
        table = made.tensors[made.input] = made.tensors[made.input].copy()
        table[240:248], table[1] = table[240], 0
        if form == "stored":
            made.tensors[made.output] = table
        for copy in made.family.get("input_copies", []):
            made.tensors[copy] = table
        yield f"{name}, {form}, untrained tokens", made


def as_they_lie() -> Iterator[tuple[str, Made]]:
    for name, family in FAMILIES.items():
        for form in family["lies"]:
            yield f"{name}, {form}", make(name, form)


SOUND = dict(
    itertools.chain(
        as_they_lie(),
        padded("zeros"),
        padded("constant"),
        sharded(),
        with_copies(),
        true_size(),
        flag_in_both_levels(),
        untrained_tokens(),
    )
)


@pytest.mark.parametrize("case", SOUND)
def test_a_sound_checkpoint_raises_no_alarm_and_gets_no_advice_that_breaks_it(tmp_path, case):
    made = SOUND[case]
    found = made.audit(tmp_path)
    findings = found.findings
    assert found.status == 0, findings
    for fix in filter(None, (finding.fix for finding in findings)):
        if made.form == "stored" and made.config.get(FLAG):
            assert fix.startswith(f"drop {made.output}:"), fix
        else:  # says what is so already
            assert made.form == "untied" and re.fullmatch(rf"set {FLAG}: false in .*json", fix), fix
    texts = " ".join(finding.text for finding in findings)
    if made.form == "headless":
        assert findings[0].code == "no-head"
    elif not {"packed", "draft", "several"} & set(made.family):
        assert ("untied" in texts.lower()) != made.is_tied, texts


# Damaged checkpoints

BAD: dict[str, tuple[Made, str, str]] = {}  # case -> checkpoint, code, pattern of the advice
Damage = Callable[[Made], None]


def add(code: str, advice: str, cases: list[tuple[str, str]]) -> Callable[[Damage], Damage]:
    """Add families damaged by a function: the code it must be found by and the advice allowed."""

    def register(damage: Damage) -> Damage:
        for name, form in cases:
            made = make(name, form)
            damage(made)
            BAD[f"{name}, {damage.__name__.replace('_', ' ')}"] = (made, code, advice)
        return damage

    return register


def names_of(*names: str, form: str) -> list[tuple[str, str]]:
    return [(name, form) for name in names]


KEEPS_BOTH = rf"to keep both, set {FLAG}: false in .*config.json.*; drop .* only if it was never"


@add(
    "tied-but-different",
    KEEPS_BOTH,
    names_of("llama", "mistral", "qwen2", "pythia", "stablelm", "rwkv", "internlm2", form="untied")
    + names_of("phi", "gptj", "t5_v1_1", "mt5", "llava", "qwen2_vl", "git", form="untied"),
)
def flag_says_tied_but_tables_differ(made: Made) -> None:
    made.config[FLAG] = True


@add(
    "tied-but-different",
    KEEPS_BOTH,
    [
        (name, form)
        for name, form in of_families("stored", flag="silent")
        if not FAMILIES[name].get("always_tied")
    ],
)
def no_flag_and_tied_by_default_but_tables_differ(made: Made) -> None:
    made.tensors[made.output] = made.tensors[made.output][::-1].copy()


@add(
    "untied-but-once",
    rf"set {FLAG}: true in .*if it was trained tied; else restore the output embedding",
    names_of("llama", "qwen2", "gemma", "granite", "qwen2_vl", "t5", "whisper", "gpt2", form="tied")
    + names_of("smollm3", "opt", "bart", "qwen3_embedding", form="tied"),
)
def flag_says_untied_but_one_table_is_stored(made: Made) -> None:
    made.config[FLAG] = False


@add(
    "untied-but-once",
    "if it was trained tied; else restore the output embedding",
    names_of("mistral", "pythia", "internlm2", "rwkv", "glm4_moe", "imagegpt", form="untied"),
)
def head_is_missing(made: Made) -> None:
    del made.tensors[made.output]


@add(
    "untied-but-once",
    "if it was trained tied; else restore the output embedding",
    names_of("llama", "qwen2", "granite", form="tied"),
)
def flag_is_missing_and_untied_by_default(made: Made) -> None:
    del made.config[FLAG]


@add(
    "half-resized",
    "resize both embeddings",
    names_of("llama", "mistral", "phi", "pythia", "t5_v1_1", "olmo", form="untied")
    + names_of("gpt2", "bert", "roberta", form="stored"),
)
def head_has_eight_rows_more(made: Made) -> None:
    table = made.tensors[made.output]
    made.tensors[made.output] = np.concatenate([table, LOUD * table[:8]])


@add(
    "half-resized",
    "resize both embeddings",
    names_of("llama", "qwen2", "gpt_oss", "git", form="untied") + names_of("t5", form="stored"),
)
def input_has_eight_rows_more_and_vocab_size_too(made: Made) -> None:
    table = made.tensors[made.input]
    made.tensors[made.input] = np.concatenate([table, LOUD * table[:8]])
    made.level["vocab_size"] += 8


@add(
    "bias-size",
    "resize",
    names_of("bart", "marian", "bert", "roberta", "xlnet", form="tied")
    + names_of("phi", "gptj", form="untied"),
)
def bias_is_shorter(made: Made) -> None:
    bias = made.family["bias"]
    made.tensors[bias] = made.tensors[bias][..., :-9]


@add(
    "vocabulary",
    "set vocab_size",
    names_of("llama", "gpt2", "bert", "t5", "mamba", form="tied")
    + names_of("mistral", "pythia", form="untied"),
)
def vocab_size_is_larger(made: Made) -> None:
    made.level["vocab_size"] += 100


@add(
    "index-without-tensor",
    "restore what is missing",
    names_of("llama", "deepseek_v3", "t5_v1_1", "llava", form="untied"),
)
def index_names_a_tensor_that_no_file_has(made: Made) -> None:
    made.sharded = True
    made.listed = {"model.layers.9.mlp.up_proj.weight": "model-00001-of-00002.safetensors"}


@add(
    "tensor-without-index",
    "rebuild the index",
    names_of("mistral", "olmo", "stablelm", form="untied"),
)
def index_lacks_the_head(made: Made) -> None:
    made.sharded, made.unlisted = True, (made.output,)


@add(
    "dead-table",
    "restore",
    names_of("llama", "gpt2", "t5", "bert", "paligemma", form="tied")
    + names_of("bert_model", "t5_encoder", "mistral_embedder", form="headless"),
)
def input_is_all_zeros(made: Made) -> None:
    made.tensors[made.input] = np.zeros_like(made.tensors[made.input])


@add("dead-table", "restore", names_of("mistral", "gpt_oss", "mt5", "idefics3", form="untied"))
def head_is_all_zeros(made: Made) -> None:
    made.tensors[made.output] = np.zeros_like(made.tensors[made.output])


@add(
    "not-finite",
    "go back to a checkpoint before",
    names_of("llama", "gemma", "whisper", form="tied") + names_of("bert_model", form="headless"),
)
def input_holds_nan(made: Made) -> None:
    made.tensors[made.input] = made.tensors[made.input].copy()
    made.tensors[made.input][5, 2] = np.nan


@add("not-finite", "go back to a checkpoint before", names_of("mistral", "phi", form="untied"))
def head_holds_infinities(made: Made) -> None:
    made.tensors[made.output][7:9, 0] = np.inf


@add(
    "zero-rows",
    "restore the shard",
    names_of("llama", "gpt2", "qwen2", form="tied") + names_of("mistral", "pythia", form="untied"),
)
def last_quarter_is_zero(made: Made) -> None:
    table = made.tensors[made.input] = made.tensors[made.input].copy()
    table[3 * -(-len(table) // 4) :] = 0


@add(
    "levels-disagree",
    f"set {FLAG}: false in config.json, and also in text_config",
    names_of("llava", "idefics3", "mllama", form="untied"),
)
def nested_flag_says_tied(made: Made) -> None:
    made.level[FLAG] = True


@add(
    "levels-disagree",
    f"set {FLAG}: true in config.json, and also in text_config",
    names_of("paligemma", "gemma3", "kosmos2", form="tied"),
)
def nested_flag_says_untied(made: Made) -> None:
    made.config[FLAG], made.level[FLAG] = True, False


@add(
    "copies-differ",
    "find out which table was trained",
    names_of("t5", "bart", "m2m_100", form="tied") + names_of("mt5", form="untied"),
)
def encoder_has_another_table(made: Made) -> None:
    own = LOUD * made.tensors[made.input].astype(np.float32)
    made.tensors[made.family["copies"][0]] = own.astype(ml_dtypes.bfloat16)


@add(
    "untied-but-once",
    f"set {FLAG}: true in the decoder's level of config.json if it was trained tied",
    names_of("bert2bert", "vit_gpt2", form="tied"),
)
def decoder_says_untied_and_the_top_says_tied(made: Made) -> None:
    made.config[FLAG], made.level[FLAG] = True, False


@add(
    "tied-but-different",
    f"to keep both, set {FLAG}: false in the decoder's level of config.json",
    names_of("bert2bert", "vit_gpt2", form="stored"),
)
def decoder_has_no_flag_but_tables_differ(made: Made) -> None:
    made.level.pop(FLAG, None)
    made.tensors[made.output] = made.tensors[made.output][::-1].copy()


@add(
    "shared-alone",
    r"store it as \S*encoder.embed_tokens.weight and as \S*decoder.embed_tokens.weight, too",
    names_of("bart", "mbart", "m2m_100", "marian", "led", form="stored"),
)
def flag_says_untied_and_only_the_shared_table_is_stored(made: Made) -> None:
    made.config[FLAG] = False
    made.tensors[made.output] = made.tensors[made.output][::-1].copy()


@add(
    "tied-but-different",
    f"set {FLAG}: false in config.json, and store the shared embedding as those of encoder and dec",
    names_of("bart", "mbart", "m2m_100", form="stored"),
)
def advice_to_untie_keeps_encoder_and_decoder(made: Made) -> None:
    made.tensors[made.output] = made.tensors[made.output][::-1].copy()


@add(
    "tied-but-different",
    f"set {FLAG}: false in config.json .which also turns off the factor 1/√D of the logits.",
    names_of("t5", form="stored"),
)
@add(
    "tied-but-different",
    f"set {FLAG}: false in config.json .which also turns off the factor 1/√D of the logits.",
    names_of("t5_v1_1", "mt5", "byt5", form="untied"),
)
def advice_says_that_the_flag_of_t5_scales_logits(made: Made) -> None:
    made.config[FLAG] = True
    made.tensors[made.output] = made.tensors[made.output][::-1].copy()


@add(
    "tied-but-scaled",
    rf"set {FLAG}: false",
    names_of("llama", "gemma", "gpt2", "t5", "paligemma", form="stored"),
)
def head_is_scaled(made: Made) -> None:
    made.tensors[made.output] = made.tensors[made.output] * ml_dtypes.bfloat16(LOUD)


@add(
    "tied-but-different",
    "look for a shard",
    names_of("llama", "qwen2", "gpt2", "roberta", form="stored"),
)
def last_quarter_of_the_head_was_not_trained(made: Made) -> None:
    table = made.tensors[made.output] = made.tensors[made.output].copy()
    quarter = 3 * -(-len(table) // 4)
    table[quarter:] = table[quarter - 1 :: -1][: len(table) - quarter]


@add("tied-but-different", KEEPS_BOTH, names_of("llama", "qwen2", "bert", "whisper", form="stored"))
def added_tokens_differ(made: Made) -> None:
    table = made.tensors[made.output] = made.tensors[made.output].copy()
    table[made.tokens - 4 : made.tokens] = 1


@add(
    "untied-but-equal",
    f"set {FLAG}: true in config.json.* and drop .*, if it was trained tied",
    names_of("llama", "gemma", "gpt2", "t5", form="stored"),
)
def flag_says_untied_but_tables_are_equal(made: Made) -> None:
    made.config[FLAG] = False


@add("draft-tied", rf"set {FLAG}: false in config.json", names_of("eagle3", form="untied"))
def draft_says_tied(made: Made) -> None:
    made.config[FLAG] = True


@add("draft-tied", rf"set {FLAG}: false", names_of("eagle3_without_input", form="untied"))
def draft_without_input_says_tied(made: Made) -> None:
    made.config[FLAG] = True


@add("not-finite", "go back", names_of("gguf_llama", form="untied"))
def gguf_holds_nan(made: Made) -> None:
    made.tensors = {name: table.astype(np.float32) for name, table in made.tensors.items()}
    made.tensors["output.weight"][3, 3] = np.nan


@pytest.mark.parametrize("case", BAD)
def test_a_damaged_checkpoint_is_found_and_gets_advice_that_keeps_what_is_sound(tmp_path, case):
    made, code, advice = BAD[case]
    found = made.audit(tmp_path)
    wrong = [each for each in found.findings if each.level == "wrong"]
    fixes = {finding.code: finding.fix for finding in wrong}
    assert found.status == 1 and code in fixes, fixes
    assert re.search(advice, fixes[code]), fixes
    for fix in fixes.values():  # never the only good table
        assert not fix.startswith("drop") and "drop model.embed" not in fix


@pytest.mark.parametrize("name", ["bart", "mbart", "m2m_100"])
def test_repair_stores_a_shared_embedding_where_an_untied_flag_needs_it(tmp_path, name):
    made = make(name, "stored")
    made.tensors[made.output] = made.tensors[made.output][::-1].copy()
    path = write_folder(tmp_path / "old", made.tensors, made.config)
    result, done = write_repaired(path, tmp_path / "new", "flags")
    assert result.status == 0 and not result.checkpoint.configuration.claim
    for side in ("encoder", "decoder"):
        own = f"{made.input.partition('.')[0]}.{side}.embed_tokens.weight"
        tensors = result.checkpoint.tensors
        assert tensors[own].read(...).tobytes() == made.tensors[made.input].tobytes()
        assert own in done


@pytest.mark.parametrize("how", ["flags", "untie"])
def test_repair_does_not_untie_what_no_flag_unties(tmp_path, monkeypatch, how):
    made = make("fsmt", "stored")
    if how == "flags":
        made.tensors[made.output] = made.tensors[made.output][::-1].copy()
    path = write_folder(tmp_path / "old", made.tensors, made.config)
    monkeypatch.setattr("jaxtie.audit.repair._write_file", None)  # so that nothing is copied
    with pytest.raises(UserError, match="no flag unties them"):
        write_repaired(path, tmp_path / "new", how)
    assert [one.name for one in tmp_path.iterdir()] == ["old"]


def test_there_are_enough_families_and_cases():
    assert len(FAMILIES) >= 40 and all(family["source"] for family in FAMILIES.values())
    assert len(SOUND) >= 60 and len(BAD) >= 40
